//! ESP through the public API: round trips of every suite, refusals, replay, tunnels, large send, and comparison with
//! scapy. The tests do not depend on a cipher library, and `offramp-ports` runs them a second time with ipsec-mb.

mod support;

#[path = "esp/bench.rs"]
mod bench;
#[path = "esp/ciphers.rs"]
mod ciphers;
#[cfg(feature = "loom")]
#[path = "esp/every_order.rs"]
mod every_order;
#[path = "esp/keepalive.rs"]
mod keepalive;
#[path = "esp/large_send.rs"]
mod large_send;
#[path = "esp/refusal.rs"]
mod refusal;
#[path = "esp/replay.rs"]
mod replay;
#[path = "esp/round_trip.rs"]
mod round_trip;
#[path = "esp/scapy.rs"]
mod scapy;
#[path = "esp/shared.rs"]
mod shared;
#[path = "esp/tunnel.rs"]
mod tunnel;

/// Returns the cipher library under test.
fn library() -> &'static dyn offramp_offload::esp::CipherLibrary {
    offramp_offload::esp::aws_lc()
}

//! IPsec in the adapter, from host to host: what is sealed, what is refused, what is counted, and that no byte
//! and no frame is lost while associations change.

mod support;

#[path = "ipsec/bed.rs"]
mod bed;
#[path = "ipsec/keepalive.rs"]
mod keepalive;
#[path = "ipsec/keys.rs"]
mod keys;
#[path = "ipsec/life.rs"]
mod life;
#[path = "ipsec/line.rs"]
mod line;
#[path = "ipsec/on_switch.rs"]
mod on_switch;
#[path = "ipsec/policy.rs"]
mod policy;
#[path = "ipsec/stream.rs"]
mod stream;

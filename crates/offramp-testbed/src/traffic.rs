//! Traffic on the kernel's own sockets:
//!
//! - a bulk sender and sink in the manner of ttcp (claim I20, `offramp-model/cases/I20.toml`)
//! - a request/response client with work at both ends (claims M4 and M7)
//! - requests at given times, with or without simultaneous bulk data
//! - UDP with GSO and GRO
//! - calls over UDP like those of NFS (claims I15 to I19)
//!
//! Each test has a server and a client. [`serve`] listens on one control port. [`run_client`] requests one test,
//! described by [`Params`], and returns one [`Report`] with the figures of **both** ends. Both functions run in threads
//! of the caller. If the caller's threads are in a network namespace, the test measures this namespace.
//!
//! The sources of the figures:
//!
//! - A timed test warms up, then measures for the requested time, the measured window. The load continues until the
//!   server's measured window has ended, too. Each end counts bytes over its own measured window, and reports the exact
//!   duration of the window. The throughput in a report is the throughput at the receiver. In a test that transfers a
//!   given number of bytes, the receiver measures from the first byte to the last byte.
//! - Processor time is the user and system time of the data threads over the measured window (`RUSAGE_THREAD`).
//!   Interrupt time charged to other threads is not included; sample `/proc/stat` between [`Event::Start`] and
//!   [`Event::End`] to measure interrupt time.
//! - Congestion control is set on each socket and read back. The host's default may pace (BBR), and a network namespace
//!   inherits that default.
//!
//! The module `wire` defines the control protocol and its limits. The server refuses a client that violates the
//! protocol, and counts the refusal in [`ServerStats`].

mod client;
mod error;
mod marks;
mod pace;
mod params;
mod polls;
mod report;
mod requests;
mod rpc;
mod rr;
mod server;
mod side;
mod sockets;
mod streams;
#[cfg(test)]
mod tests;
mod ttcp;
mod udp;
mod wire;

pub use client::run_client;
pub use error::TrafficError;
pub use params::{
    Amount, Arrivals, BUSY_POLL_MAX_USECS, BulkParams, CONGESTION_DEFAULT, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN,
    Direction, GSO_SEGMENTS_MAX, LENGTH_DEFAULT_BYTES, LENGTH_MAX_BYTES, MESSAGE_MAX_BYTES, MixedParams, PORT_DEFAULT,
    Params, RPC_OUTSTANDING, RPC_OUTSTANDING_MAX, RPC_REQUEST_BYTES, RPC_RESPONSE_BYTES, RPC_TIMER_USECS,
    RR_MESSAGE_BYTES, RequestParams, RpcParams, STREAMS_MAX, TransactionParams, UdpParams, WARMUP_DEFAULT_USECS,
    Workload,
};
pub use report::{
    CpuTime, Datagrams, EndFigures, Event, Flow, Interval, Latency, Report, Rpc, RpcCounts, TcpFigures, Transactions,
    bits_text,
};
pub use rr::{iterations_for_usecs, work};
pub use server::{ServeOptions, ServerEvent, ServerStats, serve};

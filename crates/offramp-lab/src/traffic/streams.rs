//! The data threads of one end: which stream does what, the same on client and server.

use std::io;
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;

use super::params::{Params, RpcParams, UdpParams, Workload};
use super::side::{Role, Side};
use super::ttcp::Source;
use super::{rpc, rr, ttcp, udp};

/// Which end of the test this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It asked for the test.
    Client,
    /// It answers.
    Server,
}

impl End {
    /// What this end does on the stream with this index.
    fn role(self, params: &Params, index: u32) -> Role {
        if params.client_sends(index) == (self == Self::Client) { Role::Sending } else { Role::Receiving }
    }
}

/// The data that all streams of one end share.
pub(super) struct Sources {
    outgoing: Arc<Source>,
    expected: Option<Arc<Source>>,
}

impl Sources {
    /// Makes what the test needs, once.
    pub(super) fn new(params: &Params) -> Self {
        match &params.workload {
            Workload::Bulk(bulk) => {
                let length = bulk.length_bytes as usize;
                match bulk.pattern_seed {
                    None => Self { outgoing: Arc::new(Source::constant(length)), expected: None },
                    Some(seed) => Self {
                        outgoing: Arc::new(Source::pattern(seed, length)),
                        expected: Some(Arc::new(Source::pattern_for_sink(seed))),
                    },
                }
            }
            Workload::Transaction(transaction) => {
                let length = transaction.request_bytes.max(transaction.response_bytes) as usize;
                Self { outgoing: Arc::new(Source::constant(length)), expected: None }
            }
            Workload::Udp(_) | Workload::Rpc(_) => Self { outgoing: Arc::new(Source::constant(0)), expected: None },
        }
    }
}

/// Starts the thread of one TCP stream.
pub(super) fn spawn_tcp(
    side: &mut Side,
    end: End,
    params: &Params,
    sources: &Sources,
    index: u32,
    stream: TcpStream,
) -> io::Result<()> {
    let role = end.role(params, index);
    let stream = Arc::new(stream);
    let watched = Some(Arc::clone(&stream));
    let (outgoing, expected) = (Arc::clone(&sources.outgoing), sources.expected.clone());
    match (&params.workload, role) {
        (Workload::Transaction(transaction), Role::Sending) => {
            let transaction = transaction.clone();
            side.spawn(role, watched, move |context| rr::request(&stream, &transaction, &outgoing, context))
        }
        (Workload::Transaction(transaction), Role::Receiving) => {
            let transaction = transaction.clone();
            side.spawn(role, watched, move |context| rr::respond(&stream, &transaction, &outgoing, context))
        }
        (_, Role::Sending) => {
            let limit = params.stream_bytes(index);
            side.spawn(role, watched, move |context| ttcp::send(&stream, &outgoing, limit, context))
        }
        (_, Role::Receiving) => {
            let window_bytes = params.receive_window_bytes;
            side.spawn(role, watched, move |context| ttcp::receive(&stream, expected.as_deref(), window_bytes, context))
        }
    }
}

/// Starts the threads of the UDP streams of a test; the sockets are connected, in the order of the streams.
pub(super) fn spawn_udp(side: &mut Side, end: End, params: &Params, sockets: Vec<UdpSocket>) -> io::Result<()> {
    match &params.workload {
        Workload::Udp(udp) => spawn_datagrams(side, end, params, udp, sockets),
        Workload::Rpc(rpc) => spawn_calls(side, end, params, rpc, sockets),
        Workload::Bulk(_) | Workload::Transaction(_) => Ok(()),
    }
}

fn spawn_calls(side: &mut Side, end: End, params: &Params, rpc: &RpcParams, sockets: Vec<UdpSocket>) -> io::Result<()> {
    for (index, socket) in (0..).zip(sockets) {
        let (role, rpc) = (end.role(params, index), rpc.clone());
        side.spawn(role, None, move |context| match role {
            Role::Sending => rpc::call(&socket, &rpc, context),
            Role::Receiving => rpc::answer(&socket, &rpc, context),
        })?;
    }
    Ok(())
}

fn spawn_datagrams(
    side: &mut Side,
    end: End,
    params: &Params,
    udp: &UdpParams,
    sockets: Vec<UdpSocket>,
) -> io::Result<()> {
    // A rate that does not divide is rounded up to the next bit per second, so that it never becomes "no limit".
    let rate_bps = udp.rate_bps.div_ceil(u64::from(params.streams));
    for (index, socket) in (0..).zip(sockets) {
        let role = end.role(params, index);
        let udp = udp.clone();
        super::sockets::set_udp_offloads(&socket, &udp, role == Role::Sending)?;
        side.spawn(role, None, move |context| match role {
            Role::Sending => udp::send(&socket, &udp, rate_bps, context),
            Role::Receiving => udp::receive(&socket, &udp, context),
        })?;
    }
    Ok(())
}

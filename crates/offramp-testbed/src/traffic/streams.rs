//! The data threads of one end. Client and server use the same code to determine their role on each stream.

use std::io;
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;

use super::marks::Role;
use super::params::{MixedParams, Params, RpcParams, UdpParams, Workload};
use super::side::Side;
use super::ttcp::Source;
use super::{requests, rpc, rr, ttcp, udp};

/// One end of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The end that requested the test.
    Client,
    /// The end that serves the test.
    Server,
}

impl End {
    /// Returns this end's role on the stream with this index.
    fn role(self, params: &Params, index: u32) -> Role {
        if params.client_sends(index) == (self == Self::Client) { Role::Sending } else { Role::Receiving }
    }
}

/// Data shared by all streams of one end.
pub(super) struct Sources {
    outgoing: Arc<Source>,
    expected: Option<Arc<Source>>,
}

impl Sources {
    /// Creates the data that the streams of a test send, constant or patterned. The sink compares the received data
    /// with these data.
    pub(super) fn new(params: &Params) -> Self {
        match &params.workload {
            Workload::Bulk(bulk) | Workload::Mixed(MixedParams { bulk, .. }) => {
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
            Workload::Udp(_) | Workload::Requests(_) | Workload::Rpc(_) => {
                Self { outgoing: Arc::new(Source::constant(0)), expected: None }
            }
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
        (Workload::Transaction(transaction), Role::Receiving | Role::Exchanging) => {
            let transaction = transaction.clone();
            side.spawn(role, watched, move |context| rr::respond(&stream, &transaction, &outgoing, context))
        }
        (_, Role::Sending) => {
            let (limit, rate_bps) = (params.stream_bytes(index), params.stream_rate_bps());
            side.spawn(role, watched, move |context| ttcp::send(&stream, &outgoing, limit, rate_bps, context))
        }
        (_, Role::Receiving | Role::Exchanging) => {
            let window_bytes = params.receive_window_bytes;
            side.spawn(role, watched, move |context| ttcp::receive(&stream, expected.as_deref(), window_bytes, context))
        }
    }
}

/// Starts the threads of the UDP streams. `sockets` are connected, and in the order of the streams.
pub(super) fn spawn_udp(side: &mut Side, end: End, params: &Params, sockets: Vec<UdpSocket>) -> io::Result<()> {
    for (index, socket) in (0..).zip(sockets) {
        match &params.workload {
            Workload::Udp(udp) => spawn_datagrams(side, end.role(params, index), params, udp, socket)?,
            Workload::Requests(_) => spawn_requests(side, end, end.role(params, index), params, index, socket)?,
            Workload::Mixed(_) => spawn_requests(side, end, Role::Exchanging, params, index, socket)?,
            Workload::Rpc(rpc) => spawn_calls(side, end.role(params, index), rpc, socket)?,
            Workload::Bulk(_) | Workload::Transaction(_) => {}
        }
    }
    Ok(())
}

fn spawn_calls(side: &mut Side, role: Role, rpc: &RpcParams, socket: UdpSocket) -> io::Result<()> {
    let rpc = rpc.clone();
    side.spawn(role, None, move |context| match role {
        Role::Sending => rpc::call(&socket, &rpc, context),
        Role::Receiving | Role::Exchanging => rpc::answer(&socket, &rpc, context),
    })
}

fn spawn_datagrams(side: &mut Side, role: Role, params: &Params, udp: &UdpParams, socket: UdpSocket) -> io::Result<()> {
    let (udp, rate_bps) = (udp.clone(), params.stream_rate_bps());
    super::sockets::set_udp_offloads(&socket, &udp, role == Role::Sending)?;
    side.spawn(role, None, move |context| match role {
        Role::Sending => udp::send(&socket, &udp, rate_bps, context),
        Role::Receiving | Role::Exchanging => udp::receive(&socket, &udp, context),
    })
}

fn spawn_requests(
    side: &mut Side,
    end: End,
    role: Role,
    params: &Params,
    index: u32,
    socket: UdpSocket,
) -> io::Result<()> {
    let Some(asked) = params.requests().cloned() else { return Ok(()) };
    side.spawn(role, None, move |context| match end {
        End::Client => requests::request(&socket, &asked, index, context),
        End::Server => requests::respond(&socket, &asked, context),
    })
}

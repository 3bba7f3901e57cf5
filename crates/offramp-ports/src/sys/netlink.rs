//! Requests to the kernel's routing netlink, in the calling thread's namespace.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Sequence number of a socket's only request: each socket is used once.
const SEQUENCE: u32 = 1;

/// Sends a request for a change and waits for the acknowledgement.
pub(super) fn change(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    exchange(message, NLM_F_REQUEST | NLM_F_ACK | flags, |_| ())
}

/// Sends a request for one object and returns the kernel's messages before its acknowledgement.
pub(super) fn get(message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut answers = Vec::new();
    exchange(message, NLM_F_REQUEST | NLM_F_ACK, |answer| answers.push(answer))?;
    Ok(answers)
}

/// Sends a request for all objects of a kind, and returns the objects.
pub(super) fn dump(message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut answers = Vec::new();
    exchange(message, NLM_F_REQUEST | NLM_F_DUMP, |answer| answers.push(answer))?;
    Ok(answers)
}

fn exchange(message: RouteNetlinkMessage, flags: u16, mut answer: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&serialize(message, flags), 0)?;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if read_datagram(&datagram, &mut answer)? {
            return Ok(());
        }
    }
}

fn serialize(message: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = SEQUENCE;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    bytes
}

/// Reads every message in a datagram. Returns true if the exchange has ended.
fn read_datagram(datagram: &[u8], answer: &mut impl FnMut(RouteNetlinkMessage)) -> io::Result<bool> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
        rest = rest.get(aligned(message.header.length as usize)..).unwrap_or_default();
        if message.header.sequence_number != SEQUENCE {
            continue;
        }
        match message.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::InnerMessage(inner) => answer(inner),
            _ => {}
        }
    }
    Ok(false)
}

/// Returns `len` rounded up to four bytes, the alignment of netlink messages (`NLMSG_ALIGN`, netlink(3)).
fn aligned(len: usize) -> usize {
    len.next_multiple_of(4).max(4)
}

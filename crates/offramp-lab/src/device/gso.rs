//! The host's own segmentation limit of an interface (`gso_max_segs`), in the calling thread's
//! network namespace.
//!
//! Since Linux 4.17 TCP builds super-frames whatever `tx-generic-segmentation` says (`sk_setup_caps`
//! in `net/core/sock.c`): with that feature off the kernel still cuts them just above the driver. Only
//! a limit of one segment makes a host that sends one frame at a time.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use offramp_ports::sys::{SysError, link};

/// A limit with which TCP sends one frame at a time.
pub const ONE_FRAME: u32 = 1;

/// Segments that TCP may put into one super-frame for this interface; `None` when the kernel does not say.
///
/// # Errors
/// When there is no such interface.
pub fn segs_max(name: &str) -> Result<Option<u32>, SysError> {
    let answers = exchange(name, RouteNetlinkMessage::GetLink, None)
        .map_err(|e| SysError::new(format!("reading the GSO limit of interface \"{name}\""), e))?;
    let link = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    let attributes = link.map(|link| link.attributes).unwrap_or_default();
    Ok(attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::GsoMaxSegs(segs) => Some(segs),
        _ => None,
    }))
}

/// Sets how many segments TCP may put into one super-frame; connections made from now on keep to it.
///
/// # Errors
/// When there is no such interface, no privilege, or the kernel does not take the limit (`EINVAL`).
pub fn set_segs_max(name: &str, segs: u32) -> Result<(), SysError> {
    let attribute = LinkAttribute::GsoMaxSegs(segs);
    exchange(name, RouteNetlinkMessage::SetLink, Some(attribute))
        .map(|_| ())
        .map_err(|e| SysError::new(format!("setting the GSO limit of interface \"{name}\" to {segs}"), e))
}

/// One request about the interface; returns what the kernel sends before its acknowledgement.
fn exchange(
    name: &str,
    request: impl FnOnce(LinkMessage) -> RouteNetlinkMessage,
    attribute: Option<LinkAttribute>,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut message = LinkMessage::default();
    message.header.index = link::index(name).map_err(io::Error::from)?;
    message.attributes.extend(attribute);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&serialize(request(message)), 0)?;
    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if read_datagram(&datagram, &mut answers)? {
            return Ok(answers);
        }
    }
}

fn serialize(message: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    bytes
}

/// Takes the messages of a datagram; `true` when the acknowledgement was among them.
fn read_datagram(datagram: &[u8], answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
    /// Messages start on multiples of so many bytes (`NLMSG_ALIGNTO`, netlink(3)).
    const ALIGN: usize = 4;
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
        let len = (message.header.length as usize).next_multiple_of(ALIGN).max(ALIGN);
        rest = rest.get(len..).unwrap_or_default();
        match message.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            NetlinkPayload::Error(_) => return Ok(true),
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            _ => {}
        }
    }
    Ok(false)
}

//! Interfaces, addresses and neighbours over netlink, in the calling thread's network namespace.
//!
//! Every error names the interface and the kernel's answer.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::{NetNs, SysError, netlink};

/// Longest interface name in bytes (`IFNAMSIZ` less its zero byte).
pub const NAME_LEN_MAX: usize = libc::IFNAMSIZ - 1;

type Result<T> = std::result::Result<T, SysError>;

/// The kernel's counters of an interface since it was made. `rx` counts frames *into* the host.
pub use netlink_packet_route::link::Stats64;

/// Returns whether Linux takes `name` for an interface: 1 to 15 bytes, no space, `/`, `:` or `%`.
pub fn is_valid_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%');
    (1..=NAME_LEN_MAX).contains(&name.len()) && name != "." && name != ".." && !name.contains(forbidden)
}

/// A watch on an interface's carrier, in the namespace of its maker's thread.
#[derive(Debug)]
pub struct CarrierWatch {
    name: String,
    /// Receives a message at every change of an interface. The messages are not read: the state is asked for.
    news: Socket,
    was_polled: bool,
}

impl CarrierWatch {
    /// Watches the interface with this name. It need not exist yet.
    ///
    /// # Errors
    /// Returns an error if netlink is refused.
    pub fn new(name: &str) -> Result<Self> {
        let open = || {
            let mut news = Socket::new(NETLINK_ROUTE)?;
            news.bind(&SocketAddr::new(0, libc::RTMGRP_LINK as u32))?;
            news.set_non_blocking(true)?;
            Ok(news)
        };
        let news = open().map_err(on("watching", name))?;
        Ok(Self { name: name.to_owned(), news, was_polled: false })
    }

    /// Returns whether the interface is up and has its carrier (`IFF_RUNNING`), if this may have changed since the last
    /// call. A deleted one has none. Call it in the namespace of the watch's maker.
    pub fn poll(&mut self) -> Option<bool> {
        let may_have_changed = self.take_news() || !self.was_polled;
        self.was_polled = true;
        let is_running = |link: LinkMessage| link.header.flags.contains(LinkFlags::Up | LinkFlags::Running);
        may_have_changed.then(|| get(&self.name).is_ok_and(is_running))
    }

    /// Empties the socket. Returns whether there was anything, including messages without room (`ENOBUFS`).
    fn take_news(&mut self) -> bool {
        let mut has_any = false;
        loop {
            // The kernel truncates a longer message; nobody reads it.
            let mut datagram = [0; 64];
            match self.news.recv(&mut &mut datagram[..], 0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return has_any,
                Err(error) if error.raw_os_error() != Some(libc::ENOBUFS) => return true,
                _ => has_any = true,
            }
        }
    }
}

impl AsFd for CarrierWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket keeps its descriptor open for as long as `self` is.
        unsafe { BorrowedFd::borrow_raw(self.news.as_raw_fd()) }
    }
}

/// The interface's index.
///
/// # Errors
/// Returns an error if there is no such interface (`ENODEV`).
pub fn index(name: &str) -> Result<u32> {
    Ok(get(name)?.header.index)
}

/// The names of all interfaces.
///
/// # Errors
/// Returns an error if netlink is refused.
pub fn list() -> Result<Vec<String>> {
    let answers = netlink::dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))
        .map_err(|cause| SysError::new("listing interfaces", cause))?;
    let links = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    let name_of = |link: LinkMessage| {
        link.attributes.into_iter().find_map(|a| match a {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        })
    };
    Ok(links.filter_map(name_of).collect())
}

/// Brings the interface up.
///
/// # Errors
/// Returns an error if there is no such interface, or no privilege.
pub fn set_up(name: &str) -> Result<()> {
    set_flags(name, LinkFlags::Up, LinkFlags::Up, "bringing up")
}

/// Takes the interface down.
///
/// # Errors
/// Returns an error if there is no such interface, or no privilege.
pub fn set_down(name: &str) -> Result<()> {
    set_flags(name, LinkFlags::empty(), LinkFlags::Up, "taking down")
}

/// Sets the MTU (bytes of IP).
///
/// # Errors
/// Returns an error if there is no such interface, or its driver does not take this MTU (`EINVAL`).
pub fn set_mtu(name: &str, mtu: u32) -> Result<()> {
    set_attribute(name, LinkAttribute::Mtu(mtu), &format!("setting MTU {mtu} on"))
}

/// Sets the Ethernet address.
///
/// # Errors
/// Returns an error if there is no such interface, or the address is a group's (`EADDRNOTAVAIL`).
pub fn set_mac(name: &str, mac: [u8; 6]) -> Result<()> {
    set_attribute(name, LinkAttribute::Address(mac.to_vec()), "setting the Ethernet address of")
}

/// Sets the maximum frames in the interface's queue on the way out of the host.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn set_tx_queue_len(name: &str, frames: u32) -> Result<()> {
    set_attribute(name, LinkAttribute::TxQueueLen(frames), &format!("setting queue length {frames} on"))
}

/// The limit for TCP to send one frame at a time, see [`set_gso_segs_max`].
pub const GSO_ONE_FRAME: u32 = 1;

/// Returns the most segments of a super-frame from the host's TCP for this interface; `None` when the kernel does not
/// say.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn gso_segs_max(name: &str) -> Result<Option<u32>> {
    attribute(name, |attribute| if let LinkAttribute::GsoMaxSegs(segs) = attribute { Some(segs) } else { None })
}

/// Sets the most segments of one super-frame from the host's TCP; connections made from now on
/// keep to it.
///
/// Since Linux 4.17 TCP builds super-frames whatever `tx-generic-segmentation` says (`sk_setup_caps` in
/// `net/core/sock.c`): with this feature off the kernel still segments them just above the driver. Only a limit of one
/// segment makes the host send one frame at a time.
///
/// # Errors
/// Returns an error if there is no such interface, no privilege, or the kernel does not take the limit (`EINVAL`).
pub fn set_gso_segs_max(name: &str, segs: u32) -> Result<()> {
    set_attribute(name, LinkAttribute::GsoMaxSegs(segs), &format!("setting the GSO limit {segs} on"))
}

/// Makes the interface a port of a bridge.
///
/// # Errors
/// Returns an error if one of them does not exist, or `bridge` is none.
pub fn set_master(name: &str, bridge: &str) -> Result<()> {
    let master = index(bridge)?;
    set_attribute(name, LinkAttribute::Controller(master), &format!("adding to bridge \"{bridge}\" the"))
}

/// Moves the interface into another namespace. It goes down and loses its addresses.
///
/// # Errors
/// Returns an error if there is no such interface here, or one with its name there (`EEXIST`).
pub fn move_to(name: &str, ns: &NetNs) -> Result<()> {
    set_attribute(name, LinkAttribute::NetNsFd(ns.as_fd().as_raw_fd()), "moving to another namespace the")
}

/// Makes a bridge. It floods multicast as a plain switch does.
///
/// # Errors
/// Returns an error if the name is taken (`EEXIST`), or the kernel has no bridge (`EOPNOTSUPP`).
pub fn create_bridge(name: &str) -> Result<()> {
    let data = InfoData::Bridge(vec![InfoBridge::MulticastSnooping(false)]);
    create(name, InfoKind::Bridge, data, "making bridge")
}

/// Makes two interfaces with a cable between them.
///
/// # Errors
/// Returns an error if one of the names is taken (`EEXIST`), or the kernel has no veth (`EOPNOTSUPP`).
pub fn create_veth(a: &str, b: &str) -> Result<()> {
    let mut peer = LinkMessage::default();
    peer.attributes.push(LinkAttribute::IfName(b.into()));
    create(a, InfoKind::Veth, InfoData::Veth(InfoVeth::Peer(peer)), "making veth")
}

/// Deletes the interface.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn delete(name: &str) -> Result<()> {
    let message = message_for(name)?;
    netlink::change(RouteNetlinkMessage::DelLink(message), 0).map_err(on("deleting", name))
}

/// Gives the interface an address. An IPv6 address can be used at once (no duplicate detection).
///
/// # Errors
/// Returns an error if there is no such interface, or it has the address already (`EEXIST`).
pub fn add_address(name: &str, address: IpAddr, prefix_len: u8) -> Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.prefix_len = prefix_len;
    message.header.index = index(name)?;
    message.attributes.push(AddressAttribute::Local(address));
    message.attributes.push(AddressAttribute::Address(address));
    if address.is_ipv6() {
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    netlink::change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
        .map_err(on(&format!("adding {address}/{prefix_len} to"), name))
}

/// Adds a permanent neighbour to the interface, so nobody asks for its Ethernet address.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn add_neighbour(name: &str, address: IpAddr, mac: [u8; 6]) -> Result<()> {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    message.header.ifindex = index(name)?;
    message.header.state = NeighbourState::Permanent;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(address)));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
    netlink::change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
        .map_err(on(&format!("adding neighbour {address} to"), name))
}

/// Returns the kernel's counters of the interface.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn statistics(name: &str) -> Result<Stats64> {
    let found = attribute(name, |found| if let LinkAttribute::Stats64(stats) = found { Some(stats) } else { None })?;
    found.ok_or_else(|| on("reading the counters of", name)(io::ErrorKind::Unsupported.into()))
}

/// Returns the interface's MTU, in bytes of IP.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn mtu(name: &str) -> Result<u32> {
    let found = attribute(name, |found| if let LinkAttribute::Mtu(mtu) = found { Some(mtu) } else { None })?;
    found.ok_or_else(|| on("reading the MTU of", name)(io::ErrorKind::Unsupported.into()))
}

/// The interface's Ethernet address.
///
/// # Errors
/// Returns an error if there is no such interface, or it is not Ethernet.
pub fn mac(name: &str) -> Result<[u8; 6]> {
    let bytes = |found| if let LinkAttribute::Address(bytes) = found { bytes.try_into().ok() } else { None };
    let found = attribute(name, bytes)?;
    found.ok_or_else(|| on("reading the Ethernet address of", name)(io::ErrorKind::Unsupported.into()))
}

/// Keeps IPv6 off the interface: no link-local address, no router solicitation, no multicast report.
///
/// # Errors
/// Returns an error if there is no such interface, or no IPv6 in the kernel.
pub fn disable_ipv6(name: &str) -> Result<()> {
    if !is_valid_name(name) {
        return Err(on("disabling IPv6 on", name)(io::ErrorKind::InvalidInput.into()));
    }
    // The kernel shows each thread the files of its own namespace here.
    fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").map_err(on("disabling IPv6 on", name))
}

fn get(name: &str) -> Result<LinkMessage> {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::IfName(name.into()));
    let answers = netlink::get(RouteNetlinkMessage::GetLink(request)).map_err(on("looking for", name))?;
    let link = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    link.ok_or_else(|| on("looking for", name)(io::Error::from_raw_os_error(libc::ENODEV)))
}

/// Returns the result of `pick` for the interface's attributes.
fn attribute<T>(name: &str, pick: impl FnMut(LinkAttribute) -> Option<T>) -> Result<Option<T>> {
    Ok(get(name)?.attributes.into_iter().find_map(pick))
}

/// Returns a message about the interface with this name, with nothing to change in it yet.
fn message_for(name: &str) -> Result<LinkMessage> {
    let mut message = LinkMessage::default();
    message.header.index = index(name)?;
    Ok(message)
}

fn set_flags(name: &str, flags: LinkFlags, mask: LinkFlags, doing: &str) -> Result<()> {
    let mut message = message_for(name)?;
    message.header.flags = flags;
    message.header.change_mask = mask;
    netlink::change(RouteNetlinkMessage::SetLink(message), 0).map_err(on(doing, name))
}

fn set_attribute(name: &str, attribute: LinkAttribute, doing: &str) -> Result<()> {
    let mut message = message_for(name)?;
    message.attributes.push(attribute);
    netlink::change(RouteNetlinkMessage::SetLink(message), 0).map_err(on(doing, name))
}

fn create(name: &str, kind: InfoKind, data: InfoData, doing: &str) -> Result<()> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.into()));
    message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)]));
    netlink::change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL).map_err(on(doing, name))
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn on(doing: &str, name: &str) -> impl FnOnce(io::Error) -> SysError {
    let text = format!("{doing} interface \"{name}\"");
    move |cause| SysError::new(text, cause)
}

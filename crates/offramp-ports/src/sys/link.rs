//! Interfaces, addresses and neighbours over netlink, in the calling thread's network namespace.
//!
//! Every error names the interface and the kernel's error.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Nla};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoTun, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::{NetNs, SysError, netlink};

/// Maximum length of an interface name in bytes (`IFNAMSIZ` without the terminating zero).
pub const NAME_LEN_MAX: usize = libc::IFNAMSIZ - 1;

type Result<T> = std::result::Result<T, SysError>;

/// The kernel's counters of an interface since its creation. `rx` counts frames *into* the host.
pub use netlink_packet_route::link::Stats64;

/// Returns whether `name` is a valid interface name in Linux: 1 to 15 bytes without space, `/`, `:` and `%`.
pub fn is_valid_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%');
    (1..=NAME_LEN_MAX).contains(&name.len()) && name != "." && name != ".." && !name.contains(forbidden)
}

/// A watch on an interface's carrier, in the namespace of the creating thread.
#[derive(Debug)]
pub struct CarrierWatch {
    name: String,
    /// Receives a message at every change of an interface. The messages are discarded, and the state is queried
    /// instead.
    news: Socket,
    was_polled: bool,
}

impl CarrierWatch {
    /// Watches the interface with this name. The interface need not exist yet.
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

    /// Returns whether the interface is up and has a carrier (`IFF_RUNNING`). Returns `None` if the state cannot have
    /// changed since the last call. A deleted interface has no carrier. Call this function in the namespace in which
    /// the watch was created.
    pub fn poll(&mut self) -> Option<bool> {
        let may_have_changed = self.take_news() || !self.was_polled;
        self.was_polled = true;
        let is_running = |link: LinkMessage| link.header.flags.contains(LinkFlags::Up | LinkFlags::Running);
        may_have_changed.then(|| get(&self.name).is_ok_and(is_running))
    }

    /// Discards all queued messages. Returns whether the socket had any message, including messages dropped for lack of
    /// room (`ENOBUFS`).
    fn take_news(&mut self) -> bool {
        let mut has_any = false;
        loop {
            // The kernel truncates a longer message, which is discarded anyway.
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
        // SAFETY: the socket keeps its descriptor open as long as `self` exists.
        unsafe { BorrowedFd::borrow_raw(self.news.as_raw_fd()) }
    }
}

/// Returns the interface's index.
///
/// # Errors
/// Returns an error if there is no such interface (`ENODEV`).
pub fn index(name: &str) -> Result<u32> {
    Ok(get(name)?.header.index)
}

/// A TUN or TAP interface made by any program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the kernel reports these independent flags")]
pub struct TunInfo {
    /// True for Ethernet frames (TAP), false for IP packets (TUN).
    pub is_tap: bool,
    /// The only user who may attach without a capability.
    pub owner: Option<u32>,
    /// The only group whose members may attach without a capability.
    pub group: Option<u32>,
    /// True if several queues can be attached.
    pub is_multi_queue: bool,
    /// Number of attached queues. Linux reports the number only for an interface with several queues.
    pub queues: u32,
    /// MTU in bytes of the IP packet.
    pub mtu: u32,
    /// True if the interface is up.
    pub is_up: bool,
    /// True if the interface has a carrier.
    pub has_carrier: bool,
}

/// Returns the properties of a TUN or TAP interface; `None` for another interface.
///
/// # Errors
/// Returns an error if there is no such interface (`ENODEV`).
pub fn tun(name: &str) -> Result<Option<TunInfo>> {
    let link = get(name)?;
    let mut found = TunInfo { is_up: link.header.flags.contains(LinkFlags::Up), ..TunInfo::default() };
    let mut is_tun = false;
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => found.mtu = mtu,
            LinkAttribute::Carrier(carrier) => found.has_carrier = carrier != 0,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Data(InfoData::Tun(properties)) = info {
                        is_tun = true;
                        for property in &properties {
                            found.note(property);
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Ok(is_tun.then_some(found))
}

impl TunInfo {
    /// Stores one attribute (`IFLA_TUN_*`, Linux `include/uapi/linux/if_link.h`).
    fn note(&mut self, property: &InfoTun) {
        const OWNER: u16 = 1;
        const GROUP: u16 = 2;
        const TYPE: u16 = 3;
        const MULTI_QUEUE: u16 = 7;
        const NUM_QUEUES: u16 = 8;
        const NUM_DISABLED_QUEUES: u16 = 9;
        let mut bytes = [0; 4];
        let Some(value) = bytes.get_mut(..property.value_len()) else { return };
        property.emit_value(value);
        let (number, first) = (u32::from_ne_bytes(bytes), bytes[0]);
        match property.kind() {
            OWNER => self.owner = Some(number),
            GROUP => self.group = Some(number),
            TYPE => self.is_tap = libc::c_int::from(first) == libc::IFF_TAP,
            MULTI_QUEUE => self.is_multi_queue = first != 0,
            NUM_QUEUES | NUM_DISABLED_QUEUES => self.queues += number,
            _ => {}
        }
    }
}

/// Returns the names of all interfaces.
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
/// Returns an error if there is no such interface, or the privilege is missing.
pub fn set_up(name: &str) -> Result<()> {
    set_flags(name, LinkFlags::Up, LinkFlags::Up, "bringing up")
}

/// Takes the interface down.
///
/// # Errors
/// Returns an error if there is no such interface, or the privilege is missing.
pub fn set_down(name: &str) -> Result<()> {
    set_flags(name, LinkFlags::empty(), LinkFlags::Up, "taking down")
}

/// Sets the MTU, in bytes of the IP packet.
///
/// # Errors
/// Returns an error if there is no such interface, or its driver refuses this MTU (`EINVAL`).
pub fn set_mtu(name: &str, mtu: u32) -> Result<()> {
    set_attribute(name, LinkAttribute::Mtu(mtu), &format!("setting MTU {mtu} on"))
}

/// Sets the Ethernet address.
///
/// # Errors
/// Returns an error if there is no such interface, or the address is a group address (`EADDRNOTAVAIL`).
pub fn set_mac(name: &str, mac: [u8; 6]) -> Result<()> {
    set_attribute(name, LinkAttribute::Address(mac.to_vec()), "setting the Ethernet address of")
}

/// Sets the maximum number of frames in the interface's transmit queue.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn set_tx_queue_len(name: &str, frames: u32) -> Result<()> {
    set_attribute(name, LinkAttribute::TxQueueLen(frames), &format!("setting queue length {frames} on"))
}

/// The limit that makes TCP send one frame at a time. See [`set_gso_segs_max`].
pub const GSO_ONE_FRAME: u32 = 1;

/// Returns the maximum number of segments in a super-frame from the host's TCP for this interface. Returns `None` if
/// the kernel does not report the limit.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn gso_segs_max(name: &str) -> Result<Option<u32>> {
    attribute(name, |attribute| if let LinkAttribute::GsoMaxSegs(segs) = attribute { Some(segs) } else { None })
}

/// Sets the maximum number of segments in a super-frame from the host's TCP. The limit applies to connections opened
/// later.
///
/// Since Linux 4.17, TCP builds super-frames regardless of `tx-generic-segmentation` (`sk_setup_caps` in
/// `net/core/sock.c`). With that feature off, the kernel segments super-frames just before the driver. Only a limit of
/// one segment makes the host send one frame at a time.
///
/// # Errors
/// Returns an error if there is no such interface, the privilege is missing, or the kernel refuses the limit
/// (`EINVAL`).
pub fn set_gso_segs_max(name: &str, segs: u32) -> Result<()> {
    set_attribute(name, LinkAttribute::GsoMaxSegs(segs), &format!("setting the GSO limit {segs} on"))
}

/// Makes the interface a port of a bridge.
///
/// # Errors
/// Returns an error if an interface does not exist, or `bridge` is not a bridge.
pub fn set_master(name: &str, bridge: &str) -> Result<()> {
    let master = index(bridge)?;
    set_attribute(name, LinkAttribute::Controller(master), &format!("adding to bridge \"{bridge}\" the"))
}

/// Moves the interface into another namespace. The kernel takes the interface down and removes its addresses.
///
/// # Errors
/// Returns an error if there is no such interface, or the other namespace has an interface with the same name
/// (`EEXIST`).
pub fn move_to(name: &str, ns: &NetNs) -> Result<()> {
    set_attribute(name, LinkAttribute::NetNsFd(ns.as_fd().as_raw_fd()), "moving to another namespace the")
}

/// Creates a bridge. The bridge floods multicast, like a switch without multicast snooping.
///
/// # Errors
/// Returns an error if the name is taken (`EEXIST`), or the kernel lacks the bridge driver (`EOPNOTSUPP`).
pub fn create_bridge(name: &str) -> Result<()> {
    let data = InfoData::Bridge(vec![InfoBridge::MulticastSnooping(false)]);
    create(name, InfoKind::Bridge, data, "making bridge")
}

/// Creates a veth pair: two interfaces connected to each other.
///
/// # Errors
/// Returns an error if a name is taken (`EEXIST`), or the kernel lacks veth (`EOPNOTSUPP`).
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

/// Adds an address to the interface. An IPv6 address is usable at once, without duplicate address detection.
///
/// # Errors
/// Returns an error if there is no such interface, or the interface already has the address (`EEXIST`).
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

/// Adds a permanent neighbour to the interface, so that the kernel does not resolve its Ethernet address.
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

/// Returns the interface's MTU, in bytes of the IP packet.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn mtu(name: &str) -> Result<u32> {
    let found = attribute(name, |found| if let LinkAttribute::Mtu(mtu) = found { Some(mtu) } else { None })?;
    found.ok_or_else(|| on("reading the MTU of", name)(io::ErrorKind::Unsupported.into()))
}

/// Returns the interface's Ethernet address.
///
/// # Errors
/// Returns an error if there is no such interface, or the interface is not an Ethernet interface.
pub fn mac(name: &str) -> Result<[u8; 6]> {
    let bytes = |found| if let LinkAttribute::Address(bytes) = found { bytes.try_into().ok() } else { None };
    let found = attribute(name, bytes)?;
    found.ok_or_else(|| on("reading the Ethernet address of", name)(io::ErrorKind::Unsupported.into()))
}

/// Disables IPv6 on the interface: the kernel then sends no router solicitation and no multicast report, and assigns no
/// link-local address.
///
/// # Errors
/// Returns an error if there is no such interface, or the kernel lacks IPv6.
pub fn disable_ipv6(name: &str) -> Result<()> {
    if !is_valid_name(name) {
        return Err(on("disabling IPv6 on", name)(io::ErrorKind::InvalidInput.into()));
    }
    // Under this path, the kernel shows each thread the files of its own network namespace.
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

/// Returns the first result of `pick` among the interface's attributes.
fn attribute<T>(name: &str, pick: impl FnMut(LinkAttribute) -> Option<T>) -> Result<Option<T>> {
    Ok(get(name)?.attributes.into_iter().find_map(pick))
}

/// Returns a netlink message that names the interface and does not yet contain a change.
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

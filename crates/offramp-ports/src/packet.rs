//! An existing interface as a host port, through packet sockets (packet(7)). The port receives the frames that arrive
//! at the interface, and transmits frames on the interface. The kernel's vnet header accompanies each frame, so
//! super-frames and partial checksums pass in both directions.
//!
//! The port does not receive frames that this machine itself transmits on the interface. The port changes no setting of
//! the interface except promiscuous mode. The kernel ends promiscuous mode when the sockets are closed, even if the
//! process crashes.
//!
//! The port stays open when the interface goes down and comes up again. The port closes when the interface is deleted
//! or moved to another namespace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use offramp_offload::caps::Offloads;

use crate::sys::ethtool::Features;
use crate::sys::link::{self, NAME_LEN_MAX};
use crate::sys::{NetNs, SysError};

mod queue;
mod rx_queue;
mod socket;

pub use queue::PacketQueue;
pub use rx_queue::{Arrival, HEAD_LEN, RxQueues};

/// Maximum number of queues of one port: the size of a fanout group (Linux `PACKET_FANOUT_MAX` before 5.16).
pub const QUEUES_MAX: u16 = 256;
/// Default maximum length of a super-frame, in bytes: an IP packet of 65536 bytes after an Ethernet header with two
/// VLAN tags.
pub const FRAME_LEN_MAX: usize = 65536 + 22;
/// Default size of a queue's socket buffer in the kernel, in bytes per direction: about a hundred super-frames. For
/// each super-frame, the kernel charges the buffer with considerably more bytes than the frame's length.
pub const BUFFER_LEN_DEFAULT: usize = 8 << 20;

/// The parameters for opening an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// Number of queues, 1 to [`QUEUES_MAX`]. The kernel distributes received frames over the queues by flow
    /// (`PACKET_FANOUT_HASH`).
    pub queues: u16,
    /// True to receive frames for every station, not only for the interface's own address (`PACKET_MR_PROMISC`). A
    /// switch needs promiscuous mode.
    pub promiscuous: bool,
    /// True to bypass the interface's queueing discipline (`PACKET_QDISC_BYPASS`). The bypass saves work per frame, but
    /// without the queueing discipline the kernel segments nothing. With the bypass, the port accepts only super-frames
    /// that the interface itself can segment.
    pub qdisc_bypass: bool,
    /// Maximum length of a frame, in bytes including the Ethernet header.
    pub frame_len_max: usize,
    /// Size of a queue's socket buffer in the kernel, in bytes per direction.
    pub buffer_len: usize,
}

impl PacketConfig {
    /// Returns a configuration with one promiscuous queue and super-frames up to [`FRAME_LEN_MAX`].
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queues: 1,
            promiscuous: true,
            qdisc_bypass: false,
            frame_len_max: FRAME_LEN_MAX,
            buffer_len: BUFFER_LEN_DEFAULT,
        }
    }
}

/// An error from opening or reading an interface.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The name is not a valid interface name.
    #[error("interface \"{0}\": not an interface name; use 1 to {NAME_LEN_MAX} bytes without spaces, '/', ':' or '%'")]
    Name(String),
    /// There is no interface with this name.
    #[error("interface \"{0}\": not found in this network namespace; see `ip link`")]
    NoInterface(String),
    /// The interface is not an Ethernet interface.
    #[error("interface \"{0}\": not an Ethernet interface")]
    NotEthernet(String),
    /// Several queues were requested, but the interface is down.
    #[error("interface \"{0}\": down; bring the interface up to open several queues, or use one queue")]
    Down(String),
    /// The number of queues is out of range.
    #[error("interface \"{interface}\": {queues} queues; use 1 to {QUEUES_MAX}")]
    Queues {
        /// The interface's name.
        interface: String,
        /// The requested number of queues.
        queues: u16,
    },
    /// The process lacks `CAP_NET_RAW`, needed for packet sockets.
    #[error("interface \"{interface}\": permission denied {doing}; run as root or grant CAP_NET_RAW")]
    Permission {
        /// The interface's name.
        interface: String,
        /// The denied action.
        doing: &'static str,
    },
    /// Another system call failed.
    #[error("interface \"{interface}\": {doing}: {cause}")]
    System {
        /// The interface's name.
        interface: String,
        /// The failed action.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Reading the interface's features failed.
    #[error("interface \"{interface}\": {cause}")]
    Link {
        /// The interface's name.
        interface: String,
        /// The refused request and the kernel's error.
        cause: SysError,
    },
}

/// The state of an interface at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// MTU in bytes of the IP packet.
    pub mtu: u32,
    /// True if the interface was brought up (`IFF_UP`).
    pub is_up: bool,
    /// True if the interface is up and has a carrier (`IFF_RUNNING`).
    pub has_carrier: bool,
}

/// The state shared by all handles to one interface.
#[derive(Debug)]
struct Shared {
    name: String,
    /// One socket per queue.
    fds: Vec<OwnedFd>,
    /// Length of the vnet header on these sockets, in bytes.
    header_len: usize,
    accepts: Offloads,
    /// Number of frames dropped by the kernel for lack of buffer space, up to the last read of the sockets' counters.
    dropped: AtomicU64,
}

/// An interface with all its queues.
#[derive(Debug)]
pub struct Packet {
    shared: Arc<Shared>,
    frame_len_max: usize,
}

impl Packet {
    /// Opens an interface in the calling thread's namespace. The interface can be down if the configuration has one
    /// queue.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist or is not Ethernet, a number is out of range, or the kernel
    /// refuses a request. After an error, no socket stays open.
    pub fn open(config: &PacketConfig) -> Result<Self, PacketError> {
        let name = &config.interface;
        check(config)?;
        let index = link::index(name).map_err(|cause| match cause.raw_os_error() {
            Some(libc::ENODEV) => PacketError::NoInterface(name.clone()),
            _ => PacketError::Link { interface: name.clone(), cause },
        })?;
        let (fds, header_len) = open_queues(config, index)?;
        let accepts = accepts(config)?;
        let shared = Shared { name: name.clone(), fds, header_len, accepts, dropped: AtomicU64::new(0) };
        Ok(Self { shared: Arc::new(shared), frame_len_max: config.frame_len_max })
    }

    /// Opens an interface in another namespace, like [`Packet::open`].
    ///
    /// # Errors
    /// Returns the errors of [`Packet::open`], and an error if the namespace cannot be entered.
    pub fn open_in(ns: &NetNs, config: &PacketConfig) -> Result<Self, PacketError> {
        let entered = ns.run(|| Self::open(config));
        entered.unwrap_or_else(|e| Err(system(&config.interface, "entering its namespace")(e)))
    }

    /// Returns the name under which the interface was opened.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the number of queues.
    pub fn queue_count(&self) -> usize {
        self.shared.fds.len()
    }

    /// Returns a port on queue `index`, for one thread. Returns `None` if `index` is out of range.
    pub fn queue(&self, index: usize) -> Option<PacketQueue> {
        (index < self.queue_count()).then(|| PacketQueue::new(Arc::clone(&self.shared), index, self.frame_len_max))
    }

    /// Returns the offloads that a frame to be transmitted on the interface can request.
    pub fn accepts(&self) -> Offloads {
        self.shared.accepts
    }

    /// Returns the interface's current state. Can be called from any thread and namespace.
    ///
    /// # Errors
    /// Returns [`PacketError::NoInterface`] if the interface is gone.
    pub fn link(&self) -> Result<LinkState, PacketError> {
        let gone = || PacketError::NoInterface(self.shared.name.clone());
        let fd = self.shared.fds[0].as_fd();
        if !socket::is_bound(fd) {
            return Err(gone());
        }
        socket::link_state(fd, &self.shared.name).map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV) => gone(),
            _ => system(&self.shared.name, "reading its state")(e),
        })
    }

    /// Returns the number of received frames dropped for lack of buffer space (`PACKET_STATISTICS`) since the interface
    /// was opened.
    pub fn dropped(&self) -> u64 {
        let now = self.shared.fds.iter().filter_map(|fd| socket::take_drops(fd.as_fd()).ok()).map(u64::from);
        let now = now.sum::<u64>();
        self.shared.dropped.fetch_add(now, Ordering::Relaxed) + now
    }
}

fn check(config: &PacketConfig) -> Result<(), PacketError> {
    let interface = || config.interface.clone();
    if !link::is_valid_name(&config.interface) {
        return Err(PacketError::Name(interface()));
    }
    if !(1..=QUEUES_MAX).contains(&config.queues) {
        return Err(PacketError::Queues { interface: interface(), queues: config.queues });
    }
    Ok(())
}

/// Opens a socket per queue. The sockets receive no frames until the fanout group is complete: each socket outside the
/// group would receive a copy of every frame.
fn open_queues(config: &PacketConfig, index: u32) -> Result<(Vec<OwnedFd>, usize), PacketError> {
    let name = &config.interface;
    let first = open_socket(config, index)?;
    let header_len = first.1;
    if !socket::is_ethernet(first.0.as_fd(), name).map_err(system(name, "reading its kind"))? {
        return Err(PacketError::NotEthernet(name.clone()));
    }
    if config.promiscuous {
        socket::set_promiscuous(first.0.as_fd(), index).map_err(system(name, "turning on promiscuous mode"))?;
    }
    let mut fds = vec![first.0];
    if config.queues > 1 {
        let state = socket::link_state(fds[0].as_fd(), name).map_err(system(name, "reading its state"))?;
        if !state.is_up {
            return Err(PacketError::Down(name.clone()));
        }
        let group = socket::found_group(fds[0].as_fd()).map_err(system(name, "creating the fanout group"))?;
        for _ in 1..config.queues {
            let (fd, _) = open_socket(config, index)?;
            socket::join_group(fd.as_fd(), group).map_err(system(name, "joining the fanout group"))?;
            fds.push(fd);
        }
    }
    for fd in &fds {
        socket::let_in(fd.as_fd()).map_err(system(name, "letting frames in"))?;
    }
    Ok((fds, header_len))
}

/// Opens a socket on the interface, and returns the socket with the length of its vnet header. The socket receives no
/// frames yet.
fn open_socket(config: &PacketConfig, index: u32) -> Result<(OwnedFd, usize), PacketError> {
    let name = &config.interface;
    let fd = socket::open().map_err(system(name, "opening a packet socket"))?;
    let header_len = socket::set_header(fd.as_fd()).map_err(system(name, "turning on the vnet header"))?;
    socket::set_options(fd.as_fd(), config.qdisc_bypass).map_err(system(name, "setting up a packet socket"))?;
    socket::set_buffers(fd.as_fd(), config.buffer_len).map_err(system(name, "setting its buffers"))?;
    socket::keep_out(fd.as_fd()).map_err(system(name, "keeping frames out"))?;
    socket::bind(fd.as_fd(), index).map_err(system(name, "binding a packet socket"))?;
    Ok((fd, header_len))
}

/// Returns the offloads that a frame to be transmitted on the interface can request. With a queueing discipline, the
/// kernel segments and checksums in place of an interface that lacks these offloads. With a bypassed queueing
/// discipline, the kernel only checksums.
fn accepts(config: &PacketConfig) -> Result<Offloads, PacketError> {
    let known =
        if socket::knows_uso() { Offloads::RATIFIED } else { Offloads::RATIFIED - Offloads::USO - Offloads::RSC_UDP };
    if !config.qdisc_bypass {
        return Ok(known);
    }
    let features = Features::read(&config.interface)
        .map_err(|cause| PacketError::Link { interface: config.interface.clone(), cause })?;
    let cut = [
        ("tx-tcp-segmentation", Offloads::RSC4),
        ("tx-tcp6-segmentation", Offloads::RSC6),
        ("tx-tcp-ecn-segmentation", Offloads::RSC_ECN),
        ("tx-udp-segmentation", Offloads::RSC_UDP),
    ];
    let uncut = cut.iter().filter(|(feature, _)| features.active(feature) != Some(true));
    Ok(uncut.fold(known, |set, (_, offload)| set - *offload))
}

fn system(interface: &str, doing: &'static str) -> impl FnOnce(io::Error) -> PacketError {
    let interface = interface.to_owned();
    move |cause| match cause.kind() {
        io::ErrorKind::PermissionDenied => PacketError::Permission { interface, doing },
        _ => PacketError::System { interface, doing, cause },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_adapter::port::HostPort;
    use offramp_offload::meta::{ChecksumState, PartialChecksum, RxMeta, TxMeta};

    /// Opens a port with the short vnet header of kernels before Linux 6.6.
    fn with_short_header(name: &str) -> PacketQueue {
        let config = PacketConfig::new(name);
        let (fd, _) = open_socket(&config, link::index(name).unwrap()).unwrap();
        let header_len = socket::set_short_header(fd.as_fd()).unwrap();
        socket::let_in(fd.as_fd()).unwrap();
        let accepts = Offloads::RATIFIED;
        let shared = Shared { name: name.into(), fds: vec![fd], header_len, accepts, dropped: AtomicU64::new(0) };
        PacketQueue::new(Arc::new(shared), 0, FRAME_LEN_MAX)
    }

    #[test]
    fn the_header_of_older_kernels_carries_the_same() {
        let ns = NetNs::new().unwrap_or_else(|e| panic!("this test needs a network namespace: {e}; run as root"));
        ns.run(|| {
            link::create_veth("near", "far").unwrap();
            for name in ["near", "far"] {
                link::disable_ipv6(name).unwrap();
                link::set_up(name).unwrap();
            }
            let (mut near, mut far) = (with_short_header("near"), with_short_header("far"));
            assert_eq!(near.header_len(), 10);
            let partial = PartialChecksum { start: 34, offset: 6 };
            let frame = [&[2; 12][..], &[8, 0], &[0x45; 60]].concat();
            let meta = RxMeta { checksum: ChecksumState::Partial(partial), ..RxMeta::default() };
            // The kernel drops frames until it has updated the carrier state.
            let began = std::time::Instant::now();
            while !far.tx_next(0).unwrap() {
                assert!(began.elapsed().as_secs() < 20, "the frame never came");
                near.rx_deliver(&meta, &frame).unwrap();
            }
            let came = far.tx_frame();
            assert_eq!(came.request(), TxMeta { checksum: Some(partial), segmentation: None });
            assert_eq!(came.bytes(), frame);
        })
        .unwrap();
    }
}

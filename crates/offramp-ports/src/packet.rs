//! An existing interface as a host port, through packet sockets (packet(7)): it takes the interface's received frames,
//! and sends out of it. The kernel's vnet header travels with each frame, so super-frames and partial checksums pass in
//! both directions.
//!
//! Frames sent out of the interface by the host itself are not taken. The sockets are the only change:
//! promiscuous mode ends with them, however the process ends.
//!
//! The interface may go down and come up again; the port lives on. It closes when the interface is
//! deleted or moved to another namespace.

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

/// Most queues of one port: members of a fanout group (Linux `PACKET_FANOUT_MAX` before 5.16).
pub const QUEUES_MAX: u16 = 256;
/// Longest super-frame by default, in bytes: an IP packet of 65536 bytes after an Ethernet header with two VLAN tags.
pub const FRAME_LEN_MAX: usize = 65536 + 22;
/// Default bytes of a queue in the kernel, in each direction: a hundred super-frames. The kernel charges each with a
/// good deal more than its length.
pub const BUFFER_LEN_DEFAULT: usize = 8 << 20;

/// The parameters to open an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// Queues, 1 to [`QUEUES_MAX`]; the kernel spreads received frames over them by flow
    /// (`PACKET_FANOUT_HASH`).
    pub queues: u16,
    /// Take frames for every station, not for the interface's own address alone (`PACKET_MR_PROMISC`).
    /// A switch needs it.
    pub promiscuous: bool,
    /// Go past the interface's queueing discipline (`PACKET_QDISC_BYPASS`): less work per frame, but the
    /// kernel then segments nothing. Super-frames are accepted only as far as the interface itself segments
    /// them.
    pub qdisc_bypass: bool,
    /// Longest frame of a queue, in bytes with the Ethernet header.
    pub frame_len_max: usize,
    /// Most bytes of a queue in the kernel, in each direction.
    pub buffer_len: usize,
}

impl PacketConfig {
    /// Returns one promiscuous queue, super-frames up to [`FRAME_LEN_MAX`].
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

/// Why an interface was not opened or read.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The name is no interface name.
    #[error("interface \"{0}\": not an interface name; use 1 to {NAME_LEN_MAX} bytes without spaces, '/', ':' or '%'")]
    Name(String),
    /// There is no interface with this name.
    #[error("interface \"{0}\": not found in this network namespace; see `ip link`")]
    NoInterface(String),
    /// Its frames are not Ethernet's.
    #[error("interface \"{0}\": not an Ethernet interface")]
    NotEthernet(String),
    /// Several queues need an interface in state up.
    #[error("interface \"{0}\": down; bring the interface up to open several queues, or use one queue")]
    Down(String),
    /// The number of queues is out of range.
    #[error("interface \"{interface}\": {queues} queues; use 1 to {QUEUES_MAX}")]
    Queues {
        /// The interface.
        interface: String,
        /// The requested queues.
        queues: u16,
    },
    /// Packet sockets need `CAP_NET_RAW`.
    #[error("interface \"{interface}\": permission denied {doing}; run as root or grant CAP_NET_RAW")]
    Permission {
        /// The interface.
        interface: String,
        /// The denied action.
        doing: &'static str,
    },
    /// Another system call failed.
    #[error("interface \"{interface}\": {doing}: {cause}")]
    System {
        /// The interface.
        interface: String,
        /// The failed action.
        doing: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// Reading the interface's features failed.
    #[error("interface \"{interface}\": {cause}")]
    Link {
        /// The interface.
        interface: String,
        /// The refused request and the kernel's answer.
        cause: SysError,
    },
}

/// The state of an interface at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// MTU in bytes of IP.
    pub mtu: u32,
    /// The interface was brought up (`IFF_UP`).
    pub is_up: bool,
    /// It is up, and there is another end (`IFF_RUNNING`).
    pub has_carrier: bool,
}

/// The shared state of all handles to one interface.
#[derive(Debug)]
struct Shared {
    name: String,
    /// One socket per queue.
    fds: Vec<OwnedFd>,
    /// Bytes of the vnet header on these sockets.
    header_len: usize,
    accepts: Offloads,
    /// Frames without room in the kernel, read so far.
    dropped: AtomicU64,
}

/// An interface with all its queues.
#[derive(Debug)]
pub struct Packet {
    shared: Arc<Shared>,
    frame_len_max: usize,
}

impl Packet {
    /// Opens an interface of the calling thread's namespace. It may be down, unless there are several
    /// queues.
    ///
    /// # Errors
    /// When there is no such interface, it is not Ethernet, a number is out of range, or the kernel
    /// refuses; nothing is left behind then.
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

    /// As [`Packet::open`], in another namespace.
    ///
    /// # Errors
    /// As [`Packet::open`], and when the namespace may not be entered.
    pub fn open_in(ns: &NetNs, config: &PacketConfig) -> Result<Self, PacketError> {
        let entered = ns.run(|| Self::open(config));
        entered.unwrap_or_else(|e| Err(system(&config.interface, "entering its namespace")(e)))
    }

    /// Returns the interface's name when it was opened.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the number of queues.
    pub fn queue_count(&self) -> usize {
        self.shared.fds.len()
    }

    /// Returns a port on queue `index`, for one thread. `None` when there is no such queue.
    pub fn queue(&self, index: usize) -> Option<PacketQueue> {
        (index < self.queue_count()).then(|| PacketQueue::new(Arc::clone(&self.shared), index, self.frame_len_max))
    }

    /// Returns the offloads of frames to and from the interface.
    pub fn accepts(&self) -> Offloads {
        self.shared.accepts
    }

    /// Returns the interface's state now, from any thread and namespace.
    ///
    /// # Errors
    /// [`PacketError::NoInterface`] when it is gone.
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

    /// Returns the received frames without room in a queue (`PACKET_STATISTICS`), since it was opened.
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

/// Opens a socket per queue. While the group is incomplete nothing is let in: every socket outside of it would take a
/// copy of each frame.
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

/// Opens a socket on the interface, still closed to frames, and returns it with the length of its vnet header.
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

/// Returns the offloads accepted by the interface. With a queueing discipline in between, the kernel segments and
/// checksums for an interface without those offloads; past it, it only checksums.
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

    /// Opens a port with the header of kernels before Linux 6.6.
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
            // The kernel drops frames until it has looked at the carrier.
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

//! A Linux TAP interface as a host port: the host is the kernel's TCP/IP.
//!
//! A created interface exists as long as its network namespace exists and one of its descriptors is open. The kernel
//! removes the interface even if the process crashes or the namespace is deleted. [`Tap::attach`] instead uses an
//! interface made by another program. Such an interface remains after the adapter ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use offramp_offload::caps::Offloads;

use crate::sys::link::{self, NAME_LEN_MAX};
use crate::sys::privilege::{self, SetupError};
use crate::sys::{NetNs, SysError};

mod existing;
mod ioctl;
mod queue;

pub use queue::{TapPort, TapQueue};

/// Smallest MTU, in bytes of the IP packet (RFC 791: every network carries 68 bytes).
pub const MTU_MIN: u32 = 68;
/// Largest MTU, in bytes of the IP packet. Linux limits a TAP frame to 65535 bytes including the Ethernet header.
pub const MTU_MAX: u32 = 65535 - ETHERNET_HEADER_LEN;
/// Maximum number of queues of one interface (Linux `MAX_TAP_QUEUES`).
pub const QUEUES_MAX: u16 = 256;
/// Default maximum length of a super-frame from the host, in bytes: an IP packet of 65536 bytes after an Ethernet
/// header with two VLAN tags.
pub const FRAME_LEN_MAX: usize = 65536 + 22;

/// Length of the Ethernet header, in bytes.
const ETHERNET_HEADER_LEN: u32 = 14;

/// The parameters of a new TAP interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// The interface's name, 1 to 15 bytes.
    pub name: String,
    /// Number of queue pairs, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// MTU in bytes of the IP packet, [`MTU_MIN`] to [`MTU_MAX`].
    pub mtu: u32,
    /// The host's Ethernet address on this interface. If `None`, the kernel chooses a random address.
    pub mac: Option<[u8; 6]>,
    /// Maximum length of a frame from the host, in bytes including the Ethernet header.
    pub frame_len_max: usize,
    /// Maximum number of frames in the kernel's transmit queue of each queue pair (`txqueuelen`). If `None`, the
    /// kernel's default of 500.
    pub tx_queue_len: Option<u32>,
    /// Lets the host's GRO coalesce delivered frames (`IFF_NAPI`), as with a hardware adapter.
    pub napi: bool,
}

impl TapConfig {
    /// Returns a configuration with one queue, MTU 1500 and super-frames up to [`FRAME_LEN_MAX`].
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            queues: 1,
            mtu: 1500,
            mac: None,
            frame_len_max: FRAME_LEN_MAX,
            tx_queue_len: None,
            napi: false,
        }
    }
}

/// An error from creating or changing a TAP interface.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The name is not a valid interface name.
    #[error("tap \"{0}\": not an interface name; use 1 to {NAME_LEN_MAX} bytes without spaces, '/', ':' or '%'")]
    Name(String),
    /// The namespace already has an interface with this name.
    #[error("tap \"{0}\": the name is taken; choose another, or delete the interface that has it")]
    NameTaken(String),
    /// There is no interface with this name to attach to.
    #[error("tap \"{0}\": no such interface; make it: ip tuntap add {0} mode tap user USER")]
    Missing(String),
    /// The existing interface is not a TAP.
    #[error(
        "tap \"{name}\": the interface is {kind}, not a TAP; choose another, or make it: ip tuntap add NAME mode tap"
    )]
    NotTap {
        /// The interface's name.
        name: String,
        /// The interface's kind, with an article.
        kind: &'static str,
    },
    /// Another program has attached to the existing interface.
    #[error("tap \"{0}\": another program uses the interface; end that program, or choose another interface")]
    InUse(String),
    /// Several queue pairs were requested, but the existing interface has only one.
    #[error(
        "tap \"{name}\": {queues} queue pairs, but the interface has one; use 1, or make it again: \
         ip tuntap add {name} mode tap multi_queue"
    )]
    OneQueue {
        /// The interface's name.
        name: String,
        /// The requested number of queues.
        queues: u16,
    },
    /// The existing interface belongs to another user or group.
    #[error("tap \"{name}\": the interface belongs to {owner}; run as this owner, or as root")]
    Owner {
        /// The interface's name.
        name: String,
        /// The owning user and group.
        owner: String,
    },
    /// The MTU is out of range.
    #[error("tap \"{name}\": MTU {mtu} is out of range; use {MTU_MIN} to {MTU_MAX}")]
    Mtu {
        /// The interface's name.
        name: String,
        /// The requested MTU.
        mtu: u32,
    },
    /// The number of queues is out of range.
    #[error("tap \"{name}\": {queues} queues; use 1 to {QUEUES_MAX}")]
    Queues {
        /// The interface's name.
        name: String,
        /// The requested number of queues.
        queues: u16,
    },
    /// `/dev/net/tun` does not exist or cannot be opened.
    #[error("tap \"{name}\": {cause}")]
    Device {
        /// The interface's name.
        name: String,
        /// The cause of the error and its remedy.
        cause: SetupError,
    },
    /// The process lacks `CAP_NET_ADMIN` in this namespace.
    #[error("tap \"{name}\": permission denied {doing}; run as root or grant CAP_NET_ADMIN")]
    Permission {
        /// The interface's name.
        name: String,
        /// The denied action.
        doing: &'static str,
    },
    /// Another system call failed.
    #[error("tap \"{name}\": {doing}: {cause}")]
    System {
        /// The interface's name.
        name: String,
        /// The failed action.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Setting up the interface failed.
    #[error("tap \"{name}\": {cause}")]
    Link {
        /// The interface's name.
        name: String,
        /// The refused request and the kernel's error.
        cause: SysError,
    },
}

/// The state shared by all handles to one interface.
#[derive(Debug)]
struct Shared {
    name: String,
    /// One descriptor per queue.
    fds: Vec<OwnedFd>,
    /// Bits of the offered [`Offloads`]. Relaxed ordering suffices: no other memory depends on the value, and a thread
    /// can safely see a change late.
    offered: AtomicU32,
}

impl Shared {
    fn offered(&self) -> Offloads {
        Offloads::from_bits_truncate(self.offered.load(Ordering::Relaxed))
    }
}

/// A TAP interface with all its queues. The kernel deletes a created interface when this handle and all its
/// [`TapQueue`]s are dropped.
#[derive(Debug)]
pub struct Tap {
    shared: Arc<Shared>,
    supported: Offloads,
    mtu: u32,
    frame_len_max: usize,
    /// The vnet header of an existing interface before this handle attached.
    header_before: Option<ioctl::Header>,
}

impl Tap {
    /// Creates the interface in the calling thread's namespace. The new interface is down and offers no offloads.
    ///
    /// # Errors
    /// Returns an error if the name is taken or invalid, a number is out of range, or the kernel refuses a request.
    /// After an error, no interface remains.
    pub fn open(config: &TapConfig) -> Result<Self, TapError> {
        check(config)?;
        let fds = (0..config.queues).map(|_| open_queue(config)).collect::<Result<Vec<_>, _>>()?;
        let tap = Self::of(&config.name, fds, config.mtu, config.frame_len_max)?;
        set_up_link(config).map_err(|cause| TapError::Link { name: config.name.clone(), cause })?;
        Ok(tap)
    }

    /// Returns the handle to an interface with the attached queues `fds`.
    fn of(name: &str, fds: Vec<OwnedFd>, mtu: u32, frame_len_max: usize) -> Result<Self, TapError> {
        let supported = probe(name, &fds[0])?;
        let offered = AtomicU32::new(Offloads::empty().bits());
        let shared = Arc::new(Shared { name: name.to_owned(), fds, offered });
        Ok(Self { shared, supported, mtu, frame_len_max, header_before: None })
    }

    /// Creates the interface in another namespace, like [`Tap::open`]. The interface does not keep the namespace alive:
    /// the kernel deletes the interface together with the namespace.
    ///
    /// A TUN descriptor holds the namespace in which it was opened. This function therefore opens the descriptor in a
    /// new empty namespace, where no other process sees the name, and then moves the interface. During the move, the
    /// kernel waits for RCU callbacks under its lock of all interfaces, 15 ms or more: parallel moves gain nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Tap::open`], and an error if the kernel refuses the empty namespace or the move.
    pub fn open_in(ns: &NetNs, config: &TapConfig) -> Result<Self, TapError> {
        let open_and_move = || {
            let tap = Self::open(config)?;
            link::move_to(&config.name, ns).map_err(|cause| match cause.raw_os_error() {
                Some(libc::EEXIST) => TapError::NameTaken(config.name.clone()),
                _ => TapError::Link { name: config.name.clone(), cause },
            })?;
            Ok(tap)
        };
        let opened = NetNs::run_in_new(open_and_move);
        opened.unwrap_or_else(|e| Err(system(&config.name, "entering an empty namespace", e)))
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the MTU of the interface at its opening, in bytes of the IP packet.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns the number of queue pairs.
    pub fn queue_count(&self) -> usize {
        self.shared.fds.len()
    }

    /// Returns a port on queue pair `index`, for one thread. Returns `None` if `index` is out of range.
    pub fn queue(&self, index: usize) -> Option<TapQueue> {
        (index < self.queue_count()).then(|| TapQueue::new(Arc::clone(&self.shared), index, self.frame_len_max))
    }

    /// Returns a port on all queue pairs, for one thread.
    pub fn port(&self) -> TapPort {
        let queue = |index| TapQueue::new(Arc::clone(&self.shared), index, self.frame_len_max);
        TapPort::new((0..self.queue_count()).map(queue).collect())
    }

    /// Returns the offloads supported by this kernel's TAP.
    pub fn supported(&self) -> Offloads {
        self.supported
    }

    /// Returns the offloads currently offered to the host.
    pub fn offered(&self) -> Offloads {
        self.shared.offered()
    }

    /// Offers `offloads` to the host, and returns the offloads accepted by the kernel. Can be called at any time, from
    /// any thread and namespace. Frames already queued by the host do not change.
    ///
    /// The receive offloads are only stored, not offered to the kernel: the kernel always accepts coalesced frames with
    /// a partial checksum.
    ///
    /// The kernel sets the interface's wanted features to the offer, and so reverts the host's own `ethtool -K`. An
    /// offer with unchanged transmit offloads is therefore not sent to the kernel.
    ///
    /// # Errors
    /// Returns an error if the interface is gone.
    pub fn offer(&self, offloads: Offloads) -> Result<Offloads, TapError> {
        let accepted = (offloads & self.supported).with_prerequisites();
        let bits = ioctl::offload_bits(accepted);
        if bits != ioctl::offload_bits(self.offered()) {
            ioctl::set_offload(self.shared.fds[0].as_fd(), bits)
                .map_err(|e| system(self.name(), "offering offloads", e))?;
        }
        self.shared.offered.store(accepted.bits(), Ordering::Relaxed);
        Ok(accepted)
    }

    /// Sets the carrier, which is initially on. Can be called from any thread and namespace.
    ///
    /// # Errors
    /// Returns an error if the interface is gone.
    pub fn set_carrier(&self, is_on: bool) -> Result<(), TapError> {
        ioctl::set_carrier(self.shared.fds[0].as_fd(), is_on).map_err(|e| system(self.name(), "setting the carrier", e))
    }
}

fn check(config: &TapConfig) -> Result<(), TapError> {
    let name = || config.name.clone();
    if !link::is_valid_name(&config.name) {
        return Err(TapError::Name(name()));
    }
    if !(MTU_MIN..=MTU_MAX).contains(&config.mtu) {
        return Err(TapError::Mtu { name: name(), mtu: config.mtu });
    }
    if !(1..=QUEUES_MAX).contains(&config.queues) {
        return Err(TapError::Queues { name: name(), queues: config.queues });
    }
    match link::index(&config.name) {
        Ok(_) => Err(TapError::NameTaken(name())),
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        Err(cause) => Err(TapError::Link { name: name(), cause }),
    }
}

/// Opens one queue. The first queue creates the interface.
fn open_queue(config: &TapConfig) -> Result<OwnedFd, TapError> {
    let name = &config.name;
    let fd = ioctl::open_device().map_err(|e| device(name, e))?;
    ioctl::attach(fd.as_fd(), name, config.queues > 1, config.napi).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => TapError::NameTaken(name.clone()),
        _ => system(name, "making the interface", e),
    })?;
    ioctl::set_header(fd.as_fd(), ioctl::Header::OWN).map_err(|e| system(name, "setting the vnet header", e))?;
    Ok(fd)
}

/// Returns the offloads supported by the kernel. Linux supports USO since version 6.2, and AccECN in no version yet.
/// After this function, the interface offers no offloads.
fn probe(name: &str, fd: &OwnedFd) -> Result<Offloads, TapError> {
    let old = Offloads::RATIFIED - Offloads::USO - Offloads::RSC_UDP;
    let supported = match ioctl::set_offload(fd.as_fd(), ioctl::offload_bits(Offloads::RATIFIED)) {
        Ok(()) => Offloads::RATIFIED,
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => old,
        Err(e) => return Err(system(name, "asking for offloads", e)),
    };
    ioctl::set_offload(fd.as_fd(), 0).map_err(|e| system(name, "clearing offloads", e))?;
    Ok(supported)
}

fn set_up_link(config: &TapConfig) -> Result<(), SysError> {
    link::set_mtu(&config.name, config.mtu)?;
    if let Some(mac) = config.mac {
        link::set_mac(&config.name, mac)?;
    }
    if let Some(frames) = config.tx_queue_len {
        link::set_tx_queue_len(&config.name, frames)?;
    }
    Ok(())
}

fn device(name: &str, cause: io::Error) -> TapError {
    match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            TapError::Device { name: name.to_owned(), cause: privilege::tun_refusal(cause) }
        }
        _ => system(name, "opening /dev/net/tun", cause),
    }
}

fn system(name: &str, doing: &'static str, cause: io::Error) -> TapError {
    let name = name.to_owned();
    match cause.kind() {
        io::ErrorKind::PermissionDenied => TapError::Permission { name, doing },
        _ => TapError::System { name, doing, cause },
    }
}

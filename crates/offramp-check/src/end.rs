//! One end of the checked path: an interface. The check switches the interface's features, and sends and captures
//! frames on the interface.

use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use offramp_adapter::port::{HostPort, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::layout::Transport;
use offramp_offload::meta::RxMeta;
use offramp_ports::packet::{Arrival, Packet, PacketConfig, PacketQueue, RxQueues};
use offramp_ports::sys::ethtool::Features;
use offramp_ports::sys::tags_in_skb::TagsInSkb;
use offramp_ports::sys::{NetNs, datagrams, link};
use offramp_testbed::device::{Change, Guard};
use serde::{Deserialize, Serialize};

use crate::case::DESTINATION;
use crate::error::CheckError;
use crate::packet::{Captured, Way};
use crate::steering::Steering;

/// Directory of the namespaces made by `ip netns`.
const NAMESPACES: &str = "/run/netns";
/// Size of the socket's receive buffer in bytes, large enough for a batch of super-frames that arrive as single
/// segments.
const BUFFER_LEN: usize = 64 << 20;
/// Maximum length of a captured frame in bytes. A valid super-frame has at most 64 KiB. The capture must also hold a
/// longer super-frame, so that the check can report the excess.
const FRAME_LEN_MAX: usize = 128 << 10;
/// Maximum time that a sender waits for room in its queue.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two attempts to send a frame.
const SEND_PAUSE: Duration = Duration::from_micros(200);
/// Maximum time until a link has its carrier again after features were switched. Some drivers reset the adapter to
/// switch a feature, and the link has no carrier during the reset.
const SETTLE_MAX: Duration = Duration::from_secs(15);
/// Interval at which the check reads the state of a link without carrier.
const SETTLE_PAUSE: Duration = Duration::from_millis(20);

/// Mask of traffic class and flow label in the first word of an IPv6 header.
const FLOW_INFO: u32 = 0x0fff_ffff;
/// Name of the feature that coalesces received UDP datagrams into super-frames.
pub(crate) const COALESCES_UDP: &str = "rx-udp-gro-forwarding";

/// A frame to send, with its offload requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The method by which the frame is sent.
    pub way: Way,
    /// Bytes of the frame.
    pub bytes: Vec<u8>,
    /// The frame's offload requests: a partial checksum, a segmentation, and `header_len`, the number of bytes that the
    /// kernel must keep contiguous. The requests have the type of a received frame's metadata.
    pub meta: RxMeta,
}

/// The properties of an end, read before the first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The interface's name as given by the user.
    pub name: String,
    /// Name of the interface in its namespace.
    pub interface: String,
    /// Prefix of a shell command for this end: `ip netns exec NS `, `ssh HOST `, or empty.
    pub shell_prefix: String,
    /// Name of the interface's driver.
    pub driver: String,
    /// MTU of the interface, in IP bytes.
    pub mtu: u32,
    /// Ethernet address of the interface.
    pub mac: [u8; 6],
}

/// The availability of a feature at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Offered {
    /// The feature can be switched.
    Switchable,
    /// The feature is fixed on.
    Fixed,
    /// The feature is fixed off, or does not exist.
    No,
    /// The feature can be switched, but a packet socket of this kernel cannot deliver the frames that the feature
    /// produces. For example, a packet socket cannot deliver UDP super-frames before Linux 6.2.
    Unseen,
}

/// One end of the path.
pub trait End {
    /// Returns the properties of this end.
    fn description(&self) -> &Description;

    /// Returns the availability of the feature with this ethtool name.
    fn offered(&self, feature: &str) -> Offered;

    /// Returns the cause and the remedy if the user of a daemon has switched this feature off. The check leaves such a
    /// feature off.
    fn off_by_user(&self, _feature: &str) -> Option<String> {
        None
    }

    /// Switches these features on (`true`) or off (`false`). Sets all other features to the state recorded before the
    /// check.
    ///
    /// # Errors
    /// Returns an error if the interface no longer exists, may not be changed, or does not get its carrier
    /// back.
    fn apply(&mut self, features: &[(&'static str, bool)]) -> Result<(), CheckError>;

    /// Returns whether a feature was on after the last [`End::apply`].
    fn is_on(&self, feature: &str) -> bool;

    /// Sends a frame. The inner error is the error number with which the kernel refused the frame.
    ///
    /// # Errors
    /// Returns an error if the interface no longer exists.
    fn send(&mut self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError>;

    /// Returns the next captured frame, or `None` if no frame is received within `wait`.
    ///
    /// # Errors
    /// Returns an error if the interface no longer exists.
    fn receive(&mut self, wait: Duration) -> Result<Option<Captured>, CheckError>;

    /// Returns the rule by which this end distributes received frames over its queues.
    ///
    /// # Errors
    /// Returns an error if the interface no longer exists.
    fn steering(&mut self) -> Result<Steering, CheckError> {
        Ok(Steering::NotOffered)
    }

    /// Returns the head of the next captured frame and the frame's receive queue, or `None` if no frame is received
    /// within `wait`. The first call starts the capture of receive queues, and the next [`End::apply`] ends this
    /// capture.
    ///
    /// # Errors
    /// Returns an error if the interface no longer exists.
    fn arrival(&mut self, _wait: Duration) -> Result<Option<Arrival>, CheckError> {
        Ok(None)
    }

    /// Returns whether this end can send and capture frames that do not belong to a check.
    fn takes_any_frame(&self) -> bool {
        false
    }

    /// Checks that the interface has not changed.
    ///
    /// # Errors
    /// Returns an error if the interface is down, no longer exists, or has another MTU.
    fn check_link(&mut self) -> Result<(), CheckError>;

    /// Returns the command that turns features off at this end.
    fn command_off(&self, features: &[&str]) -> String {
        let Description { shell_prefix, interface, .. } = self.description();
        let off: Vec<String> = features.iter().map(|feature| format!("{feature} off")).collect();
        format!("{shell_prefix}ethtool -K {interface} {}", off.join(" "))
    }

    /// Restores every setting. Returns a phrase for each feature that still differs from its state before the check.
    ///
    /// # Errors
    /// Returns an error if a setting could not be restored.
    fn finish(&mut self) -> Result<Vec<String>, CheckError>;
}

/// An interface of this machine.
#[derive(Debug)]
pub struct LocalEnd {
    description: Description,
    namespace: NetNs,
    packet: Packet,
    queue: PacketQueue,
    guard: Option<Guard>,
    features: Features,
    /// The BPF program that moves VLAN tags from frames into metadata, attached while frames are sent as
    /// [`Way::TagInSkb`].
    tags: Option<TagsInSkb>,
    /// The capture of frames with their receive queues, open only while the check needs receive queues.
    arrivals: Option<RxQueues>,
}

/// Splits `NS/IF` into the namespace's file and the interface's name. NS is a path, or a name used with `ip netns`.
fn split_name(name: &str) -> (Option<PathBuf>, &str) {
    match name.rsplit_once('/') {
        None => (None, name),
        Some((namespace, interface)) if namespace.contains('/') => (Some(namespace.into()), interface),
        Some((namespace, interface)) => (Some(Path::new(NAMESPACES).join(namespace)), interface),
    }
}

/// Opens the namespace of `NS/IF`. Returns the namespace, the interface's name, and the path of the namespace's file.
///
/// # Errors
/// Returns an error if the namespace does not exist.
pub fn namespace_of(name: &str) -> Result<(NetNs, &str, Option<PathBuf>), CheckError> {
    let (file, interface) = split_name(name);
    let namespace = match &file {
        None => NetNs::current()?,
        Some(file) => NetNs::open(file).map_err(|cause| CheckError::Namespace {
            interface: name.to_owned(),
            namespace: file.display().to_string(),
            cause,
        })?,
    };
    Ok((namespace, interface, file))
}

/// Returns source, destination and payload of a UDP frame, or `None` for any other frame.
pub(crate) fn datagrams_of(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let mut bytes = frame.to_vec();
    let parsed = Frame::received(&mut bytes);
    let layout = *parsed.layout().ok().filter(|layout| layout.transport == Transport::Udp)?;
    let (from, to) = parsed.addresses().split_at(parsed.addresses().len() / 2);
    let word =
        |at: usize| u16::from_be_bytes([frame[layout.transport_start + at], frame[layout.transport_start + at + 1]]);
    // The socket address has the flow information in network byte order.
    let flow_info =
        frame[layout.network_start..].first_chunk::<4>().map(|word| u32::from_be_bytes(*word) & FLOW_INFO)?.to_be();
    let address = |bytes: &[u8], port| match <[u8; 4]>::try_from(bytes) {
        Ok(v4) => Some(SocketAddr::from((v4, port))),
        Err(_) => Some(SocketAddrV6::new(<[u8; 16]>::try_from(bytes).ok()?.into(), port, flow_info, 0).into()),
    };
    Some((address(from, word(0))?, address(to, word(2))?, &frame[layout.payload_start..layout.packet_end]))
}

impl LocalEnd {
    /// Opens `IF`, or `NS/IF` in another network namespace, and records the interface's state.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist, is not Ethernet, is down, or may not be changed.
    pub fn open(name: &str, state_dir: &Path, progress: &mut (dyn FnMut(&str) + Send)) -> Result<Self, CheckError> {
        let (namespace, interface, file) = namespace_of(name)?;
        let shell_prefix = match file.as_ref().filter(|file| file.parent() == Some(Path::new(NAMESPACES))) {
            Some(file) => format!("ip netns exec {} ", file.file_name().unwrap_or_default().display()),
            None => file.map_or_else(String::new, |file| format!("nsenter --net={} ", file.display())),
        };
        let mut end = Self::open_in(namespace, name, interface, state_dir, progress)?;
        end.description.shell_prefix = shell_prefix;
        Ok(end)
    }

    /// Opens an interface in a namespace. Reports use `name` for the interface.
    ///
    /// # Errors
    /// Returns the errors of [`LocalEnd::open`].
    pub fn open_in(
        namespace: NetNs,
        name: &str,
        interface: &str,
        state_dir: &Path,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Self, CheckError> {
        let (guard, features, packet, mac) = namespace.run(|| -> Result<_, CheckError> {
            let config =
                PacketConfig { buffer_len: BUFFER_LEN, frame_len_max: FRAME_LEN_MAX, ..PacketConfig::new(interface) };
            let packet = Packet::open(&config)?;
            if !packet.link()?.has_carrier {
                return Err(CheckError::Down(name.to_owned()));
            }
            let guard = Guard::take(state_dir, interface, progress)?;
            let mac = link::mac(interface).map_err(std::io::Error::from)?;
            let features = Features::read(interface).map_err(std::io::Error::from)?;
            Ok((guard, features, packet, mac))
        })??;
        let queue = packet.queue(0).ok_or_else(|| CheckError::Down(name.to_owned()))?;
        let description = Description {
            name: name.to_owned(),
            interface: interface.to_owned(),
            shell_prefix: String::new(),
            driver: guard.driver().to_owned(),
            mtu: packet.link()?.mtu,
            mac,
        };
        Ok(Self { description, namespace, packet, queue, guard: Some(guard), features, tags: None, arrivals: None })
    }

    /// Waits until the link has its carrier again after features were switched.
    fn settle(&self) -> Result<(), CheckError> {
        let begun = Instant::now();
        loop {
            let state = self.packet.link()?;
            if state.has_carrier {
                return Ok(());
            }
            // A driver's reset removes only the carrier. An interface that is down was therefore set down by a user.
            if !state.is_up || begun.elapsed() > SETTLE_MAX {
                return Err(CheckError::WentDown(self.description.name.clone()));
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    /// Converts a queue's error into an error of the check. Returns `None` if the error concerns only one frame.
    fn gone(&self, error: PortError) -> Option<CheckError> {
        match error {
            PortError::Closed(_) => Some(CheckError::WentDown(self.description.name.clone())),
            PortError::Full | PortError::Filtered | PortError::Refused(_) | PortError::Lost(_) => None,
        }
    }

    /// Attaches the BPF program for VLAN tags if `is_wanted`, else detaches it.
    fn move_tags(&mut self, is_wanted: bool) -> std::io::Result<()> {
        if is_wanted != self.tags.is_some() {
            let attach = || TagsInSkb::attach(&self.description.interface, DESTINATION);
            self.tags = if is_wanted { Some(self.namespace.run(attach)??) } else { None };
        }
        Ok(())
    }

    /// Sends the payload of a frame through a UDP socket. The kernel builds the headers of the sent frame.
    fn send_by_socket(&self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError> {
        let Some((from, to, payload)) = datagrams_of(&frame.bytes) else { return Ok(Err(Errno::EINVAL as i32)) };
        let size = frame.meta.segmentation.map(|segmentation| segmentation.size);
        let interface = &self.description.interface;
        let sent = self.namespace.run(|| datagrams::send_to_group(interface, from, to, size, payload))?;
        match sent.map_err(|error| error.raw_os_error().unwrap_or(Errno::EIO as i32)) {
            Err(errno) if errno == Errno::ENODEV as i32 || errno == Errno::ENETDOWN as i32 => {
                Err(CheckError::WentDown(self.description.name.clone()))
            }
            sent => Ok(sent),
        }
    }

    fn take(&mut self) -> Result<Option<Captured>, CheckError> {
        loop {
            match self.queue.tx_next(0) {
                Ok(false) => return Ok(None),
                Ok(true) => {
                    let checksum = self.queue.reported_checksum();
                    let frame = self.queue.tx_frame();
                    let meta = RxMeta { checksum, segmentation: frame.request().segmentation, ..RxMeta::default() };
                    return Ok(Some(Captured { bytes: frame.bytes().to_vec(), meta }));
                }
                // The socket refused to deliver one frame. The frame does not belong to the check, so the next frame is
                // fetched.
                Err(error) => self.gone(error).map_or(Ok(()), Err)?,
            }
        }
    }
}

/// Returns whether `source` becomes readable within `wait`.
fn is_readable(source: &impl AsFd, wait: Duration) -> std::io::Result<bool> {
    let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(source.as_fd(), PollFlags::POLLIN)], wait) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

impl End for LocalEnd {
    fn description(&self) -> &Description {
        &self.description
    }

    fn offered(&self, feature: &str) -> Offered {
        let Some(guard) = &self.guard else { return Offered::No };
        match guard.was_active(feature) {
            Some(_) if feature == COALESCES_UDP && !self.packet.accepts().contains(Offloads::RSC_UDP) => {
                Offered::Unseen
            }
            Some(_) if guard.is_changeable(feature) => Offered::Switchable,
            Some(true) => Offered::Fixed,
            _ => Offered::No,
        }
    }

    fn apply(&mut self, features: &[(&'static str, bool)]) -> Result<(), CheckError> {
        self.arrivals = None;
        let Some(guard) = &self.guard else { return Ok(()) };
        let change = Change { features: features.to_vec(), gso_segs_max: None };
        self.features = self.namespace.run(|| guard.apply(&change))??;
        self.settle()
    }

    fn is_on(&self, feature: &str) -> bool {
        self.features.active(feature) == Some(true)
    }

    fn send(&mut self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError> {
        if frame.way == Way::UdpSocket {
            return self.send_by_socket(frame);
        }
        if let Err(error) = self.move_tags(frame.way == Way::TagInSkb) {
            return Ok(Err(error.raw_os_error().unwrap_or(Errno::EIO as i32)));
        }
        let begun = Instant::now();
        loop {
            match self.queue.rx_deliver(&frame.meta, &frame.bytes) {
                Ok(()) => return Ok(Ok(())),
                Err(PortError::Full) if begun.elapsed() < SEND_PATIENCE => std::thread::sleep(SEND_PAUSE),
                Err(PortError::Full) => return Ok(Err(Errno::ENOBUFS as i32)),
                Err(PortError::Refused(errno)) if errno == Errno::ENETDOWN as i32 => {
                    return Err(CheckError::WentDown(self.description.name.clone()));
                }
                Err(PortError::Refused(errno)) => return Ok(Err(errno)),
                Err(error) => self.gone(error).map_or(Ok(()), Err)?,
            }
        }
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Captured>, CheckError> {
        if let Some(captured) = self.take()? {
            return Ok(Some(captured));
        }
        if is_readable(&self.queue, wait)? { self.take() } else { Ok(None) }
    }

    fn steering(&mut self) -> Result<Steering, CheckError> {
        Ok(self.namespace.run(|| Steering::of_interface(&self.description.interface))?)
    }

    fn arrival(&mut self, wait: Duration) -> Result<Option<Arrival>, CheckError> {
        let gone = |error: std::io::Error| match error.raw_os_error() {
            Some(errno) if errno == Errno::ENETDOWN as i32 => CheckError::WentDown(self.description.name.clone()),
            _ => error.into(),
        };
        let arrivals = match &mut self.arrivals {
            Some(arrivals) => arrivals,
            none => {
                let open = || RxQueues::open(&self.description.interface, DESTINATION);
                none.insert(self.namespace.run(open)??)
            }
        };
        match arrivals.next_arrival().map_err(gone)? {
            None if is_readable(&*arrivals, wait)? => arrivals.next_arrival().map_err(gone),
            next => Ok(next),
        }
    }

    fn takes_any_frame(&self) -> bool {
        true
    }

    fn check_link(&mut self) -> Result<(), CheckError> {
        let Description { name, mtu, .. } = &self.description;
        let state = self.packet.link().map_err(|_| CheckError::WentDown(name.clone()))?;
        if !state.has_carrier {
            return Err(CheckError::WentDown(name.clone()));
        }
        if state.mtu != *mtu {
            return Err(CheckError::MtuChanged { interface: name.clone(), before: *mtu, now: state.mtu });
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<String>, CheckError> {
        self.tags = None;
        let Some(guard) = self.guard.take() else { return Ok(Vec::new()) };
        Ok(self.namespace.run(|| guard.finish())??)
    }
}

impl Drop for LocalEnd {
    fn drop(&mut self) {
        // The settings must be restored in the interface's namespace. `finish` enters the namespace, whereas the
        // guard's own drop would not. If `finish` fails, the state file remains.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_name_of_ip_netns_or_a_path() {
        assert_eq!(split_name("eth0"), (None, "eth0"));
        assert_eq!(split_name("blue/eth0"), (Some("/run/netns/blue".into()), "eth0"));
        assert_eq!(split_name("/proc/7/ns/net/eth0"), (Some("/proc/7/ns/net".into()), "eth0"));
    }
}

//! Settings of the two hosts of a [`rig`](crate::rig), apart from the settings of their adapters.

use offramp_adapter::port::HostPort;
use offramp_ports::packet::{Packet, PacketConfig, PacketQueue};
use offramp_ports::sys::NetNs;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::TestbedError;

/// Directory of the kernel's settings. Settings below `net` belong to the calling thread's network namespace (proc(5)).
const SYSCTLS: &str = "/proc/sys";
/// Poll interval of a capture. No frame is lost between two polls, because the kernel buffers the frames.
const CAPTURE_LOOK: Duration = Duration::from_millis(2);

/// Receive coalescing of a guest's own driver (`ethtool -C`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RxCoalescing {
    /// The driver raises an interrupt after a fixed time or a fixed number of received frames, whichever comes first.
    Fixed {
        /// Maximum time in microseconds (`rx-usecs`).
        usecs: u32,
        /// Maximum number of frames (`rx-frames`).
        frames: u32,
    },
    /// The driver's DIM adapts the coalescing to the load (`adaptive-rx on`).
    Adaptive,
}

/// Settings of both hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "switches that have nothing to do with each other")]
pub struct HostSettings {
    /// Receive packet steering (RPS). If hosts and adapters have separate processors, a host's receive work runs on the
    /// host's processors instead of the adapter's.
    pub rps: bool,
    /// `SO_BUSY_POLL` of every data socket, in microseconds; 0 keeps the kernel's default. Busy polling has no effect
    /// on a TAP without `gro`, because that TAP has no NAPI.
    pub busy_poll_usecs: u32,
    /// True if threads keep the processors awake, so that no figure includes a processor's wake-up cost. In a virtual
    /// machine, the wake-up cost is many times the cost of all other work. The same threads also measure the idle time.
    /// A guest's processors sleep regardless of this setting.
    pub awake: bool,
    /// The kernel's network settings in each host's namespace: pairs of a sysctl(8) name and its value.
    pub sysctls: Vec<(String, String)>,
    /// True if Linux' GRO coalesces segments received from a host's TAP, as behind a hardware adapter. The TAP has
    /// `IFF_NAPI` then. For a guest, [`RigConfig::host_gro`](crate::rig::RigConfig::host_gro) enables GRO.
    pub gro: bool,
    /// Coalescing by a guest's own driver in place of the adapter's policy. The guest's monitor must forward the
    /// control queue to the port.
    pub coalescing: Option<RxCoalescing>,
    /// True if a capture runs at host B: a promiscuous packet socket receives every frame. During the capture, host B's
    /// adapter verifies no checksums, like the driver in claim R8 (`offramp-model/cases/R8.toml`).
    pub captured: bool,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            rps: true,
            busy_poll_usecs: 0,
            awake: false,
            sysctls: Vec::new(),
            gro: false,
            coalescing: None,
            captured: false,
        }
    }
}

impl HostSettings {
    /// Describes the settings of GRO, busy polling and RPS that differ from the defaults. The description of an
    /// experiment covers the other settings.
    pub fn said(&self) -> String {
        let busy_poll = format!("busy polling for {} us", self.busy_poll_usecs);
        let said =
            [(self.gro, "GRO of their own"), (self.busy_poll_usecs > 0, busy_poll.as_str()), (!self.rps, "no RPS")];
        said.into_iter().filter(|(is_set, _)| *is_set).map(|(_, what)| what).collect::<Vec<_>>().join(", ")
    }

    /// Applies the kernel settings in the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks a setting or refuses the value. The error message contains the setting and
    /// the value.
    pub(crate) fn apply(&self) -> io::Result<()> {
        self.sysctls.iter().try_for_each(|(name, value)| set_sysctl(name, value))
    }
}

fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = format!("{SYSCTLS}/{}", name.replace('.', "/"));
    std::fs::write(&path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot set {name} to {value} in {path}: {error}")))
}

/// A running capture: a thread that reads every frame of an interface and discards the frame. The capture ends on drop.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    frames: AtomicU64,
}

impl Capture {
    /// Captures the frames received by `interface` of a host.
    ///
    /// # Errors
    /// Returns an error if the interface cannot be opened, or the thread cannot be started.
    pub fn start(host: &NetNs, interface: &str) -> Result<Self, TestbedError> {
        let packet = Packet::open_in(host, &PacketConfig::new(interface))
            .map_err(|error| TestbedError::Io(io::Error::other(error)))?;
        let queue =
            packet.queue(0).ok_or_else(|| TestbedError::Io(io::Error::other("a packet socket without a queue")))?;
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = thread::Builder::new().name("ofr-capture".to_owned()).spawn(move || watch(queue, &seen))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the number of frames captured so far.
    pub fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread itself has reported its panic, if any.
            let _ = thread.join();
        }
    }
}

fn watch(mut queue: PacketQueue, shared: &Shared) {
    while !shared.stop.load(Ordering::Relaxed) {
        // A frame that `tx_next` refuses was still received, so the frame is counted.
        while !matches!(queue.tx_next(0), Ok(false) | Err(offramp_adapter::port::PortError::Closed(_))) {
            shared.frames.fetch_add(1, Ordering::Relaxed);
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
        }
        thread::sleep(CAPTURE_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_made_in_the_namespace_and_nowhere_else() {
        let Ok(ns) = NetNs::new() else { return };
        let path = "/proc/sys/net/ipv4/tcp_reordering";
        let before = std::fs::read_to_string(path).unwrap();
        let settings =
            HostSettings { sysctls: vec![("net.ipv4.tcp_reordering".into(), "77".into())], ..HostSettings::default() };
        let inside = ns.run(|| settings.apply().and_then(|()| std::fs::read_to_string(path))).unwrap().unwrap();
        assert_eq!(inside.trim(), "77");
        assert_eq!(std::fs::read_to_string(path).unwrap(), before);
    }

    #[test]
    fn a_setting_that_the_kernel_does_not_have_is_named() {
        let error = set_sysctl("net.ipv4.no_such_thing", "1").unwrap_err().to_string();
        assert!(error.contains("net.ipv4.no_such_thing") && error.contains("to 1"), "{error}");
    }
}

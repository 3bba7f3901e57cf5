//! What the hosts themselves are set to, beside their adapters.

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

/// Where the kernel's settings are; those below `net` are the calling thread's namespace's (proc(5)).
const SYSCTLS: &str = "/proc/sys";
/// How often a capture looks for frames: it need not be quick, the kernel holds them for it.
const CAPTURE_LOOK: Duration = Duration::from_millis(2);

/// What a guest's own driver asks its adapter for (`ethtool -C`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RxCoalescing {
    /// To interrupt it for received frames at the latest after this.
    Fixed {
        /// Microseconds.
        usecs: u32,
        /// Frames.
        frames: u32,
    },
    /// What its DIM finds best under the load (`adaptive-rx on`).
    Adaptive,
}

/// Settings of both hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "switches that have nothing to do with each other")]
pub struct HostSettings {
    /// Receive packet steering: a host's receive work runs on the hosts' processors, where they have their own, and not
    /// on the adapter's that handed the frames over.
    pub rps: bool,
    /// `SO_BUSY_POLL` of every data socket, in microseconds; 0 leaves it to the kernel. Without effect behind a TAP
    /// without `gro`, which has no NAPI.
    pub busy_poll_usecs: u32,
    /// The processors do not sleep, so no figure includes the cost of waking them: in a virtual machine, that is many
    /// times the rest. The threads that keep them awake count their idle time. A guest's processors sleep anyway.
    pub awake: bool,
    /// Settings of the kernel in each host's namespace, by their names in sysctl(8), and the values.
    pub sysctls: &'static [(&'static str, &'static str)],
    /// The host joins what it receives, as behind a hardware adapter (Linux' own GRO, by `IFF_NAPI` of the TAP). A
    /// guest has a setting of its own.
    pub gro: bool,
    /// What a guest's own driver asks for, in place of the adapter's policy, where the guest's monitor hands the control
    /// queue on.
    pub coalescing: Option<RxCoalescing>,
    /// A capture runs at host B: a promiscuous packet socket sees every frame; and as the driver of claim R8 does, its
    /// adapter verifies no checksums meanwhile.
    pub captured: bool,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            rps: true,
            busy_poll_usecs: 0,
            awake: false,
            sysctls: &[],
            gro: false,
            coalescing: None,
            captured: false,
        }
    }
}

impl HostSettings {
    /// What a user has set, in words; nothing where it is the default. What only experiments set is theirs to say.
    pub fn said(&self) -> String {
        let busy_poll = format!("busy polling for {} us", self.busy_poll_usecs);
        let said =
            [(self.gro, "GRO of their own"), (self.busy_poll_usecs > 0, busy_poll.as_str()), (!self.rps, "no RPS")];
        said.into_iter().filter(|(is_set, _)| *is_set).map(|(_, what)| what).collect::<Vec<_>>().join(", ")
    }

    /// Makes the settings of the kernel, in the calling thread's namespace.
    ///
    /// # Errors
    /// When the kernel has no such setting or refuses the value; the error names both.
    pub(crate) fn apply(&self) -> io::Result<()> {
        self.sysctls.iter().try_for_each(|(name, value)| set_sysctl(name, value))
    }
}

fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = format!("{SYSCTLS}/{}", name.replace('.', "/"));
    std::fs::write(&path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot set {name} to {value} in {path}: {error}")))
}

/// A capture that runs: it sees every frame of an interface and throws it away. It ends when this is dropped.
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
    /// Captures what comes in at `interface` of a host.
    ///
    /// # Errors
    /// When the interface cannot be opened, or no thread started.
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

    /// Frames seen so far.
    pub fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn watch(mut queue: PacketQueue, shared: &Shared) {
    while !shared.stop.load(Ordering::Relaxed) {
        // A frame that the socket cannot express counts as well.
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
        let settings = HostSettings { sysctls: &[("net.ipv4.tcp_reordering", "77")], ..HostSettings::default() };
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

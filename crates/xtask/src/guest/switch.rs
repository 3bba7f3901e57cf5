//! Tests of two guests on one switch of `offramp up`. Both guests send bytes over TCP at the same time, checked by
//! SHA-256, while one guest's offloads are switched off and on.

use super::{Bench, GuestKind, behind_port, options};
use crate::tcp;
use offramp_ports::sys::NetNs;
use offramp_testbed::daemon::{self, Daemon};
use offramp_testbed::failure::{Failure, Result, failed, new_namespace};
use offramp_testbed::guest::busybox::{GUEST, at, vhost_user_network};
use offramp_testbed::guest::shell::Machine;
use offramp_testbed::scratch::Scratch;
use serde_json::Value;
use std::net::Ipv4Addr;

/// Port of each guest's service, which answers with the SHA-256 of the received bytes.
const SERVICE: u16 = 5001;
/// Minimum mean number of segments per frame from an emulated guest. An emulated guest seldom fills a super-frame, and
/// half of the frames are acknowledgements. A guest at native speed sends each write of `nc`, one kilobyte, separately,
/// so only some of its frames are super-frames.
const SEGMENTS_MIN: u64 = 2;

/// Name of the User Mode Linux guest whose port serves the control queue. This guest has split rings.
const COMMANDING: &str = "vm1";

/// A guest and its port.
pub(super) struct Guest {
    pub(super) port: &'static str,
    pub(super) address: Ipv4Addr,
    mac: &'static str,
    ring: &'static str,
    machine: Option<Machine>,
}

impl Guest {
    /// Returns both guests before their start: one with packed rings, and one with split rings.
    pub(super) fn both() -> [Self; 2] {
        let second = Ipv4Addr::new(198, 18, 0, 3);
        [
            Self { port: "vm0", address: GUEST, mac: "02:00:00:00:00:10", ring: "on", machine: None },
            Self { port: "vm1", address: second, mac: "02:00:00:00:00:11", ring: "off", machine: None },
        ]
    }

    fn socket(&self, scratch: &Scratch) -> String {
        scratch.file(&format!("{}.sock", self.port))
    }

    /// Returns the section of the guest's port in the daemon's file.
    pub(super) fn section(&self, bench: &Bench) -> String {
        let (port, socket) = (self.port, self.socket(&bench.scratch));
        let more = match bench.args.kind {
            GuestKind::Qemu => String::new(),
            GuestKind::Uml => {
                let control_queue = if self.port == COMMANDING { "backend" } else { "none" };
                let packed = self.ring == "on";
                format!(", mac = \"{}\", control_queue = \"{control_queue}\", packed = {packed}", self.mac)
            }
        };
        format!(
            "[[port]]\nname = \"{port}\"\nhost = {{ vhost_user = \"{socket}\"{more} }}\n\
             wire = {{ switch = \"lan\" }}\n\n"
        )
    }

    pub(super) fn start(&mut self, bench: &Bench, ns: &NetNs) -> Result<()> {
        let socket = self.socket(&bench.scratch);
        let mut config = match bench.args.kind {
            GuestKind::Uml => bench.base.in_user_mode(&socket, &bench.scratch),
            GuestKind::Qemu => {
                let options = options::short(&[("mq", "off"), ("packed", self.ring)]);
                let network = vhost_user_network(&socket, 1, "");
                behind_port(&bench.base, &options, network, &format!(",mac={}", self.mac))?
            }
        };
        config.arguments = at(self.address, "");
        self.machine = Some(Machine::start(&config, ns)?);
        Ok(())
    }

    pub(super) fn machine(&mut self) -> Result<&mut Machine> {
        self.machine.as_mut().ok_or_else(|| Failure::Failed(format!("{} was not started", self.port)))
    }

    /// Waits for the boot, and starts the guest's service on port [`SERVICE`].
    pub(super) fn wait_until_ready(&mut self) -> Result<()> {
        let machine = self.machine()?;
        machine.wait_until_ready()?;
        machine.run(&format!("nc -ll -p {SERVICE} -e sha256sum >/dev/null 2>&1 &"))?;
        // Wait until the service listens, because an earlier connection would be refused.
        machine.run(&format!("until grep -q ':{SERVICE:04X} ' /proc/net/tcp /proc/net/tcp6; do usleep 10000; done"))?;
        Ok(())
    }
}

/// Runs the case.
///
/// # Errors
/// Returns an error if a process does not start, wrong bytes arrive, or switching an offload has no effect.
pub fn run(bench: &Bench) -> Result<()> {
    on_one_switch(bench, judge)
}

/// Starts a daemon and both guests on one switch, runs `judge` when the guests are ready, and stops the guests and the
/// daemon.
///
/// # Errors
/// Returns an error if a process does not start, or `judge` fails.
pub(super) fn on_one_switch(
    bench: &Bench,
    judge: impl FnOnce(&Bench, &mut [Guest; 2], &Daemon) -> Result<()>,
) -> Result<()> {
    let executable = daemon::build()?;
    let ns = new_namespace()?;
    let mut guests = Guest::both();
    let ports = guests.each_ref().map(|guest| guest.section(bench));
    let file = ports.concat() + "[[switch]]\nname = \"lan\"\n";
    let daemon = Daemon::start(&executable, &file, &bench.scratch, &ns)?;
    // Boot both guests at the same time: emulated boots take most of the time of a case.
    let started = guests.iter_mut().try_for_each(|guest| guest.start(bench, &ns));
    let ready = started.and_then(|()| guests.iter_mut().try_for_each(Guest::wait_until_ready));
    let judged = ready.and_then(|()| judge(bench, &mut guests, &daemon));
    for machine in guests.into_iter().filter_map(|guest| guest.machine) {
        machine.power_off();
    }
    let last_words = daemon.terminate();
    judged.map_err(|why| why.map(|why| why + &last_words))
}

fn judge(bench: &Bench, guests: &mut [Guest; 2], daemon: &Daemon) -> Result<()> {
    let expected = tcp::digest(&bench.base.payload);

    let counts = exchange(guests, daemon, &expected).map_err(|why| why.during("with all offloads on"))?;
    counts.iter().try_for_each(|counts| counts.expect_super_frames(bench.args.kind))?;

    daemon.set("vm1", &["all", "off"])?;
    let [first, second] =
        exchange(guests, daemon, &expected).map_err(|why| why.during("with the offloads of vm1 off"))?;
    // The transmit offloads of vm1 were negotiated at its setup and do not change, so vm0 still receives super-frames.
    first.expect_super_frames(bench.args.kind)?;
    second.expect_single_frames()?;

    daemon.set("vm1", &["all", "on"])?;
    let counts = exchange(guests, daemon, &expected).map_err(|why| why.during("with the offloads of vm1 on again"))?;
    counts.iter().try_for_each(|counts| counts.expect_super_frames(bench.args.kind))
}

/// Sends each guest's `/payload` to the other guest, at the same time. Returns the counters of each port.
pub(super) fn exchange(guests: &mut [Guest; 2], daemon: &Daemon, expected: &str) -> Result<[Counts; 2]> {
    let ports = guests.each_ref().map(|guest| guest.port);
    let addresses = guests.each_ref().map(|guest| guest.address);
    let before = counts(&daemon.show()?, ports)?;
    let mut begun = Vec::new();
    for (guest, other) in guests.iter_mut().zip(addresses.iter().rev()) {
        begun.push(guest.machine()?.begin(&format!("nc {other} {SERVICE} </payload"))?);
    }
    for (guest, begun) in guests.iter_mut().zip(&begun) {
        let printed = guest.machine()?.finish(begun)?;
        let found = printed.split_whitespace().next().unwrap_or_default();
        tcp::same(found, expected, &format!("TCP from {}", guest.port))?;
    }
    let after = counts(&daemon.show()?, ports)?;
    let [first, second] = after;
    Ok([first.since(&before[0]), second.since(&before[1])])
}

/// The number of frames from a port to its guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) port: &'static str,
    /// Number of wire frames. A super-frame counts as its number of segments.
    pub(super) frames: u64,
    /// Number of frames delivered to the guest.
    pub(super) host_frames: u64,
}

impl Counts {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            port: self.port,
            frames: self.frames - earlier.frames,
            host_frames: self.host_frames - earlier.host_frames,
        }
    }

    fn expect_super_frames(&self, kind: GuestKind) -> Result<()> {
        let has_super_frames = match kind {
            GuestKind::Qemu => self.frames >= SEGMENTS_MIN * self.host_frames,
            GuestKind::Uml => self.frames > self.host_frames,
        };
        if has_super_frames {
            return Ok(());
        }
        failed(format!("expected super-frames, but {} got {} for {}", self.port, self.host_frames, self.frames))
    }

    fn expect_single_frames(&self) -> Result<()> {
        if self.frames == self.host_frames {
            return Ok(());
        }
        failed(format!("expected no super-frame, but {} got {} for {}", self.port, self.host_frames, self.frames))
    }
}

/// Returns the counters of both ports in the output of `offramp show --json` (`docs/control.md`).
fn counts(shown: &Value, ports: [&'static str; 2]) -> Result<[Counts; 2]> {
    let of = |name: &'static str| {
        let port = shown["ports"].as_array()?.iter().find(|port| port["name"] == name)?;
        let queues = port["queues"].as_array()?;
        let sum = |field: &str| queues.iter().map(|queue| queue["receive"][field].as_u64()).sum::<Option<u64>>();
        Some(Counts { port: name, frames: sum("frames_out")?, host_frames: sum("host_frames")? })
    };
    match ports.map(of) {
        [Some(first), Some(second)] => Ok([first, second]),
        _ => failed(format!("offramp show has no counters of {ports:?}: {shown}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_are_read_from_what_the_daemon_shows() {
        let port = |name, frames| {
            let queue = json!({"receive": {"frames_out": frames, "host_frames": 2}});
            json!({"name": name, "queues": [queue]})
        };
        let shown = json!({"ports": [port("vm1", 2), port("vm0", 9)]});
        let [first, second] = counts(&shown, ["vm0", "vm1"]).unwrap();
        assert_eq!((first.frames, second.frames), (9, 2));
        assert!(first.expect_super_frames(GuestKind::Qemu).is_ok() && first.expect_single_frames().is_err());
        assert!(second.expect_single_frames().is_ok() && second.expect_super_frames(GuestKind::Qemu).is_err());
        assert!(counts(&json!({"ports": [port("vm0", 9)]}), ["vm0", "vm1"]).is_err());
    }
}

//! The watchdog of the threads that forward frames. If a thread stalls, the watchdog finds the port that causes the
//! stall, interrupts the thread, and disconnects the guest.
//!
//! One thread serves all guests of a switch, and a guest must not stall the thread for long. After one second of a
//! stall, the watchdog reports the port and interrupts the stalled thread. After another second, the watchdog
//! disconnects the port's frontend. During a stall, a service manager with `WatchdogSec=` gets no heartbeat. If the
//! stall does not end, the manager restarts the daemon.
//!
//! The watchdog also checks for faults of guests and for lost hosts, and logs the faults and the losses.

use super::daemon::{Daemon, Ports};
use super::events::Events;
use super::notify::Heartbeat;
use super::port::{Port, Queue};
use super::report::Report;
use crate::schema::{EventKind, LimitDirection};
use offramp_adapter::port::PortError;
use offramp_offload::sync::lock;
use offramp_ports::sys::sandbox::{Sandbox, ThreadKind};
use offramp_ports::worker::{Pulse, SLEEP_MAX, clock_ns};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Time between two checks.
const INTERVAL: Duration = Duration::from_millis(250);
/// A guest is checked at every fourth check of the threads. A guest on an idle thread is checked at every sixteenth
/// check. Checking hundreds of idle guests at every interval would take most of the daemon's processor time.
const LOOKS_PER_GUEST: usize = 4;
const LOOKS_PER_IDLE_GUEST: usize = 16;
/// The ports' rates are sampled at every fourth check of the threads, once per second.
const LOOKS_PER_RATES: usize = 4;
/// Maximum time between two checks, in nanoseconds. After a longer time, the watchdog measures the stall anew, because
/// the machine was suspended or was too busy to run the watchdog.
const LATE_NS: u64 = 2 * INTERVAL.as_nanos() as u64;
/// Durations of a thread's stall in nanoseconds; a sleeping thread counts as stalled only after [`SLEEP_MAX`]. After
/// the first duration, the watchdog reports and interrupts the thread. After the second duration, the watchdog
/// disconnects the port's frontend.
const NAMED_NS: u64 = 1_000_000_000;
const ENDED_NS: u64 = 2 * NAMED_NS;

/// The watchdog's action on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Take no action: the thread makes turns (rounds over its tasks), or has not stalled for long.
    Nothing,
    /// Report the stall: the thread has stalled for a second.
    Name,
    /// Interrupt the thread again: the stall continues.
    Interrupt,
    /// Disconnect the port's frontend: the thread is still in the port in which the stall was reported.
    End,
    /// Report the end of the stall: the thread makes turns again.
    GoesOn,
}

/// The watchdog's record of a thread from the previous checks.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    turns: u64,
    since_ns: u64,
    looked_ns: u64,
    is_named: bool,
    /// The port in which the stall was reported, until the frontend of that port is disconnected.
    named_in: Option<usize>,
}

impl Seen {
    /// Returns the action for a thread that, at `now_ns`, has made `turns` turns, and is asleep or polls the host of
    /// `port`.
    fn look(&mut self, Pulse { turns, is_asleep, .. }: Pulse, port: Option<usize>, now_ns: u64) -> Step {
        let is_late = now_ns - self.looked_ns > LATE_NS;
        self.looked_ns = now_ns;
        if turns != self.turns {
            let was_named = self.is_named;
            *self = Self { turns, since_ns: now_ns, looked_ns: now_ns, ..Self::default() };
            return if was_named { Step::GoesOn } else { Step::Nothing };
        }
        if is_late {
            self.since_ns = now_ns;
        }
        let still_ns = now_ns - self.since_ns;
        if !self.is_named {
            if still_ns < NAMED_NS + if is_asleep { SLEEP_MAX.as_nanos() as u64 } else { 0 } {
                return Step::Nothing;
            }
            (self.is_named, self.named_in) = (true, port);
            return Step::Name;
        }
        let is_in_it = self.named_in.is_some() && self.named_in == port;
        if still_ns >= ENDED_NS && is_in_it {
            self.named_in = None;
            return Step::End;
        }
        Step::Interrupt
    }
}

/// Starts the watchdog's thread, which runs until the daemon is dropped.
///
/// # Errors
/// Fails if the thread cannot be started.
pub fn start(daemon: &Arc<Daemon>, sandbox: Sandbox) -> io::Result<()> {
    let (daemon, heartbeat) = (Arc::downgrade(daemon), Heartbeat::new());
    thread::Builder::new().name("ofr-watchdog".into()).spawn(move || {
        sandbox.enter_thread(ThreadKind::Client);
        run(&daemon, &heartbeat);
    })?;
    Ok(())
}

/// The faults of a port that were already reported.
#[derive(Default)]
struct Reports {
    guest: Report,
    gone: BTreeSet<String>,
    /// The state of the host's rate limits, one per direction.
    limits: [Limit; 2],
}

/// The results of the previous checks of one rate limit of a host.
#[derive(Debug, Default)]
struct Limit {
    /// The number of times the limit was reached.
    reached: u64,
    /// The number of the last check at which `reached` had grown.
    last: Option<usize>,
}

impl Limit {
    /// Returns whether `reached` grew at this check, but not at the previous check.
    fn look(&mut self, reached: u64, look: usize) -> bool {
        if std::mem::replace(&mut self.reached, reached) >= reached {
            return false;
        }
        self.last.replace(look) != look.checked_sub(1)
    }
}

fn run(daemon: &Weak<Daemon>, heartbeat: &Heartbeat) {
    let (mut seen, mut reports, mut places) = (BTreeMap::new(), BTreeMap::<usize, Reports>::new(), Places::default());
    for number in 1.. {
        thread::sleep(INTERVAL);
        let Some(daemon) = daemon.upgrade() else { return };
        let ports = daemon.ports();
        if places.ports.as_ptr() != Arc::as_ptr(&ports) {
            places = Places::of(&ports);
            let threads: BTreeSet<_> =
                ports.iter().flat_map(|port| &port.queues).map(|queue| queue.worker.thread_id()).collect();
            seen.retain(|thread, _| threads.contains(thread));
            let ids: BTreeSet<_> = ports.iter().map(|port| port.id).collect();
            reports.retain(|id, _| ids.contains(id));
        }
        let events = &daemon.threads().events;
        // A thread notices a lost host, or frames lost to a port's rate limit, only while it polls its ports. So check only ports of threads that have polled, and ports with an interface.
        let (mut is_well, mut changed) = (true, places.with_interface.clone());
        for pairs in &places.threads {
            let look = look(
                &pairs.iter().map(|(port, pair)| (&*ports[*port], &ports[*port].queues[*pair])),
                &mut seen,
                events,
                clock_ns(),
            );
            is_well &= look.is_well;
            if look.made_turns {
                changed.extend(pairs.iter().map(|(port, _)| port));
            }
        }
        if is_well {
            heartbeat.beat();
        }
        let idle = (number % LOOKS_PER_IDLE_GUEST..ports.len()).step_by(LOOKS_PER_IDLE_GUEST);
        let busy = changed.iter().copied().filter(|place| place % LOOKS_PER_GUEST == number % LOOKS_PER_GUEST);
        for port in idle.chain(busy).map(|place| &ports[place]) {
            report_guest(port, &mut reports.entry(port.id).or_default().guest, clock_ns());
        }
        if number % LOOKS_PER_RATES == 0 {
            ports.iter().for_each(|port| port.rates.sample(port.control.queues(), clock_ns()));
        }
        for port in changed.into_iter().map(|place| &ports[place]) {
            let Reports { gone, limits, .. } = reports.entry(port.id).or_default();
            report_gone(port, gone, events);
            report_limits(port, limits, number, events);
        }
    }
}

/// The ports of each thread, and the ports to check at every interval, as indices into the list of ports.
#[derive(Default)]
struct Places {
    /// The list of ports to which the indices in `threads` and `with_interface` refer.
    ports: Weak<Vec<Arc<Port>>>,
    /// The queue pairs of each thread: the index of the port, and the index of the pair in the port.
    threads: Vec<Vec<(usize, usize)>>,
    /// Indices of ports with an interface on their wire.
    with_interface: BTreeSet<usize>,
}

impl Places {
    fn of(ports: &Ports) -> Self {
        let mut threads: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (place, port) in ports.iter().enumerate() {
            for (pair, queue) in port.queues.iter().enumerate() {
                threads.entry(Arc::as_ptr(&queue.worker)).or_default().push((place, pair));
            }
        }
        let with_interface = (0..ports.len()).filter(|place| ports[*place].wire_stats().is_some()).collect();
        Self { ports: Arc::downgrade(ports), threads: threads.into_values().collect(), with_interface }
    }
}

/// The result of checking a thread.
struct Look {
    is_well: bool,
    made_turns: bool,
}

/// Checks the thread that serves the queue pairs `queues`.
fn look<'a>(
    queues: &(impl Iterator<Item = (&'a Port, &'a Queue)> + Clone),
    seen: &mut BTreeMap<i32, Seen>,
    events: &Events,
    now_ns: u64,
) -> Look {
    let Some((first, queue)) = queues.clone().next().filter(|(_, queue)| queue.worker.is_running()) else {
        // The thread has ended, because its hosts are gone.
        return Look { is_well: true, made_turns: true };
    };
    let (worker, thread, pulse) = (&queue.worker, queue.worker.thread_id(), queue.worker.pulse());
    let mut served = queues.clone().filter(|_| !pulse.is_asleep);
    let port = served.find(|(port, queue)| port.is_served_by(queue)).map(|(port, _)| port);
    let made_turns = seen.get(&thread).is_none_or(|seen| seen.turns != pulse.turns);
    let seen = seen.entry(thread).or_insert_with(|| Seen {
        turns: pulse.turns,
        since_ns: now_ns,
        looked_ns: now_ns,
        ..Seen::default()
    });
    let name = port.map(|port| port.name.as_str());
    let set_stall =
        |stall: Option<&str>| queues.clone().for_each(|(_, queue)| queue.mark.set_stall(stall.map(str::to_owned)));
    let step = seen.look(pulse, port.map(|port| port.id), now_ns);
    match step {
        Step::Nothing | Step::Interrupt => {}
        Step::GoesOn => {
            log!("offramp: thread {thread} of port \"{}\" goes on", first.name);
            events.publish(EventKind::Resumed { thread });
            set_stall(None);
        }
        Step::Name => {
            let place =
                name.map_or("outside of all ports".to_owned(), |name| format!("in the host of port \"{name}\""));
            log!("offramp: thread {thread} of port \"{}\" has stood still for a second, {place}", first.name);
            events.publish(EventKind::Stalled { thread, port: name.map(str::to_owned) });
            set_stall(Some(name.unwrap_or_default()));
        }
        Step::End => end(port.unwrap_or(first)),
    }
    if matches!(step, Step::Name | Step::Interrupt | Step::End) {
        worker.interrupt();
    }
    Look { is_well: !seen.is_named, made_turns }
}

/// Logs new faults of a guest.
fn report_guest(port: &Port, report: &mut Report, now_ns: u64) {
    let Some(guest) = port.host.guest() else { return };
    let guest = lock(guest);
    if let Some(news) = report.next(guest.guest_counts(), now_ns) {
        let why = guest.status().last_refusal;
        let why = why.map_or(String::new(), |why| format!("; last frontend disconnected: {why}"));
        log!("offramp: port \"{}\": {news}{why}", port.name);
    }
}

/// Reports the lost hosts and interfaces of the port, each once. A lost host or interface is gone for good.
fn report_gone(port: &Port, reported: &mut BTreeSet<String>, events: &Events) {
    for (who, errno) in port.gone() {
        if reported.insert(who.clone()) {
            let reason = format!("{who} is gone: {}", PortError::Closed(errno));
            log!("offramp: {reason}; it carries nothing any more");
            events.publish(EventKind::Gone { port: port.name.clone(), reason });
        }
    }
}

/// Reports a host that has reached its rate limit. Reports the host again only after a check at which it did not reach
/// the limit.
fn report_limits(port: &Port, limits: &mut [Limit; 2], number: usize, events: &Events) {
    let directions = [LimitDirection::Transmit, LimitDirection::Receive];
    for ((direction, reached), limit) in directions.into_iter().zip(port.control.limits_reached()).zip(limits) {
        if limit.look(reached, number) {
            events.publish(EventKind::LimitReached { port: port.name.clone(), direction });
        }
    }
}

/// Disconnects the guest in whose port a thread has stalled.
fn end(port: &Port) {
    let why = "the thread of its frames stood still at this guest for two seconds";
    if port.with_guest(|guest| guest.disconnect(why)).unwrap_or_default() {
        log!("offramp: port \"{}\": its thread stands still there; the frontend is disconnected", port.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_NS: u64 = INTERVAL.as_nanos() as u64;

    const fn awake(turns: u64) -> Pulse {
        Pulse { turns, is_asleep: false, task: None }
    }

    /// Checks a thread once per interval, and returns the action of each check. Each entry of `of` holds the number of
    /// turns that the thread has made, and the port that it polls.
    fn looks(of: &[(u64, Option<usize>)]) -> Vec<Step> {
        let mut seen = Seen::default();
        let mut now_ns = 0;
        let mut look = |&(turns, port): &(u64, Option<usize>)| {
            now_ns += STEP_NS;
            seen.look(awake(turns), port, now_ns)
        };
        of.iter().map(&mut look).collect()
    }

    #[test]
    fn a_thread_that_makes_turns_is_left_alone_however_few() {
        let turns: Vec<_> = (0..100).map(|look| (1 + look / 4, Some(0))).collect();
        assert!(looks(&turns).iter().all(|step| *step == Step::Nothing));
    }

    #[test]
    fn a_thread_may_sleep_for_as_long_as_it_does_without_being_called_and_a_second_more() {
        let mut seen = Seen::default();
        let asleep = Pulse { is_asleep: true, ..awake(7) };
        let named_after = (SLEEP_MAX.as_nanos() as u64 + NAMED_NS) / STEP_NS;
        let last = named_after + 8;
        let steps: Vec<_> = (1..last).map(|look| seen.look(asleep, None, look * STEP_NS)).collect();
        let named_at = steps.iter().position(|step| *step == Step::Name);
        assert_eq!(named_at, Some(named_after as usize));
        assert!(steps[..named_after as usize].iter().all(|step| *step == Step::Nothing));
        assert_eq!(seen.look(awake(8), None, last * STEP_NS), Step::GoesOn);
    }

    #[test]
    fn a_thread_that_stands_still_is_named_after_a_second_and_its_port_ended_once_after_another() {
        let mut steps = looks(&[[(7, Some(3)); 12].as_slice(), &[(8, Some(3)); 2]].concat());
        let rest = steps.split_off(5);
        assert_eq!(steps, [Step::Nothing, Step::Nothing, Step::Nothing, Step::Nothing, Step::Name]);
        let interrupted = [Step::Interrupt; 3];
        assert_eq!(rest[..4], [&interrupted[..], &[Step::End]].concat());
        assert_eq!(rest[4..], [&interrupted[..], &[Step::GoesOn, Step::Nothing]].concat());
    }

    #[test]
    fn no_port_is_ended_for_a_thread_that_is_in_another_one_or_in_none() {
        let elsewhere = [[(7, Some(3)); 6].as_slice(), &[(7, Some(4)); 20]].concat();
        for turns in [elsewhere, vec![(7, None); 30]] {
            let steps = looks(&turns);
            assert!(steps.contains(&Step::Name) && !steps.contains(&Step::End), "{steps:?}");
        }
    }

    #[test]
    fn a_limit_is_named_when_it_is_reached_and_again_after_a_look_without() {
        let mut limit = Limit::default();
        // Each pair is the number of a check and the count at this check. Checks at which the thread has made no turn
        // are left out.
        let looks = [(1, 0), (2, 2), (3, 5), (4, 5), (5, 6), (6, 6), (9, 7), (10, 8)];
        assert_eq!(
            looks.map(|(look, reached)| limit.look(reached, look)),
            [false, true, false, false, true, false, true, false]
        );
        assert!(Limit::default().look(1, 1), "at the first look");
    }

    #[test]
    fn a_machine_that_stood_still_itself_blames_nobody() {
        let mut seen = Seen::default();
        for look in 1..100 {
            assert_eq!(seen.look(awake(7), Some(3), look * (LATE_NS + 1)), Step::Nothing);
        }
    }
}

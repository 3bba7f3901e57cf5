//! Takes one sample. Connects two hosts by adapters (a rig), and generates traffic between the hosts in separate
//! processes. Reads processor times and counters at the start and at the end of the measured window.

use crate::model::Sample;
use offramp_ports::sys::NetNs;
use offramp_ports::sys::cpu;
use offramp_ports::sys::netns::confine;
use offramp_testbed::cpu::{AwakeCpus, CpuTimes, OtherPrograms, Worked, line_distance_ns};
use offramp_testbed::error::TestbedError;
use offramp_testbed::guest::Guests;
use offramp_testbed::guest::Machine;
use offramp_testbed::guest::protocol::{Answer, Command as GuestCommand, GuestTime};
use offramp_testbed::rig::{ADDRESSES, Counts, Hosts, Rig, RigConfig};
use offramp_testbed::stats::median;
use offramp_testbed::traffic::{Amount, Event, PORT_DEFAULT, Params, Report, TransactionParams, Workload};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Duration of one measurement of the distance between two processors, which is the one-way latency of a cache line.
const DISTANCE_SAMPLE: Duration = Duration::from_millis(4);
/// Warm-up of a round-trip test, in microseconds.
const RTT_WARMUP_USECS: u64 = 20_000;
/// Time limit for an answer from a guest, in addition to the duration of the test.
const GUEST_GRACE: Duration = Duration::from_mins(1);
const NANOSECONDS: f64 = 1e9;
const MICROSECONDS: f64 = 1e6;

/// Takes the samples of a run, with the settings that are common to all samples.
#[derive(Clone, Debug)]
pub struct Bench<'a> {
    /// Path of the program `offramp`. Its subcommand `ttcp` generates the traffic.
    pub program: PathBuf,
    /// Duration of each round-trip test.
    pub rtt_time: Duration,
    /// Number of rounds in which round trips are measured.
    pub rtt_rounds: usize,
    /// Set to `true` to stop the run.
    pub stop: &'a AtomicBool,
}

/// The kind of the two hosts between which samples are taken.
#[derive(Debug)]
pub enum Stage<'a> {
    /// Two namespaces, created for each sample.
    Namespaces,
    /// A guest and a namespace, reconfigured for each sample.
    Guest(Box<Guests<'a>>),
}

/// A child process, killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The child process can have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Readings at the start or the end of the measured window.
struct Reading {
    at: Instant,
    processors: CpuTimes,
    /// Idle time of each processor kept awake, in nanoseconds; empty if processors can sleep.
    idle_ns: Vec<(usize, u64)>,
    adapter_ns: u64,
    counts: Counts,
    /// Counters of the serving host's adapter only. `counts` has the counters of both adapters.
    server_counts: Counts,
    program_lost: u64,
    guest: Option<GuestReading>,
}

/// Readings of a guest: processor time of its processes on this machine, and the guest's own report.
struct GuestReading {
    process_ns: u64,
    time: GuestTime,
}

/// Callback for an event of a test. The arguments are the hosts, the event, and the guest's times for an event from a
/// guest.
type OnEvent<'a> = dyn FnMut(&mut dyn Hosts, &Event, Option<GuestTime>) -> Result<(), TestbedError> + 'a;

impl Bench<'_> {
    /// Builds or reconfigures a rig, and measures traffic through the rig. With `round_trips`, round trips are measured
    /// after the traffic.
    ///
    /// # Errors
    /// Returns an error if the rig or the traffic fails, or if the run is stopped.
    pub fn sample(
        &self,
        stage: &mut Stage,
        round: usize,
        config: &RigConfig,
        traffic: &Params,
        round_trips: bool,
    ) -> Result<Sample, TestbedError> {
        let others = OtherPrograms::read()?;
        let mut sample = self.sample_on_stage(stage, round, config, traffic, round_trips)?;
        sample.other_cpus = OtherPrograms::read()?.cpus_since(&others);
        Ok(sample)
    }

    fn sample_on_stage(
        &self,
        stage: &mut Stage,
        round: usize,
        config: &RigConfig,
        traffic: &Params,
        round_trips: bool,
    ) -> Result<Sample, TestbedError> {
        let mut made;
        let hosts: &mut dyn Hosts = match stage {
            Stage::Namespaces => {
                made = Rig::start(config)?;
                &mut made
            }
            Stage::Guest(guests) => {
                let rig = guests.rig(config)?;
                let sample = self.sample_on(rig, round, traffic, round_trips)?;
                return rig.check_adapted().map(|()| sample);
            }
        };
        self.sample_on(hosts, round, traffic, round_trips)
    }

    fn sample_on(
        &self,
        hosts: &mut dyn Hosts,
        round: usize,
        traffic: &Params,
        round_trips: bool,
    ) -> Result<Sample, TestbedError> {
        let config = hosts.config().clone();
        let _server = self.start_server(hosts)?;
        let before_ns = distance_ns(&config);
        let mut sample = self.measure(hosts, traffic)?;
        sample.round = round;
        if round_trips && round < self.rtt_rounds {
            (sample.rtt_p50_us, sample.rtt_p99_us) = self.round_trip(hosts)?;
            // The lab cannot keep the processors of a guest awake.
            if hosts.guest().is_none() {
                let _awake = AwakeCpus::start(&cpu::online())?;
                (sample.rtt_awake_p50_us, sample.rtt_awake_p99_us) = self.round_trip(hosts)?;
            }
        }
        sample.line_distance_ns = before_ns.zip(distance_ns(&config)).map(|(before, after)| [before, after]);
        Ok(sample)
    }

    fn read(
        &self,
        hosts: &mut dyn Hosts,
        awake: Option<&Awake>,
        time: Option<GuestTime>,
    ) -> Result<Reading, TestbedError> {
        let adapter_ns = hosts.adapter_threads().into_iter().map(cpu::thread_cpu_ns_of).sum::<Result<u64, _>>()?;
        let (at, processors, counts) = (Instant::now(), CpuTimes::read()?, hosts.counts());
        let server_counts = hosts.counts_of(1 - hosts.config().client);
        let program_lost = hosts.program_lost();
        let guest = hosts.guest().map(|guest| self.read_guest(guest, time)).transpose()?;
        let idle_ns = awake.map(Awake::idle_ns).unwrap_or_default();
        Ok(Reading { at, processors, idle_ns, adapter_ns, counts, server_counts, program_lost, guest })
    }

    fn read_guest(&self, guest: &mut Machine, time: Option<GuestTime>) -> Result<GuestReading, TestbedError> {
        let process_ns = guest.cpu_ns()?;
        let time = time.map_or_else(|| self.ask_time(guest), Ok)?;
        Ok(GuestReading { process_ns, time })
    }

    fn ask_time(&self, guest: &mut Machine) -> Result<GuestTime, TestbedError> {
        guest.send(&GuestCommand::Time)?;
        match guest.answer(GUEST_GRACE, self.stop)? {
            Answer::Time(time) => guest.finish(self.stop).map(|()| time),
            other => Err(TestbedError::Traffic(format!("the guest answered {other:?}"))),
        }
    }

    /// Starts a server in the serving host's namespace. A guest needs no server process, because the guest's agent
    /// always serves.
    fn start_server(&self, hosts: &dyn Hosts) -> Result<Option<Killed>, TestbedError> {
        let side = 1 - hosts.config().client;
        let Some(ns) = hosts.namespace(side) else { return Ok(None) };
        let mut command = Command::new(&self.program);
        command.args(["ttcp", "--serve", "--json", "--bind", &ADDRESSES[side].to_string()]);
        let mut server = spawn(command, ns, hosts.config().placement.cpus_of(false))?;
        // The server prints its first line once the server listens for connections.
        let mut line = String::new();
        BufReader::new(output(&mut server)).read_line(&mut line)?;
        if line.is_empty() {
            return Err(TestbedError::Traffic("the server did not start".to_owned()));
        }
        Ok(Some(server))
    }

    /// Runs one test from the client's host to the other host. `on_event` is called for each event.
    fn run_client(
        &self,
        hosts: &mut dyn Hosts,
        params: &Params,
        on_event: &mut OnEvent,
    ) -> Result<Report, TestbedError> {
        let report = match hosts.namespace(hosts.config().client) {
            Some(_) => self.run_client_here(hosts, params, on_event)?,
            None => self.run_client_in_guest(hosts, params, on_event)?,
        };
        complete(report)
    }

    fn run_client_here(
        &self,
        hosts: &mut dyn Hosts,
        params: &Params,
        on_event: &mut OnEvent,
    ) -> Result<Report, TestbedError> {
        let side = hosts.config().client;
        let ns = hosts.namespace(side).ok_or_else(|| TestbedError::Traffic("host has no namespace".to_owned()))?;
        let mut command = Command::new(&self.program);
        let params = serde_json::to_string(params).map_err(|e| TestbedError::Traffic(e.to_string()))?;
        let server = ADDRESSES[1 - side].to_string();
        command.args(["ttcp", "--to", &server, "--port", &PORT_DEFAULT.to_string(), "--json"]);
        command.args(["--params", &params]);
        let mut client = spawn(command, ns, hosts.config().placement.cpus_of(true))?;
        for line in BufReader::new(output(&mut client)).lines() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(TestbedError::Stopped);
            }
            let line = line?;
            let event = serde_json::from_str(&line).map_err(|_| TestbedError::Traffic(line.clone()))?;
            on_event(hosts, &event, None)?;
            if let Event::Report(report) = event {
                return Ok(*report);
            }
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(TestbedError::Stopped);
        }
        Err(TestbedError::Traffic("the client ended without a report".to_owned()))
    }

    fn run_client_in_guest(
        &self,
        hosts: &mut dyn Hosts,
        params: &Params,
        on_event: &mut OnEvent,
    ) -> Result<Report, TestbedError> {
        let server = ADDRESSES[1 - hosts.config().client];
        let no_guest = || TestbedError::Traffic("there is no guest".to_owned());
        hosts.guest().ok_or_else(no_guest)?.send(&GuestCommand::Run { server, params: Box::new(params.clone()) })?;
        let timeout = Duration::from_micros(params.warmup_usecs) + measured_time(params) + GUEST_GRACE;
        let mut result = None;
        loop {
            match hosts.guest().ok_or_else(no_guest)?.answer(timeout, self.stop)? {
                Answer::Event { event, time } => {
                    on_event(hosts, &event, Some(time))?;
                    if let Event::Report(report) = event {
                        result = Some(*report);
                    }
                }
                Answer::Done => {
                    return result.ok_or_else(|| TestbedError::Traffic("the guest's client made no report".to_owned()));
                }
                Answer::Failed(why) => return Err(TestbedError::Traffic(format!("in the guest: {why}"))),
                other => return Err(TestbedError::Traffic(format!("the guest answered {other:?}"))),
            }
        }
    }

    fn measure(&self, hosts: &mut dyn Hosts, traffic: &Params) -> Result<Sample, TestbedError> {
        let settings = hosts.config().host.clone();
        let traffic = &Params { busy_poll_usecs: settings.busy_poll_usecs, ..traffic.clone() };
        // The lab cannot keep the processors of a guest awake.
        let awake = (settings.awake && hosts.guest().is_none()).then(Awake::start).transpose()?;
        let awake = awake.as_ref();
        let (mut start, mut end) = (None, None);
        let report = self.run_client(hosts, traffic, &mut |hosts, event, time| {
            match event {
                Event::Start => start = Some(self.read(hosts, awake, time)?),
                Event::End => end = Some(self.read(hosts, awake, time)?),
                _ => {}
            }
            Ok(())
        })?;
        let (Some(start), Some(end)) = (start, end) else {
            return Err(TestbedError::Traffic("the measured window has no start or no end".to_owned()));
        };
        Ok(sample_of(hosts, &report, &start, &end))
    }

    fn round_trip(&self, hosts: &mut dyn Hosts) -> Result<(Option<f64>, Option<f64>), TestbedError> {
        let params = Params {
            workload: Workload::Transaction(TransactionParams::default()),
            amount: Amount::Usecs(self.rtt_time.as_micros() as u64),
            warmup_usecs: RTT_WARMUP_USECS,
            ..Params::default()
        };
        self.run_client(hosts, &params, &mut |_, _, _| Ok(())).map(|report| latency_us(&report))
    }
}

/// Keeps all processors of the machine awake while the value exists.
struct Awake {
    cpus: Vec<usize>,
    spinners: AwakeCpus,
}

impl Awake {
    fn start() -> Result<Self, TestbedError> {
        let cpus = cpu::online();
        Ok(Self { spinners: AwakeCpus::start(&cpus)?, cpus })
    }

    fn idle_ns(&self) -> Vec<(usize, u64)> {
        self.cpus.iter().copied().zip(self.spinners.idle_ns()).collect()
    }
}

/// Returns the measured time of a test. The time is zero for a test with a fixed number of bytes, because such a test
/// has no fixed duration.
fn measured_time(params: &Params) -> Duration {
    match params.amount {
        Amount::Usecs(usecs) => Duration::from_micros(usecs),
        Amount::Bytes(_) => Duration::ZERO,
    }
}

fn sample_of(hosts: &dyn Hosts, report: &Report, start: &Reading, end: &Reading) -> Sample {
    let elapsed_s = (end.at - start.at).as_secs_f64();
    let placement = &hosts.config().placement;
    let processors = end.processors.since(&start.processors);
    let idle_us = idle_us_between(&start.idle_ns, &end.idle_ns);
    let worked = |cpus: &[usize]| worked(&processors, &idle_us, cpus, elapsed_s);
    let machine = worked(&cpu::online());
    let machine_cpu_s = seconds(machine.likely_us);
    let has_adapters = !hosts.adapter_threads().is_empty();
    let adapter_cpu_s = has_adapters.then(|| (end.adapter_ns - start.adapter_ns) as f64 / NANOSECONDS);
    let guests = start.guest.as_ref().zip(end.guest.as_ref());
    let process_s = guests.map(|(start, end)| end.process_ns.saturating_sub(start.process_ns) as f64 / NANOSECONDS);
    let of_hosts = match adapter_cpu_s {
        // With a guest, only host A's processor time counts, measured as the processor time of the guest's processes.
        Some(_) if process_s.is_some() => None,
        // Only the serving host's work counts. If the receive work of the serving host runs on other processors, the
        // time of this work cannot be attributed.
        Some(_) if placement.server_cpus.is_some() => is_apart(hosts).then(|| (worked(placement.cpus_of(false)), 0.0)),
        // Hosts and adapters are on separate processors, and the hosts' receive work runs on the hosts' processors. All
        // work on these processors is the hosts' work.
        Some(_) if is_apart(hosts) => Some((worked(&placement.host_cpus), 0.0)),
        Some(adapter_s) => Some((machine, adapter_s)),
        None => None,
    };
    let without = |us, adapter_s: f64| (seconds(us) - adapter_s).max(0.0);
    let host_cpu_s = of_hosts.map(|(of, adapter_s)| without(of.likely_us, adapter_s)).or(process_s);
    let host_cpu_range_s = of_hosts.map(|(of, adapter_s)| [of.min_us, of.max_us].map(|us| without(us, adapter_s)));
    let counts = end.counts.since(start.counts);
    let server_counts = end.server_counts.since(start.server_counts);
    let of_hosts = if placement.server_cpus.is_some() { server_counts } else { counts };
    // The measured time of the traffic report differs slightly from the time between the two readings, because the
    // traffic program's events arrive here with a delay. The bytes are therefore scaled to the time between the
    // readings.
    let bytes = report.throughput_bps / 8.0 * elapsed_s;
    let is_mixed = matches!(report.params.workload, Workload::Mixed(_));
    let (latency_p50_us, latency_p99_us) = latency_us(report);
    let received = (has_adapters && counts.receive.frames_in > 0).then_some(counts.receive.frames_in as f64);
    Sample {
        seconds: elapsed_s,
        throughput_bps: Some(report.throughput_bps),
        transactions_per_s: report.transactions_per_second().filter(|_| !is_mixed),
        latency_p50_us,
        latency_p99_us,
        interrupts_per_frame: received.map(|frames| counts.receive.interrupts as f64 / frames),
        host_cpu_s,
        host_cpu_range_s,
        adapter_cpu_s,
        guest_cpu_s: guests.and_then(|(start, end)| Some(end.time.busy_share_since(&start.time)? * elapsed_s)),
        machine_cpu_s: Some(machine_cpu_s),
        bytes: bytes as u64,
        retransmits: (report.segments > 0).then_some(report.retransmits),
        wire_frames: has_adapters.then_some(counts.transmit.frames_out),
        host_frames: has_adapters.then_some(of_hosts.receive.host_frames),
        sent_frames: has_adapters.then_some(of_hosts.transmit.host_frames),
        interrupts_per_s: has_adapters.then_some(counts.receive.interrupts as f64 / elapsed_s),
        // With a guest, the hosts' time is that of the guest's processes.
        is_separate: has_adapters.then(|| process_s.is_some() || is_apart(hosts)),
        lost_frames: has_adapters.then(|| counts.lost() + (end.program_lost - start.program_lost)),
        ..trouble(hosts.config(), &counts, report)
    }
}

/// Returns whether the measured hosts have processors of their own, with their receive work on these processors.
fn is_apart(hosts: &dyn Hosts) -> bool {
    let placement = &hosts.config().placement;
    let has_own = if placement.server_cpus.is_some() { placement.has_server_alone() } else { placement.is_apart() };
    has_own && hosts.has_rps()
}

/// Returns a sample that has only the losses of host B's adapter with a limited packet memory, and their effects on TCP
/// and RPC.
fn trouble(config: &RigConfig, counts: &Counts, report: &Report) -> Sample {
    let has_memory = config.card.memory.limits_receive();
    let received = &counts.receive;
    let is_bulk = report.sending_tcp().next().is_some();
    let receivers = report.send.iter().chain(&report.receive).map(|flow| &flow.receiver);
    let windows: Vec<f64> = report.sending_tcp().filter_map(|tcp| tcp.cwnd_median_segments).collect();
    Sample {
        dropped_frames: has_memory.then_some(received.dropped),
        overrun_frames: has_memory.then_some(received.overrun),
        burst_frames_max: has_memory.then_some(received.burst_frames_max),
        memory_bytes_max: has_memory.then_some(received.memory_bytes_max),
        out_of_order: is_bulk.then(|| report.receiving_tcp().map(|tcp| tcp.segments_out_of_order).sum()),
        dsacks: is_bulk.then(|| report.sending_tcp().map(|tcp| tcp.dsacks).sum()),
        cwnd_segments: median(&windows),
        stall_s: receivers.filter_map(|receiver| receiver.stall_seconds).max_by(f64::total_cmp).filter(|_| is_bulk),
        rpc_retransmits: report.rpc.as_ref().map(|rpc| rpc.counts.retransmits),
        ..Sample::default()
    }
}

/// Returns the idle time of each processor kept awake between two readings, in microseconds.
fn idle_us_between(start: &[(usize, u64)], end: &[(usize, u64)]) -> Vec<(usize, u64)> {
    const NANOSECONDS_PER_MICROSECOND: u64 = 1000;
    let between = |((cpu, before), (_, after)): (&(usize, u64), &(usize, u64))| {
        (*cpu, after.saturating_sub(*before) / NANOSECONDS_PER_MICROSECOND)
    };
    start.iter().zip(end).map(between).collect()
}

/// Returns the busy time of `cpus`. On a processor kept awake, the kernel counts no idle time. The idle time is then
/// taken from the thread that keeps the processor awake.
fn worked(processors: &CpuTimes, kept_awake_us: &[(usize, u64)], cpus: &[usize], elapsed_s: f64) -> Worked {
    let elapsed_us = (elapsed_s * MICROSECONDS) as u64;
    let of = |cpu: &usize| {
        let kept_awake = kept_awake_us.iter().find(|(other, _)| other == cpu).map_or(0, |(_, idle_us)| *idle_us);
        Some(processors.of(*cpu)?.worked(elapsed_us, kept_awake))
    };
    cpus.iter().filter_map(of).sum()
}

fn seconds(us: u64) -> f64 {
    us as f64 / MICROSECONDS
}

fn distance_ns(config: &RigConfig) -> Option<f64> {
    let (host, adapter) = (*config.placement.host_cpus.first()?, *config.placement.adapter_cpus.last()?);
    if host == adapter {
        return None;
    }
    line_distance_ns(host, adapter, DISTANCE_SAMPLE).ok()
}

fn spawn(mut command: Command, ns: &NetNs, cpus: &[usize]) -> Result<Killed, TestbedError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    confine(&mut command, Some(ns), Some(cpus))?;
    let child = command.spawn().map_err(|e| TestbedError::Traffic(format!("cannot start {command:?}: {e}")))?;
    Ok(Killed(child))
}

fn output(child: &mut Killed) -> ChildStdout {
    child.0.stdout.take().expect("the output was piped and is taken once")
}

/// Returns the report, or an error if a stream did not complete.
pub(crate) fn complete(report: Report) -> Result<Report, TestbedError> {
    if report.is_complete() {
        return Ok(report);
    }
    let errors: Vec<&str> = report.ends().flat_map(|end| end.errors.iter().map(String::as_str)).collect();
    Err(TestbedError::Traffic(format!("streams did not complete: {}", errors.join("; "))))
}

/// Returns the median and the 99th percentile of the response times, in microseconds.
pub(crate) fn latency_us(report: &Report) -> (Option<f64>, Option<f64>) {
    let of_calls = report.rpc.as_ref().map(|found| found.latency);
    let latency = report.transactions.as_ref().map(|found| found.latency).or(of_calls);
    let latency = latency.filter(|latency| latency.count > 0);
    (latency.map(|latency| latency.p50_us), latency.map(|latency| latency.p99_us))
}

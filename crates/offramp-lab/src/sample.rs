//! One measurement: a rig, traffic in processes of its own, and what the processors did meanwhile.

use crate::error::LabError;
use crate::model::Sample;
use crate::rig::{ADDRESSES, Counts, Rig, RigConfig};
use crate::traffic::{Amount, Event, PORT_DEFAULT, Params, Report, TransactionParams, Workload};
use offramp_ports::sys::cpu::{self, AwakeCpus, CpuTimes};
use offramp_ports::sys::netns::confine;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the distance between two processors is sampled.
const DISTANCE_SAMPLE: Duration = Duration::from_millis(4);
/// Warm-up of a round-trip test.
const RTT_WARMUP_USECS: u64 = 20_000;
const NANOSECONDS: f64 = 1e9;
const MICROSECONDS: f64 = 1e6;

/// What the samples of a run share.
#[derive(Clone, Debug)]
pub struct Bench<'a> {
    /// The program whose `ttcp` makes the traffic.
    pub program: PathBuf,
    /// Time of each round-trip test.
    pub rtt_time: Duration,
    /// Rounds in which round trips are measured.
    pub rtt_rounds: usize,
    /// Set when the run is to end.
    pub stop: &'a AtomicBool,
}

/// A child that is killed when it is no longer needed.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What was read at one end of the measured window.
struct Reading {
    at: Instant,
    processors: CpuTimes,
    adapter_ns: u64,
    counts: Counts,
}

impl Reading {
    fn take(rig: &Rig) -> Result<Self, LabError> {
        let adapter_ns = rig.adapter_threads().map(cpu::thread_cpu_ns_of).sum::<Result<u64, _>>()?;
        Ok(Self { at: Instant::now(), processors: CpuTimes::read()?, adapter_ns, counts: rig.counts() })
    }
}

impl Bench<'_> {
    /// Builds a rig, runs the traffic through it, and takes it down.
    ///
    /// # Errors
    /// When the rig or the traffic fails, or the run is stopped.
    pub fn sample(&self, round: usize, config: &RigConfig, traffic: &Params) -> Result<Sample, LabError> {
        let rig = Rig::start(config)?;
        let _server = self.start_server(&rig)?;
        let before_ns = distance_ns(config);
        let mut sample = self.measure(&rig, traffic)?;
        sample.round = round;
        if round < self.rtt_rounds {
            (sample.rtt_p50_us, sample.rtt_p99_us) = self.round_trip(&rig)?;
            let _awake = AwakeCpus::start(&cpu::online())?;
            (sample.rtt_awake_p50_us, sample.rtt_awake_p99_us) = self.round_trip(&rig)?;
        }
        sample.line_distance_ns = before_ns.zip(distance_ns(config)).map(|(before, after)| [before, after]);
        Ok(sample)
    }

    fn start_server(&self, rig: &Rig) -> Result<Killed, LabError> {
        let mut command = Command::new(&self.program);
        command.args(["ttcp", "--serve", "--json", "--bind", &ADDRESSES[1].to_string()]);
        let mut server = spawn(command, rig, 1)?;
        // The first line says that it listens.
        let mut line = String::new();
        BufReader::new(output(&mut server)).read_line(&mut line)?;
        if line.is_empty() {
            return Err(LabError::Traffic("the server did not start".to_owned()));
        }
        Ok(server)
    }

    /// Runs one test from host 0 to host 1 and calls `on_event` as it goes.
    fn run_client(
        &self,
        rig: &Rig,
        params: &Params,
        mut on_event: impl FnMut(&Event) -> Result<(), LabError>,
    ) -> Result<Report, LabError> {
        let mut command = Command::new(&self.program);
        let params = serde_json::to_string(params).map_err(|e| LabError::Traffic(e.to_string()))?;
        command.args(["ttcp", "--to", &ADDRESSES[1].to_string(), "--port", &PORT_DEFAULT.to_string(), "--json"]);
        command.args(["--params", &params]);
        let mut client = spawn(command, rig, 0)?;
        for line in BufReader::new(output(&mut client)).lines() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(LabError::Stopped);
            }
            let line = line?;
            let event = serde_json::from_str(&line).map_err(|_| LabError::Traffic(line.clone()))?;
            on_event(&event)?;
            if let Event::Report(report) = event {
                return if report.is_complete() { Ok(*report) } else { Err(incomplete(&report)) };
            }
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(LabError::Stopped);
        }
        Err(LabError::Traffic("the client ended without a report".to_owned()))
    }

    fn measure(&self, rig: &Rig, traffic: &Params) -> Result<Sample, LabError> {
        let (mut start, mut end) = (None, None);
        let report = self.run_client(rig, traffic, |event| {
            match event {
                Event::Start => start = Some(Reading::take(rig)?),
                Event::End => end = Some(Reading::take(rig)?),
                _ => {}
            }
            Ok(())
        })?;
        let (Some(start), Some(end)) = (start, end) else {
            return Err(LabError::Traffic("the measured window has no begin or no end".to_owned()));
        };
        Ok(sample_of(rig, &report, &start, &end))
    }

    fn round_trip(&self, rig: &Rig) -> Result<(Option<f64>, Option<f64>), LabError> {
        let params = Params {
            workload: Workload::Transaction(TransactionParams::default()),
            amount: Amount::Usecs(self.rtt_time.as_micros() as u64),
            warmup_usecs: RTT_WARMUP_USECS,
            ..Params::default()
        };
        let report = self.run_client(rig, &params, |_| Ok(()))?;
        let latency = report.transactions.map(|t| t.latency).filter(|l| l.count > 0);
        Ok((latency.map(|l| l.p50_us), latency.map(|l| l.p99_us)))
    }
}

fn sample_of(rig: &Rig, report: &Report, start: &Reading, end: &Reading) -> Sample {
    let elapsed_s = (end.at - start.at).as_secs_f64();
    let placement = &rig.config().placement;
    let processors = end.processors.since(&start.processors);
    let busy_s = |cpus: &[usize]| busy_seconds(&processors, cpus, elapsed_s);
    let machine_cpu_s = busy_s(&cpu::online());
    let has_adapters = rig.adapter_threads().next().is_some();
    let adapter_cpu_s = has_adapters.then(|| (end.adapter_ns - start.adapter_ns) as f64 / NANOSECONDS);
    let host_cpu_s = match adapter_cpu_s {
        // Apart, and the hosts' receive work with them: what the hosts' processors did is the hosts'.
        Some(_) if placement.is_apart() && rig.has_rps() => Some(busy_s(&placement.host_cpus)),
        Some(adapter_s) => Some((machine_cpu_s - adapter_s).max(0.0)),
        None => None,
    };
    let counts = end.counts.since(start.counts);
    // The window of the report and the one between the two readings differ by the time that an event
    // takes to arrive; the bytes are scaled to the readings.
    let bytes = report.throughput_bps / 8.0 * elapsed_s;
    Sample {
        seconds: elapsed_s,
        throughput_bps: Some(report.throughput_bps),
        transactions_per_s: report.transactions_per_second(),
        host_cpu_s,
        adapter_cpu_s,
        machine_cpu_s: Some(machine_cpu_s),
        bytes: bytes as u64,
        retransmits: (report.segments > 0).then_some(report.retransmits),
        wire_frames: has_adapters.then_some(counts.transmit.frames_out),
        host_frames: has_adapters.then_some(counts.receive.host_frames),
        lost_frames: has_adapters.then(|| counts.lost()),
        ..Sample::default()
    }
}

/// Time that processors were not idle. Idle time is exact to a tick (the kernel adds it up, it does
/// not sample it), which shares of user and system time are not.
fn busy_seconds(processors: &CpuTimes, cpus: &[usize], elapsed_s: f64) -> f64 {
    let busy = |cpu: &usize| {
        let time = processors.of(*cpu)?;
        let away_s = (time.idle_us + time.steal_us) as f64 / MICROSECONDS;
        Some((elapsed_s - away_s).clamp(0.0, elapsed_s))
    };
    cpus.iter().filter_map(busy).sum()
}

fn distance_ns(config: &RigConfig) -> Option<f64> {
    let (host, adapter) = (*config.placement.host_cpus.first()?, *config.placement.adapter_cpus.last()?);
    if host == adapter {
        return None;
    }
    cpu::line_distance_ns(host, adapter, DISTANCE_SAMPLE).ok()
}

fn spawn(mut command: Command, rig: &Rig, side: usize) -> Result<Killed, LabError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    confine(&mut command, Some(rig.host(side)), Some(&rig.config().placement.host_cpus))?;
    let child = command.spawn().map_err(|e| LabError::Traffic(format!("cannot start {command:?}: {e}")))?;
    Ok(Killed(child))
}

fn output(child: &mut Killed) -> ChildStdout {
    child.0.stdout.take().expect("the output was piped and is taken once")
}

fn incomplete(report: &Report) -> LabError {
    let errors: Vec<&str> = report.ends().flat_map(|end| end.errors.iter().map(String::as_str)).collect();
    LabError::Traffic(format!("not every stream came to its end: {}", errors.join("; ")))
}

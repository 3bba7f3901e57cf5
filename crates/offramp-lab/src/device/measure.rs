//! Takes one sample on the interface. Threads of this process exchange traffic with the peer. The processor times are
//! read at the start and at the end of the measured window.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use offramp_ports::sys::link;
use offramp_testbed::cpu::{CpuTimes, Worked};

use super::matrix::Traffic;
use crate::model::Sample;
use crate::sample::{complete, latency_us};
use offramp_testbed::device::{DeviceError, explained};
use offramp_testbed::error::TestbedError;
use offramp_testbed::traffic::{
    Amount, BulkParams, Direction, Event, Flow, PORT_DEFAULT, Params, Report, TrafficError, TransactionParams,
    UdpParams, WARMUP_DEFAULT_USECS, Workload, run_client,
};

/// Payload of a datagram, in bytes. The datagram fits an Ethernet frame over IPv6, even in a tunnel.
const DATAGRAM_BYTES: u32 = 1400;
/// Number of datagrams per UDP super-frame. The payload of 61,600 bytes is below the limit of 64 KiB.
const DATAGRAMS: u32 = 44;
/// Maximum duration of a round-trip test, in seconds. The test is never longer than a sample.
const RTT_SECONDS_MAX: f64 = 0.5;
/// Warm-up of a round-trip test, in microseconds.
const RTT_WARMUP_USECS: u64 = 50_000;
/// Maximum duration of the test of the route to the peer, in seconds.
const PROBE_SECONDS_MAX: f64 = 0.2;
/// Warm-up of the test of the route, in microseconds.
const PROBE_WARMUP_USECS: u64 = 20_000;
/// Maximum time until a link is up again after a change. The link can go down, because some drivers reset the adapter.
const SETTLE_MAX: Duration = Duration::from_secs(15);
/// Pause between two attempts to reach the peer, and between two reads of counters that the driver updates late.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Maximum lag of an interface's counters. Some drivers read the adapter's counters once per second.
const COUNTER_LAG_MAX: Duration = Duration::from_secs(3);
const MICROSECONDS: f64 = 1e6;

/// Settings of the measurements.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Name of the interface, in the calling thread's network namespace.
    pub interface: String,
    /// The peer, which runs `offramp ttcp --serve`: `host`, `host:port`, or `[IPv6 address]:port`.
    pub peer: String,
    /// Number of samples per variant, at least 1. A verdict needs two samples, and a useful verdict needs five.
    pub repeats: usize,
    /// Measured time per sample, in seconds.
    pub seconds: f64,
    /// Number of streams in the measured direction.
    pub streams: usize,
    /// TCP congestion control, set on each socket.
    pub congestion: String,
    /// Directory of the state file; see [`default_state_dir`](offramp_testbed::device::default_state_dir).
    pub state_dir: PathBuf,
    /// Experiments to run, by name ([`experiments`](super::experiments)) or by ethtool's name of a feature. Empty for
    /// all experiments possible on the interface.
    pub only: Vec<String>,
}

/// Takes samples, with the peer's address and the settings of the measurements.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    config: &'a DeviceConfig,
    host: String,
    port: u16,
    stop: &'a AtomicBool,
}

/// The time, and the times of all processors, at the start or the end of the measured window.
struct Reading {
    at: Instant,
    processors: CpuTimes,
}

impl Reading {
    fn take() -> Result<Self, TestbedError> {
        Ok(Self { at: Instant::now(), processors: CpuTimes::read()? })
    }
}

/// Callback for an event of a test.
type OnEvent<'a> = dyn FnMut(&Event) -> Result<(), TestbedError> + 'a;

impl<'a> Bench<'a> {
    /// Parses the peer's address, and checks every parameter of the traffic.
    ///
    /// # Errors
    /// Returns an error if the peer's port is not a number, or if a parameter is out of range.
    pub(super) fn new(config: &'a DeviceConfig, stop: &'a AtomicBool) -> Result<Self, TestbedError> {
        if config.repeats == 0 {
            return Err(DeviceError::Setting("repeats: 0; use 1 or more".to_owned()).into());
        }
        let (host, port) = split_peer(&config.peer)?;
        let bench = Self { config, host, port, stop };
        bench.params(Traffic::TcpSend).check().map_err(DeviceError::Setting)?;
        Ok(bench)
    }

    /// Converts a traffic error of the probe to the error [`DeviceError::Peer`].
    fn unreachable(&self, error: TestbedError) -> TestbedError {
        match error {
            TestbedError::Traffic(reason) => DeviceError::Peer { peer: self.host.clone(), reason }.into(),
            other => other,
        }
    }

    /// Tests that the peer answers, and that the route to the peer uses the interface.
    ///
    /// # Errors
    /// Returns an error if the peer does not answer, or if the route to the peer does not use the interface.
    pub(super) fn probe(&self) -> Result<(), TestbedError> {
        let interface = &self.config.interface;
        let counted = || {
            let counted = link::statistics(interface).map_err(|e| explained(interface, e))?;
            Ok::<_, TestbedError>(counted.tx_bytes + counted.rx_bytes)
        };
        let before = counted()?;
        let mut params = self.params(Traffic::TcpSend);
        params.amount = usecs(self.config.seconds.min(PROBE_SECONDS_MAX));
        params.warmup_usecs = PROBE_WARMUP_USECS;
        let report = self.run(&params, &mut |_| Ok(())).map_err(|error| self.unreachable(error))?;
        let sent = report.send.map_or(0, |flow| flow.sender.bytes);
        let deadline = Instant::now() + COUNTER_LAG_MAX;
        loop {
            let counted = counted()?.saturating_sub(before);
            if counted >= sent / 2 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let (interface, peer) = (interface.clone(), self.host.clone());
                return Err(DeviceError::OtherRoute { interface, peer, counted, sent }.into());
            }
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// Takes one sample: measures the traffic, and then round trips. After a change, the traffic starts once the link
    /// is up.
    ///
    /// # Errors
    /// Returns an error if the traffic fails, or if the run is stopped.
    pub(super) fn sample(&self, round: usize, traffic: Traffic) -> Result<Sample, TestbedError> {
        let (mut start, mut end) = (None, None);
        let report = self.settled(&self.params(traffic), &mut |event| {
            match event {
                Event::Start => start = Some(Reading::take()?),
                Event::End => end = Some(Reading::take()?),
                _ => {}
            }
            Ok(())
        })?;
        let (Some(start), Some(end)) = (start, end) else {
            return Err(TestbedError::Traffic("the measured window has no start or no end".to_owned()));
        };
        let mut sample = sample_of(traffic, &report, &start, &end)?;
        sample.round = round;
        (sample.rtt_p50_us, sample.rtt_p99_us) = self.round_trip()?;
        Ok(sample)
    }

    fn round_trip(&self) -> Result<(Option<f64>, Option<f64>), TestbedError> {
        let params = Params {
            workload: Workload::Transaction(TransactionParams::default()),
            direction: Direction::Send,
            streams: 1,
            amount: usecs(self.config.seconds.min(RTT_SECONDS_MAX)),
            warmup_usecs: RTT_WARMUP_USECS,
            ..self.params(Traffic::TcpSend)
        };
        self.run(&params, &mut |_| Ok(())).map(|report| latency_us(&report))
    }

    fn params(&self, traffic: Traffic) -> Params {
        let udp = |gso_segments| UdpParams { datagram_bytes: DATAGRAM_BYTES, gso_segments, gro: false, rate_bps: 0 };
        Params {
            workload: match traffic {
                Traffic::TcpSend | Traffic::TcpReceive => Workload::Bulk(BulkParams::default()),
                Traffic::UdpSend | Traffic::UdpReceive => Workload::Udp(udp(DATAGRAMS)),
            },
            direction: if traffic.sends() { Direction::Send } else { Direction::Receive },
            streams: u32::try_from(self.config.streams).unwrap_or(u32::MAX),
            amount: usecs(self.config.seconds),
            warmup_usecs: WARMUP_DEFAULT_USECS,
            congestion: self.config.congestion.clone(),
            ..Params::default()
        }
    }

    /// Runs the traffic. While no connection to the peer succeeds, retries for up to [`SETTLE_MAX`].
    fn settled(&self, params: &Params, on_event: &mut OnEvent) -> Result<Report, TestbedError> {
        let deadline = Instant::now() + SETTLE_MAX;
        loop {
            match self.attempt(params, on_event)? {
                Err(TrafficError::Connect { .. }) if Instant::now() < deadline => thread::sleep(RETRY_PAUSE),
                attempt => return finished(attempt),
            }
        }
    }

    fn run(&self, params: &Params, on_event: &mut OnEvent) -> Result<Report, TestbedError> {
        finished(self.attempt(params, on_event)?)
    }

    fn attempt(&self, params: &Params, on_event: &mut OnEvent) -> Result<Result<Report, TrafficError>, TestbedError> {
        self.check_stop()?;
        let mut trouble = Ok(());
        let report = run_client(&self.host, self.port, params, &mut |event| {
            if trouble.is_ok() {
                trouble = on_event(event);
            }
        });
        if report.is_ok() {
            trouble?;
            self.check_stop()?;
        }
        Ok(report)
    }

    /// Checks if the user has stopped the run.
    ///
    /// # Errors
    /// Returns [`TestbedError::Stopped`] if the run is to be stopped.
    pub(super) fn check_stop(&self) -> Result<(), TestbedError> {
        if self.stop.load(Ordering::Relaxed) { Err(TestbedError::Stopped) } else { Ok(()) }
    }
}

fn finished(attempt: Result<Report, TrafficError>) -> Result<Report, TestbedError> {
    attempt.map_err(|error| TestbedError::Traffic(error.to_string())).and_then(complete)
}

fn usecs(seconds: f64) -> Amount {
    Amount::Usecs((seconds * MICROSECONDS) as u64)
}

/// Returns a sample with this machine's figures. Lost datagrams are counted in the measured direction only.
fn sample_of(traffic: Traffic, report: &Report, start: &Reading, end: &Reading) -> Result<Sample, TestbedError> {
    let flow: Option<&Flow> = if traffic.sends() { report.send.as_ref() } else { report.receive.as_ref() };
    let flow = flow.ok_or_else(|| TestbedError::Traffic("the report lacks the requested direction".to_owned()))?;
    let own = if traffic.sends() { &flow.sender } else { &flow.receiver };
    let elapsed_s = (end.at - start.at).as_secs_f64();
    let cpu_s = busy_s(&end.processors.since(&start.processors), elapsed_s);
    let is_tcp = matches!(traffic, Traffic::TcpSend | Traffic::TcpReceive);
    Ok(Sample {
        seconds: elapsed_s,
        throughput_bps: Some(flow.throughput_bps),
        // The whole machine counts as the host. The processor time of this process would omit interrupts, which are
        // most of a receiver's work.
        host_cpu_s: Some(cpu_s),
        machine_cpu_s: Some(cpu_s),
        // The measured time of the traffic report differs slightly from the time between the two readings. The bytes
        // are therefore scaled to the time between the readings.
        bytes: if own.seconds > 0.0 { (own.bytes as f64 / own.seconds * elapsed_s) as u64 } else { 0 },
        retransmits: is_tcp.then_some(flow.retransmits),
        lost_frames: (!is_tcp).then_some(flow.datagrams_lost),
        ..Sample::default()
    })
}

/// Returns the processor time that is neither idle nor stolen by the hypervisor, in seconds.
fn busy_s(processors: &CpuTimes, elapsed_s: f64) -> f64 {
    let elapsed_us = (elapsed_s * MICROSECONDS) as u64;
    let worked: Worked = processors.all().iter().map(|time| time.worked(elapsed_us, 0)).sum();
    worked.likely_us as f64 / MICROSECONDS
}

/// Parses `host`, `host:port`, an IPv6 address, or `[IPv6 address]:port`.
fn split_peer(peer: &str) -> Result<(String, u16), DeviceError> {
    let wrong = || DeviceError::Setting(format!("peer \"{peer}\" is not a host, host:port, or [IPv6 address]:port"));
    let (host, port) = if let Some(rest) = peer.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
        (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(wrong)?) })
    } else if peer.matches(':').count() == 1 {
        peer.split_once(':').map(|(host, port)| (host, Some(port))).ok_or_else(wrong)?
    } else {
        (peer, None)
    };
    let port = port.map_or(Ok(PORT_DEFAULT), |port| port.parse().map_err(|_| wrong()))?;
    if host.is_empty() || port == 0 { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_host_with_or_without_a_port() {
        let split = |peer: &str| split_peer(peer).ok();
        let is = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(split("b.example"), is("b.example", PORT_DEFAULT));
        assert_eq!(split("10.0.0.2:7"), is("10.0.0.2", 7));
        assert_eq!(split("fd00::2"), is("fd00::2", PORT_DEFAULT));
        assert_eq!(split("[fd00::2]:7"), is("fd00::2", 7));
        assert_eq!(split("[fd00::2]"), is("fd00::2", PORT_DEFAULT));
        for wrong in ["", ":7", "b:", "b:0", "b:65536", "[fd00::2", "[fd00::2]7", "[]:7"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}

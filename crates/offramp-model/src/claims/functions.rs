//! Functions for the expressions of a case. Some functions compare runs. Other functions return results of offramp's
//! own code or of the bus models, without a run.

use super::case::Settings;
use crate::bus::Transfers;
use crate::bus::pci::shared::{Master, PACKET_LEN, SHARED_33_32, SharedBus, WRITER};
use crate::bus::pci::{Command, PCI_33_32};
use crate::bus::pcie::measured::{E5, TABLE};
use crate::bus::pcie::payload_bps;
use crate::config::{self, Config, Workload};
use crate::profile::{Profile, schema};
use crate::rpc::{reply_frames, tcp_payloads};
use crate::simulation::FULL_FRAME_LEN;
use crate::tcp::{Sender, SenderConfig, Variant};
use crate::time::{Span, Time};
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use offramp_adapter::port::Arrival;
use offramp_impair::memory::{Fate, Memory, MemoryConfig};
use serde::Deserialize;

/// Duration of a simulation of several PCI masters, in clocks.
const CYCLES: u64 = 1_000_000;

/// Returns the environment for expressions and texts of cases.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("fixed", |value: f64, digits: usize| format!("{value:.digits$}"));
    environment.add_filter("signed", |value: f64, digits: usize| format!("{value:+.digits$}"));
    environment.add_filter("at", |points: Points, x: f64| at(&points, x));
    environment.add_filter("steps", |points: Points| -> Vec<f64> {
        points.windows(2).map(|pair| pair[1][1] / pair[0][1]).collect()
    });
    environment.add_filter("over", |of: Points, to: Points| -> Result<Vec<f64>, Error> {
        to.iter().map(|[x, y]| Ok(at(&of, *x)? / y)).collect()
    });
    environment.add_function("ratio", |of: Value, to: Value| compare(&of, &to, &|ratio| ratio));
    environment
        .add_function("gain", |before: Value, after: Value| compare(&after, &before, &|ratio| 100.0 * (ratio - 1.0)));
    environment.add_function("parameter", |system: &str, name: &str| {
        let key = schema::known(name).map_err(wrong)?;
        Profile::load(system).map(|profile| profile.value(key.name)).map_err(wrong)
    });
    environment.add_function("frames_held", frames_held);
    environment.add_function("reply_frames", |bytes: u32| reply_frames(bytes as usize).map_err(wrong));
    environment.add_function("tcp_payloads", |len: u16, mss: u16| tcp_payloads(len.into(), mss.max(1).into()));
    environment.add_function("first_flight", first_flight);
    environment.add_function("copy_us", |system: &str| {
        let profile = Profile::load(system).map_err(wrong)?;
        let config = Config::new(&profile, Workload::TtcpReceive).map_err(wrong)?;
        Ok::<_, Error>(config.adapter.bus.processor_time(FULL_FRAME_LEN).as_us())
    });
    environment.add_function("pci_share", |burst: u16| {
        100.0 * PCI_33_32.bytes_per_second(burst.max(1).into()) as f64 / PCI_33_32.bytes_per_second_max() as f64
    });
    environment.add_function("pci_tail_clocks", |is_padded: bool| PCI_33_32.clocks_of_tail(PACKET_LEN, 32, is_padded));
    environment.add_function("shared_pci", shared_pci);
    environment.add_function("dma_gbps", dma_gbps);
    environment.add_function("pcie_bench", |transfers: &str| {
        let transfers: Transfers = transfers.parse().map_err(wrong)?;
        let of = TABLE.curves.iter().find(|of| of.host == E5 && of.transfers == transfers);
        Ok::<_, Error>(Value::from(Serde(of.map(|of| &of.rates))))
    });
    environment.add_function("pcie_bench_iommu", || Value::from(Serde(&TABLE.iommu_reads)));
    environment
}

/// The points of a curve, x and y.
type Points = Serde<Vec<[f64; 2]>>;

/// Returns the y value of a curve at the point with this x.
fn at(points: &Points, x: f64) -> Result<f64, Error> {
    let found = points.iter().find(|point| (point[0] - x).abs() < 1e-9);
    found.map(|point| point[1]).ok_or_else(|| wrong(format!("no point at {x}")))
}

// Converts any error for `map_err`.
#[expect(clippy::needless_pass_by_value)]
fn wrong<E: ToString>(why: E) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.to_string())
}

/// Applies `figure` to the ratio of the throughputs of two runs. For two lists of runs, returns the list of results,
/// pair by pair.
fn compare(of: &Value, to: &Value, figure: &dyn Fn(f64) -> f64) -> Result<Value, Error> {
    if of.kind() == ValueKind::Seq && of.len() == to.len() {
        let pairs = of.try_iter()?.zip(to.try_iter()?);
        return pairs.map(|(of, to)| compare(&of, &to, figure)).collect::<Result<Vec<_>, _>>().map(Value::from);
    }
    let speed = |run: &Value| f64::try_from(run.get_attr("throughput_bytes_per_s")?);
    Ok(Value::from(figure(speed(of)? / speed(to)?)))
}

/// Returns the number of full frames that fit into the memory of a card with a DP8390.
fn frames_held(card_bytes: u32) -> Result<u64, Error> {
    let mut memory = Memory::new(&MemoryConfig::dp8390(card_bytes as usize).map_err(wrong)?);
    let mut held = 0;
    while memory.arrive(Arrival { at_ns: held, len: FULL_FRAME_LEN as usize }) != Fate::Dropped {
        held += 1;
    }
    Ok(held)
}

/// Returns the lengths of the segments that a sender without congestion control sends before the first acknowledgement.
fn first_flight(window: u16, mss: u16) -> Vec<u64> {
    let (window, mss, rto_min) = (window.into(), mss.max(1).into(), Span::us(1_000_000));
    let config = SenderConfig { mss, variant: Variant::GoBackN, rto_min, initial_window_segments: 1, window };
    let mut sender = Sender::new(config);
    std::iter::from_fn(|| sender.next(Time::START, mss)).map(|segment| segment.len).collect()
}

/// A PCI master, as given in an expression. The defaults describe a writer of full frames.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MasterSpec {
    command: Command,
    burst_len: u16,
    wait_states: u16,
    disconnect_len: Option<u16>,
    retry_cycles: u16,
}

impl Default for MasterSpec {
    fn default() -> Self {
        let (burst_len, retry_cycles) = (WRITER.burst_len as u16, WRITER.retry_cycles as u16);
        Self { command: WRITER.command, burst_len, wait_states: 0, disconnect_len: None, retry_cycles }
    }
}

/// Returns the payload rate of a bus master with back-to-back transfers of `bytes`, Gbit/s. `transfers` selects reads,
/// writes or both.
fn dma_gbps(bus: &str, transfers: &str, bytes: u32, set: Option<Serde<Settings>>) -> Result<f64, Error> {
    let mut profile = Profile::load_bus(bus).map_err(wrong)?;
    profile.set_all(set.map(|of| of.0).unwrap_or_default()).map_err(wrong)?;
    let (bus, command) = config::bus(&profile);
    let (interval, _) = bus
        .transfer(transfers.parse().map_err(wrong)?, command, bytes.into())
        .ok_or_else(|| wrong("the bus has no limit"))?;
    Ok(payload_bps(bytes.into(), interval) / 1e9)
}

/// Returns the counters of each master after a simulation on one PCI bus with 33 MHz and 32 bits.
fn shared_pci(masters: Serde<Vec<MasterSpec>>, fetch_cycles: Option<u16>, is_split: Option<bool>) -> Value {
    let master = |spec: MasterSpec| Master {
        command: spec.command,
        burst_len: spec.burst_len.max(4).into(),
        wait_states: spec.wait_states.into(),
        disconnect_len: spec.disconnect_len.map(|len| len.max(4).into()),
        retry_cycles: spec.retry_cycles.into(),
        ..WRITER
    };
    let masters: Vec<_> = masters.0.into_iter().map(master).collect();
    let fetch_cycles = fetch_cycles.map_or(SHARED_33_32.fetch_cycles, u64::from);
    let bus = SharedBus { fetch_cycles, is_split: is_split.unwrap_or_default(), ..SHARED_33_32 };
    Value::from(Serde(bus.run(&masters, CYCLES)))
}

//! The experiments: the question, the fixed settings, and the variants.

mod bound;
pub(crate) mod impairments;
pub(crate) mod ipsec;
mod moderation;

pub use bound::{Against, Bound, Limit};

use offramp_adapter::config::MTU_DEFAULT;
use offramp_adapter::moderation::{ModerationConfig, Policy};
use offramp_model::claims::{self, Comparison};
use offramp_offload::caps::Offloads;
use offramp_ports::worker::Polling;
use offramp_testbed::guest::{Accelerator, DriverCoalescing};
use offramp_testbed::host::HostSettings;
use offramp_testbed::rig::{Between, Card, Placement, RigConfig, Threads};
use offramp_testbed::traffic::{
    Amount, BulkParams, CONGESTION_DEFAULT, Direction, Params, TransactionParams, UdpParams, Workload,
    iterations_for_usecs,
};

/// MTU of jumbo frames (claim M20 counts the 14-byte header: 9014).
const MTU_JUMBO: usize = 9000;
/// An MTU between the common one and the jumbo MTU.
const MTU_MIDDLE: usize = 3000;
pub(crate) const GIGABIT_BPS: u64 = 1_000_000_000;
/// Interrupt rate of the e1000 of claims H1 and H2: 8000 per second, its driver's static default. Without it, a gigabit
/// link wakes the host for every frame.
pub(crate) const GIGABIT_INTERRUPTS_PER_SECOND: u32 = 8000;
/// Rates of the UDP experiments. UDP has no congestion control: an unlimited flood would only show the receiver's
/// losses.
const DATAGRAMS_BPS: u64 = 1_000_000_000;
const LARGE_DATAGRAMS_BPS: u64 = 300_000_000;
/// Warm-up before each measured window.
const WARMUP_USECS: u64 = 120_000;
/// Warm-up with a guest.
const GUEST_WARMUP_USECS: u64 = 300_000;
/// Payload of a full frame's datagram: 1500 less the IPv4 and UDP headers.
const DATAGRAM_BYTES: u32 = 1472;
/// Datagrams of one UDP super-frame: just below 64 KiB.
const DATAGRAMS: u32 = 44;
/// A fragmented datagram: NFS' 8 KiB (claim I15).
const LARGE_DATAGRAM_BYTES: u32 = 8192;
/// A business transaction (claim M7): a short request, a page of an answer, and work that leaves the network about a
/// third of the processor.
const TRANSACTION_REQUEST_BYTES: u32 = 512;
const TRANSACTION_RESPONSE_BYTES: u32 = 32 * 1024;
const TRANSACTION_WORK_USECS: u64 = 100;

/// The user's settings for all experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Measured time of each sample.
    pub seconds: f64,
    /// TCP streams in each direction.
    pub streams: u32,
    /// TCP congestion control.
    pub congestion: String,
    /// Link rate where an experiment does not fix it; `None`: never the limit.
    pub rate_bps: Option<u64>,
    /// MTU where an experiment does not fix it.
    pub mtu: usize,
    /// Queue pairs of each adapter.
    pub queues: u16,
    /// The threads of the adapters.
    pub threads: Threads,
    /// Settings of the hosts; an experiment may add to them.
    pub host: HostSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seconds: 0.5,
            streams: 1,
            congestion: CONGESTION_DEFAULT.to_owned(),
            rate_bps: None,
            mtu: MTU_DEFAULT,
            queues: 1,
            threads: Threads::Shared,
            host: HostSettings::default(),
        }
    }
}

/// One setting of an experiment.
#[derive(Clone, Debug)]
pub struct VariantPlan {
    /// The difference, in a word or two.
    pub name: &'static str,
    /// The rig.
    pub rig: RigConfig,
    /// The traffic.
    pub traffic: Params,
}

/// One question.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Short name.
    pub name: &'static str,
    /// The question.
    pub question: &'static str,
    /// Settings common to all variants.
    pub fixed: String,
    /// The metric of the main verdict: the second variant against the first.
    pub metric: &'static str,
    /// Variants; the first is the base.
    pub variants: Vec<VariantPlan>,
}

/// The experiment with a receive-only host.
pub const RECEIVER: &str = "receiver";

/// Experiments run only by name: without them, a default run ends within 90 s.
pub const ON_REQUEST: [&str; 15] = [
    "moderation-rpc",
    "moderation-bulk",
    "moderation-mixed",
    "moderation-bursts",
    "interrupt-cap",
    RECEIVER,
    impairments::ORDER,
    impairments::MEMORY_TCP,
    impairments::MEMORY_UDP,
    impairments::WINDOW,
    impairments::RPC,
    impairments::VERDICT,
    ipsec::ALL[0],
    ipsec::ALL[1],
    ipsec::ALL[2],
];

/// Names of groups of experiments.
pub const GROUPS: [(&str, &[&str]); 3] = [
    ("moderation", &moderation::LOADS),
    ("packet-memory", &[impairments::MEMORY_TCP, impairments::MEMORY_UDP]),
    ("ipsec", &ipsec::ALL),
];

/// Metrics compared in every experiment besides the main one.
const COMPARED: [&str; 5] = [THROUGHPUT, TRANSACTIONS, HOST_CPU, "adapter_cpu_s_per_gb", "machine_cpu_s_per_gb"];
/// Metrics compared in experiments on request too: their question is the timing of interrupts.
const COMPARED_ON_REQUEST: [&str; 4] = [LATENCY_P50, LATENCY_P99, "interrupts_per_frame", "interrupts_per_s"];

impl Plan {
    /// Returns the numbers of the published claims with both variants in this experiment.
    pub fn claims(&self) -> Vec<&'static str> {
        let has = |name: &str| self.variants.iter().any(|variant| variant.name == name);
        let bears_on = |of: &Comparison| of.experiment == self.name && has(&of.base) && has(&of.variant);
        claims::all().iter().filter(|claim| claim.lab.iter().any(bears_on)).map(|claim| claim.id.as_str()).collect()
    }

    /// Returns true if round trips are measured after each sample. An experiment on request measures its own latencies
    /// where they matter, and must end soon.
    pub fn has_round_trips(&self) -> bool {
        !self.is_on_request()
    }

    /// Returns the metrics compared besides the main one.
    pub fn compared(&self) -> Vec<&'static str> {
        if impairments::ALL.contains(&self.name) {
            return impairments::COMPARED.to_vec();
        }
        if ipsec::ALL.contains(&self.name) {
            return ipsec::COMPARED.to_vec();
        }
        let further: &[&str] = if self.is_on_request() { &COMPARED_ON_REQUEST } else { &[] };
        COMPARED.iter().chain(further).copied().collect()
    }

    /// Returns the bounds of every variant but the base.
    pub fn bounds(&self) -> &'static [Bound] {
        moderation::bounds(self.name)
    }

    fn is_on_request(&self) -> bool {
        ON_REQUEST.contains(&self.name)
    }
}

/// Returns every experiment, in the order of the run.
pub fn plans(settings: &Settings) -> Vec<Plan> {
    let mut plans = vec![
        lso(settings),
        tx_checksum(settings),
        rx_checksum(settings),
        rsc(settings),
        jumbo(settings),
        lso_at_a_gigabit(settings),
        lso_both_ways(settings),
        lso_transactions(settings),
        uso(settings),
        tso_and_udp(settings),
        all(settings),
        relay(settings),
        moderation::rpc(settings),
        moderation::bulk(settings),
        moderation::mixed(settings),
        moderation::bursts(settings),
        moderation::interrupt_cap(settings),
        receiver(settings),
        impairments::order(settings),
        impairments::memory_under_tcp(settings),
        impairments::memory_under_bursts(settings),
        impairments::receive_window(settings),
        impairments::rpc_size(settings),
        impairments::checksum_verdict(settings),
    ];
    plans.extend(ipsec::plans(settings));
    plans.into_iter().map(|plan| with_host_settings(plan, settings)).collect()
}

/// Adds the user's settings of the hosts to the fixed settings.
fn with_host_settings(mut plan: Plan, settings: &Settings) -> Plan {
    let said = settings.host.said();
    if !said.is_empty() {
        plan.fixed.push_str("; the hosts: ");
        plan.fixed.push_str(&said);
    }
    plan
}

/// Returns the experiments possible with one guest as host A, for its accelerator and driver, in the order of a default
/// run. The guest sends. In questions about receiving it receives; in questions about a server it serves.
pub fn guest_plans(settings: &Settings, accelerator: Accelerator, driver: DriverCoalescing) -> Vec<Plan> {
    let in_a_guest = |plan| moderation::in_a_guest(plan, accelerator, driver);
    let plans = vec![
        lso(settings),
        tx_checksum(settings),
        to_the_guest(rx_checksum(settings)),
        to_the_guest(with_guest_gro(rsc(settings))),
        jumbo(settings),
        from_the_guests_server(lso_transactions(settings)),
        all(settings),
        in_a_guest(moderation::rpc(settings)),
        to_the_guest(in_a_guest(moderation::bulk(settings))),
        to_the_guest(in_a_guest(moderation::mixed(settings))),
    ];
    plans.into_iter().map(|plan| with_host_settings(warmed_up_longer(plan), settings)).collect()
}

fn to_the_guest(mut plan: Plan) -> Plan {
    for variant in &mut plan.variants {
        variant.traffic.direction = Direction::Receive;
    }
    plan.fixed.push_str("; the guest receives, and joins nothing of its own unless named");
    plan
}

fn with_guest_gro(mut plan: Plan) -> Plan {
    let off = plan.variants[0].clone();
    let rig = RigConfig { host_gro: true, ..off.rig };
    plan.variants.push(VariantPlan { name: "off, guest GRO", rig, traffic: off.traffic });
    plan
}

fn from_the_guests_server(mut plan: Plan) -> Plan {
    for variant in &mut plan.variants {
        variant.rig.client = 1;
    }
    plan.fixed.push_str("; the guest is the server, and takes longer for the same work where it is emulated");
    plan
}

/// An emulated guest's code is translated while it first runs, and its congestion window opens slowly.
fn warmed_up_longer(mut plan: Plan) -> Plan {
    for variant in &mut plan.variants {
        variant.traffic.warmup_usecs = GUEST_WARMUP_USECS;
    }
    plan
}

const THROUGHPUT: &str = "throughput_bps";
const HOST_CPU: &str = "host_cpu_s_per_gb";
const TRANSACTIONS: &str = "transactions_per_s";
const LATENCY_P50: &str = "latency_p50_us";
const LATENCY_P99: &str = "latency_p99_us";

/// Offloads of a host sending one frame at a time. The receiver does not coalesce: coalescing would hide it.
const BARE: Offloads = Offloads::TX_CHECKSUM.union(Offloads::RX_CHECKSUM);

fn gigabit_moderation() -> ModerationConfig {
    at_most(GIGABIT_INTERRUPTS_PER_SECOND)
}

fn at_most(max_interrupts_per_second: u32) -> ModerationConfig {
    by(Policy::FixedGap { max_interrupts_per_second })
}

fn by(policy: Policy) -> ModerationConfig {
    ModerationConfig { policy, ..ModerationConfig::default() }
}

fn rig(settings: &Settings, offloads: Offloads) -> RigConfig {
    RigConfig {
        mtu: settings.mtu,
        rate_bps: settings.rate_bps,
        offloads: offloads.with_prerequisites(),
        moderation: if settings.rate_bps == Some(GIGABIT_BPS) {
            gigabit_moderation()
        } else {
            ModerationConfig::default()
        },
        host_gso: false,
        host_gro: false,
        host: settings.host,
        card: Card::default(),
        esp: None,
        client: 0,
        queues: settings.queues,
        between: Between::Adapters(settings.threads),
        placement: Placement::apart(),
        polling: Polling::Off,
    }
}

fn traffic(settings: &Settings, workload: Workload) -> Params {
    Params {
        workload,
        direction: Direction::Send,
        streams: settings.streams,
        amount: Amount::Usecs((settings.seconds * 1e6) as u64),
        warmup_usecs: WARMUP_USECS,
        congestion: settings.congestion.clone(),
        ..Params::default()
    }
}

fn bulk(settings: &Settings) -> Params {
    traffic(settings, Workload::Bulk(BulkParams::default()))
}

/// The link and its traffic, for an experiment with a moderation of its own.
fn link_text(settings: &Settings) -> String {
    let rate =
        settings.rate_bps.map_or("a link without a limit".to_owned(), |rate| format!("a link of {}", text_of(rate)));
    format!("{rate}, {} TCP stream(s), {}", settings.streams, settings.congestion)
}

/// The link, its traffic, and the moderation set by [`rig`].
fn moderated_link(settings: &Settings) -> String {
    let moderation = if settings.rate_bps == Some(GIGABIT_BPS) {
        format!(", at most {GIGABIT_INTERRUPTS_PER_SECOND} hand-overs a second")
    } else {
        String::new()
    };
    format!("{}{moderation}", link_text(settings))
}

/// Writes a rate in the largest unit with a whole number.
fn text_of(rate_bps: u64) -> String {
    let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")];
    let unit = units.into_iter().find(|(unit, _)| rate_bps.is_multiple_of(*unit));
    unit.map_or(format!("{rate_bps} bit/s"), |(unit, name)| format!("{} {name}", rate_bps / unit))
}

fn lso(settings: &Settings) -> Plan {
    let with = |offloads| rig(settings, offloads);
    let all = Offloads::all();
    Plan {
        name: "lso",
        question: "What is large send (LSO, TSO) worth to a host that is not limited by the link?",
        fixed: format!(
            "MTU {}, {}; receive coalescing on; no GSO of the host's own unless named",
            settings.mtu,
            moderated_link(settings)
        ),
        metric: THROUGHPUT,
        variants: vec![
            VariantPlan { name: "off", rig: with(all - Offloads::LSO), traffic: bulk(settings) },
            VariantPlan { name: "on", rig: with(all), traffic: bulk(settings) },
            VariantPlan {
                name: "off, host GSO",
                rig: RigConfig { host_gso: true, ..with(all - Offloads::LSO) },
                traffic: bulk(settings),
            },
        ],
    }
}

fn tx_checksum(settings: &Settings) -> Plan {
    let rsc = Offloads::RX_CHECKSUM | Offloads::RSC;
    let with = |offloads| RigConfig { host_gso: true, ..rig(settings, offloads) };
    Plan {
        name: "tx-checksum",
        question: "What is it worth that the adapter checksums what the host sends?",
        fixed: format!(
            "MTU {}, {}; no large send, the host's own GSO on; receive coalescing on",
            settings.mtu,
            moderated_link(settings)
        ),
        metric: HOST_CPU,
        variants: vec![
            VariantPlan { name: "off", rig: with(rsc), traffic: bulk(settings) },
            VariantPlan { name: "on", rig: with(rsc | Offloads::TX_CHECKSUM), traffic: bulk(settings) },
        ],
    }
}

fn rx_checksum(settings: &Settings) -> Plan {
    let lso = Offloads::TX_CHECKSUM | Offloads::LSO;
    Plan {
        name: "rx-checksum",
        question: "What is it worth that the adapter verifies what the host receives?",
        fixed: format!("MTU {}, {}; large send on; no receive coalescing", settings.mtu, moderated_link(settings)),
        metric: HOST_CPU,
        variants: vec![
            VariantPlan { name: "off", rig: rig(settings, lso), traffic: bulk(settings) },
            VariantPlan { name: "on", rig: rig(settings, lso | Offloads::RX_CHECKSUM), traffic: bulk(settings) },
        ],
    }
}

fn rsc(settings: &Settings) -> Plan {
    let off = Offloads::all() - Offloads::RSC;
    Plan {
        name: "rsc",
        question: "What is receive coalescing (RSC, LRO) worth?",
        fixed: format!("MTU {}, {}; large send and checksums on", settings.mtu, moderated_link(settings)),
        metric: THROUGHPUT,
        variants: vec![
            VariantPlan { name: "off", rig: rig(settings, off), traffic: bulk(settings) },
            VariantPlan { name: "on", rig: rig(settings, Offloads::all()), traffic: bulk(settings) },
        ],
    }
}

/// The serving host has a processor to itself, so all its work there is the cost of receiving.
fn receiver(settings: &Settings) -> Plan {
    let variant = |name, mtu, offloads| {
        let rig = RigConfig { mtu, placement: Placement::server_alone(), ..rig(settings, offloads) };
        VariantPlan { name, rig, traffic: bulk(settings) }
    };
    let (mtu, all) = (settings.mtu, Offloads::all());
    Plan {
        name: RECEIVER,
        question: "What does a host pay that only receives, on a processor of its own?",
        fixed: format!(
            "MTU {mtu} unless named, {}; large send on; the sending host and the adapters on one processor, the receiving host alone on another, and \
             time and frames of hosts are its own",
            moderated_link(settings)
        ),
        metric: HOST_CPU,
        variants: vec![
            variant("off", mtu, all - Offloads::RSC),
            variant("on", mtu, all),
            variant("no checksums", mtu, all - Offloads::RSC - Offloads::RX_CHECKSUM),
            variant("MTU 3000", MTU_MIDDLE, all - Offloads::RSC),
            variant("MTU 9000", MTU_JUMBO, all - Offloads::RSC),
        ],
    }
}

fn jumbo(settings: &Settings) -> Plan {
    let at = |mtu| RigConfig { mtu, ..rig(settings, BARE) };
    Plan {
        name: "jumbo",
        question: "What are jumbo frames worth to a host without segmentation and coalescing?",
        fixed: format!(
            "{}; checksums on, no large send, no GSO of the host's own, no receive coalescing",
            moderated_link(settings)
        ),
        metric: THROUGHPUT,
        variants: vec![
            VariantPlan { name: "MTU 1500", rig: at(MTU_DEFAULT), traffic: bulk(settings) },
            VariantPlan { name: "MTU 9000", rig: at(MTU_JUMBO), traffic: bulk(settings) },
        ],
    }
}

fn at_a_gigabit(settings: &Settings) -> Settings {
    Settings { rate_bps: Some(GIGABIT_BPS), mtu: MTU_DEFAULT, ..settings.clone() }
}

/// Returns a link without a rate limit and with the common MTU, for datagrams of a fixed size and rate.
fn without_a_limit(settings: &Settings) -> Settings {
    Settings { rate_bps: None, mtu: MTU_DEFAULT, ..settings.clone() }
}

fn lso_at_a_gigabit(settings: &Settings) -> Plan {
    let settings = &at_a_gigabit(settings);
    let all = Offloads::all();
    Plan {
        name: "lso-1g",
        question: "At 1 Gbit/s, transmit only: what does large send save the host?",
        fixed: format!("MTU 1500, {}; receive coalescing on; no GSO of the host's own", moderated_link(settings)),
        metric: HOST_CPU,
        variants: vec![
            VariantPlan { name: "off", rig: rig(settings, all - Offloads::LSO), traffic: bulk(settings) },
            VariantPlan { name: "on", rig: rig(settings, all), traffic: bulk(settings) },
        ],
    }
}

fn lso_both_ways(settings: &Settings) -> Plan {
    let settings = &at_a_gigabit(settings);
    let all = Offloads::all();
    let traffic = Params { direction: Direction::Both, ..bulk(settings) };
    Plan {
        name: "lso-1g-duplex",
        question: "At 1 Gbit/s in both directions at once: what does large send save the hosts?",
        fixed: format!(
            "MTU 1500, {}, each way; receive coalescing on; no GSO of the host's own",
            moderated_link(settings)
        ),
        metric: HOST_CPU,
        variants: vec![
            VariantPlan { name: "off", rig: rig(settings, all - Offloads::LSO), traffic: traffic.clone() },
            VariantPlan { name: "on", rig: rig(settings, all), traffic },
        ],
    }
}

fn lso_transactions(settings: &Settings) -> Plan {
    let transaction = TransactionParams {
        request_bytes: TRANSACTION_REQUEST_BYTES,
        response_bytes: TRANSACTION_RESPONSE_BYTES,
        server_work_iterations: iterations_for_usecs(TRANSACTION_WORK_USECS),
        ..TransactionParams::default()
    };
    let traffic = traffic(settings, Workload::Transaction(transaction));
    let all = Offloads::all();
    Plan {
        name: "lso-transactions",
        question: "What is large send worth to a server that also has other work?",
        fixed: format!(
            "MTU {}, {}; requests of {TRANSACTION_REQUEST_BYTES} B, answers of {TRANSACTION_RESPONSE_BYTES} B, \
             {TRANSACTION_WORK_USECS} us of work for each; receive coalescing on; no GSO of the host's own",
            settings.mtu,
            moderated_link(settings)
        ),
        metric: TRANSACTIONS,
        variants: vec![
            VariantPlan { name: "off", rig: rig(settings, all - Offloads::LSO), traffic: traffic.clone() },
            VariantPlan { name: "on", rig: rig(settings, all), traffic },
        ],
    }
}

fn udp(settings: &Settings, datagram_bytes: u32, gso_segments: u32, rate_bps: u64) -> Params {
    traffic(settings, Workload::Udp(UdpParams { datagram_bytes, gso_segments, gro: gso_segments > 1, rate_bps }))
}

fn uso(settings: &Settings) -> Plan {
    let settings = &without_a_limit(settings);
    let all = Offloads::all();
    let traffic = udp(settings, DATAGRAM_BYTES, DATAGRAMS, DATAGRAMS_BPS);
    Plan {
        name: "uso",
        question: "What is UDP segmentation (USO) worth to a program that hands over many datagrams at once?",
        fixed: format!(
            "MTU 1500, a link without a limit, {} of payload; {DATAGRAMS} datagrams of {DATAGRAM_BYTES} B with each \
             call (UDP_SEGMENT), UDP_GRO at the receiver; receive coalescing on",
            text_of(DATAGRAMS_BPS)
        ),
        metric: HOST_CPU,
        variants: vec![
            VariantPlan { name: "off", rig: rig(settings, all - Offloads::USO), traffic: traffic.clone() },
            VariantPlan { name: "on", rig: rig(settings, all), traffic },
        ],
    }
}

fn tso_and_udp(settings: &Settings) -> Plan {
    let settings = &without_a_limit(settings);
    let all = Offloads::all() - Offloads::UFO - Offloads::USO;
    let traffic = udp(settings, LARGE_DATAGRAM_BYTES, 1, LARGE_DATAGRAMS_BPS);
    Plan {
        name: "tso-udp",
        question: "Does TCP's large send change anything for UDP?",
        fixed: format!(
            "MTU 1500, a link without a limit, {} of payload; datagrams of {LARGE_DATAGRAM_BYTES} B, which IP fragments",
            text_of(LARGE_DATAGRAMS_BPS)
        ),
        metric: HOST_CPU,
        variants: vec![
            VariantPlan { name: "TSO off", rig: rig(settings, all - Offloads::LSO), traffic: traffic.clone() },
            VariantPlan { name: "TSO on", rig: rig(settings, all), traffic: traffic.clone() },
            VariantPlan { name: "TSO and UFO on", rig: rig(settings, all | Offloads::UFO), traffic },
        ],
    }
}

fn all(settings: &Settings) -> Plan {
    Plan {
        name: "all",
        question: "What are all offloads together worth?",
        fixed: format!("MTU {}, {}; no GSO of the host's own", settings.mtu, moderated_link(settings)),
        metric: THROUGHPUT,
        variants: vec![
            VariantPlan { name: "none", rig: rig(settings, Offloads::empty()), traffic: bulk(settings) },
            VariantPlan { name: "all", rig: rig(settings, Offloads::all()), traffic: bulk(settings) },
            VariantPlan { name: "checksums only", rig: rig(settings, BARE), traffic: bulk(settings) },
        ],
    }
}

fn relay(settings: &Settings) -> Plan {
    let adapters = RigConfig {
        placement: Placement::free(),
        host_gso: true,
        queues: 1,
        between: Between::Adapters(Threads::PerDirection),
        ..rig(settings, Offloads::all())
    };
    Plan {
        name: "relay",
        question: "How near do two adapters with every offload come to a bare relay that passes super-frames on?",
        fixed: format!(
            "MTU {}, {}; a thread for each direction, every program on any processor",
            settings.mtu,
            moderated_link(settings)
        ),
        metric: THROUGHPUT,
        variants: vec![
            VariantPlan {
                name: "bare relay",
                rig: RigConfig { between: Between::Relay, ..adapters.clone() },
                traffic: bulk(settings),
            },
            VariantPlan { name: "two adapters", rig: adapters, traffic: bulk(settings) },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric;

    #[test]
    fn what_runs_on_request_is_an_experiment() {
        let plans = plans(&Settings::default());
        assert!(ON_REQUEST.iter().all(|name| plans.iter().any(|plan| plan.name == *name)));
    }

    #[test]
    fn a_group_is_made_of_experiments_on_request_and_is_none_itself() {
        let plans = plans(&Settings::default());
        for (group, members) in GROUPS {
            assert!(members.iter().all(|name| ON_REQUEST.contains(name)), "{group}");
            assert!(plans.iter().all(|plan| plan.name != group), "{group}");
        }
    }

    #[test]
    fn every_experiment_may_be_set_and_its_traffic_be_made() {
        for plan in plans(&Settings::default()) {
            for variant in &plan.variants {
                assert_eq!(variant.rig.moderation.check(), Ok(()), "{}: {}", plan.name, variant.name);
                assert_eq!(variant.traffic.check(), Ok(()), "{}: {}", plan.name, variant.name);
            }
            let compared = plan.compared();
            assert!(compared.iter().chain([&plan.metric]).all(|metric| metric::find(metric).is_some()));
        }
    }

    #[test]
    fn only_what_runs_by_default_measures_round_trips() {
        for plan in plans(&Settings::default()) {
            assert_eq!(plan.has_round_trips(), !ON_REQUEST.contains(&plan.name), "{}", plan.name);
        }
    }

    fn guest_plan(name: &str) -> Plan {
        guest_plans(&Settings::default(), Accelerator::Uml, DriverCoalescing::Adaptive)
            .into_iter()
            .find(|plan| plan.name == name)
            .expect("a plan of that name")
    }

    #[test]
    fn a_guest_can_make_every_one_of_its_experiments() {
        for plan in guest_plans(&Settings::default(), Accelerator::Uml, DriverCoalescing::Adaptive) {
            assert!(plan.variants.len() >= 2, "{}", plan.name);
            for variant in plan.variants {
                let is_joined_by_adapters = matches!(variant.rig.between, Between::Adapters(_));
                assert!(is_joined_by_adapters && variant.traffic.check().is_ok(), "{}: {}", plan.name, variant.name);
            }
        }
    }

    #[test]
    fn where_the_question_is_about_receiving_the_guest_receives() {
        for name in ["rx-checksum", "rsc", "moderation-bulk", "moderation-mixed"] {
            let plan = guest_plan(name);
            assert!(plan.variants.iter().all(|v| v.traffic.direction == Direction::Receive && v.rig.client == 0));
        }
        assert!(guest_plan("lso").variants.iter().all(|v| v.traffic.direction == Direction::Send));
        assert!(guest_plan("lso-transactions").variants.iter().all(|v| v.rig.client == 1));
    }

    #[test]
    fn a_guest_joins_only_where_the_variant_says_so() {
        let joining: Vec<_> = guest_plans(&Settings::default(), Accelerator::Uml, DriverCoalescing::Adaptive)
            .into_iter()
            .flat_map(|plan| plan.variants)
            .filter(|variant| variant.rig.host_gro)
            .map(|variant| variant.name)
            .collect();
        assert_eq!(joining, ["off, guest GRO"]);
    }

    /// Settings open to the user, none of them the default.
    fn chosen() -> [Settings; 3] {
        let host = HostSettings { rps: false, busy_poll_usecs: 50, gro: true, ..HostSettings::default() };
        let plain = Settings::default();
        [
            Settings { mtu: 1400, rate_bps: Some(250_000), host, ..plain.clone() },
            Settings { mtu: 9000, rate_bps: Some(GIGABIT_BPS), streams: 3, ..plain.clone() },
            Settings { mtu: 1500, rate_bps: Some(2_500_000_000), ..plain },
        ]
    }

    #[test]
    fn what_is_said_to_be_fixed_is_so_whatever_the_user_sets() {
        for plan in chosen().iter().flat_map(plans) {
            let said = |text: &str| plan.fixed.contains(text);
            for VariantPlan { name, rig, traffic } in &plan.variants {
                let mtu = format!("MTU {}", rig.mtu);
                // The cards' Ethernet has no other MTU.
                let is_mtu_said = said(&mtu) || *name == mtu || (rig.mtu == MTU_DEFAULT && said("8390"));
                let name = format!("{}: {name}: {}", plan.name, plan.fixed);
                assert!(is_mtu_said, "{name}");
                assert!(!said("a link without a limit,") || rig.rate_bps.is_none(), "{name}");
                assert!(said("Mbit/s") || said("Gbit/s") || said("kbit/s") || rig.rate_bps.is_none(), "{name}");
                assert!(!said(" 0 "), "{name}");
                let is_gap_named = name.contains("/s: ");
                let is_gapped = matches!(rig.moderation.policy, Policy::FixedGap { .. });
                assert!(!is_gapped || said("hand-overs a second") || is_gap_named, "{name}");
                assert!(!said("1 TCP stream(s)") || traffic.streams == 1, "{name}");
            }
        }
    }

    #[test]
    fn a_rate_is_said_in_the_largest_unit_of_which_it_is_a_whole_number() {
        let said = [GIGABIT_BPS, 2_500_000_000, 250_000, 1].map(text_of);
        assert_eq!(said, ["1 Gbit/s", "2500 Mbit/s", "250 kbit/s", "1 bit/s"]);
    }

    #[test]
    fn what_the_user_sets_of_the_hosts_reaches_every_variant_and_is_said() {
        let [settings, ..] = chosen();
        for plan in plans(&settings) {
            assert!(
                plan.fixed.ends_with("; the hosts: GRO of their own, busy polling for 50 us, no RPS"),
                "{}",
                plan.fixed
            );
            for VariantPlan { name, rig, .. } in &plan.variants {
                let HostSettings { rps, busy_poll_usecs, gro, .. } = rig.host;
                assert_eq!((rps, busy_poll_usecs, gro), (false, 50, true), "{}: {name}", plan.name);
            }
        }
    }

    #[test]
    fn a_datagram_of_a_fixed_size_fits_the_mtu_whatever_the_user_sets() {
        for plan in chosen().iter().flat_map(plans).filter(|plan| plan.name == "uso") {
            assert!(plan.variants.iter().all(|variant| variant.rig.mtu >= DATAGRAM_BYTES as usize + 28));
        }
    }
}

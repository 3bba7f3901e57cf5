//! The experiments on interrupt moderation: every policy under four loads, and a cap on interrupts.

use super::bound::{Against, Bound, Limit};
use super::{
    HOST_CPU, LATENCY_P50, LATENCY_P99, Plan, Settings, THROUGHPUT, VariantPlan, at_a_gigabit, at_most, by,
    gigabit_moderation, link_text, rig, traffic,
};
use offramp_adapter::moderation::{AreaConfig, Coalescing, DimProfiles, E1000Mode, ModerationConfig, Policy};
use offramp_offload::caps::Offloads;
use offramp_ports::worker::Polling;
use offramp_testbed::guest::{Accelerator, DriverCoalescing};
use offramp_testbed::host::{HostSettings, RxCoalescing};
use offramp_testbed::rig::RigConfig;
use offramp_testbed::traffic::{
    Arrivals, BulkParams, MixedParams, Params, RR_MESSAGE_BYTES, RequestParams, TransactionParams, Workload,
};
use std::time::Duration;

/// The loads for every policy, run by `--only moderation`.
pub(super) const LOADS: [&str; 4] = [RPC, BULK, MIXED, BURSTS];
const RPC: &str = "moderation-rpc";
const BULK: &str = "moderation-bulk";
const MIXED: &str = "moderation-mixed";
const BURSTS: &str = "moderation-bursts";

/// The plain adapter, the base of every comparison.
const OFF: &str = "off";
/// Two settings of non-adaptive moderation: the e1000's, and one for throughput.
const FIXED: [&str; 2] = ["8000/s", "50 us or 32"];
/// The cap of claim R4.
const CAPPED_INTERRUPTS_PER_SECOND: u32 = 1000;
/// Longer than any pause of bulk data: adapters that poll this long never sleep.
const POLL_TIME: Duration = Duration::from_millis(1);
/// Interrupt delay and frame count of an adapter set for throughput.
const COALESCED: Coalescing = Coalescing { max_usecs: 50, max_packets: 32 };

/// Rate of bulk data beside requests: half of the link's, so a request waits for the host and not for the link.
const MIXED_BULK_BPS: u64 = 500_000_000;
/// Size of one bulk write: eleven frames, at most 136 us of delay for a request on the wire.
const MIXED_WRITE_BYTES: u32 = 16 * 1024;
/// Requests per second beside it: enough for a 99th percentile, few enough that they seldom meet each other.
const MIXED_REQUESTS_PER_S: u32 = 4000;
/// A burst of requests, and the time to the next one: a server with many clients behind one switch.
const BURST_REQUESTS: u32 = 32;
const BURST_EVERY_USECS: u32 = 2000;
/// Seed of the arrival times of requests; the same in every sample.
const ARRIVALS_SEED: u64 = 1;
/// Policies for a guest of QEMU, possibly emulated, to keep the run short: the ones the bounds name.
const IN_QEMU: [&str; 3] = [OFF, "quiet-or-area", "8000/s"];
/// Settings of a guest's own driver (`ethtool -C`): about the minimum to save interrupts, an operator's setting for
/// throughput, more than `quiet-or-area` ever waits, and the driver's DIM.
const BY_THE_DRIVER: [(&str, RxCoalescing); 4] = [
    ("ethtool: 20 us or 8", RxCoalescing::Fixed { usecs: 20, frames: 8 }),
    ("ethtool: 50 us or 32", RxCoalescing::Fixed { usecs: COALESCED.max_usecs, frames: COALESCED.max_packets }),
    ("ethtool: 200 us or 128", RxCoalescing::Fixed { usecs: 200, frames: 128 }),
    ("ethtool: adaptive", RxCoalescing::Adaptive),
];

const fn bound(metric: &'static str, against: Against, limit: Limit) -> Bound {
    Bound { metric, against, limit }
}

/// A lone request must not wait.
static BOUNDS_OF_RPC: [Bound; 2] =
    [bound(LATENCY_P50, Against::Base, Limit::AtMost(1.05)), bound(LATENCY_P99, Against::Base, Limit::AtMost(1.1))];
/// Bulk data must cost as few interrupts as under a setting for bulk data only, at full speed.
static BOUNDS_OF_BULK: [Bound; 2] = [
    bound("interrupts_per_frame", Against::Best(&FIXED), Limit::AtMost(1.1)),
    bound(THROUGHPUT, Against::Best(&[]), Limit::AtLeast(0.97)),
];
/// Beside bulk data, a policy must save half of the interrupts and delay few requests.
static BOUNDS_OF_MIXED: [Bound; 2] = [
    bound(LATENCY_P99, Against::Base, Limit::AtMost(1.25)),
    bound("interrupts_per_s", Against::Base, Limit::AtMost(0.5)),
];

/// Returns the bounds of the named experiment; most have none.
pub(super) fn bounds(name: &str) -> &'static [Bound] {
    match name {
        RPC => &BOUNDS_OF_RPC,
        BULK => &BOUNDS_OF_BULK,
        MIXED => &BOUNDS_OF_MIXED,
        _ => &[],
    }
}

/// Returns every policy, the plain adapter first and the judged one next.
fn policies() -> [(&'static str, ModerationConfig); 7] {
    [
        (OFF, by(Policy::Off)),
        ("quiet-or-area", by(Policy::QuietOrArea(AreaConfig::default()))),
        ("area", by(Policy::Area(AreaConfig::default()))),
        ("net-dim", by(Policy::NetDim(DimProfiles::default()))),
        ("e1000", by(Policy::E1000(E1000Mode::default()))),
        ("8000/s", gigabit_moderation()),
        ("50 us or 32", by(Policy::Coalescing(COALESCED))),
    ]
}

/// Returns a variant for each policy, with the same traffic. The processors do not sleep: a processor wakes from sleep
/// later than any policy interrupts, so the sample would measure the wake-up.
fn moderated(settings: &Settings, traffic: &Params) -> Vec<VariantPlan> {
    let host = HostSettings { awake: true, ..settings.host };
    let variant = |(name, moderation)| VariantPlan {
        name,
        rig: RigConfig { moderation, host, ..rig(settings, Offloads::all()) },
        traffic: traffic.clone(),
    };
    policies().map(variant).into()
}

fn fixed(settings: &Settings, load: &str) -> String {
    format!(
        "MTU {}, {}; {load}; all offloads on, no GSO of the host's own; processors kept awake; the interrupts of both hosts \
         are counted together",
        settings.mtu,
        link_text(settings)
    )
}

fn requests(arrivals: Arrivals) -> RequestParams {
    RequestParams { request_bytes: RR_MESSAGE_BYTES, response_bytes: RR_MESSAGE_BYTES, arrivals }
}

pub(super) fn rpc(settings: &Settings) -> Plan {
    let settings = &at_a_gigabit(settings);
    let traffic = traffic(settings, Workload::Transaction(TransactionParams::default()));
    Plan {
        name: RPC,
        question: "One small request at a time: what does each rule of moderation add to the answer's time?",
        fixed: fixed(settings, &format!("{RR_MESSAGE_BYTES} bytes each way, the next request after the answer")),
        metric: LATENCY_P50,
        variants: moderated(settings, &traffic),
    }
}

pub(super) fn bulk(settings: &Settings) -> Plan {
    let settings = &at_a_gigabit(settings);
    Plan {
        name: BULK,
        question: "Bulk data: what is it worth to interrupt the host less often, and by which rule?",
        fixed: fixed(
            settings,
            "a frame every 12 us, as in the claims: on a link without a limit frames come faster than the adapter's \
             processor hands them over, and that processor is the moderator",
        ),
        metric: HOST_CPU,
        variants: moderated(settings, &super::bulk(settings)),
    }
}

pub(super) fn mixed(settings: &Settings) -> Plan {
    let settings = &at_a_gigabit(settings);
    let mixed = MixedParams {
        bulk: BulkParams { length_bytes: MIXED_WRITE_BYTES, rate_bps: MIXED_BULK_BPS, ..BulkParams::default() },
        requests: requests(Arrivals::Poisson { per_s: MIXED_REQUESTS_PER_S, seed: ARRIVALS_SEED }),
    };
    let load = format!(
        "bulk data of {} Mbit/s in writes of {} KiB, and beside it {MIXED_REQUESTS_PER_S} UDP requests per second at \
         random moments, {RR_MESSAGE_BYTES} bytes each way, timed from these moments",
        MIXED_BULK_BPS / 1_000_000,
        MIXED_WRITE_BYTES / 1024,
    );
    Plan {
        name: MIXED,
        question: "Bulk data and small requests at the same time: which rule spares interrupts, and at whose cost?",
        fixed: fixed(settings, &load),
        metric: LATENCY_P99,
        variants: moderated(settings, &Params { nodelay: true, ..traffic(settings, Workload::Mixed(mixed)) }),
    }
}

pub(super) fn bursts(settings: &Settings) -> Plan {
    let settings = &at_a_gigabit(settings);
    let arrivals = Arrivals::Bursts { requests: BURST_REQUESTS, every_usecs: BURST_EVERY_USECS };
    let load = format!(
        "{BURST_REQUESTS} UDP requests at once every {BURST_EVERY_USECS} us, {RR_MESSAGE_BYTES} bytes each way, timed from \
         these moments"
    );
    Plan {
        name: BURSTS,
        question: "Bursts of small requests: does a rule wait where nothing more will come?",
        fixed: fixed(settings, &load),
        metric: LATENCY_P99,
        variants: moderated(settings, &traffic(settings, Workload::Requests(requests(arrivals)))),
    }
}

pub(super) fn interrupt_cap(settings: &Settings) -> Plan {
    let settings = &at_a_gigabit(settings);
    let variant = |name, moderation| VariantPlan {
        name,
        rig: RigConfig { moderation, ..rig(settings, Offloads::all()) },
        traffic: super::bulk(settings),
    };
    let at_8000 = variant("8000/s", gigabit_moderation());
    Plan {
        name: "interrupt-cap",
        question: "At 1 Gbit/s, where the link is the limit: does a cap on interrupts change the speed, or the processor's share?",
        fixed: format!("MTU 1500, {}; all offloads on, no GSO of the host's own", link_text(settings)),
        metric: HOST_CPU,
        variants: vec![
            variant(OFF, by(Policy::Off)),
            variant("1000/s", at_most(CAPPED_INTERRUPTS_PER_SECOND)),
            at_8000.clone(),
            VariantPlan {
                name: "adapters poll, 8000/s",
                rig: RigConfig { polling: Polling::Fixed(POLL_TIME), ..at_8000.rig },
                ..at_8000
            },
        ],
    }
}

/// Returns the plan for a guest; its processors may sleep. An emulated guest runs fewer policies. If the adapter
/// follows the guest's driver, the driver's settings are added.
pub(super) fn in_a_guest(mut plan: Plan, accelerator: Accelerator, driver: DriverCoalescing) -> Plan {
    if accelerator != Accelerator::Uml {
        plan.variants.retain(|variant| IN_QEMU.contains(&variant.name));
    }
    if driver != DriverCoalescing::None {
        // The other host keeps the default settings.
        let VariantPlan { rig, traffic, .. } = plan.variants[1].clone();
        let can_set = |coalescing| driver == DriverCoalescing::Adaptive || coalescing != RxCoalescing::Adaptive;
        let by_the_driver = BY_THE_DRIVER.into_iter().filter(|(_, coalescing)| can_set(*coalescing));
        plan.variants.extend(by_the_driver.map(|(name, coalescing)| {
            let host = HostSettings { coalescing: Some(coalescing), ..rig.host };
            VariantPlan { name, rig: RigConfig { host, ..rig.clone() }, traffic: traffic.clone() }
        }));
        plan.fixed.push_str(
            "; \"ethtool\": the guest's driver sets when it is interrupted, and the other host has quiet-or-area",
        );
    }
    if driver == DriverCoalescing::Adaptive {
        plan.fixed.push_str("; \"adaptive\": the driver's DIM sets it as the load changes");
    }
    for variant in &mut plan.variants {
        variant.rig.host.awake = false;
    }
    plan.fixed = plan.fixed.replace("; processors kept awake", "");
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads() -> [Plan; 4] {
        let settings = Settings::default();
        [rpc(&settings), bulk(&settings), mixed(&settings), bursts(&settings)]
    }

    #[test]
    fn every_policy_stands_every_load() {
        assert_eq!(loads().map(|plan| plan.name), LOADS);
        for plan in loads() {
            let named = plan.variants.iter().map(|variant| variant.rig.moderation.policy.name());
            let expected = ["off", "quiet-or-area", "area", "net-dim", "e1000", "fixed-gap", "coalescing"];
            assert!(named.eq(expected), "{}", plan.name);
            assert!(plan.variants.iter().all(|variant| variant.traffic == plan.variants[0].traffic));
        }
    }

    #[test]
    fn every_bound_speaks_of_a_metric_and_of_variants_that_there_are() {
        let bounded = loads().into_iter().filter(|plan| !plan.bounds().is_empty()).count();
        assert_eq!(bounded, 3);
        for plan in loads() {
            for bound in plan.bounds() {
                assert!(plan.metric == bound.metric || plan.compared().contains(&bound.metric), "{bound:?}");
                let Against::Best(names) = bound.against else { continue };
                assert!(names.iter().all(|name| plan.variants.iter().any(|variant| variant.name == *name)));
            }
        }
    }

    #[test]
    fn a_guest_sleeps_as_it_likes_and_its_driver_is_asked_where_the_adapter_hears_it() {
        for plan in loads() {
            let emulated = in_a_guest(plan.clone(), Accelerator::Tcg, DriverCoalescing::None);
            assert!(emulated.variants.iter().map(|variant| variant.name).eq(IN_QEMU));
            let fast = in_a_guest(plan.clone(), Accelerator::Uml, DriverCoalescing::Fixed);
            let by_the_driver = fast.variants.iter().filter(|variant| variant.rig.host.coalescing.is_some());
            assert_eq!(by_the_driver.count(), BY_THE_DRIVER.len() - 1, "one needs DIM");
            assert_eq!(fast.variants.len(), plan.variants.len() + BY_THE_DRIVER.len() - 1);
            assert!(!fast.fixed.contains("DIM"), "{}", fast.fixed);
            let with_dim = in_a_guest(plan.clone(), Accelerator::Tcg, DriverCoalescing::Adaptive);
            let names = with_dim.variants.iter().map(|variant| variant.name);
            assert!(names.eq(IN_QEMU.into_iter().chain(BY_THE_DRIVER.map(|(name, _)| name))));
            assert!(with_dim.fixed.contains("DIM"), "{}", with_dim.fixed);
            for plan in [emulated, fast, with_dim] {
                assert!(plan.variants.iter().all(|variant| !variant.rig.host.awake) && !plan.fixed.contains("awake"));
            }
        }
    }
}

//! The lab's experiments for calibration: the variants from which costs are derived, and the variants that the model
//! predicts.

use super::setup::Setup;
use crate::plan::{Plan, RECEIVER, Settings, VariantPlan};
use offramp_testbed::traffic::Amount;

/// Variants from which the costs of bytes, sends, receives and frames on the link are derived.
pub(super) const LEARNED: [(&str, &str); 6] =
    [("lso", "off"), LARGE_SENDS, UNCOALESCED, ("rsc", "on"), ("rx-checksum", "on"), ("jumbo", "MTU 9000")];
/// Variant from which the lengths of super-frames and coalesced frames are derived.
pub(super) const LARGE_SENDS: (&str, &str) = ("lso", "on");
/// Variant from which the number of frames on the link per segment is derived.
pub(super) const UNCOALESCED: (&str, &str) = ("rsc", "off");
/// Experiment whose variants `off` and `on` give the cost of computing the checksum of sent data.
pub(super) const CHECKSUM_SENT: &str = "tx-checksum";
/// Experiment whose variants `off` and `on` give the cost of verifying the checksum of received data.
pub(super) const CHECKSUM_RECEIVED: &str = "rx-checksum";
/// Variant from which the cost of waking a host is derived. The link is the limit, so the host is idle between
/// interrupts. The adapters' thread never sleeps.
pub(super) const PACED: (&str, &str) = ("interrupt-cap", "adapters poll, 8000/s");
/// Variant like [`PACED`], except that the adapters' thread sleeps between super-frames. The host's cost in this
/// variant minus its cost in [`PACED`] is the cost of waking the adapters' thread.
pub(super) const PACED_ADAPTERS_SLEEP: (&str, &str) = ("interrupt-cap", "8000/s");
/// Variant from which the number of segments per acknowledgement is derived, with a receive-only host.
pub(super) const RECEIVER_UNCOALESCED: (&str, &str) = (RECEIVER, "off");
/// Variants from which the costs of a receive-only host are derived.
pub(super) const LEARNED_OF_RECEIVER: [(&str, &str); 3] =
    [RECEIVER_UNCOALESCED, (RECEIVER, "on"), (RECEIVER, "MTU 9000")];
/// Factor by which samples are longer in experiments whose limit is the link. In these experiments, the hosts are busy
/// for only a quarter of the time. The system counts busy time in ticks. A sample four times as long has about as many
/// busy ticks as a sample with fully busy hosts.
const PACED_TIMES: u64 = 4;

/// Predicted experiments, with their settings.
pub(super) const PREDICTED: [((&str, &str), Setup); 6] = [
    (("jumbo", "MTU 1500"), Setup::BARE),
    (("all", "checksums only"), Setup::BARE),
    (("all", "none"), Setup { host_checksums_sent: true, host_checksums_received: true, ..Setup::BARE }),
    (("all", "all"), Setup::ALL_ON),
    // With single frames instead of super-frames, the adapters' thread hardly sleeps, because the link sends the next
    // frame after 12 us.
    (("lso-1g", "off"), Setup { lso: false, is_gigabit: true, ..Setup::ALL_ON }),
    (("lso-1g", "on"), Setup { is_gigabit: true, adapters_sleep: true, ..Setup::ALL_ON }),
];
/// Predicted experiments with a receive-only host, with their settings.
pub(super) const PREDICTED_OF_RECEIVER: [((&str, &str), Setup); 2] = [
    ((RECEIVER, "no checksums"), Setup { rsc: false, host_checksums_received: true, ..Setup::ALL_ON }),
    ((RECEIVER, "MTU 3000"), Setup { rsc: false, mss: 2948.0, ..Setup::ALL_ON }),
];

/// Experiment with one small TCP request at a time, at 1 Gbit/s, with processors kept awake.
const ROUND_TRIPS: &str = "moderation-rpc";
/// Experiment with bulk data, at 1 Gbit/s, with processors kept awake.
pub(super) const BULK: &str = "moderation-bulk";
/// Variant without moderation. The time that a request waits until processes run is derived from this variant.
pub(super) const PLAIN: (&str, &str) = (ROUND_TRIPS, "off");
/// Variant in which a timer ends the delay of each request, after the gap between two interrupts. The delay until the
/// adapters' thread detects an expired timer is derived from this variant.
pub(super) const CAPPED: (&str, &str) = (ROUND_TRIPS, "8000/s");
/// Variants from which the waits are derived.
const LEARNED_OF_RESPONSES: [(&str, &str); 2] = [PLAIN, CAPPED];
/// Maximum time from the first waiting frame to the interrupt in the lab's variant "50 us or 32", in microseconds.
const COALESCED_US: f64 = 50.0;

/// The moderation of a variant of the lab, and the corresponding settings of the model. The settings are the value of
/// `adapter.moderation`, and the maximum time from the first waiting frame to the interrupt.
pub(super) struct Moderated {
    pub(super) of: (&'static str, &'static str),
    pub(super) moderation: &'static str,
    pub(super) wait_us: f64,
}

const fn moderated(of: (&'static str, &'static str), moderation: &'static str, wait_us: f64) -> Moderated {
    Moderated { of, moderation, wait_us }
}

/// Variants whose latencies or interrupts are predicted. Bulk data under the e1000's moderation rule is not predicted,
/// because at 1 Gbit/s the rule has two stable interrupt rates. The rule starts at 20,000 interrupts per second. After
/// one interrupt that is 80 us late, the rate stays at 4000 per second.
pub(super) const PREDICTED_OF_RESPONSES: [Moderated; 5] = [
    moderated((ROUND_TRIPS, "quiet-or-area"), "quiet-or-area", 0.0),
    moderated((ROUND_TRIPS, "e1000"), "e1000", 0.0),
    moderated((ROUND_TRIPS, "50 us or 32"), "coalescing", COALESCED_US),
    moderated((BULK, "8000/s"), "fixed-gap", 0.0),
    moderated((BULK, "50 us or 32"), "coalescing", COALESCED_US),
];

/// Returns the plans for calibration: the variants from which costs are derived, and the predicted variants.
pub fn plans(settings: &Settings) -> Vec<Plan> {
    let needed = needed();
    let mut plans = crate::plan::plans(settings);
    for plan in &mut plans {
        plan.variants.retain(|variant| needed.contains(&(plan.name.as_str(), variant.name.as_str())));
        // The samples of the moderation experiments stay short, because these experiments do not contribute to the
        // hosts' costs.
        let is_paced = |variant: &VariantPlan| variant.rig.rate_bps.is_some() && !plan.name.starts_with("moderation");
        for variant in plan.variants.iter_mut().filter(|variant| is_paced(variant)) {
            if let Amount::Usecs(usecs) = &mut variant.traffic.amount {
                *usecs *= PACED_TIMES;
            }
        }
    }
    plans.retain(|plan| !plan.variants.is_empty());
    plans
}

fn needed() -> Vec<(&'static str, &'static str)> {
    let checksums = [CHECKSUM_SENT, CHECKSUM_RECEIVED].into_iter().flat_map(|name| [(name, "off"), (name, "on")]);
    let predicted = PREDICTED.into_iter().chain(PREDICTED_OF_RECEIVER).map(|(of, _)| of);
    let learned = LEARNED.into_iter().chain([PACED, PACED_ADAPTERS_SLEEP]).chain(checksums).chain(LEARNED_OF_RECEIVER);
    let responses = LEARNED_OF_RESPONSES.into_iter().chain(PREDICTED_OF_RESPONSES.iter().map(|of| of.of));
    learned.chain(predicted).chain(responses).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_that_is_learned_from_or_predicted_is_one_of_the_lab() {
        let plans = plans(&Settings::default());
        let run: Vec<_> = plans
            .iter()
            .flat_map(|plan| plan.variants.iter().map(|of| (plan.name.as_str(), of.name.as_str())))
            .collect();
        for one in needed() {
            assert_eq!(run.iter().filter(|other| **other == one).count(), 1, "{one:?}");
        }
    }

    #[test]
    fn samples_are_longer_where_the_line_is_the_limit_and_the_hosts_work_little() {
        let plans = plans(&Settings::default());
        let time_usecs = |experiment: &str| {
            let plan = plans.iter().find(|plan| plan.name == experiment).unwrap();
            let Amount::Usecs(usecs) = plan.variants[0].traffic.amount else { panic!("an amount of time") };
            usecs
        };
        assert_eq!(time_usecs(PACED.0), PACED_TIMES * time_usecs("lso"));
        assert_eq!(time_usecs("lso-1g"), time_usecs(PACED.0));
    }
}

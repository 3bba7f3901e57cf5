//! The same for the experiments with cards, orders and verdicts that resist: what was measured, and whether it is as
//! published, chosen by what the samples show.

use super::{Finding, Pair, TOO_FEW, TOO_NOISY, phrase, ratio};
use crate::metric;
use crate::model::{Variant, Verdict};
use crate::plan::resist::{MEMORY_TCP, MEMORY_UDP, ORDER, RPC, RPC_HEADER_BYTES, VERDICT, WINDOW};
use crate::report::words::{count, or_dash, seconds, segments};

/// The two variants that a claim speaks of: experiment, claim, base, variant.
const SPOKEN_OF: [(&str, &str, &str, &str); 25] = [
    (ORDER, "R1", "strict, in order", "strict, 64"),
    (ORDER, "R2", "strict, 64", "strict, 64, four"),
    (ORDER, "R9", "strict, in order", "strict, 64"),
    (ORDER, "R10", "strict, in order", "strict, 64"),
    (ORDER, "R11", "strict, 64", "strict, in order"),
    (ORDER, "R12", "strict, 64", "strict, in order"),
    (MEMORY_TCP, "I1", "5 kB, slow bus", "5 kB, fast bus"),
    (MEMORY_TCP, "I2", "5 kB, drops", "5 kB, overruns"),
    (MEMORY_TCP, "I3", "strict, fast bus", "strict, slow bus"),
    (MEMORY_TCP, "I5", "64 kB, slow bus", "5 kB, drops"),
    (MEMORY_TCP, "I6", "5 kB, slow bus", "5 kB, fast bus"),
    (MEMORY_TCP, "I14", "5 kB, drops", "5 kB, overruns"),
    (MEMORY_UDP, "I2", "5 kB, fast, flood", "5 kB, slow, flood"),
    (MEMORY_UDP, "I3", "5 kB, fast, flood", "5 kB, slow, flood"),
    (MEMORY_UDP, "I4", "5 kB, slow bus", "64 kB, slow bus"),
    (MEMORY_UDP, "I6", "5 kB, slow bus", "5 kB, fast bus"),
    (WINDOW, "I11", "4 kB", "32 kB"),
    (WINDOW, "I12", "32 kB", "32 kB, slow hop"),
    (WINDOW, "I13", "32 kB", "4 kB"),
    (RPC, "I15", "8-bit, 8 kB", "16-bit, 8 kB"),
    (RPC, "I16", "16-bit, 1 kB", "8-bit, 1 kB"),
    (RPC, "I17", "8-bit, 2 kB", "8-bit, 4 kB"),
    (RPC, "I18", "16-bit, 1 kB", "16-bit, 8 kB"),
    (RPC, "I19", "8-bit, 4 kB", "8-bit fast, 4 kB"),
    (VERDICT, "R8", "mended", "wrong verdicts"),
];
/// Below this ratio a connection has collapsed, not merely slowed down.
const COLLAPSE: f64 = 0.33;
/// Bytes of the response of an 8 kB read.
const RESPONSE_8_KB: f64 = 8192.0 + RPC_HEADER_BYTES as f64;

/// The variants that a claim speaks of, if it is one of these experiments'.
pub(super) fn spoken_of(experiment: &str, id: &str) -> Option<(&'static str, &'static str)> {
    let found = SPOKEN_OF.iter().find(|(name, claim, ..)| *name == experiment && *claim == id);
    found.map(|(_, _, base, variant)| (*base, *variant))
}

/// Says whether a claim is one of these experiments'.
#[cfg(test)]
pub(super) fn speaks_of(id: &str) -> bool {
    SPOKEN_OF.iter().any(|(_, claim, ..)| *claim == id)
}

/// What was measured; `None` for a claim of another experiment, and where nothing was.
pub(super) fn measured(pair: &Pair, id: &str) -> Option<String> {
    spoken_of(&pair.experiment.name, id)?;
    match id {
        "R1" | "R2" | "R11" => pair.speeds(),
        "R9" => pair.of_both("cwnd_segments"),
        "R10" => pair.all_of_both(&["out_of_order", "retransmits", "lost_frames"]),
        "R12" => pair.order_and_offload(),
        "R8" => pair.speeds().zip(pair.of_both("stall_s")).map(|(speeds, stall)| format!("{speeds}; {stall} s")),
        "I4" => pair.all_of_both(&["burst_frames_max", "dropped_frames"]),
        "I5" => pair.of_both("memory_bytes_max"),
        "I2" | "I14" => pair.all_of_both(&["dropped_frames", "overrun_frames"]),
        "I15" => pair.frames_of_a_response(),
        "I17" | "I19" => Some(join([pair.speeds(), pair.of_both("rpc_retransmits")])),
        _ => Some(join([pair.speeds(), pair.of_both("dropped_frames")])),
    }
}

/// The metrics that the words of [`measured`] are made of.
pub(super) fn metrics(id: &str) -> &'static [&'static str] {
    match id {
        "R1" | "R2" | "R11" | "R12" => &["throughput_bps"],
        "R9" => &["cwnd_segments"],
        "R10" => &["out_of_order", "retransmits", "lost_frames"],
        "R8" => &["throughput_bps", "stall_s"],
        "I4" => &["burst_frames_max", "dropped_frames"],
        "I5" => &["memory_bytes_max"],
        "I2" | "I14" => &["dropped_frames", "overrun_frames"],
        "I15" => &["wire_frames_per_response"],
        "I17" | "I19" => &["throughput_bps", "rpc_retransmits"],
        _ => &["throughput_bps", "dropped_frames"],
    }
}

/// Frames on the line for each response of 8 kB, of which each call has a request of one frame.
pub(super) fn frames_of_a_response(sample: &crate::model::Sample) -> Option<f64> {
    let calls = sample.bytes as f64 / RESPONSE_8_KB;
    Some(sample.wire_frames? as f64 / calls - 1.0)
}

/// Whether it is as published, and why not; `None` for a claim of another experiment.
pub(super) fn why(pair: &Pair, id: &str) -> Option<String> {
    spoken_of(&pair.experiment.name, id)?;
    Some(match id {
        "R1" | "R10" => format!("{}{}", pair.why_collapse(), pair.why_today()),
        "R2" => pair.said(
            Way::Rises,
            "each connection is held at its smallest window, so several carry more than one, until something else is \
             the limit.",
        ),
        "R9" => pair.said_of(
            "cwnd_segments",
            Way::Falls,
            "a window that is halved at each supposed loss stays near the two or three segments that it cannot fall \
             below.",
        ),
        "R11" => pair.said(
            Way::Rises,
            "nothing but the order differs; here the line of 1 Gbit/s is the limit in \
         order.",
        ),
        "R12" => pair.said(Way::Rises, "no offload comes near what the right order is worth to such a TCP."),
        "R8" => pair.why_wedged(),
        "I1" | "I6" => pair.why_fast_bus(),
        "I2" => pair.why_two_rules(),
        "I3" => pair.why_loss(),
        "I4" => pair.why_memory(),
        "I5" => {
            "Exact by construction: a ring of 20 pages, one always free; a full frame with its CRC and header takes \
             six, so three fit. Shorter frames fill what is left."
                .to_owned()
        }
        "I11" => pair.why_large_window(),
        "I12" => pair.why_slow_hop(),
        "I13" => pair.why_small_window(),
        "I14" => {
            "The adapter counts both apart, as /proc/net/dev has them: drop, and fifo for an overrun; `offramp show` \
             has the reasons."
                .to_owned()
        }
        "I15" => "Exact: IP of 1500 carries 1480 bytes of a datagram in each frame but the last; 8192 bytes and their \
             header make six."
            .to_owned(),
        "I16" => pair
            .said(Way::Falls, "at the same clock the narrow bus moves half as many bytes, fewer than the line brings."),
        "I17" => pair.why_calls(),
        "I18" => pair.why_larger_calls(),
        _ => pair.said(
            Way::Rises,
            "with a faster bus nothing is lost; “8-bit, 2 kB” shows the other remedy, calls \
             that fit.",
        ),
    })
}

/// Which way a figure goes by what was published.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Rises,
    Falls,
}

fn join<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Bits per second as megabytes per second, as the claims speak.
fn megabytes(bps: f64) -> String {
    let mb = bps / 8e6;
    if mb < 10.0 { format!("{mb:.2}") } else { format!("{mb:.0}") }
}

fn is_above_0(value: Option<f64>) -> bool {
    value.is_some_and(|value| value > 0.0)
}

impl Pair<'_> {
    fn variant_named(&self, name: &str) -> Option<&Variant> {
        self.experiment.variants.iter().find(|variant| variant.name == name)
    }

    fn speeds(&self) -> Option<String> {
        let (variant, base) = (self.variant.throughput_bps?, self.base.throughput_bps?);
        let phrase = self.phrase("throughput_bps").map(|phrase| format!(", {phrase}")).unwrap_or_default();
        Some(format!("{} MB/s against {} MB/s{phrase}", megabytes(variant), megabytes(base)))
    }

    /// One figure of both variants: "the retransmits: 56 against 0".
    fn of_both(&self, name: &str) -> Option<String> {
        let metric = metric::find(name)?;
        let [variant, base] = [self.variant, self.base].map(|variant| or_dash((metric.median)(variant), metric.text));
        Some(format!("{}: {variant} against {base}", metric.noun))
    }

    fn all_of_both(&self, names: &[&str]) -> Option<String> {
        let said: Vec<String> = names.iter().filter_map(|name| self.of_both(name)).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// What the order is worth, and beside it what checksum offload was, where the run has measured it.
    fn order_and_offload(&self) -> Option<String> {
        let order = self.speeds()?;
        let other = self.report.experiments.iter().find(|other| other.name == "rx-checksum");
        let offload = other.and_then(|other| Pair::of(other, self.report, "M1")?.phrase("throughput_bps"));
        let offload = offload.unwrap_or_else(|| "not in this run (experiment rx-checksum)".to_owned());
        Some(format!("the order: {order}; receive checksum offload: {offload}"))
    }

    fn frames_of_a_response(&self) -> Option<String> {
        let frames: Vec<f64> = self.variant.samples.iter().filter_map(frames_of_a_response).collect();
        crate::compare::median(&frames).map(|frames| format!("{frames:.2} frames on the line for each response"))
    }

    /// What a change of the throughput says of a claim by which it goes that way.
    fn said(&self, way: Way, as_published: &str) -> String {
        self.said_of("throughput_bps", way, as_published)
    }

    fn said_of(&self, metric: &str, way: Way, as_published: &str) -> String {
        let Some(verdict) = self.verdict(metric) else { return TOO_FEW.to_owned() };
        match Finding::of(&verdict) {
            Finding::Difference if (verdict.ratio > 1.0) == (way == Way::Rises) => {
                format!("As published in kind: {as_published}")
            }
            Finding::Difference => "Not as published: it went the other way here.".to_owned(),
            Finding::Noise => "Not shown here: no difference larger than the noise.".to_owned(),
            Finding::Undecided => TOO_NOISY.to_owned(),
        }
    }

    fn why_collapse(&self) -> String {
        let has_collapsed = self.verdict("throughput_bps").is_some_and(|verdict| verdict.ci95[1] < COLLAPSE);
        if !has_collapsed {
            return self.said(Way::Falls, "what came too early is taken for a loss of what is missing.");
        }
        let window = or_dash(self.variant.cwnd_segments, segments);
        format!(
            "As published: three duplicate acknowledgements are taken for a loss, though not one frame is lost; the \
             window stays at {window} segments, and each such handful waits for the end of its group."
        )
    }

    /// What a TCP of today makes of the same order.
    fn why_today(&self) -> String {
        let pair = self.variant_named("in order").zip(self.variant_named("reversed 64")).map(|(base, variant)| Pair {
            experiment: self.experiment,
            report: self.report,
            base,
            variant,
        });
        let Some(verdict) = pair.as_ref().and_then(|pair| pair.verdict("throughput_bps")) else { return String::new() };
        format!(
            " Linux as it is keeps {} × its speed: it waits by time and learns how far segments come out of order, \
             and is told by DSACK what it sent again for nothing ({} segments).",
            ratio(verdict.ratio),
            or_dash(pair.and_then(|pair| pair.variant.dsacks), count)
        )
    }

    fn why_wedged(&self) -> String {
        let (mended, wrong) = (self.base.throughput_bps.unwrap_or(0.0), self.variant.throughput_bps.unwrap_or(0.0));
        let is_wedged = mended > 0.0 && wrong < COLLAPSE * mended;
        let of = |name| {
            let bps = self.variant_named(name).and_then(|variant| variant.throughput_bps);
            format!("“{name}” {} MB/s", or_dash(bps, megabytes))
        };
        let rest = format!("{}, {}", of("wrong, captured"), of("wrong, Rx sum off"));
        if !is_wedged {
            return format!("Not shown here: no segment was hit in time, or too late. Beside it: {rest}.");
        }
        format!(
            "As published: the segment that is judged wrongly is judged so each time that it is sent again, so \
             nothing behind it is ever read (longest time without a byte {} s). Where the host sums itself, as under \
             a capture, the connection lives: {rest}.",
            or_dash(self.variant.stall_s, seconds)
        )
    }

    fn why_fast_bus(&self) -> String {
        match (is_above_0(self.base.dropped_frames), is_above_0(self.variant.dropped_frames)) {
            (true, false) => {
                "As published: nothing is lost in the same small memory once the bus moves a frame sooner than the \
                 line brings one."
            }
            (false, false) => "Nothing was lost on the slow bus either, so there is nothing to compare.",
            (_, true) => "Not as published: frames were lost on the faster bus too; see the samples.",
        }
        .to_owned()
    }

    fn why_two_rules(&self) -> String {
        let lost = |variant: &Variant| [variant.dropped_frames, variant.overrun_frames].map(is_above_0);
        if self.experiment.name == MEMORY_UDP {
            return match lost(self.variant) {
                [true, _] => {
                    "As published: what the host does not drain in time is lost, and counted as drops by these cards."
                }
                _ => "Not shown here: nothing was lost.",
            }
            .to_owned();
        }
        match (lost(self.base), lost(self.variant)) {
            ([true, false], [false, true]) => {
                "As published: the same memory under both rules; the one loses the new frame, the other the oldest."
            }
            _ => "Not shown here: one of the rules had nothing to lose; see the samples.",
        }
        .to_owned()
    }

    fn why_loss(&self) -> String {
        let said = self.said(
            Way::Falls,
            "a frame that finds no room stops the card for 10 ms, and what comes meanwhile is lost too.",
        );
        let is_loss = |verdict: &Verdict| Finding::of(verdict).is_difference() && verdict.ratio < 1.0;
        let Some(verdict) = self.verdict("throughput_bps").filter(is_loss) else { return said };
        let beside = if self.experiment.name == MEMORY_TCP {
            self.why_less_today()
        } else {
            " Datagrams are not sent again here: a program that must have them all loses more.".to_owned()
        };
        format!("{said} The factor is {} here, a part of it the slow bus itself.{beside}", ratio(1.0 / verdict.ratio))
    }

    /// What a TCP of today makes of the same loss.
    fn why_less_today(&self) -> String {
        let today = ["5 kB, fast bus", "5 kB, slow bus"].map(|name| self.variant_named(name)?.throughput_bps);
        let [Some(fast), Some(slow)] = today else { return String::new() };
        if slow <= 0.0 {
            return String::new();
        }
        format!(
            " For Linux as it is the factor is {}: selective acknowledgements tell what arrived, and few losses need \
             a timer. Senders then sent on without a smaller window, and waited half a second and more.",
            ratio(fast / slow)
        ) + &self.why_calls_lose_more()
    }

    /// Where nobody slows down: the calls of the same run.
    fn why_calls_lose_more(&self) -> String {
        let calls = self.report.experiments.iter().find(|other| other.name == RPC);
        let bps = |name| calls?.variants.iter().find(|variant| variant.name == name)?.throughput_bps;
        match (bps("8-bit fast, 8 kB"), bps("8-bit, 8 kB")) {
            (Some(fast), Some(slow)) if slow > 0.0 => {
                format!(" Calls of 8 kB, which do so, lose a factor of {} ({RPC}).", ratio(fast / slow))
            }
            _ => String::new(),
        }
    }

    fn why_memory(&self) -> String {
        let bursts = ["5 kB, slow bus", "13 kB, slow bus", "64 kB, slow bus"]
            .map(|name| self.variant_named(name).and_then(|variant| variant.burst_frames_max));
        let [Some(small), Some(middle), Some(large)] = bursts else { return TOO_FEW.to_owned() };
        let said =
            format!("{} frames with 5 kB, {} with 13 kB, {} with 64 kB", count(small), count(middle), count(large));
        if small < middle && middle <= large {
            format!("As published: the longest burst taken without a loss grows with the memory: {said}.")
        } else {
            format!("Not as published: the longest burst taken without a loss does not grow with the memory: {said}.")
        }
    }

    fn why_large_window(&self) -> String {
        match (is_above_0(self.variant.dropped_frames), is_above_0(self.base.dropped_frames)) {
            (true, false) => {
                "As published: 22 segments may come at once where three have room; the window of 4 kB loses nothing. \
                 TCP sends fewer after each loss, so its losses become rarer."
            }
            (true, true) => "Frames were lost with both windows; see the samples.",
            (false, _) => "Not shown here: nothing was lost with the large window.",
        }
        .to_owned()
    }

    fn why_slow_hop(&self) -> String {
        if is_above_0(self.variant.dropped_frames) {
            return "Not as published: frames were lost behind the slower hop too; see the samples.".to_owned();
        }
        "As published: frames come no sooner than the bus can move them, so the large window does no harm.".to_owned()
    }

    fn why_small_window(&self) -> String {
        let is_lossless = !is_above_0(self.variant.dropped_frames);
        let found = match self.verdict("throughput_bps") {
            Some(verdict) if Finding::of(&verdict) == Finding::Difference && verdict.ratio > 1.0 && is_lossless => {
                "As published: what is under way fits into the card, nothing is lost, and the connection is faster \
                 with a window an eighth as large."
            }
            _ if is_lossless => {
                "In part: nothing is lost with the small window; but the losses of the large one cost no more speed \
                 here than two segments at a time do."
            }
            _ => "Not as published: frames were lost with the small window too; see the samples.",
        };
        let speed = |name| {
            let bps = self.variant_named(name).and_then(|variant| variant.throughput_bps);
            or_dash(bps, megabytes)
        };
        let (large, small) = (speed("32 kB, today"), speed("4 kB, today"));
        format!(
            "{found} With Linux as it is: {large} MB/s with 32 kB, {small} MB/s with 4 kB, which are two whole \
             segments."
        )
    }

    fn why_larger_calls(&self) -> String {
        let said = self.said(
            Way::Rises,
            "fewer calls carry the same data, and the memory of 16 kB holds what comes at once; the line is the \
             limit above that.",
        );
        format!(
            "{said} The published gain was larger by what each call cost processors of that time; a call of today \
             costs next to nothing, and those of 1 kB come near the line's rate too."
        )
    }

    fn why_calls(&self) -> String {
        let is_sustained = !is_above_0(self.base.dropped_frames);
        let said = self.said(
            Way::Falls,
            "four responses of 4 kB come in 72 pages at the line's pace, and the bus leaves more of them waiting \
             than the 19 that the card has; one lost frame costs the whole response, and the reader a time-out. Four \
             of 2 kB come in 36, and fit.",
        );
        let factor = self.verdict("throughput_bps").map(|verdict| phrase(&verdict)).unwrap_or_default();
        let sustained =
            if is_sustained { "" } else { " Frames of the smaller responses were lost too; see the samples." };
        format!("{said} How much it costs is set by the timer, which is scaled here ({factor}).{sustained}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::claim;
    use crate::compare::{summarise, verdict};
    use crate::model::{Experiment, LabReport, Sample};
    use crate::plan::resist::ALL;
    use crate::plan::{Plan, Settings, plans};
    use crate::report::explain::claim_rows;
    use crate::report::{html, sample, terminal};

    fn plan(name: &str) -> Plan {
        plans(&Settings::default()).into_iter().find(|plan| plan.name == name).expect("an experiment")
    }

    /// An experiment whose variants are made of one sample three times.
    fn experiment(name: &str, sample: impl Fn(&str) -> Sample) -> Experiment {
        let plan = plan(name);
        let rounds = |name: &str| (0..3).map(|round| Sample { round, ..sample(name) }).collect();
        let variants: Vec<Variant> =
            plan.variants.iter().map(|variant| summarise(variant.name, rounds(variant.name))).collect();
        Experiment {
            name: plan.name.to_owned(),
            question: plan.question.to_owned(),
            claims: plan.claims.iter().map(|id| (*id).to_owned()).collect(),
            fixed: plan.fixed.clone(),
            verdict: verdict(&variants[0], &variants[1], plan.metric),
            variants,
            verdicts: Vec::new(),
            notes: Vec::new(),
            judgements: Vec::new(),
        }
    }

    fn at(mbit: f64) -> Sample {
        let throughput_bps = mbit * 1e6;
        let bytes = (throughput_bps / 16.0) as u64;
        Sample {
            seconds: 0.5,
            throughput_bps: Some(throughput_bps),
            bytes,
            wire_frames: Some((bytes as f64 / RESPONSE_8_KB * 7.0) as u64),
            retransmits: Some(0),
            lost_frames: Some(0),
            out_of_order: Some(0),
            dsacks: Some(0),
            cwnd_segments: Some(100.0),
            stall_s: Some(0.01),
            ..Sample::default()
        }
    }

    /// As the claims have it.
    fn as_published() -> LabReport {
        let card = |mbit, dropped, overrun, burst| Sample {
            dropped_frames: Some(dropped),
            overrun_frames: Some(overrun),
            burst_frames_max: Some(burst),
            memory_bytes_max: Some(18 * 256),
            rpc_retransmits: Some(dropped / 2),
            ..at(mbit)
        };
        let order = experiment(ORDER, |name| match name {
            "strict, 64, four" => Sample { out_of_order: Some(800), cwnd_segments: Some(2.0), ..at(96.0) },
            name if name.starts_with("strict, ") && name != "strict, in order" => {
                Sample { out_of_order: Some(300), retransmits: Some(60), cwnd_segments: Some(2.0), ..at(24.0) }
            }
            name if name.starts_with("reversed") => Sample { out_of_order: Some(9000), dsacks: Some(9), ..at(900.0) },
            _ => at(940.0),
        });
        let memory = |name: &str| match name {
            "5 kB, overruns" => card(5.0, 0, 40, 12),
            name if name.contains("fast") => card(9.4, 0, 0, 2),
            name if name.starts_with("64 kB") => card(7.0, 0, 0, 44),
            name if name.starts_with("13 kB") => card(5.0, 10, 0, 33),
            _ => card(3.0, 40, 0, 12),
        };
        let window = experiment(WINDOW, |name| match name {
            "32 kB" => card(3.0, 40, 0, 10),
            "32 kB, today" => card(4.5, 30, 0, 10),
            "32 kB, slow hop" => card(4.7, 0, 0, 2),
            _ => card(4.6, 0, 0, 3),
        });
        let rpc = experiment(RPC, |name| match name {
            "8-bit, 4 kB" | "8-bit, 8 kB" => card(2.0, 40, 0, 12),
            name if name.starts_with("8-bit,") => card(5.8, 0, 0, 20),
            "16-bit, 1 kB" => card(6.5, 0, 0, 2),
            _ => card(9.5, 0, 0, 3),
        });
        let verdicts = experiment(VERDICT, |name| match name {
            "wrong verdicts" => Sample { stall_s: Some(0.5), ..at(0.0) },
            _ => at(3000.0),
        });
        let mut report = sample::report();
        report.experiments =
            vec![order, experiment(MEMORY_TCP, memory), experiment(MEMORY_UDP, memory), window, rpc, verdicts];
        report
    }

    #[test]
    fn every_claim_of_these_experiments_is_known_measured_and_explained() {
        let report = as_published();
        for experiment in &report.experiments {
            for row in claim_rows(experiment, &report) {
                assert!(claim(&row.id).is_some(), "{}", row.id);
                assert!(spoken_of(&experiment.name, &row.id).is_some(), "{} of {}", row.id, experiment.name);
                assert!(row.measured.contains(" against “"), "{} of {}: {}", row.id, experiment.name, row.measured);
                assert!(!row.measured.contains("not measured") && !row.why.is_empty(), "{}: {}", row.id, row.measured);
            }
        }
    }

    #[test]
    fn the_variants_that_are_spoken_of_are_those_of_the_experiments() {
        for (experiment, id, base, variant) in SPOKEN_OF {
            let plan = plan(experiment);
            assert!(plan.claims.contains(&id), "{id} of {experiment}");
            for name in [base, variant] {
                assert!(plan.variants.iter().any(|variant| variant.name == name), "{name} of {experiment}");
            }
        }
        assert_eq!(ALL.iter().map(|name| plan(name).claims.len()).sum::<usize>(), SPOKEN_OF.len());
    }

    #[test]
    fn what_comes_out_as_published_is_said_to() {
        let report = as_published();
        for experiment in &report.experiments {
            for row in claim_rows(experiment, &report) {
                let agrees = row.why.starts_with("As published") || row.why.starts_with("Exact");
                assert!(agrees || row.id == "I14", "{} of {}: {}", row.id, experiment.name, row.why);
            }
        }
    }

    #[test]
    fn what_does_not_come_out_as_published_is_never_said_to() {
        let mut report = as_published();
        let level =
            |_: &str| Sample { dropped_frames: Some(7), overrun_frames: Some(7), burst_frames_max: Some(7), ..at(5.0) };
        report.experiments = ALL.iter().map(|name| experiment(name, level)).collect();
        for experiment in &report.experiments {
            for row in
                claim_rows(experiment, &report).iter().filter(|row| !["I5", "I14", "I15"].contains(&row.id.as_str()))
            {
                let is_drop = row.id == "I2" && experiment.name == MEMORY_UDP;
                assert!(is_drop || !row.why.starts_with("As published"), "{}: {}", row.id, row.why);
            }
        }
    }

    #[test]
    fn slow_lines_are_told_in_mbit_and_losses_have_their_columns() {
        let report = as_published();
        let plain = terminal::Style { colour: false };
        let text = |name: &str| {
            let one = report.experiments.iter().find(|one| one.name == name).expect("in the report");
            let text = terminal::experiment(one, plain);
            assert!(text.lines().all(|line| line.chars().count() <= terminal::WIDTH), "{text}");
            text
        };
        let memory = text(MEMORY_TCP);
        assert!(memory.contains("Mbit/s") && memory.contains("over-") && memory.contains("burst"), "{memory}");
        let order = text(ORDER);
        assert!(order.contains("Gbit/s") && order.contains("out of") && order.contains("cwnd"), "{order}");
        assert!(!order.contains("burst") && !order.contains("calls"), "{order}");
        assert!(text(RPC).contains("again") && text(VERDICT).contains("stall"));
        for name in ALL {
            assert!(
                plan(name).variants.iter().all(|variant| text(name).contains(&format!("  {} ", variant.name))),
                "{name}"
            );
        }
        let page = html::render(&report);
        assert!(page.contains("Frames that found no room") && page.contains("Calls made again"));
        let trouble = "TCP segments that arrived out of order";
        assert!(page.contains(trouble) && !html::render(&sample::report()).contains(trouble));
    }

    #[test]
    fn a_loss_within_the_noise_is_given_no_factor() {
        let mut of_memory = experiment(MEMORY_TCP, |_| at(100.0));
        for variant in of_memory.variants.iter_mut().filter(|variant| variant.name == "strict, slow bus") {
            let samples = [90.0, 99.0, 105.0].into_iter().enumerate();
            let samples = samples.map(|(round, mbit)| Sample { round, ..at(mbit) }).collect();
            *variant = summarise("strict, slow bus", samples);
        }
        let report = LabReport { experiments: vec![of_memory], ..sample::report() };
        let rows = claim_rows(&report.experiments[0], &report);
        let why = &rows.iter().find(|row| row.id == "I3").expect("a claim of it").why;
        assert_eq!(why, "Not shown here: no difference larger than the noise.");
    }
}

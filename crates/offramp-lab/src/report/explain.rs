//! What was measured here beside what was published, and why the two differ, chosen by what the samples show.

mod figures;
mod resist;

pub use figures::measurements;

use super::words::{self, Finding, NOT_MEASURED, count, cpu_seconds, gbit, percent, phrase, ratio};
use crate::claims::{Claim, claim};
use crate::compare::{self, GB};
use crate::model::{Experiment, LabReport, Machine, Variant, Verdict};

/// Share of a processor, in percent, from which it is taken for the limit.
const BUSY_PERCENT: f64 = 90.0;
/// Share of one processor, in percent, above which the hosts must have run on more than one.
const ONE_PROCESSOR_PERCENT: f64 = 105.0;
/// Frames per GB that are taken for the same: acknowledgements are counted with the data, and their number varies.
const SAME_FRAMES: std::ops::RangeInclusive<f64> = 0.95..=1.05;
/// Gain from which a change is called large, as a ratio.
const LARGE_GAIN: f64 = 1.5;
/// Processor time that the published gain in throughput of claim M1 comes to, as a share. So for the other claims.
const SAVING_M1: f64 = saving(1.19);
const SAVING_M7: f64 = saving(1.09);
const SAVING_M8: f64 = saving(1.30);
const SAVING_M9: f64 = saving(1.09);
const SAVING_M20: f64 = saving(1.20);
/// 940 Mbit/s at 19 % against 940 at 40 %: processor time for each bit.
const RATIO_H2: f64 = 0.475;
/// 1633 Mbit/s at 75 % against 1500 at 82 %.
const RATIO_H1: f64 = 0.84;

/// The share of its processor time that a machine bound by its processor must save, to gain so much in throughput.
const fn saving(gain: f64) -> f64 {
    1.0 - 1.0 / gain
}

/// A claim beside what was measured here.
pub struct ClaimRow {
    /// Its number.
    pub id: String,
    /// What it speaks of.
    pub configuration: String,
    /// What was published.
    pub published: String,
    /// What was measured here.
    pub measured: String,
    /// Why the two differ, or that they agree.
    pub why: String,
}

/// What kept a variant from going faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Host,
    Adapter,
    Both,
    /// Hosts and adapters share the processors, and all of them are busy.
    Machine,
    /// No processor: the line, or waiting.
    Neither,
    Unknown,
}

fn limit(variant: &Variant, machine: &Machine) -> Limit {
    let (Some(host), Some(adapter)) = (variant.host_cpu_percent, variant.adapter_cpu_percent) else {
        return Limit::Unknown;
    };
    if machine.guest.is_some() {
        // The other host's time is not in the hosts': it may be the one that was the limit.
        return Limit::Unknown;
    }
    let shares = machine.adapter_cpus.iter().any(|cpu| machine.host_cpus.contains(cpu));
    if shares || host > ONE_PROCESSOR_PERCENT {
        let all = BUSY_PERCENT * machine.cpus.max(1) as f64;
        return if host + adapter >= all { Limit::Machine } else { Limit::Neither };
    }
    match (host >= BUSY_PERCENT, adapter >= BUSY_PERCENT) {
        (true, true) => Limit::Both,
        (true, false) => Limit::Host,
        (false, true) => Limit::Adapter,
        (false, false) => Limit::Neither,
    }
}

/// How to read the figures of an experiment, in sentences: what limits each variant, and where the work went.
pub fn reading(experiment: &Experiment, machine: &Machine) -> Vec<String> {
    let limits = limits(experiment, machine);
    // Beside a guest, a part of the work is the other host's, which is not in the sum.
    let work = if machine.guest.is_none() { where_the_work_went(experiment) } else { None };
    limits.into_iter().chain(work).chain(losses(experiment)).collect()
}

fn limits(experiment: &Experiment, machine: &Machine) -> Option<String> {
    let said: Vec<String> = experiment.variants.iter().filter_map(|variant| limit_of(variant, machine)).collect();
    (!said.is_empty()).then(|| format!("What limits {}.", said.join("; ")))
}

fn limit_of(variant: &Variant, machine: &Machine) -> Option<String> {
    let what = match limit(variant, machine) {
        Limit::Host => "the hosts' processor",
        Limit::Adapter => "the adapters' processor",
        Limit::Both => "the hosts' processor and the adapters' alike",
        Limit::Machine => "the processors, which hosts and adapters share",
        Limit::Neither => "no processor, but the line or the wait for answers",
        Limit::Unknown => return None,
    };
    let host = variant.host_cpu_percent.map(|share| format!("hosts {} %", percent(share)));
    let adapter = variant.adapter_cpu_percent.map(|share| format!("adapters {} %", percent(share)));
    let shares: Vec<String> = host.into_iter().chain(adapter).collect();
    Some(format!("“{}”: {what} ({} of one processor)", variant.name, shares.join(", ")))
}

/// Below this change, as a share, hosts and adapters together are said to take as much as before.
const SAME_WORK: f64 = 0.05;

fn where_the_work_went(experiment: &Experiment) -> Option<String> {
    let [base, variant, ..] = experiment.variants.as_slice() else { return None };
    let both = |variant: &Variant| Some((variant.host_cpu_s_per_gb?, variant.adapter_cpu_s_per_gb?));
    let ((base_host, base_adapter), (host, adapter)) = (both(base)?, both(variant)?);
    let (before, after) = (base_host + base_adapter, host + adapter);
    let totals = format!(
        "Hosts and adapters together took {} s/GB with “{}” and {} s/GB with “{}”",
        cpu_seconds(before),
        base.name,
        cpu_seconds(after),
        variant.name
    );
    if before <= 0.0 {
        return None;
    }
    let verdict = match after / before - 1.0 {
        change if change < -SAME_WORK => "work was spared, not only moved",
        change if change > SAME_WORK => "the machine as a whole works more",
        _ if host < base_host && adapter > base_adapter => "the work has moved from the hosts to the adapters",
        _ => "as much as before",
    };
    Some(format!("{totals}: {verdict}."))
}

fn losses(experiment: &Experiment) -> Option<String> {
    let lost = |variant: &&Variant| variant.lost_frames.is_some_and(|lost| lost > 0.0);
    let lossy: Vec<String> = experiment
        .variants
        .iter()
        .filter(lost)
        .map(|variant| format!("“{}” ({} frames)", variant.name, words::or_dash(variant.lost_frames, count)))
        .collect();
    (!lossy.is_empty()).then(|| format!("Frames were lost on the way with {}.", lossy.join(", ")))
}

/// Claims that speak of another variant than the second one of their experiment: experiment, claim, variant.
const SPOKEN_OF: [(&str, &str, &str); 7] = [
    ("all", "M1", "checksums only"),
    ("all", "M5", "all"),
    ("moderation-rpc", "M10", FOR_THROUGHPUT),
    ("moderation-mixed", "M10", FOR_THROUGHPUT),
    ("moderation-bursts", "M10", FOR_THROUGHPUT),
    ("moderation-bulk", "M9", "8000/s"),
    ("moderation-bulk", "M11", "8000/s"),
];
/// The setting of moderation that knows of throughput alone.
const FOR_THROUGHPUT: &str = "50 us or 32";
/// The policy that adapts, and is to cost a lone request nothing.
const ADAPTIVE: &str = "quiet-or-area";
/// Interrupts for each frame from which a host is said to be told of nearly every frame.
const NEARLY_EVERY_FRAME: f64 = 0.8;
/// From 90 % of a processor to 60 %.
const RATIO_R6: f64 = 0.67;

/// Every claim that an experiment bears on, beside what was measured. A number that is not known is shown as such.
pub fn claim_rows(experiment: &Experiment, report: &LabReport) -> Vec<ClaimRow> {
    experiment.claims.iter().map(|id| claim_row(id, experiment, report)).collect()
}

fn claim_row(id: &str, experiment: &Experiment, report: &LabReport) -> ClaimRow {
    let (measured, why) = match Pair::of(experiment, report, id) {
        Some(pair) => (pair.measured_and_named(id), pair.why(id)),
        None => ("not measured".to_owned(), String::new()),
    };
    let (configuration, published) = claim(id).map_or_else(unlisted, spoken);
    ClaimRow { id: id.to_owned(), configuration, published, measured, why }
}

fn spoken(claim: &Claim) -> (String, String) {
    (format!("{}: {}", claim.configuration, claim.metric), claim.published.to_owned())
}

fn unlisted() -> (String, String) {
    ("a claim that this version does not know".to_owned(), NOT_MEASURED.to_owned())
}

/// The two variants of an experiment that a claim is about.
struct Pair<'a> {
    experiment: &'a Experiment,
    report: &'a LabReport,
    base: &'a Variant,
    variant: &'a Variant,
}

impl<'a> Pair<'a> {
    /// The first variant, and the one that the claim speaks of: the second, if nothing else is said.
    fn of(experiment: &'a Experiment, report: &'a LabReport, id: &str) -> Option<Self> {
        let [base, second, ..] = experiment.variants.as_slice() else { return None };
        if let Some((base, variant)) = resist::spoken_of(&experiment.name, id) {
            let find = |name| experiment.variants.iter().find(|variant| variant.name == name);
            return Some(Self { experiment, report, base: find(base)?, variant: find(variant)? });
        }
        let named = SPOKEN_OF.iter().find(|(name, claim, _)| *name == experiment.name && *claim == id);
        let other = named.and_then(|(_, _, name)| experiment.variants.iter().find(|variant| variant.name == *name));
        Some(Self { experiment, report, base, variant: other.unwrap_or(second) })
    }

    /// The verdict of the report, or that of the samples where the report has none on this metric.
    fn verdict(&self, metric: &str) -> Option<Verdict> {
        let of_pair = |verdict: &&Verdict| {
            verdict.metric == metric && verdict.base == self.base.name && verdict.variant == self.variant.name
        };
        let found = words::verdicts(self.experiment).find(of_pair).cloned();
        found.or_else(|| compare::verdict(self.base, self.variant, metric))
    }

    fn phrase(&self, metric: &str) -> Option<String> {
        self.verdict(metric).map(|verdict| phrase(&verdict))
    }

    /// Throughput or transactions, whichever the traffic is about.
    fn traffic_metric(&self) -> &'static str {
        if self.base.transactions_per_s.is_some() { "transactions_per_s" } else { "throughput_bps" }
    }

    fn host_limit(&self) -> Limit {
        limit(self.base, &self.report.machine)
    }

    /// The share of the base's host processor time per GB that the variant saves; `None` where it saves nothing real.
    fn host_saving(&self) -> Option<f64> {
        let verdict = self.verdict("host_cpu_s_per_gb")?;
        (Finding::of(&verdict).is_difference() && verdict.ratio < 1.0).then_some(1.0 - verdict.ratio)
    }

    /// What was measured; with more than two variants, of which two.
    fn measured_and_named(&self, id: &str) -> String {
        let measured = self.measured(id).unwrap_or_else(|| "not measured".to_owned());
        if self.experiment.variants.len() == 2 {
            return measured;
        }
        format!("“{}” against “{}”: {measured}", self.variant.name, self.base.name)
    }

    /// The figures that a claim rests on, in words; `None` where one is missing.
    fn measured(&self, id: &str) -> Option<String> {
        if let Some(found) = resist::measured(self, id) {
            return Some(found);
        }
        match id {
            "M2" | "M3" => self.phrase("host_cpu_s_per_gb"),
            "M5" | "H3" => self.frames("line", |sample| sample.wire_frames),
            "M11" if self.experiment.name.starts_with("moderation") => self.interrupts_per_frame(),
            "M11" => self.frames("host", |sample| sample.host_frames),
            "M10" => self.response_time(),
            "R4" | "R6" => self.interrupts().zip(self.traffic_and_host()).map(|(a, b)| format!("{a}; {b}")),
            "H1" | "H2" => self.rate_at_share(),
            "H5" => Some("one kernel, one switch".to_owned()),
            "I20" => Some(self.method()),
            _ => self.traffic_and_host(),
        }
    }

    fn traffic_and_host(&self) -> Option<String> {
        let parts = [self.phrase(self.traffic_metric()), self.phrase("host_cpu_s_per_gb")];
        let said: Vec<String> = parts.into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    fn frames(&self, whither: &str, frames: fn(&crate::model::Sample) -> Option<u64>) -> Option<String> {
        let (before, after) = (frames_per_gb(self.base, frames)?, frames_per_gb(self.variant, frames)?);
        Some(format!(
            "frames to the {whither} per GB: {} with “{}”, {} with “{}”",
            count(before),
            self.base.name,
            count(after),
            self.variant.name
        ))
    }

    fn interrupts(&self) -> Option<String> {
        let (before, after) = (self.base.interrupts_per_s?, self.variant.interrupts_per_s?);
        Some(format!("interrupts per second: {} became {}", count(before), count(after)))
    }

    fn interrupts_per_frame(&self) -> Option<String> {
        let (before, after) = (self.base.interrupts_per_frame?, self.variant.interrupts_per_frame?);
        Some(format!("interrupts for each frame: {} became {}", words::share(before), words::share(after)))
    }

    fn response_time(&self) -> Option<String> {
        if let Some(median) = self.phrase("latency_p50_us") {
            let tail = self.phrase("latency_p99_us").map(|tail| format!("; {tail}")).unwrap_or_default();
            return Some(format!("{median}{tail}"));
        }
        if self.base.transactions_per_s.is_some() {
            return self.phrase("transactions_per_s");
        }
        let (before, after) = (self.base.rtt_p50_us?, self.variant.rtt_p50_us?);
        Some(format!("a round trip of {} us became {} us", words::microseconds(before), words::microseconds(after)))
    }

    fn rate_at_share(&self) -> Option<String> {
        let at = |variant: &Variant| {
            let (rate, share) = (variant.throughput_bps?, variant.host_cpu_percent?);
            Some(format!("{} Gbit/s at {} % of a processor", gbit(rate), percent(share)))
        };
        let host = self.phrase("host_cpu_s_per_gb").map(|phrase| format!("; {phrase}")).unwrap_or_default();
        Some(format!("{} became {}{host}", at(self.base)?, at(self.variant)?))
    }

    fn method(&self) -> String {
        let settings = &self.report.settings;
        format!("{} samples of {} s of each variant, from memory to memory", settings.repeats, settings.seconds)
    }

    fn why(&self, id: &str) -> String {
        if let Some(found) = resist::why(self, id) {
            return found;
        }
        match id {
            "M1" => format!("{}{}", self.why_gain(SAVING_M1), self.why_a_cheap_sum()),
            "M4" => format!("{}{}{}", self.why_gain(SAVING_M1), self.why_a_cheap_sum(), self.against_sending()),
            "M2" => {
                "The two parts can only be told apart by the processor's own counters, which the lab does not read: \
                     what stands here is their sum."
                    .to_owned()
            }
            "M3" => self.why_rank(),
            "M5" | "H3" => self.why_frames(),
            "M6" => self.why_large_send(),
            "M7" => format!(
                "{} What the network's share of the work is, is set by the work of each request.",
                self.why_gain(SAVING_M7)
            ),
            "M8" => format!(
                "{} The published machine did more beside ESP than one stream of data, so less of its time could be spared.",
                self.why_gain(SAVING_M8)
            ),
            "M9" => self.why_gain(SAVING_M9),
            "M10" => self.why_response_time(),
            "M11" => self.why_interrupts(),
            "R4" => self.why_a_cap_costs_no_speed(),
            "R6" => self.why_a_cap_spares_time(),
            "M20" => format!(
                "{} At a full line the ceiling is +5.2 %, or +4.4 % without TCP timestamps.",
                self.why_gain(SAVING_M20)
            ),
            "H1" => self.why_share(RATIO_H1),
            "H2" => self.why_share(RATIO_H2),
            "H4" => self.why_full_line(),
            "H5" => "Nothing but the switch differs here, so nothing else can be part of the difference.".to_owned(),
            "H6" => self.why_nothing_for_udp(),
            "I20" => "The same method, repeated and in turn, so that an interval can be given.".to_owned(),
            _ => String::new(),
        }
    }

    /// Why a gain in throughput of the published, processor-bound machine was another one here; `published_saving` is
    /// the share of its processor time that the published gain comes to.
    fn why_gain(&self, published_saving: f64) -> String {
        let limit = self.why_limit();
        let Some(verdict) = self.verdict("host_cpu_s_per_gb") else {
            return format!("{limit}; the hosts' processor time cannot be compared.");
        };
        let change = percent((1.0 - verdict.ratio).abs() * 100.0);
        let published = percent(published_saving * 100.0);
        let saving = match Finding::of(&verdict) {
            Finding::Difference if verdict.ratio < 1.0 => format!("the host saves {change} % of its time per GB"),
            Finding::Difference => {
                return format!(
                    "{limit}: the host takes {change} % more time per GB, where the published gain comes to {published} % less."
                );
            }
            Finding::Noise => "no saving stands out from the noise".to_owned(),
            Finding::Undecided => "the noise is too large to tell a saving".to_owned(),
        };
        let published = format!("the {published} % that the published gain comes to");
        let compared = match 1.0 - published_saving {
            ratio if ratio < verdict.ci95[0] => format!(", less than {published}"),
            ratio if ratio > verdict.ci95[1] => format!(", more than {published}"),
            _ => format!("; {published} lie within the interval"),
        };
        format!("{limit}: {saving}{compared}.")
    }

    /// Who was the limit without the offload, and what that means for a gain.
    fn why_limit(&self) -> &'static str {
        match self.host_limit() {
            Limit::Host => "Bound by its processor, as the published machine was",
            Limit::Adapter => "Here the adapter is itself a program and the limit, so savings do not become throughput",
            Limit::Both => {
                "Hosts and adapters are both at their limit here, so only part of a saving becomes throughput"
            }
            Limit::Machine => "Hosts and adapters share the processors here, so moved work is not saved",
            Limit::Neither => "No processor is the limit here, so a saving does not become throughput",
            Limit::Unknown => "Who was the limit was not watched",
        }
    }

    /// The reason where a saved sum is surely worth less than published.
    fn why_a_cheap_sum(&self) -> &'static str {
        let is_worth_less = |verdict: Verdict| verdict.ci95[0] > 1.0 - SAVING_M1;
        if !self.verdict("host_cpu_s_per_gb").is_some_and(is_worth_less) {
            return "";
        }
        " A processor of today sums tens of GB/s out of its cache, so the sum is a smaller part of the work."
    }

    fn against_sending(&self) -> String {
        let other = self.report.experiments.iter().find(|other| other.name == "tx-checksum");
        let sending = other.and_then(|other| Pair::of(other, self.report, "M4")?.phrase("host_cpu_s_per_gb"));
        sending.map(|phrase| format!(" For sending, tx-checksum found: {phrase}.")).unwrap_or_default()
    }

    fn why_rank(&self) -> String {
        let share = match self.host_saving() {
            Some(saving) => format!("The sum makes up {} % of the host's time per GB here", percent(saving * 100.0)),
            None => "The sum does not stand out from the noise here".to_owned(),
        };
        format!(
            "{share}. A processor of today sums tens of GB/s out of its cache; a rank among all functions would need a profile."
        )
    }

    fn why_frames(&self) -> String {
        let frames = |variant| frames_per_gb(variant, |sample| sample.wire_frames);
        let Some((before, after)) = frames(self.base).zip(frames(self.variant)).filter(|(before, _)| *before > 0.0)
        else {
            return "The frames on the line were not counted.".to_owned();
        };
        let change = after / before;
        if SAME_FRAMES.contains(&change) {
            return "As published: the line carries the same frames, so the cut is made below the stack.".to_owned();
        }
        format!(
            "{} × the frames per GB: acknowledgements are counted too, and their number changes with how the data \
             arrive; those that carry data are cut to the same size.",
            ratio(change)
        )
    }

    fn why_large_send(&self) -> String {
        let Some(gain) = self.verdict(self.traffic_metric()) else { return TOO_FEW.to_owned() };
        let limit = match self.host_limit() {
            Limit::Host => "the host is the limit without it",
            Limit::Adapter => "the adapter is the limit without it",
            Limit::Both => "host and adapter are both at their limit without it",
            Limit::Machine => "the processors are shared and all busy without it",
            Limit::Neither | Limit::Unknown => "no processor is known to be the limit without it",
        };
        match Finding::of(&gain) {
            Finding::Difference if gain.ratio >= LARGE_GAIN => format!(
                "More than published: {limit}, and this adapter, a program, is also spared work for each packet that \
                 the host does not send by itself."
            ),
            Finding::Difference if gain.ratio > 1.0 => format!("A gain as small as published: {limit}."),
            Finding::Difference => {
                format!("Less than nothing: {limit}, and cutting costs the adapter more than the host saves.")
            }
            Finding::Noise => format!("As published, little or no gain: {limit}."),
            Finding::Undecided => TOO_NOISY.to_owned(),
        }
    }

    /// The median time to an answer, or where there is none the transactions, and whether more of it is worse.
    fn waiting(&self) -> Option<(Verdict, bool)> {
        let of = |metric, more_is_worse| Some((self.verdict(metric)?, more_is_worse));
        of("latency_p50_us", true).or_else(|| of("transactions_per_s", false))
    }

    fn why_response_time(&self) -> String {
        let Some((verdict, more_is_worse)) = self.waiting() else { return TOO_FEW.to_owned() };
        let is_worse = (verdict.ratio > 1.0) == more_is_worse;
        let found = match Finding::of(&verdict) {
            Finding::Difference if is_worse => {
                "As published: a fixed time is added to every answer, whether others wait with it or not."
            }
            Finding::Difference => {
                "Not as published: the answers come sooner, as the host is interrupted less in its work."
            }
            Finding::Noise => "Not shown here: what is added is no more than the noise.",
            Finding::Undecided => TOO_NOISY,
        };
        format!("{found}{}", self.why_adaptive())
    }

    /// What the policy that adapts does in the place of the fixed one.
    fn why_adaptive(&self) -> String {
        let adaptive = self.experiment.variants.iter().find(|variant| variant.name == ADAPTIVE);
        let Some(variant) = adaptive.filter(|variant| variant.name != self.variant.name) else { return String::new() };
        let pair = Self { experiment: self.experiment, report: self.report, base: self.base, variant };
        let Some((verdict, _)) = pair.waiting() else { return String::new() };
        format!(" The rule that weighs who waits, {ADAPTIVE}: {}.", phrase(&verdict))
    }

    fn why_interrupts(&self) -> String {
        let spared = "Each frame handed over costs the host its way through the stack, and at most one interrupt; joined \
                      frames cost it once for many.";
        match self.base.interrupts_per_frame {
            Some(share) if share >= NEARLY_EVERY_FRAME => {
                format!("As published: without moderation the host is told of nearly every frame. {spared}")
            }
            Some(share) => format!(
                "Fewer than published, {} for each frame: this adapter is a program, and what arrives while it works or is \
                 being woken is handed over together. {spared}",
                words::share(share)
            ),
            None => spared.to_owned(),
        }
    }

    fn why_a_cap_costs_no_speed(&self) -> String {
        let Some(verdict) = self.verdict("throughput_bps") else { return TOO_FEW.to_owned() };
        match Finding::of(&verdict) {
            Finding::Noise => {
                "As published. Frames wait on the line between two interrupts; that costs no speed while something else \
                 limits it."
            }
            Finding::Difference if verdict.ratio < 1.0 => {
                "Not as published: the speed fell. A sender has no more under way than its window, and waiting for the \
                 next interrupt makes the round trip longer."
            }
            Finding::Difference => {
                "Not as published: the speed rose, so here the rate of interrupts was part of what limited it."
            }
            Finding::Undecided => TOO_NOISY,
        }
        .to_owned()
    }

    fn why_a_cap_spares_time(&self) -> String {
        let why = "Throttling spares the interrupts' part of the processor's time; the work on each frame stays, less what \
                   joining the frames that waited together spares.";
        let Some(verdict) = self.verdict("host_cpu_s_per_gb") else { return TOO_FEW.to_owned() };
        let compared = match Finding::of(&verdict) {
            Finding::Difference if verdict.ratio >= 1.0 => {
                return "Not as published: the host's processor works more.".to_owned();
            }
            Finding::Difference if verdict.ci95[1] < RATIO_R6 => "More is spared than published",
            Finding::Difference if verdict.ci95[0] > RATIO_R6 => "Less is spared than published",
            Finding::Difference => "As published",
            Finding::Noise => "Not shown here: no saving stands out from the noise",
            Finding::Undecided => return TOO_NOISY.to_owned(),
        };
        format!("{compared}: {RATIO_R6} × there. {why}")
    }

    fn why_share(&self, published_ratio: f64) -> String {
        let Some(verdict) = self.verdict("host_cpu_s_per_gb") else { return TOO_FEW.to_owned() };
        let here = match Finding::of(&verdict) {
            Finding::Difference => format!("{} ×", ratio(verdict.ratio)),
            Finding::Noise => "no difference larger than the noise".to_owned(),
            Finding::Undecided => "too noisy to tell".to_owned(),
        };
        format!(
            "Processor time for each bit: published {published_ratio} ×, here {here}. The published share is of two \
             Pentium 4 and of a whole kernel version; here it is of one processor of today, without an adapter's DMA: \
             the copy to the adapter is the adapter's."
        )
    }

    fn why_full_line(&self) -> String {
        let rate = self.verdict("throughput_bps").as_ref().map(Finding::of);
        match (rate, self.host_saving().is_some()) {
            (Some(Finding::Noise), true) => {
                "As published: the throughput is the same both times, and the gain is processor time."
            }
            (Some(Finding::Noise), false) => {
                "The throughput is the same both times, as published, but no saving stands out from the noise."
            }
            (Some(Finding::Difference), _) => {
                "Not as published: the throughput changed too, so the line was not full both times."
            }
            (Some(Finding::Undecided), _) => TOO_NOISY,
            (None, _) => TOO_FEW,
        }
        .to_owned()
    }

    fn why_nothing_for_udp(&self) -> String {
        match self.verdict(self.traffic_metric()).as_ref().map(Finding::of) {
            Some(Finding::Difference) => {
                "Not as published: something changed with the switch; see the samples before believing it."
            }
            Some(Finding::Noise) => "As published: the switch of TCP's segmentation does nothing for UDP.",
            Some(Finding::Undecided) => TOO_NOISY,
            None => TOO_FEW,
        }
        .to_owned()
    }
}

/// Said where nothing can be said.
const TOO_FEW: &str = "Too few samples could be compared to say.";
const TOO_NOISY: &str = "Too noisy to say whether it is as published.";

fn frames_per_gb(variant: &Variant, frames: fn(&crate::model::Sample) -> Option<u64>) -> Option<f64> {
    let of_sample = |sample| Some(frames(sample)? as f64 * GB / sample.bytes as f64);
    compare::median(&variant.samples.iter().filter_map(of_sample).collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::claims::CLAIMS;

    fn row(report: &LabReport, experiment: &str, id: &str) -> ClaimRow {
        let experiment = report.experiments.iter().find(|found| found.name == experiment).expect("in the sample");
        claim_rows(experiment, report).into_iter().find(|row| row.id == id).expect("a claim of it")
    }

    #[test]
    fn every_claim_of_a_full_run_is_measured_and_explained() {
        let report = sample::report();
        for experiment in &report.experiments {
            for row in claim_rows(experiment, &report) {
                assert!(row.measured != "not measured" && !row.why.is_empty(), "{} of {}", row.id, experiment.name);
            }
        }
    }

    #[test]
    fn every_claim_in_the_list_has_an_explanation() {
        let report = sample::report();
        let pair = Pair::of(&report.experiments[0], &report, "M1").expect("two variants");
        let of_others = CLAIMS.iter().filter(|claim| !resist::speaks_of(claim.id));
        for claim in of_others {
            assert!(!pair.why(claim.id).is_empty() && pair.measured(claim.id).is_some(), "{}", claim.id);
        }
    }

    /// What a claim speaks of is looked up by name: a name that no experiment has would be passed over unseen.
    #[test]
    fn every_variant_that_a_claim_speaks_of_is_one_of_its_experiment() {
        let plans = crate::plan::plans(&crate::plan::Settings::default());
        for (experiment, id, variant) in SPOKEN_OF {
            let plan = plans.iter().find(|plan| plan.name == experiment).expect("an experiment");
            assert!(plan.claims.contains(&id), "{experiment}: {id}");
            assert!(plan.variants.iter().any(|of| of.name == variant), "{experiment}: {variant}");
        }
        for plan in &plans {
            for id in plan.claims {
                let Some((base, variant)) = resist::spoken_of(plan.name, id) else { continue };
                assert!([base, variant].iter().all(|name| plan.variants.iter().any(|of| of.name == *name)), "{id}");
            }
        }
    }

    #[test]
    fn the_explanation_follows_the_data() {
        let mut report = sample::report();
        assert!(row(&report, "lso-1g", "H4").why.starts_with("As published"));
        assert!(row(&report, "tso-udp", "H6").why.starts_with("As published"));
        let duplex = report.experiments.iter().position(|experiment| experiment.name == "lso").expect("in the sample");
        report.experiments[duplex].claims = vec!["H4".to_owned(), "H6".to_owned()];
        assert!(row(&report, "lso", "H4").why.starts_with("Not as published"));
        assert!(row(&report, "lso", "H6").why.starts_with("Not as published"));
    }

    fn set(experiment: &mut Experiment, metric: &str, ratio: f64, ci95: [f64; 2]) {
        for verdict in experiment.verdict.iter_mut().chain(&mut experiment.verdicts) {
            if verdict.metric == metric {
                (verdict.ratio, verdict.ci95) = (ratio, ci95);
                verdict.significant = ci95[0] > 1.0 || ci95[1] < 1.0;
            }
        }
    }

    #[test]
    fn claims_on_moderation_follow_the_data() {
        let mut report = sample::with_moderation();
        for experiment in report.experiments.iter_mut().filter(|one| one.name.starts_with("moderation")) {
            experiment.claims = ["M9", "M10", "M11", "R4", "R6"].map(str::to_owned).to_vec();
        }
        let m10 = row(&report, "moderation-rpc", "M10");
        assert!(m10.measured.starts_with("“50 us or 32” against “off”") && m10.measured.contains("99th percentile"));
        assert!(m10.why.starts_with("As published") && m10.why.contains("quiet-or-area: "), "{}", m10.why);
        let m11 = row(&report, "moderation-bulk", "M11");
        assert!(
            m11.measured.contains("became 0.12") && m11.why.starts_with("As published"),
            "{} {}",
            m11.measured,
            m11.why
        );
        let at = report.experiments.iter().position(|one| one.name == "moderation-rpc").expect("in the sample");
        report.experiments[at].variants[0].interrupts_per_frame = Some(0.4);
        assert!(row(&report, "moderation-rpc", "M11").why.starts_with("Fewer than published, 0.40"));
        let cases = [
            ("latency_p50_us", "M10", 0.8, [0.7, 0.9], "Not as published"),
            ("latency_p50_us", "M10", 1.0, [0.9, 1.1], "Not shown here"),
            ("host_cpu_s_per_gb", "R6", 0.4, [0.3, 0.5], "More is spared"),
            ("host_cpu_s_per_gb", "R6", 0.65, [0.6, 0.7], "As published"),
            ("host_cpu_s_per_gb", "R6", 0.9, [0.85, 0.95], "Less is spared"),
            ("host_cpu_s_per_gb", "R6", 1.2, [1.1, 1.3], "Not as published"),
            ("host_cpu_s_per_gb", "R6", 1.0, [0.9, 1.1], "Not shown here"),
            ("host_cpu_s_per_gb", "R6", 1.0, [0.2, 4.0], "Too noisy"),
        ];
        for (metric, id, ratio, ci95, expected) in cases {
            set(&mut report.experiments[at], metric, ratio, ci95);
            let why = row(&report, "moderation-rpc", id).why;
            assert!(why.starts_with(expected), "{id} at {ratio}: {why}");
        }
    }

    #[test]
    fn a_cap_that_costs_speed_is_said_to_do_so() {
        let mut report = sample::report();
        let at = report.experiments.iter().position(|one| one.name == "lso-1g").expect("in the sample");
        report.experiments[at].claims = vec!["R4".to_owned()];
        assert!(row(&report, "lso-1g", "R4").why.starts_with("As published"));
        set(&mut report.experiments[at], "throughput_bps", 0.8, [0.75, 0.85]);
        let slower = row(&report, "lso-1g", "R4").why;
        assert!(slower.starts_with("Not as published") && slower.contains("makes the round trip longer"), "{slower}");
    }

    #[test]
    fn a_cap_that_makes_it_faster_is_not_explained_by_longer_round_trips() {
        let mut report = sample::report();
        let at = report.experiments.iter().position(|one| one.name == "lso-1g").expect("in the sample");
        report.experiments[at].claims = vec!["R4".to_owned()];
        set(&mut report.experiments[at], "throughput_bps", 1.2, [1.15, 1.25]);
        let faster = row(&report, "lso-1g", "R4").why;
        assert!(faster.starts_with("Not as published: the speed rose") && !faster.contains("longer"), "{faster}");
    }

    #[test]
    fn a_host_that_works_more_is_not_said_to_do_so_by_less_than_a_saving() {
        let mut report = sample::report();
        for experiment in &mut report.experiments {
            set(experiment, "host_cpu_s_per_gb", 1.3, [1.2, 1.4]);
        }
        let why = row(&report, "jumbo", "M20").why;
        let expected = ": the host takes 30 % more time per GB, where the published gain comes to 17 % less.";
        assert!(why.contains(expected), "{why}");
    }

    #[test]
    fn the_limit_is_the_processor_that_is_busy() {
        let (machine, shared) = (
            Machine { cpus: 2, host_cpus: vec![0], adapter_cpus: vec![1], ..Machine::default() },
            Machine { cpus: 1, host_cpus: vec![0], adapter_cpus: vec![0], ..Machine::default() },
        );
        let busy = |host, adapter| Variant {
            host_cpu_percent: Some(host),
            adapter_cpu_percent: Some(adapter),
            ..Variant::default()
        };
        assert_eq!(limit(&busy(99.0, 40.0), &machine), Limit::Host);
        assert_eq!(limit(&busy(50.0, 97.0), &machine), Limit::Adapter);
        assert_eq!(limit(&busy(95.0, 97.0), &machine), Limit::Both);
        assert_eq!(limit(&busy(30.0, 40.0), &machine), Limit::Neither);
        assert_eq!(limit(&busy(120.0, 70.0), &machine), Limit::Machine);
        assert_eq!(limit(&busy(60.0, 38.0), &shared), Limit::Machine);
        assert_eq!(limit(&Variant::default(), &machine), Limit::Unknown);
    }

    #[test]
    fn a_claim_without_a_measurement_says_so() {
        let mut report = sample::report();
        report.experiments[0].variants.truncate(1);
        report.experiments[0].claims = vec!["M1".to_owned(), "X9".to_owned()];
        let rows = claim_rows(&report.experiments[0], &report);
        assert!(rows.iter().all(|row| row.measured == "not measured"));
        assert!(rows[1].configuration.contains("does not know"));
        assert!(reading(&report.experiments[0], &report.machine).len() == 1, "the limit of the one variant");
    }

    #[test]
    fn a_claim_is_measured_on_the_variant_that_it_speaks_of() {
        let mut report = sample::report();
        let all = report.experiments.last_mut().expect("in the sample");
        let mut plain = all.variants[1].clone();
        plain.name = "checksums only".to_owned();
        all.variants[1].name = "all".to_owned();
        all.variants.push(plain);
        all.claims = vec!["M1".to_owned(), "M5".to_owned()];
        assert!(row(&report, "all", "M1").measured.starts_with("“checksums only” against"));
        assert!(row(&report, "all", "M5").measured.starts_with("“all” against"));
    }

    #[test]
    fn noise_is_no_agreement() {
        let mut report = sample::report();
        for verdict in report.experiments.iter_mut().flat_map(|one| one.verdict.iter_mut().chain(&mut one.verdicts)) {
            (verdict.ci95, verdict.significant) = ([0.2, 4.0], false);
        }
        for (experiment, id) in [("lso", "M6"), ("lso-1g", "H4"), ("tso-udp", "H6")] {
            assert_eq!(row(&report, experiment, id).why, TOO_NOISY, "{id}");
        }
        assert!(row(&report, "jumbo", "M20").why.contains("lie within the interval"));
    }

    #[test]
    fn where_the_adapters_were_not_watched_no_limit_is_named() {
        let mut experiment = sample::report().experiments.remove(0);
        experiment.variants.iter_mut().for_each(|variant| variant.adapter_cpu_percent = None);
        assert_eq!(limits(&experiment, &Machine::default()), None);
    }

    #[test]
    fn moved_work_is_told_from_spared_work() {
        let mut experiment = sample::report().experiments.remove(0);
        let mut say = |host: [f64; 2], adapter: [f64; 2]| {
            for position in 0..2 {
                experiment.variants[position].host_cpu_s_per_gb = Some(host[position]);
                experiment.variants[position].adapter_cpu_s_per_gb = Some(adapter[position]);
            }
            where_the_work_went(&experiment).expect("both were measured")
        };
        assert!(say([1.0, 0.5], [0.5, 0.5]).contains("spared"));
        assert!(say([1.0, 0.5], [0.5, 1.0]).contains("moved from the hosts"));
        assert!(say([1.0, 1.0], [0.5, 0.9]).contains("works more"));
        assert!(say([1.0, 1.0], [0.5, 0.5]).contains("as much as before"));
    }
}

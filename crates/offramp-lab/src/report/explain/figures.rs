//! What a run of the lab measured of a claim, as figures: for the model's table, which sets them beside its own.

use super::{Pair, resist};
use crate::compare::{self, GB};
use crate::model::{LabReport, Sample, Variant};
use offramp_model::claims::{Live, LiveFigure};

/// Metrics that are worked out from several fields of a sample.
const WIRE_FRAMES_PER_GB: &str = "wire_frames_per_gb";
const HOST_FRAMES_PER_GB: &str = "host_frames_per_gb";
const WIRE_FRAMES_PER_RESPONSE: &str = "wire_frames_per_response";

/// All that a run measured of a claim, in the order of its experiments. Empty where it measured nothing.
pub fn measurements(report: &LabReport, id: &str) -> Vec<Live> {
    let of_claim = report.experiments.iter().filter(|experiment| experiment.claims.iter().any(|claim| claim == id));
    let measurement = |pair: Pair| {
        Some(Live {
            experiment: pair.experiment.name.clone(),
            base: pair.base.name.clone(),
            variant: pair.variant.name.clone(),
            measured: pair.measured(id)?,
            why: pair.why(id),
            figures: pair.metrics(id).iter().filter_map(|metric| pair.figure(metric)).collect(),
        })
    };
    of_claim.filter_map(|experiment| Pair::of(experiment, report, id).and_then(measurement)).collect()
}

/// The unit of a metric: its name ends in it (`docs/lab-json.md`).
fn unit(metric: &str) -> &'static str {
    const UNITS: [(&str, &str); 6] = [
        ("_bps", "bit/s"),
        ("_s_per_gb", "s/GB"),
        ("_per_gb", "1/GB"),
        ("_per_s", "1/s"),
        ("_percent", "%"),
        ("_us", "us"),
    ];
    let of_end = UNITS.iter().find(|(end, _)| metric.ends_with(end)).map(|(_, unit)| *unit);
    of_end.unwrap_or(match metric {
        "stall_s" => "s",
        "memory_bytes_max" => "byte",
        "cwnd_segments" => "segment",
        _ => "",
    })
}

impl Pair<'_> {
    /// The metrics that the words on a claim are made of.
    fn metrics(&self, id: &str) -> Vec<&'static str> {
        if resist::spoken_of(&self.experiment.name, id).is_some() {
            return resist::metrics(id).to_vec();
        }
        let traffic = self.traffic_metric();
        match id {
            "M2" | "M3" => vec!["host_cpu_s_per_gb"],
            "M5" | "H3" => vec![WIRE_FRAMES_PER_GB],
            "M11" if self.experiment.name.starts_with("moderation") => vec!["interrupts_per_frame"],
            "M11" => vec![HOST_FRAMES_PER_GB],
            "M10" => self.metrics_of_waiting(),
            "R4" | "R6" => vec!["interrupts_per_s", traffic, "host_cpu_s_per_gb", "host_cpu_percent"],
            "H1" | "H2" => vec![traffic, "host_cpu_percent", "host_cpu_s_per_gb"],
            "H5" | "I20" => Vec::new(),
            _ => vec![traffic, "host_cpu_s_per_gb"],
        }
    }

    fn metrics_of_waiting(&self) -> Vec<&'static str> {
        if self.base.latency_p50_us.is_some() {
            return vec!["latency_p50_us", "latency_p99_us"];
        }
        if self.base.transactions_per_s.is_some() { vec!["transactions_per_s"] } else { vec!["rtt_p50_us"] }
    }

    /// `None` where neither variant has the metric.
    fn figure(&self, metric: &'static str) -> Option<LiveFigure> {
        let [of_base, of_variant] = [self.base, self.variant].map(|variant| values(variant, metric));
        let [base, value] = [&of_base, &of_variant].map(|values| compare::median(values));
        if base.is_none() && value.is_none() {
            return None;
        }
        let range = compare::Spread::of(&of_variant).map(|spread| [spread.min, spread.max]);
        let verdict = self.verdict(metric);
        let (ratio, ci95) = verdict.map(|verdict| (verdict.ratio, verdict.ci95)).unzip();
        Some(LiveFigure { metric, unit: unit(metric), base, value, range, ratio, ci95 })
    }
}

/// A metric of each sample that has it.
fn values(variant: &Variant, metric: &str) -> Vec<f64> {
    let of_sample = |sample: &Sample| {
        let per_gb = |frames: Option<u64>| Some(frames? as f64 * GB / sample.bytes as f64);
        match metric {
            WIRE_FRAMES_PER_GB => per_gb(sample.wire_frames),
            HOST_FRAMES_PER_GB => per_gb(sample.host_frames),
            WIRE_FRAMES_PER_RESPONSE => resist::frames_of_a_response(sample),
            _ => compare::metric_value(sample, metric),
        }
    };
    variant.samples.iter().filter_map(of_sample).filter(|value| value.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn every_claim_of_a_full_run_has_the_figures_that_its_words_are_made_of() {
        let report = sample::report();
        for experiment in &report.experiments {
            for id in &experiment.claims {
                let of_claim = measurements(&report, id);
                let found = of_claim.iter().find(|found| found.experiment == experiment.name).expect("measured");
                assert!(!found.figures.is_empty() || matches!(id.as_str(), "H5" | "I20"), "{id}");
                assert!(found.figures.iter().all(|figure| figure.value.is_some() && figure.range.is_some()), "{id}");
            }
        }
    }

    #[test]
    fn a_figure_has_values_in_the_unit_of_its_name_and_the_ratio_of_the_report() {
        let report = sample::report();
        let found = measurements(&report, "H2").remove(0);
        assert_eq!((found.experiment.as_str(), found.base.as_str(), found.variant.as_str()), ("lso-1g", "off", "on"));
        let [speed, share, cost] = found.figures.as_slice() else { panic!("{:?}", found.figures) };
        assert_eq!([speed.unit, share.unit, cost.unit], ["bit/s", "%", "s/GB"]);
        assert!(speed.value.is_some_and(|bps| (0.5e9..1e9).contains(&bps)), "{speed:?}");
        let lso = report.experiments.iter().find(|one| one.name == "lso-1g").unwrap();
        let verdict = crate::report::words::verdicts(lso).find(|of| of.metric == "host_cpu_s_per_gb").unwrap();
        assert_eq!((cost.ratio, cost.ci95), (Some(verdict.ratio), Some(verdict.ci95)));
    }

    #[test]
    fn what_was_not_measured_has_no_measurement() {
        let mut report = sample::report();
        assert!(measurements(&report, "I7").is_empty());
        report.experiments.iter_mut().for_each(|experiment| experiment.variants.truncate(1));
        assert!(measurements(&report, "H2").is_empty());
    }

    #[test]
    fn no_report_however_odd_makes_it_panic() {
        let mut report = sample::with_moderation();
        let ids: Vec<String> = crate::claims::CLAIMS.iter().map(|claim| claim.id.to_owned()).collect();
        for experiment in &mut report.experiments {
            experiment.claims.clone_from(&ids);
            for sample in experiment.variants.iter_mut().flat_map(|variant| &mut variant.samples) {
                (sample.bytes, sample.seconds) = (0, 0.0);
            }
        }
        for id in &ids {
            let figures = measurements(&report, id).into_iter().flat_map(|found| found.figures);
            assert!(figures.filter_map(|figure| figure.value).all(f64::is_finite), "{id}");
        }
    }
}

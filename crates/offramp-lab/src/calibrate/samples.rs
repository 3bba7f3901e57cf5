//! Converts the samples of a run to costs per byte of payload, and averages the costs over rounds.

use super::error::{CalibrateError, missing};
use super::target::CPU_PERCENT;
use super::units::NANOSECONDS_PER_SECOND;
use crate::model::{Experiment, Sample};

/// Maximum uncertainty of a sample's host time, as a share of the host time. The host time is uncertain if a hypervisor
/// takes processor time. The limit is half of the maximum error of a prediction.
const OPEN_SHARE_MAX: f64 = CPU_PERCENT / 2.0 / 100.0;
/// Share of the values that the trimmed mean omits at each end, in percent.
const TRIMMED_PERCENT: usize = 10;

/// The samples of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Samples<'a> {
    pub(super) experiments: &'a [Experiment],
    /// Selected round; `None` for all rounds.
    pub(super) round: Option<usize>,
}

impl Samples<'_> {
    /// Returns the mean costs of a variant over the selected rounds.
    pub(super) fn get(&self, (experiment, variant): (&str, &str)) -> Result<PerByte, CalibrateError> {
        let missing = || missing((experiment, variant));
        let of = self.experiments.iter().find(|of| of.name == experiment).ok_or_else(missing)?;
        let of = of.variants.iter().find(|of| of.name == variant).ok_or_else(missing)?;
        let rounds = of.samples.iter().filter(|sample| self.round.is_none_or(|round| sample.round == round));
        let all = PerByte::certain(rounds.filter_map(PerByte::of).collect());
        let middle = |of: fn(&PerByte) -> f64| trimmed_mean(all.iter().map(of).collect()).ok_or_else(missing);
        Ok(PerByte {
            host_ns: middle(|of| of.host_ns)?,
            host_min_ns: middle(|of| of.host_min_ns)?,
            host_max_ns: middle(|of| of.host_max_ns)?,
            adapter_ns: middle(|of| of.adapter_ns)?,
            sends: middle(|of| of.sends)?,
            receives: middle(|of| of.receives)?,
            wire_frames: middle(|of| of.wire_frames)?,
            time_s: middle(|of| of.time_s)?,
        })
    }
}

impl Samples<'_> {
    /// Returns the mean of a figure of a variant; `None` if not measured.
    pub(super) fn mean(&self, (experiment, variant): (&str, &str), value: fn(&Sample) -> Option<f64>) -> Option<f64> {
        let of = self.experiments.iter().find(|of| of.name == experiment)?;
        let of = of.variants.iter().find(|of| of.name == variant)?;
        let rounds = of.samples.iter().filter(|sample| self.round.is_none_or(|round| sample.round == round));
        trimmed_mean(rounds.filter_map(value).collect())
    }
}

/// The costs per byte of payload, in one sample or as a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PerByte {
    pub(super) host_ns: f64,
    /// Lower bound of the true value of `host_ns`. The upper bound is `host_max_ns`. The bounds differ if a hypervisor
    /// took processor time.
    pub(super) host_min_ns: f64,
    pub(super) host_max_ns: f64,
    pub(super) adapter_ns: f64,
    pub(super) sends: f64,
    pub(super) receives: f64,
    pub(super) wire_frames: f64,
    pub(super) time_s: f64,
}

impl PerByte {
    fn of(sample: &Sample) -> Option<Self> {
        let bytes = sample.bytes as f64;
        let host_s = sample.host_cpu_s?;
        let [host_min_s, host_max_s] = sample.host_cpu_range_s.unwrap_or([host_s; 2]);
        let found = Self {
            host_ns: host_s * NANOSECONDS_PER_SECOND / bytes,
            host_min_ns: host_min_s * NANOSECONDS_PER_SECOND / bytes,
            host_max_ns: host_max_s * NANOSECONDS_PER_SECOND / bytes,
            adapter_ns: sample.adapter_cpu_s? * NANOSECONDS_PER_SECOND / bytes,
            sends: sample.sent_frames? as f64 / bytes,
            receives: sample.host_frames? as f64 / bytes,
            wire_frames: sample.wire_frames? as f64 / bytes,
            time_s: sample.seconds / bytes,
        };
        (sample.bytes > 0).then_some(found)
    }

    /// Returns whether the uncertainty of the hosts' time is at most [`OPEN_SHARE_MAX`].
    fn is_certain(&self) -> bool {
        self.host_max_ns - self.host_min_ns <= self.host_ns * OPEN_SHARE_MAX
    }

    /// Returns the samples whose host time is certain ([`Self::is_certain`]), or all samples if fewer than half of the
    /// samples are certain.
    fn certain(all: Vec<Self>) -> Vec<Self> {
        let certain: Vec<Self> = all.iter().copied().filter(Self::is_certain).collect();
        if certain.len() * 2 >= all.len() { certain } else { all }
    }
}

/// Returns the mean without the smallest and the largest [`TRIMMED_PERCENT`] percent of the values. `None` if no value
/// remains.
///
/// On a virtual machine, the samples of a variant fall into two groups. The cost in one group can be twice the cost in
/// the other group. The reason is unknown. A median would fall into one of the two groups by chance, and thus not be
/// comparable between experiments. Means are additive: the mean of a sum is the sum of the means.
fn trimmed_mean(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let trimmed = values.len() * TRIMMED_PERCENT / 100;
    let kept = values.get(trimmed..values.len() - trimmed).filter(|kept| !kept.is_empty())?;
    Some(kept.iter().sum::<f64>() / kept.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_in_which_the_hosts_time_is_open_counts_only_where_half_of_them_are_so() {
        let of = |host_ns: f64, open_ns: f64| PerByte {
            host_ns,
            host_min_ns: host_ns - open_ns,
            host_max_ns: host_ns,
            adapter_ns: 1.0,
            sends: 1.0,
            receives: 1.0,
            wire_frames: 1.0,
            time_s: 1.0,
        };
        let [sure, open] = [of(1.0, 0.05), of(3.0, 2.0)];
        assert_eq!(PerByte::certain(vec![sure, open]), [sure]);
        assert_eq!(PerByte::certain(vec![open, open, sure]).len(), 3, "one of three says too little by itself");
        assert_eq!(PerByte::certain(vec![open]), [open]);
    }

    #[test]
    fn a_mean_leaves_out_the_ends_and_is_the_sum_of_the_means_of_its_parts() {
        let ten = |wild: f64| (0..9).map(f64::from).chain([wild]).collect();
        assert_eq!((trimmed_mean(ten(9.0)), trimmed_mean(ten(1e9))), (Some(4.5), Some(4.5)));
        assert_eq!((trimmed_mean(vec![3.0]), trimmed_mean(vec![1.0, 2.0])), (Some(3.0), Some(1.5)));
        assert_eq!(trimmed_mean(Vec::new()), None);
    }
}

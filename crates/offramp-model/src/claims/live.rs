//! Measurements of claims by `offramp lab`, for the table of claims.

use serde::Serialize;

/// The result of one experiment of `offramp lab` for one claim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Live {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the base variant.
    pub base: String,
    /// Name of the variant that the claim compares with the base variant.
    pub variant: String,
    /// The result in words. Each ratio is followed by its confidence interval.
    pub measured: String,
    /// The comparison with the published result, and the resource that limits each variant.
    pub why: String,
    /// The figures of the result, one per metric.
    pub figures: Vec<LiveFigure>,
}

/// The values of one metric for both variants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveFigure {
    /// Name of the metric. The name ends with the unit, if the metric has a unit.
    pub metric: &'static str,
    /// Unit of the values; empty for a count.
    pub unit: &'static str,
    /// Median of the base variant's samples; `None` if not measured.
    pub base: Option<f64>,
    /// Median of the samples of `variant`; `None` if not measured.
    pub value: Option<f64>,
    /// Minimum and maximum of the samples of `variant`.
    pub range: Option<[f64; 2]>,
    /// Ratio of `variant` to `base`: the median of the ratios per round. `None` if a value is 0, or the run had too few
    /// rounds.
    pub ratio: Option<f64>,
    /// 95 % confidence interval of the ratio.
    pub ci95: Option<[f64; 2]>,
}

/// The run of `offramp lab` that measured the figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveRun {
    /// Version of offramp used for the measurement.
    pub offramp: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the processor.
    pub processor: String,
    /// Number of processors.
    pub cpus: usize,
    /// `true` if at least one host was a guest.
    pub has_guest: bool,
    /// Number of samples per variant.
    pub repeats: usize,
    /// Measured time per sample, in seconds.
    pub seconds: f64,
    /// Names of the experiments in the run.
    pub experiments: Vec<String>,
}

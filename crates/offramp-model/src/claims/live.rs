//! Measurements of a claim on a local machine, for the table. The lab measures, and fills it in.

use serde::Serialize;

/// The result of one experiment of the lab for one claim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Live {
    /// Name of the experiment.
    pub experiment: String,
    /// The base variant.
    pub base: String,
    /// The variant in the claim.
    pub variant: String,
    /// The result in words; each ratio with its interval.
    pub measured: String,
    /// The comparison with the published result, and the limit of the run.
    pub why: String,
    /// The figures behind the words.
    pub figures: Vec<LiveFigure>,
}

/// One metric of both variants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveFigure {
    /// Name of the metric, with its unit at the end if it has one.
    pub metric: &'static str,
    /// Unit of the values; nothing for a count.
    pub unit: &'static str,
    /// Median of the base. `None`: not measured.
    pub base: Option<f64>,
    /// Median of the variant. `None`: not measured.
    pub value: Option<f64>,
    /// Smallest and largest sample of the variant.
    pub range: Option<[f64; 2]>,
    /// Variant over base: the median of the rounds' ratios. `None`: a value is 0, or there were too few rounds.
    pub ratio: Option<f64>,
    /// 95 % confidence interval of the ratio.
    pub ci95: Option<[f64; 2]>,
}

/// The run of the lab behind the figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveRun {
    /// Version of the measuring program.
    pub offramp: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the processor.
    pub processor: String,
    /// Processors.
    pub cpus: usize,
    /// One of the hosts was a guest.
    pub has_guest: bool,
    /// Samples of each variant.
    pub repeats: usize,
    /// Measured time of each sample.
    pub seconds: f64,
    /// Experiments of the run.
    pub experiments: Vec<String>,
}

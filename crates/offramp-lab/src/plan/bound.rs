//! Bounds that the variants of an experiment must keep.

/// The base of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The first variant.
    Base,
    /// The best of these variants in the metric; of all variants if the list is empty.
    Best(&'static [&'static str]),
}

/// The limit of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The ratio may be at most this; the best variant is the lowest.
    AtMost(f64),
    /// The ratio must be at least this; the best variant is the highest.
    AtLeast(f64),
}

/// A bound on a policy fit for every use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Name of the metric.
    pub metric: &'static str,
    /// The base of the ratio.
    pub against: Against,
    /// The limit of the ratio.
    pub limit: Limit,
}

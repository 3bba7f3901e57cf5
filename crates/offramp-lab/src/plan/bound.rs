//! Bounds that the variants of an experiment must keep.

/// What a ratio is taken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The first variant.
    Base,
    /// The one of these variants that is best in the metric; of all where none is named.
    Best(&'static [&'static str]),
}

/// What a ratio must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The ratio may be at most this; the best variant is the lowest.
    AtMost(f64),
    /// The ratio must be at least this; the best variant is the highest.
    AtLeast(f64),
}

/// What a policy must keep to be fit for every use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Name of the metric.
    pub metric: &'static str,
    /// What the ratio is taken to.
    pub against: Against,
    /// What it must keep to.
    pub limit: Limit,
}

//! Bounds that the variants of an experiment must keep.

/// The reference of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The first variant.
    Base,
    /// The one of these variants that is best in the metric; of all where none is named.
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

/// A bound that a policy must keep to be fit for every use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Name of the metric.
    pub metric: &'static str,
    /// The reference.
    pub against: Against,
    /// The limit.
    pub limit: Limit,
}

//! The placement of the two processors relative to each other (near, mid or far), derived from the cache-line latency
//! between them.

use offramp_testbed::cpu::line_distance_ns;
use offramp_testbed::failure::{Doing, Result};
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};

/// Maximum one-way latency of a cache line within one cache, in nanoseconds.
const NEAR_NS_MAX: f64 = 120.0;
/// Maximum one-way latency of a cache line between two caches of one chip, in nanoseconds.
const MID_NS_MAX: f64 = 450.0;
/// Duration of one measurement of the latency.
const PROBE: Duration = Duration::from_millis(50);

/// The placement of two processors during a sample, from the one-way latency of a cache line before and after the
/// sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Placement {
    /// The processors share a cache.
    Near,
    /// The processors have separate caches on one chip.
    Mid,
    /// The latency is longer than between two caches of one chip.
    Far,
    /// The placement changed during the sample.
    Mixed,
}

impl Placement {
    /// Returns the placement for a one-way latency in nanoseconds.
    pub fn of(one_way_ns: f64) -> Self {
        match one_way_ns {
            ns if ns < NEAR_NS_MAX => Self::Near,
            ns if ns < MID_NS_MAX => Self::Mid,
            _ => Self::Far,
        }
    }

    /// Measures the placement of two processors, which must be otherwise idle.
    ///
    /// # Errors
    /// Returns an error if a processor cannot be used.
    pub fn probe(cpu_a: usize, cpu_b: usize) -> Result<Self> {
        line_distance_ns(cpu_a, cpu_b, PROBE).map(Self::of).doing("measuring the distance of the processors")
    }

    /// Combines the placement measured before a sample with the placement measured after the sample.
    #[must_use]
    pub fn and(self, after: Self) -> Self {
        if self == after { self } else { Self::Mixed }
    }

    /// Returns the name printed for the placement.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_way_time_has_a_class() {
        let classes = [(55.0, "near"), (119.9, "near"), (120.0, "mid"), (280.0, "mid"), (450.0, "far"), (5e4, "far")];
        for (ns, name) in classes {
            assert_eq!(Placement::of(ns).name(), name, "{ns} ns");
        }
    }

    #[test]
    fn a_sample_whose_probes_differ_is_mixed() {
        assert_eq!(Placement::Near.and(Placement::Near), Placement::Near);
        assert_eq!(Placement::Near.and(Placement::Mid), Placement::Mixed);
    }
}

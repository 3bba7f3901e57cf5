//! The distance of the two processors.

use offramp_testbed::cpu::line_distance_ns;
use offramp_testbed::failure::{Doing, Result};
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};

/// Maximum one-way time of a line inside one cache.
const NEAR_NS_MAX: f64 = 120.0;
/// Maximum one-way time of a line between caches of one chip.
const MID_NS_MAX: f64 = 450.0;
/// Time of one probe.
const PROBE: Duration = Duration::from_millis(50);

/// The class of a sample by the one-way time of a cache line before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Placement {
    /// One cache.
    Near,
    /// Two caches of one chip.
    Mid,
    /// Farther.
    Far,
    /// It changed meanwhile.
    Mixed,
}

impl Placement {
    /// Returns the class of a one-way time in nanoseconds.
    pub fn of(one_way_ns: f64) -> Self {
        match one_way_ns {
            ns if ns < NEAR_NS_MAX => Self::Near,
            ns if ns < MID_NS_MAX => Self::Mid,
            _ => Self::Far,
        }
    }

    /// Probes two processors. Both must be idle otherwise.
    ///
    /// # Errors
    /// When one of them may not be used.
    pub fn probe(cpu_a: usize, cpu_b: usize) -> Result<Self> {
        line_distance_ns(cpu_a, cpu_b, PROBE).map(Self::of).doing("measuring the distance of the processors")
    }

    /// Returns the class of a sample with a probe on either side.
    #[must_use]
    pub fn and(self, after: Self) -> Self {
        if self == after { self } else { Self::Mixed }
    }

    /// Returns its name in the output.
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

//! Statistics of several samples: median, extremes, deviation.

use std::f64::consts::LN_2;

/// The spread of one metric's samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Smallest value.
    pub min: f64,
    /// Median; for an even number of samples, the mean of the two middle samples.
    pub median: f64,
    /// Largest value.
    pub max: f64,
    /// Median absolute deviation from the median.
    pub mad: f64,
}

impl Spread {
    /// Returns the spread of the finite `values`, or `None` if no value is finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted_finite(values);
        let median = middle(&sorted)?;
        let deviations: Vec<f64> = sorted.iter().map(|value| (value - median).abs()).collect();
        let mad = middle(&sorted_finite(&deviations))?;
        Some(Self { min: *sorted.first()?, median, max: *sorted.last()?, mad })
    }
}

/// Returns the median of the finite `values`, or `None` if no value is finite.
pub fn median(values: &[f64]) -> Option<f64> {
    middle(&sorted_finite(values))
}

fn sorted_finite(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(sorted[half - 1], upper)) }
}

/// Maximum probability that the true median lies below the interval, and maximum probability that the true median lies
/// above the interval.
const TAIL_PROBABILITY: f64 = 0.025;

/// Returns a confidence interval of the median, computed by the sign test from the finite `samples`. For independent
/// samples, the interval contains the true median with a probability of 95 % or more. With fewer than nine samples, the
/// interval spans from the lowest to the highest sample. With fewer than six samples, the probability that the interval
/// contains the true median is below 95 %. Without samples, both bounds are NaN.
pub fn median_interval(samples: &[f64]) -> [f64; 2] {
    let values = sorted_finite(samples);
    let Some(last) = values.len().checked_sub(1) else { return [f64::NAN; 2] };
    // Each sample is below the true median with probability 1/2. `at_most` is the probability that at most `left_out`
    // samples are below the median. `ln_exactly` is the logarithm of the probability that exactly `left_out` samples
    // are below the median. For many samples, this probability itself would underflow.
    let (mut left_out, mut ln_exactly) = (0, -(values.len() as f64) * LN_2);
    let mut at_most = ln_exactly.exp();
    loop {
        ln_exactly += ((values.len() - left_out) as f64 / (left_out + 1) as f64).ln();
        at_most += ln_exactly.exp();
        if at_most > TAIL_PROBABILITY {
            return [values[left_out], values[last - left_out]];
        }
        left_out += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_middle_two() {
        assert_eq!(median(&[9.0, 1.0, f64::NAN, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[f64::NAN]), None);
    }

    #[test]
    fn a_median_lies_beyond_either_end_of_its_interval_in_one_of_forty_cases_at_most() {
        // Published tables of the sign test: of `count` samples, `outside` lie below the interval and `outside` above.
        for (count, outside) in [(1, 0), (8, 0), (9, 1), (15, 3), (20, 5), (50, 17), (100, 39), (2000, 955)] {
            let samples: Vec<_> = (0..count).map(f64::from).collect();
            assert_eq!(median_interval(&samples).map(|end| end as i32), [outside, count - 1 - outside], "{count}");
        }
        assert!(median_interval(&[]).iter().all(|end| end.is_nan()));
    }
}

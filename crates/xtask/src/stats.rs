//! Statistics of several samples.

use std::f64::consts::LN_2;

/// Returns the middle value; for an even number, the mean of the middle two; not a number for no samples.
pub fn median(samples: &[f64]) -> f64 {
    let mut values = samples.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Maximum probability of a median beyond one side of its interval.
const TAIL_PROBABILITY: f64 = 0.025;

/// Returns an interval around the median, with a probability of 95 % or more for independent samples (sign test). For
/// fewer than nine samples, it goes from the lowest to the highest; for fewer than six, that is less probable. Not a
/// number for no samples.
pub fn median_interval(samples: &[f64]) -> [f64; 2] {
    let mut values = samples.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return [f64::NAN; 2] };
    // Each sample is below the median in one of two cases. `ln_exactly` is the logarithm of the probability of exactly
    // `left_out` such samples; the probability itself is too small for a number if they are many. `at_most` is the
    // probability of no more than that.
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
        assert!((median(&[9.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[9.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_median_lies_beyond_either_end_of_its_interval_in_one_of_forty_cases_at_most() {
        // Tables of the sign test: the number of samples outside, at each end, among `count`.
        for (count, outside) in [(1, 0), (8, 0), (9, 1), (15, 3), (20, 5), (50, 17), (100, 39), (2000, 955)] {
            let samples: Vec<_> = (0..count).map(f64::from).collect();
            assert_eq!(median_interval(&samples).map(|end| end as i32), [outside, count - 1 - outside], "{count}");
        }
        assert!(median_interval(&[]).iter().all(|end| end.is_nan()));
    }
}

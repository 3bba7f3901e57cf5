//! What is said of several samples.

use std::f64::consts::LN_2;

/// The middle value; of an even number, the mean of the middle two; not a number when there is none.
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

/// Probability that the median lies to one side of its interval.
const TAIL_PROBABILITY: f64 = 0.025;

/// Where the median lies, with a probability of 95 % or more if the samples do not depend on each other (sign test): of fewer than
/// nine samples, from the lowest to the highest, which of fewer than six is less probable. Not a number when there is none.
pub fn median_interval(samples: &[f64]) -> [f64; 2] {
    let mut values = samples.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return [f64::NAN; 2] };
    // Each sample is below the median in one of two cases: the logarithm of the probability that `left_out` are, which is too
    // small for a number of its own if they are many, and the probability that no more are.
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
        // Tables of the sign test: how many of `count` samples lie outside, at each end.
        for (count, outside) in [(1, 0), (8, 0), (9, 1), (15, 3), (20, 5), (50, 17), (100, 39), (2000, 955)] {
            let samples: Vec<_> = (0..count).map(f64::from).collect();
            assert_eq!(median_interval(&samples).map(|end| end as i32), [outside, count - 1 - outside], "{count}");
        }
        assert!(median_interval(&[]).iter().all(|end| end.is_nan()));
    }
}

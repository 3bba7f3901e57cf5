//! Variance-based sensitivity (Sobol). The estimators are by Saltelli et al. 2010 and Jansen 1999.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The shares of the variance explained by one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Index {
    /// First-order share: the effect of the parameter alone, without interactions.
    pub first: f64,
    /// Total share: the effect of the parameter, including interactions with other parameters.
    pub total: f64,
}

/// Returns the points: two independent random matrices A and B of `samples` rows, then one matrix per parameter. The
/// matrix of a parameter equals A, with the parameter's column from B.
pub fn design(parameters: usize, samples: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut matrix = || -> Vec<Vec<f64>> {
        (0..samples).map(|_| (0..parameters).map(|_| rng.random_range(0.0..1.0)).collect()).collect()
    };
    let (a, b) = (matrix(), matrix());
    let mut points = [a.clone(), b.clone()].concat();
    for parameter in 0..parameters {
        let mixed = a.iter().zip(&b).map(|(of_a, of_b)| {
            let mut row = of_a.clone();
            row[parameter] = of_b[parameter];
            row
        });
        points.extend(mixed);
    }
    points
}

/// Computes the shares from the values of the function at the points of [`design`]. Without variance, all shares are 0.
pub fn indices(values: &[f64], parameters: usize, samples: usize) -> Vec<Index> {
    let count = samples as f64;
    let (a, rest) = values.split_at(samples);
    let (b, mixed) = rest.split_at(samples);
    let mean = values[..2 * samples].iter().sum::<f64>() / (2.0 * count);
    let variance = values[..2 * samples].iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (2.0 * count);
    // The variance is below the rounding error of the values.
    if variance <= (f64::EPSILON * mean).powi(2) {
        return vec![Index { first: 0.0, total: 0.0 }; parameters];
    }
    let of = |mixed: &[f64]| {
        let rows = || a.iter().zip(b).zip(mixed);
        let first: f64 = rows().map(|((a, b), mixed)| (b - mean) * (mixed - a)).sum();
        let total: f64 = rows().map(|((a, _), mixed)| (a - mixed).powi(2)).sum();
        Index { first: first / count / variance, total: total / (2.0 * count) / variance }
    };
    mixed.chunks_exact(samples).take(parameters).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::PI;

    fn indices_of(function: impl Fn(&[f64]) -> f64, parameters: usize, samples: usize) -> Vec<Index> {
        let values: Vec<_> = design(parameters, samples, 1).iter().map(|point| function(point)).collect();
        indices(&values, parameters, samples)
    }

    #[test]
    fn ishigamis_function_has_the_shares_that_are_known_of_it() {
        let ishigami = |x: &[f64]| {
            let angle = |at: usize| -PI + 2.0 * PI * x[at];
            angle(0).sin() + 7.0 * angle(1).sin().powi(2) + 0.1 * angle(2).powi(4) * angle(0).sin()
        };
        let found = indices_of(ishigami, 3, 40_000);
        for (index, (first, total)) in found.iter().zip([(0.3139, 0.5576), (0.4424, 0.4424), (0.0, 0.2437)]) {
            assert!((index.first - first).abs() < 0.02 && (index.total - total).abs() < 0.02, "{index:?}");
        }
    }

    #[test]
    fn a_sum_is_explained_by_its_terms_alone() {
        let found = indices_of(|x| 2.0 * x[0] + x[1], 2, 20_000);
        for (index, share) in found.iter().zip([0.8, 0.2]) {
            assert!((index.first - share).abs() < 0.02 && (index.total - share).abs() < 0.02, "{index:?}");
        }
    }

    #[test]
    fn where_nothing_varies_nothing_explains_anything() {
        assert!(indices_of(|_| 0.1, 2, 10).iter().all(|index| index.first == 0.0 && index.total == 0.0));
    }
}

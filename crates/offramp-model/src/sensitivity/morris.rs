//! Elementary effects (Morris 1991).

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Number of levels per parameter. Morris recommends an even number; 4 is common.
const LEVELS: u32 = 4;
/// Length of a step, relative to the range: levels / (2 (levels - 1)). With this length, every level is equally likely.
const STEP: f64 = LEVELS as f64 / (2.0 * (LEVELS as f64 - 1.0));

/// The effect of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Mean of the absolute elementary effects.
    pub mean_absolute: f64,
    /// Standard deviation of the elementary effects: 0 if the parameter acts linearly and without interactions.
    pub spread: f64,
}

/// Returns the points of `paths` paths. A path starts at a random point, and changes one parameter after the other in
/// random order.
pub fn design(parameters: usize, paths: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut points = Vec::with_capacity(paths * (parameters + 1));
    for _ in 0..paths {
        let mut order: Vec<usize> = (0..parameters).collect();
        order.shuffle(&mut rng);
        let mut point: Vec<f64> = (0..parameters).map(|_| level(&mut rng)).collect();
        points.push(point.clone());
        for parameter in order {
            // Levels in the lower half step up, and levels in the upper half step down.
            point[parameter] += if point[parameter] < 0.5 { STEP } else { -STEP };
            points.push(point.clone());
        }
    }
    points
}

fn level(rng: &mut ChaCha8Rng) -> f64 {
    f64::from(rng.random_range(0..LEVELS)) / f64::from(LEVELS - 1)
}

/// Computes the effects from the values of the function at the points of [`design`].
pub fn effects(points: &[Vec<f64>], values: &[f64], parameters: usize) -> Vec<Effect> {
    let mut changes = vec![Vec::new(); parameters];
    let paths = points.chunks_exact(parameters + 1).zip(values.chunks_exact(parameters + 1));
    for (points, values) in paths {
        for (pair, value) in points.windows(2).zip(values.windows(2)) {
            let moved = (0..parameters).find(|&at| pair[0][at].to_bits() != pair[1][at].to_bits());
            if let Some(moved) = moved {
                changes[moved].push((value[1] - value[0]) / (pair[1][moved] - pair[0][moved]));
            }
        }
    }
    changes.iter().map(|changes| effect(changes)).collect()
}

fn effect(changes: &[f64]) -> Effect {
    let count = changes.len().max(1) as f64;
    let mean = changes.iter().sum::<f64>() / count;
    let squares: f64 = changes.iter().map(|change| (change - mean).powi(2)).sum();
    Effect {
        mean_absolute: changes.iter().map(|change| change.abs()).sum::<f64>() / count,
        spread: (squares / (count - 1.0).max(1.0)).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects_of(function: impl Fn(&[f64]) -> f64, parameters: usize) -> Vec<Effect> {
        let points = design(parameters, 20, 7);
        let values: Vec<_> = points.iter().map(|point| function(point)).collect();
        effects(&points, &values, parameters)
    }

    #[test]
    fn a_linear_function_has_its_coefficients_as_effects_without_spread() {
        let found = effects_of(|x| 3.0 * x[0] - 2.0 * x[1] + 0.0 * x[2] + 5.0, 3);
        for (effect, expected) in found.iter().zip([3.0, 2.0, 0.0]) {
            assert!((effect.mean_absolute - expected).abs() < 1e-9 && effect.spread < 1e-9, "{effect:?}");
        }
    }

    #[test]
    fn parameters_that_act_together_have_a_spread() {
        let found = effects_of(|x| x[0] * x[1] + x[2], 3);
        assert!(found[0].spread > 0.2 && found[1].spread > 0.2 && found[2].spread < 1e-9, "{found:?}");
    }

    #[test]
    fn every_point_lies_in_the_cube_and_a_path_moves_each_parameter_once() {
        for path in design(5, 30, 1).chunks_exact(6) {
            assert!(path.iter().flatten().all(|value| (-1e-9..=1.0 + 1e-9).contains(value)));
            let moved = |pair: &[Vec<f64>]| (0..5).filter(|&at| (pair[0][at] - pair[1][at]).abs() > 0.1).collect();
            let mut all: Vec<usize> = path.windows(2).flat_map(|pair| -> Vec<usize> { moved(pair) }).collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4]);
        }
    }
}

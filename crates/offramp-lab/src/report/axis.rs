//! Axes of charts: range of values, positions and ticks.

use serde::Serialize;

/// Minimum ratio between the ends of a logarithmic axis, so that noise does not fill the axis.
const SPAN_MIN: f64 = 4.0;
/// Margin of an axis beyond the outermost values, as a factor.
const SPAN_MARGIN: f64 = 1.25;
/// Maximum number of gaps between the ticks of a linear axis.
const TICK_GAPS_MAX: f64 = 5.0;
/// Maximum number of ticks on a logarithmic axis. If the axis would have more ticks, only powers of ten are shown.
const LOG_TICKS_MAX: usize = 9;

/// A tick with its position.
#[derive(Serialize)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

/// The axis of a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    is_log: bool,
    values: [f64; 2],
    ends: [f64; 2],
}

impl Axis {
    /// Creates a logarithmic axis.
    pub(super) fn log(values: &[f64], ends: [f64; 2]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min) / SPAN_MARGIN;
        let high = values.iter().copied().fold(0.0, f64::max) * SPAN_MARGIN;
        let widened = (SPAN_MIN / (high / low)).max(1.0).sqrt();
        Self { is_log: true, values: [low / widened, high * widened], ends }
    }

    /// Creates a linear axis that begins at 0.
    pub(super) fn linear(values: &[f64], ends: [f64; 2]) -> Self {
        let high = values.iter().copied().fold(0.0, f64::max) * SPAN_MARGIN;
        Self { is_log: false, values: [0.0, high], ends }
    }

    /// Creates a linear axis from 0 to the first tick at or above the largest value.
    pub(super) fn linear_up_to(values: &[f64], ends: [f64; 2]) -> Self {
        let largest = values.iter().copied().fold(0.0, f64::max);
        let step = round_step(largest / TICK_GAPS_MAX);
        Self { is_log: false, values: [0.0, (largest / step * 0.999).ceil() * step], ends }
    }

    /// Returns the position of `value` on the axis.
    pub(super) fn at(&self, value: f64) -> f64 {
        let scaled = |value: f64| if self.is_log { value.ln() } else { value };
        let [low, high] = self.values.map(scaled);
        self.ends[0] + (scaled(value) - low) / (high - low) * (self.ends[1] - self.ends[0])
    }

    /// Returns the ticks with their positions.
    pub(super) fn placed(&self) -> Vec<Tick> {
        self.ticks().into_iter().map(|(value, label)| Tick { at: self.at(value), label: short(value, label) }).collect()
    }

    /// Returns the values of the ticks, with labels. The values are round numbers.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let [low, high] = self.values;
        if !self.is_log {
            let step = round_step(high / TICK_GAPS_MAX);
            let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
            let count = (high / step * (1.0 + f64::EPSILON)).floor() as usize;
            return (0..=count).map(|n| n as f64 * step).map(|value| (value, format!("{value:.decimals$}"))).collect();
        }
        let within = |factors: &[f64]| -> Vec<f64> {
            let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
            let steps = decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)));
            steps.filter(|value| (low..=high).contains(value)).collect()
        };
        let fine = within(&[1.0, 2.0, 5.0]);
        let values = if fine.len() > LOG_TICKS_MAX { within(&[1.0]) } else { fine };
        values.into_iter().map(|value| (value, written(value))).collect()
    }
}

/// Returns the smallest number of the form 1, 2 or 5 × 10^n that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= least * 0.999).unwrap_or(power)
}

/// Formats a tick of the form 1, 2 or 5 × 10^n with as few digits as possible.
fn written(value: f64) -> String {
    let decimals = (-(value * 1.000_001).log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

/// Abbreviates the label of a large tick with k, M or G.
fn short(value: f64, label: String) -> String {
    const POWERS: [(f64, char); 3] = [(1e9, 'G'), (1e6, 'M'), (1e3, 'k')];
    const LONG_FROM: f64 = 1e4;
    let power = POWERS.iter().find(|(power, _)| value >= *power).filter(|_| value >= LONG_FROM);
    power.map_or(label, |(power, letter)| format!("{} {letter}", value / power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_axis_hold_their_values_between_their_ends() {
        for axis in [Axis::linear, Axis::log, Axis::linear_up_to] {
            for values in [vec![3.0], vec![0.2, 7.0, 900.0], vec![5e6, 5.1e6]] {
                let axis = axis(&values, [10.0, 110.0]);
                assert!(values.iter().all(|value| (10.0..=110.0 + 1e-9).contains(&axis.at(*value))), "{axis:?}");
                let ticks = axis.ticks();
                assert!((2..=LOG_TICKS_MAX).contains(&ticks.len()), "{axis:?}: {ticks:?}");
                assert!(ticks.iter().all(|(value, _)| (10.0..=110.0 + 1e-9).contains(&axis.at(*value))), "{axis:?}");
            }
        }
    }

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        for largest in [0.003, 0.94, 1.0, 7.9, 23.4, 33.5, 101.0, 24_000.0] {
            let ticks = Axis::linear_up_to(&[largest], [0.0, 1.0]).ticks();
            assert!((2..=6).contains(&ticks.len()), "{largest}: {} ticks", ticks.len());
            let last: f64 = ticks.last().expect("ticks").1.parse().expect("a number");
            assert!(last >= largest * 0.999 && last <= largest * 2.1, "{largest}: up to {last}");
        }
    }

    #[test]
    fn over_many_decades_only_powers_of_ten_are_ticks() {
        let ticks = Axis::log(&[1.0, 1e6], [0.0, 1.0]).ticks();
        assert_eq!(ticks.first().map(|tick| tick.1.as_str()), Some("1"));
        assert_eq!(ticks.len(), 7);
    }
}

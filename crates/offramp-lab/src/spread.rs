//! The spread of values: median, extremes, deviation.

/// The spread of one metric's samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Smallest value.
    pub min: f64,
    /// Middle value; the mean of the two middle ones if their number is even.
    pub median: f64,
    /// Largest value.
    pub max: f64,
    /// Median absolute deviation from the median.
    pub mad: f64,
}

impl Spread {
    /// Returns the spread of `values`; `None` without values. Omits values that are not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted_finite(values);
        let median = middle(&sorted)?;
        let deviations: Vec<f64> = sorted.iter().map(|value| (value - median).abs()).collect();
        let mad = middle(&sorted_finite(&deviations))?;
        Some(Self { min: *sorted.first()?, median, max: *sorted.last()?, mad })
    }
}

/// Returns the median of `values`; `None` without values. Omits values that are not finite.
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

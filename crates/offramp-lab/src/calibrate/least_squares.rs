//! Non-negative least squares for three unknowns.

/// Solves `a x = b` for `x` ≥ 0 by least squares of the relative errors. Coordinate descent is enough for three
/// unknowns and a few rows.
pub(super) fn least_squares(rows: &[([f64; 3], f64)]) -> [f64; 3] {
    const TURNS: usize = 20_000;
    // Columns differ by orders of magnitude. Scaled columns converge at the same rate.
    let weighted: Vec<[f64; 3]> = rows.iter().map(|(row, value)| row.map(|cell| cell / value)).collect();
    let scale: [f64; 3] = std::array::from_fn(|at| {
        weighted.iter().map(|row| row[at] * row[at]).sum::<f64>().sqrt().max(f64::MIN_POSITIVE)
    });
    let scaled: Vec<[f64; 3]> = weighted.iter().map(|row| std::array::from_fn(|at| row[at] / scale[at])).collect();
    let mut x = [0.0_f64; 3];
    for _ in 0..TURNS {
        for at in 0..3 {
            let rest = |row: &[f64; 3]| {
                1.0 - (0..3).filter(|other| *other != at).map(|other| row[other] * x[other]).sum::<f64>()
            };
            // The squares of a scaled column sum to 1, so no division is needed.
            x[at] = scaled.iter().map(|row| row[at] * rest(row)).sum::<f64>().max(0.0);
        }
    }
    std::array::from_fn(|at| x[at] / scale[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cost_is_below_zero() {
        // Without the bound, the second cost would be negative.
        let rows = [([1.0, 0.0, 1.0], 1.0), ([1.0, 5.0, 0.0], 0.9), ([1.0, 1.0, 0.0], 1.0), ([1.0, 9.0, 0.0], 0.8)];
        assert!(least_squares(&rows).iter().all(|cost| *cost >= 0.0 && cost.is_finite()));
    }
}

//! The results of the samples, compared with the bounds of the default policy.

use super::contenders::{Contender, FIXED, OFF};
use super::{Load, Sample, Samples};

/// Factor for the 95 % confidence interval of a median. In ranks, half the width of the interval is this factor times
/// the square root of the number of values.
const INTERVAL_95: f64 = 0.98;

/// A column of the table: a function that returns one figure of a sample.
type Column = fn(&Sample) -> f64;

const COLUMNS: [(&str, Column); 5] = [
    ("p50 us", |sample| sample.p50_us),
    ("p99 us", |sample| sample.p99_us),
    ("frames/s", |sample| sample.frames_per_s),
    ("calls/s", |sample| sample.calls_per_s),
    ("calls/frame", |sample| sample.calls_per_frame),
];

/// A limit on the ratio between the figures of two contenders (the compared policies).
#[derive(Clone, Copy, Debug)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("at most {most}"),
            Self::AtLeast(least) => format!("at least {least}"),
        }
    }
}

/// Returns the bounds of the default policy: the name of the column, the contender to compare with, and the limit.
fn bounds(load: Load) -> Vec<(&'static str, &'static str, Limit)> {
    match load {
        Load::Requests => vec![("p50 us", OFF, Limit::AtMost(1.05)), ("p99 us", OFF, Limit::AtMost(1.1))],
        Load::Bulk => vec![
            ("calls/frame", FIXED, Limit::AtMost(1.1)),
            ("frames/s", FIXED, Limit::AtLeast(0.97)),
            ("frames/s", OFF, Limit::AtLeast(0.97)),
        ],
        Load::Mixed => vec![("p99 us", OFF, Limit::AtMost(1.25)), ("calls/s", OFF, Limit::AtMost(0.5))],
    }
}

/// Prints the table of one load, and the results for the bounds.
pub fn print(load: Load, contenders: &[Contender], samples: &Samples, stolen_share: f64) {
    println!(
        "{load:?}, median of {} rounds; in brackets the median ratio to off of the same round; a hypervisor took {:.1} %",
        samples[0].len(),
        stolen_share * 100.0
    );
    print!("  {:<14}", "policy");
    println!("{}", COLUMNS.map(|(name, _)| format!(" {name:>18}")).concat());
    for (Contender { name, .. }, of_it) in contenders.iter().zip(samples) {
        println!(
            "  {name:<14}{}",
            COLUMNS.map(|(_, column)| format!(" {:>18}", cell(samples, of_it, column))).concat()
        );
    }
    for (contender, of_it) in contenders.iter().zip(samples).filter(|(contender, _)| contender.is_bound) {
        for (column, base, limit) in bounds(load) {
            let of_base = contenders.iter().position(|contender| contender.name == base).expect("a base that runs");
            print_bound(&contender.name, of_it, column, base, &samples[of_base], limit);
        }
    }
    print_losses(contenders, samples);
    if load == Load::Mixed {
        let least = Spread::of(samples[0].iter().map(|off| off.messages_per_s / off.calls_per_s)).median;
        println!("  a call for each request and each answer, and none for bulk data: {least:.2} of the calls of off");
    }
}

fn cell(samples: &Samples, of_it: &[Sample], column: Column) -> String {
    let value = Spread::of(of_it.iter().map(column)).median;
    let ratio = Spread::of(ratios(of_it, &samples[0], column)).median;
    if value == 0.0 { "-".to_owned() } else { format!("{value:.2} ({ratio:.2})") }
}

fn print_bound(name: &str, of_it: &[Sample], column: &str, base: &str, of_base: &[Sample], limit: Limit) {
    let (_, of_column) = COLUMNS.into_iter().find(|(of, _)| *of == column).expect("a column of this benchmark");
    let spread = Spread::of(ratios(of_it, of_base, of_column));
    let verdict = if limit.holds(spread.median) { "kept" } else { "NOT kept" };
    let ends = [spread.low, spread.high].map(|end| limit.holds(end));
    let doubt = if ends == [limit.holds(spread.median); 2] { "" } else { ", uncertain" };
    let Spread { median, low, high } = spread;
    println!("  {name}: {column} {median:.2} x {base} ({low:.2} .. {high:.2}); {}: {verdict}{doubt}", limit.text());
}

fn print_losses(contenders: &[Contender], samples: &Samples) {
    for (Contender { name, .. }, of_it) in contenders.iter().zip(samples) {
        for sample in of_it.iter().filter(|sample| sample.lost > 0) {
            let (lost, late_ms) = (sample.lost, sample.delay_max.as_secs_f64() * 1e3);
            println!("  {name}: {lost} frames found no buffer in a sample whose guest was up to {late_ms:.1} ms late");
        }
    }
}

/// Returns the ratio of `of` to `base` in a column, for each round.
fn ratios(of: &[Sample], base: &[Sample], column: Column) -> impl Iterator<Item = f64> {
    of.iter().zip(base).map(move |(sample, base)| column(sample) / column(base))
}

/// A median with its 95 % interval, from the binomial distribution of ranks.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// Returns the median and interval of the values. Values that are not finite, such as the ratio 0/0, are omitted.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let Some(last) = values.len().checked_sub(1) else {
            return Self::default();
        };
        let middle = last as f64 / 2.0;
        let away = INTERVAL_95 * (values.len() as f64).sqrt();
        let at = |rank: f64| values[(rank.max(0.0) as usize).min(last)];
        Self { median: at(middle.ceil()), low: at((middle - away).floor()), high: at((middle + away).ceil()) }
    }
}

//! Figures as text, the same in the terminal and on the page.

/// Text in place of a figure not measured.
pub const NOT_MEASURED: &str = "–";

/// Writes bits per second as Gbit/s: two decimals, or four if two would show next to nothing.
pub fn gbit(bps: f64) -> String {
    if (f64::MIN_POSITIVE..SLOW_BPS).contains(&bps) { format!("{:.4}", bps / 1e9) } else { format!("{:.2}", bps / 1e9) }
}

/// Below this, a rate reads better in Mbit/s.
pub const SLOW_BPS: f64 = 1e8;

/// Bits per second as Mbit/s.
pub fn mbit(bps: f64) -> String {
    format!("{:.2}", bps / 1e6)
}

/// Segments of a window: half ones occur as the mean of two.
pub fn segments(segments: f64) -> String {
    if segments < 100.0 && segments.fract() != 0.0 { format!("{segments:.1}") } else { count(segments) }
}

/// Seconds, to a hundredth.
pub fn seconds(seconds: f64) -> String {
    format!("{seconds:.2}")
}

/// Writes processor seconds: two decimals, or three if two would show next to nothing.
pub fn cpu_seconds(seconds: f64) -> String {
    if seconds < 0.1 { format!("{seconds:.3}") } else { format!("{seconds:.2}") }
}

/// A percentage without its sign.
pub fn percent(percent: f64) -> String {
    format!("{percent:.0}")
}

/// Writes a share of one: three decimals if two would show next to nothing.
pub fn share(share: f64) -> String {
    if share < 0.1 { format!("{share:.3}") } else { format!("{share:.2}") }
}

/// Microseconds: one decimal below 100.
pub fn microseconds(us: f64) -> String {
    if us < 100.0 { format!("{us:.1}") } else { count(us) }
}

/// Writes a count, its digits in groups of three, separated by narrow no-break spaces.
pub fn count(count: f64) -> String {
    let digits = format!("{:.0}", count.abs());
    let mut grouped = if count < 0.0 { String::from("−") } else { String::new() };
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

/// A figure, or [`NOT_MEASURED`].
pub fn or_dash(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map_or_else(|| NOT_MEASURED.to_owned(), text)
}

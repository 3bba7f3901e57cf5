//! Formatting of figures, for the terminal and for the HTML page.

/// Text for a figure that was not measured.
pub const NOT_MEASURED: &str = "–";

/// Formats bits per second as Gbit/s, with two decimals. Rates below [`SLOW_BPS`] have four decimals.
pub fn gbit(bps: f64) -> String {
    if (f64::MIN_POSITIVE..SLOW_BPS).contains(&bps) { format!("{:.4}", bps / 1e9) } else { format!("{:.2}", bps / 1e9) }
}

/// Rate below which Mbit/s is the better unit, in bits per second.
pub const SLOW_BPS: f64 = 1e8;

/// Formats bits per second as Mbit/s.
pub fn mbit(bps: f64) -> String {
    format!("{:.2}", bps / 1e6)
}

/// Formats a number of segments. The median of two congestion windows can be a multiple of half a segment.
pub fn segments(segments: f64) -> String {
    if segments < 100.0 && segments.fract() != 0.0 { format!("{segments:.1}") } else { count(segments) }
}

/// Formats seconds with two decimals.
pub fn seconds(seconds: f64) -> String {
    format!("{seconds:.2}")
}

/// Formats processor time in seconds, with two decimals. Values below 0.1 have three decimals.
pub fn cpu_seconds(seconds: f64) -> String {
    if seconds < 0.1 { format!("{seconds:.3}") } else { format!("{seconds:.2}") }
}

/// Formats a percentage, without the percent sign.
pub fn percent(percent: f64) -> String {
    format!("{percent:.0}")
}

/// Formats a ratio with two decimals. Values below 0.1 have three decimals.
pub fn share(share: f64) -> String {
    if share < 0.1 { format!("{share:.3}") } else { format!("{share:.2}") }
}

/// Formats microseconds. Values below 100 have one decimal.
pub fn microseconds(us: f64) -> String {
    if us < 100.0 { format!("{us:.1}") } else { count(us) }
}

/// Formats a count in groups of three digits, separated by narrow no-break spaces.
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

/// Formats a figure, or returns [`NOT_MEASURED`].
pub fn or_dash(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map_or_else(|| NOT_MEASURED.to_owned(), text)
}

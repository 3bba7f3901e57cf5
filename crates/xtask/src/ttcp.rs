//! The output of `offramp ttcp --json`.

use serde_json::Value;

/// Returns its report; `None` before there is one.
pub fn report(printed: &str) -> Option<Value> {
    let mut events = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.find(|event| event["event"] == "report")
}

/// Returns the throughput in its report, in bits per second; `None` before there is one.
pub fn throughput_bps(printed: &str) -> Option<f64> {
    report(printed)?["throughput_bps"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_is_that_of_the_report() {
        let printed = "{\"event\":\"start\"}\n{\"event\":\"report\",\"throughput_bps\":7.5}\n";
        assert_eq!(throughput_bps(printed), Some(7.5));
        assert_eq!(throughput_bps("{\"event\":\"start\"}\n"), None);
    }
}

//! The two text formats of the answer to a scrape. The `Accept` field of the client's request selects the format.

use std::borrow::Cow;

/// Greatest weight of a media type, in thousandths (RFC 9110 12.4.2).
const WEIGHT_MAX: u32 = 1000;

/// A text format of Prometheus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    /// `OpenMetrics` 1.0.
    #[default]
    OpenMetrics,
    /// The text format 0.0.4, for scrapers without `OpenMetrics`.
    Text,
}

impl Format {
    /// Returns the format that a client prefers. A client without preference gets `OpenMetrics`.
    pub(super) fn accepted<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Self {
        let fields: Vec<_> = fields.map(String::from_utf8_lossy).collect();
        let ranges = || fields.iter().flat_map(|field| field.split(',')).map(range);
        let weight = |exact: &str, group: &str| {
            // The most specific range that matches decides (RFC 9110 12.5.1).
            [exact, group, "*/*"].iter().find_map(|kind| {
                ranges().filter(|(listed, _)| listed.eq_ignore_ascii_case(kind)).map(|(_, weight)| weight).max()
            })
        };
        let open = weight("application/openmetrics-text", "application/*").unwrap_or_default();
        let text = weight("text/plain", "text/*").unwrap_or_default();
        if text > open { Self::Text } else { Self::OpenMetrics }
    }

    /// Returns the content type of an answer.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts `OpenMetrics` text to this format.
    pub(super) fn converted(self, open: String) -> String {
        match self {
            Self::OpenMetrics => open,
            Self::Text => text(&open),
        }
    }
}

/// Splits an element of an `Accept` field into its media range and its weight in thousandths.
fn range(element: &str) -> (&str, u32) {
    let mut parts = element.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let q = parts.find_map(|parameter| parameter.strip_prefix("q=").or(parameter.strip_prefix("Q=")));
    let weight = q.map_or(Some(1.0), |q| q.parse::<f64>().ok()).unwrap_or_default();
    (kind, (weight.clamp(0.0, 1.0) * f64::from(WEIGHT_MAX)) as u32)
}

/// Converts `OpenMetrics` text to the format 0.0.4. In the format 0.0.4, the name of a metric family is the name of its
/// samples, an info is a gauge, and a quotation mark in a help text is not escaped.
fn text(open: &str) -> String {
    let kinds = open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    // In the text, the `TYPE` line of a family follows its `HELP` line. So all kinds are collected before the first
    // line is converted.
    let kinds: std::collections::BTreeMap<&str, &str> = kinds.collect();
    let suffix = |name: &str| match kinds.get(name) {
        Some(&"counter") => "_total",
        Some(&"info") => "_info",
        _ => "",
    };
    let mut out = String::with_capacity(open.len());
    for line in open.lines() {
        let line = match line.strip_prefix("# ").and_then(|comment| comment.split_once(' ')) {
            None if line == "# EOF" => continue,
            Some(("UNIT", _)) => continue,
            Some((word @ ("HELP" | "TYPE"), rest)) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let rest = match (word, rest) {
                    ("TYPE", "info") => "gauge".into(),
                    ("TYPE", "unknown") => "untyped".into(),
                    ("HELP", help) => Cow::Owned(help.replace("\\\"", "\"")),
                    (_, rest) => Cow::Borrowed(rest),
                };
                Cow::Owned(format!("# {word} {name}{} {rest}", suffix(name)))
            }
            _ => Cow::Borrowed(line),
        };
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_format_that_it_prefers_and_open_metrics_without_a_preference() {
        let of = |fields: &[&str]| Format::accepted(fields.iter().map(|field| field.as_bytes()));
        // Prometheus 2.42 and 3.0, a browser, curl, and a client without the field.
        for open in [
            &["application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
               text/plain;version=0.0.4;q=0.5,*/*;q=0.1"][..],
            &[
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            ],
            &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],
            &["*/*"],
            &[],
            &[""],
            &["image/png"],
            &["text/plain;q=0.5, application/*"],
            &["text/plain;q=0"],
            &["text/plain;q=x", ";;,,=", "\u{0}"],
        ] {
            assert_eq!(of(open), Format::OpenMetrics, "{open:?}");
        }
        for text in [
            &["text/plain;version=0.0.4"][..],
            &["TEXT/PLAIN; version=0.0.4; charset=utf-8"],
            &["text/*"],
            &["application/openmetrics-text;q=0.3,text/plain;version=0.0.4;q=0.5"],
            &["application/openmetrics-text;q=0, */*"],
            &["application/json", "text/plain; q=0.001"],
        ] {
            assert_eq!(of(text), Format::Text, "{text:?}");
        }
    }

    #[test]
    fn each_family_of_the_old_format_has_the_name_of_its_samples_and_a_kind_that_the_format_knows() {
        let open = "# HELP a_build \\\"x\\\" \\\\ y.\n# TYPE a_build info\na_build_info{v=\"\\\"\"} 1\n\
                    # HELP b_bytes Bytes.\n# TYPE b_bytes counter\n# UNIT b_bytes bytes\nb_bytes_total{p=\"# EOF\"} 2\n\
                    # HELP c Waits.\n# TYPE c histogram\nc_sum 1.5\nc_count 1\nc_bucket{le=\"+Inf\"} 1\n# EOF\n";
        let expected = "# HELP a_build_info \"x\" \\\\ y.\n# TYPE a_build_info gauge\na_build_info{v=\"\\\"\"} 1\n\
                        # HELP b_bytes_total Bytes.\n# TYPE b_bytes_total counter\nb_bytes_total{p=\"# EOF\"} 2\n\
                        # HELP c Waits.\n# TYPE c histogram\nc_sum 1.5\nc_count 1\nc_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(Format::Text.converted(open.to_owned()), expected);
        assert_eq!(Format::OpenMetrics.converted(open.to_owned()), open);
    }
}

//! Text output: fills the templates in `texts/` with the same values as the JSON output.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Value};
use std::sync::LazyLock;

static TEXTS: &[(&str, &str)] = embedded! { "texts", "txt":
    "claims", "compare", "explain", "latency", "outcome", "run", "sensitivity", "uncertainty",
};

static TEMPLATES: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("it has the usual delimiters"));
    environment.add_filter("number", number);
    environment.add_filter("plain", |value: f64| value.to_string());
    environment.add_filter("bar", |len: f64| "#".repeat(len.round().max(0.0) as usize));
    environment.add_filter("intervals", |varied: Vec<String>| {
        intervals(&varied.iter().map(String::as_str).collect::<Vec<_>>())
    });
    // Keeps the last 16 characters of a long name, because paths differ at the end.
    environment.add_filter("last_16", |name: String| -> String {
        name.chars().skip(name.chars().count().saturating_sub(16)).collect()
    });
    for (name, text) in TEXTS {
        environment.add_template(name, text).unwrap_or_else(|error| panic!("{error:#}"));
    }
    environment
});

/// Fills the template `texts/{template}` with `values`.
///
/// # Panics
/// Never panics: the templates are part of the program, and tests fill them.
pub(crate) fn render(template: &str, values: Value) -> String {
    let template = TEMPLATES.get_template(&format!("texts/{template}")).unwrap_or_else(|error| panic!("{error:#}"));
    template.render(values).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Formats a number with about four digits: three decimals below 10, two below 100, one below 1000, and none from 1000
/// on. A whole number gets no decimals.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let decimals = match value.abs() {
        size if size >= 1000.0 || size.fract() == 0.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Returns "the interval of NAME" for a single name, or "N intervals".
pub fn intervals(varied: &[&str]) -> String {
    match varied {
        [only] => format!("the interval of {only}"),
        _ => format!("{} intervals", varied.len()),
    }
}

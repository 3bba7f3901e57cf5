//! Styles of the headings of `show`. The lab has separate styles for its reports, because a daemon can be built without
//! the lab.

use std::io::IsTerminal;

/// The style of headings: bold and dim letters, or plain text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    has_colour: bool,
}

impl Style {
    /// Returns the plain style if `output` is not a terminal, or `NO_COLOR` is set and not empty (no-color.org).
    pub fn of(output: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { has_colour: output.is_terminal() && !refused }
    }

    /// Returns `text` in bold, unless plain.
    pub fn bold(self, text: &str) -> String {
        self.wrap("\x1b[1m", text)
    }

    /// Returns `text` in dim letters, unless plain.
    pub fn dim(self, text: &str) -> String {
        self.wrap("\x1b[2m", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.has_colour { format!("{code}{text}\x1b[0m") } else { text.to_owned() }
    }
}

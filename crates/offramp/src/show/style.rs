//! How headings of `show` are set off. The lab has its own for its reports: a daemon is built without the lab, too.

use std::io::IsTerminal;

/// Whether headings are set off by the terminal's own means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    has_colour: bool,
}

impl Style {
    /// Plain where `output` is no terminal or the environment has a `NO_COLOR` that is not empty (no-color.org).
    pub fn of(output: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { has_colour: output.is_terminal() && !refused }
    }

    /// `text` in bold, where that is allowed.
    pub fn bold(self, text: &str) -> String {
        self.wrap("\x1b[1m", text)
    }

    /// `text` in dim letters, where that is allowed.
    pub fn dim(self, text: &str) -> String {
        self.wrap("\x1b[2m", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.has_colour { format!("{code}{text}\x1b[0m") } else { text.to_owned() }
    }
}

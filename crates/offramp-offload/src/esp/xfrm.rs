//! Linux' text format for security associations: the input and output of `ip xfrm` (ip-xfrm(8)).
//!
//! [`XfrmConfig::parse`] accepts commands as in a script, for example `ip xfrm state add` and `ip xfrm policy add`. The
//! parser also accepts the output of `ip xfrm state` and `ip xfrm policy`, with or without `-s` and `-o`. Commands and
//! output can be mixed in any order. [`XfrmConfig::associations`] translates states and policies for an adapter. The
//! adapter takes the place of the kernel that the text configures, or is the peer of that kernel.
//!
//! Unsupported words that would change the meaning are refused, with line and word. Words without effect on the adapter
//! (`priority`, `index`, counters, times) are skipped. No error shows a word that can be part of a key.

mod fault;
mod meaning;
mod policy;
mod selector;
mod state;
mod words;

pub use fault::{Fault, Shown, XfrmError};
pub use meaning::{Association, Direction, Owner};
pub use policy::{PolicyAction, PolicyDirection, Template, XfrmPolicy};
pub use state::{StateFlags, XfrmState};

use words::{Statement, Words};

/// The parsed states (security associations) and policies, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XfrmConfig {
    /// Parsed states.
    pub states: Vec<XfrmState>,
    /// Parsed policies, without policies of single sockets.
    pub policies: Vec<XfrmPolicy>,
}

impl XfrmConfig {
    /// Parses commands and output of `ip xfrm`. In a script, known commands unrelated to xfrm are skipped (`ip
    /// address`, `modprobe` and others). `flush` discards all earlier states or policies.
    ///
    /// # Errors
    /// Returns the first fault or unsupported word in the text, with the number of its line.
    pub fn parse(text: &str) -> Result<Self, XfrmError> {
        let mut config = Self::default();
        for statement in words::statements(text)? {
            config.take(&statement)?;
        }
        Ok(config)
    }

    fn take(&mut self, statement: &Statement) -> Result<(), XfrmError> {
        match statement {
            Statement::StateOutput(words) => {
                self.states.push(state::parse(&mut Words::new(words), state::Form::Output)?);
            }
            Statement::PolicyOutput(words) => self.policies.extend(policy::parse(&mut Words::new(words))?),
            Statement::Command(words) => self.run(&mut Words::new(words))?,
        }
        Ok(())
    }

    /// Applies a command to the states and policies.
    fn run(&mut self, words: &mut Words) -> Result<(), XfrmError> {
        let Some(object) = words.xfrm_object()? else { return Ok(()) };
        let command = words.required("a command, such as add")?;
        // `ip` accepts any prefix of a command, and selects the first match in the command list of `ip`.
        let is = |name: &str| name.starts_with(command.text);
        match (object, command.text) {
            (words::Object::State, _) if is("add") || is("update") => {
                self.states.push(state::parse(words, state::Form::Command)?);
            }
            (words::Object::Policy, _) if is("add") || is("update") => self.policies.extend(policy::parse(words)?),
            (words::Object::State, "flush") => self.states.clear(),
            (words::Object::Policy, "flush") => self.policies.clear(),
            _ => return Err(command.unknown("add, update and flush")),
        }
        Ok(())
    }
}

//! A build without impairments, which refuses the keys of impairments, and passes hosts and wires unchanged.

use crate::config::check::Check;
use crate::config::place::ConfigError;
use crate::schema::file::{Faults, Memory};
use offramp_adapter::pair::PortControl;
use std::sync::Arc;
use toml::Spanned;

/// The settings of impairments in a build without impairments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unimpaired {}

pub use Unimpaired as FaultConfig;
pub use Unimpaired as MemoryConfig;

impl Unimpaired {
    #[expect(clippy::unused_self, reason = "the signature of the impairments")]
    pub fn is_none(&self) -> bool {
        true
    }
}

/// Returns the host unchanged.
pub fn host<H>(host: H, _: &FaultConfig, _: &Arc<PortControl>, _: usize) -> H {
    host
}

/// Returns the wire unchanged.
pub fn wire<W>(wire: W, _: &FaultConfig, _: &MemoryConfig) -> W {
    wire
}

impl Check<'_> {
    pub(in crate::config) fn memory(
        &self,
        written: Option<&Spanned<Memory>>,
        _: usize,
    ) -> Result<MemoryConfig, ConfigError> {
        self.unimpaired("port.memory", written)
    }

    pub(in crate::config) fn faults(
        &self,
        written: Option<&Spanned<Faults>>,
        allowed: Option<&Spanned<bool>>,
    ) -> Result<FaultConfig, ConfigError> {
        self.unimpaired("faults", allowed.filter(|allowed| *allowed.as_ref()))?;
        self.unimpaired("port.faults", written)
    }

    fn unimpaired<T>(&self, key: &str, written: Option<&Spanned<T>>) -> Result<Unimpaired, ConfigError> {
        let Some(written) = written else { return Ok(Unimpaired {}) };
        let message =
            format!("{key}: this build has no impairments; build offramp with --features impair, or leave the key out");
        Err(self.0.wrong(written.span(), message))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{PEER, parse, refused};

    #[test]
    fn a_build_without_impairments_refuses_their_keys() {
        let file =
            |table: &str| format!("{PEER}[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.cable = \"b\"\n{table}\n");
        let remedy = "this build has no impairments; build offramp with --features impair, or leave the key out";
        refused(&file("memory = { card_bytes = 8192 }"), 9, &format!("port.memory: {remedy}"));
        refused(&file("faults = { loss_one_in = 5 }"), 9, &format!("port.faults: {remedy}"));
        refused(&format!("faults = true\n{}", file("")), 1, &format!("faults: {remedy}"));
        parse(&format!("faults = false\n{}", file(""))).unwrap();
    }
}

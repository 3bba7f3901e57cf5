//! Checks `[port.ipsec]`, `[[port.policy]]` and `[[port.sa]]`: reads the key files, and installs every association in a
//! trial port, so that errors name their line.

use super::check::Check;
use super::place::ConfigError;
use super::share::last;
use super::types::{DaemonConfig, IpsecConfig, PortConfig, SaEntry};
use crate::schema::ipsec::{PolicyKeys, no_match, other};
use crate::schema::{KeyText, SaKeys, Shape, Word, file};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{KeyRegistry, NoMatch, Policy};
use offramp_adapter::pair::PortControl;
use offramp_offload::esp::SaConfig;
use std::path::Path;
use std::sync::Arc;
use toml::Spanned;

/// Returns the error for an outbound association with the same key as an association of another port. The wording is
/// that of [`SaError::KeyOfAnotherPort`](offramp_adapter::ipsec::SaError::KeyOfAnotherPort).
fn shared_key(config: &SaConfig, other_port: &str) -> String {
    let spi = config.spi;
    format!("SA out {spi:#010x}: port \"{other_port}\" seals with the same key; make one for each of them")
}

impl Check<'_> {
    /// Reads the key files relative to `directory`, and installs every association in a trial port as a check.
    pub(super) fn ipsec(
        &self,
        port: &str,
        written: &file::Port,
        directory: &Path,
        queue_pairs: u16,
        daemon: &DaemonConfig,
    ) -> Result<IpsecConfig, ConfigError> {
        let policy = self.policy(port, written)?;
        let shape = Shape { queue_pairs };
        let entry = |(n, sa): (usize, &Spanned<SaKeys>)| {
            let made = association(sa.as_ref(), directory, shape, daemon);
            made.map_err(|message| self.entry_is_wrong(port, n, sa, &message))
        };
        let associations = written.sa.iter().enumerate().map(entry).collect::<Result<_, _>>()?;
        let config = IpsecConfig { policy, associations };
        // The first change is the policy, which is always valid. So the change with index `at` is association `at - 1`.
        let trial = PortControl::new(&AdapterConfig::default()).change_ipsec(&config.changes(&KeyRegistry::default()));
        trial.map_err(|(at, error)| {
            let n = at.saturating_sub(1);
            written.sa.get(n).map_or_else(
                || self.0.wrong(0..0, error.to_string()),
                |sa| self.entry_is_wrong(port, n, sa, &error.to_string()),
            )
        })?;
        Ok(config)
    }

    /// Refuses a sealing key shared by two ports, since both ports would use the same nonces. A sealing key shared
    /// within one port is refused by the check of that port.
    pub(super) fn ports_share_no_key(
        &self,
        ports: &[Arc<PortConfig>],
        written: &[Spanned<file::Port>],
    ) -> Result<(), ConfigError> {
        for (at, (port, written)) in last(ports, written) {
            for (n, (entry, sa)) in port.ipsec.associations.iter().zip(&written.as_ref().sa).enumerate() {
                let same =
                    |other: &&Arc<PortConfig>| other.ipsec.associations.iter().any(|other| other.shares_key(entry));
                if let Some(other) = ports[..at].iter().find(same) {
                    return Err(self.entry_is_wrong(&port.name, n, sa, &shared_key(&entry.config, &other.name)));
                }
            }
        }
        Ok(())
    }

    fn entry_is_wrong(&self, port: &str, n: usize, sa: &Spanned<SaKeys>, message: &str) -> ConfigError {
        self.0.wrong(sa.span(), format!("port \"{port}\": [[port.sa]] number {}: {message}", n + 1))
    }

    /// Parses the policy. If the port has any IPsec setting, packets without a matching entry or association are lost
    /// by default.
    fn policy(&self, port: &str, written: &file::Port) -> Result<Policy, ConfigError> {
        let is_used = written.ipsec.is_some() || !written.sa.is_empty() || !written.policy.is_empty();
        let default = if is_used { NoMatch::Discard } else { NoMatch::Bypass };
        let of = |name: &str, key: Option<&Spanned<String>>| match key {
            None => Ok(default),
            Some(text) => no_match(text.as_ref())
                .map_err(|message| self.0.wrong(text.span(), format!("port.ipsec.{name}: {message}"))),
        };
        let ipsec = written.ipsec.as_ref().map(Spanned::as_ref);
        let entry = |(n, entry): (usize, &Spanned<PolicyKeys>)| {
            entry.as_ref().entry().map_err(|message| {
                let message = format!("port \"{port}\": [[port.policy]] number {}: {message}", n + 1);
                self.0.wrong(entry.span(), message)
            })
        };
        let listed = |word: &Spanned<Word>| {
            other(word.as_ref()).map_err(|message| self.0.wrong(word.span(), format!("port.ipsec.other: {message}")))
        };
        let others = ipsec.and_then(|ipsec| ipsec.other.as_ref());
        Ok(Policy {
            transmit: of("transmit", ipsec.and_then(|ipsec| ipsec.transmit.as_ref()))?,
            receive: of("receive", ipsec.and_then(|ipsec| ipsec.receive.as_ref()))?,
            entries: written.policy.iter().enumerate().map(entry).collect::<Result<_, _>>()?,
            other: others.map(|words| words.as_ref().iter().map(listed).collect()).transpose()?,
            ike: ipsec.and_then(|ipsec| ipsec.ike.as_ref()).is_some_and(|ike| *ike.as_ref()),
        })
    }
}

fn association(written: &SaKeys, directory: &Path, shape: Shape, daemon: &DaemonConfig) -> Result<SaEntry, String> {
    let direction = written.direction()?;
    let file = written.key_file.as_ref().ok_or("has no key_file; write key_file = \"FILE\"")?;
    let key = KeyText::from_file(&directory.join(file), daemon.user.as_deref())?;
    let config = written.config(&key, shape)?;
    if config.suite.is_counter_mode() && daemon.state_directory.is_none() {
        return Err(format!(
            "SA {direction} {:#010x}: a daemon that starts again would use the numbers of this key again, which reveals \
             the data; name a directory for them, daemon.state_directory = \"/var/lib/offramp\", or install the \
             association by \"offramp sa add\" with a new key",
            config.spi
        ));
    }
    Ok(SaEntry { direction, config })
}

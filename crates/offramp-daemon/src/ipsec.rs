//! Security associations of running ports: changes requested by a client, and changes in the file.

use super::config::{IpsecConfig, SaEntry};
use super::port::Port;
use super::sa_log::warn_of;
use crate::schema::ipsec::direction;
use crate::schema::{IpsecStatus, KeyText, Outcome, SaKeys, Shape};
use offramp_adapter::ipsec::{KeyRegistry, REKEY_GRACE_NS_DEFAULT, SaChange, SaDirection};
use offramp_offload::esp::CipherLibrary;
use offramp_ports::ipsec_mb;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Returns the name of the cipher library, followed by the reason why the faster library, ipsec-mb, is not used, if
/// any.
fn library_shown(library: &dyn CipherLibrary) -> String {
    let (name, (_, reason)) = (library.name(), ipsec_mb::preferred());
    reason.map_or_else(|| name.to_owned(), |reason| format!("{name} ({reason})"))
}

impl Port {
    /// Returns the status of the port's associations.
    pub fn ipsec_status(&self) -> IpsecStatus {
        let ipsec = self.control.ipsec();
        let (policy, removed) = (ipsec.policy(), ipsec.removed());
        IpsecStatus::new(library_shown(ipsec.library()), &policy, &removed, &ipsec.status(), self.events.kept())
    }

    /// Installs an association.
    pub fn add_sa(&self, sa: &SaKeys, key: &KeyText) -> Result<Outcome, String> {
        let direction = sa.direction()?;
        let config = sa.config(key, Shape { queue_pairs: self.queue_pairs })?;
        let added = self.change(&[SaChange::Add { direction, config: Box::new(config.clone()) }])?;
        warn_of(&self.name, direction, &config);
        Ok(added)
    }

    /// Removes an association at once.
    pub fn del_sa(&self, way: &str, spi: u32) -> Result<Outcome, String> {
        self.change(&[SaChange::Remove { direction: direction(way)?, spi }])
    }

    /// Replaces an association by a new association.
    pub fn rekey_sa(
        &self,
        way: &str,
        spi: u32,
        to: &SaKeys,
        key: &KeyText,
        grace_seconds: Option<u64>,
    ) -> Result<Outcome, String> {
        let direction = direction(way)?;
        let old = self.control.ipsec().config(direction, spi);
        let missing = || format!("SA {direction} {spi:#010x}: there is none; `offramp sa show` lists the present ones");
        let config = Box::new(to.next_of(&old.ok_or_else(missing)?, key)?);
        let grace_ns = grace_seconds.map_or(REKEY_GRACE_NS_DEFAULT, |seconds| seconds.saturating_mul(NS_PER_SECOND));
        self.change(&[SaChange::Rekey { direction, spi, config, grace_ns }])
    }

    fn change(&self, changes: &[SaChange]) -> Result<Outcome, String> {
        self.control.change_ipsec(changes).map_err(|(_, error)| error.to_string())?;
        Ok(Outcome::Ipsec(Box::new(self.ipsec_status())))
    }

    /// Returns the changes that apply the file's associations. New associations are installed. Associations missing in
    /// the file are removed; a removed inbound association still opens packets for a grace time. Associations installed
    /// by clients stay, and associations removed by clients are not installed again. `keys` is the daemon's key
    /// registry.
    ///
    /// # Errors
    /// Returns a one-line message without the port's name.
    pub fn ipsec_changes(
        &self,
        old: &IpsecConfig,
        new: &IpsecConfig,
        keys: &KeyRegistry,
    ) -> Result<Vec<SaChange>, String> {
        let ipsec = self.control.ipsec();
        let mut changes = Vec::new();
        if old.policy != new.policy {
            changes.push(SaChange::Policy(new.policy.clone()));
        }
        for entry in &new.associations {
            match ipsec.config(entry.direction, entry.config.spi) {
                // A client has removed or replaced the association. Installing the association again with its key would
                // restart the replay window or the sequence numbers.
                None if old.associations.contains(entry) => {}
                None => {
                    warn_of(&self.name, entry.direction, &entry.config);
                    changes.push(entry.add(keys));
                }
                Some(running) if entry.is(&running) => {}
                Some(_) => return Err(changed_in_place(entry)),
            }
        }
        let is_gone = |entry: &&SaEntry| {
            let id = |entry: &SaEntry| (entry.direction, entry.config.spi);
            !new.associations.iter().any(|new| id(new) == id(entry))
        };
        for entry in old.associations.iter().filter(is_gone) {
            let SaEntry { direction, config } = entry;
            // A client may have removed the association, and installed another association with the same SPI.
            if ipsec.config(*direction, config.spi).is_some_and(|running| entry.is(&running)) {
                changes.push(match direction {
                    SaDirection::Out => SaChange::Remove { direction: *direction, spi: config.spi },
                    SaDirection::In => SaChange::Retire { spi: config.spi, grace_ns: REKEY_GRACE_NS_DEFAULT },
                });
            }
        }
        Ok(changes)
    }
}

/// Returns the error for an association that was changed in the file under the same SPI: the change would reuse
/// sequence numbers under the same key.
fn changed_in_place(entry: &SaEntry) -> String {
    format!(
        "SA {} {:#010x} is in force and cannot change; give what is new another spi and other keys",
        entry.direction, entry.config.spi
    )
}

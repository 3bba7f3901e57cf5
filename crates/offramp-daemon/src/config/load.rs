//! Builds a configuration from the text of a file.

use super::check::Check;
use super::place::{ConfigError, Place};
use super::types::{Config, DaemonConfig};
use crate::schema::file;
use std::path::Path;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Returns the first error, with its line number.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &read(file)?)
    }

    /// Loads a file as [`Config::load`] does, and checks it together with `others`: the ports and switches that clients
    /// have added to the daemon.
    ///
    /// # Errors
    /// Fails as [`Config::load`] does.
    pub(crate) fn load_beside(file: &Path, others: &Self) -> Result<Self, ConfigError> {
        let text = read(file)?;
        // The file must also be valid without `others`, because a restarted daemon reads only the file.
        Self::parse(file, &text)?;
        Self::parse_beside(file, &text, others.clone(), None).map(|(own, _)| own)
    }

    /// Checks the text of a file.
    ///
    /// # Errors
    /// Fails as [`Config::load`] does.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_beside(file, text, Self::default(), None).map(|(own, _)| own)
    }

    /// Checks ports and switches added by a client to a daemon with the configuration `self`. Error messages name the
    /// text `source`. Returns the configuration with the new ports and switches.
    ///
    /// # Errors
    /// Fails as [`Config::load`] does.
    pub(crate) fn parse_added(self, source: &Path, text: &str) -> Result<Self, ConfigError> {
        let daemon = self.daemon.clone();
        let (added, mut all) = Self::parse_beside(source, text, self, Some(&daemon))?;
        all.ports.extend(added.ports);
        all.switches.extend(added.switches);
        Ok(all)
    }

    /// Parses a text, and checks it together with `others`. If a client sent the text, `client_of` is the daemon's
    /// configuration. Returns the text's ports and switches, and the unchanged others.
    fn parse_beside(
        file: &Path,
        text: &str,
        others: Self,
        client_of: Option<&DaemonConfig>,
    ) -> Result<(Self, Self), ConfigError> {
        let check = Check(Place::new(file, text), Path::new(""));
        let written: file::File = toml::from_str(text).map_err(|error| check.0.refused(&error))?;
        let tables = DeTable::parse(text).map_err(|error| check.0.refused(&error))?;
        if written.port.is_empty() && written.switch.is_empty() {
            return Err(check
                .0
                .wrong(0..0, "no port; write at least one [[port]], or a [[switch]] for ports that are added later"));
        }
        let daemon = match client_of {
            Some(daemon) => {
                check.is_of_a_client(&written)?;
                daemon.clone()
            }
            None => check.daemon(written.daemon.as_ref().map_or(&file::Daemon::default(), Spanned::as_ref))?,
        };
        let check = Check(check.0, daemon.directory());
        let Self { mut ports, mut switches, .. } = others;
        let (other_ports, other_switches) = (ports.len(), switches.len());
        for switch in &written.switch {
            switches.push(check.switch(switch)?);
        }
        let directory = file.parent().unwrap_or(Path::new(""));
        for (port, table) in written.port.iter().zip(tables.as_ref().get("port").into_iter().flat_map(tables_of)) {
            ports.push(Arc::new(check.port(port, table, written.faults.as_ref(), directory, &daemon)?));
        }
        let names = written.port.iter().map(|port| &port.as_ref().name);
        check.names_are_unique("port", names, ports[..other_ports].iter().map(|port| &*port.name))?;
        let names = written.switch.iter().map(|switch| &switch.as_ref().name);
        check.names_are_unique("switch", names, switches[..other_switches].iter().map(|switch| &*switch.name))?;
        for (port, written) in ports[other_ports..].iter().zip(&written.port) {
            check.wire_leads_somewhere(port, written, &ports, &switches)?;
        }
        check.ports_share_no_key(&ports, &written.port)?;
        check.ports_share_no_address(&ports, &written.port)?;
        check.nothing_is_made_twice(&daemon, &ports, &written.port)?;
        check.switches_have_room(&ports, &switches, &written.switch)?;
        let keys = written.port.iter().flat_map(|port| &port.as_ref().sa);
        let key_files = keys.filter_map(|sa| Some(directory.join(sa.as_ref().key_file.as_ref()?))).collect();
        let own = (ports.split_off(other_ports), switches.split_off(other_switches));
        Ok((Self { daemon, ports: own.0, switches: own.1, key_files }, Self { ports, switches, ..others }))
    }
}

/// Returns the elements of a TOML array.
fn tables_of<'a, 'b>(array: &'a Spanned<DeValue<'b>>) -> impl Iterator<Item = &'a DeValue<'b>> {
    array.as_ref().as_array().into_iter().flatten().map(Spanned::as_ref)
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|cause| ConfigError::Read { file: file.to_owned(), cause })
}

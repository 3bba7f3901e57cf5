//! Parses and checks single values of the file: permissions, addresses, names, paths and numbers. Each error names the
//! position in the file.

use super::place::{ConfigError, Place};
use crate::schema::file::Key;
use crate::schema::unit::Written;
use crate::schema::unknown;
use offramp_ports::sys::link;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Default permissions of a socket: only the daemon's user may connect.
pub(crate) const SOCKET_MODE_DEFAULT: u32 = 0o600;
/// All permission bits of a socket.
const SOCKET_MODE_MAX: u32 = 0o777;
/// Maximum length of a Unix socket's path, in bytes. unix(7) permits 108 bytes with the zero byte. The other bytes are
/// reserved for the suffix of the temporary name under which a socket is created.
const SOCKET_PATH_LEN_MAX: usize = 96;
/// Maximum length of a port's or switch's name, in bytes. The limit keeps the columns of printed tables narrow.
const NAME_LEN_MAX: usize = 32;

/// Checks values of a file, and reports errors with their position in the file. The second field is the directory in
/// which relative paths of guests' sockets start.
pub(crate) struct Check<'a>(pub(crate) Place<'a>, pub(crate) &'a Path);

impl Check<'_> {
    /// Parses the permission bits of a socket.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    pub(crate) fn permissions(&self, key: &str, written: &Key<i64>, default: u32) -> Result<u32, ConfigError> {
        match written {
            None => Ok(default),
            Some(mode) => {
                let bits = u32::try_from(*mode.as_ref()).ok().filter(|bits| *bits <= SOCKET_MODE_MAX);
                bits.ok_or_else(|| {
                    let number = *mode.as_ref();
                    let given = if number < 0 { number.to_string() } else { format!("{number:#o}") };
                    let message = format!("{key} {given} is out of range; use 0o000 to 0o777, such as 0o660");
                    self.0.wrong(mode.span(), message)
                })
            }
        }
    }

    /// Parses a key whose value must be one of the names in `known`. Returns the value that belongs to the name.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    pub(crate) fn one_of<T: Copy>(
        &self,
        table: &str,
        key: &str,
        written: &Key<String>,
        known: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        let Some(written) = written else { return Ok(None) };
        let found = known.iter().find(|(name, _)| *name == written.as_ref().as_str());
        let wrong = || {
            let message = unknown(key, written.as_ref(), known.iter().map(|(name, _)| *name));
            self.0.wrong(written.span(), format!("{table}.{message}"))
        };
        found.map(|(_, meant)| Some(*meant)).ok_or_else(wrong)
    }

    pub(crate) fn address_of_host(&self, key: &str, written: &Spanned<String>) -> Result<[u8; 6], ConfigError> {
        let text = written.as_ref();
        let of_host = |mac: &[u8; 6]| mac[0] & 1 == 0 && *mac != [0; 6];
        parse_mac(text).filter(of_host).ok_or_else(|| {
            let message = format!(
                "{key} \"{text}\" is no address of one host; write six bytes in hexadecimal, such as \
                 \"02:00:00:00:00:01\", the first of them even"
            );
            self.0.wrong(written.span(), message)
        })
    }

    /// Parses `port.host.mac`.
    pub(crate) fn mac(&self, written: Option<&Spanned<String>>) -> Result<Option<[u8; 6]>, ConfigError> {
        written.map(|written| self.address_of_host("port.host.mac", written)).transpose()
    }

    /// Parses `port.host.queue_pairs`.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    pub(crate) fn queue_pairs(&self, written: &Key<i64>, most: u16) -> Result<u16, ConfigError> {
        Ok(self.number("port.host.queue_pairs", written, 1..=i64::from(most), 1)? as u16)
    }

    pub(crate) fn interface(&self, key: &str, written: &Spanned<String>) -> Result<String, ConfigError> {
        let name = written.as_ref();
        if link::is_valid_name(name) {
            return Ok(name.clone());
        }
        let message = format!(
            "{key} \"{name}\" is no interface name; use 1 to {} bytes without spaces, '/', ':' or '%'",
            link::NAME_LEN_MAX
        );
        Err(self.0.wrong(written.span(), message))
    }

    pub(crate) fn socket(&self, key: &str, written: &Spanned<String>) -> Result<PathBuf, ConfigError> {
        let path = PathBuf::from(written.as_ref());
        if path.is_absolute() && is_socket_path(&path) {
            return Ok(path);
        }
        let message =
            format!("{key} \"{}\": use an absolute path of at most {SOCKET_PATH_LEN_MAX} bytes", path.display());
        Err(self.0.wrong(written.span(), message))
    }

    /// Parses the path of a guest's socket. A relative path starts in the directory of the control socket.
    pub(crate) fn guest_socket(&self, key: &str, written: &Spanned<String>) -> Result<PathBuf, ConfigError> {
        let path = self.1.join(written.as_ref());
        if Path::new(written.as_ref()).file_name().is_some() && is_socket_path(&path) {
            return Ok(path);
        }
        let message = format!(
            "{key} \"{}\": use a path of at most {SOCKET_PATH_LEN_MAX} bytes, absolute or relative to {}",
            written.as_ref(),
            self.1.display()
        );
        Err(self.0.wrong(written.span(), message))
    }

    pub(crate) fn name<T>(
        &self,
        what: &str,
        key: Option<&Spanned<String>>,
        whole: &Spanned<T>,
    ) -> Result<String, ConfigError> {
        let Some(written) = key else {
            return Err(self.0.wrong(whole.span(), format!("a {what} has no name; write name = \"…\"")));
        };
        let name = written.as_ref();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(fits) {
            return Ok(name.clone());
        }
        let message = format!("{what}.name \"{name}\": use 1 to {NAME_LEN_MAX} of the characters A-Z a-z 0-9 . _ -");
        Err(self.0.wrong(written.span(), message))
    }

    pub(crate) fn names_are_unique<'b>(
        &self,
        what: &str,
        names: impl Iterator<Item = &'b Key<String>>,
        others: impl Iterator<Item = &'b str>,
    ) -> Result<(), ConfigError> {
        let mut seen: Vec<&str> = others.collect();
        for name in names.flatten() {
            if seen.contains(&name.as_ref().as_str()) {
                let message = format!("{what}.name \"{}\" is taken by another {what}", name.as_ref());
                return Err(self.0.wrong(name.span(), message));
            }
            seen.push(name.as_ref());
        }
        Ok(())
    }

    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    pub(crate) fn number(
        &self,
        key: &str,
        written: &Key<impl Written>,
        range: RangeInclusive<i64>,
        default: i64,
    ) -> Result<i64, ConfigError> {
        let Some(value) = written else { return Ok(default) };
        let number = value.as_ref().number(key).map_err(|why| self.0.wrong(value.span(), why))?;
        if range.contains(&number) {
            return Ok(number);
        }
        let (least, most) = range.into_inner();
        Err(self.0.wrong(value.span(), format!("{key} {number} is out of range; use {least} to {most}")))
    }
}

fn is_socket_path(path: &Path) -> bool {
    path.file_name().is_some() && path.as_os_str().len() <= SOCKET_PATH_LEN_MAX
}

/// Parses an Ethernet address: six hexadecimal bytes separated by colons.
pub(super) fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let parts: Vec<&str> = text.split(':').collect();
    let byte = |part: &&str| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None };
    parts.iter().map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

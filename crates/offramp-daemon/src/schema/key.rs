//! Keys of security associations as text, and the files with keys.

use nix::unistd::{Uid, User};
use offramp_offload::esp::{SecretKey, Suite};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use zeroize::Zeroizing;

/// The user that a daemon started by root becomes, unless the file names another user.
pub const NOBODY: &str = "nobody";

/// Maximum length of a key text, in bytes: the longest keys of any suite in hexadecimal, and a comment.
const KEY_TEXT_LEN_MAX: usize = 4096;

/// Permission bits of group and others.
const OTHERS_MODE: u32 = 0o077;

/// All permission bits.
const MODE_BITS: u32 = 0o7777;

/// Keys as text: hexadecimal words separated by one space. The text is wiped when dropped, and never shown.
///
/// The text has no line ends, so it needs no escapes in JSON. The JSON parser would assemble a text with escapes in
/// memory that is not wiped.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(Zeroizing<String>);

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(…)")
    }
}

impl Serialize for KeyText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::from_text(&Zeroizing::new(text)))
    }
}

impl KeyText {
    /// Reads a key file, opened by [`open_private`].
    ///
    /// # Errors
    /// Returns one line with the file's name and the remedy.
    pub fn from_file(file: &Path, user: Option<&str>) -> Result<Self, String> {
        let read = open_private(file, user).and_then(Self::from_reader);
        read.map_err(|cause| format!("key file {}: {cause}", file.display()))
    }

    /// Reads a key text up to the end of `reader`.
    ///
    /// # Errors
    /// Fails if the text cannot be read, is too long, or is not UTF-8.
    pub fn from_reader(reader: impl Read) -> Result<Self, String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_TEXT_LEN_MAX + 1));
        let read = reader.take(KEY_TEXT_LEN_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|cause| cause.to_string())?;
        if bytes.len() > KEY_TEXT_LEN_MAX {
            return Err(format!("more than {KEY_TEXT_LEN_MAX} bytes are no keys"));
        }
        let text =
            std::str::from_utf8(&bytes).map_err(|_| "it is no text; write the keys in hexadecimal".to_owned())?;
        Ok(Self::from_text(text))
    }

    /// Extracts the words of `text`, without comments.
    fn from_text(text: &str) -> Self {
        let mut words = Zeroizing::new(String::with_capacity(text.len()));
        for word in text.lines().map(|line| line.split('#').next().unwrap_or("")).flat_map(str::split_whitespace) {
            if !words.is_empty() {
                words.push(' ');
            }
            words.push_str(word);
        }
        Self(words)
    }

    /// Returns the suite's keys: the cipher's key, then the HMAC's key. If the suite uses no cipher key or no HMAC key,
    /// that key is empty.
    pub(crate) fn keys(&self, suite: Suite) -> Result<(SecretKey, SecretKey), String> {
        let words: Vec<&str> = self.0.split_whitespace().collect();
        let lens = [suite.encryption_key_len(), suite.integrity_key_len()];
        let wanted = lens.iter().filter(|&&len| len > 0).count();
        if words.len() != wanted {
            let (cipher, hmac) = (lens[0], lens[1]);
            return Err(format!(
                "{suite} takes {wanted} keys in hexadecimal (cipher: {cipher} bytes, HMAC: {hmac}); there are {}",
                words.len()
            ));
        }
        let mut words = words.into_iter();
        let mut key = |len: usize| match len {
            0 => Ok(SecretKey::none()),
            _ => SecretKey::from_hex(words.next().unwrap_or("")).map_err(|error| error.to_string()),
        };
        Ok((key(lens[0])?, key(lens[1])?))
    }
}

/// Opens a private file. The owner must be root, the user of this process, or the user that a daemon started by root
/// becomes: `user` or "nobody".
///
/// # Errors
/// Fails if the file cannot be opened, or if other users may read it. Fails if another user owns the file, since that
/// user could replace the key.
pub fn open_private(file: &Path, user: Option<&str>) -> Result<File, String> {
    let opened = File::open(file).map_err(|cause| cause.to_string())?;
    let metadata = opened.metadata().map_err(|cause| cause.to_string())?;
    let mode = metadata.permissions().mode() & MODE_BITS;
    if mode & OTHERS_MODE != 0 {
        return Err(format!(
            "it holds keys and is open to others (mode {mode:04o}); run: chmod 600 {}",
            file.display()
        ));
    }
    let (owner, own) = (Uid::from_raw(metadata.uid()), Uid::effective());
    let is_of_user = || {
        let user = if own.is_root() { User::from_name(user.unwrap_or(NOBODY)).ok().flatten() } else { None };
        user.is_some_and(|user| user.uid == owner)
    };
    if owner.is_root() || owner == own || is_of_user() {
        return Ok(opened);
    }
    Err(format!("it holds keys and belongs to uid {owner}, who may change them; run: chown {own} {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn text(key: &str) -> KeyText {
        KeyText::from_reader(key.as_bytes()).unwrap()
    }

    const GCM_KEY: &str = "# of the cipher\n0x000102030405060708090a0b0c0d0e0f10111213\n";

    #[test]
    fn a_key_file_that_others_may_read_is_refused_with_what_to_do() {
        let file = std::env::temp_dir().join(format!("ofr-key-{}", std::process::id()));
        fs::write(&file, GCM_KEY).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o777] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let error = KeyText::from_file(&file, None).unwrap_err();
            assert!(error.contains(&format!("chmod 600 {}", file.display())), "{error}");
            assert!(error.contains(&format!("{mode:04o}")), "{error}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let read = KeyText::from_file(&file, None);
        fs::remove_file(&file).unwrap();
        assert_eq!(read.unwrap(), text(GCM_KEY));
        assert!(KeyText::from_file(&file, None).unwrap_err().contains("No such file"));
    }

    #[test]
    fn keys_are_sent_without_anything_that_json_would_escape() {
        let sent =
            serde_json::to_string(&text("# of the cipher\n\t00112233 # and\r\n of the HMAC:#\n 44\n\n")).unwrap();
        assert_eq!(sent, "\"00112233 of the HMAC: 44\"");
    }

    #[test]
    fn keys_are_not_shown() {
        assert_eq!(format!("{:?}", text(GCM_KEY)), "KeyText(…)");
    }
}

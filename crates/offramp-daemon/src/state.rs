//! The state directory. For each IPsec key, the directory stores a sequence number up to which no number is used or
//! accepted again, even after a crash of the daemon.
//!
//! The directory has two files, `keys.0` and `keys.1`, accessible only to the daemon's user. Each file is a complete
//! state:
//!
//! ```text
//! offramp keys 1
//! generation 17
//! out 00000000 5f7c…e1 2097152
//! in 00001002 09ab…77 48213
//! sha256 83d0…4c
//! ```
//!
//! The first line is the version of the format. The line of a key contains its direction, the SPI (0: any), the SHA-256
//! of the key, and the stored sequence number, called the mark of the key. The line of the oldest key comes first. The
//! last line is the SHA-256 of all preceding lines.
//!
//! Each state that the daemon writes has a generation number, one higher than the number of the previous state. The new
//! state overwrites the older file and is synced; during the write, the newer file stays complete. In a partly written
//! file, the last line does not match the preceding lines. The daemon ignores a partly written file, because it has not
//! yet granted any sequence number that only this file reserves. If neither file is complete, or a file is missing, the
//! marks of the keys are unknown: the daemon does not start.
//!
//! Both files are opened before the daemon enters its sandbox, in which the daemon can open no file.

use aws_lc_rs::digest::{SHA256, digest};
use nix::fcntl::OFlag;
use nix::unistd::Uid;
use offramp_adapter::ipsec::{KEYS_MAX, KeyId, KeyMark, KeyRegistry, KeyStore, RESERVED_NUMBERS, SaDirection};
use offramp_offload::esp::FINGERPRINT_LEN;
use offramp_ports::sys::sandbox::{Sandbox, ThreadKind};
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// The names of the two files.
const NAMES: [&str; 2] = ["keys.0", "keys.1"];
/// Name of the first file until it is complete.
const UNFINISHED: &str = "keys.new";
const FILE_MODE: u32 = 0o600;
/// All permission bits of group and others, and only their write bits.
const OTHERS_MODE: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
/// From this generation on, both files contain a state, complete or partly written.
const FIRST_GENERATION: u64 = 2;
const VERSION_LINE: &str = "offramp keys 1";
const GENERATION: &str = "generation ";
const CHECKSUM: &str = "sha256 ";
/// Maximum length of a key's line, and maximum length of a whole file, in bytes. A file has one line per key and up to
/// 16 further lines.
const LINE_LEN_MAX: u64 = 128;
const FILE_LEN_MAX: u64 = (KEYS_MAX as u64 + 16) * LINE_LEN_MAX;
/// Time between two checks for newly accepted sequence numbers of inbound keys.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two attempts to write to a failing disk.
const RETRY: Duration = Duration::from_secs(1);

/// An error in the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("daemon.state_directory {directory}: {cause}")]
    Directory { directory: PathBuf, cause: String },
    #[error(
        "daemon.state_directory {0}: nobody knows how far the keys have come: its files are damaged or missing. Make new \
         keys, and remove keys.0 and keys.1"
    )]
    Damaged(PathBuf),
}

/// Opens the registry of keys. With a state directory, the registry starts with the stored state.
///
/// # Errors
/// Fails if the directory is unusable, or if another daemon uses the directory.
pub fn open_keys(directory: Option<&Path>) -> Result<(Arc<KeyRegistry>, Keeper), StateError> {
    let keeper = Keeper::default();
    let Some(directory) = directory else { return Ok((Arc::default(), keeper)) };
    let (file, marks) = KeyFile::open(directory)?;
    let waker = Waker::from(Arc::clone(&keeper.0));
    Ok((Arc::new(KeyRegistry::lasting(Box::new(file), &marks, RESERVED_NUMBERS, waker)), keeper))
}

/// The thread that reserves sequence numbers ahead of their use, by writing higher marks to the state directory.
#[derive(Debug, Default)]
pub struct Keeper(Arc<Sleeper>);

/// The handle that wakes a sleeping thread.
#[derive(Debug, Default)]
struct Sleeper(OnceLock<Thread>);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

impl Keeper {
    /// Starts the thread, which ends with the process.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(self, keys: &Arc<KeyRegistry>, sandbox: &Sandbox) -> io::Result<()> {
        let (keys, sandbox) = (Arc::clone(keys), sandbox.clone());
        let thread = thread::Builder::new().name("ofr-keys".into()).spawn(move || {
            sandbox.enter_thread(ThreadKind::Keys);
            keep(&keys);
        })?;
        let _ = self.0.0.set(thread.thread().clone());
        // A wake-up may have been requested before the thread's handle was stored.
        thread.thread().unpark();
        Ok(())
    }
}

fn keep(keys: &KeyRegistry) {
    let mut is_failing = false;
    loop {
        match keys.keep() {
            Ok(is_soon) => {
                if std::mem::take(&mut is_failing) {
                    log!("offramp: sequence numbers of keys are reserved again");
                }
                if is_soon { thread::park_timeout(LOOK) } else { thread::park() }
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    log!("offramp: sequence numbers of keys cannot be reserved: {error}; what is reserved lasts");
                }
                thread::sleep(RETRY);
            }
        }
    }
}

/// Both files of a state directory.
#[derive(Debug)]
struct KeyFile {
    files: [File; 2],
    newest: usize,
    generation: u64,
    /// The state directory, locked so that no other daemon uses it.
    _directory: File,
}

/// The content of a state file.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// The file was never written.
    Empty,
    /// The file is partly written, or damaged.
    Broken,
    State {
        generation: u64,
        marks: Vec<KeyMark>,
    },
}

impl KeyFile {
    fn open(path: &Path) -> Result<(Self, Vec<KeyMark>), StateError> {
        let failed = |cause: String| StateError::Directory { directory: path.to_owned(), cause };
        let directory = open_directory(path).map_err(failed)?;
        let damaged = || StateError::Damaged(path.to_owned());
        let [first, second] = NAMES.map(|name| path.join(name));
        match (first.exists(), second.exists()) {
            (false, false) => make_first(path, &directory).map_err(|error| failed(error.to_string()))?,
            (true, _) => {}
            (false, true) => return Err(damaged()),
        }
        let first = open_file(&first).map_err(failed)?;
        if !second.exists() {
            // Either the daemon was interrupted while it created the two files, or a file was removed.
            match read(&first).map_err(|error| failed(error.to_string()))? {
                Content::State { generation: 0, .. } => {}
                _ => return Err(damaged()),
            }
            let made = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&second);
            made.and_then(|_| directory.sync_all()).map_err(|error| failed(error.to_string()))?;
        }
        let files = [first, open_file(&second).map_err(failed)?];
        let (mut newest, mut is_empty) = (None, false);
        for (n, file) in files.iter().enumerate() {
            match read(file).map_err(|error| failed(error.to_string()))? {
                Content::State { generation, marks }
                    if newest.as_ref().is_none_or(|(_, known, _)| *known < generation) =>
                {
                    newest = Some((n, generation, marks));
                }
                Content::State { .. } | Content::Broken => {}
                Content::Empty => is_empty = true,
            }
        }
        if is_empty && newest.as_ref().is_some_and(|(_, generation, _)| *generation >= FIRST_GENERATION) {
            return Err(damaged());
        }
        let (newest, generation, marks) = newest.ok_or_else(damaged)?;
        let mut state = Self { files, newest, generation, _directory: directory };
        // After this loop, both files contain a state. So a later start takes a missing or empty file for damage, and
        // not for the file of a new directory.
        while state.generation < FIRST_GENERATION {
            state.write(&marks).map_err(|error| failed(error.to_string()))?;
        }
        Ok((state, marks))
    }
}

impl KeyStore for KeyFile {
    fn write(&mut self, marks: &[KeyMark]) -> io::Result<()> {
        for file in &self.files {
            if file.metadata()?.nlink() == 0 {
                return Err(io::Error::other(
                    "a file of daemon.state_directory was removed; restart the daemon with new keys",
                ));
            }
        }
        let (older, generation) = (1 - self.newest, self.generation + 1);
        let text = encode(generation, marks);
        let file = &self.files[older];
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)?;
        file.sync_all()?;
        (self.newest, self.generation) = (older, generation);
        Ok(())
    }
}

/// Opens and locks a directory in which no other user can replace a file.
fn open_directory(path: &Path) -> Result<File, String> {
    let directory = File::open(path).map_err(|cause| cause.to_string())?;
    let metadata = directory.metadata().map_err(|cause| cause.to_string())?;
    if !metadata.is_dir() {
        return Err("it is no directory".to_owned());
    }
    let owner = metadata.uid();
    if owner != 0 && owner != Uid::effective().as_raw() {
        return Err(format!("it belongs to uid {owner}; give it to the daemon's user"));
    }
    let mode = metadata.mode();
    if mode & OTHERS_WRITE != 0 {
        return Err(format!("others may write to it (mode {:04o}); run: chmod 700 {}", mode & 0o7777, path.display()));
    }
    directory.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => "another daemon uses it".to_owned(),
        fs::TryLockError::Error(cause) => cause.to_string(),
    })?;
    Ok(directory)
}

fn open_file(path: &Path) -> Result<File, String> {
    let name = path.file_name().unwrap_or_default().display();
    let failed = |cause: io::Error| format!("{name}: {cause}");
    let options = OFlag::O_NOFOLLOW.bits();
    let file = OpenOptions::new().read(true).write(true).custom_flags(options).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if !metadata.is_file() || metadata.nlink() != 1 {
        return Err(format!("{name} is no file of its own"));
    }
    if owner != Uid::effective().as_raw() {
        return Err(format!("{name} belongs to uid {owner}; give it to the daemon's user"));
    }
    if mode & OTHERS_MODE != 0 {
        return Err(format!(
            "{name} is open to others (mode {:04o}); run: chmod 600 {}",
            mode & 0o7777,
            path.display()
        ));
    }
    Ok(file)
}

/// Creates the first file. The file gets its name only when it contains a complete state, because [`KeyFile::open`]
/// takes an empty first file for damage.
fn make_first(path: &Path, directory: &File) -> io::Result<()> {
    let unfinished = path.join(UNFINISHED);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&unfinished)?;
    file.write_all_at(encode(0, &[]).as_bytes(), 0)?;
    file.sync_all()?;
    fs::rename(&unfinished, path.join(NAMES[0]))?;
    directory.sync_all()
}

fn read(mut file: &File) -> io::Result<Content> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(FILE_LEN_MAX).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(Content::Empty);
    }
    let state = String::from_utf8(bytes).ok().and_then(|text| decode(&text));
    Ok(state.map_or(Content::Broken, |(generation, marks)| Content::State { generation, marks }))
}

/// Formats bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn checksum(text: &str) -> String {
    hex(digest(&SHA256, text.as_bytes()).as_ref())
}

fn encode(generation: u64, marks: &[KeyMark]) -> String {
    let mut text = format!("{VERSION_LINE}\n{GENERATION}{generation}\n");
    for KeyMark { key, number } in marks {
        let KeyId { direction, spi, fingerprint } = key;
        let _ = writeln!(text, "{direction} {spi:08x} {} {number}", hex(fingerprint));
    }
    let checksum = checksum(&text);
    text + CHECKSUM + &checksum + "\n"
}

/// Parses a text made by [`encode`]; returns `None` for any other text.
fn decode(text: &str) -> Option<(u64, Vec<KeyMark>)> {
    let lines = text.strip_suffix('\n')?;
    let (_, last) = lines.rsplit_once('\n')?;
    let covered = &text[..lines.len() - last.len()];
    if last.strip_prefix(CHECKSUM)? != checksum(covered) {
        return None;
    }
    let mut lines = covered.lines();
    if lines.next()? != VERSION_LINE {
        return None;
    }
    let generation = lines.next()?.strip_prefix(GENERATION)?.parse().ok()?;
    let marks = lines.map(mark_of).collect::<Option<_>>()?;
    Some((generation, marks))
}

fn mark_of(line: &str) -> Option<KeyMark> {
    let mut words = line.split(' ');
    let direction = match words.next()? {
        "out" => SaDirection::Out,
        "in" => SaDirection::In,
        _ => return None,
    };
    let spi = u32::from_str_radix(words.next()?, 16).ok()?;
    let digits = words.next()?;
    let mut fingerprint = [0; FINGERPRINT_LEN];
    for (byte, n) in fingerprint.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(digits.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    let number = words.next()?.parse().ok()?;
    let is_whole = words.next().is_none() && digits.len() == 2 * FINGERPRINT_LEN;
    is_whole.then_some(KeyMark { key: KeyId { direction, spi, fingerprint }, number })
}

#[cfg(test)]
mod tests;

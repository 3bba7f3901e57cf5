//! Tests of sequence numbers across crashes: a simulated process ends at any point, and the next process starts with
//! the state on the disk.

use super::*;
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaError};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, InPlace, PortError, WirePort};
use offramp_offload::caps::Offloads;
use offramp_offload::esp::{Arrival, SaConfig, SecretKey, Suite};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_offload::sync::lock;
use std::collections::HashSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Number of process ends in [`no_number_of_a_key_is_used_twice_over_ten_thousand_crashes`].
const CRASHES: usize = 10_000;

/// A directory that is removed at the end of its test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        // The directory is in memory, because syncing each write to a disk would slow the tests.
        let path = Path::new("/dev/shm").join(format!("ofr-state-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    /// Opens the directory. Waits up to two seconds while another process uses the directory. A process started by a
    /// parallel test inherits the open files of this process, and closes them when it executes its program.
    fn open(&self) -> Result<(KeyFile, Vec<KeyMark>), String> {
        let until = Instant::now() + Duration::from_secs(2);
        loop {
            match KeyFile::open(&self.0).map_err(|error| error.to_string()) {
                Err(error) if error.contains("another daemon uses it") && Instant::now() < until => thread::yield_now(),
                outcome => return outcome,
            }
        }
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Pseudo-random numbers (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

fn mark(direction: SaDirection, spi: u32, number: u64) -> KeyMark {
    KeyMark { key: KeyId { direction, spi, fingerprint: [number as u8; FINGERPRINT_LEN] }, number }
}

#[test]
fn marks_come_back_in_their_order_and_any_change_of_a_file_is_noticed() {
    let marks = [mark(SaDirection::Out, 0, 1 << 40), mark(SaDirection::In, 0x1002, 7)];
    let text = encode(17, &marks);
    assert!(text.starts_with("offramp keys 1\ngeneration 17\nout 00000000 0000"), "{text}");
    assert_eq!(decode(&text), Some((17, marks.to_vec())));
    for at in 0..text.len() {
        assert_eq!(decode(&text[..at]), None, "written in part");
        let mut changed = text.clone().into_bytes();
        changed[at] ^= 1;
        assert_eq!(String::from_utf8(changed).ok().and_then(|text| decode(&text)), None, "byte {at}");
    }
    assert_eq!(decode(&(text.clone() + &text)), None);
    let next_version = text.replace("keys 1", "keys 2");
    let covered = next_version.split(CHECKSUM).next().unwrap();
    assert_eq!(decode(&format!("{covered}{CHECKSUM}{}\n", checksum(covered))), None, "another version");
}

#[test]
fn a_state_is_whole_after_each_write_and_one_of_before_stands_beside_it() {
    let directory = Directory::new("write");
    let (mut file, marks) = directory.open().unwrap();
    assert_eq!(marks, []);
    for number in 1001..1006 {
        file.write(&[mark(SaDirection::Out, 0, number)]).unwrap();
        let texts = NAMES.map(|name| directory.text(name));
        let newest = texts.iter().filter(|text| text.contains(&format!(" {number}\n"))).count();
        assert!(newest == 1 && texts.iter().all(|text| decode(text).is_some()), "{texts:?}");
    }
    assert!(directory.open().unwrap_err().contains("another daemon uses it"));
    drop(file);
    assert_eq!(directory.open().unwrap().1, [mark(SaDirection::Out, 0, 1005)]);
}

#[test]
fn what_was_written_in_part_does_not_count_and_what_is_missing_or_damaged_stops_the_daemon() {
    let directory = Directory::new("damaged");
    let (mut file, _) = directory.open().unwrap();
    file.write(&[mark(SaDirection::Out, 0, 1)]).unwrap();
    file.write(&[mark(SaDirection::Out, 0, 2)]).unwrap();
    let names = [NAMES[file.newest], NAMES[1 - file.newest]];
    drop(file);
    let [newest, older] = names.map(|name| directory.0.join(name));
    let text = fs::read(&older).unwrap();
    fs::write(&older, &text[..text.len() / 2]).unwrap();
    assert_eq!(directory.open().unwrap().1, [mark(SaDirection::Out, 0, 2)]);
    // An empty or missing file is damage: the daemon never empties or removes a file.
    fs::write(&older, b"").unwrap();
    assert!(directory.open().unwrap_err().contains("Make new keys"));
    for gone in [&older, &newest] {
        let kept = fs::read(gone).unwrap();
        fs::remove_file(gone).unwrap();
        assert!(directory.open().unwrap_err().contains("damaged or missing"), "{}", gone.display());
        fs::write(gone, kept).unwrap();
        fs::set_permissions(gone, fs::Permissions::from_mode(0o600)).unwrap();
    }
    fs::write(&older, b"offramp").unwrap();
    fs::write(&newest, b"offramp keys 2\n").unwrap();
    assert!(directory.open().unwrap_err().contains("damaged or missing"));
}

#[test]
fn a_directory_whose_making_was_interrupted_is_made_again() {
    let directory = Directory::new("interrupted");
    fs::write(directory.0.join(UNFINISHED), "offramp keys 1\ngen").unwrap();
    drop(directory.open().unwrap());
    let texts = NAMES.map(|name| directory.text(name));
    assert!(texts.iter().all(|text| decode(text).is_some()));
    // The daemon was interrupted before it created the second file, and later while it wrote the first two states.
    fs::remove_file(directory.0.join(NAMES[1])).unwrap();
    fs::write(directory.0.join(NAMES[0]), encode(0, &[])).unwrap();
    drop(directory.open().unwrap());
    fs::write(directory.0.join(NAMES[0]), encode(0, &[])).unwrap();
    fs::write(directory.0.join(NAMES[1]), "offramp").unwrap();
    assert_eq!(directory.open().unwrap().1, []);
}

#[test]
fn files_that_others_can_read_or_replace_are_refused() {
    let directory = Directory::new("others");
    drop(directory.open().unwrap());
    let first = directory.0.join(NAMES[0]);
    assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::set_permissions(&first, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(directory.open().unwrap_err().contains("chmod 600"));
    fs::set_permissions(&first, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(directory.open().unwrap_err().contains("chmod 700"));
    fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o700)).unwrap();
    let elsewhere = directory.0.join("elsewhere");
    fs::rename(&first, &elsewhere).unwrap();
    symlink(&elsewhere, &first).unwrap();
    assert!(directory.open().unwrap_err().contains("keys.0"));
    fs::remove_file(&first).unwrap();
    fs::hard_link(&elsewhere, &first).unwrap();
    assert!(directory.open().unwrap_err().contains("no file of its own"));
    fs::remove_file(&elsewhere).unwrap();
    if Uid::effective().is_root() && std::os::unix::fs::chown(&first, Some(12_345), None).is_ok() {
        assert!(directory.open().unwrap_err().contains("belongs to uid 12345"));
        std::os::unix::fs::chown(&directory.0, Some(12_345), None).unwrap();
        assert!(directory.open().unwrap_err().contains("it belongs to uid 12345"));
    }
}

#[test]
fn a_file_that_is_removed_while_the_daemon_runs_is_noticed_before_numbers_are_used() {
    let directory = Directory::new("removed");
    let (mut file, _) = directory.open().unwrap();
    fs::remove_file(directory.0.join(NAMES[1])).unwrap();
    assert!(file.write(&[]).unwrap_err().to_string().contains("was removed"));
}

/// The points of a write at which a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Ends before anything is written.
    Before,
    /// Ends after this many thousandths of the new content have replaced the old content.
    InPart(usize),
    /// Ends after everything is written, before the caller is notified.
    After,
}

/// A state file of a process that ends at one of its writes.
struct Ending {
    file: KeyFile,
    /// Number of complete writes before the end.
    left: usize,
    end: End,
    has_ended: Arc<Mutex<bool>>,
}

impl KeyStore for Ending {
    fn write(&mut self, marks: &[KeyMark]) -> io::Result<()> {
        if self.left > 0 {
            self.left -= 1;
            return self.file.write(marks);
        }
        match self.end {
            End::Before => {}
            End::After => self.file.write(marks)?,
            End::InPart(thousandths) => {
                let text = encode(self.file.generation + 1, marks);
                let part = &text.as_bytes()[..text.len() * thousandths / 1000];
                self.file.files[1 - self.file.newest].write_all_at(part, 0)?;
            }
        }
        *lock(&self.has_ended) = true;
        Err(io::Error::other("the process has ended"))
    }
}

/// A host that sends `left` IPv4 packets.
#[derive(Default)]
struct Sender {
    left: usize,
    frame: Vec<u8>,
}

impl InPlace for Sender {}

impl HostPort for Sender {
    fn tx_next(&mut self, _: u64) -> Result<bool, PortError> {
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        // An IPv4 header without payload, with the protocol number for experiments (RFC 3692).
        self.frame =
            [[2; 12].as_slice(), &[8, 0, 0x45, 0, 0, 20, 0, 0, 0x40, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]]
                .concat();
        Ok(is_left)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        Frame::new(&mut self.frame, TxMeta::default())
    }

    fn rx_deliver(&mut self, _: &RxMeta, _: &[u8]) -> Result<(), PortError> {
        Ok(())
    }

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }
}

/// Returns an association with key number `key`. Each key has its own SPI, so the SPI of a packet identifies the key.
fn association(key: u32) -> SaConfig {
    let suite = Suite::by_name(["aes128gcm16", "chacha20poly1305", "aes128gmac"][key as usize]).unwrap();
    let bytes = (0..suite.encryption_key_len()).map(|n| n as u8 ^ key as u8).collect();
    SaConfig { esn: key == 0, ..SaConfig::new(0x1000 + key, suite, SecretKey::new(bytes), SecretKey::none()) }
}

/// A port of a process, with its wire.
struct Port {
    control: Arc<PortControl>,
    pair: QueuePair<Sender, CableEnd>,
    wire: CableEnd,
}

impl Port {
    fn new(keys: &Arc<KeyRegistry>, name: &str) -> Self {
        let config = AdapterConfig::default();
        let control = PortControl::new(&config);
        control.ipsec().share_keys(keys, name);
        let (near, wire) = cable(&CableConfig::default());
        Self { pair: QueuePair::new(&config, &control, 0, Sender::default(), near), control, wire }
    }

    /// Installs an association as a client does: after a refusal, uses the sequence number named in the error.
    fn add(&self, config: &SaConfig) -> Result<(), SaError> {
        let add = |sequence| {
            let config = Box::new(SaConfig { sequence, ..config.clone() });
            let change = SaChange::Add { direction: SaDirection::Out, config };
            self.control.change_ipsec(&[change]).map_err(|(_, error)| error)
        };
        match add(0) {
            Err(SaError::UsedKey { sequence, .. }) => add(sequence),
            outcome => outcome,
        }
    }

    /// Sends frames. Returns the SPI and the sequence number of each ESP packet on the wire.
    fn send(&mut self, frames: usize) -> Vec<(u32, u32)> {
        self.pair.host_mut().left = frames;
        let mut sent = Vec::new();
        while self.pair.poll(0).unwrap().moved {
            while let Some(frame) = self.wire.take(u64::MAX / 2) {
                if let Ok(Arrival::Esp(packet)) = Arrival::of(&Frame::received(frame), None) {
                    sent.push((packet.spi, packet.sequence));
                }
            }
        }
        sent
    }
}

#[test]
fn no_number_of_a_key_is_used_twice_over_ten_thousand_crashes() {
    let directory = Directory::new("crashes");
    let (mut chance, mut used, mut ends) = (Chance(0x9e37_79b9_7f4a_7c15), HashSet::new(), [0; 5]);
    for crash in 0..CRASHES {
        let (file, marks) = directory.open().unwrap();
        let end = match chance.below(4) {
            0 => End::Before,
            1 => End::After,
            _ => End::InPart(chance.below(1000)),
        };
        let has_ended = Arc::new(Mutex::new(false));
        let store = Ending { file, left: chance.below(8), end, has_ended: Arc::clone(&has_ended) };
        let step = [2, 3, 16, 64][chance.below(4)];
        let keys = Arc::new(KeyRegistry::lasting(Box::new(store), &marks, step, Waker::noop().clone()));
        let mut ports = ["a", "b"].map(|name| Port::new(&keys, name));
        let is_over = || *lock(&has_ended);
        // Some processes end between two writes.
        for _ in 0..chance.below(24) {
            if is_over() {
                break;
            }
            let (port, key) = (&mut ports[chance.below(2)], chance.below(3) as u32);
            match chance.below(4) {
                0 => drop(port.add(&association(key))),
                1 => {
                    let remove = SaChange::Remove { direction: SaDirection::Out, spi: 0x1000 + key };
                    let _ = port.control.change_ipsec(&[remove]);
                }
                2 => drop(keys.keep()),
                // After the simulated end at a write, the port may still use sequence numbers that were granted before.
                _ => {
                    for number in port.send(chance.below(40)) {
                        assert!(used.insert(number), "{number:x?} twice; crash {crash}, {end:?}");
                    }
                }
            }
        }
        for number in ports.iter_mut().flat_map(|port| port.send(5)) {
            assert!(used.insert(number), "{number:x?} twice; at the end of {crash}, {end:?}");
        }
        let kind = match (is_over(), end) {
            (true, End::Before) => 0,
            (true, End::InPart(_)) => 1,
            (true, End::After) => 2,
            (false, _) if chance.below(4) == 0 => {
                let _ = keys.close();
                3
            }
            (false, _) => 4,
        };
        ends[kind] += 1;
    }
    // Each kind of end occurred, and enough numbers were used for a reuse to be noticed.
    assert!(ends.iter().all(|&count| count > CRASHES / 100), "{ends:?}");
    assert!(used.len() > CRASHES, "{}", used.len());
}

//! Features, driver, interrupt coalescing and receive hash of an interface in the calling thread's namespace, through
//! the ioctl of ethtool(8) (Linux `include/uapi/linux/ethtool.h`).

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use super::{SysError, link};

/// `ETHTOOL_GDRVINFO`: reads the driver's name and version.
const GET_DRIVER: u32 = 0x03;
/// `ETHTOOL_GCOALESCE` and `ETHTOOL_SCOALESCE`: read and set interrupt coalescing.
const GET_COALESCE: u32 = 0x0e;
const SET_COALESCE: u32 = 0x0f;
/// `ETHTOOL_GSTRINGS`: reads the names in a string set.
const GET_STRINGS: u32 = 0x1b;
/// `ETHTOOL_GRXFH`: reads the hashed header fields for a kind of packet.
const GET_HASH_FIELDS: u32 = 0x29;
/// `ETHTOOL_GRXRINGS`: reads the number of receive queues.
const GET_RX_QUEUES: u32 = 0x2d;
/// `ETHTOOL_GRSSH`: reads hash function, key and indirection table.
const GET_RX_HASH: u32 = 0x46;
/// `ETHTOOL_GSSET_INFO`: reads the number of names in a string set.
const GET_SET_SIZE: u32 = 0x37;
/// `ETHTOOL_GFEATURES`: reads the state of all features.
const GET_FEATURES: u32 = 0x3a;
/// `ETHTOOL_SFEATURES`: switches features.
const SET_FEATURES: u32 = 0x3b;
/// `ETH_SS_FEATURES`: the string set with the names of the features.
const FEATURE_NAMES: u32 = 4;
/// `ETH_GSTRING_LEN`: length of one name, in bytes.
const STRING_LEN: usize = 32;
/// Length of `struct ethtool_drvinfo`, in 32-bit words.
const DRIVER_WORDS: usize = 196 / 4;
/// Length of `struct ethtool_coalesce` in 32-bit words, and the indexes of its fields `rx_coalesce_usecs`,
/// `rx_max_coalesced_frames`, `tx_max_coalesced_frames` and `use_adaptive_rx_coalesce`.
const COALESCE_WORDS: usize = 23;
const RX_USECS: usize = 1;
const RX_FRAMES: usize = 2;
const TX_FRAMES: usize = 6;
const ADAPTIVE_RX: usize = 10;
/// `ETHTOOL_F_UNSUPPORTED`: the request contained a feature that cannot be changed.
const F_UNSUPPORTED: i32 = 1;
/// `ETHTOOL_F_WISH`: a feature did not change to the requested state because of another feature.
const F_WISH: i32 = 2;

/// Length of `struct ethtool_rxfh` without table and key, in 32-bit words.
const RX_HASH_WORDS: usize = 6;
/// Length of `struct ethtool_rxnfc`, in 32-bit words.
const RXNFC_WORDS: usize = 192 / 4;
/// `RXH_IP_SRC` and `RXH_IP_DST`: the addresses are hashed.
pub const HASHED_ADDRESSES: u64 = 1 << 4 | 1 << 5;
/// `RXH_L4_B_0_1` and `RXH_L4_B_2_3`: the ports are hashed.
pub const HASHED_PORTS: u64 = 1 << 6 | 1 << 7;
/// `ETH_RSS_HASH_TOP`: the Toeplitz hash function.
pub const HASH_TOEPLITZ: u8 = 1;

/// A kind of packet for which the hashed fields can be set (`TCP_V4_FLOW`, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowKind {
    /// TCP over IPv4.
    Tcp4 = 1,
    /// UDP over IPv4.
    Udp4 = 2,
    /// TCP over IPv6.
    Tcp6 = 5,
    /// UDP over IPv6.
    Udp6 = 6,
}

/// The distribution of an interface's received frames over its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxHash {
    /// The hash function, such as [`HASH_TOEPLITZ`]. 0 if the driver does not report a function.
    pub function: u8,
    /// The transformation of the fields before the hash (since Linux 6.8). 0 if the fields are not transformed.
    pub transform: u8,
    /// The key of the hash.
    pub key: Vec<u8>,
    /// The indirection table: a queue for each value of the hash's low bits.
    pub table: Vec<u32>,
}

/// The state of an interface's features at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    names: Vec<String>,
    words: Vec<Word>,
}

/// The state of 32 features (`struct ethtool_get_features_block`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Word {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// The driver of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverInfo {
    /// The driver's name (`tun`, `veth`, `virtio_net`, …).
    pub driver: String,
    /// The version of the driver, or of the kernel.
    pub version: String,
    /// The version of the adapter's firmware; often empty.
    pub firmware: String,
    /// The bus address of the adapter (PCI), often empty.
    pub bus: String,
}

impl Features {
    /// Reads the interface's features.
    ///
    /// # Errors
    /// Returns an error if there is no such interface.
    pub fn read(name: &str) -> Result<Self, SysError> {
        let state = feature_names(name).and_then(|names| {
            let words = feature_words(name, names.len())?;
            Ok(Self { names, words })
        });
        state.map_err(|e| SysError::new(format!("reading the features of interface \"{name}\""), e))
    }

    /// Returns the names of all features of this kernel (`tx-checksum-ip-generic`, `rx-gro`, …).
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str).filter(|n| !n.is_empty())
    }

    /// Returns whether the feature is on. Returns `None` if the kernel lacks the feature.
    pub fn active(&self, feature: &str) -> Option<bool> {
        self.bit(feature, |word| word.active)
    }

    /// Returns whether the user requested the feature. A requested feature stays off if another feature prevents its
    /// activation.
    pub fn requested(&self, feature: &str) -> Option<bool> {
        self.bit(feature, |word| word.requested)
    }

    /// Returns whether the feature can be switched on this interface.
    pub fn changeable(&self, feature: &str) -> Option<bool> {
        self.bit(feature, |word| word.available & !word.never_changed)
    }

    fn bit(&self, feature: &str, of: impl Fn(&Word) -> u32) -> Option<bool> {
        let (word, mask) = position(&self.names, feature)?;
        self.words.get(word).map(|w| of(w) & mask != 0)
    }
}

/// Switches features of an interface. The features are switched in one request, because a feature can depend on
/// another.
///
/// # Errors
/// Returns an error if there is no such interface or feature, or a feature did not change. A feature does not change if
/// the feature is fixed or another feature prevents the change.
pub fn set_features(name: &str, wanted: &[(&str, bool)]) -> Result<(), SysError> {
    let text = || format!("switching {} of interface \"{name}\"", describe(wanted));
    let names = feature_names(name).map_err(|e| SysError::new(text(), e))?;
    let blocks = names.len().div_ceil(32);
    let mut request = vec![0; 2 + 2 * blocks];
    request[..2].copy_from_slice(&[SET_FEATURES, blocks as u32]);
    for (feature, on) in wanted {
        let unknown = || SysError::new(text(), other(format!("the kernel knows no feature \"{feature}\"")));
        let (word, mask) = position(&names, feature).ok_or_else(unknown)?;
        request[2 + 2 * word] |= mask;
        if *on {
            request[2 + 2 * word + 1] |= mask;
        }
    }
    let outcome = call(name, &mut request).map_err(|e| SysError::new(text(), e))?;
    match outcome {
        _ if outcome & F_UNSUPPORTED != 0 => Err(SysError::new(text(), other("it is fixed on this interface"))),
        _ if outcome & F_WISH != 0 => Err(SysError::new(text(), other("another feature stands against it"))),
        _ => Ok(()),
    }
}

/// Sets interrupt coalescing for received frames: an interrupt after `usecs` microseconds or `frames` frames, whichever
/// is first.
///
/// # Errors
/// Returns an error if there is no such interface, or its driver refuses the setting (`EOPNOTSUPP`).
pub fn set_rx_coalescing(name: &str, usecs: u32, frames: u32) -> Result<(), SysError> {
    let fixed = [(RX_USECS, usecs), (RX_FRAMES, frames), (ADAPTIVE_RX, 0)];
    set_coalescing(name, &fixed).map_err(|e| SysError::new(format!("setting when interface \"{name}\" interrupts"), e))
}

/// Turns on adaptive coalescing of receive interrupts in the interface's driver (DIM, `adaptive-rx on`).
///
/// # Errors
/// Returns an error if there is no such interface, or its driver lacks adaptive coalescing (`EOPNOTSUPP`).
pub fn set_adaptive_rx(name: &str) -> Result<(), SysError> {
    set_coalescing(name, &[(ADAPTIVE_RX, 1)])
        .map_err(|e| SysError::new(format!("setting adaptive-rx of interface \"{name}\""), e))
}

/// Sets the given words of `struct ethtool_coalesce`. The other words do not change.
fn set_coalescing(name: &str, words: &[(usize, u32)]) -> io::Result<()> {
    let mut request = vec![0; COALESCE_WORDS];
    request[0] = GET_COALESCE;
    call(name, &mut request)?;
    request[0] = SET_COALESCE;
    for (at, value) in words {
        request[*at] = *value;
    }
    // virtio_net in Linux 6.1 reports a `tx-frames` of 0, but refuses this value while the interface is up (`EBUSY`).
    request[TX_FRAMES] = request[TX_FRAMES].max(1);
    call(name, &mut request).map(drop)
}

/// Returns the interface's driver.
///
/// # Errors
/// Returns an error if there is no such interface.
pub fn driver_info(name: &str) -> Result<DriverInfo, SysError> {
    let mut request = vec![0; DRIVER_WORDS];
    request[0] = GET_DRIVER;
    call(name, &mut request).map_err(|e| SysError::new(format!("reading the driver of interface \"{name}\""), e))?;
    let bytes = to_bytes(&request);
    let text = |field: usize| string(&bytes[4 + field * STRING_LEN..4 + (field + 1) * STRING_LEN]);
    Ok(DriverInfo { driver: text(0), version: text(1), firmware: text(2), bus: text(3) })
}

/// Returns the distribution of received frames over the interface's queues.
///
/// # Errors
/// Returns an error if there is no such interface, or its driver does not report the hash (`EOPNOTSUPP`).
pub fn rx_hash(name: &str) -> Result<RxHash, SysError> {
    let read = || -> io::Result<RxHash> {
        let mut request = vec![0; RX_HASH_WORDS];
        request[0] = GET_RX_HASH;
        call(name, &mut request)?;
        let [entries, key_len] = [request[2], request[3]].map(|len| len as usize);
        request.fill(0);
        request[..4].copy_from_slice(&[GET_RX_HASH, 0, entries as u32, key_len as u32]);
        request.resize(RX_HASH_WORDS + entries + key_len.div_ceil(4), 0);
        call(name, &mut request)?;
        let [function, transform, ..] = request[4].to_ne_bytes();
        let (table, key) = request[RX_HASH_WORDS..].split_at(entries);
        Ok(RxHash { function, transform, key: to_bytes(key)[..key_len].to_vec(), table: table.to_vec() })
    };
    read().map_err(|e| SysError::new(format!("reading the hash of received frames of interface \"{name}\""), e))
}

/// Returns the header fields that are hashed in packets of this kind: [`HASHED_ADDRESSES`] and other bits `RXH_…`.
///
/// # Errors
/// Returns an error if there is no such interface, or its driver does not report the value.
pub fn rx_hash_fields(name: &str, kind: FlowKind) -> Result<u64, SysError> {
    rxnfc(name, GET_HASH_FIELDS, kind as u32, "the hashed fields")
}

/// Returns the number of receive queues.
///
/// # Errors
/// Returns an error if there is no such interface, or its driver does not report the value.
pub fn rx_queues(name: &str) -> Result<u64, SysError> {
    rxnfc(name, GET_RX_QUEUES, 0, "the receive queues")
}

/// Returns the member `data` of `struct ethtool_rxnfc` after a command.
fn rxnfc(name: &str, command: u32, flow_type: u32, what: &str) -> Result<u64, SysError> {
    let mut request = vec![0; RXNFC_WORDS];
    request[..2].copy_from_slice(&[command, flow_type]);
    call(name, &mut request).map_err(|e| SysError::new(format!("reading {what} of interface \"{name}\""), e))?;
    let [a, b] = [request[2], request[3]].map(u32::to_ne_bytes);
    Ok(u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]))
}

/// Returns the names of all features in the order of their bits. Unused bits have an empty name.
fn feature_names(name: &str) -> io::Result<Vec<String>> {
    let count = feature_count(name)?;
    let mut request = vec![0; 3 + count * STRING_LEN / 4];
    request[..3].copy_from_slice(&[GET_STRINGS, FEATURE_NAMES, count as u32]);
    call(name, &mut request)?;
    let bytes = to_bytes(&request[3..]);
    Ok(bytes.chunks_exact(STRING_LEN).map(string).collect())
}

fn feature_count(name: &str) -> io::Result<usize> {
    let mask = (1u64 << FEATURE_NAMES).to_ne_bytes();
    let word = |at: usize| u32::from_ne_bytes([mask[at], mask[at + 1], mask[at + 2], mask[at + 3]]);
    let mut request = vec![GET_SET_SIZE, 0, word(0), word(4), 0];
    call(name, &mut request)?;
    Ok(request[4] as usize)
}

fn feature_words(name: &str, features: usize) -> io::Result<Vec<Word>> {
    let blocks = features.div_ceil(32);
    let mut request = vec![0; 2 + 4 * blocks];
    request[..2].copy_from_slice(&[GET_FEATURES, blocks as u32]);
    call(name, &mut request)?;
    let word = |w: &[u32]| Word { available: w[0], requested: w[1], active: w[2], never_changed: w[3] };
    Ok(request[2..].chunks_exact(4).map(word).collect())
}

/// Returns the word index and the bit of a feature.
fn position(names: &[String], feature: &str) -> Option<(usize, u32)> {
    let at = names.iter().position(|n| n == feature)?;
    Some((at / 32, 1 << (at % 32)))
}

/// `struct ifreq` in the layout read by `SIOCETHTOOL`: a name and a pointer.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut u32,
    rest: [u8; 24 - size_of::<*mut u32>()],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// Number of spare words after every request, in case a kernel writes more than its documented structure.
const SPARE_WORDS: usize = 256;

/// Makes one ethtool call. The kernel reads and writes `data`, which starts with the command number.
fn call(name: &str, data: &mut Vec<u32>) -> io::Result<i32> {
    if !link::is_valid_name(name) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let len = data.len();
    data.resize(len + SPARE_WORDS, 0);
    let mut request = Request { name: [0; libc::IFNAMSIZ], data: data.as_mut_ptr(), rest: [0; _] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: SIOCETHTOOL reads one `struct ifreq` (size asserted above) and writes the structure of the command to the
    // address in its pointer `data`. Each caller sized `data` for its command. The counts of names and features are
    // constants of the running kernel and were just read. The kernel writes the table and the key of the hash only if
    // the announced sizes are right.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    data.truncate(len);
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

fn to_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

/// Returns a text field up to its first zero byte.
fn string(field: &[u8]) -> String {
    let len = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..len]).into_owned()
}

fn describe(wanted: &[(&str, bool)]) -> String {
    let one = |(feature, on): &(&str, bool)| format!("{feature} {}", if *on { "on" } else { "off" });
    wanted.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn other(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

//! The cases for the guest's kernel, as commands for it.

use super::{GUEST_V6, HOST_V6};
use offramp_testbed::guest::busybox::{GUEST, HOST, random_bytes};
use std::net::IpAddr;

/// The guest sends with this SPI, and receives with the other.
const GUEST_SPI: u32 = 0x1001;
const HOST_SPI: u32 = 0x1002;
/// Packets before the lower half of a sequence number begins again.
const BEFORE_WRAP: u32 = 64;

/// The IP version of both ends, and of a tunnel's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// An additional feature of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Sequence numbers of 32 bits, ESP directly after IP.
    None,
    /// Sequence numbers of 64 bits, beginning just below 2³².
    Wrap,
    /// ESP in UDP.
    Encapsulation,
}

/// The end of a text of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest with IPsec in its kernel.
    Guest,
    /// The host with IPsec in its adapter.
    Host,
}

/// The name of a suite in `ip xfrm`.
#[derive(Clone, Copy, Debug)]
enum Algorithms {
    /// Name, and bytes of the key with its salt.
    Aead(&'static str, usize),
    /// Cipher and bytes of its key; hash, bytes of its key, bits of the check value.
    Separate(&'static str, usize, &'static str, usize, u32),
}

/// The three of the short run, then the others of Linux and offramp.
const SUITES: [(&str, Algorithms); 9] = [
    ("aes128gcm16", Algorithms::Aead("rfc4106(gcm(aes))", 20)),
    ("aes128-sha256", Algorithms::Separate("cbc(aes)", 16, "hmac(sha256)", 32, 128)),
    ("chacha20poly1305", Algorithms::Aead("rfc7539esp(chacha20,poly1305)", 36)),
    ("aes256gcm16", Algorithms::Aead("rfc4106(gcm(aes))", 36)),
    ("aes128gmac", Algorithms::Aead("rfc4543(gcm(aes))", 20)),
    ("aes256-sha384", Algorithms::Separate("cbc(aes)", 32, "hmac(sha384)", 48, 192)),
    ("aes192-sha512", Algorithms::Separate("cbc(aes)", 24, "hmac(sha512)", 64, 256)),
    ("aes128-sha1", Algorithms::Separate("cbc(aes)", 16, "hmac(sha1)", 20, 96)),
    ("null-sha256", Algorithms::Separate("ecb(cipher_null)", 0, "hmac(sha256)", 32, 128)),
];
/// Number of suites in every mode.
const MAIN_SUITES: usize = 3;

/// One set of associations.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its place among the suites, modes and extras: no two cases have a key in common.
    number: u64,
    suite: &'static str,
    algorithms: Algorithms,
    /// Tunnel, not transport mode.
    pub is_tunnel: bool,
    /// IP version of both ends.
    pub version: Version,
    /// Its additional feature.
    pub extra: Extra,
}

/// Returns the cases of a full or a short run.
pub fn cases(full: bool) -> Vec<Case> {
    let make = |suite_at: usize, is_tunnel, version: Version, extra: Extra| {
        let (suite, algorithms) = SUITES[suite_at];
        let number = ((suite_at * 2 + usize::from(is_tunnel)) * 2 + version as usize) * 3 + extra as usize;
        Case { number: number as u64, suite, algorithms, is_tunnel, version, extra }
    };
    if !full {
        // Every suite in both modes and both versions, and each extra once.
        return vec![
            make(0, false, Version::V4, Extra::None),
            make(0, true, Version::V6, Extra::Wrap),
            make(1, true, Version::V4, Extra::None),
            make(1, false, Version::V6, Extra::Wrap),
            make(2, false, Version::V6, Extra::None),
            make(2, true, Version::V4, Extra::Encapsulation),
        ];
    }
    let mut cases = Vec::new();
    for (index, _) in SUITES.iter().enumerate() {
        for is_tunnel in [false, true] {
            for version in [Version::V4, Version::V6] {
                let extras: &[Extra] = if index < MAIN_SUITES {
                    &[Extra::None, Extra::Wrap, Extra::Encapsulation]
                } else {
                    &[Extra::None]
                };
                cases.extend(extras.iter().map(|&extra| make(index, is_tunnel, version, extra)));
            }
        }
    }
    cases
}

impl Case {
    /// Returns a line of output.
    pub fn name(&self) -> String {
        let mode = if self.is_tunnel { "tunnel" } else { "transport" };
        let version = if self.version == Version::V4 { "IPv4" } else { "IPv6" };
        let extra = match self.extra {
            Extra::None => "",
            Extra::Wrap => ", ESN across 2^32",
            Extra::Encapsulation => ", in UDP",
        };
        format!("{} {mode} {version}{extra}", self.suite)
    }

    /// Returns the commands for both associations and their policies at one end.
    pub fn commands(&self, end: End) -> Vec<String> {
        let [sent, received] = if end == End::Guest { ["out", "in"] } else { ["in", "out"] };
        let (host, guest): (IpAddr, IpAddr) = match self.version {
            Version::V4 => (HOST.into(), GUEST.into()),
            Version::V6 => (HOST_V6.into(), GUEST_V6.into()),
        };
        let mode = if self.is_tunnel { "tunnel" } else { "transport" };
        let state = |source, destination, spi, direction| {
            format!(
                "ip xfrm state add src {source} dst {destination} proto esp spi {spi:#x} reqid {spi} mode {mode} \
                 {} {}{}",
                self.keys(spi),
                self.window(direction),
                if self.extra == Extra::Encapsulation { " encap espinudp 4500 4500 0.0.0.0" } else { "" }
            )
        };
        // Linux checks the UDP packet itself against the policy, too, before it takes the ESP out. A policy for all
        // packets between the ends would refuse it. A key daemon exempts its socket instead.
        let protocol = if self.extra == Extra::Encapsulation { "proto 6 " } else { "" };
        let policy = |source, destination, spi, direction| {
            format!(
                "ip xfrm policy add src {source} dst {destination} {protocol}dir {direction} \
                 tmpl src {source} dst {destination} proto esp reqid {spi} mode {mode}"
            )
        };
        vec![
            state(guest, host, GUEST_SPI, sent),
            state(host, guest, HOST_SPI, received),
            policy(guest, host, GUEST_SPI, sent),
            policy(host, guest, HOST_SPI, received),
        ]
    }

    /// Returns the window, and the first sequence numbers.
    fn window(&self, direction: &str) -> String {
        let number = if direction == "out" { "replay-oseq" } else { "replay-seq" };
        match self.extra {
            Extra::Wrap => format!("replay-window 64 flag esn {number} {:#x}", BEFORE_WRAP.wrapping_neg()),
            Extra::None | Extra::Encapsulation => "replay-window 64".to_owned(),
        }
    }

    /// Returns the algorithms with keys; each direction has its own.
    fn keys(&self, spi: u32) -> String {
        let key = |which: u64, len| {
            let bytes = random_bytes((self.number << u32::BITS | u64::from(spi)) << 8 | which, len);
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
        };
        match self.algorithms {
            Algorithms::Aead(name, len) => format!("aead '{name}' 0x{} 128", key(0, len)),
            Algorithms::Separate(cipher, cipher_len, hash, hash_len, bits) => {
                let cipher_key = if cipher_len == 0 { "''".to_owned() } else { format!("0x{}", key(0, cipher_len)) };
                format!("enc '{cipher}' {cipher_key} auth-trunc '{hash}' 0x{} {bits}", key(1, hash_len))
            }
        }
    }
}

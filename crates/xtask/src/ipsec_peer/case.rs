//! The test cases, as commands for the guest's kernel.

use super::{GUEST_V6, HOST_V6};
use offramp_testbed::guest::busybox::{GUEST, HOST, random_bytes};
use std::net::IpAddr;

/// SPIs of the association from the guest, and of the association from the host.
const GUEST_SPI: u32 = 0x1001;
const HOST_SPI: u32 = 0x1002;
/// Number of packets until the lower half of a sequence number wraps around.
const BEFORE_WRAP: u32 = 64;

/// The IP version of the guest's and the host's addresses, and of the packets inside a tunnel.
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
    /// Sequence numbers of 64 bits, starting just below 2³².
    Wrap,
    /// ESP in UDP.
    Encapsulation,
}

/// The end for which commands are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest, with IPsec in its kernel.
    Guest,
    /// The host, with IPsec in its adapter.
    Host,
}

/// The name of a suite in `ip xfrm`.
#[derive(Clone, Copy, Debug)]
enum Algorithms {
    /// Name of the AEAD, and length of its key and salt in bytes.
    Aead(&'static str, usize),
    /// Cipher and its key length in bytes; hash, its key length in bytes, and length of the check value in bits.
    Separate(&'static str, usize, &'static str, usize, u32),
}

/// The suites common to Linux and offramp. The three suites of the short run come first.
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
/// Number of suites tested in every mode.
const MAIN_SUITES: usize = 3;

/// A set of associations to test.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of the case, unique for each combination of suite, mode, IP version and extra feature. No two cases thus
    /// share a key.
    number: u64,
    suite: &'static str,
    algorithms: Algorithms,
    /// True for tunnel mode, false for transport mode.
    pub is_tunnel: bool,
    /// IP version used by the guest and the host.
    pub version: Version,
    /// The case's additional feature.
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
        // In the short run, each of the three suites has both modes and both versions. Each additional feature
        // (`Extra`) occurs at least once.
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
    /// Returns the case's name, for a line of output.
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

    /// Returns the commands that install both associations and their policies in the guest or on the host.
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
        // Linux also checks the UDP packet itself against the policy, before extracting the ESP packet. A policy for
        // all packets between guest and host would refuse the UDP packet. A key daemon (IKE) exempts its UDP socket
        // from the policy instead.
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

    /// Returns the options for the replay window and the first sequence numbers.
    fn window(&self, direction: &str) -> String {
        let number = if direction == "out" { "replay-oseq" } else { "replay-seq" };
        match self.extra {
            Extra::Wrap => format!("replay-window 64 flag esn {number} {:#x}", BEFORE_WRAP.wrapping_neg()),
            Extra::None | Extra::Encapsulation => "replay-window 64".to_owned(),
        }
    }

    /// Returns the algorithms with their keys. Each direction has different keys.
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

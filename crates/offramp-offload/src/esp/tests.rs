//! Tests with access to internals: published packets with a given IV, Wycheproof's cases in the form of ESP packets,
//! and the tables of the tunnel rules.

use super::cipher::{Parts, Protection};
use super::config::SaConfig;
use super::error::SaFault;
use super::library::aws_lc;
use super::open::InboundSa;
use super::suite::{AesKey, Hmac, Suite};
use super::tunnel::{CongestionUnsaid, ecn_of};
use super::{Mode, Refused, SaTable, SecretKey, Tunnel, UdpPorts};
use std::net::{IpAddr, Ipv4Addr};

mod short_way;
mod vectors;
mod wycheproof;

#[test]
fn ecn_leaves_a_tunnel_as_figure_4_of_rfc_6040_says() {
    let (not_ect, ect_1, ect_0, ce) = (0b00, 0b01, 0b10, 0b11);
    let rows = [
        (not_ect, [Ok(not_ect), Ok(not_ect), Ok(not_ect), Err(CongestionUnsaid)]),
        (ect_0, [Ok(ect_0), Ok(ect_0), Ok(ect_1), Ok(ce)]),
        (ect_1, [Ok(ect_1), Ok(ect_1), Ok(ect_1), Ok(ce)]),
        (ce, [Ok(ce), Ok(ce), Ok(ce), Ok(ce)]),
    ];
    for (inner, expected) in rows {
        for (outer, expected) in [not_ect, ect_0, ect_1, ce].into_iter().zip(expected) {
            assert_eq!(ecn_of(inner, outer), expected, "inner {inner:02b}, outer {outer:02b}");
        }
    }
}

/// Returns a valid description of an association.
fn config() -> SaConfig {
    let suite = Suite::AesGcm16 { key: AesKey::Bits128, implicit_iv: false };
    SaConfig::new(0x1000, suite, SecretKey::new((0..20).collect()), SecretKey::none())
}

#[test]
fn what_is_wrong_with_an_association_is_said_in_one_line_that_names_it() {
    let check = |change: &dyn Fn(&mut SaConfig), expected: &str| {
        let mut config = config();
        change(&mut config);
        let error = InboundSa::new(&config).expect_err(expected).to_string();
        assert_eq!(error, expected);
        assert!(!error.contains('\n'));
    };
    check(&|c| c.spi = 255, "SA 0x000000ff: this SPI is reserved (RFC 4303 2.1); take one from 0x00000100 up");
    check(
        &|c| c.encryption_key = SecretKey::new(vec![1; 16]),
        "SA 0x00001000: aes128gcm16 takes an encryption key of 20 bytes (4 of them salt), this one has 16",
    );
    check(
        &|c| c.integrity_key = SecretKey::new(vec![1; 32]),
        "SA 0x00001000: aes128gcm16 takes an integrity key of 0 bytes, this one has 32",
    );
    check(
        &|c| c.keepalive_seconds = Some(20),
        "SA 0x00001000: NAT-keepalives every 20 seconds need UDP encapsulation and at least 1 second; \
         RFC 3948 uses 20",
    );
    check(
        &|c| c.suite = Suite::TripleDesCbc,
        "SA 0x00001000: 3des-sha1 is only for old peers; set legacy = true to use it, or take aes128gcm16",
    );
    check(
        &|c| c.replay_window = 65_537,
        "SA 0x00001000: a replay window of 65537 packets is not offered; take 32 to 65536",
    );
    check(
        &|c| c.sequence = 1 << 32,
        "SA 0x00001000: sequence number 4294967296 needs more than 32 bits; switch esn on, or make a new SA",
    );
    check(
        &|c| c.udp = Some(UdpPorts { source: 0, destination: 4500 }),
        "SA 0x00001000: UDP encapsulation needs ports above 0; RFC 3948 uses 4500",
    );
    check(
        &|c| (c.lifetime.soft_bytes, c.lifetime.hard_bytes) = (Some(9), Some(8)),
        "SA 0x00001000: lifetime in bytes: soft 9 and hard 8 must be above 0, the soft one not behind",
    );
    let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
    check(
        &|c| c.mode = Mode::Tunnel(Tunnel::new(v4, "::1".parse().unwrap())),
        "SA 0x00001000: the tunnel's source 127.0.0.1 and destination ::1 are of two IP versions",
    );
    check(
        &|c| c.mode = Mode::Tunnel(Tunnel { dscp: super::DscpRule::Set(64), ..Tunnel::new(v4, v4) }),
        "SA 0x00001000: a DSCP has six bits, 64 is too large; take 0 to 63",
    );
    check(
        &|c| {
            c.legacy = true;
            c.suite = Suite::TripleDesCbc;
            c.encryption_key = SecretKey::new(vec![1; 24]);
            c.integrity_key = SecretKey::new(vec![1; 20]);
        },
        "SA 0x00001000: the encryption key is weak for 3des-sha1; make a new one at random",
    );
}

#[test]
fn a_table_refuses_a_second_association_of_one_spi_and_keeps_the_first() {
    let mut table = SaTable::new();
    table.insert(&config()).unwrap();
    let elsewhere = SaConfig { destination: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), ..config() };
    assert_eq!(table.insert(&elsewhere), Err(config().invalid(SaFault::DuplicateSpi)));
    let broken = SaConfig { replay_window: 1, spi: 0x1001, ..config() };
    assert!(table.insert(&broken).is_err());
    assert_eq!((table.len(), table.get(0x1001).is_none()), (1, true), "nothing is half installed");
}

#[test]
fn neither_a_key_nor_an_association_prints_its_key() {
    let config = SaConfig { encryption_key: SecretKey::new(vec![0xab; 20]), ..config() };
    let inbound = InboundSa::new(&config).unwrap();
    let outbound = super::OutboundSa::new(&config).unwrap();
    let mut table = SaTable::new();
    table.insert(&config).unwrap();
    for text in [format!("{config:?}"), format!("{inbound:?}"), format!("{outbound:?}"), format!("{table:#?}")] {
        for trace in ["ab, ab", "171", "abab", "0xab"] {
            assert!(!text.contains(trace), "{text}");
        }
    }
}

#[test]
fn a_key_is_read_from_hexadecimal_digits_and_nothing_else() {
    assert_eq!(SecretKey::from_hex("0x00fFa1").unwrap(), SecretKey::new(vec![0, 255, 161]));
    assert_eq!(SecretKey::from_hex("").unwrap(), SecretKey::none());
    let error = |text| SecretKey::from_hex(text).unwrap_err().to_string();
    assert_eq!(error("abc"), "key: 3 hexadecimal digits make no whole number of bytes; give two digits per byte");
    assert_eq!(
        error("0xabxd"),
        "key: character 5 is no hexadecimal digit; give 0-9 and a-f, with or without 0x in front"
    );
    assert_ne!(SecretKey::from_hex("ab").unwrap(), SecretKey::from_hex("ac").unwrap());
}

#[test]
fn every_suite_is_found_by_its_name() {
    for suite in Suite::all() {
        assert_eq!(Suite::by_name(suite.name()), Ok(suite));
    }
    let error = Suite::by_name("des-md5").unwrap_err().to_string();
    assert!(error.starts_with("suite \"des-md5\" is not known; known are aes128gcm16, "), "{error}");
}

#[test]
fn refused_packets_are_counted_by_reason() {
    let mut counts = super::RefusedCounts::default();
    for (n, &reason) in Refused::ALL.iter().enumerate() {
        for _ in 0..=n {
            counts.count(reason);
        }
    }
    for (n, &reason) in Refused::ALL.iter().enumerate() {
        assert_eq!(counts.of(reason), n as u64 + 1, "{reason}");
    }
    assert_eq!(counts.total(), 55);
}

#[test]
fn associations_may_move_between_threads_and_be_shared_where_they_do_not_change() {
    fn may_move<T: Send>() {}
    fn may_be_shared<T: Sync>() {}
    may_move::<InboundSa>();
    may_move::<super::OutboundSa>();
    may_be_shared::<super::Opener>();
}

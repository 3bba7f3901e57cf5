//! Runs the ESP tests of `offramp-offload`, which use aws-lc there, with the library ipsec-mb.

use offramp_offload::esp::{CipherLibrary, OutboundSa, SaConfig, SecretKey, Suite, aws_lc};
use offramp_ports::ipsec_mb;

#[path = "../../offramp-offload/tests/support/mod.rs"]
mod support;

#[path = "../../offramp-offload/tests/esp/bench.rs"]
mod bench;
#[path = "../../offramp-offload/tests/esp/ciphers.rs"]
mod ciphers;
#[path = "../../offramp-offload/tests/esp/large_send.rs"]
mod large_send;
#[path = "../../offramp-offload/tests/esp/refusal.rs"]
mod refusal;
#[path = "../../offramp-offload/tests/esp/replay.rs"]
mod replay;
#[path = "../../offramp-offload/tests/esp/round_trip.rs"]
mod round_trip;
#[path = "../../offramp-offload/tests/esp/scapy.rs"]
mod scapy;
#[path = "../../offramp-offload/tests/esp/shared.rs"]
mod shared;
#[path = "../../offramp-offload/tests/esp/tunnel.rs"]
mod tunnel;

/// Returns the library under test. If ipsec-mb is not installed, the tests print a message and run with aws-lc again. A
/// run with aws-lc only repeats other tests. In CI, ipsec-mb must be installed.
fn library() -> &'static dyn CipherLibrary {
    ipsec_mb::library().unwrap_or_else(|reason| {
        assert!(std::env::var_os("CI").is_none(), "{reason}, and CI skips nothing");
        eprintln!("skipped: {reason}");
        aws_lc()
    })
}

#[test]
fn it_says_its_name_and_version_and_does_the_suites_that_it_has() {
    if ipsec_mb::library().is_err() {
        assert_eq!(library().name(), "aws-lc");
        return;
    }
    assert_eq!(library().name(), "ipsec-mb");
    assert!(library().version().starts_with("1.3"), "{}", library().version());
    for suite in Suite::all() {
        let keys = (vec![3; suite.encryption_key_len()], vec![4; suite.integrity_key_len()]);
        let config = SaConfig::new(0x1000, suite, SecretKey::new(keys.0), SecretKey::new(keys.1));
        let Ok(sa) = OutboundSa::with_library(&config, library()) else {
            assert!(suite.is_legacy(), "{suite}");
            continue;
        };
        let has_hmac = suite.integrity_key_len() > 0;
        assert_eq!(sa.library_name(), if has_hmac { "aws-lc" } else { "ipsec-mb" }, "{suite}");
    }
}

#[test]
fn a_program_takes_it_or_is_told_why_not() {
    let (preferred, reason) = ipsec_mb::preferred();
    assert_eq!(preferred.name() == "aws-lc", reason.is_some());
    if let Some(reason) = reason {
        let line = reason.to_string();
        assert!(line.starts_with("ipsec-mb: ") && line.contains("aws-lc") && !line.contains('\n'), "{line}");
    }
}

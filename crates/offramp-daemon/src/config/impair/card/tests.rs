//! Tests of accepted and refused values of `port.memory` and `port.faults`, and of the documentation of their keys.

use super::*;
use crate::config::tests::{DOCUMENT, PEER, documented, parse, refused};

/// Returns a file in which port "a" has a memory or faults with these keys.
fn with_table(table: &str, keys: &str) -> String {
    format!(
        "faults = true\n{PEER}[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.cable = \"b\"\n{table} = {{ {keys} }}\n"
    )
}

#[test]
fn a_memory_is_that_of_a_card_or_what_is_written() {
    let memory = |keys: &str| parse(&with_table("memory", keys)).unwrap().ports[1].memory;
    assert_eq!(memory("card_bytes = 8192"), MemoryConfig::dp8390(8192).unwrap());
    let stop = OverflowPolicy::StopAndRecover { recover_ns: 1_600_000 };
    assert_eq!(memory("card_bytes = 8192, recover_usecs = 1600").policy, stop);
    let dropping = MemoryConfig { policy: OverflowPolicy::Drop, ..MemoryConfig::dp8390(16_384).unwrap() };
    assert_eq!(memory("card_bytes = 16384, policy = \"drop\""), dropping);
    let written = MemoryConfig {
        receive: ReceiveMemory::Pages { pages: 20, page_len: 512 },
        receive_ring_entries: Some(16),
        transmit_buffers: Some(4),
        policy: OverflowPolicy::Overrun,
    };
    let keys = "receive_pages = 20, page_bytes = 512, ring_entries = 16, transmit_buffers = 4, policy = \"overrun\"";
    assert_eq!(memory(keys), written);
    assert_eq!(memory("receive_bytes = 65536").receive, ReceiveMemory::Bytes(65_536));
    assert_eq!(memory(""), MemoryConfig::default());
    // Port "a" begins after five lines.
    let wrong = |keys: &str, text: &str| refused(&with_table("memory", keys), 10, text);
    wrong("card_bytes = 1024", "port.memory.card_bytes 1024 is out of range; use 3584 to 65536");
    wrong("card_bytes = 8192, receive_bytes = 5120", "write one of card_bytes, receive_bytes and receive_pages");
    wrong("receive_bytes = 5120, page_bytes = 256", "page_bytes belongs to receive_pages");
    wrong("receive_bytes = 1513", "port.memory has no room for a frame of 1514 bytes, which mtu 1500 asks for");
    wrong("ring_entries = 0", "port.memory.ring_entries 0 is out of range");
    wrong("policy = \"dorp\"", "port.memory.unknown policy \"dorp\"; did you mean \"drop\"?");
    wrong("policy = \"drop\", recover_usecs = 5", "recover_usecs belongs to policy = \"stop\"");
    wrong("receive_byte = 5", "unknown key \"receive_byte\"; did you mean \"receive_bytes\"?");
}

#[test]
fn faults_are_those_that_are_written() {
    let faults = |keys: &str| parse(&with_table("faults", keys)).unwrap().ports[1].faults;
    let written = FaultConfig {
        bus: BusConfig { bytes_per_second: Some(1_000_000), frame_ns: 100_000 },
        receive_first: true,
        loss_one_in: Some(100),
        duplicate_one_in: Some(200),
        delay_ns: 5_000_000,
        reverse_frames: Some(8),
        verdict: Some(VerdictConfig { wrong: WrongVerdict::GoodIsBad, one_in: 50 }),
        seed: 7,
    };
    let keys = "bus_bytes_per_second = 1000000, bus_frame_usecs = 100, bus_receive_first = true, loss_one_in = 100, duplicate_one_in = 200, \
                delay_usecs = 5000, reverse_frames = 8, verdict = \"good-is-bad\", verdict_one_in = 50, seed = 7";
    assert_eq!(faults(keys), written);
    let verdict = VerdictConfig { wrong: WrongVerdict::BadIsGood, one_in: 64 };
    assert_eq!(faults("verdict = \"bad-is-good\"").verdict, Some(verdict));
    let wrong = |keys: &str, text: &str| refused(&with_table("faults", keys), 10, text);
    wrong("loss_one_in = 1", "port.faults.loss_one_in 1 is out of range; use 2 to 1000000000");
    wrong("delay_usecs = -1", "port.faults.delay_usecs -1 is out of range; use 0 to 10000000");
    wrong("verdict = \"good\"", "port.faults.unknown verdict \"good\"");
    wrong("verdict_one_in = 5", "port.faults.verdict_one_in belongs to port.faults.verdict");
}

#[test]
fn faults_need_a_word_for_the_whole_file_and_a_cable() {
    let faulty = with_table("faults", "loss_one_in = 5");
    refused(&faulty.replace("faults = true\n", "\n"), 10, "write faults = true at the top of the file");
    refused(&faulty.replace("faults = true\n", "faults = false\n"), 10, "write faults = true at the top of the file");
    assert!(parse(&with_table("memory", "card_bytes = 8192").replace("faults = true\n", "\n")).is_ok());
    let lan = "faults = true\n[[switch]]\nname = \"lan\"\n[[port]]\nname = \"a\"\nwire.switch = \"lan\"\n";
    for table in ["memory.receive_bytes = 5120", "faults.reverse_frames = 2"] {
        refused(&format!("{lan}host.tap = \"t\"\n{table}\n"), 6, "memory and faults need a cable; leave them out");
    }
    refused(
        &format!("{lan}wire.bits_per_second = 1000000\nhost.tap = \"t\"\n"),
        7,
        "bits_per_second belongs to a cable",
    );
}

#[test]
fn the_example_of_a_card_is_right() {
    assert_eq!(parse(include_str!("../../../../../../examples/old-card.toml")).unwrap().ports.len(), 2);
}

#[test]
fn the_document_has_the_defaults_and_limits_of_the_program() {
    fn has<T: std::fmt::Display>(key: &str, range: &RangeInclusive<T>) {
        documented(key, &format!("{} to {}", range.start(), range.end()));
    }
    has("port.memory.card_bytes", &CARD_BYTES);
    has("port.memory.receive_bytes", &RECEIVE_BYTES);
    has("port.memory.receive_pages", &RECEIVE_PAGES);
    has("port.memory.page_bytes", &PAGE_LEN);
    documented("port.memory.page_bytes", &format!("`{PAGE_LEN_DP8390}`"));
    has("port.memory.ring_entries", &RECEIVE_RING_ENTRIES);
    has("port.memory.transmit_buffers", &TRANSMIT_BUFFERS);
    has("port.memory.recover_usecs", &usecs(&RECOVER_NS));
    documented("port.memory.recover_usecs", &format!("`{}`", RECOVER_NS_DP8390 / 1000));
    has("port.faults.bus_bytes_per_second", &BUS_BYTES_PER_SECOND);
    has("port.faults.bus_frame_usecs", &usecs(&FRAME_NS));
    has("port.faults.delay_usecs", &usecs(&DELAY_NS));
    for key in ["loss_one_in", "duplicate_one_in", "verdict_one_in"] {
        has(&format!("port.faults.{key}"), &ONE_IN);
    }
    documented("port.faults.verdict_one_in", &format!("`{VERDICT_ONE_IN_DEFAULT}`"));
    has("port.faults.reverse_frames", &REVERSE_FRAMES);
    for name in POLICIES.into_iter().chain(VERDICTS.map(|(name, _)| name)) {
        assert!(DOCUMENT.contains(&format!("`\"{name}\"`")), "docs/config.md does not name {name}");
    }
}

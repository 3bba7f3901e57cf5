//! The documentation and an example have every key, with its default and its limits.

use super::{DOCUMENT, documented};
use crate::config::check::SOCKET_MODE_DEFAULT;
use crate::config::daemon::READ_ONLY_MODE_DEFAULT;
use crate::config::port::POLL_USECS_MAX;
use crate::config::switch::{
    AGE_SECONDS, AGE_SECONDS_DEFAULT, FLOOD_FRAMES, FLOOD_FRAMES_DEFAULT, MAC_ENTRIES, MAC_ENTRIES_DEFAULT,
};
use crate::config::wire::BITS_PER_SECOND;
use crate::control::CONTROL_DEFAULT;
use crate::kind::tap::ADDRESSES_MAX;
use crate::kind::vhost_user::{GUEST_POLL_TIME_MAX, MEMORY_BYTES, QUEUE_SIZE, QUEUE_SIZE_DEFAULT};
use crate::kind::{host_keys, keys_of, wire_kinds};
use crate::schema::ipsec::PolicyKeys;
use crate::schema::moderation::{KEYS, Mode, POLICIES, RX_FRAMES_MAX, RX_USECS_MAX};
use crate::schema::{LifetimeKeys, SaKeys, SelectorKeys, UdpKeys, file, limit};
use offramp_adapter::config::{MTU_DEFAULT, MTU_MAX, MTU_MIN};
use offramp_adapter::moderation::{
    COST_GIVEN_NS_MAX, DEADLINE_NS_DEFAULT, DEADLINE_NS_MAX, INTERRUPTS_PER_SECOND_MAX,
    LOAD_INTERRUPTS_PER_SECOND_DEFAULT,
};
use offramp_adapter::vlan::VIDS;
use offramp_offload::caps::NAMES;
use offramp_offload::names::GROUPS;
use offramp_ports::tap::QUEUES_MAX;
use offramp_ports::vhost_user::MEMORY_BYTES_MAX;
use strum::VariantNames;

/// Returns every key that a configuration file may contain, with its tables, such as `port.host.tap`, sorted.
fn known_keys() -> Vec<String> {
    let sections = [
        ("daemon", keys_of::<file::Daemon>()),
        ("port", keys_of::<file::Port>()),
        ("port.moderation", KEYS.iter().map(|(key, ..)| *key).chain(["policy"]).map(str::to_owned).collect()),
        ("port.limit", limit::KEYS.iter().map(|key| key.name.to_owned()).collect()),
        ("port.memory", keys_of::<file::Memory>()),
        ("port.faults", keys_of::<file::Faults>()),
        ("port.host", host_keys()),
        ("port.wire", wire_kinds().into_iter().chain(["bits_per_second"]).map(str::to_owned).collect()),
        ("port.ipsec", keys_of::<file::Ipsec>()),
        ("port.policy", keys_of::<PolicyKeys>()),
        ("port.sa", keys_of::<SaKeys>()),
        ("port.sa.udp", keys_of::<UdpKeys>()),
        ("port.sa.lifetime", keys_of::<LifetimeKeys>()),
        ("port.sa.selector", keys_of::<SelectorKeys>()),
        ("switch", keys_of::<file::Switch>()),
    ];
    assert_eq!(keys_of::<file::File>(), ["daemon", "faults", "port", "switch"]);
    let mut known: Vec<String> = sections
        .iter()
        .flat_map(|(section, fields)| fields.iter().map(move |field| format!("{section}.{field}")))
        .collect();
    known.push("faults".to_owned());
    known.sort();
    known
}

/// Appends the keys of a table to `keys`, each with the names of the tables around it.
fn collect_keys(section: &str, table: &toml::Table, keys: &mut Vec<String>) {
    for (name, value) in table {
        let key = format!("{section}{name}");
        let tables: Vec<&toml::Table> = match value {
            toml::Value::Table(table) if key != "port.features" => vec![table],
            toml::Value::Array(values) => values.iter().filter_map(toml::Value::as_table).collect(),
            _ => Vec::new(),
        };
        for table in tables {
            collect_keys(&format!("{key}."), table, keys);
        }
        keys.push(key);
    }
}

#[test]
fn one_example_has_every_key() {
    let mut keys = Vec::new();
    collect_keys("", &include_str!("../../../../../examples/all-keys.toml").parse().unwrap(), &mut keys);
    let missing: Vec<String> = known_keys().into_iter().filter(|key| !keys.contains(key)).collect();
    assert!(missing.is_empty(), "examples/all-keys.toml lacks {missing:?}; add a line for each");
}

#[test]
fn every_key_is_documented_and_nothing_else_is() {
    let known = known_keys();
    let key_of_row = |row: &str| row.strip_prefix("| `")?.split_once('`').map(|(key, _)| key.to_owned());
    let mut documented: Vec<String> =
        DOCUMENT.lines().filter_map(key_of_row).filter(|key| !key.starts_with('"')).collect();
    documented.sort();
    documented.dedup();
    assert_eq!(documented, known);
    for name in NAMES.iter().map(|name| name.name).chain(GROUPS) {
        assert!(DOCUMENT.contains(&format!("`{name}`")), "docs/config.md does not name the feature {name}");
    }
}

#[test]
fn the_document_has_the_defaults_and_limits_of_the_program() {
    let has = documented;
    has("daemon.control", &CONTROL_DEFAULT);
    has("port.host.address", &format!("at most {ADDRESSES_MAX}"));
    has("daemon.control_mode", &format!("`0o{SOCKET_MODE_DEFAULT:o}`"));
    has("daemon.control_read_only_mode", &format!("`0o{READ_ONLY_MODE_DEFAULT:o}`"));
    has("port.host.socket_mode", &format!("`0o{SOCKET_MODE_DEFAULT:o}`"));
    has("port.mtu", &format!("`{MTU_DEFAULT}`"));
    has("port.mtu", &format!("{MTU_MIN} to {MTU_MAX}"));
    has("port.rx_usecs", &format!("0 to {RX_USECS_MAX}"));
    has("port.moderation.max_interrupts_per_second", &format!("1 to {INTERRUPTS_PER_SECOND_MAX}"));
    has("port.moderation.rx_usecs", &format!("0 to {RX_USECS_MAX}"));
    has("port.moderation.rx_frames", &format!("1 to {RX_FRAMES_MAX}"));
    has("port.moderation.interrupt_cost_ns", &format!("0 to {COST_GIVEN_NS_MAX}"));
    has("port.moderation.load_interrupts_per_second", &format!("0 to {INTERRUPTS_PER_SECOND_MAX}"));
    has("port.moderation.load_interrupts_per_second", &format!("`{LOAD_INTERRUPTS_PER_SECOND_DEFAULT}`"));
    has("port.moderation.deadline_usecs", &format!("0 to {}", DEADLINE_NS_MAX / 1000));
    has("port.moderation.deadline_usecs", &format!("`{}`", DEADLINE_NS_DEFAULT / 1000));
    for limit::Key { name, range, .. } in &limit::KEYS {
        has(&format!("port.limit.{name}"), &format!("{} to {}", range.start(), range.end()));
    }
    for name in POLICIES.iter().chain(Mode::VARIANTS) {
        assert!(DOCUMENT.contains(&format!("`\"{name}\"`")), "docs/config.md does not name {name}");
    }
    has("port.wire.bits_per_second", &format!("{} to {}", BITS_PER_SECOND.start(), BITS_PER_SECOND.end()));
    has("port.poll_usecs", &format!("0 to {POLL_USECS_MAX}"));
    has("port.poll_usecs", &format!("up to {}", GUEST_POLL_TIME_MAX.as_micros()));
    has("port.host.queue_pairs", &format!("1 to {QUEUES_MAX}"));
    has("port.host.queue_size_max", &format!("`{QUEUE_SIZE_DEFAULT}`"));
    has("port.host.queue_size_max", &format!("{} to {}", QUEUE_SIZE.start(), QUEUE_SIZE.end()));
    has("port.host.memory_bytes_max", &format!("`{MEMORY_BYTES_MAX}`"));
    has("port.host.memory_bytes_max", &format!("{} to {}", MEMORY_BYTES.start(), MEMORY_BYTES.end()));
    has("switch.mac_entries_max", &format!("`{MAC_ENTRIES_DEFAULT}`"));
    has("switch.mac_entries_max", &format!("1 to {}", MAC_ENTRIES.end()));
    has("switch.age_seconds", &format!("`{AGE_SECONDS_DEFAULT}`"));
    has("switch.age_seconds", &format!("{} to {}", AGE_SECONDS.start(), AGE_SECONDS.end()));
    has("port.vlan", &format!("{} to {}", VIDS.start(), VIDS.end()));
    has("switch.flood_frames_per_second", &format!("`{FLOOD_FRAMES_DEFAULT}`"));
    has("switch.flood_frames_per_second", &format!("0 to {}", FLOOD_FRAMES.end()));
}

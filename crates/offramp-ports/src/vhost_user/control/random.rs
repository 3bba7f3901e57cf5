//! Executes random control queue commands, and compares the resulting settings with those of the model.
//! `OFFRAMP_COMMANDS` sets the number of commands.

use super::model::{Model, OF_COMMANDS, OFFLOADS, OTHER, OWN, PAIRS_MAX, u16_at};
use super::{Control, Planned};
use crate::vhost_user::config::VhostUserConfig;
use offramp_offload::meta::RxMeta;
use offramp_virtio::control::Command;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Number of commands between two driver resets, so that the model's list stays short.
const COMMANDS_OF_A_DRIVER: usize = 100;

fn mac(rng: &mut StdRng) -> [u8; 6] {
    let macs = [OWN, OTHER, [2, 0, 0, 0, 0, 3], [1, 0, 0x5e, 0, 0, 1], [1, 0, 0x5e, 0, 0, 2], [0xff; 6], [0; 6]];
    macs[rng.random_range(0..macs.len())]
}

/// Returns a random command, in most cases a valid command.
fn any_command(rng: &mut StdRng) -> Vec<u8> {
    let numbers: [(u8, u8); 9] = [(0, 7), (1, 3), (2, 3), (3, 2), (4, 3), (5, 2), (6, 5), (7, 1), (8, 3)];
    let (class, count) = numbers[rng.random_range(0..numbers.len())];
    let mut command = vec![class, rng.random_range(0..count)];
    let coalescing = |rng: &mut StdRng| [(); 2].map(|()| rng.random_range(0u32..4).to_le_bytes()).concat();
    match command[..2] {
        [0, _] => command.push(rng.random_range(0..2)),
        [1, 0] => {
            for _ in 0..2 {
                let count = rng.random_range(0u32..4);
                let macs: Vec<u8> = (0..count).flat_map(|_| mac(rng)).collect();
                command.extend(count.to_le_bytes().into_iter().chain(macs));
            }
        }
        [1, _] => command.extend(mac(rng)),
        [2, _] => command.extend([rng.random_range(0..4), [0, 0, 0x10][rng.random_range(0..3)]]),
        [4, 0] => command.extend(rng.random_range(0..PAIRS_MAX + 2).to_le_bytes()),
        [4, 2] => {
            command.extend([rng.random_range(0..68), 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
            let key_len = [0u8, 40, 41][rng.random_range(0..3)];
            command.extend(std::iter::once(key_len).chain((0..key_len).map(|_| 7)));
        }
        [4, _] => {
            let mask = [0u16, 1, 3, 2][rng.random_range(0..4)];
            command.extend([rng.random_range(0..68), 0, 0, 0]);
            command.extend(mask.to_le_bytes());
            for _ in 0..mask + 3 {
                command.extend([rng.random_range(0..PAIRS_MAX as u8) + u8::from(rng.random_bool(0.05)), 0]);
            }
            let key_len = [0u8, 40, 41][rng.random_range(0..3)];
            command.extend(std::iter::once(key_len).chain((0..key_len).map(|_| 7)));
        }
        [5, _] => {
            let bits = OFFLOADS.iter().filter(|_| rng.random_bool(0.2)).fold(0u64, |bits, bit| bits | 1 << bit);
            command.extend(bits.to_le_bytes());
        }
        [6, 0 | 1] => command.extend(coalescing(rng)),
        [6, _] => {
            command.extend(rng.random_range(0..2 * PAIRS_MAX + 1).to_le_bytes());
            command.extend(rng.random::<u16>().to_le_bytes());
            command.extend(coalescing(rng));
        }
        [8, 1] => {
            for _ in 0..rng.random_range(0..3) {
                command.extend(rng.random_range(0..2 * PAIRS_MAX + 2).to_le_bytes());
                command.extend([0; 6]);
                let types = [1u64, 2, 3, 4, 1 << 16, 1 << 32, 8, 9, 1 << 4, 1 << 19, 9 << 16, 1 << 20, 0];
                command.extend(types[rng.random_range(0..types.len())].to_le_bytes());
            }
        }
        _ => {}
    }
    if rng.random_bool(0.1) {
        command.truncate(rng.random_range(0..=command.len()));
    }
    command
}

/// Checks that the saved commands restore the same settings on a new device.
fn assert_saved(control: &Control, config: &VhostUserConfig) {
    let mut loaded = Control::new(config, std::sync::Arc::default());
    loaded.set_features(control.negotiated);
    assert_eq!(loaded.load(&control.commands(), Some(7)), Ok(()));
    assert!(!loaded.is_new(7));
    let addresses = |control: &Control| control.settings.filter.addresses().map(std::collections::BTreeSet::from_iter);
    assert_eq!(addresses(&loaded), addresses(control));
    // The address tables of two devices differ in their order. All other settings must be equal.
    let without_addresses = |control: &Control| {
        let mut settings = control.settings.clone();
        std::sync::Arc::make_mut(&mut settings.filter).forget_addresses();
        settings
    };
    assert_eq!(without_addresses(&loaded), without_addresses(control));
}

#[test]
fn commands_of_any_kind_leave_the_state_that_the_model_reads_out_of_them() {
    let count = std::env::var("OFFRAMP_COMMANDS").map_or(20_000, |count| count.parse().expect("a number"));
    let seed = std::env::var("OFFRAMP_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    println!("OFFRAMP_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let config = VhostUserConfig {
        queue_pairs: PAIRS_MAX,
        mac: Some(OWN),
        mac_addresses: vec![OWN, OTHER],
        ..VhostUserConfig::new("unused")
    };
    let mut control = Control::new(&config, std::sync::Arc::default());
    let mut model = Model::default();
    let mut done = 0;
    for nth in 0..count {
        if nth % COMMANDS_OF_A_DRIVER == 0 {
            let bits = OF_COMMANDS.iter().chain(&OFFLOADS).filter(|_| rng.random_bool(0.85));
            model =
                Model { negotiated: bits.fold(1 << 32 | 1 << 17, |bits, bit| bits | 1 << bit), accepted: Vec::new() };
            control.set_features(model.negotiated);
            control.forget();
        }
        let bytes = any_command(&mut rng);
        let planned = Command::parse(&bytes).and_then(|command| control.plan(&command));
        assert_eq!(planned.is_some(), model.accepts(&bytes), "{bytes:?} after {:?}", model.accepted);
        match planned {
            Some(Planned::Change(next)) => control.settings = next,
            Some(Planned::Answer(answer)) if bytes[..2] == [6, 3] => {
                let (frames, usecs) = model.wish(u16_at(&bytes, 2)).unwrap_or_default();
                assert_eq!(answer, [frames.to_le_bytes(), usecs.to_le_bytes()].concat());
            }
            Some(Planned::Answer(_) | Planned::Statistics(_)) | None => {}
        }
        assert_saved(&control, &config);
        if model.accepts(&bytes) {
            done += 1;
            model.accepted.push(bytes);
        }
        assert_eq!(control.settings.queue_pairs, model.pairs());
        let ring = rng.random_range(0..2 * PAIRS_MAX);
        let of_ring = control.of_ring(&control.settings, ring.into());
        assert_eq!(of_ring.wish.map(|wish| (wish.max_packets, wish.max_usecs)), model.wish(ring), "ring {ring}");
        let others = model.negotiated & !OFFLOADS.iter().fold(0, |bits, bit| bits | 1 << bit);
        assert_eq!(of_ring.features, others | model.offloads());
        let tag = if rng.random_bool(0.5) { vec![0x81, 0, 0x20, rng.random_range(0..4)] } else { vec![] };
        let frame = [&mac(&mut rng)[..], &OTHER, &tag, &[8, 0], &[0; 46]].concat();
        // The frame contains no packet of a hashed type.
        let pair = of_ring.rss.and_then(|rss| rss.pair(rss.hash(&RxMeta::default(), &frame)));
        assert_eq!(pair, model.unclassified().map(usize::from));
        let passes = of_ring.filter.is_none_or(|filter| filter.accepts(&frame));
        assert_eq!(passes, model.receives(&frame), "{frame:?} after {:?}", model.accepted);
    }
    // Too few valid commands would make the test meaningless.
    assert!(done > count / 5, "{done} of {count} made sense");
}

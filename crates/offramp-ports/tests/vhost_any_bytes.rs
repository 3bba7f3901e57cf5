//! Tests that rings, messages and frames with any bytes never make a vhost-user port panic or hang. The port must
//! always serve the next client.

use offramp_testkit::ring::{DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Duration of each test. The fuzz targets run without a limit.
const BUDGET: Duration = Duration::from_millis(2500);

/// Runs `once` repeatedly with one random generator until the budget is spent.
fn within_budget(mut once: impl FnMut(&mut ChaCha8Rng)) {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let end = Instant::now() + BUDGET;
    while Instant::now() < end {
        once(&mut rng);
    }
}

/// Returns memory with nearly valid rings: descriptors point into the memory, and indices are close to each other.
fn nearly_a_ring(rng: &mut ChaCha8Rng, packed: bool) -> Vec<u8> {
    let mut bytes = vec![0; crate::vhost_bytes::RING_SETTINGS_LEN];
    rng.fill_bytes(&mut bytes);
    // Both rings start at their first entries, before the first wrap.
    let base = if packed { [0, 0x80, 0, 0x80] } else { [0; 4] };
    bytes[4..12].copy_from_slice(&[base, base].concat());
    let mut memory = vec![0u8; 0x4000];
    for ring in [0, 0x2000] {
        for index in 0..100 {
            let at = ring + index * DESC_LEN as usize;
            let addr = rng.random_range(0..0x4100u64);
            let len = [rng.random_range(0..64), rng.random_range(0..2000), rng.random()][rng.random_range(0..3)];
            let kinds = [0, 0, DESC_NEXT, DESC_NEXT, DESC_INDIRECT, rng.random()];
            let mut flags = kinds[rng.random_range(0..kinds.len())] | if ring == 0 { DESC_WRITE } else { 0 };
            let near = rng.random_range(0..110u16);
            let addr = if flags & DESC_INDIRECT == 0 { addr } else { addr & !15 };
            if packed {
                flags |= if rng.random_bool(0.9) { 1 << 7 } else { 1 << 15 };
            }
            memory[at..at + 8].copy_from_slice(&addr.to_le_bytes());
            memory[at + 8..at + 12].copy_from_slice(&u32::to_le_bytes(len));
            let (at_12, at_14) = if packed { (near, flags) } else { (flags, near) };
            memory[at + 12..at + 14].copy_from_slice(&at_12.to_le_bytes());
            memory[at + 14..at + 16].copy_from_slice(&at_14.to_le_bytes());
        }
        let driver = ring + 0x1000;
        rng.fill_bytes(&mut memory[driver..driver + 4]);
        if !packed {
            let available = rng.random_range(0..70u16);
            memory[driver + 2..driver + 4].copy_from_slice(&available.to_le_bytes());
            for entry in 0..70 {
                let head = rng.random_range(0..66u16).to_le_bytes();
                memory[driver + 4 + 2 * entry..driver + 6 + 2 * entry].copy_from_slice(&head);
            }
        }
    }
    for _ in 0..rng.random_range(0..6) {
        let at = rng.random_range(0..memory.len());
        memory[at] = rng.random();
    }
    bytes.extend(memory);
    bytes
}

#[test]
fn split_rings_of_any_bytes_are_survived() {
    within_budget(|rng| {
        crate::vhost_bytes::ring(&nearly_a_ring(rng, false), false);
        let mut noise = vec![0; rng.random_range(0..0x4000)];
        rng.fill_bytes(&mut noise);
        crate::vhost_bytes::ring(&noise, false);
    });
}

#[test]
fn packed_rings_of_any_bytes_are_survived() {
    within_budget(|rng| {
        crate::vhost_bytes::ring(&nearly_a_ring(rng, true), true);
        let mut noise = vec![0; rng.random_range(0..0x4000)];
        rng.fill_bytes(&mut noise);
        crate::vhost_bytes::ring(&noise, true);
    });
}

/// Returns a few messages that resemble a handshake.
fn nearly_messages(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.random_range(1..20) {
        let requests = [
            1, 2, 3, 5, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 24, 31, 32, 34, 36, 37, 38, 39, 40, 42, 43,
        ];
        let request: u8 =
            if rng.random_bool(0.9) { requests[rng.random_range(0..requests.len())] } else { rng.random() };
        let len = match request {
            1 | 3 | 11 | 15 | 17 | 34 | 36 | 40 | 43 => 0,
            5 | 9 | 37 | 38 => 40,
            6 | 24 => 16,
            31 | 32 => 24,
            _ => 8,
        };
        let len = if rng.random_bool(0.95) { len } else { rng.random_range(0..256) };
        let has_fd = matches!(request, 5 | 6 | 12 | 13 | 14 | 32 | 37 | 42);
        let fds = if rng.random_bool(0.9) { u8::from(has_fd) } else { rng.random() };
        let event = if matches!(request, 12..=14) { 0x80 } else { 0 };
        bytes.extend([request, if rng.random_bool(0.5) { 1 } else { 9 }, fds | event, len as u8]);
        let start = bytes.len();
        bytes.resize(start + len, 0);
        for at in (start..bytes.len()).step_by(4) {
            // Choose small numbers in most cases: indices of existing rings, sizes and addresses.
            let word = match rng.random_range(0..8) {
                0 => rng.random::<u32>(),
                1 | 2 => 1,
                3 => rng.random_range(0..4) * 4096,
                4 => 256,
                _ => 0,
            };
            let end = bytes.len().min(at + 4);
            bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
        }
    }
    bytes
}

#[test]
fn messages_of_any_bytes_are_survived() {
    within_budget(|rng| crate::vhost_bytes::messages(&nearly_messages(rng)));
}

#[test]
fn saved_states_of_any_bytes_are_loaded_or_refused() {
    within_budget(|rng| {
        let mut bytes = vec![0; 1 + 3 * rng.random_range(0..6)];
        rng.fill_bytes(&mut bytes);
        crate::vhost_bytes::state(&bytes);
    });
}

#[test]
fn frames_of_any_bytes_arrive_told_truly_or_are_counted() {
    within_budget(|rng| {
        let mut bytes = vec![0; rng.random_range(12..4000)];
        rng.fill_bytes(&mut bytes);
        if rng.random_bool(0.8) && bytes.len() > 80 {
            // Write a request and nearly matching headers.
            let is_tcp = rng.random_bool(0.7);
            let frame_len = bytes.len() - 12;
            let kind = [0, if is_tcp { 1 } else { 5 }, 3][rng.random_range(0..3)];
            let offset = if is_tcp { 16 } else { 6 };
            bytes[..12].copy_from_slice(&[1, kind, 54, 0, rng.random(), 1, 34, 0, offset, 0, 0, 0]);
            bytes[24..28].copy_from_slice(&[8, 0, 0x45, 0]);
            bytes[28..30].copy_from_slice(&(frame_len as u16 - 14).to_be_bytes());
            bytes[32..34].copy_from_slice(&[0x40, 0]);
            bytes[35] = if is_tcp { 6 } else { 17 };
            bytes[58] = 0x50;
            if !is_tcp {
                bytes[50..52].copy_from_slice(&(frame_len as u16 - 34).to_be_bytes());
            }
            for _ in 0..rng.random_range(0..3) {
                let at = rng.random_range(0..80);
                bytes[at] = rng.random();
            }
        }
        // A bit of byte 10 decides whether the sender is bound to addresses.
        bytes[10] = rng.random();
        crate::vhost_bytes::vnet_frame(&bytes);
    });
}

/// Returns a group report or a neighbour discovery message with options of any length, from a host bound to addresses.
/// The message's source is the host's own address, no address, or the address of another host.
fn nearly_discovery(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut body = vec![0; rng.random_range(4..80)];
    rng.fill_bytes(&mut body);
    let other: u8 = if rng.random_bool(0.2) { rng.random() } else { 0 };
    let packet = if rng.random_bool(0.5) {
        // Build an IGMP message after the Router Alert option.
        body[0] = [0x11, 0x12, 0x16, 0x17, 0x22][rng.random_range(0..5)];
        let source = [[10, 0, 0, 1], [0; 4], [0x0a ^ other, 0, 0, 1]][rng.random_range(0..3)];
        let protocol = if other == 1 { 17 } else { 2 };
        let len = ((24 + body.len()) as u16).to_be_bytes();
        let fixed =
            [&[0x46, 0xc0][..], &len, &[0, 0, 0x40, 0, 1, protocol, 0, 0], &source, &[224, 0, 0, 22, 0x94, 4, 0, 0]];
        [&[8, 0][..], &fixed.concat(), &body].concat()
    } else {
        // Build an ICMPv6 message. Group messages follow a hop-by-hop header.
        body[0] = [131, 132, 143, 133, 134, 135, 136, 137][rng.random_range(0..8)];
        let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, other, 1];
        let source = [[0; 16], local, [0xfd ^ other; 16]][rng.random_range(0..3)];
        if let Some(options) = body.get_mut(24..34) {
            let mac = [&crate::vhost_bytes::BOUND_MAC[..5], &[1 ^ other]].concat();
            options.copy_from_slice(&[&[rng.random_range(0..3), rng.random_range(0..4)][..], &mac, &[0, 0]].concat());
        }
        let groups = [58, 0, 5, 2, 0, 0, 1, 0];
        let hops: &[u8] = if body[0] < 133 || body[0] == 143 { &groups } else { &[] };
        let next = if hops.is_empty() { 58 } else { 0 };
        let len = ((hops.len() + body.len()) as u16).to_be_bytes();
        [&[0x86, 0xdd, 0x60, 0, 0, 0][..], &len, &[next, 255], &source, &[0xff; 16], hops, &body].concat()
    };
    let mut header = [0; 12];
    header[10] = 1;
    [&header[..], &[0xff; 6], &crate::vhost_bytes::BOUND_MAC, &packet].concat()
}

#[test]
fn a_bound_host_says_no_other_address_in_reports_of_groups_and_in_neighbour_discovery() {
    let (mut came, mut sent) = (0, 0);
    within_budget(|rng| {
        let mut bytes = nearly_discovery(rng);
        for _ in 0..rng.random_range(0..3) {
            let at = rng.random_range(12..bytes.len());
            bytes[at] = rng.random();
        }
        came += crate::vhost_bytes::vnet_frame(&bytes);
        sent += 1;
    });
    assert!(came > sent / 10 && came < sent, "{came} of {sent}");
}

/// Lengths in bytes of the fields of commands: an address, an RSS configuration with 4 table entries, a hash
/// configuration, and requests for the statistics of two queues. Both configurations have a key of 40 bytes.
const MAC_LEN: usize = 6;
const RSS_LEN: usize = 8 + 2 * 4 + 3 + 40;
const HASH_LEN: usize = 12 + 1 + 40;
const STATISTICS_LEN: usize = 2 * 16;

/// Returns chains of mostly valid commands: a class and a command number, then small numbers.
fn nearly_commands(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = vec![0; crate::vhost_bytes::commands::SETTINGS_LEN];
    if rng.random_bool(0.5) {
        rng.fill_bytes(&mut bytes);
    } else {
        bytes[2] = rng.random_range(0..8) << 2;
    }
    for _ in 0..rng.random_range(1..24) {
        let commands: [([u8; 2], usize); 16] = [
            ([0, rng.random_range(0..7)], 1),
            ([1, 0], 20),
            ([1, 1], MAC_LEN),
            ([2, 0], 2),
            ([2, 1], 2),
            ([3, 0], 0),
            ([4, 0], 2),
            ([4, 1], RSS_LEN),
            ([4, 2], HASH_LEN),
            ([5, 0], 8),
            ([6, rng.random_range(0..2)], 8),
            ([6, 2], 12),
            ([6, 3], 4),
            ([8, 0], 0),
            ([8, 1], STATISTICS_LEN),
            (rng.random(), 8),
        ];
        let (number, len) = commands[rng.random_range(0..commands.len())];
        let mut fields: Vec<u8> = (0..len).map(|_| [0, 0, 0, 1, 2, 3][rng.random_range(0..6)]).collect();
        // Match the length in addition to the number, because the last entry of `commands` can have the number of
        // another entry.
        match (number, len) {
            ([4, 1], RSS_LEN) => {
                fields[..6].copy_from_slice(&[rng.random_range(0..64), 0, 0, 0, 3, 0]);
                fields[7..16].iter_mut().step_by(2).for_each(|high| *high = 0);
                fields[16..19].copy_from_slice(&[rng.random_range(0..5), 0, 40]);
            }
            ([4, 2], HASH_LEN) => {
                fields[..13].copy_from_slice(&[rng.random_range(0..64), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 40]);
            }
            ([8, 1], STATISTICS_LEN) => fields[..2].copy_from_slice(&[rng.random_range(0..9), 0]),
            ([1, 1], MAC_LEN) => fields.copy_from_slice(&[2, 0, 0, 0, 0, rng.random_range(1..4)]),
            _ => {}
        }
        let kind = if rng.random_bool(0.7) { rng.random::<u8>() & 0x11 } else { rng.random() };
        let room_len = if rng.random_bool(0.7) { 1 } else { rng.random_range(0..40) };
        let command = [&number[..], &fields].concat();
        bytes.extend([kind, rng.random(), room_len, rng.random_range(0..6), command.len() as u8]);
        bytes.extend(command);
    }
    bytes
}

#[test]
fn commands_of_any_bytes_are_answered_as_a_slow_model_says() {
    within_budget(|rng| {
        crate::vhost_bytes::commands::commands(&nearly_commands(rng));
        let mut noise = vec![0; rng.random_range(0..1024)];
        rng.fill_bytes(&mut noise);
        crate::vhost_bytes::commands::commands(&noise);
    });
}

/// Runs the inputs in the fuzzing corpus, each of which once reached new code.
fn replay(target: &str, body: impl Fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display())) {
        body(&fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", corpus.display());
}

#[test]
fn what_fuzzing_kept_is_survived() {
    replay("vhost_ring_split", |bytes| crate::vhost_bytes::ring(bytes, false));
    replay("vhost_ring_packed", |bytes| crate::vhost_bytes::ring(bytes, true));
    replay("vhost_commands", crate::vhost_bytes::commands::commands);
    replay("vhost_messages", crate::vhost_bytes::messages);
    replay("vnet_frame", |bytes| _ = crate::vhost_bytes::vnet_frame(bytes));
}

//! Commands of any kind, against a slow model that keeps the bytes of all that were accepted and reads its answers out of
//! them. `OFFRAMP_COMMANDS` says how many.

use super::{Control, Planned};
use crate::vhost_user::VhostUserConfig;
use offramp_offload::meta::RxMeta;
use offramp_virtio::control::Command;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const PAIRS_MAX: u16 = 3;
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Bits of features, as the specification numbers them.
const CTRL_GUEST_OFFLOADS: u32 = 2;
const CTRL_RX: u32 = 18;
const CTRL_VLAN: u32 = 19;
const CTRL_RX_EXTRA: u32 = 20;
const GUEST_ANNOUNCE: u32 = 21;
const MQ: u32 = 22;
const CTRL_MAC_ADDR: u32 = 23;
const DEVICE_STATS: u32 = 50;
const VQ_NOTF_COAL: u32 = 52;
const NOTF_COAL: u32 = 53;
const HASH_REPORT: u32 = 57;
const RSS: u32 = 60;
const OF_COMMANDS: [u32; 12] = [
    CTRL_GUEST_OFFLOADS,
    CTRL_RX,
    CTRL_VLAN,
    CTRL_RX_EXTRA,
    GUEST_ANNOUNCE,
    MQ,
    CTRL_MAC_ADDR,
    DEVICE_STATS,
    VQ_NOTF_COAL,
    NOTF_COAL,
    HASH_REPORT,
    RSS,
];
/// `GUEST_CSUM`, `_TSO4`, `_TSO6`, `_ECN`, `_USO4` and `_USO6`.
const OFFLOADS: [u32; 6] = [1, 7, 8, 9, 54, 55];
/// Commands after which a driver is reset, so that the list of them stays short.
const COMMANDS_OF_A_DRIVER: usize = 100;

#[derive(Default)]
struct Model {
    negotiated: u64,
    accepted: Vec<Vec<u8>>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

impl Model {
    fn has(&self, bit: u32) -> bool {
        self.negotiated >> bit & 1 == 1
    }

    fn offloads(&self) -> u64 {
        let negotiated = OFFLOADS.iter().filter(|bit| self.has(**bit)).fold(0, |bits, bit| bits | 1 << bit);
        let last = self.accepted.iter().rev().find(|command| command[..2] == [5, 0]);
        last.map_or(negotiated, |command| u64::from(u32_at(command, 2)) | u64::from(u32_at(command, 6)) << 32)
    }

    /// Queue pairs after a command that says so.
    fn pairs_of(command: &[u8]) -> Option<u16> {
        match command[..2] {
            [4, 0] => Some(u16_at(command, 2)),
            [4, 1] => Self::rss_pairs(command),
            _ => None,
        }
    }

    fn pairs(&self) -> u16 {
        self.accepted.iter().rev().find_map(|command| Self::pairs_of(command)).unwrap_or(1)
    }

    /// The pair of what is not hashed, while the guest spreads its flows.
    fn unclassified(&self) -> Option<u16> {
        let last = self.accepted.iter().rev().find(|command| command[0] == 4)?;
        (last[1] == 1).then(|| u16_at(last, 8))
    }

    /// Queue pairs of a configuration of RSS; `None` of one that makes no sense.
    fn rss_pairs(command: &[u8]) -> Option<u16> {
        if command.len() < 10 {
            return None;
        }
        let entries = usize::from(u16_at(command, 6)) + 1;
        let end = 10 + 2 * entries;
        if ![1, 2, 4, 8, 16, 32, 64, 128].contains(&entries) || command.len() < end + 3 {
            return None;
        }
        let key_len = usize::from(command[end + 2]);
        let (types, transmits) = (u32_at(command, 2), u16_at(command, end));
        let last = (8..end).step_by(2).map(|at| u16_at(command, at)).max()?;
        let makes_sense = types < 64 && last < PAIRS_MAX && (1..=PAIRS_MAX).contains(&transmits) && key_len <= 40;
        (makes_sense && command.len() >= end + 3 + key_len).then(|| transmits.max(last + 1))
    }

    /// Frames and microseconds: of a ring by itself, and of all of its direction.
    fn wish(&self, ring: u16) -> Option<(u32, u32)> {
        let (mut of_ring, mut of_all) = (None, None);
        for command in &self.accepted {
            match command[..2] {
                [6, direction] if direction < 2 && u16::from(direction) != ring % 2 => {
                    of_all = Some((u32_at(command, 2), u32_at(command, 6)));
                    of_ring = of_all;
                }
                [6, 2] if u16_at(command, 2) == ring => of_ring = Some((u32_at(command, 6), u32_at(command, 10))),
                _ if Self::pairs_of(command).is_some_and(|pairs| ring / 2 >= pairs) => of_ring = of_all,
                _ => {}
            }
        }
        of_ring
    }

    fn tables(command: &[u8]) -> Option<[Vec<&[u8]>; 2]> {
        let mut at = 2;
        let mut tables = [Vec::new(), Vec::new()];
        for table in &mut tables {
            if at + 4 > command.len() {
                return None;
            }
            let count = u32_at(command, at) as usize;
            at += 4;
            if count > command.len() || at + 6 * count > command.len() {
                return None;
            }
            *table = command[at..at + 6 * count].chunks(6).collect();
            at += 6 * count;
        }
        Some(tables)
    }

    fn accepts(&self, command: &[u8]) -> bool {
        let len = command.len();
        if len < 2 {
            return false;
        }
        match command[..2] {
            [0, 0 | 1] => self.has(CTRL_RX) && len > 2,
            [0, 2..=5] => self.has(CTRL_RX_EXTRA) && len > 2,
            [1, 0] => self.has(CTRL_RX) && Self::tables(command).is_some(),
            [1, 1] => self.has(CTRL_MAC_ADDR) && len >= 8 && [OWN, OTHER].iter().any(|mac| command[2..8] == *mac),
            [2, 0 | 1] => self.has(CTRL_VLAN) && len >= 4 && u16_at(command, 2) < 4096,
            [4, 0] => self.has(MQ) && len >= 4 && (1..=PAIRS_MAX).contains(&u16_at(command, 2)),
            [4, 1] => self.has(RSS) && Self::rss_pairs(command).is_some(),
            [4, 2] => {
                let has_key = || len > 14 && command[14] <= 40 && len >= 15 + usize::from(command[14]);
                self.has(HASH_REPORT) && has_key() && u32_at(command, 2) < 64
            }
            [5, 0] => {
                let may_be = OFFLOADS.iter().filter(|bit| self.has(**bit)).fold(0u64, |bits, bit| bits | 1 << bit);
                let bits = || u64::from(u32_at(command, 2)) | u64::from(u32_at(command, 6)) << 32;
                self.has(CTRL_GUEST_OFFLOADS) && len >= 10 && bits() & !may_be == 0
            }
            [6, 0 | 1] => self.has(NOTF_COAL) && len >= 10,
            [6, 2] => self.has(VQ_NOTF_COAL) && len >= 14 && u16_at(command, 2) < 2 * self.pairs(),
            [6, 3] => self.has(VQ_NOTF_COAL) && len >= 4 && u16_at(command, 2) < 2 * self.pairs(),
            [8, 0] => self.has(DEVICE_STATS),
            [8, 1] => {
                let control = if self.has(MQ) { 2 * PAIRS_MAX } else { 2 };
                self.has(DEVICE_STATS)
                    && command[2..].chunks_exact(16).all(|of| {
                        let (vring, low, high) = (u16_at(of, 0), u32_at(of, 8), u32_at(of, 12));
                        match vring {
                            _ if vring == control => low == 0 && high & !1 == 0,
                            _ if vring > control || high != 0 => false,
                            _ if vring % 2 == 1 => low & !0x1_0000 == 0,
                            _ => {
                                let checksum = if self.has(1) { 2 } else { 0 };
                                // Large receive needs the checksum.
                                let gso = if self.has(1) && (self.has(7) || self.has(8)) { 4 } else { 0 };
                                low & !(1 | checksum | gso) == 0
                            }
                        }
                    })
            }
            _ => false,
        }
    }

    fn receives(&self, frame: &[u8]) -> bool {
        let last = |number: [u8; 2]| self.accepted.iter().rev().find(|command| command[..2] == number);
        let on = |mode| last([0, mode]).is_some_and(|command| command[2] != 0);
        if on(0) {
            return true;
        }
        if self.has(CTRL_VLAN) && frame[12..14] == [0x81, 0] {
            let vid = u16::from_be_bytes([frame[14] & 15, frame[15]]);
            let change = self.accepted.iter().rev().find(|command| command[0] == 2 && u16_at(command, 2) == vid);
            if change.is_none_or(|command| command[1] == 1) {
                return false;
            }
        }
        if !self.accepted.iter().any(|command| command[0] == 0 || command[..2] == [1, 0]) {
            return true;
        }
        let table = last([1, 0]).and_then(|command| Self::tables(command));
        let has = |nth: usize| table.as_ref().is_some_and(|tables| tables[nth].contains(&&frame[..6]));
        let own = last([1, 1]).map_or(&OWN[..], |command| &command[2..8]);
        match frame[0] & 1 {
            0 => !on(4) && (on(2) || frame[..6] == *own || has(0)),
            _ if frame[..6] == [0xff; 6] => !on(5),
            _ => !on(3) && (on(1) || has(1)),
        }
    }
}

fn mac(rng: &mut StdRng) -> [u8; 6] {
    let macs = [OWN, OTHER, [2, 0, 0, 0, 0, 3], [1, 0, 0x5e, 0, 0, 1], [1, 0, 0x5e, 0, 0, 2], [0xff; 6], [0; 6]];
    macs[rng.random_range(0..macs.len())]
}

/// A command that mostly makes sense.
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
                let types = [1u64, 2, 3, 4, 1 << 16, 1 << 32, 8, 0];
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
    let mut control = Control::new(&config);
    let mut model = Model::default();
    let mut done = 0;
    for nth in 0..count {
        if nth % COMMANDS_OF_A_DRIVER == 0 {
            let bits = OF_COMMANDS.iter().chain(&OFFLOADS).filter(|_| rng.random_bool(0.85));
            model = Model { negotiated: bits.fold(1 << 32, |bits, bit| bits | 1 << bit), accepted: Vec::new() };
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
        // It is no packet that could be hashed.
        let pair = of_ring.rss.and_then(|rss| rss.pair(&RxMeta::default(), &frame));
        assert_eq!(pair, model.unclassified().map(usize::from));
        let passes = of_ring.filter.is_none_or(|filter| filter.accepts(&frame));
        assert_eq!(passes, model.receives(&frame), "{frame:?} after {:?}", model.accepted);
    }
    // Else the test would say nothing.
    assert!(done > count / 5, "{done} of {count} made sense");
}

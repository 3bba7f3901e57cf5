//! Compares receive coalescing with the kernel. Linux' GRO and offramp's coalescer process the same frames. The outputs
//! are compared piece by piece, with every byte and all metadata.
//!
//! In the tables below, each row with an intended difference states both outputs and the reason. The rows hold for
//! Linux 6.18; other versions differ in coalescing with CWR and with fixed IDs. `OFFRAMP_VECTORS` and `OFFRAMP_SEED`
//! set the number of random cases and their seed.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::common::is_root_of_the_machine;
use crate::judge::receive::{Receiver, check_nothing_lost, check_same};
use crate::judge::support::packet::{
    ACK, CWR, Checksum, DESTINATION, DF, ECE, FIN, FRAGMENT, MF, PSH, Packet, RST, SYN, URG, pattern,
};
use crate::judge::support::pieces::{Piece, by_us, check_inverse, sizes};
use crate::judge::{how_to_repeat, kernel_release, random_for, seed, vectors};

/// Default number of vectors: [`VECTORS_PER_CASE`] times the number of random cases.
const VECTORS_DEFAULT: u64 = 10_000;
/// The number of vectors divided by this constant is the number of cases. A case takes two ticks of the kernel's clock,
/// so this test runs fewer cases than vectors.
const VECTORS_PER_CASE: u64 = 20;
/// Number of repetitions of a case after a difference: an undetected tick may have caused the difference.
const RETRIES: usize = 3;

/// The expected outcome of a row.
enum Expect {
    /// Both outputs have pieces of these sizes, with equal bytes.
    Same(&'static [usize]),
    /// The kernel coalesces like offramp, but its TAP cannot express the result, so the kernel delivers the frames one
    /// by one.
    CutAgain { ours: &'static [usize] },
    /// offramp's output intentionally differs from the kernel's output, for this reason.
    Differs { kernel: &'static [usize], ours: &'static [usize], reason: &'static str },
    /// The kernel coalesces like offramp if it was built with `CONFIG_VLAN_8021Q`. A kernel without this option does
    /// not coalesce the frames.
    IfVlan(&'static [usize]),
}
use Expect::{CutAgain, Differs, IfVlan, Same};

struct Row {
    name: &'static str,
    packets: Vec<Packet>,
    expect: Expect,
}

fn row(name: &'static str, packets: Vec<Packet>, expect: Expect) -> Row {
    Row { name, packets, expect }
}

/// Returns consecutive segments of these sizes, with consecutive IDs starting at 8.
fn run(sizes: &[usize]) -> Vec<Packet> {
    let mut seq = 1000;
    let segments = sizes.iter().enumerate().map(|(n, len)| {
        let packet = Packet { id: 8 + n as u16, seq, payload: pattern(seq, *len), ..Packet::tcp(0) };
        seq += *len as u32;
        packet
    });
    segments.collect()
}

fn datagrams(sizes: &[usize]) -> Vec<Packet> {
    run(sizes).into_iter().map(|packet| Packet { is_udp: true, ports: (3333, 4444), ..packet }).collect()
}

fn three() -> Vec<Packet> {
    run(&[100; 3])
}

/// Changes packet `n`.
fn with(mut packets: Vec<Packet>, n: usize, change: impl Fn(&mut Packet)) -> Vec<Packet> {
    change(&mut packets[n]);
    packets
}

/// Changes all packets.
fn with_all(mut packets: Vec<Packet>, change: impl Fn(usize, &mut Packet)) -> Vec<Packet> {
    packets.iter_mut().enumerate().for_each(|(n, packet)| change(n, packet));
    packets
}

fn with_ids(ids: &[u16], fragment: u16) -> Vec<Packet> {
    let packets = run(&vec![100; ids.len()]);
    with_all(packets, |n, packet| (packet.id, packet.fragment) = (ids[n], fragment))
}

fn ipv6(packets: Vec<Packet>) -> Vec<Packet> {
    with_all(packets, |_, packet| packet.is_ipv6 = true)
}

fn timestamps(value: u8) -> Vec<u8> {
    vec![1, 1, 8, 10, 0, 0, 0, value, 0, 0, 0, 7]
}

/// Returns destination options of eight bytes that contain only padding with value `value`.
fn destination_options(value: u8) -> Vec<(u8, Vec<u8>)> {
    vec![(DESTINATION, vec![0, 1, 4, value, value, value, value])]
}

fn rows_of_data() -> Vec<Row> {
    vec![
        row("one frame", run(&[100]), Same(&[100])),
        row("equal sizes", three(), Same(&[300])),
        row("large, small", run(&[100, 50]), Same(&[150])),
        row("large, small, large", run(&[100, 50, 100]), Same(&[150, 100])),
        row("small, large", run(&[50, 100]), Same(&[50, 100])),
        row("pure ACKs", run(&[0, 0, 0]), Same(&[0, 0, 0])),
        row("data and ACK", run(&[100, 0, 100]), Same(&[100, 0, 100])),
        row("a gap", with(run(&[100, 100]), 1, |p| p.seq += 1), Same(&[100, 100])),
        row("an overlap", with(run(&[100, 100]), 1, |p| p.seq -= 1), Same(&[100, 100])),
        row("reordered", run(&[100, 100]).into_iter().rev().collect(), Same(&[100, 100])),
        row("60 of 1448 bytes", run(&[1448; 60]), Same(&[45 * 1448, 15 * 1448])),
        row("two flows interleaved", interleaved(2), Same(&[200, 200])),
        row("eight flows interleaved", interleaved(8), Same(&[200; 8])),
        row(
            "sequence numbers that wrap",
            with_all(three(), |n, p| p.seq = (u32::MAX - 150).wrapping_add(100 * n as u32)),
            Same(&[300]),
        ),
    ]
}

/// Returns two frames of each flow: the first frames of all flows, then the second frames.
fn interleaved(flows: u16) -> Vec<Packet> {
    let of = |n: usize, flow: u16| Packet { ports: (6000 + flow, 80), ..run(&[100, 100])[n].clone() };
    (0..2).flat_map(|n| (0..flows).map(move |flow| of(n, flow))).collect()
}

fn rows_of_flags() -> Vec<Row> {
    vec![
        row("PSH on the second", with(three(), 1, |p| p.flags |= PSH), Same(&[200, 100])),
        row("PSH on the third of five", with(run(&[100; 5]), 2, |p| p.flags |= PSH), Same(&[300, 200])),
        row("PSH on the first", with(three(), 0, |p| p.flags |= PSH), Same(&[100, 200])),
        row("FIN on the second", with(three(), 1, |p| p.flags |= FIN), Same(&[200, 100])),
        row(
            "CWR on two",
            with_all(run(&[100; 4]), |n, p| p.flags |= if n == 1 || n == 2 { CWR } else { 0 }),
            Same(&[100; 4]),
        ),
        row("CWR on the first", with(three(), 0, |p| p.flags |= CWR), Same(&[100, 200])),
        row("CWR on all", with_all(three(), |_, p| p.flags |= CWR), Same(&[100; 3])),
        row("ECE on all", with_all(three(), |_, p| p.flags |= ECE), Same(&[300])),
        row("ECE on one", with(three(), 1, |p| p.flags |= ECE), Same(&[100; 3])),
        row("URG", with(three(), 1, |p| (p.flags, p.urgent) = (ACK | URG, 1)), Same(&[100; 3])),
        row("SYN without data", with(run(&[100, 100, 0, 100, 100]), 2, |p| p.flags = SYN | ACK), Same(&[200, 0, 200])),
        row("RST without data", with(run(&[100, 100, 0, 100, 100]), 2, |p| p.flags = RST | ACK), Same(&[200, 0, 200])),
        row("FIN without data", with(run(&[100, 100, 0]), 2, |p| p.flags = FIN | ACK), Same(&[200, 0])),
        row("a reserved flag on all", with_all(three(), |_, p| p.flags |= 0x400), Same(&[300])),
        row("a reserved flag on one", with(three(), 1, |p| p.flags |= 0x400), Same(&[100; 3])),
        row("AE on one", with(three(), 1, |p| p.flags |= 0x100), Same(&[100; 3])),
        row(
            "an urgent pointer without its flag",
            with(run(&[100, 100]), 1, |p| p.urgent = 7),
            Differs { kernel: &[200], ours: &[100, 100], reason: "coalesced, the pointer would be lost" },
        ),
    ]
}

fn rows_of_headers() -> Vec<Row> {
    let timestamped = |values: [u8; 3]| with_all(three(), |n, p| p.options = timestamps(values[n]));
    vec![
        row("another window", with(run(&[100, 100]), 1, |p| p.window -= 1), Same(&[100, 100])),
        row("another acknowledgement", with(run(&[100, 100]), 1, |p| p.ack += 1), Same(&[100, 100])),
        row("equal timestamps", timestamped([5, 5, 5]), Same(&[300])),
        row("another timestamp on the third", timestamped([5, 5, 6]), Same(&[200, 100])),
        row("other options", with(timestamped([5, 5, 5]), 2, |p| p.options = vec![1, 3, 3, 0]), Same(&[200, 100])),
        row("another TTL", with(run(&[100, 100]), 1, |p| p.hops = 63), Same(&[100, 100])),
        row("another ToS", with(run(&[100, 100]), 1, |p| p.class = 4), Same(&[100, 100])),
        row("another ECN", with_all(run(&[100, 100]), |n, p| p.class = 2 + n as u8), Same(&[100, 100])),
        row(
            "another destination on Ethernet",
            with(run(&[100, 100]), 1, |p| p.destination_mac += 1),
            Same(&[100, 100]),
        ),
        row("another source address on Ethernet", with(run(&[100, 100]), 1, |p| p.source_mac += 1), Same(&[100, 100])),
        row("a VLAN tag on all", with_all(three(), |_, p| p.tags = vec![(0x8100, 7)]), IfVlan(&[300])),
        row(
            "another VLAN on one",
            with_all(three(), |n, p| p.tags = vec![(0x8100, 7 + n as u16 / 2)]),
            IfVlan(&[200, 100]),
        ),
        row("IPv6", ipv6(three()), Same(&[300])),
        row("another hop limit", ipv6(with(run(&[100, 100]), 1, |p| p.hops = 63)), Same(&[100, 100])),
        row("another traffic class", ipv6(with(run(&[100, 100]), 1, |p| p.class = 4)), Same(&[100, 100])),
        row("another flow label", ipv6(with(run(&[100, 100]), 1, |p| p.flow_label = 1)), Same(&[100, 100])),
        row(
            "equal extension headers",
            ipv6(with_all(three(), |_, p| p.extensions = destination_options(0))),
            Same(&[300]),
        ),
        row(
            "other extension headers",
            ipv6(with_all(run(&[100, 100]), |n, p| p.extensions = destination_options(n as u8))),
            Same(&[100, 100]),
        ),
    ]
}

/// The reason for the difference in a row with fixed IDs. The kernel delivers single frames, but their partial
/// checksums show that the kernel had coalesced the frames before.
const FIXED_ID: &str =
    "Linux restores the ID of a datagram without DF by a mark of its own; virtio has none (RFC 6864)";

fn rows_of_ids() -> Vec<Row> {
    vec![
        row("IDs that count", with_ids(&[8, 9, 10], 0), Same(&[300])),
        row("IDs that count, DF", with_ids(&[8, 9, 10], DF), Same(&[300])),
        row("IDs that wrap", with_ids(&[65535, 0, 1], 0), Same(&[300])),
        row("an ID that jumps", with_ids(&[8, 10], 0), Same(&[100, 100])),
        row("a fixed ID", with_ids(&[8, 8, 8], 0), Differs { kernel: &[100; 3], ours: &[100; 3], reason: FIXED_ID }),
        row("a fixed ID, DF", with_ids(&[8, 8, 8], DF), CutAgain { ours: &[300] }),
        row("IDs that count, then stay", with_ids(&[8, 9, 9], DF), Same(&[200, 100])),
        row("IDs that stay, then count", with_ids(&[8, 8, 9], DF), CutAgain { ours: &[200, 100] }),
        row("another DF", with(run(&[100, 100]), 1, |p| p.fragment = DF), Same(&[100, 100])),
    ]
}

/// Returns the first two packets, and between them a copy of the second packet, which `change` makes impossible to
/// coalesce.
fn with_stray(packets: &[Packet], change: impl Fn(&mut Packet)) -> Vec<Packet> {
    let [first, second] = [0, 1].map(|n: usize| packets[n].clone());
    let mut stray = second.clone();
    change(&mut stray);
    vec![first, stray, second]
}

/// Returns rows with frames that cannot be coalesced. offramp delivers a pending aggregate of the flow before a frame
/// that cannot be coalesced.
fn rows_of_strays() -> Vec<Row> {
    const ORDER: Expect =
        Differs { kernel: &[100, 200], ours: &[100; 3], reason: "nothing overtakes an open aggregate of its flow" };
    const FRAGMENT_ORDER: Expect = Differs {
        kernel: &[120, 200],
        ours: &[100, 120, 100],
        reason: "nothing overtakes an open aggregate of its flow",
    };
    const NO_PADDING: &str = "an adapter must coalesce what Ethernet padded";
    let pair = || run(&[100, 100]);
    let fragment = |p: &mut Packet| p.extensions = vec![(FRAGMENT, vec![0, 0, 1, 0, 0, 0, 9])];
    vec![
        row("a wrong checksum", with_stray(&pair(), |p| p.checksum = Checksum::Wrong), ORDER),
        row("a wrong IP checksum", with_stray(&pair(), |p| p.ip_checksum_is_wrong = true), ORDER),
        row("IPv4 options", with_stray(&pair(), |p| p.ip_options = vec![1, 1, 1, 0]), ORDER),
        row("a wrong checksum over IPv6", with_stray(&ipv6(pair()), |p| p.checksum = Checksum::Wrong), ORDER),
        row(
            "a datagram with a wrong checksum",
            with_stray(&datagrams(&[100, 100]), |p| p.checksum = Checksum::Wrong),
            ORDER,
        ),
        row("an IPv4 fragment", with_stray(&pair(), |p| p.fragment = MF), FRAGMENT_ORDER),
        row("an IPv6 fragment", with_stray(&ipv6(pair()), fragment), FRAGMENT_ORDER),
        row("IPv4 options on all", with_all(pair(), |_, p| p.ip_options = vec![1, 1, 1, 0]), Same(&[100, 100])),
        row(
            "padding behind a short one",
            with(run(&[100, 1]), 1, |p| p.padding = 5),
            Differs { kernel: &[100, 1], ours: &[101], reason: NO_PADDING },
        ),
        row("a byte behind each packet", with_all(pair(), |_, p| p.padding = 1), Same(&[100, 100])),
    ]
}

/// Returns rows with frames that make an aggregate as long as the longest IP packet, or one byte longer. The kernel
/// segments the longest aggregate again: with the Ethernet header, the aggregate exceeds the maximum for a TAP.
fn rows_of_length() -> Vec<Row> {
    const FULL: usize = 16 * 4036;
    const REMAINDER: usize = 65_535 - 40 - FULL;
    let long = |last: usize| run(&[&[4036; 16][..], &[last, last]].concat());
    vec![
        row("the longest packet", long(REMAINDER), CutAgain { ours: &[FULL + REMAINDER, REMAINDER] }),
        row("one byte too many", long(REMAINDER + 1), Same(&[FULL, 2 * (REMAINDER + 1)])),
    ]
}

fn rows_of_datagrams() -> Vec<Row> {
    const EMPTY_ORDER: Expect =
        Differs { kernel: &[0, 200], ours: &[100, 0, 100], reason: "nothing overtakes an open aggregate of its flow" };
    vec![
        row("datagrams", datagrams(&[100; 3]), Same(&[300])),
        row("datagrams over IPv6", ipv6(datagrams(&[100; 3])), Same(&[300])),
        row("a short datagram", datagrams(&[100, 50, 100]), Same(&[150, 100])),
        row("a long datagram", datagrams(&[50, 100]), Same(&[50, 100])),
        row("an empty datagram", with_stray(&datagrams(&[100, 100]), |p| p.payload.clear()), EMPTY_ORDER),
        row("70 datagrams", datagrams(&[100; 70]), Same(&[6400, 600])),
        row(
            "datagrams without checksum",
            with_all(datagrams(&[100, 100]), |_, p| p.checksum = Checksum::Absent),
            Same(&[100, 100]),
        ),
        row("a datagram whose ID jumps", with(datagrams(&[100, 100]), 1, |p| p.id = 20), Same(&[100, 100])),
    ]
}

fn rows() -> impl Iterator<Item = Row> {
    [
        rows_of_data(),
        rows_of_flags(),
        rows_of_headers(),
        rows_of_ids(),
        rows_of_strays(),
        rows_of_length(),
        rows_of_datagrams(),
    ]
    .into_iter()
    .flatten()
}

fn check_row(row: &Row, frames: &[Vec<u8>], kernel: &[Piece], ours: &[Piece]) -> Result<(), String> {
    check_inverse(frames, ours)?;
    let (Same(expected) | IfVlan(expected) | CutAgain { ours: expected } | Differs { ours: expected, .. }) = row.expect;
    if sizes(ours) != expected {
        return Err(format!("expected {expected:?} of us"));
    }
    match row.expect {
        IfVlan(_) if kernel.len() == frames.len() => check_nothing_lost(frames, kernel),
        CutAgain { .. } if !kernel.iter().any(Piece::is_cut_again) => Err("the kernel segmented nothing again".into()),
        Same(_) | IfVlan(_) | CutAgain { .. } => check_same(frames, kernel, ours),
        Differs { kernel: expected, .. } if sizes(kernel) == expected => Ok(()),
        Differs { reason, .. } => Err(format!("the kernel does not differ as listed ({reason})")),
    }
}

/// Returns the kernel's output for the frames, and the result of `check` for this output.
fn judged(
    receiver: &mut Receiver,
    frames: &[Vec<u8>],
    check: impl Fn(&[Piece]) -> Result<(), String>,
) -> (Vec<Piece>, Result<(), String>) {
    let mut kernel = receiver.judge(frames);
    let mut outcome = check(&kernel);
    for _ in 0..RETRIES {
        if outcome.is_ok() {
            break;
        }
        kernel = receiver.judge(frames);
        outcome = check(&kernel);
    }
    (kernel, outcome)
}

#[test]
fn what_joins_is_what_the_kernel_joins_but_for_the_rows_that_say_so() {
    // Only root in the initial user namespace can change the settings that delay the kernel's GRO.
    if !is_root_of_the_machine() {
        return;
    }
    let mut receiver = Receiver::new();
    let mut wrong = Vec::new();
    for row in rows() {
        let frames: Vec<_> = row.packets.iter().map(Packet::build).collect();
        let ours = by_us(&frames);
        let (kernel, outcome) = judged(&mut receiver, &frames, |kernel| check_row(&row, &frames, kernel, &ours));
        let line = format!("{}: the kernel {:?}, we {:?}", row.name, sizes(&kernel), sizes(&ours));
        println!("{line}");
        if let Err(why) = outcome {
            wrong.push(format!("{line}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "not as listed (kernel {}):\n{}", kernel_release(), wrong.join("\n"));
}

/// A few frames, mostly of one flow, some with a change in one field.
struct Case {
    packets: Vec<Packet>,
    /// The reason for a permitted difference from the kernel's output.
    exception: Option<&'static str>,
    what: Vec<&'static str>,
}

impl Case {
    fn random(random: &mut ChaCha8Rng) -> Self {
        let mut packets = random_flow(random);
        let (mut what, mut exception) = (Vec::new(), None);
        for _ in 0..random.random_range(0..3) {
            let n = random.random_range(0..packets.len());
            if random.random_bool(0.75) {
                let (name, excepted) = mutate(random, &mut packets[n]);
                what.push(name);
                exception = exception.or(excepted);
            } else {
                what.push(disorder(random, &mut packets, n));
            }
        }
        exception = exception.or(repeats_id(&packets).then_some(FIXED_ID));
        Self { packets, exception, what }
    }
}

/// Returns whether two frames of a flow without DF have the same IPv4 ID.
fn repeats_id(packets: &[Packet]) -> bool {
    let is_like = |a: &Packet, b: &Packet| !b.is_ipv6 && b.fragment & DF == 0 && (a.id, a.ports) == (b.id, b.ports);
    packets.iter().enumerate().any(|(n, a)| packets[..n].iter().any(|b| is_like(a, b)))
}

/// Returns two to six consecutive segments of one flow, or of two interleaved flows.
fn random_flow(random: &mut ChaCha8Rng) -> Vec<Packet> {
    let size = if random.random_bool(0.9) { random.random_range(1..200) } else { random.random_range(200..9000) };
    let count = random.random_range(2..=6);
    let is_udp = random.random_bool(0.25);
    let (is_ipv6, has_fixed_id) = (random.random_bool(0.4), random.random_bool(0.2));
    let has_timestamps = random.random_bool(0.4);
    let flows = if random.random_bool(0.2) { 2 } else { 1 };
    let (seq, id) = (random.random::<u32>(), random.random::<u16>());
    let fragment = if random.random() { DF } else { 0 };
    let packet = |n: usize| {
        let (flow, n) = (n % flows, n / flows);
        let seq = seq.wrapping_add((n * size) as u32);
        let ports = (5000 + flow as u16, 80);
        let id = id.wrapping_add(if has_fixed_id { 0 } else { n as u16 });
        let payload = pattern(seq, size);
        let options = if has_timestamps { timestamps(5) } else { Vec::new() };
        Packet { is_ipv6, is_udp, id, fragment, ports, seq, options, payload, ..Packet::tcp(0) }
    };
    (0..count).map(packet).collect()
}

/// Removes, duplicates or swaps a frame.
fn disorder(random: &mut ChaCha8Rng, packets: &mut Vec<Packet>, n: usize) -> &'static str {
    let other = random.random_range(0..packets.len());
    match random.random_range(0..3) {
        0 if packets.len() > 1 => {
            packets.remove(n);
            "lost"
        }
        1 => {
            packets.insert(n, packets[n].clone());
            "doubled"
        }
        _ => {
            packets.swap(n, other);
            "swapped"
        }
    }
}

/// Changes one field of one frame. For each permitted difference from the kernel, a row of the tables above states the
/// expected outcome.
fn mutate(random: &mut ChaCha8Rng, packet: &mut Packet) -> (&'static str, Option<&'static str>) {
    let name = match random.random_range(0..4) {
        0 => mutate_network(random, packet),
        1 | 2 => mutate_transport(random, packet),
        _ => mutate_frame(random, packet),
    };
    let exception = match name {
        "wrong checksum" | "wrong IP checksum" | "MF" => Some("the kernel lets it overtake"),
        "no payload" | "no checksum" if packet.is_udp => Some("the kernel lets it overtake"),
        "no checksum" => Some("of TCP it is a wrong one"),
        "flow label" | "source address" => Some("to the kernel it is another flow, to us the same one"),
        "padding" => Some("we join what is padded"),
        _ => None,
    };
    (name, exception)
}

fn mutate_network(random: &mut ChaCha8Rng, packet: &mut Packet) -> &'static str {
    match random.random_range(0..7) {
        0 => {
            packet.hops = random.random();
            "hops"
        }
        1 => {
            packet.class ^= 1 << random.random_range(0..8);
            "class"
        }
        2 => {
            packet.id = packet.id.wrapping_add(random.random_range(0..4));
            "ID"
        }
        3 => {
            packet.fragment ^= DF;
            "DF"
        }
        4 => {
            packet.flow_label = random.random();
            "flow label"
        }
        5 => {
            packet.ip_checksum_is_wrong = true;
            "wrong IP checksum"
        }
        _ => {
            packet.fragment ^= MF;
            "MF"
        }
    }
}

fn mutate_transport(random: &mut ChaCha8Rng, packet: &mut Packet) -> &'static str {
    match random.random_range(0..9) {
        0 => {
            packet.seq = packet.seq.wrapping_add(random.random_range(0..3));
            "sequence"
        }
        1 => {
            packet.ack = packet.ack.wrapping_add(1);
            "acknowledgement"
        }
        2 => {
            packet.window ^= 1;
            "window"
        }
        3..6 => {
            packet.flags ^= 1 << random.random_range(0..12);
            "one flag"
        }
        6 => {
            packet.flags |= [PSH, FIN][random.random_range(0..2)];
            "PSH or FIN"
        }
        7 => {
            packet.options = timestamps(random.random_range(5..8));
            "timestamp"
        }
        _ => {
            packet.options = vec![1; 4 * random.random_range(0..10)];
            "options"
        }
    }
}

fn mutate_frame(random: &mut ChaCha8Rng, packet: &mut Packet) -> &'static str {
    match random.random_range(0..7) {
        0 => {
            packet.payload.clear();
            "no payload"
        }
        1 => {
            packet.payload.truncate(random.random_range(1..200));
            "shorter"
        }
        2 => {
            packet.payload.extend(pattern(9, random.random_range(0..20)));
            "longer"
        }
        3 => {
            packet.source_mac ^= 1 << random.random_range(0..8);
            "source address"
        }
        4 => {
            packet.checksum = Checksum::Wrong;
            "wrong checksum"
        }
        5 => {
            packet.checksum = Checksum::Absent;
            "no checksum"
        }
        _ => {
            packet.padding = random.random_range(0..20);
            "padding"
        }
    }
}

#[test]
fn random_frames_join_as_the_kernel_joins_them() {
    // Only root in the initial user namespace can change the settings that delay the kernel's GRO.
    if !is_root_of_the_machine() {
        return;
    }
    let (seed, count) = (seed(), vectors(VECTORS_DEFAULT) / VECTORS_PER_CASE);
    println!("{count} cases, OFFRAMP_SEED={seed}");
    let mut receiver = Receiver::new();
    let (mut compared, mut coalesced) = (0, 0);
    for index in 0..count {
        let case = Case::random(&mut random_for(seed, index));
        let frames: Vec<_> = case.packets.iter().map(Packet::build).collect();
        let ours = by_us(&frames);
        let check = |kernel: &[Piece]| match case.exception {
            Some(_) => check_nothing_lost(&frames, kernel),
            None => check_same(&frames, kernel, &ours),
        };
        let (kernel, mut outcome) = judged(&mut receiver, &frames, check);
        outcome = check_inverse(&frames, &ours).and(outcome);
        if let Err(why) = outcome {
            let list = |pieces: &[Piece]| pieces.iter().map(Piece::describe).collect::<Vec<_>>().join("\n    ");
            let repeat = how_to_repeat(seed, index);
            panic!("{repeat}: {:?}: {why}\n  kernel\n    {}\n  ours\n    {}", case.what, list(&kernel), list(&ours));
        }
        compared += usize::from(case.exception.is_none());
        coalesced += usize::from(ours.len() < frames.len());
    }
    println!("{compared} compared piece by piece, {coalesced} with coalesced frames");
    assert!(compared * 2 > count as usize && coalesced * 2 > count as usize, "the cases test little");
}

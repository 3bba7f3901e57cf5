//! Commands with any bytes, in chains of any shape, for the control queue of a port.

#[allow(dead_code, reason = "the unit test beside it uses more")]
#[path = "../../src/vhost_user/control/model.rs"]
mod model;

use super::{event, socket};
use model::{Model, OF_COMMANDS, OFFLOADS, OTHER, OWN, PAIRS_MAX};
use nix::sys::eventfd::EventFd;
use offramp_adapter::port::{HostPort, PortError};
use offramp_offload::meta::RxMeta;
use offramp_ports::vhost_user::{ControlQueue, VhostPort, VhostUser, VhostUserConfig};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::VringAddr;
use offramp_testkit::{Buffer, Frontend, GuestMemory, RegionSpec, RingOptions, Virtqueue};
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Layout of guest memory: rings and tables, then two regions. A buffer may cross the border between the regions.
const RINGS_LEN: u64 = 2 << 20;
const REGION_LEN: u64 = 64 * 1024;
const BORDER: u64 = RINGS_LEN + REGION_LEN;
/// Location of the commands of an input, and of their answers.
const COMMANDS_AT: u64 = BORDER - 512;
const ANSWERS_AT: u64 = BORDER + 8192;
const ANSWERS_LEN: usize = 16 * 1024;
/// Location of the zeros after a command.
const ZEROS_AT: u64 = BORDER + 32 * 1024;
const ZEROS_LEN: usize = 16 * 1024;
/// An address outside all memory.
const NOWHERE: u64 = 0xdead_0000_0000;
/// Byte value of the answer buffers before the answer.
const UNWRITTEN: u8 = 0xa5;
/// Number of entries in the ring, and maximum number of entries per chain.
const ENTRIES: u16 = 128;
const CHAIN_ENTRIES_MAX: usize = 20;
/// Number of settings bytes before the chains, and of layout bytes before each chain's command.
pub const SETTINGS_LEN: usize = 4;
pub const CHAIN_LEN: usize = 5;
/// Maximum length in bytes of a command accepted by the port (`offramp_virtio::control::COMMAND_LEN_MAX`).
const COMMAND_LEN_MAX: usize = 1 << 16;
/// Time limit for an answer, long enough for a busy machine. The port itself waits 5 s for a queue.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bits of an input's settings that select the format of the ring. The lower bits remove features of commands and
/// offloads.
const IS_PACKED: u32 = 1 << 18;
const HAS_EVENT_IDX: u32 = 1 << 19;
const LACKS_INDIRECT: u32 = 1 << 20;

/// Layout of a chain in memory, decoded from the bytes before its command.
#[allow(clippy::struct_excessive_bools, reason = "what is chosen independently")]
struct Shape {
    /// Number of buffers for the command, and number of buffers for the answer.
    pieces: usize,
    rooms: usize,
    /// Maximum length of the command's first buffer, in bytes.
    cut: usize,
    /// Length of the first answer buffer, in bytes. The second answer buffer has 8 bytes, and the third has 512 bytes.
    room_len: usize,
    /// True if the descriptors are in an indirect table.
    is_indirect: bool,
    /// True if the answer buffers precede the command buffers.
    is_answer_first: bool,
    /// True if a buffer lies outside the guest's memory.
    is_nowhere: bool,
    /// Number of buffers with zeros after the command.
    tails: usize,
    /// True if the port is kicked after this chain, for all chains since the last kick.
    is_last_of_batch: bool,
    /// Length of the command, in bytes.
    len: usize,
}

impl Shape {
    fn new(bytes: [u8; CHAIN_LEN]) -> Self {
        let [kind, pieces, room_len, cut, len] = bytes;
        let is_on = |bit: u32| kind >> bit & 1 == 1;
        Self {
            pieces: usize::from(pieces & 7) + 1,
            rooms: usize::from(!pieces >> 3 & 3),
            tails: if is_on(3) { usize::from(pieces >> 5) } else { 0 },
            cut: cut.into(),
            room_len: room_len.into(),
            is_indirect: is_on(0),
            is_answer_first: is_on(1),
            is_nowhere: is_on(2),
            is_last_of_batch: is_on(4),
            // The longest RSS command needs a ninth bit of length.
            len: usize::from(len) | if is_on(5) { 0x100 } else { 0 },
        }
    }
}

/// A chain in the ring, and its expected outcome.
struct Sent {
    answer_at: u64,
    room: usize,
    /// The expected `ack`. If `None`, the chain must be returned unwritten.
    ack: Option<u8>,
    /// Expected number of bytes after `ack`. If `None`, the number depends on the statistics.
    fields_len: Option<usize>,
}

/// A port that serves its control queue, with data queues polled by this thread. The port's frontend starts the control
/// queue for every input.
struct Bench {
    // The frontend and the queues are dropped before the port, so that the port need not wait for its queues.
    frontend: Frontend,
    host: VhostPort,
    port: VhostUser,
    memory: GuestMemory,
    kick: EventFd,
    /// One ring for each combination of format (split, packed) and `EVENT_IDX` (off, on).
    rings: Vec<Virtqueue>,
    offered: u64,
}

impl Bench {
    fn new() -> Self {
        let config = VhostUserConfig {
            queue_pairs: PAIRS_MAX,
            mac: Some(OWN),
            mac_addresses: vec![OWN, OTHER],
            steers: true,
            control_queue: ControlQueue::Backend,
            ..VhostUserConfig::new(socket("commands"))
        };
        let mut port = VhostUser::open(&config).expect("opening a port");
        let queues = (0..usize::from(PAIRS_MAX)).filter_map(|pair| port.queue(pair)).collect();
        let host = VhostPort::new(queues).expect("queues");
        let frontend = Frontend::connect(&config.socket);
        let memory = GuestMemory::new(&[
            RegionSpec::new(0, RINGS_LEN),
            RegionSpec::new(RINGS_LEN, REGION_LEN),
            RegionSpec::new(BORDER, REGION_LEN),
        ]);
        let rings = (0..4)
            .map(|kind| {
                let options = RingOptions { event_idx: kind & 1 == 1, ..RingOptions::default() };
                Virtqueue::new(&memory, kind & 2 == 2, ENTRIES, options)
            })
            .collect();
        let mut bench = Self { frontend, host, port, memory, kick: event(), rings, offered: 0 };
        let offered = bench.drive(|frontend, memory| {
            let offered = frontend.get_features().expect("an answer");
            // Do not negotiate REPLY_ACK, so that the messages that start a ring are sent without waiting for answers.
            frontend.set_protocol_features(protocol::MQ | protocol::STATUS).expect("a connection");
            frontend
                .set_features(features::VERSION_1 | features::PROTOCOL_FEATURES | features::CTRL_VQ | features::MQ)
                .expect("a connection");
            frontend.set_mem_table(memory).expect("a connection");
            for vring in 0..=2 * u32::from(PAIRS_MAX) {
                frontend.set_vring_enable(vring, true).expect("a connection");
            }
            frontend.get_features().expect("an answer");
            offered
        });
        bench.offered = offered;
        bench
    }

    /// Polls the data queues while `ask` exchanges messages with the port, so that the queues can answer.
    fn drive<R: Send>(&mut self, ask: impl FnOnce(&mut Frontend, &GuestMemory) -> R + Send) -> R {
        let Self { frontend, host, memory, .. } = self;
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(frontend, memory));
            while !asking.is_finished() {
                host.rx_flush(0);
                std::thread::yield_now();
            }
            asking.join().expect("the frontend")
        })
    }

    /// Starts the control queue, without waiting for answers.
    fn start(&mut self, ring: usize, vring: u32, features: u64) {
        let Self { frontend, memory, rings, kick, .. } = self;
        let ring = &mut rings[ring];
        ring.reset();
        let [descriptors, available, used] =
            [ring.addresses().descriptors, ring.addresses().driver, ring.addresses().device]
                .map(|at| memory.user_addr(at));
        let base = if features & features::RING_PACKED != 0 { 0x8000_8000 } else { 0 };
        let addr = VringAddr { index: vring, descriptors, used, available, ..VringAddr::default() };
        frontend
            .set_features(features)
            .and_then(|()| frontend.set_vring_num(vring, ENTRIES.into()))
            .and_then(|()| frontend.set_vring_base(vring, base))
            .and_then(|()| frontend.set_vring_addr(&addr))
            .and_then(|()| frontend.set_vring_kick(vring, Some(kick.as_fd())))
            .expect("a connection");
    }

    /// Publishes the added chains to the port, and checks the outcome of each chain.
    fn finish(&mut self, ring: usize, sent: &mut Vec<Sent>) {
        if self.rings[ring].publish() {
            self.kick.write(1).expect("a kick");
        }
        let begun = Instant::now();
        for sent in sent.drain(..) {
            let used = loop {
                if let Some(used) = self.rings[ring].take_used() {
                    break used;
                }
                assert!(begun.elapsed() < PATIENCE, "a chain does not come back: {:?}", self.port.status());
                self.host.rx_flush(0);
                std::thread::yield_now();
            };
            let written = used.len as usize;
            let place = self.memory.read_vec(sent.answer_at, sent.room + 1);
            assert!(written <= sent.room && place[written..].iter().all(|byte| *byte == UNWRITTEN), "{written}");
            assert_eq!((written > 0).then(|| place[0]), sent.ack);
            if let Some(fields_len) = sent.fields_len {
                assert_eq!(written, usize::from(sent.ack.is_some()) + fields_len);
            }
        }
    }
}

/// Runs an input: settings, then for each chain its memory layout and the bytes of its command. Each chain must get the
/// answer of a slow model. The port's settings must equal the model's settings after the accepted commands.
pub fn commands(bytes: &[u8]) {
    thread_local! {
        static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
    }
    let Some((settings, rest)) = bytes.split_first_chunk::<SETTINGS_LEN>() else { return };
    BENCH.with_borrow_mut(|bench| obey(bench, u32::from_le_bytes(*settings), rest));
}

fn obey(bench: &mut Bench, settings: u32, mut rest: &[u8]) {
    let is_on = |bit: u32| settings & bit != 0;
    // A set bit removes a feature, so settings of zero select all features.
    let of_driver = OF_COMMANDS.iter().chain(&OFFLOADS).enumerate().filter(|(nth, _)| settings >> nth & 1 == 0);
    let of_driver = of_driver.fold(0, |bits, (_, bit)| bits | 1_u64 << bit);
    let when = |is_on: bool, feature: u64| if is_on { feature } else { 0 };
    let features = of_driver
        | features::VERSION_1
        | features::PROTOCOL_FEATURES
        | features::CTRL_VQ
        | when(is_on(IS_PACKED), features::RING_PACKED)
        | when(is_on(HAS_EVENT_IDX), features::EVENT_IDX)
        | when(!is_on(LACKS_INDIRECT), features::INDIRECT_DESC);
    assert_eq!(features & !bench.offered, 0, "a feature that is not offered");
    let mut model = Model { negotiated: features, accepted: Vec::new() };
    let ring = usize::from(is_on(IS_PACKED)) << 1 | usize::from(is_on(HAS_EVENT_IDX));
    let vring = u32::from(model.control_vring());
    bench.start(ring, vring, features);
    bench.memory.fill(ANSWERS_AT, ANSWERS_LEN, UNWRITTEN);
    let (mut sent, mut command_at, mut answer_at) = (Vec::new(), COMMANDS_AT, ANSWERS_AT);
    while let Some((shape, behind)) = rest.split_first_chunk::<CHAIN_LEN>() {
        let shape = Shape::new(*shape);
        let (command, behind) = behind.split_at(shape.len.min(behind.len()));
        rest = behind;
        if answer_at + 2048 > ANSWERS_AT + ANSWERS_LEN as u64 || command_at + 1024 > ANSWERS_AT {
            break;
        }
        if bench.rings[ring].free_descriptors() < CHAIN_ENTRIES_MAX {
            bench.finish(ring, &mut sent);
        }
        let chain = add(bench, ring, &shape, command, (command_at, answer_at), &mut model);
        command_at += command.len() as u64;
        answer_at += chain.room as u64 + 1;
        sent.push(chain);
        if shape.is_last_of_batch {
            bench.finish(ring, &mut sent);
        }
    }
    bench.finish(ring, &mut sent);
    // After all chains, a valid command must be accepted.
    let right: [&[u8]; 4] = [&[0, 1, 1], &[4, 0, 1, 0], &[2, 0, 5, 0], &[8, 0]];
    let right = right.into_iter().find(|command| model.accepts(command)).unwrap_or(&[9, 9]);
    let shape = Shape::new([0x10, 0, 9, 2, right.len() as u8]);
    let chain = add(bench, ring, &shape, right, (command_at, answer_at), &mut model);
    sent.push(chain);
    bench.finish(ring, &mut sent);
    check(bench, &model);
    // The port does not access the ring after it has reported the ring's position.
    bench.drive(|frontend, _| {
        frontend.set_status(0).expect("a connection");
        frontend.get_vring_base(vring).expect("an answer");
    });
    assert_eq!(bench.port.channel_counters().bad_messages.get(), 0);
}

/// Adds a chain to the ring. Returns the chain's expected outcome.
fn add(
    bench: &mut Bench,
    ring: usize,
    shape: &Shape,
    command: &[u8],
    (command_at, answer_at): (u64, u64),
    model: &mut Model,
) -> Sent {
    bench.memory.write(command_at, command);
    let mut buffers = Vec::new();
    let (mut at, mut left) = (command_at, command.len());
    for nth in 0..shape.pieces {
        let is_last = nth + 1 == shape.pieces;
        let len = if is_last { left } else { left.min(if nth == 0 { shape.cut } else { shape.cut & 7 }) };
        buffers.push(Buffer::readable(at, len));
        at += len as u64;
        left -= len;
    }
    buffers.extend((0..shape.tails).map(|_| Buffer::readable(ZEROS_AT, ZEROS_LEN)));
    let mut answer = Vec::new();
    let mut room = 0;
    for nth in 0..shape.rooms {
        let len = match nth {
            0 => shape.room_len,
            1 => 8,
            _ => 512,
        };
        answer.push(Buffer::writable(answer_at + room as u64, len));
        room += len;
    }
    if shape.is_nowhere {
        answer.push(Buffer::readable(NOWHERE, 1));
    }
    let has_command = !command.is_empty() || shape.tails > 0;
    let is_in_order = !shape.is_answer_first || !has_command || room == 0;
    let buffers = if shape.is_answer_first { [answer, buffers].concat() } else { [buffers, answer].concat() };
    let (direct, indirect) = if shape.is_indirect { (&[][..], &buffers[..]) } else { (&buffers[..], &[][..]) };
    bench.rings[ring].add(direct, indirect).expect("room in the ring");

    let len = command.len() + shape.tails * ZEROS_LEN;
    let may_be_indirect = model.negotiated & features::INDIRECT_DESC != 0 || !shape.is_indirect;
    let is_command = is_in_order && may_be_indirect && !shape.is_nowhere && room > 0 && len <= COMMAND_LEN_MAX;
    if !is_command {
        return Sent { answer_at, room, ack: None, fields_len: Some(0) };
    }
    let whole = [command, &vec![0; shape.tails * ZEROS_LEN]].concat();
    let fields_len = if model.accepts(&whole) { Model::fields_len(&whole) } else { 0 };
    let is_done = model.accepts(&whole) && room > fields_len;
    let is_statistics = is_done && whole[..2] == [8, 1];
    if is_done {
        model.accepted.push(whole);
    }
    let fields_len = (!is_statistics).then_some(if is_done { fields_len } else { 0 });
    Sent { answer_at, room, ack: Some(u8::from(!is_done)), fields_len }
}

/// Checks that the port's settings equal the model's settings, and that no setting is out of range.
fn check(bench: &mut Bench, model: &Model) {
    // The port publishes its current settings before it reads another message.
    bench.frontend.get_features().expect("an answer");
    let status = bench.port.status().control.expect("a control queue that runs");
    assert_eq!(status.queue_pairs, model.pairs());
    assert!((1..=PAIRS_MAX).contains(&status.queue_pairs));
    assert_eq!(status.guest_offloads, model.offloads());
    assert_eq!(status.guest_offloads & !model.negotiated, 0);
    assert_eq!(status.hash.as_ref().and_then(|hash| hash.unclassified), model.unclassified());
    for vring in 0..2 * PAIRS_MAX {
        let wish = status.coalescing[usize::from(vring)].map(|wish| (wish.max_packets, wish.max_usecs));
        assert_eq!(wish, model.wish(vring), "vring {vring}");
    }
    let vids = (0..4).chain([4095]);
    let tags = vids.map(|vid: u16| [&[0x81, 0][..], &vid.to_be_bytes()].concat()).chain([vec![]]);
    for (tag, to) in tags.zip([OWN, OTHER, [2, 0, 0, 0, 0, 3], [1, 0, 0x5e, 0, 0, 1], [0xff; 6], OWN]) {
        let packet = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let frame = [&to[..], &OTHER, &tag, &[8, 0], &packet, &[0; 26]].concat();
        // The data rings do not run, so an accepted frame is lost for lack of room, on the first pair.
        let expected = if model.receives(&frame) { PortError::Full } else { PortError::Filtered };
        assert_eq!(bench.host.rx_deliver(&RxMeta::default(), &frame), Err(expected), "{frame:?}");
    }
    bench.host.rx_flush(0);
}

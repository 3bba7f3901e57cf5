//! Every parameter that there is: its name, what it means, its unit, its range and its default.

use super::quantity::{Dimension, nearest, split};
use crate::link::{FCS_LEN, FRAME_LEN_MIN};
use crate::time::PICOSECONDS_PER_MICROSECOND;
use Dimension::{BitRate, Bytes, Choice, Count, Frequency, Ratio, Time, TimePerByte};

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Section and name: `bus.clock`.
    pub name: &'static str,
    /// What it counts.
    pub dimension: Dimension,
    /// Smallest value, base units.
    pub min: u64,
    /// Largest value, base units.
    pub max: u64,
    /// Value where no profile says one, as a user writes it.
    pub default: &'static str,
    /// It is a time of the host's processor: a run uses it times `host.cost_scale`.
    pub is_scaled: bool,
    /// Meaning, in a sentence.
    pub meaning: &'static str,
}

impl Key {
    /// A value as a user writes it, with its unit, in base units.
    ///
    /// # Errors
    /// In words: no number, no such unit, or out of range.
    pub fn parse(&self, text: &str) -> Result<u64, String> {
        let (number, unit) = match self.dimension {
            Choice(_) => (text, ""),
            // Pieces need no unit: there is only one.
            Count(unit) if split(text).1.is_empty() => (split(text).0, unit),
            _ => split(text),
        };
        self.dimension.value(number, unit).and_then(|value| self.in_range(value))
    }

    /// Base units from one value to the next.
    pub fn step(&self) -> u64 {
        // Virtio's notification condition has whole microseconds.
        if ["adapter.interrupt_wait", "adapter.transmit_wait"].contains(&self.name) {
            PICOSECONDS_PER_MICROSECOND
        } else {
            1
        }
    }

    /// A value in base units, if it is one of this parameter.
    ///
    /// # Errors
    /// In words, with the range.
    pub fn in_range(&self, value: u64) -> Result<u64, String> {
        let show = |value| self.dimension.show(value);
        if !value.is_multiple_of(self.step()) {
            return Err(format!("{} is not a whole number of {}", show(value), show(self.step())));
        }
        if (self.min..=self.max).contains(&value) {
            return Ok(value);
        }
        Err(format!("{} is out of range; use {} to {}", show(value), show(self.min), show(self.max)))
    }
}

/// Sections: the kinds of profile, each describing one part of a system, and the workload.
pub const SECTIONS: [&str; 6] = ["host", "adapter", "bus", "link", "peer", "workload"];

/// A second, the longest time of most parameters, in picoseconds.
const SECOND: u64 = 1_000_000_000_000;
/// The longest run: a day.
const DAY: u64 = 86_400 * SECOND;
/// Longest time of the processor for a byte, in femtoseconds: 100 us, a cipher on a processor of 1990.
const PER_BYTE_MAX: u64 = 100_000_000_000;
/// A hundredfold, in parts of a million.
const HUNDREDFOLD: u64 = 100_000_000;
/// Largest window, bytes (RFC 7323 2.3).
const WINDOW_MAX: u64 = 1 << 30;

/// Overflow rules of an adapter's receive memory.
pub const OVERFLOWS: &[&str] = &["drop", "overrun", "stop-and-recover"];
/// How an adapter's receive memory is organised.
pub const MEMORIES: &[&str] = &["dp8390", "descriptors"];
/// How a host gets at the bytes of a frame.
pub const ACCESSES: &[&str] = &["memory", "port", "master"];
/// A bus that is never the limit of its master; PCI, PCI Express, PCI-X; or ISA, on which the processor moves the bytes.
pub const BUSES: &[&str] = &["unlimited", "pci", "pcie", "pci-x", "isa"];
/// Which checksums an adapter does.
pub const CHECKSUMS: &[&str] = &["off", "on", "receive", "transmit"];
/// Which processor does what: interrupts and protocol on the first, or on that of the queue, and processes on the last; all
/// by connection; or interrupts and protocol as with the first, and each process where the load is least.
pub const PLACEMENTS: &[&str] = &["pinned", "balanced", "spread"];
/// How a bus master reads over PCI: several cache lines, one, or a word or two.
pub const READ_COMMANDS: &[&str] = &["mrm", "mrl", "mr"];
/// Who encrypts.
pub const IPSECS: &[&str] = &["off", "host", "adapter"];
/// Where received frames are read out.
pub const RECEIVES: &[&str] = &["interrupt", "deferred"];
/// In which order a driver hands over a batch.
pub const ORDERS: &[&str] = &["forward", "reversed"];
/// How many may send at once.
pub const DUPLEXES: &[&str] = &["half", "full"];
/// TCP senders.
pub const VARIANTS: &[&str] = &["go-back-n", "tahoe", "reno", "new-reno", "cubic"];
/// Policies of interrupt moderation.
pub const MODERATIONS: &[&str] = &["off", "fixed-gap", "coalescing", "e1000", "net-dim", "area", "quiet-or-area"];
/// The same of completed sends: they count as frames received do, or by a rule of their own.
pub const TRANSMIT_MODERATIONS: &[&str] = &["shared", "off", "coalescing"];
/// When the next RPC is sent.
pub const ISSUES: &[&str] = &["each", "round"];
/// Who coalesces received segments: nobody, the adapter for its engine's time, or the driver for its own.
pub const COALESCES: &[&str] = &["off", "on", "host"];
/// What the host is of requests and responses.
pub const ROLES: &[&str] = &["server", "client"];
/// When requests are sent.
pub const ARRIVALS: &[&str] = &["closed", "poisson", "periodic", "bursts"];
/// How the times of an application are distributed.
pub const SERVICES: &[&str] = &["fixed", "exponential"];
/// Where raw frames go.
pub const DIRECTIONS: &[&str] = &["to-host", "from-host", "both"];
/// How long raw frames are: all alike, or as a mix has them.
pub const MIXES: &[&str] = &["single", "imix"];
/// Switches.
pub const SWITCHES: &[&str] = &["off", "on"];

const fn key(
    name: &'static str,
    dimension: Dimension,
    range: (u64, u64),
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, dimension, min: range.0, max: range.1, default, is_scaled: false, meaning }
}

const fn choice(name: &'static str, words: &'static [&'static str], meaning: &'static str) -> Key {
    key(name, Choice(words), (0, words.len() as u64 - 1), words[0], meaning)
}

const fn cost(name: &'static str, meaning: &'static str) -> Key {
    Key { is_scaled: true, ..key(name, Time, (0, SECOND), "0us", meaning) }
}

const fn cost_per_byte(name: &'static str, meaning: &'static str) -> Key {
    Key { is_scaled: true, ..key(name, TimePerByte, (0, PER_BYTE_MAX), "0ns/byte", meaning) }
}

/// All parameters, in the order in which they are shown.
pub static KEYS: &[Key] = &[
    key("host.cost_scale", Ratio, (1, HUNDREDFOLD), "100%", "all times of the processor, the bus aside, times this"),
    cost("host.interrupt_time", "an interrupt: entry, registers of the adapter, return"),
    cost("host.wake_time", "an interrupt that finds its processor idle: on top, until it is awake and warm"),
    cost("host.frame_time", "the driver, for each frame that it reads out"),
    cost("host.gro_time", "software that coalesces (`adapter.coalesce` = `host`), for each frame read out"),
    cost("host.tcp_time", "IP and TCP, for each segment received"),
    cost("host.ack_time", "an acknowledgement sent, down to the driver"),
    cost("host.ack_receive_time", "an acknowledgement received"),
    cost("host.udp_time", "IP and UDP, for each frame received, and for each request sent"),
    cost("host.rpc_time", "a remote procedure call, request and reply together, without its bytes"),
    cost("host.read_time", "a process that reads, for each piece of `host.read_chunk`"),
    key(
        "host.read_chunk",
        Bytes,
        (64, 65_536),
        "1460byte",
        "piece in which the kernel hands data over to a process: a segment",
    ),
    cost("host.write_time", "a process that writes, for each write"),
    cost("host.segment_time", "TCP, IP and the driver, for each frame's worth sent"),
    cost("host.chunk_time", "TCP, IP and the driver, for each large send that the adapter segments"),
    cost("host.page_time", "the same, for each page of 4 KiB of it: mapped, and described to the adapter"),
    cost("host.completion_time", "the driver, for each send that the adapter has completed"),
    cost("host.register_time", "a register of the adapter written, for each frame sent: posted in memory, or a port"),
    Key {
        default: "1us",
        ..cost(
            "host.route_time",
            "IP and the output queue, for each frame that is forwarded, without the driver that has read it out",
        )
    },
    cost_per_byte("host.copy_time", "a byte copied between a process and the kernel"),
    cost_per_byte(
        "host.write_copy_time",
        "a byte of a process copied into the kernel to be sent; 0: sent from where it is",
    ),
    cost_per_byte("host.checksum_time", "checksum of a byte by the processor, the instructions"),
    cost_per_byte("host.checksum_miss_time", "the same, what it waits for the byte to come into the cache"),
    key(
        "host.receive_miss",
        Ratio,
        (0, 1_000_000),
        "100%",
        "share of those waits that remain on receiving: the copy finds in the cache what the checksum has fetched",
    ),
    cost_per_byte("host.crypt_time", "a byte encrypted or decrypted, and authenticated, by the processor"),
    key("host.processors", Count("processor"), (1, 64), "1processor", "processors"),
    choice("host.placement", PLACEMENTS, "which processor does what"),
    Key { default: "reno", ..choice("host.tcp", VARIANTS, "how the host's TCP answers to loss") },
    key("host.rto_min", Time, (1_000, 3600 * SECOND), "200ms", "shortest time until the host's TCP retransmits"),
    key(
        "host.initial_window",
        Count("segment"),
        (1, 1000),
        "2segment",
        "segments that the host sends before the first acknowledgement",
    ),
    key(
        "host.send_buffer",
        Bytes,
        (1460, WINDOW_MAX),
        "128KiB",
        "bytes that a process may write before they are acknowledged; over UDP, before their completion is processed",
    ),
    choice("host.capture", SWITCHES, "whether a capture runs: the stack then verifies every checksum itself"),
    key(
        "host.receive_window",
        Bytes,
        (1460, WINDOW_MAX),
        "32KiB",
        "receive buffer of a TCP connection, or of a UDP socket",
    ),
    key("host.segments_per_ack", Count("segment"), (1, 64), "2segment", "segments that one acknowledgement answers"),
    key("host.delayed_ack_time", Time, (0, SECOND), "200ms", "longest that an acknowledgement waits"),
    key(
        "host.mask_interval",
        Time,
        (0, 3600 * SECOND),
        "0us",
        "mean time between moments at which interrupts are shut out; 0: never",
    ),
    key("host.mask_time", Time, (0, SECOND), "0us", "how long interrupts are shut out"),
    choice("host.receive", RECEIVES, "where frames are read out: in the handler, or deferred (DPC, softirq)"),
    key(
        "host.poll_interval",
        Time,
        (0, SECOND),
        "0us",
        "interval at which a driver polls for frames, whatever the interrupts say; 0: it waits for interrupts",
    ),
    key(
        "host.poll_budget",
        Count("frame"),
        (0, 65_536),
        "0frame",
        "frames that a deferred driver takes at once; while more wait it polls on without interrupts, in turn with processes; 0: \
         it takes all, before any process",
    ),
    key(
        "host.backlog",
        Count("frame"),
        (1, 1 << 20),
        "1000frame",
        "frames that wait on a processor between interrupt handler and protocol, at most: netdev_max_backlog, ipintrq",
    ),
    key(
        "host.output_queue",
        Count("frame"),
        (0, 1 << 20),
        "1000frame",
        "raw frames that wait for room in a transmit ring, at most: txqueuelen",
    ),
    key(
        "host.poll_weight",
        Count("frame"),
        (0, 65_536),
        "0frame",
        "frames that a deferred driver takes before other queues of its processor have their turn; a poll that finds fewer is \
         complete. 64 in Linux; 0: as many as the budget says, and the poll is complete when none is left",
    ),
    key(
        "host.defer_hard_irqs",
        Count("poll"),
        (0, 1000),
        "0poll",
        "polls without a frame, each begun by the timer of `host.gro_flush_timeout`, until interrupts are on again \
         (`napi_defer_hard_irqs`)",
    ),
    key(
        "host.gro_flush_timeout",
        Time,
        (0, SECOND),
        "0us",
        "after a poll: until a timer begins the next one; software holds aggregates meanwhile. 0: no timer",
    ),
    key("host.busy_poll", Time, (0, SECOND), "0us", "how long a process that has nothing to do polls before it sleeps"),
    Key { default: "200ns", ..cost("host.poll_time", "a poll of such a process that finds nothing") },
    key(
        "host.irq_suspend_timeout",
        Time,
        (0, SECOND),
        "0us",
        "longest that interrupts are off while a process works on what it has polled; 0: they are on meanwhile",
    ),
    choice("host.order", ORDERS, "in which order a deferred driver hands over a batch"),
    choice("adapter.memory_kind", MEMORIES, "how the receive memory is organised"),
    key("adapter.memory", Bytes, (3584, 1 << 30), "8KiB", "memory of a card with a DP8390, both directions together"),
    key("adapter.receive_descriptors", Count("frame"), (1, 1 << 20), "256frame", "descriptors of the receive ring"),
    key("adapter.transmit_descriptors", Count("frame"), (1, 1 << 20), "256frame", "descriptors of the transmit ring"),
    key(
        "adapter.queues",
        Count("queue"),
        (1, 64),
        "1queue",
        "pairs of a receive and a transmit ring, each with its moderation and the interrupt of a processor; a hash says which",
    ),
    choice("adapter.overflow", OVERFLOWS, "which frame is lost when there is no room"),
    key(
        "adapter.recover_time",
        Time,
        (1_000, 10 * SECOND),
        "10ms",
        "how long a card is stopped after its ring ran over",
    ),
    choice("adapter.access", ACCESSES, "how the host gets at the bytes of a frame"),
    key("adapter.transfer_width", Bytes, (1, 64), "1byte", "bytes that one transfer on the bus moves"),
    key("adapter.transfer_cycles", Count("cycle"), (1, 1000), "6cycle", "cycles of the bus that one transfer takes"),
    key("adapter.recovery_cycles", Count("cycle"), (0, 1000), "0cycle", "cycles of the bus between two transfers"),
    key(
        "adapter.contention",
        Ratio,
        (1_000_000, HUNDREDFOLD),
        "100%",
        "transfers take this much of their time, because the controller fills the same memory",
    ),
    choice("adapter.checksum", CHECKSUMS, "which checksums the adapter verifies and writes"),
    choice("adapter.read_command", READ_COMMANDS, "by which command the adapter reads over PCI"),
    choice("adapter.lso", SWITCHES, "whether the adapter segments large sends"),
    choice(
        "adapter.coalesce",
        COALESCES,
        "whether segments of a connection that wait together are handed over as one: by the adapter, or by the host's driver",
    ),
    key(
        "adapter.coalesce_segments",
        Count("segment"),
        (2, 65_535),
        "65535segment",
        "segments that are coalesced at most; 64 KiB are the limit besides",
    ),
    choice("adapter.ipsec", IPSECS, "who encrypts what `workload.encrypted` says"),
    key(
        "adapter.crypt_rate",
        BitRate,
        (1_000, 1_000_000_000_000),
        "1000Gbit/s",
        "what the adapter encrypts and decrypts per second",
    ),
    key("adapter.segment_time", Time, (0, SECOND), "0ns", "the adapter's engine, for each frame that it sends"),
    key(
        "adapter.gap",
        Time,
        (0, SECOND),
        "0us",
        "from the end of one frame until the adapter can begin the next one; the link's gap at least",
    ),
    key("adapter.receive_time", Time, (0, SECOND), "0ns", "the adapter's engine, for each frame that it receives"),
    key(
        "adapter.receive_fifo",
        Bytes,
        (FRAME_LEN_MIN, 1 << 30),
        "64KiB",
        "frames that wait on the adapter, each of them whole, for the bus to the host",
    ),
    key(
        "adapter.transmit_fifo",
        Bytes,
        (FRAME_LEN_MIN, 1 << 30),
        "64KiB",
        "frames that wait on the adapter, each of them whole, for the line",
    ),
    key(
        "adapter.cut_through",
        Bytes,
        (0, 65_536),
        "0byte",
        "bytes of a frame that must have come before its way over the bus begins; 0: all",
    ),
    key(
        "adapter.buffer",
        Bytes,
        (64, 65_536),
        "2KiB",
        "bytes of a receive buffer: a frame takes as many descriptors as buffers",
    ),
    key("adapter.descriptor", Bytes, (4, 128), "16byte", "bytes of a descriptor"),
    key("adapter.descriptor_fetch", Count("descriptor"), (1, 256), "1descriptor", "descriptors that are read at once"),
    key(
        "adapter.descriptor_write_back",
        Count("descriptor"),
        (1, 256),
        "1descriptor",
        "descriptors that are written back at once",
    ),
    key(
        "adapter.verdict_fault",
        Count("segment"),
        (0, 1 << 30),
        "0segment",
        "segments of a stream for each one that the adapter reports as bad, each time that it comes; 0: none",
    ),
    key(
        "adapter.segment_chunk",
        Bytes,
        (1_460, 65_400),
        "64000byte",
        "bytes that the host hands down in one piece at most, where the adapter segments large sends",
    ),
    choice("adapter.moderation", MODERATIONS, "when the host is interrupted for frames that wait"),
    key(
        "adapter.interrupt_rate",
        Count("interrupt/s"),
        (1, 1_000_000),
        "8000interrupt/s",
        "interrupts per second at most, where moderation is a fixed gap",
    ),
    key(
        "adapter.interrupt_wait",
        Time,
        (1_000_000, SECOND),
        "50us",
        "longest that the first frame waits, where moderation is coalescing; in whole microseconds",
    ),
    key(
        "adapter.interrupt_frames",
        Count("frame"),
        (1, 1_000_000),
        "32frame",
        "frames that wait at most, where moderation is coalescing",
    ),
    choice("adapter.transmit_moderation", TRANSMIT_MODERATIONS, "when the host is interrupted for completed sends"),
    key(
        "adapter.transmit_wait",
        Time,
        (1_000_000, SECOND),
        "50us",
        "longest that the first completed send waits, where `adapter.transmit_moderation` is coalescing; in whole microseconds",
    ),
    key(
        "adapter.transmit_frames",
        Count("frame"),
        (1, 1_000_000),
        "32frame",
        "completed sends that wait at most, where `adapter.transmit_moderation` is coalescing",
    ),
    key(
        "bus.clock",
        Frequency,
        (100_000, 200_000_000_000),
        "8MHz",
        "clock of the bus; PCI Express: transfers per second",
    ),
    choice("bus.kind", BUSES, "the bus: ISA for a card whose bytes the processor moves, another for a bus master"),
    key("bus.width", Bytes, (1, 64), "4byte", "PCI, PCI-X: bytes of a data phase"),
    key(
        "bus.overhead",
        Count("cycle"),
        (0, 1000),
        "20cycle",
        "PCI: clocks of a transaction in which no data move; PCI-X: the same, without its attribute phase",
    ),
    key("bus.wait_states", Count("cycle"), (0, 100), "0cycle", "PCI: clocks that a data phase waits"),
    key("bus.burst", Bytes, (4, 1 << 20), "4KiB", "PCI: longest burst; PCI-X: bursts end at 128 bytes"),
    key(
        "bus.cache_line",
        Bytes,
        (16, 256),
        "32byte",
        "PCI: bytes of a cache line; PCI Express: a transfer moves whole ones",
    ),
    key("bus.lanes", Count("lane"), (1, 32), "8lane", "PCI Express: lanes; the clock is transfers per second"),
    key("bus.payload", Bytes, (128, 4096), "256byte", "PCI Express: largest payload of a packet"),
    key(
        "bus.read_request",
        Bytes,
        (128, 4096),
        "512byte",
        "PCI Express: largest read request; PCI-X: largest memory read byte count",
    ),
    key("bus.completion", Bytes, (64, 4096), "256byte", "PCI Express: largest completion"),
    key("bus.read_latency", Time, (0, SECOND), "600ns", "PCI Express, PCI-X: from a read request to its data"),
    key("bus.write_latency", Time, (0, SECOND), "300ns", "PCI Express: from a write until the host sees it"),
    key(
        "bus.outstanding_reads",
        Count("request"),
        (1, 1 << 16),
        "32request",
        "PCI Express, PCI-X: read requests under way at once",
    ),
    key(
        "bus.read_time",
        Time,
        (0, SECOND),
        "0ns",
        "PCI Express: the adapter's engine for each read request, beside its bytes",
    ),
    key(
        "bus.write_time",
        Time,
        (0, SECOND),
        "0ns",
        "PCI Express: the adapter's engine for each write, beside its bytes",
    ),
    key("bus.write_interval", Time, (0, SECOND), "0ns", "PCI Express: shortest time between two writes"),
    key(
        "bus.posted_credit",
        Bytes,
        (0, 1 << 30),
        "0byte",
        "PCI Express: posted bytes before credits come back; 0: no limit",
    ),
    key("bus.credit_latency", Time, (0, SECOND), "0ns", "PCI Express: from a posted write until its credits are back"),
    choice("bus.ecrc", SWITCHES, "PCI Express: whether packets carry an end-to-end CRC"),
    choice("bus.iommu", SWITCHES, "whether addresses are translated"),
    key("bus.iotlb", Count("entry"), (1, 1 << 20), "64entry", "translations that the IOMMU holds"),
    key("bus.page", Bytes, (4096, 1 << 30), "4KiB", "bytes of a page"),
    key("bus.window", Bytes, (4096, 1 << 40), "1MiB", "memory that the adapter's buffers cover"),
    key("bus.walk_time", Time, (0, SECOND), "330ns", "a walk through the tables of the IOMMU"),
    key("bus.walkers", Count("walk"), (1, 1024), "6walk", "walks at once"),
    key("bus.reliable_clock", Frequency, (100_000, 200_000_000_000), "200GHz", "clock above which most cards fail"),
    key("link.rate", BitRate, (1_000, 1_000_000_000_000), "10Mbit/s", "bits per second"),
    choice("link.duplex", DUPLEXES, "whether both ends may send at once"),
    key("link.delay", Time, (0, SECOND), "5us", "from one end to the other"),
    key(
        "link.hop_rate",
        BitRate,
        (0, 1_000_000_000_000),
        "0bit/s",
        "rate of a slower link behind a router, between the peer and this link; 0: no router",
    ),
    key("peer.gap", Time, (0, SECOND), "9.6us", "time between two frames of the peer"),
    key("peer.turnaround_time", Time, (0, SECOND), "0us", "from a frame that reaches the peer until it answers"),
    choice("peer.tcp", VARIANTS, "how the peer's TCP answers to loss"),
    key("peer.rto_min", Time, (1_000, 3600 * SECOND), "1s", "shortest time until the peer's TCP retransmits"),
    key("peer.receive_window", Bytes, (1460, WINDOW_MAX), "64KiB", "receive buffer of the peer"),
    key(
        "peer.segments_per_ack",
        Count("segment"),
        (1, 64),
        "2segment",
        "segments that one acknowledgement of the peer answers",
    ),
    key("peer.delayed_ack_time", Time, (0, SECOND), "200ms", "longest that an acknowledgement of the peer waits"),
    key(
        "peer.initial_window",
        Count("segment"),
        (1, 1000),
        "1segment",
        "segments that the peer sends before the first acknowledgement, where its TCP has slow start",
    ),
    key(
        "peer.service_time",
        Time,
        (0, 3600 * SECOND),
        "0us",
        "from a request that reaches the peer until its reply is there",
    ),
    key("workload.mss", Bytes, (1, 65_535), "1460byte", "payload of a full segment"),
    key("workload.tcp_options", Bytes, (0, 40), "0byte", "options in every TCP header; timestamps are 12"),
    key(
        "workload.write_size",
        Bytes,
        (1, 1 << 20),
        "8KiB",
        "bytes of a write, or of a UDP datagram; the default of ttcp",
    ),
    key(
        "workload.encrypted",
        Ratio,
        (0, 1_000_000),
        "100%",
        "share of the bytes that is encrypted, where `adapter.ipsec` is not off",
    ),
    key("workload.flows", Count("flow"), (1, 64), "1flow", "connections at once, in each direction"),
    key(
        "workload.read_size",
        Bytes,
        (1, 1 << 20),
        "8KiB",
        "bytes that the receiving process asks for at once; the default of ttcp",
    ),
    key(
        "workload.rate",
        BitRate,
        (0, 1_000_000_000_000),
        "0bit/s",
        "payload that the sending application writes; 0: as much as it can",
    ),
    key("workload.rpc_size", Bytes, (1, 60_000), "8KiB", "data of one NFS read"),
    key("workload.rpc_outstanding", Count("request"), (1, 64), "4request", "reads that are under way at once"),
    choice(
        "workload.rpc_issue",
        ISSUES,
        "when the next read is asked for: as each one is answered, or all at once when all are",
    ),
    key(
        "workload.rpc_timer",
        Time,
        (1_000_000, 3600 * SECOND),
        "700ms",
        "time until a request is sent again; it doubles with each try",
    ),
    choice("workload.role", ROLES, "what the host is of requests and responses"),
    key("workload.request_size", Bytes, (1, 60_000), "1byte", "data of a request, or of a datagram that is received"),
    key("workload.response_size", Bytes, (1, 60_000), "1byte", "data of a response"),
    choice(
        "workload.arrivals",
        ARRIVALS,
        "when requests are sent: as responses come, or by a rate whatever is under way; datagrams without a response come \
         periodically where this is closed",
    ),
    key(
        "workload.outstanding",
        Count("request"),
        (1, 1024),
        "1request",
        "requests of a connection under way at once, where arrivals are closed",
    ),
    key(
        "workload.request_rate",
        Count("request/s"),
        (1, 1_000_000_000),
        "10000request/s",
        "requests, datagrams or frames per second over all connections of a direction, where arrivals are not closed",
    ),
    key(
        "workload.burst",
        Count("request"),
        (1, 65_536),
        "32request",
        "requests, datagrams or frames of a burst, which are due at once",
    ),
    choice("workload.direction", DIRECTIONS, "which way raw frames go; both: each at the rate"),
    choice(
        "workload.frame_mix",
        MIXES,
        "whether raw frames are all of `workload.frame_size`, or 64, 594 and 1518 bytes as 7:4:1",
    ),
    key(
        "workload.frame_size",
        Bytes,
        (FRAME_LEN_MIN + FCS_LEN, 65_535),
        "64byte",
        "bytes of a raw frame, FCS included",
    ),
    choice(
        "workload.service",
        SERVICES,
        "whether the application takes `host.rpc_time` for every request, or exponentially distributed times of that mean",
    ),
    key("workload.warmup", Time, (0, DAY), "1s", "time before anything is counted"),
    key("workload.time", Time, (1_000_000, DAY), "10s", "time that is counted"),
    key("workload.seed", Count("seed"), (0, u64::MAX), "1seed", "start of the generator of random numbers"),
];

/// The parameter of a name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The parameter of a name.
///
/// # Errors
/// In words, with the nearest name.
pub fn known(name: &str) -> Result<&'static Key, String> {
    find(name).ok_or_else(|| {
        let (section, own) = name.split_once('.').unwrap_or(("", name));
        // The right name without its section, or in another one.
        let ends: Vec<_> =
            KEYS.iter().map(|key| key.name).filter(|of| of.split_once('.').is_some_and(|(_, of)| of == own)).collect();
        let mut names = names_of(section);
        if names.is_empty() {
            names = KEYS.iter().map(|key| key.name).collect();
        }
        match ends.as_slice() {
            [] => format!("there is no such parameter{}", nearest(name, &names)),
            _ => format!("there is no such parameter; did you mean {}?", ends.join(" or ")),
        }
    })
}

/// The names of all parameters of a section.
pub fn names_of(section: &str) -> Vec<&'static str> {
    let is_of = |name: &&str| name.split_once('.').is_some_and(|(of, _)| of == section);
    KEYS.iter().map(|key| key.name).filter(is_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_in_its_range_and_every_name_is_there_once() {
        for (at, key) in KEYS.iter().enumerate() {
            let (number, unit) =
                if matches!(key.dimension, Choice(_)) { (key.default, "") } else { split(key.default) };
            let value = key.dimension.value(number, unit).unwrap_or_else(|why| panic!("{}: {why}", key.name));
            assert!((key.min..=key.max).contains(&value), "{}", key.name);
            assert!(KEYS[at + 1..].iter().all(|other| other.name != key.name), "{}", key.name);
            let section = key.name.split_once('.').unwrap().0;
            assert!(SECTIONS.contains(&section), "{}", key.name);
        }
    }
}

//! An association's receiver on a hostile wire.
//!
//! An input is not a frame, but the association's parameters and a list of events: the sender seals a packet, or a
//! packet arrives, unchanged or changed on the wire. So most inputs contain genuine packets, and reach the code before
//! and after the check of the check value.

use super::Input;
use super::packet::{DESTINATION, FRAGMENT, HOP_BY_HOP, Packet, pattern};
use offramp_offload::checksum;
use offramp_offload::esp::{
    Arrival, EspPacket, Lifetime, Mode, Opened, OutboundSa, Prefix, Refused, RefusedCounts, SaConfig, SaTable,
    SecretKey, Selector, SharedInbound, Suite, Tunnel, UDP_ENCAPSULATION_PORT, UdpPorts,
};
use offramp_offload::frame::Frame;
use offramp_offload::layout::{FrameLayout, Malformed, Network};
use std::collections::HashSet;
use std::net::IpAddr;

/// SPI of the association.
pub const SPI: u32 = 0x100;
/// Suites, one for each kind of protection.
const SUITES: [&str; 6] =
    ["aes128gcm16", "chacha20poly1305-iiv", "aes128gmac", "aes128-sha256", "null-sha1", "3des-sha1"];
const WINDOWS: [u32; 4] = [32, 64, 1024, 4096];
/// Maximum number of events in one input. More events would only make a test run longer.
const EVENTS_MAX: usize = 64;
/// Length of the check value of HMAC-SHA-1-96 in bytes.
const SHA1_ICV_LEN: usize = 12;
/// Length of SPI and sequence number in bytes.
const ESP_HEADER_LEN: usize = 8;

fn key(len: usize, first: u8) -> SecretKey {
    SecretKey::new(key_bytes(len, first))
}

fn key_bytes(len: usize, first: u8) -> Vec<u8> {
    (0..len as u8).map(|n| first.wrapping_add(n.wrapping_mul(7))).collect()
}

/// Makes the association. The association's tunnels have the addresses of the packets inside, so that a packet of one
/// mode can reach a receiver of another mode.
fn association(input: &mut Input) -> SaConfig {
    let end4 = |n| IpAddr::from([10, 9, 0, n]);
    let end6 = |n| IpAddr::from([0xfd09, 0, 0, 0, 0, 0, 0, n]);
    let suite = Suite::by_name(SUITES[usize::from(input.byte()) % SUITES.len()]).unwrap();
    let modes =
        [Mode::Transport, Mode::Tunnel(Tunnel::new(end4(1), end4(2))), Mode::Tunnel(Tunnel::new(end6(1), end6(2)))];
    let mode = modes[usize::from(input.byte()) % modes.len()];
    let flags = input.byte();
    let is = |bit: u8| flags >> bit & 1 == 1;
    let keys = (key(suite.encryption_key_len(), 3), key(suite.integrity_key_len(), 101));
    let mut config = SaConfig { legacy: true, mode, ..SaConfig::new(SPI, suite, keys.0, keys.1) };
    config.esn = is(0);
    config.udp = is(1).then(UdpPorts::default);
    config.replay_window = WINDOWS[usize::from(flags >> 2 & 3)];
    // Start near the end of 32-bit sequence numbers.
    config.sequence = if is(4) { u64::from(u32::MAX) - 20 } else { 0 };
    if is(5) {
        config.lifetime = Lifetime { soft_packets: Some(2), hard_packets: Some(4), ..Lifetime::default() };
    }
    if is(6) {
        config.selector = Selector { source: Prefix::new(end4(0), 24), protocol: Some(6), ..Selector::default() };
    }
    config.destination = is(7).then(|| end4(2));
    config
}

/// A genuine packet from a sender of the association.
struct Genuine {
    /// Frame on the wire.
    frame: Vec<u8>,
    /// All bytes covered by the check value, and the check value.
    esp: Vec<u8>,
    /// Expected bytes after the IP header of the clear packet, if known.
    clear: Option<Vec<u8>>,
}

fn layout(frame: &[u8]) -> Result<FrameLayout, Malformed> {
    Frame::received(&mut frame.to_vec()).layout().copied()
}

/// Returns the layout of a frame from the wire, and the ESP packet in it.
fn esp_of(frame: &[u8]) -> Option<(FrameLayout, EspPacket)> {
    let layout = layout(frame).ok()?;
    match Arrival::of(&Frame::received(&mut frame.to_vec()), Some(UDP_ENCAPSULATION_PORT)) {
        Ok(Arrival::Esp(packet)) => Some((layout, packet)),
        _ => None,
    }
}

fn transport_of<'a>(frame: &'a [u8], layout: &FrameLayout) -> &'a [u8] {
    &frame[layout.transport_start..layout.packet_end]
}

/// Recomputes the IPv4 header checksum, as a router or an attacker does.
fn repair_header(frame: &mut [u8]) {
    let Ok(layout) = layout(frame) else { return };
    if layout.network != Network::Ipv4 {
        return;
    }
    let at = layout.network_start;
    let end = at + usize::from(frame[at] & 0xf) * 4;
    frame[at + 10..at + 12].fill(0);
    let sum = checksum::sum(&frame[at..end]).checksum();
    frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Sets the packet's length fields to the length of the frame.
fn repair_lengths(frame: &mut [u8], of: &FrameLayout, is_encapsulated: bool) {
    let (at, len) = (of.network_start, frame.len() - of.network_start);
    match of.network {
        Network::Ipv4 => frame[at + 2..at + 4].copy_from_slice(&(len as u16).to_be_bytes()),
        _ => frame[at + 4..at + 6].copy_from_slice(&(len.saturating_sub(40) as u16).to_be_bytes()),
    }
    let udp_at = of.transport_start;
    if is_encapsulated && frame.len() >= udp_at + 8 {
        let udp_len = (frame.len() - udp_at) as u16;
        frame[udp_at + 4..udp_at + 6].copy_from_slice(&udp_len.to_be_bytes());
    }
    repair_header(frame);
}

/// Builds a clear frame of a kind selected by the input.
fn clear_frame(input: &mut Input) -> Vec<u8> {
    let kind = input.byte();
    let is = |bit: u8| kind >> bit & 1 == 1;
    let (class, len) = (input.byte(), input.word());
    let len = usize::from(if len & 0xf000 == 0 { len } else { len % 64 });
    let mut packet = Packet { is_ipv6: is(0), is_udp: is(1), class, ..Packet::tcp(len) };
    if is(2) {
        packet.tags.push((0x8100, 7));
    }
    if is(3) {
        packet.fragment = if is(4) { 0x2000 } else { 0x4000 };
        packet.extensions = vec![(FRAGMENT, vec![0, 0, u8::from(is(4)), 0, 0, 0, 9])];
    } else if is(4) {
        packet.ip_options = vec![1; 4];
        packet.extensions = vec![(HOP_BY_HOP, vec![0, 1, 4, 0, 0, 0, 0]), (DESTINATION, vec![0, 1, 4, 0, 0, 0, 0])];
    }
    if is(5) {
        packet.ports.0 = u16::from(input.byte()) * 16;
    }
    packet.payload = if is(6) { input.bytes().to_vec() } else { pattern(u32::from(class), len) };
    packet.padding = if is(7) { 6 } else { 0 };
    packet.build()
}

/// Returns a packet with the given protocol and body.
fn any_packet(protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Packet { payload: body.to_vec(), ..Packet::udp(0) }.build();
    // Remove the UDP header before the body.
    frame.drain(34..42);
    frame[23] = protocol;
    let len = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    repair_header(&mut frame);
    frame
}

/// The sender and the receiver of the association, and the wire between sender and receiver.
struct Bench {
    config: SaConfig,
    sender: OutboundSa,
    table: SaTable,
    /// Receiver shared by threads, which must return the same results as the receiver for one thread.
    shared: SharedInbound,
    sent: Vec<Genuine>,
    taken: HashSet<u64>,
    offered: u64,
    opened: u64,
}

impl Bench {
    fn new(config: SaConfig) -> Self {
        let mut table = SaTable::new();
        table.insert(&config).unwrap();
        Self {
            // The sender has no lifetime limits, because the test checks the limits of the receiver.
            sender: OutboundSa::new(&SaConfig { lifetime: Lifetime::default(), ..config.clone() }).unwrap(),
            shared: SharedInbound::new(&config).unwrap(),
            table,
            config,
            sent: Vec::new(),
            taken: HashSet::new(),
            offered: 0,
            opened: 0,
        }
    }

    /// Returns a sender that continues `skipped` packets after the association's sender.
    fn sender_at(&self, mode: Mode, skipped: u64) -> Option<OutboundSa> {
        let sequence = self.sender.sequence().saturating_add(skipped);
        let config = SaConfig { mode, sequence, lifetime: Lifetime::default(), ..self.config.clone() };
        OutboundSa::new(&config).ok()
    }

    fn seal(&mut self, frame: &[u8]) {
        let Some(genuine) = sealed(&mut self.sender, frame, true) else { return };
        self.sent.push(genuine);
    }

    /// Seals `body` with the next header `protocol`. Replaces the trailer by `trailer` if the test can forge packets of
    /// the suite.
    fn seal_body(&mut self, protocol: u8, body: &[u8], trailer: Option<&[u8]>) {
        let Some(mut sender) = self.sender_at(Mode::Transport, 0) else { return };
        let Some(mut genuine) = sealed(&mut sender, &any_packet(protocol, body), false) else { return };
        if let Some(trailer) = trailer.filter(|_| self.config.suite.to_string() == "null-sha1") {
            self.put_trailer(&mut genuine, trailer, sender.sequence());
        }
        self.sent.push(genuine);
        self.skip(1);
    }

    /// Writes `trailer` to the end of the packet's body, and a matching check value.
    fn put_trailer(&self, genuine: &mut Genuine, trailer: &[u8], sequence: u64) {
        let Some((layout, packet)) = esp_of(&genuine.frame) else { return };
        let keep = (layout.packet_end - SHA1_ICV_LEN).saturating_sub(trailer.len());
        let frame = &mut genuine.frame;
        frame.truncate(keep.max(packet.esp_at + ESP_HEADER_LEN));
        frame.extend_from_slice(trailer);
        let high = ((sequence >> 32) as u32).to_be_bytes();
        let covered = [&frame[packet.esp_at..], if self.config.esn { &high[..] } else { &[] }].concat();
        let key = key_bytes(self.config.suite.integrity_key_len(), 101);
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &key);
        frame.extend_from_slice(&aws_lc_rs::hmac::sign(&key, &covered).as_ref()[..SHA1_ICV_LEN]);
        repair_lengths(frame, &layout, packet.is_encapsulated);
        genuine.esp = frame[packet.esp_at..].to_vec();
    }

    fn skip(&mut self, numbers: u64) {
        if let Some(sender) = self.sender_at(self.config.mode, numbers) {
            self.sender = sender;
        }
    }

    /// Returns one of the sent packets, selected by the input.
    fn pick(&self, input: &mut Input) -> Option<Vec<u8>> {
        let at = usize::from(input.byte()).checked_rem(self.sent.len())?;
        // Index 0 means the last packet.
        Some(self.sent[self.sent.len() - 1 - at].frame.clone())
    }

    /// Executes one event of the input.
    fn happens(&mut self, input: &mut Input) {
        match input.byte() % 9 {
            0 => self.offer(input.bytes()),
            1 => {
                let frame = clear_frame(input);
                self.seal(&frame);
            }
            2 => {
                let frame = input.bytes();
                self.seal(frame);
            }
            3 => self.seal_body(input.byte(), input.bytes(), None),
            4 => self.seal_body(input.byte(), input.bytes(), Some(input.bytes())),
            5 => self.skip(u64::from(input.word())),
            6 => {
                if let Some(frame) = self.pick(input) {
                    self.offer(&frame);
                }
            }
            7 => {
                if let Some(frame) = self.pick(input) {
                    self.offer(&tampered(frame, input));
                }
            }
            _ => {
                if let Some(frame) = self.pick(input) {
                    self.offer(&with_another_length(frame, input));
                }
            }
        }
    }

    /// Passes a frame to the receiver. The frame must either be delivered once, or be counted once as refused. A
    /// delivered frame must equal a sent packet, and each sent packet must be delivered at most once. A delivered frame
    /// must lie inside the original frame and have a correct layout.
    fn offer(&mut self, line: &[u8]) {
        let mut frame = line.to_vec();
        let mut opening = Frame::received(&mut frame);
        let Ok(&line_layout) = opening.layout() else { return };
        let packet = match Arrival::of(&opening, Some(UDP_ENCAPSULATION_PORT)) {
            Ok(Arrival::Esp(packet)) => packet,
            Ok(_) => return,
            Err(reason) => {
                self.offered += 1;
                return self.table.count(reason);
            }
        };
        self.offered += 1;
        let mut twin = line.to_vec();
        let judged = self.table.open(&mut opening, &packet);
        let opened_layout = opening.layout().copied();
        self.judge_shared(&mut twin, &packet, judged, &frame);
        if let Ok(opened) = judged {
            self.opened += 1;
            assert!(self.taken.insert(opened.sequence), "{opened:?} was taken before");
            let clear = &frame[opened.start..opened.end];
            assert_eq!(layout(clear), Ok(opened.layout));
            assert_eq!(opened_layout, Ok(opened.layout));
            self.judge_genuine(&line[packet.esp_at..line_layout.packet_end], clear, &opened);
        }
    }

    /// Checks that threads with a shared association get the same result as one thread.
    fn judge_shared(&self, frame: &mut [u8], packet: &EspPacket, judged: Result<Opened, Refused>, expected: &[u8]) {
        let mut opening = Frame::received(frame);
        let opened = if packet.spi == SPI && self.shared.opener().is_addressed(&opening) {
            self.shared.open(&mut opening, packet)
        } else {
            Err(Refused::UnknownSpi)
        };
        assert_eq!(opened, judged);
        if let Ok(opened) = opened {
            assert_eq!(frame[opened.start..opened.end], expected[opened.start..opened.end]);
        }
        assert_eq!(self.shared.highest(), self.table.get(SPI).unwrap().window().highest());
    }

    fn judge_genuine(&self, esp: &[u8], clear: &[u8], opened: &Opened) {
        let genuine = self.sent.iter().find(|genuine| genuine.esp == esp).expect("what was never sent is never taken");
        let transport = transport_of(clear, &opened.layout);
        if let Some(sent) = &genuine.clear {
            // UDP has a length field, and the remaining bytes are padding.
            assert!(sent.starts_with(transport), "{opened:?}");
        }
    }
}

/// Seals a frame. The clear bytes are known if receiver and sender have the same mode.
fn sealed(sender: &mut OutboundSa, frame: &[u8], is_own_mode: bool) -> Option<Genuine> {
    let mut copy = frame.to_vec();
    let clear = Frame::received(&mut copy);
    let layout = *clear.layout().ok()?;
    let mut out = vec![0; sender.sealed_len(&clear).ok()?];
    let sealed = sender.seal(&clear, &mut out).ok()?;
    assert_eq!((sealed.start, sealed.end), (0, out.len()));
    let (line, packet) = esp_of(&out).expect("what was sealed is ESP");
    let esp = out[packet.esp_at..line.packet_end].to_vec();
    let clear = is_own_mode.then(|| transport_of(frame, &layout).to_vec());
    Some(Genuine { frame: out, esp, clear })
}

/// Changes some bytes of the frame, and can repair the IP header checksum.
fn tampered(mut frame: Vec<u8>, input: &mut Input) -> Vec<u8> {
    let how = input.byte();
    for _ in 0..=how & 1 {
        let at = usize::from(input.word()) % frame.len();
        frame[at] ^= input.byte();
    }
    if how & 2 != 0 {
        // Mark congestion.
        match layout(&frame).map(|layout| (layout.network, layout.network_start)) {
            Ok((Network::Ipv4, at)) => frame[at + 1] |= 3,
            Ok((Network::Ipv6, at)) => frame[at + 1] |= 0x30,
            _ => {}
        }
    }
    if how & 4 == 0 {
        repair_header(&mut frame);
    }
    frame
}

/// Truncates or extends the frame, with or without adjusting the headers.
fn with_another_length(mut frame: Vec<u8>, input: &mut Input) -> Vec<u8> {
    let (how, len) = (input.byte(), usize::from(input.word()));
    let Some((layout, packet)) = esp_of(&frame) else { return frame };
    let len = if how & 2 == 0 { len % (frame.len() + 1) } else { frame.len() + len % 64 };
    frame.resize(len, how);
    if how & 1 == 0 && len > layout.transport_start {
        repair_lengths(&mut frame, &layout, packet.is_encapsulated);
    }
    frame
}

/// Runs an input. Returns the number of opened packets, and the counts of refused packets.
pub fn esp(bytes: &[u8]) -> (u64, RefusedCounts) {
    let mut input = Input(bytes);
    let mut bench = Bench::new(association(&mut input));
    for _ in 0..EVENTS_MAX {
        if input.is_over() {
            break;
        }
        bench.happens(&mut input);
    }
    assert_eq!(bench.offered, bench.opened + bench.table.refused().total());
    (bench.opened, *bench.table.refused())
}

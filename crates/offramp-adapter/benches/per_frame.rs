//! Measures the cost that a rate limit, port security and a VLAN add to each passed frame.
//!
//! `cargo bench -p offramp-adapter --bench per_frame` sends frames through a queue pair in four configurations. The
//! configurations are: none of these features, a rate limit that is never reached, bound addresses, and an access VLAN.
//! The configurations take turns, one sample each. The frames are sent to a line that discards frames, and to a line
//! that loops frames back. The program prints medians, and the extra cost of each feature. With `--test`, the program
//! does hardly any work, and the figures are meaningless.

use offramp_adapter::config::AdapterConfig;
use offramp_adapter::limit::{BITS_PER_SECOND, FRAMES_PER_SECOND, PortLimits, RateLimit};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{Arrival, HostPort, InPlace, Loan, PortError, WirePort};
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::vlan::PortVlans;
use offramp_offload::caps::Offloads;
use offramp_offload::esp::Prefix;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::{PartialChecksum, RxMeta, TxMeta};
use offramp_offload::vlan::TagChange;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

/// Number of frames in one sample, which takes about a millisecond.
const SAMPLE_FRAMES: u64 = 16_384;
const SAMPLES: usize = 301;
const FRAME_LEN: usize = 60;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Offset of the frame in its buffer, in bytes: aligned to a cache line, with room for a tag before the frame.
const FRAME_AT: usize = 64;
/// Length of a host's header for a received frame, in bytes (virtio 1.3, 5.1.6).
const HEADER_LEN: usize = 12;
/// Number of buffers of a host and of a line, and the length of each buffer.
const SLOTS: usize = 64;
const SLOT_LEN: usize = 256;
const VID: u16 = 7;

/// A host that sends `left` equal frames.
struct Source {
    frame: FrameBuffer<Vec<u8>>,
    request: TxMeta,
    left: u64,
    received: Vec<u8>,
    next: usize,
}

impl Source {
    /// Creates a host that sends UDP over IPv4. With `is_partial`, the adapter completes the checksum.
    fn new(is_partial: bool) -> Self {
        let mut frame = vec![0; FRAME_LEN];
        frame[6..12].copy_from_slice(&MAC);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
        let checksum = is_partial.then_some(PartialChecksum { start: 34, offset: 6 });
        let mut memory = vec![0; FRAME_AT];
        memory.extend(frame);
        Self {
            frame: FrameBuffer::new(memory),
            request: TxMeta { checksum, segmentation: None },
            left: 0,
            received: vec![0; SLOTS * SLOT_LEN],
            next: 0,
        }
    }
}

impl InPlace for Source {}

impl HostPort for Source {
    fn tx_next(&mut self, _: u64) -> Result<bool, PortError> {
        self.frame.set(FRAME_AT..FRAME_AT + FRAME_LEN, self.request);
        let has_frame = self.left > 0;
        self.left -= u64::from(has_frame);
        Ok(has_frame)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.frame.frame_with_tag(change)
    }

    fn tx_unasked(&self) -> Option<&[u8]> {
        self.frame.unasked()
    }

    fn rx_deliver(&mut self, _: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let at = self.next * SLOT_LEN + HEADER_LEN;
        self.received[at..at + frame.len()].copy_from_slice(frame);
        black_box(&self.received[at..at + frame.len()]);
        self.next = (self.next + 1) % SLOTS;
        Ok(())
    }

    fn rx_flush(&mut self, _: u64) {}

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }

    fn honours_data_valid(&self) -> bool {
        true
    }
}

/// A line that discards frames or loops them back.
struct Line {
    bytes: Vec<u8>,
    lens: [usize; SLOTS],
    comes_back: bool,
    put: usize,
    taken: usize,
}

impl Line {
    fn new(comes_back: bool) -> Self {
        Self { bytes: vec![0; SLOTS * SLOT_LEN], lens: [0; SLOTS], comes_back, put: 0, taken: 0 }
    }
}

impl WirePort for Line {
    fn room(&mut self, _: u64) -> usize {
        SLOTS - (self.put - self.taken)
    }

    fn lend(&mut self, len: usize, _: usize) -> Option<Loan<'_>> {
        let at = self.put % SLOTS * SLOT_LEN;
        Some(Loan { bytes: self.bytes.get_mut(at..at + len)?, stride: SLOT_LEN })
    }

    fn put(&mut self, len: usize, _: usize, _: u64) {
        let slot = self.put % SLOTS;
        black_box(&self.bytes[slot * SLOT_LEN..][..len]);
        self.lens[slot] = len;
        self.put += 1;
        self.taken += usize::from(!self.comes_back);
    }

    fn flush(&mut self) {}

    fn take(&mut self, _: u64) -> Option<&mut [u8]> {
        let slot = (self.taken < self.put).then_some(self.taken % SLOTS)?;
        self.taken += 1;
        Some(&mut self.bytes[slot * SLOT_LEN..][..self.lens[slot]])
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        (self.taken < self.put).then_some(0)
    }

    fn arrivals(&self, skip: usize, _: u64, mut note: impl FnMut(Arrival)) -> u32 {
        (self.taken..self.put).skip(skip).for_each(|frame| note(Arrival { at_ns: 0, len: self.lens[frame % SLOTS] }));
        u32::MAX
    }
}

struct Stream {
    name: &'static str,
    pair: QueuePair<Source, Line>,
    samples_ns: Vec<f64>,
}

impl Stream {
    fn new(name: &'static str, line: Line, is_partial: bool, limits: PortLimits, security: PortSecurity) -> Self {
        let config = AdapterConfig::default();
        let control = PortControl::secured(&config, security);
        control.set_limits(limits);
        let pair = QueuePair::new(&config, &control, 0, Source::new(is_partial), line);
        Self { name, pair, samples_ns: Vec::new() }
    }

    fn sample(&mut self, frames: u64, now_ns: u64) {
        self.pair.host_mut().left = frames;
        let start = Instant::now();
        while self.pair.poll(now_ns).is_ok_and(|progress| progress.moved) {}
        let took_ns = start.elapsed().as_nanos();
        assert_eq!(self.pair.host().left, 0, "{}: the limit is not to be reached", self.name);
        self.samples_ns.push(took_ns as f64 / frames as f64);
    }

    fn median_ns(&mut self) -> f64 {
        self.samples_ns.sort_by(f64::total_cmp);
        self.samples_ns[self.samples_ns.len() / 2]
    }
}

fn main() {
    let is_test = std::env::args().any(|arg| arg == "--test");
    let (samples, frames) = if is_test { (1, 64) } else { (SAMPLES, SAMPLE_FRAMES) };
    let rate = RateLimit {
        bits_per_second: Some(*BITS_PER_SECOND.end()),
        frames_per_second: Some(*FRAMES_PER_SECOND.end()),
        ..RateLimit::default()
    };
    let limits = PortLimits { tx: rate, rx: rate };
    let of_mac = PortSecurity { mac_addresses: vec![MAC], ..PortSecurity::default() };
    let of_ip = PortSecurity {
        ip_addresses: Prefix::new(Ipv4Addr::new(10, 0, 0, 0).into(), 8).into_iter().collect(),
        ..of_mac.clone()
    };
    let vlans = PortVlans::new(Some(VID), &[]).expect("a VLAN's number");
    let of_vlan = PortSecurity { vlans, ..PortSecurity::default() };
    let all = PortSecurity { vlans: of_vlan.vlans.clone(), ..of_ip.clone() };
    for (way, asked, comes_back, is_partial) in [
        ("to a line", "nothing", false, false),
        ("to a line", "a checksum", false, true),
        ("round a line", "nothing", true, false),
    ] {
        let none = PortLimits::default();
        let stream = |name, limits, security| Stream::new(name, Line::new(comes_back), is_partial, limits, security);
        let mut streams = [
            stream("none", none, PortSecurity::default()),
            stream("limit of bits and frames", limits, PortSecurity::default()),
            stream("bound Ethernet address", none, of_mac.clone()),
            stream("and bound IPv4 network", none, of_ip.clone()),
            stream("access VLAN", none, of_vlan.clone()),
            stream("all of these", limits, all.clone()),
        ];
        // Samples are one second apart, so that the token bucket of the rate limit is full again at each sample.
        for now_ns in (1..=samples as u64).map(|sample| sample * 1_000_000_000) {
            for stream in &mut streams {
                stream.sample(frames, now_ns);
            }
        }
        println!("{way}, frames of {FRAME_LEN} bytes that ask for {asked}, median of {samples} samples");
        println!("  {:<28} {:>10} {:>18}", "", "ns a frame", "beyond none, ns");
        let none_ns = streams[0].median_ns();
        for stream in &mut streams {
            let median_ns = stream.median_ns();
            println!("  {:<28} {median_ns:>10.2} {:>18.2}", stream.name, median_ns - none_ns);
        }
    }
}

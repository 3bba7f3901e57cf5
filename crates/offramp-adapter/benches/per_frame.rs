//! What a limit and port security cost a frame that they let pass.
//!
//! `cargo bench -p offramp-adapter --bench per_frame` sends frames through a queue pair without any, with a limit that is
//! not reached, and with bound addresses, one sample of each in turn. It prints medians, and what each costs beyond
//! none. `--test` does it with hardly any work, and its figures mean nothing.

use offramp_adapter::config::AdapterConfig;
use offramp_adapter::limit::{BITS_PER_SECOND, FRAMES_PER_SECOND, PortLimits, RateLimit};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{Arrival, HostPort, Loan, PortError, WirePort};
use offramp_adapter::port_security::PortSecurity;
use offramp_offload::caps::Offloads;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::{PartialChecksum, RxMeta, TxMeta};
use std::hint::black_box;
use std::time::Instant;

/// Frames of one sample: a millisecond or so.
const SAMPLE_FRAMES: u64 = 16_384;
const SAMPLES: usize = 301;
const FRAME_LEN: usize = 60;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A host with `left` equal frames.
struct Source {
    frame: FrameBuffer<Vec<u8>>,
    request: TxMeta,
    left: u64,
}

impl Source {
    /// Sends UDP over IPv4, with the checksum left to the adapter or not.
    fn new(is_partial: bool) -> Self {
        let mut frame = vec![0; FRAME_LEN];
        frame[6..12].copy_from_slice(&MAC);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
        let checksum = is_partial.then_some(PartialChecksum { start: 34, offset: 6 });
        Self { frame: FrameBuffer::new(frame), request: TxMeta { checksum, segmentation: None }, left: 0 }
    }
}

impl HostPort for Source {
    fn tx_next(&mut self, _: u64) -> Result<bool, PortError> {
        self.frame.set(0..FRAME_LEN, self.request);
        let has_frame = self.left > 0;
        self.left -= u64::from(has_frame);
        Ok(has_frame)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    fn tx_unasked(&self) -> Option<&[u8]> {
        self.frame.unasked()
    }

    fn rx_deliver(&mut self, _: &RxMeta, _: &[u8]) -> Result<(), PortError> {
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

/// A wire on which frames vanish.
struct Sink(Vec<u8>);

impl WirePort for Sink {
    fn room(&mut self, _: u64) -> usize {
        usize::MAX
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        Some(Loan { bytes: self.0.get_mut(..len * count)?, stride: len })
    }

    fn put(&mut self, len: usize, _: usize, _: u64) {
        black_box(&self.0[..len]);
    }

    fn flush(&mut self) {}

    fn take(&mut self, _: u64) -> Option<&mut [u8]> {
        None
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    fn arrivals(&self, _: usize, _: u64, _: impl FnMut(Arrival)) -> u32 {
        u32::MAX
    }
}

struct Stream {
    name: &'static str,
    pair: QueuePair<Source, Sink>,
    samples_ns: Vec<f64>,
}

impl Stream {
    fn new(name: &'static str, is_partial: bool, limits: PortLimits, security: PortSecurity) -> Self {
        let config = AdapterConfig::default();
        let control = PortControl::secured(&config, security);
        control.set_limits(limits);
        let pair = QueuePair::new(&config, &control, 0, Source::new(is_partial), Sink(vec![0; 2048]));
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
    let security = PortSecurity { mac_addresses: vec![MAC], ..PortSecurity::default() };
    for (asked, is_partial) in [("nothing", false), ("a checksum", true)] {
        let stream = |name, limits, security| Stream::new(name, is_partial, limits, security);
        let mut streams = [
            stream("none", PortLimits::default(), PortSecurity::default()),
            stream("limit of bits and frames", limits, PortSecurity::default()),
            stream("bound Ethernet address", PortLimits::default(), security.clone()),
        ];
        // A sample apart, so that the bucket is full again.
        for now_ns in (1..=samples as u64).map(|sample| sample * 1_000_000_000) {
            for stream in &mut streams {
                stream.sample(frames, now_ns);
            }
        }
        println!("transmit of frames of {FRAME_LEN} bytes that ask for {asked}, median of {samples} samples");
        println!("  {:<28} {:>10} {:>18}", "", "ns a frame", "beyond none, ns");
        let none_ns = streams[0].median_ns();
        for stream in &mut streams {
            let median_ns = stream.median_ns();
            println!("  {:<28} {median_ns:>10.2} {:>18.2}", stream.name, median_ns - none_ns);
        }
    }
}

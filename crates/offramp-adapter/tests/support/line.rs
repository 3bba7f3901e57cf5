//! A line that delivers frames at scripted times.

use offramp_adapter::port::{Arrival, Line, Loan, WirePort};
use std::collections::VecDeque;
use std::task::Waker;

/// A line that delivers the scripted frames, and stores the frames put on the line.
#[derive(Debug, Default)]
pub struct ScriptedLine {
    pub to_come: VecDeque<(u64, Vec<u8>)>,
    pub put: Vec<(u64, Vec<u8>)>,
    /// Transmission time of a frame, in nanoseconds.
    pub send_ns: u64,
    lent: Vec<u8>,
    sent_ns: u64,
}

impl ScriptedLine {
    /// Creates a line that delivers a frame at each of these times, with the given length. Each frame is an Ethernet
    /// frame that contains its index.
    pub fn bringing(arrivals: impl IntoIterator<Item = (u64, usize)>) -> Self {
        let to_come = arrivals.into_iter().enumerate().map(|(n, (at_ns, len))| (at_ns, numbered(n, len))).collect();
        Self { to_come, ..Self::default() }
    }
}

/// Minimum length of a numbered frame.
pub const NUMBERED_LEN_MIN: usize = 18;

/// Returns an Ethernet frame of a protocol without a parser; the frame contains the number `n`.
pub fn numbered(n: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.max(NUMBERED_LEN_MIN)];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    // IEEE 802 local experimental EtherType 1.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&(n as u32).to_be_bytes());
    frame
}

/// Returns the number in a frame.
pub fn number(frame: &[u8]) -> usize {
    u32::from_be_bytes(frame[14..18].try_into().unwrap()) as usize
}

impl WirePort for ScriptedLine {
    fn room(&mut self, _: u64) -> usize {
        usize::MAX
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        let count = count.min(64);
        self.lent.resize(len * count, 0);
        Some(Loan { bytes: &mut self.lent, stride: len })
    }

    fn put(&mut self, len: usize, count: usize, now_ns: u64) {
        for frame in self.lent.chunks(len).take(count) {
            self.sent_ns = self.sent_ns.max(now_ns) + self.send_ns;
            self.put.push((self.sent_ns, frame.to_vec()));
        }
    }

    fn flush(&mut self) {}

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        let (_, frame) = self.to_come.pop_front_if(|(at_ns, _)| *at_ns <= now_ns)?;
        self.lent = frame;
        Some(&mut self.lent)
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.to_come.front().map(|(at_ns, _)| *at_ns)
    }

    fn arrivals(&self, skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        let due = self.to_come.iter().skip(skip).take_while(|(at_ns, _)| *at_ns <= until_ns);
        due.for_each(|(at_ns, frame)| note(Arrival { at_ns: *at_ns, len: frame.len() }));
        u32::MAX
    }
}

impl Line for ScriptedLine {
    fn register(&self, _: &Waker) {}

    fn unregister(&self) {}

    fn next_room_ns(&self, _: u64) -> Option<u64> {
        None
    }

    fn sent_ns(&self) -> u64 {
        self.sent_ns
    }

    fn is_idle(&self) -> bool {
        self.to_come.is_empty()
    }
}

//! A transmit queue: frames to the device, in any layout of descriptors.

use std::time::Duration;

use super::pool::Pool;
use super::queue::Queue;
use crate::frontend::TIMEOUT;
use crate::ring::{Buffer, Used};
use crate::vnet::{self, VnetHeader};

/// Placement of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderPlacement {
    /// The header has a separate buffer.
    #[default]
    Own,
    /// The header shares one buffer with the first piece of the frame.
    WithData,
    /// The header is split over this number of separate buffers (at most one buffer per byte).
    Split(usize),
}

/// Placement of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPlacement {
    /// The frame has one buffer, regardless of the number of parts.
    #[default]
    OneBuffer,
    /// The frame has one buffer per part.
    Parts,
    /// The frame has this number of buffers of nearly the same size (at most one buffer per byte), separated in memory.
    Scattered(usize),
}

/// The layout of a frame in descriptors. A device must accept every layout (virtio 1.3, 2.7.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxLayout {
    /// Placement of the header.
    pub header: HeaderPlacement,
    /// Placement of the frame.
    pub data: DataPlacement,
    /// True to use an indirect table, which must be negotiated.
    pub indirect: bool,
}

impl TxLayout {
    /// Returns the lengths of the buffers for a header and the parts of a frame.
    fn cuts(&self, header_len: usize, part_lens: &[usize]) -> Vec<usize> {
        let frame_len = part_lens.iter().sum();
        let mut data = match self.data {
            DataPlacement::OneBuffer => pieces(frame_len, 1),
            DataPlacement::Parts => part_lens.to_vec(),
            DataPlacement::Scattered(count) => pieces(frame_len, count),
        };
        let mut cuts = match self.header {
            HeaderPlacement::Own => pieces(header_len, 1),
            HeaderPlacement::Split(count) => pieces(header_len, count),
            HeaderPlacement::WithData => {
                let first = if data.is_empty() { 0 } else { data.remove(0) };
                vec![header_len + first]
            }
        };
        cuts.append(&mut data);
        cuts
    }
}

/// Divides `len` into `count` nonempty pieces that differ by at most one byte.
fn pieces(len: usize, count: usize) -> Vec<usize> {
    let count = count.min(len);
    (0..count).map(|at| len * (at + 1) / count - len * at / count).collect()
}

/// A sent chain.
#[derive(Debug, Default)]
struct Sent {
    /// Address and length of each buffer.
    buffers: Vec<(u64, usize)>,
    /// Original bytes of the buffers, for a later comparison. Empty without a comparison.
    bytes: Vec<u8>,
}

/// A transmit queue. [`Queue`] contains the ring and the signals.
#[derive(Debug)]
pub struct TxQueue {
    pub(super) queue: Queue,
    pool: Pool,
    layout: TxLayout,
    header_len: usize,
    compare: bool,
    sent: Vec<Sent>,
    /// Header and frame of the chain under construction.
    bytes: Vec<u8>,
}

impl TxQueue {
    pub(super) fn new(queue: Queue, features: u64, layout: TxLayout) -> Self {
        Self {
            sent: (0..queue.ring.size()).map(|_| Sent::default()).collect(),
            queue,
            pool: Pool::default(),
            layout,
            header_len: vnet::header_len(features),
            compare: false,
            bytes: Vec::new(),
        }
    }

    /// Changes the layout of frames sent from now on.
    pub fn set_layout(&mut self, layout: TxLayout) {
        self.layout = layout;
    }

    /// Sets whether the queue keeps a copy of frames sent from now on. If the copy is kept, a frame changed by the
    /// device causes a panic. A device must only read the buffers of a sent frame (virtio 1.3, 2.7.5.1).
    pub fn set_compare(&mut self, on: bool) {
        self.compare = on;
    }

    /// Sends one frame, given in any number of parts, and kicks if the device requested a kick. Waits while the ring is
    /// full. Returns the chain's ID.
    pub fn send(&mut self, header: &VnetHeader, parts: &[&[u8]]) -> u16 {
        let id = match self.stage(header, parts) {
            Some(id) => id,
            None => self.stage_when_room(header, parts),
        };
        self.publish();
        id
    }

    fn stage_when_room(&mut self, header: &VnetHeader, parts: &[&[u8]]) -> u16 {
        self.publish();
        loop {
            self.take_used_within(TIMEOUT)
                .unwrap_or_else(|| panic!("the device used no transmit chain in {TIMEOUT:?}"));
            if let Some(id) = self.stage(header, parts) {
                return id;
            }
        }
    }

    /// Adds one frame to the ring. The device sees the frame after [`Queue::publish`]. Returns `None` if the ring is
    /// full.
    pub fn stage(&mut self, header: &VnetHeader, parts: &[&[u8]]) -> Option<u16> {
        let mut bytes = header.to_bytes().to_vec();
        bytes.resize(self.header_len, 0);
        self.stage_bytes(&bytes, parts)
    }

    /// Does the same as [`TxQueue::stage`], with a header of any bytes and any length.
    pub fn stage_bytes(&mut self, header: &[u8], parts: &[&[u8]]) -> Option<u16> {
        let part_lens: Vec<_> = parts.iter().map(|part| part.len()).collect();
        let cuts = self.layout.cuts(header.len(), &part_lens);
        self.take_all_used();
        let descriptors = if self.layout.indirect { 1 } else { cuts.len() };
        let most = usize::from(self.queue.ring.size());
        assert!(cuts.len() <= most, "a chain of {} descriptors never fits into a ring of {most}", cuts.len());
        if self.queue.ring.free_descriptors() < descriptors {
            return None;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(header);
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        Some(self.add(&cuts))
    }

    /// Writes header and frame into buffers with the lengths in `cuts`, and adds the buffers to the ring as one chain.
    fn add(&mut self, cuts: &[usize]) -> u16 {
        let mut at = 0;
        let mut buffers = Vec::with_capacity(cuts.len());
        for &len in cuts {
            let addr = self.pool.take(&self.queue.memory, len);
            self.queue.memory.write(addr, &self.bytes[at..at + len]);
            buffers.push(Buffer::readable(addr, len));
            at += len;
        }
        let (direct, indirect): (&[_], &[_]) = if self.layout.indirect { (&[], &buffers) } else { (&buffers, &[]) };
        let id = self.queue.ring.add(direct, indirect).expect("room that was there a moment ago");
        let sent = &mut self.sent[id as usize];
        sent.buffers.extend(buffers.iter().map(|buffer| (buffer.addr, buffer.len as usize)));
        if self.compare {
            sent.bytes.clone_from(&self.bytes);
        }
        id
    }

    /// Overwrites the buffers of all sent frames whose chains were not yet taken from the used ring.
    pub fn overwrite_sent(&self, byte: u8) {
        for &(addr, len) in self.sent.iter().flat_map(|sent| &sent.buffers) {
            self.queue.memory.fill(addr, len, byte);
        }
    }

    /// Takes the next chain used by the device. After the call, the chain's buffers are free for other frames.
    pub fn take_used(&mut self) -> Option<Used> {
        let used = self.queue.ring.take_used()?;
        self.release(used);
        Some(used)
    }

    /// Does the same as [`TxQueue::take_used`], but waits up to `timeout`.
    pub fn take_used_within(&mut self, timeout: Duration) -> Option<Used> {
        let used = self.queue.wait_used(timeout)?;
        self.release(used);
        Some(used)
    }

    fn take_all_used(&mut self) {
        while self.take_used().is_some() {}
    }

    /// Waits until the device has used every chain. Panics after `timeout` without a used chain.
    pub fn drain(&mut self, timeout: Duration) {
        while self.queue.ring.in_flight() > 0 {
            let left = self.queue.ring.in_flight();
            let used = self.take_used_within(timeout);
            assert!(used.is_some(), "the device left {left} transmit chains unused for {timeout:?}");
        }
    }

    fn release(&mut self, used: Used) {
        // A chain added to the ring by the test has no buffers of this queue.
        let sent = &mut self.sent[used.id as usize];
        let mut expected = std::mem::take(&mut sent.bytes);
        for (addr, len) in sent.buffers.drain(..) {
            if !expected.is_empty() {
                let rest = expected.split_off(len);
                let same = self.queue.memory.read_vec(addr, len) == expected;
                assert!(same, "the device wrote into a buffer of chain {} that it may only read", used.id);
                expected = rest;
            }
            self.pool.give_back(addr, len);
        }
    }

    pub(super) fn reset(&mut self) {
        self.queue.reset();
        for sent in &mut self.sent {
            sent.bytes.clear();
            sent.buffers.drain(..).for_each(|(addr, len)| self.pool.give_back(addr, len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_cuts_header_and_frame_as_it_says() {
        let cuts = |header, data| TxLayout { header, data, indirect: false }.cuts(12, &[10, 20]);
        assert_eq!(cuts(HeaderPlacement::Own, DataPlacement::OneBuffer), [12, 30]);
        assert_eq!(cuts(HeaderPlacement::WithData, DataPlacement::OneBuffer), [42]);
        assert_eq!(cuts(HeaderPlacement::WithData, DataPlacement::Parts), [22, 20]);
        assert_eq!(cuts(HeaderPlacement::Split(5), DataPlacement::Parts), [2, 2, 3, 2, 3, 10, 20]);
        assert_eq!(cuts(HeaderPlacement::Own, DataPlacement::Scattered(4)), [12, 7, 8, 7, 8]);
    }
}

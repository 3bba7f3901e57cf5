//! A receive queue: buffers for the device, and frames from the device.

use std::time::Duration;

use super::pool::Pool;
use super::queue::Queue;
use crate::features;
use crate::frontend::TIMEOUT;
use crate::ring::{Buffer, Used};
use crate::vnet::{self, VnetHeader};
use crate::wait::Deadline;

/// Number of guard bytes after every buffer. The device must not change the guard bytes.
const GUARD_LEN: usize = 16;
/// Value of the guard bytes.
const GUARD: u8 = 0xa5;

/// A chain of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainUse {
    /// ID of the chain.
    pub id: u16,
    /// Number of bytes written by the device.
    pub len: u32,
    /// Total length of the chain's buffers in bytes.
    pub capacity: u32,
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Header bytes, as written by the device.
    pub header: Vec<u8>,
    /// Frame bytes, assembled from all buffers.
    pub frame: Vec<u8>,
    /// Field `num_buffers` of the header.
    pub num_buffers: u16,
    /// Chains of the frame, in order.
    pub chains: Vec<ChainUse>,
    /// True if all chains of the frame were used when the driver found the first chain used. A device must make these
    /// chains visible together (virtio 1.3, 5.1.6.4.1). In a split ring, one index covers all chains, so this check
    /// detects every violation. In a packed ring, the check can miss a device that makes later chains visible after a
    /// very short delay.
    pub visible_together: bool,
}

impl Received {
    /// Returns the fields of the header.
    pub fn vnet(&self) -> VnetHeader {
        VnetHeader::from_bytes(&self.header)
    }
}

/// A receive queue. [`Queue`] contains the ring and the signals.
#[derive(Debug)]
pub struct RxQueue {
    pub(super) queue: Queue,
    pool: Pool,
    header_len: usize,
    mergeable: bool,
    recycle: bool,
    /// Buffers of every chain, by the chain's ID.
    posted: Vec<Vec<Buffer>>,
}

impl RxQueue {
    pub(super) fn new(queue: Queue, features: u64) -> Self {
        Self {
            posted: vec![Vec::new(); queue.ring.size() as usize],
            queue,
            pool: Pool::default(),
            header_len: vnet::header_len(features),
            mergeable: features & features::MRG_RXBUF != 0,
            recycle: true,
        }
    }

    /// Sets whether the buffers of a received frame return to the ring at once. The default is on.
    pub fn set_recycle(&mut self, on: bool) {
        self.recycle = on;
    }

    /// Adds `buffers` chains, each of one buffer with `len` bytes. Returns the number of chains that fit into the ring.
    pub fn fill(&mut self, buffers: usize, len: usize) -> usize {
        self.fill_chains(buffers, &[len])
    }

    /// Adds `chains` chains of buffers with the given lengths. Returns the number of chains that fit into the ring.
    pub fn fill_chains(&mut self, chains: usize, lens: &[usize]) -> usize {
        let mut added = 0;
        while added < chains && self.queue.ring.free_descriptors() >= lens.len() {
            let buffers = lens.iter().map(|&len| self.new_buffer(len)).collect();
            self.post(buffers);
            added += 1;
        }
        self.publish();
        added
    }

    fn new_buffer(&mut self, len: usize) -> Buffer {
        let addr = self.pool.take(&self.queue.memory, len + GUARD_LEN);
        self.queue.memory.fill(addr + len as u64, GUARD_LEN, GUARD);
        Buffer::writable(addr, len)
    }

    fn post(&mut self, buffers: Vec<Buffer>) {
        let id = self.queue.ring.add(&buffers, &[]).expect("room in the receive ring");
        self.posted[id as usize] = buffers;
    }

    /// Receives the next frame. Panics if no frame is received within `timeout`.
    pub fn recv(&mut self, timeout: Duration) -> Received {
        self.recv_within(timeout).unwrap_or_else(|| panic!("no frame came within {timeout:?}"))
    }

    /// Receives the next frame, or returns `None` after `timeout`.
    pub fn recv_within(&mut self, timeout: Duration) -> Option<Received> {
        let first = self.queue.wait_used(timeout)?;
        Some(self.receive(first))
    }

    /// Receives the next frame, or returns `None` if no frame is available.
    pub fn try_recv(&mut self) -> Option<Received> {
        let first = self.queue.ring.take_used()?;
        Some(self.receive(first))
    }

    /// Assembles the frame that begins in chain `first`.
    fn receive(&mut self, first: Used) -> Received {
        let visible = 1 + self.queue.ring.snapshot_len();
        let mut chains = Vec::with_capacity(1);
        let mut bytes = Vec::with_capacity(first.len as usize);
        self.read_chain(first, &mut bytes, &mut chains);
        let (got, wanted) = (bytes.len(), self.header_len);
        assert!(got >= wanted, "the device wrote {got} bytes into the first chain of a frame: the header has {wanted}");
        let num_buffers = VnetHeader::from_bytes(&bytes[..wanted]).num_buffers;
        let count = if self.mergeable { usize::from(num_buffers) } else { 1 };
        assert!(count > 0, "a received frame says that it fills 0 buffers");
        for at in 1..count {
            let used = Deadline::after(TIMEOUT).look_for(|| self.queue.ring.take_used());
            let used = used.unwrap_or_else(|| panic!("buffer {at} of a frame in {count} did not come in {TIMEOUT:?}"));
            self.read_chain(used, &mut bytes, &mut chains);
        }
        self.publish();
        let frame = bytes.split_off(self.header_len);
        Received { header: bytes, frame, num_buffers, chains, visible_together: visible >= count }
    }

    /// Appends the bytes that the device wrote into a chain to `bytes`, and returns the chain's buffers to the ring or
    /// to the pool.
    fn read_chain(&mut self, used: Used, bytes: &mut Vec<u8>, chains: &mut Vec<ChainUse>) {
        let buffers = std::mem::take(&mut self.posted[used.id as usize]);
        let mut left = used.len as usize;
        for buffer in &buffers {
            let len = left.min(buffer.len as usize);
            let at = bytes.len();
            bytes.resize(at + len, 0);
            self.queue.memory.read(buffer.addr, &mut bytes[at..]);
            left -= len;
            self.check_guard(buffer);
        }
        let capacity = buffers.iter().map(|buffer| buffer.len).sum();
        chains.push(ChainUse { id: used.id, len: used.len, capacity });
        if self.recycle && !buffers.is_empty() {
            self.post(buffers);
        } else {
            self.give_back(&buffers);
        }
    }

    fn give_back(&mut self, buffers: &[Buffer]) {
        for buffer in buffers {
            self.pool.give_back(buffer.addr, buffer.len as usize + GUARD_LEN);
        }
    }

    fn check_guard(&self, buffer: &Buffer) {
        let mut guard = [0; GUARD_LEN];
        self.queue.memory.read(buffer.addr + u64::from(buffer.len), &mut guard);
        assert!(guard == [GUARD; GUARD_LEN], "the device wrote past the end of {buffer:x?}");
    }

    pub(super) fn reset(&mut self) {
        self.queue.reset();
        for at in 0..self.posted.len() {
            let buffers = std::mem::take(&mut self.posted[at]);
            self.give_back(&buffers);
        }
    }
}

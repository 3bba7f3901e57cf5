//! Frames that the guest receives.

use super::state::QueueState;
use super::vring::RingState;
use crate::vnet_hdr::encode_rx;
use offramp_adapter::port::PortError;
use offramp_offload::meta::RxMeta;
use offramp_virtio::ring::FETCH_MAX;

impl QueueState {
    /// Writes a frame into receive chains.
    #[inline]
    pub(super) fn deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let chains = self.gather(self.header_len + frame.len())?;
        let log = self.log.as_deref();
        self.receive.vring.write_frame(chains, self.header_len, &mut encode_rx(meta), frame, log);
        self.receive.tally.add(frame.len() as u64);
        if self.receive.vring.staged() >= FETCH_MAX {
            self.publish_receive();
        }
        Ok(())
    }

    /// How many of the waiting receive chains a frame of `len` bytes with its header takes.
    #[inline]
    fn gather(&mut self, len: usize) -> Result<usize, PortError> {
        if self.receive.state != RingState::Enabled || self.out_of_buffers {
            return Err(PortError::Full);
        }
        let (mut chains, mut room) = (0, 0);
        loop {
            if let Some(chain) = self.receive.vring.waiting().get(chains) {
                if !self.is_mergeable {
                    return self.single(len);
                }
                if chain.len() == 0 {
                    // A bad chain cannot be part of a frame, nor can one lie on both its sides.
                    self.return_unused(chains + 1);
                    (chains, room) = (0, 0);
                    continue;
                }
                chains += 1;
                room += chain.len();
                if room >= len {
                    return Ok(chains);
                }
            } else if chains > usize::from(self.receive.vring.size()) || !self.receive.fetch(&self.counters) {
                self.out_of_buffers = true;
                return Err(PortError::Full);
            }
        }
    }

    /// As [`QueueState::gather`] for a driver that takes each frame in one chain (virtio 1.3, 5.1.6.4).
    fn single(&mut self, len: usize) -> Result<usize, PortError> {
        while let Some(chain) = self.receive.vring.waiting().first() {
            match chain.len() {
                room if room >= len => return Ok(1),
                // A bad chain: it goes back as it is.
                0 => self.return_unused(1),
                _ => return Err(PortError::Refused(libc::EMSGSIZE)),
            }
        }
        if self.receive.fetch(&self.counters) {
            return self.single(len);
        }
        self.out_of_buffers = true;
        Err(PortError::Full)
    }

    /// Gives receive chains back with nothing in them.
    #[cold]
    fn return_unused(&mut self, chains: usize) {
        for _ in 0..chains {
            let Some(chain) = self.receive.vring.pop() else { return };
            self.receive.add_used(&chain, 0);
        }
    }
}

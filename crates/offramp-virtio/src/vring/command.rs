//! Commands of a control queue (virtio 1.3, 5.1.6.5). The driver writes the first buffers of a chain, and the device
//! writes the answer into the remaining buffers.

use super::Vring;
use crate::dirty_log::DirtyLog;
use crate::ring::{Buffer, Chain};

impl Vring {
    /// Copies a command into private memory. Returns the command and the maximum length of the answer in bytes. Returns
    /// `None` if the chain is unusable, if a device-readable buffer follows a device-writable buffer (virtio 1.3,
    /// 2.7.4.2), or if the command exceeds `len_max` bytes.
    pub fn read_command(&self, chain: &Chain, len_max: usize) -> Option<(Vec<u8>, usize)> {
        let (buffers, is_writable) = (self.buffers(chain), self.batch.is_writable(chain));
        let readable = is_writable.iter().take_while(|is_writable| !**is_writable).count();
        let (request, answer) = buffers.split_at(readable);
        let len: usize = request.iter().map(Buffer::len).sum();
        if len > len_max || is_writable[readable..].contains(&false) {
            return None;
        }
        let mut command = vec![0; len];
        let mut rest = &mut command[..];
        for buffer in request {
            let (piece, later) = rest.split_at_mut(buffer.len());
            buffer.read(0, piece);
            rest = later;
        }
        Some((command, answer.iter().map(Buffer::len).sum()))
    }

    /// Writes an answer, truncated to the room in the chain, and returns the chain as used.
    pub fn answer(&mut self, chain: &Chain, answer: &[u8], log: Option<&DirtyLog>) {
        let mut rest = answer;
        let buffers = self.buffers(chain).iter().zip(self.batch.is_writable(chain));
        for (buffer, _) in buffers.filter(|(_, is_writable)| **is_writable) {
            let (piece, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer.write(0, piece);
            if let Some(log) = log {
                log.mark(buffer.guest, piece.len() as u64);
            }
            rest = later;
        }
        self.add_used(chain, (answer.len() - rest.len()) as u32);
    }
}

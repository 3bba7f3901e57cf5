//! Virtio's notification coalescing: what a driver sets through the control queue, per queue.
//!
//! Source: virtio 1.3, 5.1.6.5, "Notifications Coalescing". Which setting holds is decided here; when a
//! queue is notified, by a [`Moderator`](super::Moderator) with [`Policy::Coalescing`](super::Policy::Coalescing).
//! Notifying earlier or later than asked is allowed (V77), so a port may run another policy instead.
//!
//! Queues are counted as in the device: receive queue n is 2n, transmit queue n is 2n + 1. All fields are
//! little-endian.

use super::config::Coalescing;

/// Feature bits (virtio 1.3, 5.1.3).
pub mod feature {
    /// `VIRTIO_NET_F_VQ_NOTF_COAL`: settings per queue.
    pub const VQ_NOTF_COAL: u32 = 52;
    /// `VIRTIO_NET_F_NOTF_COAL`: settings for all queues of a direction.
    pub const NOTF_COAL: u32 = 53;
}

/// Commands of the control queue.
pub mod command {
    /// Class of all commands here (`VIRTIO_NET_CTRL_NOTF_COAL`).
    pub const CLASS: u8 = 6;
    /// Sets all transmit queues.
    pub const TX_SET: u8 = 0;
    /// Sets all receive queues.
    pub const RX_SET: u8 = 1;
    /// Sets one queue.
    pub const VQ_SET: u8 = 2;
    /// Asks for the setting of one queue.
    pub const VQ_GET: u8 = 3;
}

/// Bytes of `struct virtio_net_ctrl_coal`.
const COALESCING_LEN: usize = 8;
/// Bytes of `vq_index` and `reserved` before it in `struct virtio_net_ctrl_coal_vq`.
const QUEUE_LEN: usize = 4;

impl Coalescing {
    /// As `struct virtio_net_ctrl_coal`: `max_packets`, then `max_usecs`.
    pub fn from_bytes(bytes: [u8; COALESCING_LEN]) -> Self {
        let [p0, p1, p2, p3, u0, u1, u2, u3] = bytes;
        Self { max_packets: u32::from_le_bytes([p0, p1, p2, p3]), max_usecs: u32::from_le_bytes([u0, u1, u2, u3]) }
    }

    /// As [`Coalescing::from_bytes`] reads it: what [`command::VQ_GET`] writes behind `vq_index` and `reserved`.
    pub fn to_bytes(&self) -> [u8; COALESCING_LEN] {
        let ([p0, p1, p2, p3], [u0, u1, u2, u3]) = (self.max_packets.to_le_bytes(), self.max_usecs.to_le_bytes());
        [p0, p1, p2, p3, u0, u1, u2, u3]
    }
}

/// Which of a device's two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Receive,
    Transmit,
}

impl Direction {
    fn of(queue: usize) -> Self {
        if queue.is_multiple_of(2) { Self::Receive } else { Self::Transmit }
    }
}

/// What a command did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All transmit queues have this setting now.
    Transmit(Coalescing),
    /// All receive queues have this setting now.
    Receive(Coalescing),
    /// This queue has this setting now.
    Queue(u16, Coalescing),
    /// Nothing changed; this is the setting that was asked for.
    Value(Coalescing),
}

/// Why a command is answered with `VIRTIO_NET_ERR`; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The driver did not negotiate the feature, or there is no such command.
    #[error("notification coalescing command {0} is unknown or was not negotiated")]
    Unknown(u8),
    /// The command's data ends too soon.
    #[error("notification coalescing command {command} has {len} bytes of data; it needs {needed}")]
    TooShort {
        /// The command.
        command: u8,
        /// Its bytes.
        len: usize,
        /// The bytes that it needs.
        needed: usize,
    },
    /// Not an enabled transmit or receive queue (V74).
    #[error("queue {0} is not an enabled transmit or receive queue")]
    Queue(u16),
}

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    is_enabled: bool,
    coalescing: Coalescing,
}

/// The settings of a device's queues, as its driver made them.
#[derive(Clone, Debug)]
pub struct NotificationCoalescing {
    features: u64,
    transmit: Coalescing,
    receive: Coalescing,
    queues: Box<[Queue]>,
}

impl NotificationCoalescing {
    /// The settings of a device after reset, with `pairs` of queues, none of them enabled: all are 0 (V79).
    /// `features` are the bits that driver and device agreed on.
    pub fn new(pairs: u16, features: u64) -> Self {
        Self {
            features,
            transmit: Coalescing::default(),
            receive: Coalescing::default(),
            queues: vec![Queue::default(); usize::from(pairs) * 2].into_boxed_slice(),
        }
    }

    /// Obeys a command of [`command::CLASS`]. `data` is what follows the class and command bytes, as far
    /// as the device reads it; bytes beyond the command's structure are not looked at.
    ///
    /// The setting that came last holds for a queue, whichever command made it (V81). Give it to the
    /// queue's moderator at once, and ask whether that is due (V82).
    ///
    /// # Errors
    /// Whatever is to be answered with `VIRTIO_NET_ERR` (V73, V74).
    pub fn command(&mut self, command: u8, data: &[u8]) -> Result<Outcome, CommandError> {
        let bit = match command {
            command::TX_SET | command::RX_SET => feature::NOTF_COAL,
            command::VQ_SET | command::VQ_GET => feature::VQ_NOTF_COAL,
            _ => return Err(CommandError::Unknown(command)),
        };
        if self.features & (1 << bit) == 0 {
            return Err(CommandError::Unknown(command));
        }
        match command {
            command::TX_SET => {
                self.transmit = coalescing(command, data, 0)?;
                self.set_all(Direction::Transmit, self.transmit);
                Ok(Outcome::Transmit(self.transmit))
            }
            command::RX_SET => {
                self.receive = coalescing(command, data, 0)?;
                self.set_all(Direction::Receive, self.receive);
                Ok(Outcome::Receive(self.receive))
            }
            command::VQ_SET => {
                let setting = coalescing(command, data, QUEUE_LEN)?;
                let (index, queue) = self.queue(command, data)?;
                queue.coalescing = setting;
                Ok(Outcome::Queue(index, setting))
            }
            _ => self.queue(command, data).map(|(_, queue)| Outcome::Value(queue.coalescing)),
        }
    }

    /// The setting of a queue; `None` when there is no such queue.
    pub fn of_queue(&self, queue: u16) -> Option<Coalescing> {
        self.queues.get(usize::from(queue)).map(|queue| queue.coalescing)
    }

    /// A queue was enabled or disabled. One that is enabled again has what was last set for all queues
    /// of its direction, or 0 (V75, V76). A queue that does not exist is left alone.
    pub fn set_enabled(&mut self, queue: u16, is_enabled: bool) {
        let index = usize::from(queue);
        let of_direction = match Direction::of(index) {
            Direction::Receive => self.receive,
            Direction::Transmit => self.transmit,
        };
        let Some(queue) = self.queues.get_mut(index) else { return };
        if is_enabled && !queue.is_enabled {
            queue.coalescing = of_direction;
        }
        queue.is_enabled = is_enabled;
    }

    /// The device was reset: all settings are 0, no queue is enabled (V79).
    pub fn reset(&mut self) {
        self.transmit = Coalescing::default();
        self.receive = Coalescing::default();
        self.queues.fill(Queue::default());
    }

    fn set_all(&mut self, direction: Direction, coalescing: Coalescing) {
        let queues = self.queues.iter_mut().enumerate();
        for (_, queue) in queues.filter(|(index, _)| Direction::of(*index) == direction) {
            queue.coalescing = coalescing;
        }
    }

    /// The queue that a command names. `reserved` is not looked at (V72).
    fn queue(&mut self, command: u8, data: &[u8]) -> Result<(u16, &mut Queue), CommandError> {
        let [low, high, ..] = part::<QUEUE_LEN>(command, data, 0)?;
        let index = u16::from_le_bytes([low, high]);
        let queue = self.queues.get_mut(usize::from(index)).filter(|queue| queue.is_enabled);
        queue.map(|queue| (index, queue)).ok_or(CommandError::Queue(index))
    }
}

fn coalescing(command: u8, data: &[u8], at: usize) -> Result<Coalescing, CommandError> {
    part(command, data, at).map(Coalescing::from_bytes)
}

fn part<const LEN: usize>(command: u8, data: &[u8], at: usize) -> Result<[u8; LEN], CommandError> {
    let needed = at + LEN;
    let bytes = data.get(at..needed).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or(CommandError::TooShort { command, len: data.len(), needed })
}

//! The guest's control queue where the port serves it: what the guest has set, and when that is forgotten.
//!
//! The ring belongs to the port's own thread, so that a guest that floods it holds up nobody. A command that changes the
//! queues goes through their mailboxes, and is answered once it is in force in all of them.

use super::features::{self, CTRL_GUEST_OFFLOADS, MQ, NOTF_COAL, VQ_NOTF_COAL};
use super::queue::{QueueState, Side};
use offramp_adapter::moderation::Coalescing;
use offramp_virtio::control::{Command, NotificationCoalescing};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a guest has set by its control queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlStatus {
    /// Queue pairs that it uses.
    pub queue_pairs: u16,
    /// Offloads on receive that it takes, as feature bits.
    pub guest_offloads: u64,
    /// How it wants to be notified of each ring, receive and transmit of the first pair first; `None`: it has not said so.
    pub coalescing: Vec<Option<Coalescing>>,
    /// Commands that were refused.
    pub refused: u64,
}

/// What has to be done for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing: the answer has these bytes after `ack`.
    Answer([u8; 8]),
    /// The pairs in use have changed.
    QueuePairs,
    /// The offloads have changed.
    Offloads,
    /// The wishes of some rings have changed.
    Coalescing,
}

/// A control queue and what its guest has set.
#[derive(Debug)]
pub(super) struct Control {
    pub queue: QueueState,
    /// The guest's kicks.
    pub kick: Option<Arc<OwnedFd>>,
    negotiated: u64,
    queue_pairs_max: u16,
    status: ControlStatus,
    /// The last wishes for all rings of a direction, which a queue has that is enabled again (V75, V76).
    of_all: [Option<Coalescing>; 2],
    /// Where the ring stopped.
    stopped_at: Option<(u32, u64)>,
}

impl Control {
    pub fn new(queue_pairs_max: u16) -> Self {
        let mut control = Self {
            queue: QueueState::of_commands(Arc::default()),
            kick: None,
            negotiated: 0,
            queue_pairs_max,
            status: ControlStatus::default(),
            of_all: [None; 2],
            stopped_at: None,
        };
        control.forget();
        control
    }

    /// Whether a vring is the control queue's: the last one, or the third for a driver without `MQ` (virtio 1.3, 5.1.2). Such a
    /// driver does not start the last one; its frontend enables it all the same (QEMU).
    pub fn is_at(vring: usize, negotiated: u64, queue_pairs_max: u16) -> bool {
        vring == 2 * usize::from(queue_pairs_max) || (vring == 2 && negotiated != 0 && negotiated & MQ == 0)
    }

    /// What the guest has set, while its ring runs.
    pub fn status(&self) -> Option<&ControlStatus> {
        self.queue.is_live().then_some(&self.status)
    }

    /// Takes over what was negotiated.
    pub fn set_features(&mut self, negotiated: u64) {
        self.negotiated = negotiated;
        self.queue.set_features(negotiated);
    }

    /// The ring has stopped at `base`. A monitor that stops a guest and continues it does the same as one whose guest resets
    /// the device, and a guest that continues does not repeat its commands.
    pub fn stopped(&mut self, base: u32) {
        self.stopped_at = Some((base, self.negotiated));
    }

    /// The ring starts at `base`; whether the guest's driver was reset since it stopped, so that nothing is set.
    pub fn is_new(&mut self, base: u32) -> bool {
        self.stopped_at.take() != Some((base, self.negotiated))
    }

    /// Forgets what the guest has set, as a reset does (V56, V79).
    pub fn forget(&mut self) {
        self.of_all = [None; 2];
        self.stopped_at = None;
        self.status = ControlStatus {
            queue_pairs: 1,
            guest_offloads: self.negotiated & features::guest_offload_bits(),
            coalescing: vec![None; 2 * usize::from(self.queue_pairs_max)],
            refused: self.status.refused,
        };
    }

    /// What is negotiated, without the offloads that the guest has switched off.
    pub fn features_in_force(&self) -> u64 {
        self.negotiated & !features::guest_offload_bits() | self.status.guest_offloads
    }

    /// The guest's wish for a ring.
    pub fn wish(&self, vring: usize) -> Option<Coalescing> {
        self.status.coalescing.get(vring).copied().flatten()
    }

    /// Counts a command that was refused.
    pub fn refuse(&mut self) {
        self.status.refused += 1;
    }

    /// Takes a command over; what is left to do for it. `None`: it makes no sense, or was not negotiated.
    pub fn take(&mut self, command: Command) -> Option<Change> {
        match command {
            Command::QueuePairs(pairs) => self.set_queue_pairs(pairs),
            Command::GuestOffloads(bits) => {
                let may_be = self.negotiated & features::guest_offload_bits();
                self.has(CTRL_GUEST_OFFLOADS).filter(|()| bits & !may_be == 0)?;
                self.status.guest_offloads = bits;
                Some(Change::Offloads)
            }
            Command::CoalesceReceive(wish) => self.coalesce_all(Side::Receive, wish),
            Command::CoalesceTransmit(wish) => self.coalesce_all(Side::Transmit, wish),
            Command::CoalesceQueue(vring, wish) => {
                *self.wish_of_queue(vring)? = Some(coalescing(wish));
                Some(Change::Coalescing)
            }
            Command::CoalescingOfQueue(vring) => {
                let wish = (*self.wish_of_queue(vring)?).unwrap_or_default();
                let in_force = NotificationCoalescing { max_usecs: wish.max_usecs, max_packets: wish.max_packets };
                Some(Change::Answer(in_force.to_bytes()))
            }
        }
    }

    fn has(&self, feature: u64) -> Option<()> {
        (self.negotiated & feature != 0).then_some(())
    }

    fn set_queue_pairs(&mut self, pairs: u16) -> Option<Change> {
        self.has(MQ).filter(|()| (1..=self.queue_pairs_max).contains(&pairs))?;
        self.status.queue_pairs = pairs;
        for (vring, wish) in self.status.coalescing.iter_mut().enumerate().skip(2 * usize::from(pairs)) {
            *wish = self.of_all[vring % 2];
        }
        Some(Change::QueuePairs)
    }

    fn coalesce_all(&mut self, side: Side, wish: NotificationCoalescing) -> Option<Change> {
        self.has(NOTF_COAL)?;
        let nth = usize::from(side == Side::Transmit);
        self.of_all[nth] = Some(coalescing(wish));
        self.status.coalescing.iter_mut().skip(nth).step_by(2).for_each(|of_ring| *of_ring = self.of_all[nth]);
        Some(Change::Coalescing)
    }

    /// The wish for a queue that the guest uses, if it may have one for a single queue (V74).
    fn wish_of_queue(&mut self, vring: u16) -> Option<&mut Option<Coalescing>> {
        self.has(VQ_NOTF_COAL).filter(|()| vring / 2 < self.status.queue_pairs)?;
        self.status.coalescing.get_mut(usize::from(vring))
    }
}

fn coalescing(wish: NotificationCoalescing) -> Coalescing {
    Coalescing { max_usecs: wish.max_usecs, max_packets: wish.max_packets }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = MQ | NOTF_COAL | VQ_NOTF_COAL | CTRL_GUEST_OFFLOADS;
    const FIRST: NotificationCoalescing = NotificationCoalescing { max_usecs: 50, max_packets: 16 };
    const SECOND: NotificationCoalescing = NotificationCoalescing { max_usecs: 7, max_packets: 3 };

    fn control(negotiated: u64) -> Control {
        let mut control = Control::new(4);
        control.set_features(negotiated);
        control.forget();
        control
    }

    #[test]
    fn the_last_wish_for_a_ring_wins_whichever_command_brought_it() {
        let mut control = control(ALL);
        control.take(Command::QueuePairs(2));
        let steps = [
            (Command::CoalesceReceive(FIRST), [Some(FIRST), None, Some(FIRST)]),
            (Command::CoalesceQueue(0, SECOND), [Some(SECOND), None, Some(FIRST)]),
            (Command::CoalesceTransmit(FIRST), [Some(SECOND), Some(FIRST), Some(FIRST)]),
            (Command::CoalesceReceive(SECOND), [Some(SECOND), Some(FIRST), Some(SECOND)]),
        ];
        for (command, expected) in steps {
            assert_eq!(control.take(command), Some(Change::Coalescing));
            assert_eq!([0, 1, 2].map(|vring| control.wish(vring)), expected.map(|wish| wish.map(coalescing)));
        }
    }

    #[test]
    fn a_queue_that_is_used_again_has_the_last_wish_for_all() {
        let mut control = control(ALL);
        control.take(Command::QueuePairs(2));
        control.take(Command::CoalesceReceive(FIRST));
        control.take(Command::CoalesceQueue(2, SECOND));
        control.take(Command::CoalesceQueue(3, SECOND));
        control.take(Command::QueuePairs(1));
        control.take(Command::QueuePairs(2));
        assert_eq!([2, 3].map(|vring| control.wish(vring)), [Some(coalescing(FIRST)), None]);
    }

    #[test]
    fn a_command_that_was_not_negotiated_or_names_what_is_not_there_changes_nothing() {
        let commands = [
            (MQ, Command::QueuePairs(2)),
            (NOTF_COAL, Command::CoalesceReceive(FIRST)),
            (NOTF_COAL, Command::CoalesceTransmit(FIRST)),
            (VQ_NOTF_COAL, Command::CoalesceQueue(0, FIRST)),
            (VQ_NOTF_COAL, Command::CoalescingOfQueue(0)),
            (CTRL_GUEST_OFFLOADS, Command::GuestOffloads(0)),
        ];
        for (feature, command) in commands {
            assert_eq!(control(ALL & !feature).take(command), None, "{command:?}");
            assert!(control(ALL).take(command).is_some(), "{command:?}");
        }
        let mut control = control(ALL);
        let before = control.status.clone();
        let wrong = [
            Command::QueuePairs(0),
            Command::QueuePairs(5),
            // Of a pair that is not in use, and no ring of data.
            Command::CoalesceQueue(2, FIRST),
            Command::CoalesceQueue(8, FIRST),
            Command::CoalescingOfQueue(u16::MAX),
            // Of transmit, and one that was not negotiated.
            Command::GuestOffloads(1),
            Command::GuestOffloads(1 << 7),
        ];
        for command in wrong {
            assert_eq!(control.take(command), None, "{command:?}");
        }
        assert_eq!(control.status, before);
    }

    #[test]
    fn what_is_set_outlives_a_pause_and_not_a_reset() {
        let mut control = control(ALL);
        control.stopped(7);
        assert!(!control.is_new(7), "it goes on where it was");
        assert!(control.is_new(7), "nothing was said of a stop");
        control.stopped(7);
        assert!(control.is_new(0), "a new ring");
        control.stopped(7);
        control.set_features(MQ);
        assert!(control.is_new(7), "another driver");
    }
}

//! The guest's control queue where the port serves it: what the guest has set, and when that is forgotten.
//!
//! The ring belongs to the port's own thread, so that a guest that floods it holds up nobody. A command that changes the
//! queues goes through their mailboxes, and is answered and shown once it is in force in all of them.

use super::features::{self, CTRL_GUEST_OFFLOADS, LOG_ALL, MQ, NOTF_COAL, VQ_NOTF_COAL};
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

/// What a command comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// The answer has these bytes after `ack`.
    Answer(Vec<u8>),
    /// The guest wants these settings.
    Change(Settings),
}

/// What a guest sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    queue_pairs: u16,
    guest_offloads: u64,
    coalescing: Vec<Option<Coalescing>>,
    /// The last wishes for all rings of a direction, which a queue has that is enabled again (V75, V76).
    of_all: [Option<Coalescing>; 2],
}

/// What a ring of data has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RingSettings {
    /// The guest uses the ring's pair.
    pub is_in_use: bool,
    /// What is negotiated, without the offloads that the guest has switched off.
    pub features: u64,
    /// When the guest wants to be notified; `None`: it has not said so.
    pub wish: Option<Coalescing>,
}

/// A control queue and what its guest has set.
#[derive(Debug)]
pub(super) struct Control {
    pub queue: QueueState,
    /// The guest's kicks.
    pub kick: Option<Arc<OwnedFd>>,
    negotiated: u64,
    queue_pairs_max: u16,
    /// What is in force.
    pub settings: Settings,
    /// Commands that were refused.
    refused: u64,
    /// Where the ring stopped.
    stopped_at: Option<(u32, u64)>,
}

impl Settings {
    /// Those of a device that was reset (V56, V79).
    fn after_reset(negotiated: u64, queue_pairs_max: u16) -> Self {
        Self {
            queue_pairs: 1,
            guest_offloads: negotiated & features::guest_offload_bits(),
            coalescing: vec![None; 2 * usize::from(queue_pairs_max)],
            of_all: [None; 2],
        }
    }

    /// With other queue pairs in use. A queue that is used again has the last wish for all of its direction (V75, V76).
    fn with_queue_pairs(mut self, pairs: u16) -> Self {
        self.queue_pairs = pairs;
        for (vring, wish) in self.coalescing.iter_mut().enumerate().skip(2 * usize::from(pairs)) {
            *wish = self.of_all[vring % 2];
        }
        self
    }

    fn with_wish_of_all(mut self, side: Side, wish: NotificationCoalescing) -> Self {
        let nth = usize::from(side == Side::Transmit);
        self.of_all[nth] = Some(coalescing(wish));
        self.coalescing.iter_mut().skip(nth).step_by(2).for_each(|of_ring| *of_ring = self.of_all[nth]);
        self
    }
}

impl Control {
    pub fn new(queue_pairs_max: u16) -> Self {
        Self {
            queue: QueueState::of_commands(Arc::default()),
            kick: None,
            negotiated: 0,
            queue_pairs_max,
            settings: Settings::after_reset(0, queue_pairs_max),
            refused: 0,
            stopped_at: None,
        }
    }

    /// Whether a vring is the control queue's: the last one, or the third for a driver without `MQ` (virtio 1.3, 5.1.2). Such a
    /// driver does not start the last one; its frontend enables it all the same (QEMU).
    pub fn is_at(vring: usize, negotiated: u64, queue_pairs_max: u16) -> bool {
        vring == 2 * usize::from(queue_pairs_max) || (vring == 2 && negotiated != 0 && negotiated & MQ == 0)
    }

    /// What the guest has set, while its ring runs.
    pub fn status(&self) -> Option<ControlStatus> {
        let Settings { queue_pairs, guest_offloads, coalescing, .. } = &self.settings;
        self.queue.is_live().then(|| ControlStatus {
            queue_pairs: *queue_pairs,
            guest_offloads: *guest_offloads,
            coalescing: coalescing.clone(),
            refused: self.refused,
        })
    }

    /// Takes over what was negotiated. Of another driver nothing is set; that a migration begins or ends changes nothing.
    pub fn set_features(&mut self, negotiated: u64) {
        if negotiated & !LOG_ALL != self.negotiated & !LOG_ALL {
            self.settings = Settings::after_reset(negotiated, self.queue_pairs_max);
        }
        self.negotiated = negotiated;
        self.queue.set_features(negotiated);
    }

    /// What is negotiated, without the offloads that the guest has switched off.
    pub fn features_in_force(&self, settings: &Settings) -> u64 {
        self.negotiated & !features::guest_offload_bits() | settings.guest_offloads
    }

    /// The ring has stopped at `base`. A monitor that stops a guest and continues it does the same as one whose guest resets
    /// the device, and a guest that continues does not repeat its commands.
    pub fn stopped(&mut self, base: u32) {
        self.stopped_at = Some((base, self.negotiated & !LOG_ALL));
    }

    /// The ring starts at `base`; whether the guest's driver was reset since it stopped, so that nothing is set.
    pub fn is_new(&mut self, base: u32) -> bool {
        self.stopped_at.take() != Some((base, self.negotiated & !LOG_ALL))
    }

    /// Forgets what the guest has set, as a reset does.
    pub fn forget(&mut self) {
        self.stopped_at = None;
        self.settings = Settings::after_reset(self.negotiated, self.queue_pairs_max);
    }

    /// What a ring of data has of some settings. While no control queue runs, the frontend alone says which are in use.
    pub fn of_ring(&self, settings: &Settings, vring: usize) -> RingSettings {
        RingSettings {
            is_in_use: !self.queue.is_live() || vring / 2 < usize::from(settings.queue_pairs),
            features: self.features_in_force(settings),
            wish: settings.coalescing.get(vring).copied().flatten(),
        }
    }

    /// Counts a command that was refused.
    pub fn refuse(&mut self) {
        self.refused += 1;
    }

    /// What a command comes to; nothing has changed yet. `None`: it makes no sense, or was not negotiated.
    pub fn plan(&self, command: &Command) -> Option<Planned> {
        let mut next = self.settings.clone();
        Some(Planned::Change(match *command {
            Command::QueuePairs(pairs) => {
                self.has(MQ).filter(|()| (1..=self.queue_pairs_max).contains(&pairs))?;
                next.with_queue_pairs(pairs)
            }
            Command::GuestOffloads(bits) => {
                let may_be = self.negotiated & features::guest_offload_bits();
                self.has(CTRL_GUEST_OFFLOADS).filter(|()| bits & !may_be == 0)?;
                Settings { guest_offloads: bits, ..next }
            }
            Command::CoalesceReceive(wish) => {
                self.has(NOTF_COAL)?;
                next.with_wish_of_all(Side::Receive, wish)
            }
            Command::CoalesceTransmit(wish) => {
                self.has(NOTF_COAL)?;
                next.with_wish_of_all(Side::Transmit, wish)
            }
            Command::CoalesceQueue(vring, wish) => {
                *next.coalescing.get_mut(self.coalesced_queue(vring)?)? = Some(coalescing(wish));
                next
            }
            Command::CoalescingOfQueue(vring) => {
                let wish = next.coalescing.get(self.coalesced_queue(vring)?)?.unwrap_or_default();
                let in_force = NotificationCoalescing { max_usecs: wish.max_usecs, max_packets: wish.max_packets };
                return Some(Planned::Answer(in_force.to_bytes().to_vec()));
            }
        }))
    }

    fn has(&self, feature: u64) -> Option<()> {
        (self.negotiated & feature != 0).then_some(())
    }

    /// A queue that the guest uses, if it may have a wish for a single one (V74).
    fn coalesced_queue(&self, vring: u16) -> Option<usize> {
        self.has(VQ_NOTF_COAL).filter(|()| vring / 2 < self.settings.queue_pairs)?;
        Some(usize::from(vring))
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

    /// Has a command in force at once; whether it makes sense.
    fn obey(control: &mut Control, command: Command) -> bool {
        let planned = control.plan(&command);
        if let Some(Planned::Change(next)) = planned {
            control.settings = next;
            return true;
        }
        planned.is_some()
    }

    fn wish(control: &Control, vring: usize) -> Option<Coalescing> {
        control.of_ring(&control.settings, vring).wish
    }

    #[test]
    fn the_last_wish_for_a_ring_wins_whichever_command_brought_it() {
        let mut control = control(ALL);
        obey(&mut control, Command::QueuePairs(2));
        let steps = [
            (Command::CoalesceReceive(FIRST), [Some(FIRST), None, Some(FIRST)]),
            (Command::CoalesceQueue(0, SECOND), [Some(SECOND), None, Some(FIRST)]),
            (Command::CoalesceTransmit(FIRST), [Some(SECOND), Some(FIRST), Some(FIRST)]),
            (Command::CoalesceReceive(SECOND), [Some(SECOND), Some(FIRST), Some(SECOND)]),
        ];
        for (command, expected) in steps {
            assert!(obey(&mut control, command));
            assert_eq!([0, 1, 2].map(|vring| wish(&control, vring)), expected.map(|wish| wish.map(coalescing)));
        }
    }

    #[test]
    fn a_queue_that_is_used_again_has_the_last_wish_for_all() {
        let mut control = control(ALL);
        obey(&mut control, Command::QueuePairs(2));
        obey(&mut control, Command::CoalesceReceive(FIRST));
        obey(&mut control, Command::CoalesceQueue(2, SECOND));
        obey(&mut control, Command::CoalesceQueue(3, SECOND));
        obey(&mut control, Command::QueuePairs(1));
        obey(&mut control, Command::QueuePairs(2));
        assert_eq!([2, 3].map(|vring| wish(&control, vring)), [Some(coalescing(FIRST)), None]);
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
            assert_eq!(control(ALL & !feature).plan(&command), None, "{command:?}");
            assert!(control(ALL).plan(&command).is_some(), "{command:?}");
        }
        let control = control(ALL);
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
            assert_eq!(control.plan(&command), None, "{command:?}");
        }
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
        assert!(obey(&mut control, Command::QueuePairs(2)));
        control.stopped(9);
        control.set_features(MQ | LOG_ALL);
        assert!(!control.is_new(9), "a migration began");
        assert_eq!(control.settings.queue_pairs, 2);
    }
}

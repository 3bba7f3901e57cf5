//! Executes the commands of the guest's control queue, and applies the resulting settings to the guest's data rings.

use super::{Device, Refused};
use crate::vhost_user::control::{Control, ControlStatus, Planned, RingSettings, Settings};
use crate::vhost_user::mailbox::{self, NobodyThere, Sender};
use crate::vhost_user::queue::{QueueState, Request, Side};
use offramp_virtio::control::statistics::{StatisticsOf, StatisticsTypes, append_reply};
use offramp_virtio::control::{self, Command};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Device {
    /// Handles the start of the control queue. Clears the guest's settings if the driver was reset.
    pub(super) fn control_started(&mut self, base: u32) -> Result<(), Refused> {
        let Some(control) = &mut self.control else { return Ok(()) };
        if control.is_new(base) {
            control.forget();
        }
        self.follow_control()
    }

    /// Executes the next command. Returns whether a chain was available, with or without a valid command.
    pub(crate) fn serve_control(&mut self) -> bool {
        let Some(chain) = self.control.as_mut().and_then(|control| control.queue.next_command()) else { return false };
        if let Ok(request) = chain {
            let answer = self.obey(&request);
            self.control.iter_mut().for_each(|control| control.queue.answer(&request, &answer));
        }
        true
    }

    /// Executes a command and returns the answer.
    fn obey(&mut self, request: &Request) -> Vec<u8> {
        self.control.iter_mut().for_each(Control::begin);
        let room = request.answer_len_max - 1;
        let planned = Command::parse(&request.bytes).and_then(|command| self.control.as_ref()?.plan(&command));
        let fields = match planned {
            Some(Planned::Answer(fields)) => Some(fields).filter(|fields| fields.len() <= room),
            Some(Planned::Change(next)) => self.change(&next).ok().map(|()| Vec::new()),
            Some(Planned::Statistics(of)) => self.statistics(&of, room),
            None => None,
        };
        self.control.iter_mut().for_each(|control| control.end(fields.is_some()));
        fields.map_or(vec![control::ERR], |fields| [&[control::OK][..], &fields].concat())
    }

    /// Returns statistics of queues: as many whole replies as fit into `room` bytes (requirement V86 in
    /// `docs/vhost-user.md`).
    fn statistics(&self, of: &[StatisticsOf], room: usize) -> Option<Vec<u8>> {
        let of_control = self.control.as_ref()?.statistics();
        let pair_of = |vq_index: u16| Side::of(vq_index.into()).1;
        let of_data = of.iter().filter(|of| of.types.intersects(StatisticsTypes::RX | StatisticsTypes::TX));
        let of_data = of_data.map(|of| pair_of(of.vq_index));
        // Query each pair only once, even if a command names the pair repeatedly. Send all queries before waiting for
        // the first answer.
        let pairs: BTreeSet<usize> = of_data.collect();
        let ask = |pair: &usize| self.queues.get(*pair)?.begin(|state| state.all_statistics()).ok();
        let asked: Vec<_> = pairs.iter().map(ask).collect();
        let answers = pairs.into_iter().zip(mailbox::wait_for_all(asked));
        let of_pairs: BTreeMap<usize, Vec<(StatisticsTypes, Vec<u64>)>> =
            answers.map(|(pair, answer)| Some((pair, answer??))).collect::<Option<_>>()?;
        let mut replies = Vec::new();
        for (vq_index, kind) in of.iter().flat_map(|of| of.types.iter().map(|kind| (of.vq_index, kind))) {
            let counters = match kind {
                StatisticsTypes::CVQ => &of_control[..],
                _ => &of_pairs.get(&pair_of(vq_index))?.iter().find(|(of_kind, _)| *of_kind == kind)?.1,
            };
            let len = replies.len();
            append_reply(&mut replies, vq_index, kind, counters);
            if replies.len() > room {
                replies.truncate(len);
                break;
            }
        }
        Some(replies)
    }

    /// Applies the guest's settings. If a ring does not apply the change, all other rings are restored to the old
    /// settings.
    fn change(&mut self, next: &Settings) -> Result<(), Refused> {
        let Some(control) = &self.control else { return Ok(()) };
        let now = control.settings.clone();
        let differs = |vring: &usize| control.of_ring(&now, *vring) != control.of_ring(next, *vring);
        let changed: Vec<usize> = self.data_vrings().filter(differs).collect();
        let followed = self.follow(&changed, next);
        if followed.len() < changed.len() {
            let restored = self.follow(&followed, &now);
            // A ring without an answer may still have applied the change at the last moment. The work queued here
            // restores the ring when its thread next wakes up.
            for vring in changed.iter().filter(|vring| !restored.contains(vring)) {
                if let Some((queue, work)) = self.work_to_follow(*vring, &now) {
                    let _ = queue.ask(work);
                }
            }
            return Err(NobodyThere.into());
        }
        self.control.iter_mut().for_each(|control| control.settings = next.clone());
        Ok(())
    }

    /// Applies the guest's settings to all data rings.
    pub(super) fn follow_control(&self) -> Result<(), Refused> {
        let Some(control) = &self.control else { return Ok(()) };
        let vrings: Vec<usize> = self.data_vrings().collect();
        let followed = self.follow(&vrings, &control.settings);
        if followed.len() == vrings.len() { Ok(()) } else { Err(NobodyThere.into()) }
    }

    fn data_vrings(&self) -> impl Iterator<Item = usize> {
        (0..2 * self.queues.len()).filter(|vring| !self.is_control(*vring))
    }

    /// Applies the guest's settings and the frontend's enabled states to data rings. All requests are sent before the
    /// first wait, so that a thread with several rings is woken once. Returns the rings whose threads answered in time.
    fn follow(&self, vrings: &[usize], settings: &Settings) -> Vec<usize> {
        let ask =
            |vring: &usize| self.work_to_follow(*vring, settings).and_then(|(queue, work)| queue.begin(work).ok());
        let asked: Vec<_> = vrings.iter().map(ask).collect();
        let answers = vrings.iter().zip(mailbox::wait_for_all(asked));
        answers.filter_map(|(vring, answer)| answer.map(|()| *vring)).collect()
    }

    /// Returns the work that applies the settings to a data ring, and the ring's mailbox.
    fn work_to_follow(
        &self,
        vring: usize,
        settings: &Settings,
    ) -> Option<(&Sender<QueueState>, impl FnOnce(&mut QueueState) + Send + use<>)> {
        let RingSettings { is_in_use, features, wish, filter, rss } = self.control.as_ref()?.of_ring(settings, vring);
        let is_enabled = self.vrings.get(vring)?.is_enabled;
        let (side, pair) = Side::of(vring);
        let work = move |state: &mut QueueState| {
            state.set_features(features);
            state.coalesce(side, wish);
            state.set_filter(filter);
            state.set_rss(rss);
            if let Some(is_enabled) = is_enabled {
                state.set_enabled(side, is_enabled && is_in_use);
            }
        };
        Some((self.queues.get(pair)?, work))
    }

    /// Applies the frontend's enabled state to a data ring. A receive ring is enabled only if the guest uses its pair.
    pub(super) fn follow_enabled(&mut self, vring: usize) -> Result<(), Refused> {
        let of_ring = self.control.as_ref().map(|control| control.of_ring(&control.settings, vring));
        let is_in_use = of_ring.is_none_or(|of_ring| of_ring.is_in_use);
        let Some(is_enabled) = self.vring(vring)?.is_enabled else { return Ok(()) };
        self.run(vring, move |state, side| state.set_enabled(side, is_enabled && is_in_use))
    }

    /// Returns the guest's settings, if the port serves a running control queue.
    pub(crate) fn control_status(&self) -> Option<ControlStatus> {
        self.control.as_ref()?.status()
    }

    /// Returns whether the control queue runs without kicks and must be polled.
    pub(crate) fn is_control_unannounced(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.queue.is_live() && control.kick.is_none())
    }

    /// Returns the kick descriptor of the control queue, if the queue is running.
    pub(crate) fn control_kick(&self) -> Option<Arc<OwnedFd>> {
        self.control.as_ref().filter(|control| control.queue.is_live())?.kick.clone()
    }
}

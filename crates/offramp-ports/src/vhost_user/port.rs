//! All queue pairs of a guest in one thread.

use super::queue::VhostQueue;
use super::rss::{FrameHash, Rss};
use offramp_adapter::host_io::HostIo;
use offramp_adapter::port::{HostPort, InPlace, Interrupts, PortError};
use offramp_adapter::steering::{Choice, FlowHash, Steering};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Room;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_offload::vlan::TagChange;
use std::os::fd::BorrowedFd;

/// Number of fetched bytes after which the turn of a queue pair ends: the length of a long super-frame.
const TURN_BYTES: usize = 1 << 16;

/// All queue pairs of a [`VhostUser`](super::VhostUser) as one host port, for a thread that serves all pairs, such as a
/// switch.
///
/// The port fetches frames from the pairs in turn. Received frames are steered over the guest's pairs in use, as
/// described in [`steering`](offramp_adapter::steering). A port with one pair has no steering cost.
#[derive(Debug)]
pub struct VhostPort {
    queues: Vec<VhostQueue>,
    /// Index of the pair of the last fetched frame, and the bytes fetched from this pair in the current turn.
    fetched_from: usize,
    turn_bytes: usize,
    /// Index of the pair of the last delivered frame.
    delivered_to: usize,
    /// `None` for a port with one pair.
    steering: Option<Box<Steering>>,
    /// True if the port has determined in this batch on which pairs the guest receives. The port does so at most once
    /// per batch, so that a guest with a broken ring does not cause a scan per frame.
    has_looked: bool,
}

impl VhostPort {
    /// Returns a port on `queues`, or `None` if `queues` is empty.
    pub fn new(queues: Vec<VhostQueue>) -> Option<Self> {
        let steering = (queues.len() > 1).then(Box::default);
        let (fetched_from, turn_bytes, delivered_to, has_looked) = (0, 0, 0, false);
        (!queues.is_empty()).then_some(Self { queues, fetched_from, turn_bytes, delivered_to, steering, has_looked })
    }

    /// Fetches a frame from the pairs in turn. A turn lasts for a batch, or for [`TURN_BYTES`]. Returns whether a pair
    /// had a frame. A queue pair applies requested changes before its batch, so every pair must get its turn.
    #[inline]
    fn fetch_any(&mut self, now_ns: u64) -> Result<bool, PortError> {
        if self.queues.len() == 1 {
            return self.queues[0].tx_next(now_ns);
        }
        if self.turn_bytes >= TURN_BYTES || !self.queues[self.fetched_from].has_fetched() {
            self.turn_to_next();
            self.set_now(now_ns);
        }
        let (mut fetched, mut has_changed, mut passed_cost_bytes) = (Ok(false), false, 0);
        for _ in 0..self.queues.len() {
            let queue = &mut self.queues[self.fetched_from];
            fetched = queue.tx_next(now_ns);
            has_changed |= queue.take_changed();
            match fetched {
                Ok(false) => {
                    passed_cost_bytes += queue.take_cost_bytes();
                    self.turn_to_next();
                }
                Ok(true) => {
                    self.turn_bytes += queue.fetched_len();
                    break;
                }
                Err(_) => break,
            }
        }
        if has_changed {
            self.show_before_change();
        }
        if passed_cost_bytes > 0 {
            // Also charge the cost of the pairs that had no frame, because a guest can refill a disabled ring before
            // each fetch from another pair.
            self.queues[self.fetched_from].charge(passed_cost_bytes);
        }
        fetched
    }

    fn set_now(&mut self, now_ns: u64) {
        if let Some(steering) = &mut self.steering {
            steering.set_now(now_ns);
        }
    }

    /// Publishes the received frames before any flow moves to another pair.
    #[cold]
    fn show_before_change(&mut self) {
        self.queues.iter_mut().for_each(VhostQueue::publish_received);
        self.look_which_receive();
    }

    /// Ends the turn of a pair, and publishes its sent chains to the guest.
    #[inline]
    fn turn_to_next(&mut self) {
        self.queues[self.fetched_from].publish_sent();
        let next = self.fetched_from + 1;
        self.fetched_from = if next == self.queues.len() { 0 } else { next };
        self.turn_bytes = 0;
    }

    /// Records the guest's transmit pair for the flow of the last fetched frame.
    fn note_sent(&mut self) {
        let Some(steering) = &mut self.steering else { return };
        let Some(flow) = steering.flow(&self.queues[self.fetched_from].tx_lend()) else { return };
        let choice = steering.sent(flow, self.fetched_from);
        self.leave(choice);
    }

    /// Returns the guest's hash settings. All queues have the same settings, except during a change.
    #[inline]
    fn rss(&self) -> Option<&Rss> {
        self.queues[0].rss()
    }

    /// Returns whether the pair exists and the guest receives on the pair.
    #[inline]
    fn receives_on(&self, pair: usize) -> bool {
        self.queues.get(pair).is_some_and(VhostQueue::receives)
    }

    /// Returns the pair on which to deliver a frame with this hash: the pair chosen by the guest, if the guest receives
    /// on that pair. During a change of the settings, it is possible that the guest does not receive on the chosen
    /// pair.
    #[inline]
    fn pair_of(&mut self, meta: &RxMeta, hash: FrameHash) -> usize {
        match self.rss().and_then(|rss| rss.pair(hash)) {
            Some(pair) if self.receives_on(pair) => return pair,
            Some(_) => {
                self.look_once();
            }
            None => {}
        }
        self.choose(meta)
    }

    /// Chooses the pair on which to deliver a frame. The choice and the hash report both need the frame's hash, which
    /// is returned.
    fn hash_and_choose(&mut self, meta: &RxMeta, headers: &[u8]) -> FrameHash {
        let hash = self.rss().map(|rss| rss.hash(meta, headers)).unwrap_or_default();
        self.delivered_to = self.pair_of(meta, hash);
        hash
    }

    /// Returns the pair on which to deliver a frame, as chosen by the port.
    fn choose(&mut self, meta: &RxMeta) -> usize {
        let Some(steering) = &mut self.steering else { return 0 };
        let choice = steering.receive(meta.hash.map(FlowHash::from));
        if !self.queues[choice.pair].receives() && self.look_once() {
            // The guest stopped using the pair during this batch.
            return self.choose(meta);
        }
        self.leave(choice)
    }

    /// Returns the pair on which the guest would have received a lost frame, without moving a flow. `frames` is the
    /// number of frames that the lost frame would have made on the wire. An encrypted frame is hashed by its outer
    /// headers, because a lost frame is not decrypted.
    fn would_receive(&self, frame: &Frame<'_>, frames: usize) -> usize {
        let wanted = self.rss().and_then(|rss| rss.pair_of(frame, frames)).filter(|pair| self.receives_on(*pair));
        let by_port = || {
            let flow = self.steering().and_then(|steering| steering.flow(frame));
            Some(self.steering.as_ref()?.would_receive(flow))
        };
        wanted.or_else(by_port).unwrap_or(0)
    }

    /// If the flow moves, publishes the received frames on the flow's old pair. Returns the flow's new pair.
    fn leave(&mut self, choice: Choice) -> usize {
        if let Some(left) = choice.left {
            self.queues[left].publish_received();
        }
        choice.pair
    }

    /// Calls [`Self::look_which_receive`], at most once per batch.
    #[cold]
    fn look_once(&mut self) -> bool {
        let has_changed = !self.has_looked && self.look_which_receive();
        self.has_looked = true;
        has_changed
    }

    /// Determines on which pairs the guest receives. Returns whether these pairs have changed.
    fn look_which_receive(&mut self) -> bool {
        self.has_looked = false;
        let Self { queues, steering: Some(steering), .. } = self else { return false };
        let receiving = queues.iter().enumerate().filter(|(_, queue)| queue.receives()).map(|(pair, _)| pair);
        let has_changed = steering.set_pairs(receiving);
        if has_changed {
            // Publish all received frames, because any flow may now use another pair.
            queues.iter_mut().for_each(VhostQueue::publish_received);
        }
        has_changed
    }
}

impl InPlace for VhostPort {
    /// Starts a frame in the guest's buffers only if the port has one pair. With several pairs, steering may choose
    /// another pair before the frame is complete.
    #[inline]
    fn rx_reserve(&mut self, slot: usize, head: &[u8]) -> bool {
        self.steering.is_none() && self.queues[0].rx_reserve(slot, head)
    }

    #[inline]
    fn rx_room(&mut self, slot: usize, len: usize, count: usize) -> Room<'_> {
        self.queues[0].rx_room(slot, len, count)
    }

    #[inline]
    fn rx_fill(&mut self, slot: usize, len: usize) {
        self.queues[0].rx_fill(slot, len);
    }

    #[inline]
    fn rx_commit(&mut self, slot: usize, meta: &RxMeta, head: &[u8], len: usize) -> Result<(), PortError> {
        self.queues[0].rx_commit(slot, meta, head, len)
    }

    #[inline]
    fn rx_wants_commit(&self) -> bool {
        self.queues[0].rx_wants_commit()
    }
}

impl HostPort for VhostPort {
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let has_frame = self.fetch_any(now_ns)?;
        if has_frame {
            self.note_sent();
        }
        Ok(has_frame)
    }

    fn tx_hold(&mut self) {
        let mut cost_bytes = 0;
        for queue in &mut self.queues {
            queue.tx_hold();
            cost_bytes += queue.take_cost_bytes();
        }
        self.queues[self.fetched_from].charge(cost_bytes);
        // With one pair, no flow moves, and the pair's ring may hold frames that are still being coalesced.
        if self.steering.is_some() && self.queues.iter_mut().fold(false, |any, queue| any | queue.take_changed()) {
            self.show_before_change();
        }
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.queues[self.fetched_from].tx_frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.queues[self.fetched_from].tx_frame_with_tag(change)
    }

    fn tx_lend(&mut self) -> Frame<'_> {
        self.queues[self.fetched_from].tx_lend()
    }

    fn tx_lend_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.queues[self.fetched_from].tx_lend_with_tag(change)
    }

    #[inline]
    fn tx_cost_bytes(&self) -> usize {
        self.queues[self.fetched_from].tx_cost_bytes()
    }

    #[inline]
    fn tx_queue(&self) -> usize {
        self.fetched_from
    }

    #[inline]
    fn rx_queue(&self) -> usize {
        self.delivered_to
    }

    /// Returns the port's steering, or `None` if the port has one pair or the guest chooses the pair.
    #[inline]
    fn steering(&self) -> Option<&Steering> {
        self.steering.as_deref().filter(|_| !self.rss().is_some_and(Rss::spreads))
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let hash = self.hash_and_choose(meta, frame);
        self.queues[self.delivered_to].deliver_hashed(meta, frame, hash)
    }

    fn rx_takes_shared(&self) -> bool {
        true
    }

    fn rx_deliver_lent(&mut self, meta: &RxMeta, frame: &Frame<'_>) -> Result<(), PortError> {
        let hash = self.hash_and_choose(meta, frame.bytes());
        self.queues[self.delivered_to].deliver_lent_hashed(meta, frame, hash)
    }

    fn rx_lost_to_limit(&mut self, frame: &Frame<'_>, frames: usize, bytes: usize) {
        // All queues have the same negotiated features, except during a change.
        if self.queues[0].has_statistics() {
            let pair = self.would_receive(frame, frames);
            self.queues[pair].rx_lost_to_limit(frame, frames, bytes);
        }
    }

    fn rx_flush(&mut self, now_ns: u64) {
        self.queues.iter_mut().for_each(|queue| queue.rx_flush(now_ns));
        self.look_which_receive();
        self.set_now(now_ns);
    }

    /// Returns the interrupts of a pair: a guest has separate interrupts for each pair.
    fn interrupts(&mut self, queue: usize) -> Option<&mut dyn Interrupts> {
        self.queues.get_mut(queue).map(|queue| queue as &mut dyn Interrupts)
    }

    fn accepts(&self) -> Offloads {
        self.queues[0].accepts()
    }
}

impl HostIo for VhostPort {
    fn arm(&mut self) {
        self.queues.iter_mut().for_each(HostIo::arm);
        self.look_which_receive();
    }

    fn disarm(&mut self) {
        self.queues.iter_mut().for_each(HostIo::disarm);
        self.look_which_receive();
    }

    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        for queue in &self.queues {
            queue.watch(is_held, watch);
        }
    }

    fn is_unannounced(&self) -> bool {
        self.queues.iter().any(HostIo::is_unannounced)
    }
}

//! The line between two stations: half duplex with collisions (IEEE 802.3 CSMA/CD), or full duplex.
//!
//! The link decides who sends and when; its owner stores the frames. It asks for events through [`Action`], and the owner
//! delivers them by [`Link::on_free`] and [`Link::on_ready`].

use crate::time::{Span, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Preamble, start delimiter and FCS, in byte times (IEEE 802.3 4.2).
const FRAMING_LEN: u64 = 12;
/// The gap between two frames, in byte times (IEEE 802.3 4.4.2: 96 bit times).
pub const INTERFRAME_GAP_LEN: u64 = 12;
/// Shortest frame without FCS, bytes.
pub const FRAME_LEN_MIN: u64 = 60;
/// A slot of the back-off, in byte times (IEEE 802.3 4.4.2: 512 bit times).
const SLOT_LEN: u64 = 64;
/// A collision occupies the line for the preamble and the jam, in byte times (IEEE 802.3 4.2.3.2.4: 64 and 32 bits).
const COLLISION_LEN: u64 = 12;
/// Most doublings of the back-off (IEEE 802.3 4.2.3.2.5).
const BACKOFF_DOUBLINGS_MAX: u32 = 10;
/// A frame that collided so often is given up (IEEE 802.3 4.2.3.2.5).
pub const ATTEMPTS_MAX: u32 = 16;

/// Stations on a line.
pub const STATIONS: usize = 2;
/// Which end of the link; 0 is the host under study, 1 its peer.
pub type Station = usize;

/// What a line is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second.
    pub rate_bps: u64,
    /// Both stations may send at once.
    pub full_duplex: bool,
    /// From one end to the other.
    pub delay: Span,
}

impl LinkConfig {
    /// Time that a frame of `len` bytes without FCS occupies the line, without the gap after it.
    pub fn frame_time(&self, len: u64) -> Span {
        Span::of_bytes_at(len.max(FRAME_LEN_MIN) + FRAMING_LEN, self.rate_bps)
    }

    /// The gap between two frames.
    pub fn gap(&self) -> Span {
        Span::of_bytes_at(INTERFRAME_GAP_LEN, self.rate_bps)
    }

    fn slot(&self) -> Span {
        Span::of_bytes_at(SLOT_LEN, self.rate_bps)
    }
}

/// What a line asks its owner to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: the station waits its turn.
    None,
    /// This station's frame is on the wire from now on; its last bit arrives at the other end after
    /// [`LinkConfig::frame_time`] and the delay.
    Start(Station),
    /// Both collided. Call [`Link::on_free`] at `free`, and [`Link::on_ready`] for each station at its moment; a
    /// station whose moment is `None` has given up its frame.
    Collision {
        /// When the line is free again.
        free: Time,
        /// When each station tries again.
        retry: [Option<Time>; STATIONS],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Idle,
    /// A station sends since this moment.
    Sending(Station, Time),
    /// A gap or a jam.
    Closed,
}

/// A line and who waits for it. The state of a half-duplex one is shared by both stations.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    medium: [Medium; STATIONS],
    waits: [bool; STATIONS],
    attempts: [u32; STATIONS],
    /// Collisions so far.
    pub collisions: u64,
    /// Frames that were given up after [`ATTEMPTS_MAX`] collisions.
    pub excessive_collisions: u64,
}

impl Link {
    /// A line that is free.
    pub fn new(config: LinkConfig) -> Self {
        Self {
            config,
            medium: [Medium::Idle; STATIONS],
            waits: [false; STATIONS],
            attempts: [0; STATIONS],
            collisions: 0,
            excessive_collisions: 0,
        }
    }

    /// What it is like.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// A station has a frame to send, and has waited for whatever it waits for between two frames.
    pub fn on_ready(&mut self, station: Station, now: Time, rng: &mut ChaCha8Rng) -> Action {
        let lane = self.lane(station);
        match self.medium[lane] {
            Medium::Idle => self.start(station, now),
            Medium::Sending(other, since) if other != station && now.since(since) < self.config.delay => {
                self.collide(now, rng)
            }
            _ => {
                self.waits[station] = true;
                Action::None
            }
        }
    }

    /// A station has another frame to send when the line, which is closed, is free again.
    pub fn wait(&mut self, station: Station) {
        self.waits[station] = true;
    }

    /// A station's frame has left. Returns when to call [`Link::on_free`] for it.
    pub fn on_sent(&mut self, station: Station, now: Time) -> Time {
        self.medium[self.lane(station)] = Medium::Closed;
        self.attempts[station] = 0;
        now + self.config.gap()
    }

    /// The line (or this station's half of it) is free.
    pub fn on_free(&mut self, station: Station, now: Time, rng: &mut ChaCha8Rng) -> Action {
        self.medium[self.lane(station)] = Medium::Idle;
        if self.config.full_duplex {
            return if self.waits[station] { self.start(station, now) } else { Action::None };
        }
        match self.waits {
            [true, true] => self.collide(now, rng),
            [true, false] => self.start(0, now),
            [false, true] => self.start(1, now),
            [false, false] => Action::None,
        }
    }

    fn lane(&self, station: Station) -> usize {
        if self.config.full_duplex { station } else { 0 }
    }

    fn start(&mut self, station: Station, now: Time) -> Action {
        self.waits[station] = false;
        self.medium[self.lane(station)] = Medium::Sending(station, now);
        Action::Start(station)
    }

    /// Both stations began within the delay of the link.
    fn collide(&mut self, now: Time, rng: &mut ChaCha8Rng) -> Action {
        self.collisions += 1;
        self.waits = [false; STATIONS];
        self.medium[0] = Medium::Closed;
        let over = now + Span::of_bytes_at(COLLISION_LEN, self.config.rate_bps) + self.config.delay;
        let retry = std::array::from_fn(|station| self.back_off(station, rng).map(|wait| over + wait));
        Action::Collision { free: over + self.config.gap(), retry }
    }

    /// Truncated binary exponential back-off; `None` when the frame is given up.
    fn back_off(&mut self, station: Station, rng: &mut ChaCha8Rng) -> Option<Span> {
        self.attempts[station] += 1;
        if self.attempts[station] >= ATTEMPTS_MAX {
            self.attempts[station] = 0;
            self.excessive_collisions += 1;
            return None;
        }
        let doublings = self.attempts[station].min(BACKOFF_DOUBLINGS_MAX);
        Some(self.config.slot().times(rng.random_range(0..1u64 << doublings)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn ethernet10() -> LinkConfig {
        LinkConfig { rate_bps: 10_000_000, full_duplex: false, delay: Span::us(5) }
    }

    #[test]
    fn frames_and_gaps_take_the_time_of_the_standard() {
        let link = ethernet10();
        assert_eq!(link.frame_time(1514) + link.gap(), Span::ns(1_230_400));
        assert_eq!(link.frame_time(20) + link.gap(), Span::ns(67_200));
        assert_eq!(link.slot(), Span::ns(51_200));
    }

    #[test]
    fn two_that_wait_for_the_same_frame_to_end_collide_and_one_that_waits_alone_does_not() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut link = Link::new(ethernet10());
        assert_eq!(link.on_ready(0, Time(0), &mut rng), Action::Start(0));
        assert_eq!(link.on_ready(1, Time(0) + Span::us(50), &mut rng), Action::None);
        let free = link.on_sent(0, Time(0) + Span::us(100));
        assert_eq!(link.on_free(0, free, &mut rng), Action::Start(1));
        assert_eq!(link.on_ready(0, free + Span::us(9), &mut rng), Action::None);
        let free = link.on_sent(1, free + Span::us(100));
        assert_eq!(link.on_ready(1, free, &mut rng), Action::None);
        assert!(matches!(link.on_free(1, free, &mut rng), Action::Collision { .. }));
    }

    #[test]
    fn who_begins_before_the_first_bit_of_the_other_has_come_collides() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut link = Link::new(ethernet10());
        link.on_ready(0, Time(0), &mut rng);
        let Action::Collision { free, retry } = link.on_ready(1, Time(0) + Span::us(4), &mut rng) else {
            panic!("no collision");
        };
        assert!(retry.iter().flatten().all(|&at| at >= Time(0) + Span::us(4)));
        assert!(free > Time(0) + Span::us(4));
    }

    #[test]
    fn a_frame_that_always_collides_is_given_up_at_the_sixteenth_time() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut link = Link::new(ethernet10());
        for attempt in 1..=ATTEMPTS_MAX {
            let gave_up = link.back_off(0, &mut rng).is_none();
            assert_eq!(gave_up, attempt == ATTEMPTS_MAX);
        }
        assert_eq!(link.excessive_collisions, 1);
    }

    #[test]
    fn full_duplex_stations_do_not_wait_for_each_other() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut link = Link::new(LinkConfig { full_duplex: true, ..ethernet10() });
        assert_eq!(link.on_ready(0, Time(0), &mut rng), Action::Start(0));
        assert_eq!(link.on_ready(1, Time(0), &mut rng), Action::Start(1));
        assert_eq!(link.on_ready(0, Time(1), &mut rng), Action::None, "it still sends");
    }
}

//! The link between two stations: half duplex with collisions (IEEE 802.3 CSMA/CD), or full duplex.
//!
//! On a half-duplex link, each station senses the other station's carrier after the propagation delay. A station sends
//! when it has a frame, is ready, and has sensed no carrier for an interframe gap. A station's transmission collides
//! with a frame whose carrier has not yet reached the station. During the last third of the gap, a station ignores
//! carrier (IEEE 802.3 4.2.3.2.2). Two stations that wait for the end of the same frame therefore collide.
//!
//! The link decides which station sends, and when. The caller stores the frames, and calls [`Link::begin`] at the times
//! returned by the link.

use crate::time::{Span, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Length of preamble and start frame delimiter, in byte times (IEEE 802.3 4.2).
pub const PREAMBLE_LEN: u64 = 8;
/// Length of the frame check sequence, in bytes.
pub const FCS_LEN: u64 = 4;
/// Length of the jam after a collision, in byte times (IEEE 802.3 4.2.3.2.4: 32 bits).
const JAM_LEN: u64 = 4;
/// The interframe gap, in byte times (IEEE 802.3 4.4.2: 96 bit times).
pub const INTERFRAME_GAP_LEN: u64 = 12;
/// Divisor of the interframe gap: a waiting station ignores carrier in the last third of the gap (IEEE 802.3
/// 4.2.3.2.2).
const DEAF_PARTS: u64 = 3;
/// Length of the shortest frame without FCS, bytes.
pub const FRAME_LEN_MIN: u64 = 60;
/// The slot time of the back-off, in byte times (IEEE 802.3 4.4.2: 512 bit times; 4096 at 1 Gbit/s).
const SLOT_LEN: u64 = 64;
const SLOT_LEN_GIGABIT: u64 = 512;
/// Maximum rate of a half-duplex link, in bits per second (IEEE 802.3 4.4.2). At this rate, a short frame is extended
/// to the length of a slot (4.2.3.4).
const GIGABIT: u64 = 1_000_000_000;
/// Maximum number of doublings of the back-off (IEEE 802.3 4.2.3.2.5).
const BACKOFF_DOUBLINGS_MAX: u32 = 10;
/// Number of collisions after which a station gives up a frame (IEEE 802.3 4.2.3.2.5).
pub const ATTEMPTS_MAX: u32 = 16;

/// Number of stations on a link.
pub const STATIONS: usize = 2;
/// Index of a station: 0 is the host under study, 1 is the peer.
pub type Station = usize;

/// The properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Rate, in bits per second.
    pub rate_bps: u64,
    /// `true` if both stations can send at the same time.
    pub full_duplex: bool,
    /// One-way propagation delay.
    pub delay: Span,
}

impl LinkConfig {
    /// Returns the time on the link of a frame of `len` bytes without FCS. The interframe gap is not included.
    pub fn frame_time(&self, len: u64) -> Span {
        let is_extended = !self.full_duplex && self.rate_bps == GIGABIT;
        let least = if is_extended { SLOT_LEN_GIGABIT } else { FRAME_LEN_MIN + FCS_LEN };
        self.byte_times(PREAMBLE_LEN + (len + FCS_LEN).max(least))
    }

    /// Returns the interframe gap.
    pub fn gap(&self) -> Span {
        self.byte_times(INTERFRAME_GAP_LEN)
    }

    fn slot(&self) -> Span {
        self.byte_times(if self.rate_bps == GIGABIT { SLOT_LEN_GIGABIT } else { SLOT_LEN })
    }

    fn byte_times(&self, len: u64) -> Span {
        Span::of_bytes_at(len, self.rate_bps)
    }

    /// Checks the rate and the delay of a half-duplex link: a station must detect a collision while it sends its
    /// shortest frame. A full-duplex link is always valid.
    ///
    /// # Errors
    /// Returns the name of the invalid parameter, and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let round_trip = self.delay.times(2);
        if self.full_duplex {
            Ok(())
        } else if self.rate_bps > GIGABIT {
            let why = "stations share a line up to 1 Gbit/s (IEEE 802.3 4.4.2); set it to \"full\"";
            Err(("link.duplex", why.to_owned()))
        } else if round_trip > self.slot() {
            let (longest, delay) = (self.slot().as_us() / 2.0, self.delay.as_us());
            let why = format!(
                "the delay is {delay:.1} us; stations on a shared line of this rate may be at most {longest:.1} us \
                 apart, to detect collisions while sending"
            );
            Err(("link.delay", why))
        } else {
            Ok(())
        }
    }
}

/// The scheduled start of a station's transmission. Call [`Link::begin`] with this value at the time `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The station that sends.
    pub station: Station,
    /// Start of the transmission.
    pub at: Time,
    /// Serial number. A later `Begin` of the station invalidates this `Begin`.
    generation: u64,
}

/// The result of a station's attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// No transmission started, because a later [`Begin`] has replaced this [`Begin`].
    None,
    /// The transmission has started.
    Start {
        /// End of the transmission. Call [`Link::sent`] at this time, unless a collision has ended the transmission
        /// earlier.
        ends: Time,
        /// Changed start of the other station's transmission, if the other station has requested the link and must
        /// defer.
        other: Option<Begin>,
    },
    /// The transmissions of both stations collided.
    Collision {
        /// Time at which each station can request the link again.
        retry: [Time; STATIONS],
        /// `true` for each station that gave up its frame.
        gave_up: [bool; STATIONS],
    },
}

/// The state of one station on the link.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// Start and end of the current transmission of this station.
    sends: Option<(Time, Time)>,
    /// Time since which this station has neither sent nor sensed carrier. A transmission in progress is not included.
    quiet_from: Time,
    /// Time at which the station requested the link.
    asked: Option<Time>,
    generation: u64,
    attempts: u32,
}

/// A half-duplex link between two stations.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    ends: [End; STATIONS],
    /// Number of collisions.
    pub collisions: u64,
    /// Number of frames given up after [`ATTEMPTS_MAX`] collisions.
    pub excessive_collisions: u64,
}

impl Link {
    /// Creates an idle link.
    pub fn new(config: LinkConfig) -> Self {
        Self { config, ends: [End::default(); STATIONS], collisions: 0, excessive_collisions: 0 }
    }

    /// Requests the link for a station that is ready to send a frame. Returns the scheduled start.
    pub fn ask(&mut self, station: Station, now: Time) -> Begin {
        self.ends[station].asked = Some(now);
        self.expect(station, now)
    }

    /// Returns the scheduled start of a station that requested the link at `asked`.
    fn expect(&mut self, station: Station, asked: Time) -> Begin {
        let at = self.begins_at(station, asked);
        let end = &mut self.ends[station];
        end.generation += 1;
        Begin { station, at, generation: end.generation }
    }

    fn begins_at(&self, station: Station, asked: Time) -> Time {
        let LinkConfig { delay, .. } = self.config;
        let gap = self.config.gap();
        let clear = self.ends[station].quiet_from + gap;
        let at = asked.max(clear);
        let Some((began, ends)) = self.ends[1 - station].sends else { return at };
        let listens_until = if at > asked { Time(at.0 - gap.0 / DEAF_PARTS) } else { at };
        if began + delay <= listens_until { at.max(ends + delay + gap) } else { at }
    }

    /// Starts the transmission scheduled by `begin`, with a duration of `frame_time`.
    pub fn begin(&mut self, begin: Begin, frame_time: Span, rng: &mut ChaCha8Rng) -> Action {
        let Begin { station, at: now, generation } = begin;
        let other = 1 - station;
        if self.ends[station].generation != generation || self.ends[station].asked.is_none() {
            return Action::None;
        }
        self.ends[station].asked = None;
        if let Some((began, _)) = self.ends[other].sends.filter(|&(_, ends)| now < ends + self.config.delay) {
            return self.collide(station, now, began, rng);
        }
        let ends = now + frame_time;
        self.ends[station].sends = Some((now, ends));
        let deferred = self.ends[other].asked.filter(|&asked| self.begins_at(other, asked) > ends);
        Action::Start { ends, other: deferred.map(|asked| self.expect(other, asked)) }
    }

    /// Ends a station's transmission, when the last bit has left the station.
    pub fn sent(&mut self, station: Station, now: Time) {
        let delay = self.config.delay;
        let end = &mut self.ends[station];
        (end.sends, end.attempts) = (None, 0);
        end.quiet_from = end.quiet_from.max(now);
        let other = &mut self.ends[1 - station];
        other.quiet_from = other.quiet_from.max(now + delay);
    }

    /// Ends two colliding transmissions. The station started at `now`, before sensing the carrier of the other station.
    /// The other station started at `began`. Each station completes its preamble, senses the collision, and sends the
    /// jam.
    fn collide(&mut self, station: Station, now: Time, began: Time, rng: &mut ChaCha8Rng) -> Action {
        self.collisions += 1;
        let LinkConfig { delay, .. } = self.config;
        let (preamble, jam) = (self.config.byte_times(PREAMBLE_LEN), self.config.byte_times(JAM_LEN));
        let over = |began: Time, other_began: Time| (other_began + delay).max(began + preamble) + jam;
        let mut overs = [over(began, now); STATIONS];
        overs[station] = over(now, began);
        let mut gave_up = [false; STATIONS];
        let retry = std::array::from_fn(|station| {
            let end = &mut self.ends[station];
            (end.sends, end.asked) = (None, None);
            end.quiet_from = overs[station].max(overs[1 - station] + delay);
            let wait = self.back_off(station, rng);
            gave_up[station] = wait.is_none();
            overs[station] + wait.unwrap_or(Span::ZERO)
        });
        Action::Collision { retry, gave_up }
    }

    /// Returns the truncated binary exponential back-off; `None` if the frame is given up.
    fn back_off(&mut self, station: Station, rng: &mut ChaCha8Rng) -> Option<Span> {
        let attempts = &mut self.ends[station].attempts;
        *attempts += 1;
        if *attempts >= ATTEMPTS_MAX {
            *attempts = 0;
            self.excessive_collisions += 1;
            return None;
        }
        let doublings = (*attempts).min(BACKOFF_DOUBLINGS_MAX);
        Some(self.config.slot().times(rng.random_range(0..1u64 << doublings)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    const FRAME: Span = Span::us(100);

    fn ethernet10(delay: Span) -> LinkConfig {
        LinkConfig { rate_bps: 10_000_000, full_duplex: false, delay }
    }

    fn begins(link: &mut Link, begin: Begin) -> Action {
        link.begin(begin, FRAME, &mut ChaCha8Rng::seed_from_u64(1))
    }

    fn at(us: u64) -> Time {
        Time::START + Span::us(us)
    }

    /// Makes both stations request an idle link. Returns the start time and the result of the second transmission.
    fn both_ask(delay: Span, first: Time, second: Time) -> (Time, Action) {
        let mut link = Link::new(ethernet10(delay));
        link.sent(0, Time::START);
        let [mut begin, mut other] = [link.ask(0, first), link.ask(1, second)];
        if other.at < begin.at {
            (begin, other) = (other, begin);
        }
        if let Action::Start { other: Some(deferred), .. } = begins(&mut link, begin) {
            other = deferred;
        }
        (other.at, begins(&mut link, other))
    }

    #[test]
    fn frames_and_gaps_take_the_time_of_the_standard() {
        let link = ethernet10(Span::us(5));
        assert_eq!(link.frame_time(1514) + link.gap(), Span::ns(1_230_400));
        assert_eq!(link.frame_time(20) + link.gap(), Span::ns(67_200));
        assert_eq!(link.slot(), Span::ns(51_200));
        let gigabit = LinkConfig { rate_bps: GIGABIT, ..link };
        assert_eq!(gigabit.frame_time(60), Span::ns(520 * 8), "a short frame is extended to a slot");
        assert_eq!(LinkConfig { full_duplex: true, ..gigabit }.frame_time(60), Span::ns(72 * 8));
    }

    #[test]
    fn a_line_that_is_too_long_or_too_fast_to_share_is_refused() {
        assert_eq!(ethernet10(Span::ns(25_600)).check(), Ok(()));
        assert_eq!(ethernet10(Span::ns(25_601)).check().unwrap_err().0, "link.delay");
        let fast = LinkConfig { rate_bps: 2 * GIGABIT, ..ethernet10(Span::ZERO) };
        assert_eq!(fast.check().unwrap_err().0, "link.duplex");
        assert_eq!(LinkConfig { full_duplex: true, delay: Span::us(1000), ..fast }.check(), Ok(()));
    }

    #[test]
    fn two_that_wait_for_the_same_frame_to_end_collide_and_one_that_waits_alone_does_not() {
        for is_alone in [false, true] {
            let mut link = Link::new(ethernet10(Span::us(5)));
            let begin = link.ask(0, at(100));
            let Action::Start { ends, other: None } = begins(&mut link, begin) else { panic!("it is alone") };
            let waits = link.ask(1, at(150));
            assert_eq!(waits.at, ends + Span::us(5) + link.config.gap(), "as soon as it has heard nothing for a gap");
            link.sent(0, ends);
            if !is_alone {
                let again = link.ask(0, ends + link.config.gap());
                assert!(matches!(begins(&mut link, again), Action::Start { other: None, .. }));
            }
            let met = begins(&mut link, waits);
            assert_eq!(matches!(met, Action::Start { .. }), is_alone);
            assert_eq!(matches!(met, Action::Collision { .. }), !is_alone);
        }
    }

    #[test]
    fn a_frame_that_always_collides_is_given_up_at_the_sixteenth_time() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut link = Link::new(ethernet10(Span::us(5)));
        for attempt in 1..=ATTEMPTS_MAX {
            let gave_up = link.back_off(0, &mut rng).is_none();
            assert_eq!(gave_up, attempt == ATTEMPTS_MAX);
        }
        assert_eq!(link.excessive_collisions, 1);
    }

    proptest! {
        #[test]
        fn whoever_begins_before_it_can_hear_the_other_collides_and_nobody_else_does(
            delay_ns in 1u64..25_600, apart_ns in 0u64..60_000,
        ) {
            let (delay, apart) = (Span::ns(delay_ns), Span::ns(apart_ns));
            let first = at(1000);
            let (second_at, action) = both_ask(delay, first, first + apart);
            let is_heard = apart >= delay;
            prop_assert_eq!(matches!(action, Action::Collision { .. }), !is_heard, "{:?}", action);
            prop_assert_eq!(second_at == first + apart, !is_heard);
            prop_assert_eq!(both_ask(delay, first + apart, first).0, second_at, "neither end is special");
        }
    }
}

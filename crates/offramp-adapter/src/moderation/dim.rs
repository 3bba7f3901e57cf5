//! Linux's dynamic interrupt moderation (DIM): a hill climb over five profiles.
//!
//! After every 64 interrupts, the rates of bytes, frames and interrupts are compared with the previous rates. If the
//! rates improve, the climb tries the next profile in the same direction; if the rates do not improve, the direction
//! reverses. The climb parks (keeps the profile) on a top, at the first or the last profile, or at the maximum number
//! of steps. The rules and figures are from Linux `lib/dim/net_dim.c`, `lib/dim/dim.c` and `include/linux/dim.h`.
//!
//! A profile sets the maximum wait of the first frame and the maximum number of waiting frames. Linux's `virtio_net`
//! driver sets these two values in its device.

use super::config::Coalescing;
use std::cmp::Ordering;

/// Number of interrupts between two decisions.
const EVENTS_PER_DECISION: u32 = 64;
/// Maximum difference of two rates that count as equal, in whole percent.
const SAME_PERCENT: u64 = 10;
/// Maximum steps before the climb rests: two per profile.
const STEPS_TIRED: u32 = 2 * PROFILES as u32;
/// Index of the initial profile.
const PROFILE_START: usize = 1;
const PROFILES: usize = 5;
const NANOSECONDS_PER_MILLISECOND: u64 = 1_000_000;
const PERCENT: u64 = 100;

type Profiles = [Coalescing; PROFILES];

const fn profile(max_usecs: u32, max_packets: u32) -> Coalescing {
    Coalescing { max_usecs, max_packets }
}

const RX_EQE: Profiles = [profile(1, 256), profile(8, 256), profile(64, 256), profile(128, 256), profile(256, 256)];
const RX_CQE: Profiles = [profile(2, 256), profile(8, 128), profile(16, 64), profile(32, 64), profile(64, 64)];
const TX_EQE: Profiles = [profile(1, 128), profile(8, 128), profile(32, 128), profile(64, 128), profile(128, 128)];
const TX_CQE: Profiles = [profile(5, 128), profile(8, 64), profile(16, 32), profile(32, 32), profile(64, 32)];

/// The sets of profiles in Linux's DIM. A climb uses one of the sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DimProfiles {
    /// Receive, with the wait counted from the last event (`EQE` in Linux): waits of 1, 8, 64, 128, 256 µs, and 256
    /// frames. Linux's `virtio_net` uses this set.
    #[default]
    ReceiveEvent,
    /// Receive, with the wait counted from the last completion (`CQE` in Linux): waits of 2 to 64 µs, and 256 to 64
    /// frames.
    ReceiveCompletion,
    /// Transmit, with the wait counted from the last event: waits of 1, 8, 32, 64, 128 µs, and 128 frames.
    TransmitEvent,
    /// Transmit, with the wait counted from the last completion: waits of 5 to 64 µs, and 128 to 32 frames.
    TransmitCompletion,
}

/// Rates of bytes, frames and interrupts to compare, per millisecond, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rates {
    bytes: u64,
    frames: u64,
    events: u64,
}

impl Rates {
    /// Compares these rates with earlier rates; `Greater` stands for better rates now. More bytes are better. With
    /// equal bytes, more frames are better. With equal bytes and frames, fewer interrupts are better.
    fn compare(&self, before: &Self) -> Ordering {
        let bytes = compare_roughly(self.bytes, before.bytes);
        if bytes.is_ne() || before.bytes == 0 {
            return bytes;
        }
        let frames = compare_roughly(self.frames, before.frames);
        if frames.is_ne() || before.frames == 0 {
            return frames;
        }
        if before.events == 0 { Ordering::Equal } else { compare_roughly(self.events, before.events).reverse() }
    }
}

/// Compares two rates. Two rates count as equal if their difference is at most [`SAME_PERCENT`] whole percent of
/// `before`.
fn compare_roughly(now: u64, before: u64) -> Ordering {
    let difference = now.abs_diff(before);
    let is_same = difference.saturating_mul(PERCENT) < before.saturating_mul(SAME_PERCENT + 1);
    if is_same { Ordering::Equal } else { now.cmp(&before) }
}

/// Numbers of bytes, frames and interrupts since a starting time.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    since_ns: u64,
    events: u32,
    frames: u64,
    bytes: u64,
}

impl Measurement {
    fn since(since_ns: u64) -> Self {
        Self { since_ns, events: 0, frames: 0, bytes: 0 }
    }

    /// Returns the rates; `None` if no time has passed.
    fn rates(&self, now_ns: u64) -> Option<Rates> {
        let elapsed_ns = now_ns.checked_sub(self.since_ns).filter(|&ns| ns > 0)?;
        let per_ms = |count: u64| count.saturating_mul(NANOSECONDS_PER_MILLISECOND).div_ceil(elapsed_ns);
        Some(Rates { bytes: per_ms(self.bytes), frames: per_ms(self.frames), events: per_ms(u64::from(self.events)) })
    }
}

/// The direction of a climb, or the reason for its rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tuning {
    /// Rests on a top or at an edge until the rates change.
    OnTop,
    /// Rests for as many decisions as the climb took steps.
    Tired,
    /// Climbs towards longer times.
    Right,
    /// Climbs towards shorter times.
    Left,
}

/// The state of the hill climb for one queue.
#[derive(Clone, Debug)]
pub(super) struct Dim {
    profiles: &'static Profiles,
    index: usize,
    tuning: Tuning,
    steps_right: u32,
    steps_left: u32,
    steps: u32,
    before: Rates,
    /// The current measurement. `None` initially and after a change of the profile: the next interrupt starts a
    /// measurement.
    measurement: Option<Measurement>,
}

impl Dim {
    pub(super) fn new(profiles: DimProfiles) -> Self {
        Self {
            profiles: match profiles {
                DimProfiles::ReceiveEvent => &RX_EQE,
                DimProfiles::ReceiveCompletion => &RX_CQE,
                DimProfiles::TransmitEvent => &TX_EQE,
                DimProfiles::TransmitCompletion => &TX_CQE,
            },
            index: PROFILE_START,
            tuning: Tuning::Right,
            steps_right: 0,
            steps_left: 0,
            steps: 0,
            before: Rates::default(),
            measurement: None,
        }
    }

    /// Returns the current profile.
    pub(super) fn profile(&self) -> &Coalescing {
        &self.profiles[self.index]
    }

    /// Adds an interrupt, with the frames and bytes since the previous interrupt. Returns whether the profile has
    /// changed.
    pub(super) fn fired(&mut self, now_ns: u64, frames: u64, bytes: u64) -> bool {
        let Some(measurement) = &mut self.measurement else {
            self.measurement = Some(Measurement::since(now_ns));
            return false;
        };
        measurement.events = measurement.events.saturating_add(1);
        measurement.frames = measurement.frames.saturating_add(frames);
        measurement.bytes = measurement.bytes.saturating_add(bytes);
        if measurement.events < EVENTS_PER_DECISION {
            return false;
        }
        let rates = measurement.rates(now_ns);
        let is_new = rates.is_some_and(|rates| self.decide(rates));
        self.measurement = (!is_new).then(|| Measurement::since(now_ns));
        is_new
    }

    /// Selects the next profile. Returns whether the profile has changed.
    fn decide(&mut self, rates: Rates) -> bool {
        let (index_before, tuning_before) = (self.index, self.tuning);
        match self.tuning {
            Tuning::OnTop if rates.compare(&self.before).is_ne() => self.leave_parking(),
            Tuning::OnTop => {}
            Tuning::Tired => {
                self.steps -= 1;
                if self.steps == 0 {
                    self.leave_parking();
                }
            }
            Tuning::Right | Tuning::Left => self.climb(rates),
        }
        // While the climb rests on a top, the rates at the start of the rest stay the reference, so that slow changes
        // add up.
        if tuning_before != Tuning::OnTop || self.tuning != Tuning::OnTop {
            self.before = rates;
        }
        self.index != index_before
    }

    fn climb(&mut self, rates: Rates) {
        if rates.compare(&self.before).is_le() {
            self.turn();
        }
        let parks = if self.is_on_top() { Some(Tuning::OnTop) } else { self.step() };
        if let Some(tuning) = parks {
            self.tuning = tuning;
            (self.steps_right, self.steps_left) = (0, 0);
        }
        // The number of steps of a tired climb is not reset, because the steps are counted down while the climb rests.
        if self.tuning == Tuning::OnTop {
            self.steps = 0;
        }
    }

    fn turn(&mut self) {
        match self.tuning {
            Tuning::Right => (self.tuning, self.steps_left) = (Tuning::Left, 0),
            Tuning::Left => (self.tuning, self.steps_right) = (Tuning::Right, 0),
            Tuning::OnTop | Tuning::Tired => {}
        }
    }

    /// Returns whether the climb has passed the top: the last step was a single step back, after more than one step in
    /// the opposite direction.
    fn is_on_top(&self) -> bool {
        match self.tuning {
            Tuning::Right => self.steps_left > 1 && self.steps_right == 1,
            Tuning::Left => self.steps_right > 1 && self.steps_left == 1,
            Tuning::OnTop | Tuning::Tired => true,
        }
    }

    /// Takes one step of the climb. Returns the resting state if the climb parks instead of taking a step.
    fn step(&mut self) -> Option<Tuning> {
        match self.tuning {
            _ if self.steps == STEPS_TIRED => return Some(Tuning::Tired),
            Tuning::Right if self.index == PROFILES - 1 => return Some(Tuning::OnTop),
            Tuning::Left if self.index == 0 => return Some(Tuning::OnTop),
            Tuning::Right => {
                self.index += 1;
                self.steps_right += 1;
            }
            Tuning::Left => {
                self.index -= 1;
                self.steps_left += 1;
            }
            Tuning::OnTop | Tuning::Tired => {}
        }
        self.steps += 1;
        None
    }

    fn leave_parking(&mut self) {
        self.tuning = if self.index == 0 { Tuning::Right } else { Tuning::Left };
        self.step();
    }
}

#[cfg(test)]
mod tests;

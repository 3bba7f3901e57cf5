//! Sends cases from one end of the path to the other end, and compares the captured frames with the expected frames.
//! Cases are sent in batches. The IP addresses of a captured frame identify the frame's case.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use offramp_offload::meta::{ChecksumState, RxMeta};

use crate::case::{Addressing, Built, Case, Sent};
use crate::end::{End, Outgoing};
use crate::error::CheckError;
use crate::fault::Fault;
use crate::oracle::{self, Allowed, Difference};
use crate::packet::{Captured, Identity, Way};

/// Maximum number of wire frames in one batch. All frames of a batch must fit into the receive buffer of the capture.
const BATCH_FRAMES_MAX: usize = 512;
/// Maximum number of bytes in one batch. A batch of one case may exceed both limits.
const BATCH_BYTES_MAX: usize = 512 << 10;
/// Maximum divisor of the two limits above. The divisor doubles after a loss, because the receive buffer of the capture
/// may be too small for a whole batch (`net.core.rmem_max`).
const BATCH_PARTS_MAX: usize = 16;
/// Maximum wait for the next frame of a batch, used before the path's delay is known.
pub(crate) const PATIENCE_MAX: Duration = Duration::from_millis(250);
/// Minimum wait for the next frame, even on a fast path, because a processor may be busy with other work.
const PATIENCE_MIN: Duration = Duration::from_millis(50);
/// Wait for the next frame, as a multiple of the first frame's delay.
const PATIENCE_FACTOR: u32 = 50;
/// Wait for the next frame if only frames with a wrong checksum are missing. The wait is short, because the path may
/// drop such frames.
const BAD_PATIENCE: Duration = Duration::from_millis(30);
/// EtherType for experiments (IEEE 802, 9.2.3).
const EXPERIMENTS: u16 = 0x88b5;
/// Minimum length of a frame without FCS, in bytes (IEEE 802.3, 4A.4.2).
const ETHERNET_LEN_MIN: usize = 60;
/// Wait for unexpected frames after the last expected frame.
const LINGER: Duration = Duration::from_millis(1);
/// Maximum number of attempts for a case with missing frames. Several attempts are needed, because a queue filled by
/// other traffic may have dropped the missing frames.
const ATTEMPTS_MAX: u32 = 6;
/// Number of rounds after which the check concludes that a path drops a kind of frame. In each of these rounds, the
/// plain frame was received, and the frame of this kind was not. The number is an arbitrary choice.
const PROBE_ROUNDS: usize = 3;
/// Pause before each round of a probe, in milliseconds. Pauses are needed because other traffic may fill a queue for a
/// while. The values are an arbitrary choice.
const PROBE_PAUSES: [u64; 6] = [0, 10, 150, 150, 300, 300];
/// Pause before a case is sent again, multiplied by the number of the attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(3);

/// The outcome of a case.
#[derive(Debug)]
pub(crate) enum Outcome {
    Right,
    /// The kernel refused a frame with this error number.
    Refused(i32),
    Wrong(Box<Wrong>),
}

/// One attempt to send a case, and its outcome.
struct Attempt {
    /// The case, with its number set.
    case: Case,
    outcome: Outcome,
    /// True if the receiver captured at least one super-frame.
    is_coalesced: bool,
}

/// A case with a difference from the expected frames.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub difference: Difference,
    pub built: Built,
    pub captured: Vec<Captured>,
}

/// Outcomes of a list of cases.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Number of cases sent.
    pub sent: usize,
    /// Number of cases received with at least one super-frame.
    pub coalesced: usize,
    pub refused: Vec<i32>,
    pub wrong: Vec<(Case, Wrong)>,
    /// Number of cases whose first attempt had missing frames and whose further attempt was right.
    pub lost: usize,
}

impl Wrong {
    /// Returns whether the difference is only missing frames. Other traffic may have caused such a difference.
    pub(crate) fn may_be_loss(&self) -> bool {
        matches!(self.difference.fault, Fault::NothingArrives | Fault::FrameMissing)
    }
}

/// The path in one direction: its two ends, and the state and limits of the exchange.
pub(crate) struct Exchange<'a> {
    pub sender: &'a mut dyn End,
    pub receiver: &'a mut dyn End,
    pub addressing: Addressing,
    pub run: u16,
    /// Number for the next case whose `number` is `None`.
    pub next_case: &'a mut u16,
    pub stop: &'a AtomicBool,
    /// Maximum wait for the next frame of a batch.
    pub patience: Duration,
    /// Divisor of [`BATCH_FRAMES_MAX`] and [`BATCH_BYTES_MAX`].
    pub batch_parts: usize,
}

impl Exchange<'_> {
    /// Sends cases until all cases are sent, or `wrong_max` cases have the outcome [`Outcome::Wrong`].
    pub(crate) fn all(&mut self, cases: &[Case], allowed: Allowed, wrong_max: usize) -> Result<Outcomes, CheckError> {
        let mut outcomes = Outcomes::default();
        let mut rest = cases;
        while !rest.is_empty() && outcomes.wrong.len() < wrong_max {
            if self.stop.load(Ordering::Relaxed) {
                return Err(CheckError::Stopped);
            }
            let batch = self.next_batch(&mut rest);
            self.batch(batch, allowed, &mut outcomes)?;
        }
        self.check_links()?;
        Ok(outcomes)
    }

    /// Checks both interfaces, because a changed interface explains all missing frames.
    pub(crate) fn check_links(&mut self) -> Result<(), CheckError> {
        self.sender.check_link()?;
        self.receiver.check_link()
    }

    /// Builds cases from the front of `rest` until the batch is full.
    fn next_batch(&mut self, rest: &mut &[Case]) -> Vec<(Identity, Built)> {
        let (frames_max, bytes_max) = (BATCH_FRAMES_MAX / self.batch_parts, BATCH_BYTES_MAX / self.batch_parts);
        let (mut batch, mut frames, mut bytes) = (Vec::new(), 0, 0);
        while let Some((case, others)) = rest.split_first() {
            let built = self.build(case);
            frames += built.1.expected.len();
            bytes += built.1.sent.iter().map(|sent| sent.bytes.len()).sum::<usize>();
            if !batch.is_empty() && (frames > frames_max || bytes > bytes_max) {
                break;
            }
            batch.push(built);
            *rest = others;
        }
        batch
    }

    fn build(&mut self, case: &Case) -> (Identity, Built) {
        let number = case.number.unwrap_or(*self.next_case);
        if case.number.is_none() {
            *self.next_case = self.next_case.wrapping_add(1);
        }
        let identity = Identity { run: self.run, case: number };
        (identity, case.build(&self.addressing, identity))
    }

    /// Sends a batch, and repeats the cases with missing frames.
    fn batch(
        &mut self,
        mut batch: Vec<(Identity, Built)>,
        allowed: Allowed,
        outcomes: &mut Outcomes,
    ) -> Result<(), CheckError> {
        outcomes.sent += batch.len();
        for attempt in 1.. {
            let mut lost = Vec::new();
            for Attempt { case, outcome, is_coalesced } in self.attempt(batch, allowed)? {
                outcomes.coalesced += usize::from(is_coalesced);
                match outcome {
                    Outcome::Right => outcomes.lost += usize::from(attempt > 1),
                    Outcome::Refused(errno) => outcomes.refused.push(errno),
                    Outcome::Wrong(wrong) if wrong.may_be_loss() => lost.push((wrong.built.case, *wrong)),
                    Outcome::Wrong(wrong) => outcomes.wrong.push((case, *wrong)),
                }
            }
            if lost.is_empty() || attempt == ATTEMPTS_MAX {
                outcomes.wrong.append(&mut lost);
                break;
            }
            self.batch_parts = (self.batch_parts * 2).min(BATCH_PARTS_MAX);
            std::thread::sleep(RETRY_PAUSE * attempt);
            batch = lost.iter().map(|(case, _)| self.build(case)).collect();
        }
        Ok(())
    }

    /// Sends a batch once.
    fn attempt(&mut self, batch: Vec<(Identity, Built)>, allowed: Allowed) -> Result<Vec<Attempt>, CheckError> {
        let (refused, mut captured, _) = self.send(&batch)?;
        let judge = |(identity, built): (Identity, Built)| {
            let frames = captured.remove(&identity.case).unwrap_or_default();
            // A fault may depend on the case's bytes, which are derived from the case's number. A repeat must therefore
            // use the same number.
            let case = Case { number: Some(identity.case), ..built.case };
            let is_coalesced = frames.iter().any(|frame| frame.meta.segmentation.is_some());
            // A UDP socket chooses the IPv4 IDs itself.
            let allowed = Allowed { any_id: allowed.any_id || built.case.way == Way::UdpSocket, ..allowed };
            let outcome = match refused.get(&identity.case) {
                Some(errno) => Outcome::Refused(*errno),
                None => match oracle::compare(&built, &frames, allowed) {
                    None => Outcome::Right,
                    Some(difference) => Outcome::Wrong(Box::new(Wrong { difference, built, captured: frames })),
                },
            };
            Attempt { case, outcome, is_coalesced }
        };
        Ok(batch.into_iter().map(judge).collect())
    }

    /// Returns whether the path carries Ethernet frames without IP. Sends frames with an EtherType for experiments.
    /// Returns `false` if an end can send or capture only frames of a check.
    pub(crate) fn carries_ethernet(&mut self) -> Result<bool, CheckError> {
        if !self.sender.takes_any_frame() || !self.receiver.takes_any_frame() {
            return Ok(false);
        }
        let Addressing { destination, source, .. } = self.addressing;
        let mut bytes = [&destination[..], &source, &EXPERIMENTS.to_be_bytes(), &self.run.to_be_bytes()].concat();
        bytes.resize(ETHERNET_LEN_MIN, 0);
        for _ in 0..PROBE_ROUNDS {
            let frame = Outgoing { way: Way::PacketSocket, bytes: bytes.clone(), meta: RxMeta::default() };
            if self.sender.send(&frame)?.is_err() {
                return Ok(false);
            }
            let begun = Instant::now();
            while begun.elapsed() < self.patience {
                let left = self.patience.saturating_sub(begun.elapsed());
                if self.receiver.receive(left)?.is_some_and(|captured| captured.bytes == bytes) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Sends `cases` in rounds, each round together with the frame `plain`. A case is settled when it is received or
    /// refused, or when it was missing in [`PROBE_ROUNDS`] rounds in which the plain frame was received. The outcome of
    /// a case is `None` if the path lost too many plain frames to settle the case.
    pub(crate) fn probe(&mut self, plain: &Case, cases: &[Case]) -> Result<Vec<Option<Outcome>>, CheckError> {
        let mut outcomes: Vec<Option<Outcome>> = cases.iter().map(|_| None).collect();
        let mut rounds = 0;
        let is_open = |outcome: &Option<Outcome>| match outcome {
            Some(Outcome::Wrong(wrong)) => wrong.may_be_loss(),
            Some(_) => false,
            None => true,
        };
        for pause in PROBE_PAUSES {
            let open: Vec<usize> = (0..cases.len()).filter(|at| is_open(&outcomes[*at])).collect();
            if open.is_empty() || rounds == PROBE_ROUNDS {
                break;
            }
            std::thread::sleep(Duration::from_millis(pause));
            let batch = std::iter::once(plain).chain(open.iter().map(|at| &cases[*at]));
            let batch = batch.map(|case| self.build(case)).collect();
            let mut attempts = self.attempt(batch, Allowed::default())?.into_iter();
            let is_plain_right = attempts.next().is_some_and(|plain| matches!(plain.outcome, Outcome::Right));
            rounds += usize::from(is_plain_right);
            for (at, attempt) in open.into_iter().zip(attempts) {
                let outcome = Some(attempt.outcome);
                if is_plain_right || !is_open(&outcome) {
                    outcomes[at] = outcome;
                }
            }
        }
        if rounds < PROBE_ROUNDS {
            outcomes.iter_mut().filter(|outcome| is_open(outcome)).for_each(|outcome| *outcome = None);
        }
        self.check_links()?;
        Ok(outcomes)
    }

    /// Derives the wait for the frames of later cases from `took`, the measured delay of a case.
    pub(crate) fn learn_patience(&mut self, took: Duration) {
        self.patience = (took * PATIENCE_FACTOR).clamp(PATIENCE_MIN, PATIENCE_MAX);
    }

    /// Sends one case and returns its outcome.
    pub(crate) fn one(&mut self, case: &Case, allowed: Allowed) -> Result<Outcome, CheckError> {
        let mut outcomes = Outcomes::default();
        let batch = vec![self.build(case)];
        self.batch(batch, allowed, &mut outcomes)?;
        self.check_links()?;
        let wrong = outcomes.wrong.pop().map(|(_, wrong)| Outcome::Wrong(Box::new(wrong)));
        Ok(wrong.or_else(|| outcomes.refused.pop().map(Outcome::Refused)).unwrap_or(Outcome::Right))
    }

    /// Sends a case once and returns the delay of the case's last frame. Returns `None` if the case was refused,
    /// changed, or not complete within `patience`.
    pub(crate) fn delay(&mut self, case: &Case, patience: Duration) -> Result<Option<Duration>, CheckError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(CheckError::Stopped);
        }
        let batch = [self.build(case)];
        let usual = std::mem::replace(&mut self.patience, patience);
        let begun = Instant::now();
        let sent = self.send(&batch);
        self.patience = usual;
        let (_, captured, last) = sent?;
        let [(identity, built)] = &batch;
        let frames = captured.get(&identity.case).map_or(&[][..], Vec::as_slice);
        let is_right = oracle::compare(built, frames, Allowed::default()).is_none();
        Ok(is_right.then(|| last - begun))
    }

    /// Sends a batch. Then captures until all frames are received, or until no further frame is received for
    /// `patience`. Returns the kernel's refusals and the captured frames by case, and the time of the last frame.
    fn send(&mut self, batch: &[(Identity, Built)]) -> Result<Sending, CheckError> {
        let mut capture = Capture::new(batch, self.run, self.patience);
        let mut refused = BTreeMap::new();
        for (identity, built) in batch {
            for sent in &built.sent {
                if let Err(errno) = self.sender.send(&outgoing(sent, built.case.way))? {
                    refused.insert(identity.case, errno);
                    capture.give_up(identity.case);
                    break;
                }
            }
            // Received frames are read between two sends, because unread frames would fill the capture's buffer.
            while let Some(frame) = self.receiver.receive(Duration::ZERO)? {
                capture.take(frame);
            }
        }
        while let Some(wait) = capture.wait() {
            match self.receiver.receive(wait)? {
                Some(frame) => {
                    capture.take(frame);
                }
                None if capture.wait().is_some_and(|left| left.is_zero()) => break,
                None => {}
            }
        }
        while let Some(frame) = self.receiver.receive(LINGER)? {
            if !capture.take(frame) && capture.lingered() {
                break;
            }
        }
        Ok((refused, capture.frames, capture.last))
    }
}

/// The kernel's error numbers and the captured frames by case number, and the time of the last captured frame.
type Sending = (BTreeMap<u16, i32>, oracle::ByCase, Instant);

/// The captured frames of a batch.
struct Capture {
    run: u16,
    frames: oracle::ByCase,
    /// Number of missing wire frames by case: good frames, and frames with a wrong checksum.
    missing: BTreeMap<u16, [usize; 2]>,
    last: Instant,
    patience: Duration,
}

impl Capture {
    fn new(batch: &[(Identity, Built)], run: u16, patience: Duration) -> Self {
        let count = |built: &Built| {
            let bad = built.expected.iter().filter(|frame| frame.is_bad).count();
            [built.expected.len() - bad, bad]
        };
        let missing = batch.iter().map(|(identity, built)| (identity.case, count(built))).collect();
        Self { run, frames: BTreeMap::new(), missing, last: Instant::now(), patience }
    }

    /// Stores a frame of the batch. Returns `false` if the frame belongs to no case of the batch.
    fn take(&mut self, frame: Captured) -> bool {
        let Some(identity) = Identity::of(&frame.bytes).filter(|identity| identity.run == self.run) else {
            return false;
        };
        let Some([good, bad]) = self.missing.get_mut(&identity.case) else { return false };
        let mut count = oracle::wire_frames(&frame);
        for left in [good, bad] {
            let taken = count.min(*left);
            *left -= taken;
            count -= taken;
        }
        self.frames.entry(identity.case).or_default().push(frame);
        self.last = Instant::now();
        true
    }

    /// Stops waiting for the frames of a case, because the kernel refused one of them.
    fn give_up(&mut self, case: u16) {
        self.missing.insert(case, [0, 0]);
    }

    /// Returns the remaining wait for the next frame, or `None` if no frame is missing.
    fn wait(&self) -> Option<Duration> {
        let is_missing = |which: usize| self.missing.values().any(|left| left[which] > 0);
        let patience = match () {
            () if is_missing(0) => self.patience,
            () if is_missing(1) => BAD_PATIENCE,
            () => return None,
        };
        Some(patience.saturating_sub(self.last.elapsed()))
    }

    /// Returns whether `LINGER` has elapsed since the last frame of the batch. Frames of other traffic do not extend
    /// this time.
    fn lingered(&self) -> bool {
        self.last.elapsed() > LINGER
    }
}

pub(crate) fn outgoing(sent: &Sent, way: Way) -> Outgoing {
    let checksum = sent.request.checksum.map_or(ChecksumState::Unknown, ChecksumState::Partial);
    let meta = RxMeta { segmentation: sent.request.segmentation, header_len: sent.header_len, ..RxMeta::default() };
    Outgoing { way, bytes: sent.bytes.clone(), meta: RxMeta { checksum, ..meta } }
}

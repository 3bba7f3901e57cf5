//! Sends cases from one end to the other and compares what arrives. Cases go in batches; frames find their case by their
//! addresses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use offramp_offload::meta::{ChecksumState, RxMeta};

use crate::case::{Addressing, Built, Case, Sent};
use crate::end::{End, Outgoing};
use crate::error::CheckError;
use crate::fault::Fault;
use crate::oracle::{self, Allowed, Captured, Difference};
use crate::packet::Identity;

/// Frames of the wire in one batch, at most: the capture must hold them.
const BATCH_FRAMES_MAX: usize = 512;
/// Bytes of one batch, at most, if it is more than one case.
const BATCH_BYTES_MAX: usize = 512 << 10;
/// How long the next frame of a batch may take.
const ARRIVAL_PATIENCE: Duration = Duration::from_millis(250);
/// The same where only frames are missing that may be lost: those with a wrong checksum.
const BAD_PATIENCE: Duration = Duration::from_millis(30);
/// How long frames are waited for that must not come.
const LINGER: Duration = Duration::from_millis(1);
/// How often a case is sent again of which frames are missing: other traffic may have cost them.
const ATTEMPTS_MAX: usize = 3;

/// What became of a case.
#[derive(Debug)]
pub(crate) enum Outcome {
    Right,
    /// The kernel refused a frame, with that error number.
    Refused(i32),
    Wrong(Box<Wrong>),
}

/// A case that was wrong.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub difference: Difference,
    pub built: Built,
    pub captured: Vec<Captured>,
}

/// All outcomes of a list of cases.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Cases that were sent.
    pub sent: usize,
    /// Cases of which a super-frame arrived.
    pub coalesced: usize,
    pub refused: Vec<i32>,
    pub wrong: Vec<(Case, Wrong)>,
}

/// The way from one end to the other.
pub(crate) struct Exchange<'a> {
    pub sender: &'a mut dyn End,
    pub receiver: &'a mut dyn End,
    pub addressing: Addressing,
    pub run: u16,
    /// Number of the next case.
    pub next_case: &'a mut u16,
    pub stop: &'a AtomicBool,
}

impl Exchange<'_> {
    /// Sends cases until all are sent or `wrong_max` were wrong.
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
        self.sender.check_link()?;
        self.receiver.check_link()?;
        Ok(outcomes)
    }

    /// Builds cases from the front of `rest`.
    fn next_batch(&mut self, rest: &mut &[Case]) -> Vec<(Identity, Built)> {
        let (mut batch, mut frames, mut bytes) = (Vec::new(), 0, 0);
        while let Some((case, others)) = rest.split_first() {
            let built = self.build(case);
            frames += built.1.expected.len();
            bytes += built.1.sent.iter().map(|sent| sent.bytes.len()).sum::<usize>();
            if !batch.is_empty() && (frames > BATCH_FRAMES_MAX || bytes > BATCH_BYTES_MAX) {
                break;
            }
            batch.push(built);
            *rest = others;
        }
        batch
    }

    fn build(&mut self, case: &Case) -> (Identity, Built) {
        let identity = Identity { run: self.run, case: *self.next_case };
        *self.next_case = self.next_case.wrapping_add(1);
        (identity, case.build(&self.addressing, identity))
    }

    fn batch(
        &mut self,
        batch: Vec<(Identity, Built)>,
        allowed: Allowed,
        outcomes: &mut Outcomes,
    ) -> Result<(), CheckError> {
        let (refused, mut captured) = self.send(&batch)?;
        for (identity, built) in batch {
            outcomes.sent += 1;
            let frames = captured.remove(&identity.case).unwrap_or_default();
            outcomes.coalesced += usize::from(frames.iter().any(|frame| frame.meta.segmentation.is_some()));
            let case = built.case;
            let outcome = match refused.get(&identity.case) {
                Some(errno) => Outcome::Refused(*errno),
                None => self.judged(built, frames, allowed)?,
            };
            match outcome {
                Outcome::Right => {}
                Outcome::Refused(errno) => outcomes.refused.push(errno),
                Outcome::Wrong(wrong) => outcomes.wrong.push((case, *wrong)),
            }
        }
        Ok(())
    }

    /// Compares; a case of which frames are missing is sent again.
    fn judged(
        &mut self,
        mut built: Built,
        mut captured: Vec<Captured>,
        allowed: Allowed,
    ) -> Result<Outcome, CheckError> {
        for attempt in 1.. {
            let Some(difference) = oracle::compare(&built, &captured, allowed) else { break };
            let may_be_loss = matches!(difference.fault, Fault::NothingArrives | Fault::FrameMissing);
            if !may_be_loss || attempt == ATTEMPTS_MAX {
                return Ok(Outcome::Wrong(Box::new(Wrong { difference, built, captured })));
            }
            let again = self.build(&built.case);
            let (refused, mut frames) = self.send(std::slice::from_ref(&again))?;
            if let Some(errno) = refused.get(&again.0.case) {
                return Ok(Outcome::Refused(*errno));
            }
            captured = frames.remove(&again.0.case).unwrap_or_default();
            built = again.1;
        }
        Ok(Outcome::Right)
    }

    /// Sends one case and says what became of it.
    pub(crate) fn one(&mut self, case: &Case, allowed: Allowed) -> Result<Outcome, CheckError> {
        let mut outcomes = Outcomes::default();
        let batch = vec![self.build(case)];
        self.batch(batch, allowed, &mut outcomes)?;
        let wrong = outcomes.wrong.pop().map(|(_, wrong)| Outcome::Wrong(Box::new(wrong)));
        Ok(wrong.or_else(|| outcomes.refused.pop().map(Outcome::Refused)).unwrap_or(Outcome::Right))
    }

    /// Sends a batch and captures until all has arrived, or nothing more does. Returns refusals and frames by case.
    fn send(&mut self, batch: &[(Identity, Built)]) -> Result<(BTreeMap<u16, i32>, oracle::ByCase), CheckError> {
        let mut capture = Capture::new(batch, self.run);
        let mut refused = BTreeMap::new();
        for (identity, built) in batch {
            for sent in &built.sent {
                if let Err(errno) = self.sender.send(&outgoing(sent))? {
                    refused.insert(identity.case, errno);
                    capture.give_up(identity.case);
                    break;
                }
            }
            // What has arrived must not fill the capture.
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
        Ok((refused, capture.frames))
    }
}

/// Frames of a batch as they arrive.
struct Capture {
    run: u16,
    frames: oracle::ByCase,
    /// Frames of the wire that are missing by case: good ones, and those with a wrong checksum.
    missing: BTreeMap<u16, [usize; 2]>,
    last: Instant,
}

impl Capture {
    fn new(batch: &[(Identity, Built)], run: u16) -> Self {
        let count = |built: &Built| {
            let bad = built.expected.iter().filter(|frame| frame.is_bad).count();
            [built.expected.len() - bad, bad]
        };
        let missing = batch.iter().map(|(identity, built)| (identity.case, count(built))).collect();
        Self { run, frames: BTreeMap::new(), missing, last: Instant::now() }
    }

    /// Takes a frame; whether it is one of the batch.
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

    /// Nothing more of a case is waited for.
    fn give_up(&mut self, case: u16) {
        self.missing.insert(case, [0, 0]);
    }

    /// How much longer the next frame may take; `None` when nothing is missing.
    fn wait(&self) -> Option<Duration> {
        let is_missing = |which: usize| self.missing.values().any(|left| left[which] > 0);
        let patience = match () {
            () if is_missing(0) => ARRIVAL_PATIENCE,
            () if is_missing(1) => BAD_PATIENCE,
            () => return None,
        };
        Some(patience.saturating_sub(self.last.elapsed()))
    }

    /// Whether other traffic has kept the capture busy for longer than it lingers.
    fn lingered(&self) -> bool {
        self.last.elapsed() > LINGER
    }
}

fn outgoing(sent: &Sent) -> Outgoing {
    let checksum = sent.request.checksum.map_or(ChecksumState::Unknown, ChecksumState::Partial);
    let meta = RxMeta { segmentation: sent.request.segmentation, header_len: sent.header_len, ..RxMeta::default() };
    Outgoing { bytes: sent.bytes.clone(), meta: RxMeta { checksum, ..meta } }
}

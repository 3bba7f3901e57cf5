//! Derives the verdict from a wrong case: loss or fault, and the side at fault.

use std::time::Duration;

use super::{Direction, LOSSY, Setting};
use crate::case::Case;
use crate::error::CheckError;
use crate::exchange::{Outcome, Outcomes, Wrong};
use crate::fault::Fault;
use crate::oracle::Allowed;
use crate::packet::{Ip, Protocol, Way};
use crate::plan;
use crate::verdict::{Blame, Evidence, Finding, Verdict};

/// Numbers of repeats of a case in each round of the search for the side at fault. A round first repeats the case with
/// its own setting, then compares the sides, and then repeats the case with its own setting again. The search ends
/// after the first round in which the case is wrong before and after the comparison. Repeats are needed because frames
/// are coalesced only if they are received together. The last number suffices to find a fault that appears in only 1 of
/// 400 repeats.
const REPEATS: [usize; 4] = [5, 40, 400, 1600];
/// Ratio of two numbers of repeats: with the offloads of one side off, and with the case's own setting. With a ratio of
/// 8, the check blames a faultless side in at most 1 of 200 cases.
const OFF_FACTOR: usize = 8;
/// Maximum number of repeats that use the number of the wrong case, and thus its bytes. Further repeats get new
/// numbers.
const REPEATS_ALIKE: usize = 5;
/// Maximum additional time between a frame and its delivery by a coalescing receiver.
const HELD_MAX: Duration = Duration::from_millis(50);
/// Maximum wait for a held frame.
const HELD_PATIENCE: Duration = Duration::from_secs(1);
/// Number of attempts to measure the usual delay, and number of rounds that must all show a frame held too long.
/// Several attempts and rounds are needed, because a busy processor can also delay frames.
const HELD_LOOKS: usize = 5;
const HELD_ROUNDS: usize = 8;
/// Number of frames sent to detect a lossy path.
const LOSS_PROBES: usize = 64;
/// Pauses before the repeats of a case with missing frames. A queue filled by other traffic may have dropped these
/// frames. The values are an arbitrary choice, and add up to about one second.
const LOSS_PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(800)];
/// Number of rounds, each with plain frames and then one repeat of a case that the path may have lost. The number is an
/// arbitrary choice.
const LOOKS: usize = 2;

impl Direction<'_> {
    /// Judges the outcomes of the cases sent with a setting, and adds the number of lost cases to `lost`.
    pub(super) fn verdict(
        &mut self,
        setting: &Setting,
        outcomes: Outcomes,
        lost: &mut usize,
    ) -> Result<Verdict, CheckError> {
        let wrong_cases = outcomes.wrong.len();
        for (n, (case, wrong)) in outcomes.wrong.into_iter().enumerate() {
            // A missing frame may have been lost to other traffic. A changed frame shows a fault, although perhaps not
            // in each attempt.
            let blame = self.blame(&case, setting, wrong.may_be_loss())?;
            if wrong.may_be_loss() {
                // The case is repeated before, between and after groups of plain frames. A long stall of the path may
                // end only while plain frames are sent. If a repeat is right, the path lost the case, and no offload is
                // at fault.
                let mut is_lost = blame == Blame::Unrepeatable || self.is_right_later(&case, setting)?;
                for _ in 0..LOOKS {
                    if !is_lost && self.loses_others()? {
                        *lost += wrong_cases - n;
                        return Ok(Verdict::NotTested { why: LOSSY.to_owned() });
                    }
                    is_lost = is_lost || self.is_right(&case, setting, 1)?;
                }
                if is_lost {
                    *lost += 1;
                    continue;
                }
            }
            return Ok(Verdict::Wrong(Box::new(finding(&case, wrong, wrong_cases, blame))));
        }
        let is_refused = outcomes.sent > 0 && outcomes.refused.len() == outcomes.sent;
        Ok(match outcomes.refused.first() {
            Some(errno) if is_refused => {
                let why = nix::errno::Errno::from_raw(*errno).desc();
                Verdict::NotReachable { why: format!("the kernel refuses such frames from a packet socket ({why})") }
            }
            _ => Verdict::Right,
        })
    }

    /// Returns the verdict on a receiver that holds frames for too long, or `None` for any other receiver. Only the
    /// delay in addition to the path's delay counts, because the path may be slow.
    pub(super) fn held(&mut self, setting: &Setting, protocol: Protocol) -> Result<Option<Verdict>, CheckError> {
        let (cases, _) = self.reach.passable(plan::endless(protocol));
        for case in cases {
            if self.least_delay(&case, setting, HELD_LOOKS)?.is_none_or(|held| held <= HELD_MAX) {
                continue;
            }
            let Some([usual, held]) = self.held_each_time(&case, setting)? else { continue };
            let fault = Fault::HeldTooLong;
            return Ok(Some(Verdict::Wrong(Box::new(Finding {
                fault,
                what: fault.text(),
                blame: Blame::Receiver,
                case: case.to_string(),
                wrong_cases: 1,
                place: "delay of the last frame".to_owned(),
                expected: format!("at most {} ms more than the {} ms without", HELD_MAX.as_millis(), usual.as_millis()),
                got: format!("{} ms", held.as_millis()),
                evidence: Evidence::default(),
            }))));
        }
        Ok(None)
    }

    /// Returns the two delays of a case, without and with the receiver's offloads, if their difference exceeds
    /// [`HELD_MAX`] in every round. One round would not suffice, because a busy processor can delay a frame.
    fn held_each_time(&mut self, case: &Case, setting: &Setting) -> Result<Option<[Duration; 2]>, CheckError> {
        let receiver_off = Setting { receive: Vec::new(), ..setting.clone() };
        let mut times = None;
        for _ in 0..HELD_ROUNDS {
            let usual = self.least_delay(case, &receiver_off, HELD_LOOKS)?;
            let held = self.least_delay(case, setting, 1)?;
            times =
                usual.zip(held).filter(|(usual, held)| *held > *usual + HELD_MAX).map(|(usual, held)| [usual, held]);
            if times.is_none() {
                break;
            }
        }
        Ok(times)
    }

    /// Returns the shortest delay of a case in `looks` attempts, or `None` if an attempt fails. The first attempt with
    /// a delay of at most [`HELD_MAX`] ends the measurement.
    fn least_delay(&mut self, case: &Case, setting: &Setting, looks: usize) -> Result<Option<Duration>, CheckError> {
        self.apply(setting)?;
        let mut least: Option<Duration> = None;
        for _ in 0..looks {
            // A lost or changed frame ends the measurement without a verdict, because the offload's other cases report
            // the loss or the fault.
            let Some(delay) = self.exchange.delay(case, HELD_PATIENCE)? else { return Ok(None) };
            least = least.into_iter().chain([delay]).min();
            if least.is_some_and(|least| least <= HELD_MAX) {
                break;
            }
        }
        Ok(least)
    }

    /// Returns whether the path loses plain frames now, with every offload off.
    pub(super) fn loses_others(&mut self) -> Result<bool, CheckError> {
        self.apply(&Setting::default())?;
        let outcomes = self.exchange.all(&[plan::probe(Ip::V4); LOSS_PROBES], Allowed::default(), 1)?;
        Ok(outcomes.lost > 0 || !outcomes.wrong.is_empty())
    }

    /// Finds the side at fault. After the comparison of the sides, a fault other than loss must recur with the original
    /// setting. Otherwise, a fault that appears in only 1 of 400 repeats would be blamed on an arbitrary side.
    fn blame(&mut self, case: &Case, setting: &Setting, is_loss: bool) -> Result<Blame, CheckError> {
        let in_software = Setting { transmit: self.least_for(case)?, ..Setting::default() };
        if is_loss {
            return Ok(self.compare_sides(case, setting, &in_software, [1; 2])?.unwrap_or(Blame::Unrepeatable));
        }
        if *setting == in_software {
            return Ok(Blame::Path);
        }
        for repeats in REPEATS {
            let blame = self.compare_sides(case, setting, &in_software, [repeats, OFF_FACTOR * repeats])?;
            if let Some(blame) = blame
                && !self.is_right(case, setting, repeats)?
            {
                return Ok(blame);
            }
        }
        Ok(Blame::Unrepeatable)
    }

    /// Repeats a wrong case `on` times with its setting, and `off` times with the offloads of one side off. Returns
    /// `None` if the case is right with its setting, so that no side is at fault.
    fn compare_sides(
        &mut self,
        case: &Case,
        setting: &Setting,
        in_software: &Setting,
        [on, off]: [usize; 2],
    ) -> Result<Option<Blame>, CheckError> {
        if self.is_right(case, setting, on)? {
            return Ok(None);
        }
        let sender_off = Setting { transmit: in_software.transmit.clone(), ..setting.clone() };
        let receiver_off = Setting { receive: Vec::new(), ..setting.clone() };
        let mut tried = vec![setting.clone()];
        let mut is_without = [false; 3];
        for (n, other) in [sender_off, receiver_off, in_software.clone()].into_iter().enumerate() {
            if n == 2 && is_without.contains(&true) {
                break;
            }
            if !tried.contains(&other) {
                is_without[n] = self.is_right(case, &other, off)?;
            } else if off == 1 && self.is_right(case, &other, 1)? {
                // If the case is first wrong and then right with the same setting, the path lost frames, and no side is
                // at fault.
                return Ok(None);
            }
            tried.push(other);
        }
        Ok(Some(match is_without {
            [true, false, _] => Blame::Sender,
            [false, true, _] => Blame::Receiver,
            [true, true, _] | [false, false, true] => Blame::Both,
            [false, false, false] => Blame::Path,
        }))
    }

    /// Returns the features without which the sender cannot send the case. Before Linux 6.11, a socket segments
    /// datagrams only if the interface computes checksums.
    fn least_for(&mut self, case: &Case) -> Result<Vec<&'static str>, CheckError> {
        if case.way != Way::UdpSocket {
            return Ok(Vec::new());
        }
        self.apply(&Setting::default())?;
        let allowed = self.allowed();
        let is_refused = matches!(self.exchange.one(case, allowed)?, Outcome::Refused(_));
        Ok(if is_refused { plan::TX_CHECKSUM.to_vec() } else { Vec::new() })
    }

    /// Returns `true` if no repeat of a case has a changed frame, and at least one of the first repeats has all frames
    /// as expected. Some of the repeats may be lost or refused.
    fn is_right(&mut self, case: &Case, setting: &Setting, repeats: usize) -> Result<bool, CheckError> {
        self.apply(setting)?;
        let allowed = self.allowed();
        let mut right = 0;
        for _ in 0..repeats.min(REPEATS_ALIKE) {
            match self.exchange.one(case, allowed)? {
                Outcome::Right => right += 1,
                Outcome::Wrong(wrong) if !wrong.may_be_loss() => return Ok(false),
                Outcome::Refused(_) | Outcome::Wrong(_) => {}
            }
        }
        if right == 0 {
            return Ok(false);
        }
        // The remaining repeats get new numbers. Cases with different numbers can be sent in one batch, and a late
        // frame is assigned to its repeat.
        let others = vec![Case { number: None, ..*case }; repeats.saturating_sub(REPEATS_ALIKE)];
        let outcomes = self.exchange.all(&others, allowed, 1)?;
        Ok(outcomes.wrong.iter().all(|(_, wrong)| wrong.may_be_loss()))
    }

    /// Returns whether a repeat of the case is right, at once or after a pause. Other traffic may fill a queue for a
    /// while, whereas loss in the interface recurs with each repeat.
    fn is_right_later(&mut self, case: &Case, setting: &Setting) -> Result<bool, CheckError> {
        for pause in LOSS_PAUSES {
            std::thread::sleep(pause);
            if self.is_right(case, setting, 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn finding(case: &Case, wrong: Wrong, wrong_cases: usize, blame: Blame) -> Finding {
    let Wrong { difference, built, captured } = wrong;
    let evidence = Evidence {
        sent: built.sent.into_iter().map(|sent| sent.bytes).collect(),
        expected: built.expected.into_iter().map(|expected| expected.bytes).collect(),
        captured: captured.into_iter().map(|frame| frame.bytes).collect(),
    };
    Finding {
        fault: difference.fault,
        what: difference.fault.text(),
        blame,
        case: case.to_string(),
        wrong_cases,
        place: difference.place,
        expected: difference.expected,
        got: difference.got,
        evidence,
    }
}

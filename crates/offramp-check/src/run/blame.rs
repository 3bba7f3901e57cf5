//! From a wrong case to a verdict: loss or a fault, and whose.

use std::time::Duration;

use super::{Direction, LOSSY, Setting};
use crate::case::Case;
use crate::error::CheckError;
use crate::exchange::{Outcome, Outcomes, Wrong};
use crate::oracle::Allowed;
use crate::packet::{Ip, Way};
use crate::plan;
use crate::verdict::{Blame, Evidence, Finding, Verdict};

/// Repeats of a case to find the end at fault: coalescing needs frames arriving together.
const REPEATS: usize = 5;
/// Frames to detect a lossy path.
const LOSS_PROBES: usize = 64;
/// Pauses before a case, possibly lost to other traffic, is sent again. Chosen: about a second in all.
const LOSS_PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(800)];
/// Rounds of plain frames in turn with a possibly lost case. Chosen.
const LOOKS: usize = 2;

impl Direction<'_> {
    /// Judges the outcomes of a setting, and adds up lost cases.
    pub(super) fn verdict(
        &mut self,
        setting: &Setting,
        outcomes: Outcomes,
        lost: &mut usize,
    ) -> Result<Verdict, CheckError> {
        let wrong_cases = outcomes.wrong.len();
        for (case, wrong) in outcomes.wrong {
            // A frame may be lost to other traffic. A changed frame shows a fault, though perhaps not each time.
            let repeats = if wrong.may_be_loss() { 1 } else { REPEATS };
            let blame = self.blame(&case, setting, repeats)?;
            if wrong.may_be_loss() {
                // Before, between and after the plain frames: occasional loss on the path is no offload's fault. A long
                // stall of the path may end only with these frames.
                let mut is_lost = blame == Blame::Unrepeatable || self.is_right_later(&case, setting)?;
                for _ in 0..LOOKS {
                    if !is_lost && self.loses_others()? {
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

    /// Returns whether the path now loses plain frames, with every offload off.
    pub(super) fn loses_others(&mut self) -> Result<bool, CheckError> {
        self.apply(&Setting::default())?;
        let outcomes = self.exchange.all(&[plan::probe(Ip::V4); LOSS_PROBES], Allowed::default(), 1)?;
        Ok(outcomes.lost > 0 || !outcomes.wrong.is_empty())
    }

    /// Repeats a wrong case with the software path on one side.
    fn blame(&mut self, case: &Case, setting: &Setting, repeats: usize) -> Result<Blame, CheckError> {
        let in_software = Setting { transmit: self.least_for(case)?, ..Setting::default() };
        let sender_off = Setting { transmit: in_software.transmit.clone(), ..setting.clone() };
        let receiver_off = Setting { receive: Vec::new(), ..setting.clone() };
        if self.is_right(case, setting, repeats)? {
            return Ok(Blame::Unrepeatable);
        }
        let without_sender = self.is_right(case, &sender_off, repeats)?;
        let without_receiver = self.is_right(case, &receiver_off, repeats)?;
        Ok(match (without_sender, without_receiver) {
            (true, false) => Blame::Sender,
            (false, true) => Blame::Receiver,
            (true, true) => Blame::Both,
            (false, false) if self.is_right(case, &in_software, repeats)? => Blame::Both,
            (false, false) => Blame::Path,
        })
    }

    /// Returns the features the sender needs. Before Linux 6.11 a socket segments datagrams only if the interface
    /// checksums.
    fn least_for(&mut self, case: &Case) -> Result<Vec<&'static str>, CheckError> {
        if case.way != Way::UdpSocket {
            return Ok(Vec::new());
        }
        self.apply(&Setting::default())?;
        let allowed = self.allowed();
        let is_refused = matches!(self.exchange.one(case, allowed)?, Outcome::Refused(_));
        Ok(if is_refused { plan::TX_CHECKSUM.to_vec() } else { Vec::new() })
    }

    /// Returns whether a case is right in each of its repeats.
    fn is_right(&mut self, case: &Case, setting: &Setting, repeats: usize) -> Result<bool, CheckError> {
        self.apply(setting)?;
        let allowed = self.allowed();
        for _ in 0..repeats {
            if !matches!(self.exchange.one(case, allowed)?, Outcome::Right) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether a repeated case is right, now or after pauses. Other traffic may fill a queue for a while; an
    /// interface's own loss comes back each time.
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

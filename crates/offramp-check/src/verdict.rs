//! The results: the report, for print and for `--json`.

use std::fmt;

use serde::Serialize;

use crate::fault::Fault;

/// Version of the JSON object; it increases when a field changes its meaning or disappears.
pub const VERSION: u32 = 1;

/// All results.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the program.
    pub offramp: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Seed of the payloads.
    pub seed: u64,
    /// Set of cases: `quick` or `full`.
    pub depth: &'static str,
    /// Duration in seconds.
    pub elapsed_s: f64,
    /// The two ends.
    pub ends: [Interface; 2],
    /// Every verdict.
    pub rows: Vec<Row>,
    /// Commands to turn off the wrong offloads, one for each interface with faults.
    pub commands: Vec<String>,
    /// The value of right offloads, if measured.
    pub worth: Vec<Worth>,
}

/// An end.
#[derive(Clone, Debug, Serialize)]
pub struct Interface {
    /// As the user named it.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Bytes of IP in a frame.
    pub mtu: u32,
}

/// The verdict on one offload in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Short name of the offload, as `--only` takes it.
    pub offload: &'static str,
    /// The judged interface.
    pub interface: String,
    /// The sending interface.
    pub from: String,
    /// The receiving interface.
    pub to: String,
    /// Features enabled for it.
    pub features: Vec<&'static str>,
    /// Number of sent cases.
    pub cases: usize,
    /// Cases that arrived as super-frames.
    pub coalesced: usize,
    /// Cases with frames lost by the path: right on a further attempt, or beside plain frames lost too.
    pub lost: usize,
    /// The causes against the cases left out.
    pub left_out: Vec<String>,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// A verdict.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// All arrived frames are as expected.
    Right,
    /// Something else arrived, or nothing.
    Wrong(Box<Finding>),
    /// The interface does not have this offload.
    NotOffered,
    /// The path does not carry its frames.
    NotTested {
        /// Why.
        why: String,
    },
    /// These interfaces and this kernel cannot show it.
    NotReachable {
        /// Why.
        why: String,
    },
}

/// The side at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blame {
    /// The sender's adapter or driver: with the sender's offloads off it is right.
    Sender,
    /// The receiver's adapter or driver: with the receiver's offloads off it is right.
    Receiver,
    /// Both sides: right with either side's offloads off (the fault needs both), or only with both off (each has it).
    Both,
    /// The path between: wrong with every switchable offload off.
    Path,
    /// It did not happen again.
    Unrepeatable,
}

/// A fault.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its name.
    pub fault: Fault,
    /// The same in words.
    pub what: &'static str,
    /// The side at fault.
    pub blame: Blame,
    /// The first case with the fault.
    pub case: String,
    /// Wrong cases before the check of this offload ended.
    pub wrong_cases: usize,
    /// The frame and its first differing field.
    pub place: String,
    /// The expected value.
    pub expected: String,
    /// The arrived value.
    pub got: String,
    /// The sent, the expected, and the captured frames.
    #[serde(skip)]
    pub evidence: Evidence,
}

/// Frames with a fault.
#[derive(Clone, Default)]
pub struct Evidence {
    /// As handed to the sender's interface.
    pub sent: Vec<Vec<u8>>,
    /// As expected on a wire.
    pub expected: Vec<Vec<u8>>,
    /// As captured.
    pub captured: Vec<Vec<u8>>,
}

/// The value of an offload on an interface.
#[derive(Clone, Debug, Serialize)]
pub struct Worth {
    /// Names of offloads switched together, as `--only` takes them.
    pub offloads: Vec<&'static str>,
    /// The interface.
    pub interface: String,
    /// Its effect.
    pub effect: Effect,
    /// The measurement in a sentence.
    pub found: String,
}

/// The effect of an offload on the speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// More throughput, or less processor time of this machine.
    Pays,
    /// Less throughput, or more processor time of this machine.
    SlowsDown,
    /// No measurable difference.
    NoDifference,
    /// It could not be measured, or the noise is too large.
    Unknown,
}

impl fmt::Debug for Evidence {
    /// Prints the numbers of frames: their bytes would hide all else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, expected, captured } = self;
        write!(f, "{} sent, {} expected, {} captured", sent.len(), expected.len(), captured.len())
    }
}

impl Report {
    /// Returns true if any verdict is wrong.
    pub fn is_wrong(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.verdict, Verdict::Wrong(_)))
    }

    /// Returns the numbers of cases with lost frames, and of all cases.
    pub fn loss(&self) -> [usize; 2] {
        [self.rows.iter().map(|row| row.lost).sum(), self.rows.iter().map(|row| row.cases).sum()]
    }

    /// Returns the percentage of cases with lost frames.
    pub fn loss_percent(&self) -> f64 {
        let [lost, cases] = self.loss();
        lost as f64 * 100.0 / cases.max(1) as f64
    }

    /// Returns the number of verdicts made impossible by the path.
    pub fn not_tested(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row.verdict, Verdict::NotTested { .. })).count()
    }
}

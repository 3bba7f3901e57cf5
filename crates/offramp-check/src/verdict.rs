//! The results of a check, for the text report and for `--json`.

use std::fmt;

use serde::Serialize;

use crate::fault::Fault;
use crate::plan;

/// Version of the JSON object. The version increases when a field changes its meaning or is removed.
pub const VERSION: u32 = 1;

/// All results of a check.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of the JSON object, equal to [`VERSION`].
    pub version: u32,
    /// Version of offramp.
    pub offramp: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Seed of the payloads.
    pub seed: u64,
    /// Set of cases: `quick` or `full`.
    pub depth: &'static str,
    /// Duration of the check in seconds.
    pub elapsed_s: f64,
    /// The two ends.
    pub ends: [Interface; 2],
    /// Verdicts on all offloads in both directions.
    pub rows: Vec<Row>,
    /// Commands that turn off the faulty offloads, one for each interface with faults.
    pub commands: Vec<String>,
    /// Measured effects on the interface's speed, for the offloads with the verdict [`Verdict::Right`]. Empty if no
    /// measurement was requested.
    pub worth: Vec<Worth>,
}

/// One end of the path.
#[derive(Clone, Debug, Serialize)]
pub struct Interface {
    /// Name of the interface, as given by the user.
    pub name: String,
    /// Name of the interface's driver.
    pub driver: String,
    /// MTU in IP bytes.
    pub mtu: u32,
}

/// The verdict on one offload in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Short name of the offload, as in `--only`.
    pub offload: &'static str,
    /// Name of the judged interface.
    pub interface: String,
    /// Name of the sending interface.
    pub from: String,
    /// Name of the receiving interface.
    pub to: String,
    /// Features enabled for the check of this offload.
    pub features: Vec<&'static str>,
    /// Number of cases sent.
    pub cases: usize,
    /// Number of cases received as super-frames.
    pub coalesced: usize,
    /// Number of cases with frames lost by the path. A lost case was right on a further attempt, or plain frames were
    /// lost at the same time.
    pub lost: usize,
    /// Descriptions of the causes for which cases were omitted.
    pub left_out: Vec<String>,
    /// The cause and the remedy if the user of a daemon has switched the offload off; absent for other offloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub off_by_user: Option<String>,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// A verdict.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// All captured frames are as expected.
    Right,
    /// A captured frame is not as expected, or a frame is missing.
    Wrong(Box<Finding>),
    /// The interface lacks this offload.
    NotOffered,
    /// The path does not carry the frames of the cases, or loses frames even with every offload off.
    NotTested {
        /// Reason why the offload was not tested.
        why: String,
    },
    /// The interfaces and the kernel of the path cannot show the effect of the offload.
    NotReachable {
        /// Reason why the offload was not tested.
        why: String,
    },
}

/// The side at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blame {
    /// The sender's adapter or driver: the frames are right with the sender's offloads off.
    Sender,
    /// The receiver's adapter or driver: the frames are right with the receiver's offloads off.
    Receiver,
    /// Both sides. Either the fault needs the offloads of both sides, or each side has the fault.
    Both,
    /// The path between the ends: the frames are wrong even with every switchable offload off.
    Path,
    /// Unknown, because the fault did not recur.
    Unrepeatable,
}

/// A fault found by the check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the fault.
    pub fault: Fault,
    /// Description of the fault in words.
    pub what: &'static str,
    /// The side at fault.
    pub blame: Blame,
    /// The first case with the fault.
    pub case: String,
    /// Number of cases with a missing or unexpected frame, counted until the check of this offload ended.
    pub wrong_cases: usize,
    /// Description of the frame and of its first differing field.
    pub place: String,
    /// Expected value of the field.
    pub expected: String,
    /// Captured value of the field.
    pub got: String,
    /// The sent, the expected, and the captured frames.
    #[serde(skip)]
    pub evidence: Evidence,
}

/// The frames of a case with a fault.
#[derive(Clone, Default)]
pub struct Evidence {
    /// Frames as sent to the sender's interface.
    pub sent: Vec<Vec<u8>>,
    /// Frames as expected on a wire.
    pub expected: Vec<Vec<u8>>,
    /// Frames as captured at the receiver.
    pub captured: Vec<Vec<u8>>,
}

/// The measured effect of an offload on the speed of an interface.
#[derive(Clone, Debug, Serialize)]
pub struct Worth {
    /// Names of the offloads switched together, as in `--only`.
    pub offloads: Vec<&'static str>,
    /// Name of the interface.
    pub interface: String,
    /// Effect of the offloads.
    pub effect: Effect,
    /// Description of the measurement in one sentence.
    pub found: String,
}

/// The effect of an offload on the speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The offload gives more throughput, or needs less processor time on this machine.
    Pays,
    /// The offload gives less throughput, or needs more processor time on this machine.
    SlowsDown,
    /// There is no measurable difference.
    NoDifference,
    /// The effect could not be measured, or the noise is too large.
    Unknown,
}

impl fmt::Debug for Evidence {
    /// Prints only the numbers of frames, because the bytes of the frames would make the output unreadable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, expected, captured } = self;
        write!(f, "{} sent, {} expected, {} captured", sent.len(), expected.len(), captured.len())
    }
}

impl Row {
    /// Returns whether this is a segmentation offload with the verdict [`Verdict::Right`] whose super-frames all
    /// arrived whole. Nothing on such a path segments super-frames. For example, a veth pair passes them on whole.
    pub fn is_never_segmented(&self) -> bool {
        let is_segmentation = plan::is_segmentation(self.offload);
        is_segmentation && matches!(self.verdict, Verdict::Right) && self.cases > 0 && self.coalesced == self.cases
    }
}

impl Report {
    /// Returns whether any offload has the verdict [`Verdict::Wrong`].
    pub fn is_wrong(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.verdict, Verdict::Wrong(_)))
    }

    /// Returns the number of cases with lost frames, and the number of all cases.
    pub fn loss(&self) -> [usize; 2] {
        [self.rows.iter().map(|row| row.lost).sum(), self.rows.iter().map(|row| row.cases).sum()]
    }

    /// Returns the percentage of cases with lost frames.
    pub fn loss_percent(&self) -> f64 {
        let [lost, cases] = self.loss();
        lost as f64 * 100.0 / cases.max(1) as f64
    }

    /// Returns the number of offloads that could not be tested because of the path.
    pub fn not_tested(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row.verdict, Verdict::NotTested { .. })).count()
    }
}

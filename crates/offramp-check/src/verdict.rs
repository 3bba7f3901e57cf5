//! What was found: the report, as it is printed and as `--json` writes it.

use std::fmt;

use serde::Serialize;

use crate::fault::Fault;

/// Version of the JSON object; it grows when a field changes its meaning or goes.
pub const VERSION: u32 = 1;

/// All that was found.
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
    /// How many cases: `quick` or `full`.
    pub depth: &'static str,
    /// Seconds that it took.
    pub elapsed_s: f64,
    /// The two ends.
    pub ends: [Interface; 2],
    /// Every verdict.
    pub rows: Vec<Row>,
    /// Commands that turn off what is wrong, one for each interface that has something wrong.
    pub commands: Vec<String>,
    /// What right offloads are worth, where it was measured.
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
    /// The interface that is judged.
    pub interface: String,
    /// The interface that sends.
    pub from: String,
    /// The interface that receives.
    pub to: String,
    /// Features that were on for it.
    pub features: Vec<&'static str>,
    /// Cases that were sent.
    pub cases: usize,
    /// Cases that arrived as super-frames.
    pub coalesced: usize,
    /// Cases of which frames were lost, and that were right when they were sent again.
    pub lost: usize,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// A verdict.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// All that arrived is what had to arrive.
    Right,
    /// Something else arrived, or nothing.
    Wrong(Box<Finding>),
    /// The interface does not have this offload.
    NotOffered,
    /// It cannot be judged on this path.
    NotReachable {
        /// Why.
        why: String,
    },
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blame {
    /// The sender's adapter or driver: with the sender's offloads off it is right.
    Sender,
    /// The receiver's adapter or driver: with the receiver's offloads off it is right.
    Receiver,
    /// Only both together: it is right as soon as either side's offloads are off, or only when both are.
    Both,
    /// What lies between: it is wrong with every offload off that can be.
    Path,
    /// It did not happen again.
    Unrepeatable,
}

/// What is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its name.
    pub fault: Fault,
    /// The same in words.
    pub what: &'static str,
    /// Whose fault it is.
    pub blame: Blame,
    /// The first case that showed it.
    pub case: String,
    /// Cases that were wrong before the check of this offload was ended.
    pub wrong_cases: usize,
    /// The frame and its first field that differs.
    pub place: String,
    /// What had to stand there.
    pub expected: String,
    /// What does.
    pub got: String,
    /// What was sent, what had to arrive, and what was captured.
    #[serde(skip)]
    pub evidence: Evidence,
}

/// Frames that show a fault.
#[derive(Clone, Default)]
pub struct Evidence {
    /// As they were handed to the sender's interface.
    pub sent: Vec<Vec<u8>>,
    /// As they had to arrive, on a wire.
    pub expected: Vec<Vec<u8>>,
    /// As they were captured.
    pub captured: Vec<Vec<u8>>,
}

/// What an offload is worth on an interface.
#[derive(Clone, Debug, Serialize)]
pub struct Worth {
    /// Names of offloads that are switched together, as `--only` takes them.
    pub offloads: Vec<&'static str>,
    /// The interface.
    pub interface: String,
    /// What it does.
    pub effect: Effect,
    /// The measurement in a sentence.
    pub found: String,
}

/// What an offload does to the speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// More goes through, or it takes this machine less time.
    Pays,
    /// Less goes through, or it takes this machine more time.
    SlowsDown,
    /// Neither, as far as can be seen.
    NoDifference,
    /// It could not be measured, or the noise is too large.
    Unknown,
}

impl fmt::Debug for Evidence {
    /// How many there are: their bytes would hide all else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, expected, captured } = self;
        write!(f, "{} sent, {} expected, {} captured", sent.len(), expected.len(), captured.len())
    }
}

impl Report {
    /// Whether anything is wrong.
    pub fn is_wrong(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.verdict, Verdict::Wrong(_)))
    }
}

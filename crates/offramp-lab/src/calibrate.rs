//! This machine as a host of the model: what its experiments cost, taken apart, and the rest of them predicted.
//!
//! In the lab both hosts run on the same processors, and the adapters on another one. What the hosts' processors take for
//! a byte of payload is taken for a sum of what they did for it:
//!
//! ```text
//! host    = byte + sends × send + receives × receive [+ sum sent] [+ sum received]
//! adapter = byte + wire frames × frame + (sends + receives) × hand-over [- sums that the hosts make]
//! ```
//!
//! The counts are those of the adapters, so the costs follow by least squares from a few experiments (`lso`, `rsc`,
//! `tx-checksum`, `rx-checksum`, and `jumbo` at an MTU of 9000), none of them below 0. Where a line is the limit, the
//! hosts sleep between two interrupts, and what a hand-over then costs beyond that sum is waking: taken from
//! `interrupt-cap` at 8000 interrupts a second, and so are the pieces in which frames are then handed over. The profile
//! that is made of all this is a host that pays for both ends of a connection: that is what was measured. All other
//! experiments are predicted by runs of the model on that profile.
//!
//! What a host pays that only receives is measured by itself (`receiver`): it has a processor alone, and the sending host
//! shares the other one with the adapters. Its processor's time is
//!
//! ```text
//! receiver = byte + (receives + acknowledgements) × hand-over [+ sum received]
//! ```
//!
//! by least squares from three variants, the sum from `rx-checksum`; two more are predicted. The other processor is the
//! limit of the speed there, so the time that a byte takes is its work, and is taken apart like that of the adapters.

use std::fmt::Write as _;

use offramp_model::config::Workload;
use offramp_model::profile::schema::SECTIONS;
use offramp_model::profile::{Profile, ProfileError};
use offramp_model::simulation::{ModelError, run};

use crate::model::{Experiment, Sample};
use crate::plan::{GIGABIT_BPS, GIGABIT_INTERRUPTS_PER_SECOND, Plan, RECEIVER, Settings};
use crate::traffic::Amount;

/// Variants from which the costs of bytes and frames follow.
const LEARNED: [(&str, &str); 6] =
    [("lso", "off"), ("lso", "on"), ("rsc", "off"), ("rsc", "on"), ("rx-checksum", "on"), ("jumbo", "MTU 9000")];
/// Experiments that say what a sum costs, by their variants `off` and `on`.
const SUMS: [&str; 2] = ["tx-checksum", "rx-checksum"];
/// The variant from which waking follows: hosts that the line leaves idle between the interrupts.
const PACED: (&str, &str) = ("interrupt-cap", "8000/s");
/// Variants from which the costs of a host follow that only receives.
const LEARNED_OF_RECEIVER: [(&str, &str); 3] = [(RECEIVER, "off"), (RECEIVER, "on"), (RECEIVER, "MTU 9000")];
/// Throughput is to be predicted within this, percent.
pub const THROUGHPUT_PERCENT: f64 = 15.0;
/// Processor time is to be predicted within this, percent.
pub const CPU_PERCENT: f64 = 20.0;
/// A sample tells the hosts' time well enough where what a hypervisor took leaves it open by no more than this share of
/// it: half of what a prediction may be away.
const OPEN_SHARE_MAX: f64 = CPU_PERCENT / 2.0 / 100.0;
/// Samples are so many times as long where the line is the limit: the hosts then work a quarter of the time, and the
/// system counts it in ticks.
const PACED_TIMES: u64 = 4;
/// Of the values of all rounds so many at each end are left out of their mean.
const TRIMMED_PERCENT: usize = 10;

const NANOSECONDS_PER_SECOND: f64 = 1e9;
const BITS_PER_BYTE: f64 = 8.0;
/// Ethernet, IPv4 and TCP headers with timestamps.
const HEADERS_LEN: f64 = 66.0;
/// Payload of a segment with timestamps at an MTU of 1500.
const MSS: f64 = 1448.0;
/// Largest large send that the model's profiles know.
const CHUNK_LEN_MAX: f64 = 65_400.0;

/// Why a machine cannot be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// An experiment that is needed was not run, or did not tell hosts and adapters apart.
    #[error(
        "{experiment}, {variant}: no sample with processor time of hosts and adapters; a machine with two processors is needed"
    )]
    Missing {
        /// The experiment.
        experiment: String,
        /// The variant.
        variant: String,
    },
    /// The profile that was made is none.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A run of the model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// What one sample says of a byte of payload.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PerByte {
    host_ns: f64,
    /// The least and the most that `host_ns` may be.
    host_min_ns: f64,
    host_max_ns: f64,
    adapter_ns: f64,
    sends: f64,
    receives: f64,
    wire_frames: f64,
    /// Seconds.
    time: f64,
}

impl PerByte {
    fn of(sample: &Sample) -> Option<Self> {
        let bytes = sample.bytes as f64;
        let host_s = sample.host_cpu_s?;
        let [host_min_s, host_max_s] = sample.host_cpu_range_s.unwrap_or([host_s; 2]);
        let found = Self {
            host_ns: host_s * NANOSECONDS_PER_SECOND / bytes,
            host_min_ns: host_min_s * NANOSECONDS_PER_SECOND / bytes,
            host_max_ns: host_max_s * NANOSECONDS_PER_SECOND / bytes,
            adapter_ns: sample.adapter_cpu_s? * NANOSECONDS_PER_SECOND / bytes,
            sends: sample.sent_frames? as f64 / bytes,
            receives: sample.host_frames? as f64 / bytes,
            wire_frames: sample.wire_frames? as f64 / bytes,
            time: sample.seconds / bytes,
        };
        (sample.bytes > 0).then_some(found)
    }

    /// Whether what a hypervisor took leaves the hosts' time open by little.
    fn is_certain(&self) -> bool {
        self.host_max_ns - self.host_min_ns <= self.host_ns * OPEN_SHARE_MAX
    }

    /// Those in which the hosts' time is certain, if they are half of all at least; else all.
    fn certain(all: Vec<Self>) -> Vec<Self> {
        let certain: Vec<Self> = all.iter().copied().filter(Self::is_certain).collect();
        if certain.len() * 2 >= all.len() { certain } else { all }
    }
}

/// The mean without the smallest and the largest [`TRIMMED_PERCENT`] of the values; `None` without any.
///
/// On a virtual machine samples of one variant are of two kinds, up to twice as dear the one as the other; why is not known.
/// A median of values of two kinds is of the one or of the other, and by chance differs between experiments; of means, the
/// mean of a sum is the sum of the means.
fn trimmed_mean(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let trimmed = values.len() * TRIMMED_PERCENT / 100;
    let kept = values.get(trimmed..values.len() - trimmed).filter(|kept| !kept.is_empty())?;
    Some(kept.iter().sum::<f64>() / kept.len() as f64)
}

/// The samples of a run.
#[derive(Clone, Copy, Debug)]
struct Samples<'a> {
    experiments: &'a [Experiment],
    /// Only of this round; `None`: what all say together.
    round: Option<usize>,
}

impl Samples<'_> {
    fn get(&self, experiment: &str, variant: &str) -> Result<PerByte, CalibrateError> {
        let missing = || CalibrateError::Missing { experiment: experiment.to_owned(), variant: variant.to_owned() };
        let of = self.experiments.iter().find(|of| of.name == experiment).ok_or_else(missing)?;
        let of = of.variants.iter().find(|of| of.name == variant).ok_or_else(missing)?;
        let rounds = of.samples.iter().filter(|sample| self.round.is_none_or(|round| sample.round == round));
        let all = PerByte::certain(rounds.filter_map(PerByte::of).collect());
        let middle = |of: fn(&PerByte) -> f64| trimmed_mean(all.iter().map(of).collect()).ok_or_else(missing);
        Ok(PerByte {
            host_ns: middle(|of| of.host_ns)?,
            host_min_ns: middle(|of| of.host_min_ns)?,
            host_max_ns: middle(|of| of.host_max_ns)?,
            adapter_ns: middle(|of| of.adapter_ns)?,
            sends: middle(|of| of.sends)?,
            receives: middle(|of| of.receives)?,
            wire_frames: middle(|of| of.wire_frames)?,
            time: middle(|of| of.time)?,
        })
    }
}

/// The part of the lab that calibration needs: the variants that it learns from, and those that it predicts.
pub fn plans(settings: &Settings) -> Vec<Plan> {
    let sums = SUMS.iter().flat_map(|&name| [(name, "off"), (name, "on")]);
    let predicted = PREDICTED.iter().chain(&PREDICTED_OF_RECEIVER);
    let predicted = predicted.map(|&(experiment, variant, _)| (experiment, variant));
    let learned = LEARNED.into_iter().chain([PACED]).chain(sums).chain(LEARNED_OF_RECEIVER);
    let needed: Vec<_> = learned.chain(predicted).collect();
    let mut plans = crate::plan::plans(settings);
    for plan in &mut plans {
        plan.variants.retain(|variant| needed.contains(&(plan.name, variant.name)));
        for variant in plan.variants.iter_mut().filter(|variant| variant.rig.rate_bps.is_some()) {
            if let Amount::Usecs(usecs) = &mut variant.traffic.amount {
                *usecs *= PACED_TIMES;
            }
        }
    }
    plans.retain(|plan| !plan.variants.is_empty());
    plans
}

/// What this machine's work costs, in nanoseconds, and how long the pieces are in which it is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The hosts, for each byte, at both ends together.
    pub byte_ns: f64,
    /// The hosts, for each frame or super-frame handed down, acknowledgements among them.
    pub send_ns: f64,
    /// The hosts, for each frame or joined frame handed up.
    pub receive_ns: f64,
    /// The hosts, for each byte sent that they sum themselves.
    pub sum_sent_ns: f64,
    /// The hosts, for each byte received that they sum themselves.
    pub sum_received_ns: f64,
    /// The hosts, for each interrupt after which they had slept, on top of what is handed over.
    pub wake_ns: f64,
    /// The adapters, for each byte, sums included.
    pub adapter_byte_ns: f64,
    /// The adapters, for each frame on the line.
    pub adapter_frame_ns: f64,
    /// The adapters, for each frame or super-frame that goes to or from a host.
    pub adapter_hand_over_ns: f64,
    /// The adapters, for each byte sent that they sum for the hosts.
    pub adapter_sum_sent_ns: f64,
    /// The adapters, for each byte received that they sum for the hosts.
    pub adapter_sum_received_ns: f64,
    /// Bytes handed down at once with large sends, acknowledgements counted in.
    pub chunk_len: f64,
    /// Bytes handed up at once with receive coalescing, acknowledgements counted in.
    pub joined_len: f64,
    /// Bytes handed down at once where the line is the limit, acknowledgements counted in.
    pub paced_sent_len: f64,
    /// Bytes handed up at once where the line is the limit, acknowledgements counted in.
    pub paced_joined_len: f64,
    /// Frames on the line for each segment: one, and its share of an acknowledgement.
    pub frames_per_segment: f64,
    /// What receiving takes alone; `None`: the system does not let the receive work of a host be moved to its processor, or
    /// there is no second one.
    pub receiver: Option<ReceiverCosts>,
}

/// What a host pays that only receives, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReceiverCosts {
    /// For each byte.
    pub byte_ns: f64,
    /// For each frame or joined frame handed up, and for each acknowledgement handed down.
    pub hand_over_ns: f64,
    /// Segments that an acknowledgement answers where none are joined.
    pub segments_per_ack: f64,
    /// The sending host and the adapters, which share a processor, for each byte.
    pub peer_byte_ns: f64,
    /// The same for each frame on the line.
    pub peer_frame_ns: f64,
    /// The same for each frame or joined frame that goes to or from the receiving host.
    pub peer_hand_over_ns: f64,
}

impl ReceiverCosts {
    /// `None` where one of the variants did not tell the receiving host's time.
    fn learn(samples: Samples) -> Option<Self> {
        let learned = LEARNED_OF_RECEIVER.iter().map(|(experiment, variant)| samples.get(experiment, variant).ok());
        let learned = learned.collect::<Option<Vec<_>>>()?;
        let rows: Vec<_> = learned.iter().map(|of| ([1.0, of.sends + of.receives, 0.0], of.host_ns)).collect();
        let [byte_ns, hand_over_ns, _] = least_squares(&rows);
        let times = learned.iter().map(|of| {
            let time_ns = of.time * NANOSECONDS_PER_SECOND;
            ([1.0, of.wire_frames, of.sends + of.receives], time_ns)
        });
        let [peer_byte_ns, peer_frame_ns, peer_hand_over_ns] = least_squares(&times.collect::<Vec<_>>());
        let [plain, ..] = learned.as_slice() else { return None };
        let segments_per_ack = 1.0 / (plain.sends * MSS);
        Some(Self { byte_ns, hand_over_ns, segments_per_ack, peer_byte_ns, peer_frame_ns, peer_hand_over_ns })
    }

    /// In the order of [`NAMES`].
    fn values(&self) -> [f64; NAMES.len() - OF_RECEIVER] {
        [
            self.byte_ns,
            self.hand_over_ns,
            self.segments_per_ack,
            self.peer_byte_ns,
            self.peer_frame_ns,
            self.peer_hand_over_ns,
        ]
    }

    /// Of each segment, what goes up and down between the receiving host and the adapters.
    fn hand_overs(&self, costs: &Costs, setup: &Setup) -> f64 {
        if setup.rsc { 2.0 * setup.mss / costs.joined_len } else { 1.0 + 1.0 / self.segments_per_ack }
    }

    /// The processor of the sending host and the adapters, for each segment.
    fn peer_ns(&self, costs: &Costs, setup: &Setup) -> f64 {
        let spared = if setup.host_sums_received { costs.adapter_sum_received_ns } else { 0.0 };
        (self.peer_byte_ns - spared) * setup.mss
            + self.peer_frame_ns * costs.frames_per_segment
            + self.peer_hand_over_ns * self.hand_overs(costs, setup)
    }

    fn settings(&self) -> [Setting; 4] {
        let time = |key| Setting { key, value: self.hand_over_ns, decimals: 3, unit: "ns", cost: OF_RECEIVER + 1 };
        let segments = self.segments_per_ack.clamp(1.0, SEGMENTS_PER_ACK_MAX);
        [
            Setting { key: "host.copy_time", value: self.byte_ns, decimals: 6, unit: "ns/byte", cost: OF_RECEIVER },
            time("host.tcp_time"),
            time("host.ack_time"),
            Setting {
                key: "host.segments_per_ack",
                value: segments,
                decimals: 0,
                unit: "segment",
                cost: OF_RECEIVER + 2,
            },
        ]
    }
}

/// Most segments that an acknowledgement of the model answers.
const SEGMENTS_PER_ACK_MAX: f64 = 64.0;
/// Position of the first cost of a host that only receives, in [`NAMES`].
const OF_RECEIVER: usize = 16;

/// Names and units of the costs, in the order of [`Costs::values`].
const NAMES: [&str; 22] = [
    "host, ns/byte, both ends",
    "host, ns/send",
    "host, ns/receive",
    "host, ns/byte summed, sent",
    "host, ns/byte summed, received",
    "host, ns/interrupt when idle",
    "adapters, ns/byte",
    "adapters, ns/frame on the line",
    "adapters, ns/hand-over",
    "adapters, ns/byte summed, sent",
    "adapters, ns/byte summed, received",
    "bytes/send with LSO",
    "bytes/receive with RSC",
    "bytes/send with LSO, line the limit",
    "bytes/receive with RSC, line the limit",
    "frames/segment",
    "receiving host, ns/byte",
    "receiving host, ns/hand-over",
    "receiving host, segments/acknowledgement",
    "its peer and adapters, ns/byte",
    "its peer and adapters, ns/frame",
    "its peer and adapters, ns/hand-over",
];

impl Costs {
    /// Of a host that only receives 0 where it was not measured.
    fn values(&self) -> [f64; NAMES.len()] {
        let [byte_ns, hand_over_ns, segments_per_ack, peer_byte_ns, peer_frame_ns, peer_hand_over_ns] =
            self.receiver.map_or([0.0; 6], |of| of.values());
        [
            self.byte_ns,
            self.send_ns,
            self.receive_ns,
            self.sum_sent_ns,
            self.sum_received_ns,
            self.wake_ns,
            self.adapter_byte_ns,
            self.adapter_frame_ns,
            self.adapter_hand_over_ns,
            self.adapter_sum_sent_ns,
            self.adapter_sum_received_ns,
            self.chunk_len,
            self.joined_len,
            self.paced_sent_len,
            self.paced_joined_len,
            self.frames_per_segment,
            byte_ns,
            hand_over_ns,
            segments_per_ack,
            peer_byte_ns,
            peer_frame_ns,
            peer_hand_over_ns,
        ]
    }

    fn learn(samples: Samples) -> Result<Self, CalibrateError> {
        let learned = LEARNED.iter().map(|(experiment, variant)| samples.get(experiment, variant));
        let learned = learned.collect::<Result<Vec<_>, _>>()?;
        let host: Vec<_> = learned.iter().map(|of| ([1.0, of.sends, of.receives], of.host_ns)).collect();
        let adapter: Vec<_> =
            learned.iter().map(|of| ([1.0, of.wire_frames, of.sends + of.receives], of.adapter_ns)).collect();
        let [byte_ns, send_ns, receive_ns] = least_squares(&host);
        let [adapter_byte_ns, adapter_frame_ns, adapter_hand_over_ns] = least_squares(&adapter);
        let spared = |name| -> Result<f64, CalibrateError> {
            Ok((samples.get(name, "off")?.host_ns - samples.get(name, "on")?.host_ns).max(0.0))
        };
        let summed = |name| -> Result<f64, CalibrateError> {
            let sum_ns = samples.get(name, "on")?.adapter_ns - samples.get(name, "off")?.adapter_ns;
            // A byte's whole cost has them in it.
            Ok(sum_ns.clamp(0.0, adapter_byte_ns / SUMS.len() as f64))
        };
        let paced = samples.get(PACED.0, PACED.1)?;
        let handed_over_ns = byte_ns + paced.sends * send_ns + paced.receives * receive_ns;
        let interrupts = paced.time * f64::from(GIGABIT_INTERRUPTS_PER_SECOND);
        let (plain, large) = (samples.get("rsc", "off")?, samples.get("lso", "on")?);
        Ok(Self {
            byte_ns,
            send_ns,
            receive_ns,
            sum_sent_ns: spared(SUMS[0])?,
            sum_received_ns: spared(SUMS[1])?,
            wake_ns: ((paced.host_ns - handed_over_ns) / interrupts).max(0.0),
            adapter_byte_ns,
            adapter_frame_ns,
            adapter_hand_over_ns,
            adapter_sum_sent_ns: summed(SUMS[0])?,
            adapter_sum_received_ns: summed(SUMS[1])?,
            chunk_len: 1.0 / large.sends,
            joined_len: 1.0 / large.receives,
            paced_sent_len: 1.0 / paced.sends,
            paced_joined_len: 1.0 / paced.receives,
            frames_per_segment: plain.wire_frames * MSS,
            receiver: ReceiverCosts::learn(samples),
        })
    }
}

/// Solves `a x = b` by least squares of the relative errors, with no `x` below 0. Three unknowns, a handful of rows:
/// coordinate by coordinate until nothing moves.
fn least_squares(rows: &[([f64; 3], f64)]) -> [f64; 3] {
    const TURNS: usize = 20_000;
    // Columns differ by many orders of magnitude; scaled, they converge alike.
    let weighted: Vec<[f64; 3]> = rows.iter().map(|(row, value)| row.map(|cell| cell / value)).collect();
    let scale: [f64; 3] = std::array::from_fn(|at| {
        weighted.iter().map(|row| row[at] * row[at]).sum::<f64>().sqrt().max(f64::MIN_POSITIVE)
    });
    let scaled: Vec<[f64; 3]> = weighted.iter().map(|row| std::array::from_fn(|at| row[at] / scale[at])).collect();
    let mut x = [0.0_f64; 3];
    for _ in 0..TURNS {
        for at in 0..3 {
            let rest = |row: &[f64; 3]| {
                1.0 - (0..3).filter(|other| *other != at).map(|other| row[other] * x[other]).sum::<f64>()
            };
            // The squares of a scaled column come to 1.
            x[at] = scaled.iter().map(|row| row[at] * rest(row)).sum::<f64>().max(0.0);
        }
    }
    std::array::from_fn(|at| x[at] / scale[at])
}

/// Costs with the range that the rounds of the run give them.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// From all rounds together.
    pub costs: Costs,
    /// From each round by itself that tells all.
    pub rounds: Vec<Costs>,
}

impl Calibration {
    /// Takes a run apart.
    ///
    /// # Errors
    /// When an experiment is missing, or did not tell hosts and adapters apart.
    pub fn of(experiments: &[Experiment]) -> Result<Self, CalibrateError> {
        let costs = Costs::learn(Samples { experiments, round: None })?;
        let samples = experiments.iter().flat_map(|of| &of.variants).flat_map(|of| &of.samples);
        let rounds = samples.map(|sample| sample.round + 1).max().unwrap_or(0);
        // A round with a sample that tells nothing, as one in which nothing arrived, has no costs of its own.
        let rounds = (0..rounds).filter_map(|round| Costs::learn(Samples { experiments, round: Some(round) }).ok());
        Ok(Self { costs, rounds: rounds.collect() })
    }

    /// The smallest and the largest value that a round by itself, or all together, give.
    fn interval(&self, at: usize) -> [f64; 2] {
        let rounds = self.rounds.iter().filter(|costs| at < OF_RECEIVER || costs.receiver.is_some());
        let values = rounds.chain([&self.costs]).map(|costs| costs.values()[at]);
        values.fold([f64::INFINITY, 0.0], |[low, high], value| [low.min(value), high.max(value)])
    }

    /// The costs for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{:40} {:>10}   {:>10} {:>10}\n", "cost", "measured", "from", "to");
        let measured = if self.costs.receiver.is_some() { NAMES.len() } else { OF_RECEIVER };
        for (at, name) in NAMES.iter().enumerate().take(measured) {
            let [low, high] = self.interval(at);
            // Writing to a string does not fail.
            let _ = writeln!(out, "{name:40} {:>10.3}   {low:>10.3} {high:>10.3}", self.costs.values()[at]);
        }
        out
    }

    /// The profile of this machine: a system with large sends and receive coalescing on, and a line without a limit.
    #[must_use]
    pub fn profile(&self, machine: &str) -> String {
        let mut out = format!(
            "# Made by `offramp calibrate`, which makes it anew each time that it runs.\nkind = \"system\"\ntitle = \"{}\"\n",
            machine.replace(['"', '\\', '\n'], " ")
        );
        let mut section = "";
        for Line { key, value, source } in self.lines() {
            let (of, name) = key.split_once('.').unwrap_or((key, ""));
            if of != section {
                // Writing to a string does not fail.
                let _ = write!(out, "\n[{of}]\n");
                section = of;
            }
            let (tag, source) = match source {
                Source::Measured(at) => ("measured", format!("the lab: {}, {} rounds", NAMES[at], self.rounds.len())),
                Source::Assumed(why) => ("assumed", why.to_owned()),
            };
            let _ = writeln!(out, "{name} = {{ {value}, tag = \"{tag}\", source = \"{source}\" }}");
        }
        out
    }

    fn lines(&self) -> Vec<Line> {
        let number = |value: String| {
            let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
            format!("value = {}, unit = \"{}\"", &value[..end], &value[end..])
        };
        let of_rounds: Vec<_> = self.rounds.iter().map(|costs| costs.settings(&Setup::ALL_ON)).collect();
        let measured = self.costs.settings(&Setup::ALL_ON).into_iter().enumerate().map(|(at, setting)| {
            // A round by itself may not say what a receiving host pays.
            let found: Vec<f64> = of_rounds.iter().filter_map(|settings| Some(settings.get(at)?.value)).collect();
            Line { key: setting.key, value: setting.with_interval(&found), source: Source::Measured(setting.cost) }
        });
        let word =
            |key, word: &str, why| Line { key, value: format!("value = \"{word}\""), source: Source::Assumed(why) };
        let size = |key, value: &str, why| Line { key, value: number(value.to_owned()), source: Source::Assumed(why) };
        let interrupt_rate = format!("{GIGABIT_INTERRUPTS_PER_SECOND}interrupt/s");
        let assumed = [
            word("host.receive", "deferred", "Linux: softirqs"),
            word("host.tcp", "cubic", "Linux' default"),
            size("host.send_buffer", "4MiB", "Linux grows it as far as it is needed"),
            size("host.receive_window", "4MiB", "Linux grows it as far as it is needed"),
            size(
                "host.delayed_ack_time",
                "100us",
                "Linux acknowledges once a process has read all there is; the model has a timer for that",
            ),
            word("adapter.memory_kind", "descriptors", "a TAP's queue"),
            word("adapter.access", "master", "the copy of the adapter's thread is in its time for each frame"),
            word("adapter.checksum", "on", "offramp's default"),
            word("adapter.lso", "on", "offramp's default"),
            word("adapter.coalesce", "on", "offramp's default"),
            size("adapter.receive_descriptors", "4096frame", "more than a window: the adapter's thread waits for room"),
            word("adapter.moderation", "fixed-gap", "the lab's own where a line is the limit"),
            size("adapter.interrupt_rate", &interrupt_rate, "the same"),
            size(
                "adapter.transmit_fifo",
                "256KiB",
                "more than a large send, so that the thread never waits for the line",
            ),
            word("link.duplex", "full", "offramp's cable"),
            size("link.rate", "1000Gbit/s", "a cable in memory: the thread is the limit, and not the line"),
            size("link.delay", "10us", "about the round trip that the lab measures, without what the processors do"),
            size("peer.gap", "0ns", "the peer is the same processor, and its time is in the costs above"),
            size("peer.receive_window", "4MiB", "Linux grows it as far as it is needed"),
            word("peer.tcp", "cubic", "Linux' default"),
            size("workload.mss", "1448byte", "an MTU of 1500 with timestamps"),
            size("workload.tcp_options", "12byte", "RFC 7323: timestamps"),
            size(
                "workload.write_size",
                "256KiB",
                "as large as the lab's own writes, or larger: their costs are in the bytes",
            ),
            size("workload.warmup", "20ms", "longer than slow start"),
            size("workload.time", "100ms", "some ten thousand round trips"),
        ];
        let mut lines: Vec<Line> = measured.collect();
        let is_measured = |key: &str, lines: &[Line]| lines.iter().any(|line| line.key == key);
        let assumed: Vec<Line> = assumed.into_iter().filter(|line| !is_measured(line.key, &lines)).collect();
        lines.extend(assumed);
        let place = |line: &Line| SECTIONS.iter().position(|section| line.key.starts_with(section));
        lines.sort_by_key(place);
        lines
    }
}

/// A parameter of a profile that follows from the costs.
struct Setting {
    key: &'static str,
    value: f64,
    /// Digits behind the point.
    decimals: usize,
    unit: &'static str,
    /// The position in [`NAMES`] of the cost that it mostly follows from.
    cost: usize,
}

impl Setting {
    /// As a user writes it.
    fn text(&self) -> String {
        format!("{:.*}{}", self.decimals, self.value, self.unit)
    }

    /// As a profile has it, with an interval that holds the value and what was found besides.
    fn with_interval(&self, found: &[f64]) -> String {
        let (low, high) = found.iter().fold((self.value, self.value), |(low, high), of| (low.min(*of), high.max(*of)));
        let (decimals, value) = (self.decimals, self.value);
        format!(
            "value = {value:.decimals$}, unit = \"{}\", interval = [{low:.decimals$}, {high:.decimals$}]",
            self.unit
        )
    }
}

/// A line of a profile.
struct Line {
    key: &'static str,
    value: String,
    source: Source,
}

enum Source {
    /// The position of the cost in [`NAMES`] that it follows from.
    Measured(usize),
    Assumed(&'static str),
}

/// How hosts and adapters are set.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "switches that have nothing to do with each other")]
struct Setup {
    lso: bool,
    rsc: bool,
    host_sums_sent: bool,
    host_sums_received: bool,
    mss: f64,
    /// The line is the limit.
    is_gigabit: bool,
}

impl Setup {
    const ALL_ON: Self =
        Self { lso: true, rsc: true, host_sums_sent: false, host_sums_received: false, mss: MSS, is_gigabit: false };
    const BARE: Self = Self { lso: false, rsc: false, ..Self::ALL_ON };
}

/// Experiments that are predicted, and how they are set.
const PREDICTED: [(&str, &str, Setup); 6] = [
    ("jumbo", "MTU 1500", Setup::BARE),
    ("all", "checksums only", Setup::BARE),
    ("all", "none", Setup { host_sums_sent: true, host_sums_received: true, ..Setup::BARE }),
    ("all", "all", Setup::ALL_ON),
    ("lso-1g", "off", Setup { lso: false, is_gigabit: true, ..Setup::ALL_ON }),
    ("lso-1g", "on", Setup { is_gigabit: true, ..Setup::ALL_ON }),
];

/// The same of a host that only receives.
const PREDICTED_OF_RECEIVER: [(&str, &str, Setup); 2] = [
    (RECEIVER, "no checksums", Setup { rsc: false, host_sums_received: true, ..Setup::ALL_ON }),
    (RECEIVER, "MTU 3000", Setup { rsc: false, mss: 2948.0, ..Setup::ALL_ON }),
];

/// What goes up and down between hosts and adapters for each segment, and in what pieces.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HandOvers {
    /// To a host, acknowledgements counted in.
    up: f64,
    /// From a host, data alone where the model cuts it into large sends, else with acknowledgements.
    down: f64,
    /// Acknowledgements from a host that are not in `down`.
    acks: f64,
    /// Bytes of a large send.
    chunk_len: f64,
}

impl Costs {
    /// As was measured, where the line is the limit and elsewhere. What is handed down then beyond large sends as long as
    /// they may be is acknowledgements, of which large send makes neither more nor less.
    fn hand_overs(&self, setup: &Setup) -> HandOvers {
        let one = self.frames_per_segment;
        let paced_acks = (setup.mss / self.paced_sent_len - setup.mss / CHUNK_LEN_MAX).max(0.0);
        let (chunk_len, joined_len, acks, plain) = if setup.is_gigabit {
            (CHUNK_LEN_MAX, self.paced_joined_len, paced_acks, 1.0 + paced_acks)
        } else {
            (self.chunk_len, self.joined_len, 0.0, one)
        };
        let up = if setup.rsc { setup.mss / joined_len } else { one };
        if setup.lso {
            HandOvers { up, down: setup.mss / chunk_len, acks, chunk_len }
        } else {
            HandOvers { up, down: plain, acks: 0.0, chunk_len }
        }
    }

    /// The parameters of a profile that follow from the costs, for hosts and adapters that are set so.
    fn settings(&self, setup: &Setup) -> Vec<Setting> {
        let pieces = self.hand_overs(setup);
        let byte = self.byte_ns
            + (self.receive_ns * pieces.up + self.send_ns * pieces.acks) / setup.mss
            + if setup.host_sums_received { self.sum_received_ns } else { 0.0 };
        let engine = self.engine_ns(setup);
        let segment_sends = if setup.lso { self.frames_per_segment } else { pieces.down };
        let per_byte = |key, value, cost| Setting { key, value, decimals: 6, unit: "ns/byte", cost };
        let time = |key, value, cost| Setting { key, value, decimals: 3, unit: "ns", cost };
        let bytes = |key, value, cost| Setting { key, value, decimals: 0, unit: "byte", cost };
        let mut settings = vec![
            per_byte("host.write_copy_time", byte, 0),
            time("host.segment_time", self.send_ns * segment_sends, 1),
            time("host.chunk_time", self.send_ns, 1),
            per_byte("host.checksum_time", self.sum_sent_ns, 3),
            time("host.wake_time", self.wake_ns, 5),
            time("adapter.segment_time", engine, 6),
            bytes("adapter.segment_chunk", pieces.chunk_len.clamp(MSS, CHUNK_LEN_MAX), 11),
        ];
        if let Some(receiver) = self.receiver {
            settings.push(time("peer.gap", receiver.peer_ns(self, setup), OF_RECEIVER + 3));
            settings.extend(receiver.settings());
        }
        settings
    }

    /// The adapters, for each segment.
    fn engine_ns(&self, setup: &Setup) -> f64 {
        let pieces = self.hand_overs(setup);
        let sums = [
            (setup.host_sums_sent, self.adapter_sum_sent_ns),
            (setup.host_sums_received, self.adapter_sum_received_ns),
        ];
        let spared: f64 = sums.iter().filter(|(is_of_host, _)| *is_of_host).map(|(_, sum_ns)| sum_ns).sum();
        (self.adapter_byte_ns - spared) * (setup.mss + HEADERS_LEN)
            + self.adapter_frame_ns * self.frames_per_segment
            + self.adapter_hand_over_ns * (pieces.up + pieces.down + pieces.acks)
    }
}

/// What the model says of an experiment that was not learned from, and what was measured.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The experiment.
    pub experiment: &'static str,
    /// The variant.
    pub variant: &'static str,
    /// Payload in Gbit/s, predicted and measured.
    pub gbit_per_s: [f64; 2],
    /// Processor time of the hosts in seconds for 10^9 bytes, predicted and measured.
    pub host_cpu_s_per_gb: [f64; 2],
    /// The least and the most that the measured one may be, where a hypervisor took time.
    pub measured_range_s_per_gb: [f64; 2],
}

/// Whether a prediction keeps to its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Met,
    /// It does not.
    Missed,
    /// A hypervisor took time, and what was measured is not known well enough to say.
    Open,
}

impl Prediction {
    /// By how much the throughput is above what was measured, percent.
    #[must_use]
    pub fn throughput_error(&self) -> f64 {
        error_percent(self.gbit_per_s)
    }

    /// The same of the processor time.
    #[must_use]
    pub fn cpu_error(&self) -> f64 {
        error_percent(self.host_cpu_s_per_gb)
    }

    /// Whether both keep to their targets, whatever within its range the measured time is.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let [predicted, _] = self.host_cpu_s_per_gb;
        let [most, least] = self.measured_range_s_per_gb.map(|measured| error_percent([predicted, measured]));
        let keeps = |error: f64| error.abs() <= CPU_PERCENT;
        // Somewhere in the range, and at both its ends.
        let may_keep = least <= CPU_PERCENT && most >= -CPU_PERCENT;
        let has_throughput = self.throughput_error().abs() <= THROUGHPUT_PERCENT;
        match (has_throughput && may_keep, keeps(least) && keeps(most)) {
            (false, _) => Verdict::Missed,
            (true, false) => Verdict::Open,
            (true, true) => Verdict::Met,
        }
    }

    fn is(&self, verdict: Verdict) -> bool {
        self.verdict() == verdict
    }
}

fn error_percent([predicted, measured]: [f64; 2]) -> f64 {
    100.0 * (predicted / measured - 1.0)
}

/// Predicts the experiments that were run and not learned from, with the profile in a file.
///
/// # Errors
/// When the profile cannot be used, a run of the model fails, or an experiment is missing.
pub fn predict(
    profile: &str,
    calibration: &Calibration,
    experiments: &[Experiment],
) -> Result<Vec<Prediction>, CalibrateError> {
    let base = Profile::load(profile)?;
    let one = |&(experiment, variant, ref setup): &(&'static str, &'static str, Setup)| {
        let measured = Samples { experiments, round: None }.get(experiment, variant)?;
        let costs = &calibration.costs;
        let outcome = match &costs.receiver {
            Some(receiver) if experiment == RECEIVER => {
                run(&set_up_receiver(&base, costs, receiver, setup)?, Workload::TtcpReceive)?
            }
            _ => run(&set_up(&base, costs, setup)?, Workload::TtcpSend)?,
        };
        let speed = BITS_PER_BYTE / measured.time;
        let busy_s = outcome.cpu_percent / 100.0 * outcome.seconds * outcome.processors as f64;
        let gb = outcome.bytes_per_second * outcome.seconds / NANOSECONDS_PER_SECOND;
        Ok(Prediction {
            experiment,
            variant,
            gbit_per_s: [outcome.bytes_per_second * BITS_PER_BYTE / 1e9, speed / 1e9],
            host_cpu_s_per_gb: [busy_s / gb, measured.host_ns],
            measured_range_s_per_gb: [measured.host_min_ns, measured.host_max_ns],
        })
    };
    let of_receiver = PREDICTED_OF_RECEIVER.iter().filter(|_| calibration.costs.receiver.is_some());
    PREDICTED.iter().chain(of_receiver).map(one).collect()
}

/// A host that only receives, from a peer that shares a processor with the adapters: a frame every so often. What waking
/// there was, in what was learned from as in what is predicted, is in its costs.
fn set_up_receiver(
    base: &Profile,
    costs: &Costs,
    receiver: &ReceiverCosts,
    setup: &Setup,
) -> Result<Profile, ProfileError> {
    let mut profile = set_up(base, costs, setup)?;
    let gap_ns = receiver.peer_ns(costs, setup);
    let sum_ns = if setup.host_sums_received { costs.sum_received_ns } else { 0.0 };
    profile.set("peer.gap", &format!("{gap_ns:.3}ns"))?;
    profile.set("host.wake_time", "0ns")?;
    profile.set("adapter.checksum", if setup.host_sums_received { "off" } else { "on" })?;
    profile.set("host.checksum_time", &format!("{sum_ns:.6}ns/byte"))?;
    profile.set("adapter.coalesce", if setup.rsc { "on" } else { "off" })?;
    Ok(profile)
}

fn set_up(base: &Profile, costs: &Costs, setup: &Setup) -> Result<Profile, ProfileError> {
    let mut profile = base.clone();
    for setting in costs.settings(setup) {
        profile.set(setting.key, &setting.text())?;
    }
    profile.set("adapter.lso", if setup.lso { "on" } else { "off" })?;
    profile.set("adapter.checksum", if setup.host_sums_sent { "off" } else { "on" })?;
    profile.set("workload.mss", &format!("{:.0}byte", setup.mss))?;
    if setup.is_gigabit {
        profile.set("link.rate", &format!("{GIGABIT_BPS}bit/s"))?;
    }
    Ok(profile)
}

/// The predictions for people.
#[must_use]
pub fn predictions_text(predictions: &[Prediction]) -> String {
    let mut out = format!(
        "{:24} {:>10} {:>10} {:>8}   {:>10} {:>10} {:>8}\n",
        "not learned from", "Gbit/s", "measured", "error", "host s/GB", "measured", "error"
    );
    for of in predictions {
        let name = format!("{}, {}", of.experiment, of.variant);
        let [speed, measured_speed] = of.gbit_per_s;
        let [cpu, measured_cpu] = of.host_cpu_s_per_gb;
        let [least, most] = of.measured_range_s_per_gb;
        let verdict = match of.verdict() {
            Verdict::Met => "ok".to_owned(),
            Verdict::Missed => "MISS".to_owned(),
            Verdict::Open => format!("open: measured {least:.3} to {most:.3}"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{name:24} {speed:>10.2} {measured_speed:>10.2} {:>+6.1} %   {cpu:>10.3} {measured_cpu:>10.3} {:>+6.1} % {verdict}",
            of.throughput_error(),
            of.cpu_error()
        );
    }
    let count = |verdict| predictions.iter().filter(|of| of.is(verdict)).count();
    let (met, open) = (count(Verdict::Met), count(Verdict::Open));
    let targets = format!("within {THROUGHPUT_PERCENT} % of throughput and {CPU_PERCENT} % of processor time");
    let _ = write!(out, "{met} of {} {targets}", predictions.len());
    if open > 0 {
        let _ = write!(out, "; {open} open, as a hypervisor took time that the hosts may have worked or idled");
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests;

//! The whole check of a path: every offload of both ends, alone and together, in both directions.

mod blame;

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::case::{Addressing, Case, DESTINATION};
use crate::end::{COALESCES_UDP, End, Offered};
use crate::error::CheckError;
use crate::exchange::{Exchange, Outcome, PATIENCE_MAX};
use crate::fault::Fault;
use crate::oracle::Allowed;
use crate::packet::Ip;
use crate::plan::{self, Cases, Depth, OFFLOADS, Offload, Side};
use crate::reach::Reach;
use crate::rss::{self, Judged};
use crate::verdict::{self, Blame, Evidence, Finding, Interface, Report, Row, Verdict};
use offramp_offload::names as words;

/// Number of cases with the outcome [`Outcome::Wrong`] after which the check of an offload ends.
const WRONG_MAX: usize = 3;
/// Maximum number of attempts until a first frame is received. At first, switches on the path may still learn
/// addresses, and links may not be up yet.
const PROBES_MAX: usize = 8;
/// Name of the feature for Linux' own coalescing.
const GRO: &str = "rx-gro";
/// Name of the feature that allows any IPv4 ID in segments.
const MANGLE_ID: &str = "tx-tcp-mangleid-segmentation";

/// Reason in [`Verdict::NotReachable`] if the kernel cannot deliver an offload's output to a packet socket.
const UNSEEN: &str = "a packet socket of this kernel cannot hand over coalesced UDP (Linux 6.2 or later can)";

/// Reason in [`Verdict::NotTested`] if the path loses frames.
const LOSSY: &str =
    "frames are missing, but the path also loses frames with every offload off; check again under less load";

/// The reason why frames with their tag in the metadata cannot be sent.
const NO_PROGRAM: &str = "the kernel refuses a BPF program at the interface's egress, needed to pass tags as a VLAN \
     interface does (Linux 6.6 or later accepts it from root outside of user namespaces)";

/// Name of the check of the path itself, with every offload off.
pub const PATH: &str = "path";
/// Name of the check of frames with the length of the MTU.
pub const MTU: &str = "mtu";
/// Name of the check of receive queues.
pub const RSS: &str = "rss";
/// Name of the check of all offloads together.
pub const TOGETHER: &str = "together";

/// The settings of a check.
#[derive(Clone, Debug)]
pub struct Config {
    /// The extent of the check.
    pub depth: Depth,
    /// Names of the offloads to check, or other words for offloads ([`offramp_offload::names`]); empty checks all.
    pub only: Vec<String>,
    /// Seed of the payloads.
    pub seed: u64,
}

/// Returns the names of all checks with their descriptions, in the order of the check.
pub fn list() -> Vec<(&'static str, &'static str)> {
    let before = [
        (PATH, "the path itself carries every frame, with every offload off"),
        (MTU, "frames as long as the MTU pass, and a longer frame is refused"),
    ];
    let after = [
        (RSS, "the interface chooses receive queues by its hash and indirection table"),
        (TOGETHER, "all offloads of both ends at once"),
    ];
    before.into_iter().chain(OFFLOADS.iter().map(|offload| (offload.name, offload.about))).chain(after).collect()
}

/// Returns the names of all checks, in the order of the check.
pub fn names() -> Vec<&'static str> {
    list().into_iter().map(|(name, _)| name).collect()
}

/// Checks the path between two ends in both directions. `stop` ends the check after the current batch. `progress`
/// receives a line for each step. Every setting is restored before the function returns.
///
/// # Errors
/// Returns an error if no frame is received, or if an interface goes down, changes or may not be changed. Also fails if
/// the check is stopped, or a setting cannot be restored.
pub fn run(
    ends: &mut [Box<dyn End>; 2],
    config: &Config,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, CheckError> {
    let begun = Instant::now();
    let only = config.only.iter().map(|word| named(word)).collect::<Result<Vec<_>, _>>()?.concat();
    let config = &Config { only, ..config.clone() };
    let outcome = check(ends, config, stop, progress);
    let commands = outcome.as_ref().map(|rows| commands(ends, rows)).unwrap_or_default();
    for end in ends.iter_mut() {
        let name = end.description().name.clone();
        for line in end.finish()? {
            progress(&format!("{name}: all settings restored, except: {line}"));
        }
    }
    let rows = outcome?;
    Ok(Report {
        version: verdict::VERSION,
        offramp: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: nix::sys::utsname::uname()
            .map_or_else(|_| String::new(), |name| name.release().to_string_lossy().into()),
        seed: config.seed,
        depth: if config.depth == Depth::Quick { "quick" } else { "full" },
        elapsed_s: begun.elapsed().as_secs_f64(),
        ends: [0, 1].map(|n: usize| {
            let about = ends[n].description();
            Interface { name: about.name.clone(), driver: about.driver.clone(), mtu: about.mtu }
        }),
        commands,
        rows,
        worth: Vec::new(),
    })
}

/// Returns the names of the checks selected by a word. A word selects the check with this name. Any other word names
/// features, and selects every offload with such a feature.
fn named(word: &str) -> Result<Vec<String>, CheckError> {
    let known = names();
    if known.contains(&word) {
        return Ok(vec![word.to_owned()]);
    }
    let found: Vec<String> = sharing(word).into_iter().map(str::to_owned).collect();
    if found.is_empty() {
        let meaningful = words::all().filter(|of_table| !sharing(of_table).is_empty());
        let hint = words::hint(word, known.iter().copied().chain(meaningful));
        return Err(CheckError::UnknownOffload { name: word.to_owned(), hint, known: known.join(", ") });
    }
    Ok(found)
}

/// Returns the names of the offloads with a feature named by the word.
fn sharing(word: &str) -> Vec<&'static str> {
    let features = words::features(word);
    let is_meant =
        |offload: &&Offload| offload.features.iter().any(|feature| *feature == word || features.contains(feature));
    OFFLOADS.iter().filter(is_meant).map(|offload| offload.name).collect()
}

fn check(
    ends: &mut [Box<dyn End>; 2],
    config: &Config,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, CheckError> {
    for end in ends.iter() {
        let about = end.description();
        if about.mtu < plan::LONG_MIN as u32 {
            return Err(CheckError::MtuTooSmall {
                interface: about.name.clone(),
                mtu: about.mtu,
                least: plan::LONG_MIN as u32,
            });
        }
    }
    let mut rows = Vec::new();
    // Frames of two simultaneous runs must be distinguishable.
    let run = (std::process::id() as u16).wrapping_mul(0x9e37) ^ config.seed as u16;
    let mut next_case = 0;
    for from in [0, 1] {
        let (first, second) = ends.split_at_mut(1);
        let (sender, receiver) =
            if from == 0 { (&mut first[0], &mut second[0]) } else { (&mut second[0], &mut first[0]) };
        let addressing = Addressing { destination: DESTINATION, source: sender.description().mac, seed: config.seed };
        let exchange = Exchange {
            sender: sender.as_mut(),
            receiver: receiver.as_mut(),
            addressing,
            run,
            next_case: &mut next_case,
            stop,
            patience: PATIENCE_MAX,
            batch_parts: 1,
        };
        let mut direction = Direction { exchange, config, rows: Vec::new(), setting: None, reach: Reach::default() };
        direction.check(progress)?;
        rows.append(&mut direction.rows);
    }
    Ok(rows)
}

/// The features to enable: transmit offloads of the sender, and receive offloads of the receiver. All other features
/// that a check switches are off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Setting {
    transmit: Vec<&'static str>,
    receive: Vec<&'static str>,
}

impl Setting {
    /// Creates the setting of one offload with its prerequisites.
    fn alone(offload: &Offload) -> Self {
        let features = [offload.features, offload.needs].concat();
        match offload.side {
            Side::Transmit => Self { transmit: features, receive: Vec::new() },
            Side::Receive => Self { transmit: Vec::new(), receive: features },
        }
    }

    fn everything() -> Self {
        Self { transmit: plan::features_of(Side::Transmit), receive: plan::features_of(Side::Receive) }
    }
}

/// The check in one direction.
struct Direction<'a> {
    exchange: Exchange<'a>,
    config: &'a Config,
    rows: Vec<Row>,
    /// The setting applied last, or `None` if a setting must be applied anew.
    setting: Option<Setting>,
    /// The kinds of frames carried by the path.
    reach: Reach,
}

impl Direction<'_> {
    fn check(&mut self, progress: &mut dyn FnMut(&str)) -> Result<(), CheckError> {
        self.probe()?;
        let has_sockets = OFFLOADS.iter().any(|offload| self.is_wanted(offload.name) && offload.is_of_socket());
        let has_sockets = has_sockets || self.is_wanted(TOGETHER);
        let mtu = self.mtu();
        self.reach = Reach::probe(&mut self.exchange, mtu, has_sockets)?;
        let mtu = self.reach.longest.unwrap_or(mtu);
        let names =
            [self.exchange.sender.description().name.clone(), self.exchange.receiver.description().name.clone()];
        let way = format!("{} to {}", names[0], names[1]);
        if self.is_wanted(PATH) {
            progress(&format!("{way}: {PATH}, every offload off"));
            let cases = plan::path(mtu, self.config.depth);
            let row = self.judge(PATH, &names[1], &Setting::default(), cases)?;
            self.rows.push(row);
        }
        if self.is_wanted(MTU) {
            let row = self.frames_of_the_mtu(&names[1])?;
            self.rows.push(row);
        }
        let wanted: Vec<&Offload> = OFFLOADS.iter().filter(|offload| self.is_wanted(offload.name)).collect();
        for offload in wanted {
            progress(&format!("{way}: {}", offload.name));
            let row = self.offload(offload, mtu)?;
            self.rows.push(row);
        }
        if self.is_wanted(RSS) {
            progress(&format!("{way}: {RSS}"));
            self.apply(&Setting::default())?;
            let Judged { mut verdict, cases, lost } = rss::judge(&mut self.exchange, self.config.depth)?;
            // The next setting must be applied anew, because only `End::apply` ends the capture of receive queues.
            self.setting = None;
            let is_missing = matches!(&verdict, Verdict::Wrong(finding) if finding.fault == Fault::FrameMissing);
            if let Some(why) = self.reach.without_a_version().filter(|_| is_missing) {
                verdict = Verdict::NotTested { why };
            } else if is_missing && self.loses_others()? {
                verdict = Verdict::NotTested { why: LOSSY.to_owned() };
            }
            self.rows.push(Row { cases, lost, ..self.row(RSS, &names[1], Vec::new(), verdict) });
        }
        if self.is_wanted(TOGETHER) {
            progress(&format!("{way}: {TOGETHER}"));
            let row = self.together(mtu, &names[1])?;
            self.rows.push(row);
        }
        Ok(())
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.config.only.is_empty() || self.config.only.iter().any(|only| only == name)
    }

    /// Returns the smaller MTU of the two ends, in IP bytes.
    fn mtu(&self) -> usize {
        self.exchange.sender.description().mtu.min(self.exchange.receiver.description().mtu) as usize
    }

    fn probe(&mut self) -> Result<(), CheckError> {
        self.apply(&Setting::default())?;
        let name = |end: &dyn End| end.description().name.clone();
        for _ in 0..PROBES_MAX {
            let begun = Instant::now();
            let outcome = self.exchange.one(&plan::probe(Ip::V4), Allowed::default())?;
            self.exchange.learn_patience(begun.elapsed());
            if matches!(&outcome, Outcome::Right)
                || matches!(&outcome, Outcome::Wrong(wrong) if !wrong.captured.is_empty())
            {
                return Ok(());
            }
            if self.exchange.carries_ethernet()? {
                let (from, to) = (name(self.exchange.sender), name(self.exchange.receiver));
                return Err(CheckError::SourcesDropped { from, to });
            }
        }
        Err(CheckError::NothingArrives { from: name(self.exchange.sender), to: name(self.exchange.receiver) })
    }

    /// Switches both ends if the setting differs from the setting applied last.
    fn apply(&mut self, setting: &Setting) -> Result<(), CheckError> {
        if self.setting.as_ref() == Some(setting) {
            return Ok(());
        }
        switch(self.exchange.sender, Side::Transmit, &setting.transmit)?;
        switch(self.exchange.receiver, Side::Receive, &setting.receive)?;
        self.setting = Some(setting.clone());
        Ok(())
    }

    fn allowed(&self) -> Allowed {
        let receiver = &*self.exchange.receiver;
        Allowed {
            any_id: self.exchange.sender.is_on(MANGLE_ID),
            unheld_overtake: receiver.offered(GRO) != Offered::No && receiver.is_on(GRO),
        }
    }

    fn row(&self, offload: &'static str, interface: &str, features: Vec<&'static str>, verdict: Verdict) -> Row {
        Row {
            offload,
            interface: interface.to_owned(),
            from: self.exchange.sender.description().name.clone(),
            to: self.exchange.receiver.description().name.clone(),
            features,
            cases: 0,
            coalesced: 0,
            lost: 0,
            left_out: Vec::new(),
            off_by_user: None,
            verdict,
        }
    }

    /// Judges a list of cases with one setting.
    fn judge(
        &mut self,
        name: &'static str,
        interface: &str,
        setting: &Setting,
        cases: Vec<Case>,
    ) -> Result<Row, CheckError> {
        self.apply(setting)?;
        let allowed = self.allowed();
        let (cases, left_out) = self.reach.passable(cases);
        if cases.is_empty() {
            let verdict = Verdict::NotTested { why: left_out.join("; ") };
            return Ok(self.row(name, interface, Vec::new(), verdict));
        }
        let outcomes = self.exchange.all(&cases, allowed, WRONG_MAX)?;
        let features = self.features_on(setting);
        let (sent, coalesced, mut lost) = (outcomes.sent, outcomes.coalesced, outcomes.lost);
        let verdict = self.verdict(setting, outcomes, &mut lost)?;
        Ok(Row { cases: sent, coalesced, lost, left_out, ..self.row(name, interface, features, verdict) })
    }

    /// Returns the features of the setting that are on, as read back from the ends.
    fn features_on(&self, setting: &Setting) -> Vec<&'static str> {
        let of = |end: &dyn End, features: &[&'static str]| {
            features.iter().copied().filter(|feature| end.is_on(feature)).collect::<Vec<_>>()
        };
        [of(self.exchange.sender, &setting.transmit), of(self.exchange.receiver, &setting.receive)].concat()
    }

    /// Checks one offload alone, on the sender for a transmit offload or on the receiver for a receive offload.
    fn offload(&mut self, offload: &Offload, mtu: usize) -> Result<Row, CheckError> {
        let end: &dyn End = match offload.side {
            Side::Transmit => self.exchange.sender,
            Side::Receive => self.exchange.receiver,
        };
        let interface = end.description().name.clone();
        let off_by_user = offload.features.iter().find_map(|feature| end.off_by_user(feature));
        if offload.features.iter().all(|feature| end.offered(feature) == Offered::No) {
            return Ok(Row { off_by_user, ..self.row(offload.name, &interface, Vec::new(), Verdict::NotOffered) });
        }
        let is_about_tags = matches!(offload.cases, Cases::Tags | Cases::TagsInSkb);
        if let Some(why) = self.reach.without_tags().filter(|_| is_about_tags) {
            return Ok(self.row(offload.name, &interface, Vec::new(), Verdict::NotTested { why }));
        }
        let is_unseen = offload.features.iter().any(|feature| end.offered(feature) == Offered::Unseen);
        let unreachable = if is_unseen { Some(UNSEEN.to_owned()) } else { self.unreachable(offload.cases)? };
        if let Some(why) = unreachable {
            return Ok(self.row(offload.name, &interface, Vec::new(), Verdict::NotReachable { why }));
        }
        if let Cases::Coalescing(protocol) = offload.cases
            && let Some(verdict) = self.held(&Setting::alone(offload), protocol)?
        {
            let features = self.features_on(&Setting::alone(offload));
            return Ok(Row { cases: 1, ..self.row(offload.name, &interface, features, verdict) });
        }
        let cases = plan::cases(offload.cases, mtu, self.config.depth);
        let mut row = self.judge(offload.name, &interface, &Setting::alone(offload), cases)?;
        let is_on = offload.features.iter().any(|feature| row.features.contains(feature));
        if matches!(row.verdict, Verdict::NotTested { .. }) {
            return Ok(row);
        }
        if !is_on {
            row.verdict = Verdict::NotReachable { why: "the driver does not enable it".to_owned() };
            row.off_by_user = off_by_user;
        } else if matches!((offload.cases, &row.verdict), (Cases::Coalescing(_), Verdict::Right)) && row.coalesced == 0
        {
            row.verdict = Verdict::NotReachable { why: "no frame arrived coalesced; all frames were right".to_owned() };
        }
        Ok(row)
    }

    /// Returns the reason why the sender cannot send `cases`, or `None` if the sender can send them. Only cases for a
    /// UDP socket or a BPF program can have a reason.
    fn unreachable(&mut self, cases: Cases) -> Result<Option<String>, CheckError> {
        let (probe, refuser) = match cases {
            Cases::Socket(_) if self.exchange.receiver.offered(COALESCES_UDP) == Offered::Unseen => {
                return Ok(Some(UNSEEN.to_owned()));
            }
            Cases::Socket(ip) => (plan::datagram(ip), "the kernel refuses datagrams of a UDP socket on this path"),
            // The BPF program is attached for an untagged frame too, so a refusal does not depend on tags.
            Cases::TagsInSkb => (Case { vlan: None, ..plan::tag_in_skb() }, NO_PROGRAM),
            _ => return Ok(None),
        };
        if self.reach.passable(vec![probe]).0.is_empty() {
            return Ok(None);
        }
        self.apply(&Setting::default())?;
        let allowed = self.allowed();
        Ok(match self.exchange.one(&probe, allowed)? {
            Outcome::Refused(errno) => Some(format!("{refuser} ({})", nix::errno::Errno::from_raw(errno).desc())),
            // A fault of `probe` is no reason to skip the offload, because the cases of the offload show the same
            // fault.
            Outcome::Right | Outcome::Wrong(_) => None,
        })
    }

    /// Checks the MTU: packets as long as the MTU must be received, and the kernel must refuse a longer packet.
    fn frames_of_the_mtu(&mut self, interface: &str) -> Result<Row, CheckError> {
        let [own, other] = [&*self.exchange.sender, &*self.exchange.receiver].map(|end| end.description().mtu as usize);
        if own != other {
            return self.differing_mtus(interface, own, other);
        }
        if let Some(len) = self.reach.longest {
            let why = format!("the path drops packets of more than {len} bytes; the MTU of both interfaces is {own}");
            return Ok(self.row(MTU, interface, Vec::new(), Verdict::NotTested { why }));
        }
        let mut row = self.judge(MTU, interface, &Setting::default(), plan::longest(own))?;
        if !matches!(row.verdict, Verdict::Right) {
            return Ok(row);
        }
        row.cases += 1;
        let case = plan::too_long(own);
        if let Outcome::Right = self.exchange.one(&case, Allowed::default())? {
            let expected = format!("a refusal: the MTU is {own}");
            row.verdict = wrong_mtu(Fault::LongerThanMtu, &case, expected, "the frame arrived".to_owned());
        }
        Ok(row)
    }

    /// Reports that the two ends of a link have different MTUs. The check also sends a packet as long as the sender's
    /// MTU, and reports whether the packet is received.
    fn differing_mtus(&mut self, interface: &str, own: usize, other: usize) -> Result<Row, CheckError> {
        self.apply(&Setting::default())?;
        let case = plan::of_length(own, None);
        let outcome = self.exchange.probe(&plan::probe(Ip::V4), &[case])?.pop().flatten();
        let effect = match outcome {
            Some(Outcome::Right) => "arrive",
            Some(_) => "are lost",
            None => "may be lost",
        };
        let [from, to] = [&*self.exchange.sender, &*self.exchange.receiver].map(|end| &end.description().name);
        let got = format!("{own} at {from}, {other} at {to}; packets of {own} bytes {effect}");
        let verdict = wrong_mtu(Fault::MtusDiffer, &case, "one MTU for all interfaces of a link".to_owned(), got);
        Ok(Row { cases: 1, ..self.row(MTU, interface, Vec::new(), verdict) })
    }

    /// Checks all offloads of both ends together, except offloads whose separate check found a fault. Only the cases of
    /// the remaining offloads are sent.
    fn together(&mut self, mtu: usize, interface: &str) -> Result<Row, CheckError> {
        let is_wrong = |offload: &&Offload| {
            self.rows.iter().any(|row| row.offload == offload.name && matches!(row.verdict, Verdict::Wrong(_)))
        };
        let (wrong, right): (Vec<&Offload>, Vec<&Offload>) = OFFLOADS.iter().partition(is_wrong);
        let off: Vec<&str> = wrong.iter().flat_map(|offload| offload.features).copied().collect();
        let mut setting = Setting::everything();
        setting.transmit.retain(|feature| !off.contains(feature));
        setting.receive.retain(|feature| !off.contains(feature));
        let mut kinds: Vec<Cases> = right.iter().map(|offload| offload.cases).collect();
        kinds.dedup();
        let mut reachable = Vec::new();
        for kind in kinds {
            if self.unreachable(kind)?.is_none() {
                reachable.push(kind);
            }
        }
        let cases: Vec<Case> =
            reachable.into_iter().flat_map(|kind| plan::cases(kind, mtu, self.config.depth)).collect();
        self.judge(TOGETHER, interface, &setting, cases)
    }
}

/// Returns the verdict for a wrong MTU.
fn wrong_mtu(fault: Fault, case: &Case, expected: String, got: String) -> Verdict {
    Verdict::Wrong(Box::new(Finding {
        fault,
        what: fault.text(),
        blame: Blame::Path,
        case: case.to_string(),
        wrong_cases: 1,
        place: "MTU".to_owned(),
        expected,
        got,
        evidence: Evidence::default(),
    }))
}

/// Switches the features of a side: `on` names the features to enable, and all others are disabled. Features that
/// cannot be switched stay unchanged.
fn switch(end: &mut dyn End, side: Side, on: &[&'static str]) -> Result<(), CheckError> {
    let is_switchable = |feature: &&str| end.offered(feature) == Offered::Switchable;
    let features: Vec<(&'static str, bool)> = plan::features_of(side)
        .into_iter()
        .filter(is_switchable)
        .map(|feature| (feature, on.contains(&feature)))
        .collect();
    end.apply(&features)
}

/// Returns one `ethtool` command for each interface at fault. The command turns off the features of the faulty
/// offloads.
fn commands(ends: &[Box<dyn End>; 2], rows: &[Row]) -> Vec<String> {
    let of_end = |end: &dyn End| {
        let about = end.description();
        let mut features: Vec<&str> = Vec::new();
        for row in rows {
            let Verdict::Wrong(finding) = &row.verdict else { continue };
            let side = match finding.blame {
                // No feature turns the queue selection off.
                _ if row.offload == RSS => continue,
                Blame::Sender if row.from == about.name => Side::Transmit,
                Blame::Receiver if row.to == about.name => Side::Receive,
                _ => continue,
            };
            let named = OFFLOADS.iter().find(|offload| offload.name == row.offload);
            let of_row = named.map_or_else(|| plan::features_of(side), |offload| offload.features.to_vec());
            features.extend(of_row.into_iter().filter(|feature| end.offered(feature) == Offered::Switchable));
        }
        features.sort_unstable();
        features.dedup();
        (!features.is_empty()).then(|| end.command_off(&features))
    };
    ends.iter().filter_map(|end| of_end(end.as_ref())).collect()
}

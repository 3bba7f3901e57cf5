//! The file format of an experiment.
//!
//! ```toml
//! question = "What do large sends save a server with eight streams?"
//! fixed = "MTU {mtu}, {link}"
//! metric = "host_cpu_s_per_gb"
//! set = { traffic.streams = 8 }
//!
//! [[variant]]
//! name = "off"
//! set = { rig.offloads = ["all", "-lso"] }
//!
//! [[variant]]
//! name = "on"
//! ```
//!
//! The settings of a variant are merged from the user's settings, the file's `set`, the variant's `parts` in order, and
//! the variant's `set`. Later settings override earlier settings. `rig` is a
//! [`RigConfig`](offramp_testbed::rig::RigConfig), and `traffic` is a [`Params`](offramp_testbed::traffic::Params).

use super::layers::{Layer, Setup, merged, of_user};
use super::{COMPARED, COMPARED_ON_REQUEST, EMBEDDED, GIGABIT_BPS, Plan, Settings, VariantPlan};
use crate::metric;
use offramp_adapter::config::AdapterConfig;
use offramp_model::profile::quantity::nearest;
use offramp_model::profile::{explain, read_text};
use offramp_testbed::guest::{Accelerator, DriverCoalescing};
use offramp_testbed::traffic::{Workload, iterations_for_usecs};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// Maximum number of variants per experiment. Each variant adds a sample to every round.
const VARIANTS_MAX: usize = 32;
/// Maximum length of the name of an experiment or a variant, in characters: the width of a column in the terminal.
const NAME_LETTERS_MAX: usize = 40;
/// Maximum length of a text other than a name, in characters.
const TEXT_LETTERS_MAX: usize = 1000;
/// Maximum value of the file's key `seconds_min`.
const SECONDS_MIN_MAX: f64 = 60.0;
/// Maximum processor time of the server per transaction, in microseconds.
const WORK_USECS_MAX: u64 = 1_000_000;
/// Maximum number of queue pairs per adapter.
const QUEUES_MAX: u16 = 64;
/// Prefix of the sysctls that an experiment may set. These sysctls belong to one network namespace, and thus to one
/// host.
const SYSCTLS: &str = "net.";

/// A bound on the ratio of a variant to the base, or to the best of several variants.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Name of the metric.
    pub metric: String,
    /// Upper bound of the ratio. With an upper bound, the best variant of `best_of` is the variant with the lowest
    /// value.
    pub at_most: Option<f64>,
    /// Lower bound of the ratio. With a lower bound, the best variant of `best_of` is the variant with the highest
    /// value.
    pub at_least: Option<f64>,
    /// Names of the variants among which the best variant is the base; empty for all variants. `None` if the first
    /// variant is the base.
    pub best_of: Option<Vec<String>>,
}

/// The content of a file. `S` is the type of settings: [`Layer`] (untyped), or [`Setup`] (typed, to get errors with
/// line numbers).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<S: Default> {
    question: Spanned<String>,
    fixed: Spanned<String>,
    metric: Spanned<String>,
    compared: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    on_request: bool,
    group: Option<String>,
    #[serde(default)]
    bounds: Vec<Spanned<Bound>>,
    /// Minimum measured time per sample, in seconds.
    #[serde(default)]
    seconds_min: f64,
    /// Processor time of the server per transaction, in microseconds. The number of iterations is calibrated once for
    /// all variants.
    #[serde(default)]
    server_work_usecs: u64,
    #[serde(default)]
    set: S,
    #[serde(default = "BTreeMap::new")]
    part: BTreeMap<String, S>,
    #[serde(default, rename = "variant")]
    variants: Vec<Variant<S>>,
    guest: Option<Guest<S>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variant<S: Default> {
    name: Spanned<String>,
    /// `true` to omit the variant for a guest under QEMU. For a guest under User Mode Linux, and without a guest, the
    /// variant runs.
    #[serde(default)]
    uml_only: bool,
    /// Capability that the guest's driver must have.
    needs: Option<Needs>,
    #[serde(default)]
    parts: Vec<Spanned<String>>,
    #[serde(default)]
    set: S,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Needs {
    Coalescing,
    Adaptive,
}

/// Differences between runs with a guest as host A and other runs: description, settings, and additional variants.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Guest<S: Default> {
    /// Text appended to the description of fixed settings.
    #[serde(default)]
    fixed: String,
    /// Settings that override the settings of every variant.
    #[serde(default)]
    set: S,
    /// Additional variants.
    #[serde(default = "Vec::new", rename = "variant")]
    variants: Vec<Variant<S>>,
}

/// An experiment, as read from its file.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Short name of the experiment: the name of its file.
    pub name: String,
    /// `true` if the experiment runs only by name.
    pub on_request: bool,
    /// Name of the experiment's group, if any.
    pub group: Option<String>,
    place: String,
    file: File<Layer>,
}

/// A file with its text. The methods check values, and name the file and the line of a wrong value.
struct Place<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn wrong(&self, at: Range<usize>, why: &str) -> String {
        let line = 1 + self.text.get(..at.start).unwrap_or_default().matches('\n').count();
        format!("{}:{line}: {why}", self.file.display())
    }

    fn parsed<T: for<'de> Deserialize<'de>>(&self) -> Result<T, String> {
        toml::from_str(self.text)
            .map_err(|error: toml::de::Error| self.wrong(error.span().unwrap_or(0..0), &explain(&error)))
    }

    fn check_text(&self, text: &Spanned<String>, what: &str, letters_max: usize) -> Result<(), String> {
        let letters = text.as_ref().chars().count();
        let why = match () {
            () if text.as_ref().trim().is_empty() => "empty; write a text for the reader".to_owned(),
            () if text.as_ref().chars().any(char::is_control) => "contains a control character; remove it".to_owned(),
            () if letters > letters_max => format!("{letters} letters exceed the maximum of {letters_max}; shorten it"),
            () => return Ok(()),
        };
        Err(self.wrong(text.span(), &format!("{what}: {why}")))
    }

    fn check_metric(&self, name: &str, at: Range<usize>) -> Result<(), String> {
        if metric::find(name).is_some() {
            return Ok(());
        }
        let names: Vec<&str> = metric::METRICS.iter().map(|metric| metric.name).collect();
        let why = format!("there is no metric {name:?}; use one of: {}{}", names.join(", "), nearest(name, &names));
        Err(self.wrong(at, &why))
    }
}

impl Experiment {
    /// Reads a user's experiment from a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if a shipped experiment has the same name, or if
    /// [`Experiment::parse`] fails.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = read_text(path).map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
        let experiment = Self::parse(&text, path)?;
        let name = &experiment.name;
        if EMBEDDED.iter().any(|(known, _)| known == name) {
            return Err(format!("{}: offramp has an experiment {name}; rename the file", path.display()));
        }
        Ok(experiment)
    }

    /// Parses an experiment from the text of a file.
    ///
    /// # Errors
    /// Returns an error if the text is not valid TOML, or a key is unknown, missing or invalid. The error names the
    /// file, the line, the key and the remedy.
    pub fn parse(text: &str, path: &Path) -> Result<Self, String> {
        let place = Place { file: path, text };
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_letter = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
        if name.is_empty() || name.len() > NAME_LETTERS_MAX || !name.bytes().all(is_letter) {
            let why = format!(
                "the file name names the experiment; use at most {NAME_LETTERS_MAX} letters of a to z, 0 to 9, - and _"
            );
            return Err(place.wrong(0..0, &why));
        }
        // Parse the typed settings first, because only typed errors have line numbers.
        place.parsed::<File<Setup>>()?;
        let file: File<Layer> = place.parsed()?;
        let (on_request, group) = (file.on_request, file.group.clone());
        let experiment = Self { name, on_request, group, place: path.display().to_string(), file };
        experiment.check(&place)?;
        Ok(experiment)
    }

    fn all_variants(&self) -> impl Iterator<Item = &Variant<Layer>> {
        self.file.variants.iter().chain(self.file.guest.iter().flat_map(|guest| &guest.variants))
    }

    fn check(&self, place: &Place) -> Result<(), String> {
        let file = &self.file;
        place.check_text(&file.question, "question", TEXT_LETTERS_MAX)?;
        place.check_text(&file.fixed, "fixed", TEXT_LETTERS_MAX)?;
        for metric in file.compared.iter().flatten().chain([&file.metric]) {
            place.check_metric(metric.as_ref(), metric.span())?;
        }
        let range = |what, value: f64, max: f64| {
            let why = || place.wrong(0..0, &format!("{what}: {value} is not within 0 to {max}"));
            if (0.0..=max).contains(&value) { Ok(()) } else { Err(why()) }
        };
        range("seconds_min", file.seconds_min, SECONDS_MIN_MAX)?;
        range("server_work_usecs", file.server_work_usecs as f64, WORK_USECS_MAX as f64)?;
        self.check_variants(place)?;
        for bound in &file.bounds {
            let (at, bound) = (bound.span(), bound.as_ref());
            place.check_metric(&bound.metric, at.clone())?;
            if bound.at_most.is_some() == bound.at_least.is_some() {
                return Err(place.wrong(at, "bounds: write either at_most or at_least"));
            }
            let is_unknown = |name: &&String| !file.variants.iter().any(|variant| variant.name.as_ref() == *name);
            if let Some(name) = bound.best_of.iter().flatten().find(is_unknown) {
                return Err(place.wrong(at, &format!("bounds.best_of: there is no variant {name:?}")));
            }
        }
        // Some errors appear only in the merged settings, so the check builds both plans: without a guest, and with a
        // guest.
        let settings = Settings::default();
        let guest = self.guest_plan(&settings, Accelerator::Uml, DriverCoalescing::Adaptive)?;
        let plans = [Some(self.plan(&settings)?), guest];
        let mut variants = plans.iter().flatten().flat_map(|plan| &plan.variants);
        variants.try_for_each(|variant| {
            let named = |why| format!("{}: variant {:?}: {why}", self.place, variant.name);
            variant.check().map_err(named)
        })
    }

    fn check_variants(&self, place: &Place) -> Result<(), String> {
        let count = self.all_variants().count();
        if self.file.variants.len() < 2 {
            return Err(place.wrong(0..0, "an experiment compares variants; write two or more [[variant]] tables"));
        }
        if count > VARIANTS_MAX {
            let why = format!("{count} variants exceed the maximum of {VARIANTS_MAX}; write several files");
            return Err(place.wrong(0..0, &why));
        }
        let mut names = BTreeSet::new();
        let parts: Vec<&str> = self.file.part.keys().map(String::as_str).collect();
        for variant in self.all_variants() {
            place.check_text(&variant.name, "variant.name", NAME_LETTERS_MAX)?;
            if !names.insert(variant.name.as_ref()) {
                let why = format!("there are two variants {:?}; rename one", variant.name.as_ref());
                return Err(place.wrong(variant.name.span(), &why));
            }
            if let Some(part) = variant.parts.iter().find(|part| !parts.contains(&part.as_ref().as_str())) {
                let name = part.as_ref();
                let why = format!("there is no [part.{name}]{}; add it", nearest(name, &parts));
                return Err(place.wrong(part.span(), &why));
            }
        }
        Ok(())
    }

    /// Returns true if any variant has an impaired card or link.
    pub(crate) fn has_impairments(&self) -> bool {
        let has_card = |set: &Layer| set.get("rig").is_some_and(|rig| rig.get("card").is_some());
        let variants = self.file.variants.iter().map(|variant| &variant.set);
        variants.chain(self.file.part.values()).chain([&self.file.set]).any(has_card)
    }

    /// Builds the plan of the experiment with the user's settings.
    ///
    /// # Errors
    /// Returns an error if the settings of a variant are inconsistent.
    pub fn plan(&self, settings: &Settings) -> Result<Plan, String> {
        let variants = self.file.variants.iter().collect::<Vec<_>>();
        self.made(&of_user(settings, self.file.seconds_min, false), &variants, &Layer::new(), "", settings)
    }

    /// Builds the plan for a guest with this accelerator and driver. `None` if the experiment is not possible with a
    /// guest. For a guest under QEMU, the variants with `uml_only` are omitted. If variants need the driver's interrupt
    /// coalescing, the plan's description explains these variants.
    ///
    /// # Errors
    /// Fails like [`Experiment::plan`].
    pub fn guest_plan(
        &self,
        settings: &Settings,
        accelerator: Accelerator,
        driver: DriverCoalescing,
    ) -> Result<Option<Plan>, String> {
        let Some(guest) = &self.file.guest else { return Ok(None) };
        let can = |needs: Option<Needs>| match needs {
            None => true,
            Some(Needs::Coalescing) => driver != DriverCoalescing::None,
            Some(Needs::Adaptive) => driver == DriverCoalescing::Adaptive,
        };
        let runs =
            |variant: &&Variant<Layer>| can(variant.needs) && (accelerator == Accelerator::Uml || !variant.uml_only);
        let variants: Vec<_> = self.all_variants().filter(runs).collect();
        let has = |needs| variants.iter().any(|variant| variant.needs == Some(needs));
        let mut fixed = String::new();
        if has(Needs::Coalescing) {
            fixed +=
                "; \"ethtool\": the guest's driver sets its interrupt coalescing, and the other host has quiet-or-area";
        }
        if has(Needs::Adaptive) {
            fixed += "; \"adaptive\": the driver's DIM adapts it to the load";
        }
        fixed += &guest.fixed;
        self.made(&of_user(settings, self.file.seconds_min, true), &variants, &guest.set, &fixed, settings).map(Some)
    }

    fn made(
        &self,
        user: &Layer,
        variants: &[&Variant<Layer>],
        above: &Layer,
        further: &str,
        settings: &Settings,
    ) -> Result<Plan, String> {
        let wrong = |why: String| format!("{}: {why}", self.place);
        let file = &self.file;
        let mut fixed = fixed_text(file.fixed.as_ref(), &merged([user, &file.set, above]).map_err(wrong)?);
        if fixed.contains(['{', '}']) {
            return Err(wrong("fixed: unknown name in braces; use mtu, link, moderated_link or awake".to_owned()));
        }
        fixed += further;
        let said = settings.host.said();
        if !said.is_empty() {
            fixed = format!("{fixed}; the hosts: {said}");
        }
        let work = (file.server_work_usecs > 0).then(|| iterations_for_usecs(file.server_work_usecs));
        let made = |variant: &&Variant<Layer>| {
            let parts = variant.parts.iter().map(|part| &file.part[part.as_ref()]);
            let all = [user, &file.set].into_iter().chain(parts).chain([&variant.set, above]);
            let named = |why: String| wrong(format!("variant {:?}: {why}", variant.name.as_ref()));
            let Setup { rig, mut traffic } = merged(all).map_err(named)?;
            if let (Some(work), Workload::Transaction(transaction)) = (work, &mut traffic.workload) {
                transaction.server_work_iterations = work;
            }
            Ok(VariantPlan { name: variant.name.as_ref().clone(), rig, traffic })
        };
        let further: &[&str] = if file.on_request { &COMPARED_ON_REQUEST } else { &[] };
        let usual = || COMPARED.iter().chain(further).map(|name| (*name).to_owned()).collect();
        let listed = |of: &Vec<Spanned<String>>| of.iter().map(|name| name.as_ref().clone()).collect();
        Ok(Plan {
            name: self.name.clone(),
            question: file.question.as_ref().clone(),
            fixed,
            metric: file.metric.as_ref().clone(),
            compared: file.compared.as_ref().map_or_else(usual, listed),
            bounds: file.bounds.iter().map(|bound| bound.as_ref().clone()).collect(),
            on_request: self.on_request,
            group: self.group.clone(),
            variants: variants.iter().map(made).collect::<Result<_, String>>()?,
        })
    }
}

impl VariantPlan {
    /// Checks the ranges of values that are known before a rig is built.
    fn check(&self) -> Result<(), String> {
        let Self { rig, traffic, .. } = self;
        let adapter = AdapterConfig {
            mtu: rig.mtu,
            offloads: rig.offloads,
            moderation: rig.moderation,
            ..AdapterConfig::default()
        };
        adapter.check().map_err(|error| format!("rig: {error}"))?;
        if rig.client > 1 {
            return Err(format!("rig.client: {} is neither 0 nor 1", rig.client));
        }
        if !(1..=QUEUES_MAX).contains(&rig.queues) {
            return Err(format!("rig.queues: {} is not within 1 to {QUEUES_MAX}", rig.queues));
        }
        let is_of_all = |(name, _): &&(String, String)| !name.starts_with(SYSCTLS) || name.contains('/');
        if let Some((name, _)) = rig.host.sysctls.iter().find(is_of_all) {
            return Err(format!("rig.host.sysctls: {name:?} is not a host's; use names that begin with {SYSCTLS}"));
        }
        traffic.check().map_err(|why| format!("traffic: {why}"))
    }
}

/// Replaces the placeholders in the text `fixed` of an experiment, such as `{mtu}`, by the settings.
fn fixed_text(text: &str, setup: &Setup) -> String {
    let Setup { rig, traffic } = setup;
    let rate = rig.rate_bps.map_or("a link without a limit".to_owned(), |rate| format!("a link of {}", text_of(rate)));
    let link = format!("{rate}, {} TCP stream(s), {}", traffic.streams, traffic.congestion);
    let moderation = if rig.rate_bps == Some(GIGABIT_BPS) {
        format!(", at most {} interrupts a second", super::GIGABIT_INTERRUPTS_PER_SECOND)
    } else {
        String::new()
    };
    let awake = if rig.host.awake { "; processors kept awake" } else { "" };
    text.replace("{mtu}", &rig.mtu.to_string())
        .replace("{moderated_link}", &format!("{link}{moderation}"))
        .replace("{link}", &link)
        .replace("{awake}", awake)
}

/// Formats a rate in the largest unit that gives an integer.
pub(super) fn text_of(rate_bps: u64) -> String {
    let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")];
    let unit = units.into_iter().find(|(unit, _)| rate_bps.is_multiple_of(*unit));
    unit.map_or(format!("{rate_bps} bit/s"), |(unit, name)| format!("{} {name}", rate_bps / unit))
}

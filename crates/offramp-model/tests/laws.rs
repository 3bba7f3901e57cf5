//! Checks conditions on the results of the model, stored in files. A file in `tests/laws` is a case
//! ([`offramp_model::claims`]): its rows state conditions on fixed runs. A law in `tests/drawn` states conditions that
//! hold for every system drawn at random.

use minijinja::value::{Serde, merge_maps};
use minijinja::{Environment, UndefinedBehavior, Value, context};
use offramp_model::profile::Profile;
use offramp_model::profile::quantity::Dimension;
use offramp_model::rpc::reply_frames;
use offramp_model::simulation::{ModelError, run};
use offramp_model::time::Span;
use offramp_model::{claims, pool};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");

/// Settings of a run by name: the system, the workload and parameters. Each value is a template over the drawn values.
type Texts = BTreeMap<String, String>;
type Names = BTreeMap<String, Value>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Default settings for all runs of the file.
    #[serde(default)]
    set: Texts,
    law: Vec<Law>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Law {
    name: String,
    /// Number of draws per combination of `each`; 1 by default.
    cases: Option<u32>,
    #[serde(default)]
    each: BTreeMap<String, Vec<toml::Value>>,
    #[serde(default)]
    draw: BTreeMap<String, Draw>,
    /// Values derived from the drawn values, evaluated in the order of the list, in the format `name = expression`.
    #[serde(default, rename = "let")]
    given: Vec<String>,
    #[serde(default)]
    set: Texts,
    /// Named runs, with their settings. A law without named runs has one run named `of`.
    #[serde(default)]
    run: BTreeMap<String, Texts>,
    /// Values derived from the runs, in the format of `let`.
    #[serde(default)]
    read: Vec<String>,
    /// Condition under which the law applies to a drawn system.
    assume: Option<String>,
    holds: Vec<String>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Draw {
    /// A whole number from the first to the second value, including both values.
    Number([i64; 2]),
    Word(Vec<String>),
}

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_function("reply_frames", |bytes: usize| reply_frames(bytes).unwrap());
    environment
});

fn evaluate(text: &str, names: &Names) -> Value {
    let value = ENVIRONMENT.compile_expression(text).and_then(|expression| expression.eval(names));
    value.unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn define(names: &mut Names, definitions: &[String]) {
    for (name, text) in definitions.iter().map(|text| text.split_once(" = ").expect(text)) {
        names.insert(name.to_owned(), evaluate(text, names));
    }
}

/// Simulates a run, and returns the outcome with its counters. The result also has each parameter by its full name, in
/// base units. For a failed run, the result has only the key `error`.
fn outcome(mut settings: Texts) -> Value {
    let mut take = |key| settings.remove(key).unwrap_or_else(|| panic!("no {key}"));
    let (system, workload) = (take("system"), take("workload").parse().unwrap());
    let simulate = || -> Result<_, ModelError> {
        let mut profile = Profile::load(&system)?;
        profile.set_all(&settings)?;
        let outcome = run(&profile, workload)?;
        Ok((profile, outcome))
    };
    let (profile, outcome) = match simulate() {
        Ok(found) => found,
        Err(error) => return context! { error => error.to_string() },
    };
    let scale = profile.value("host.cost_scale");
    let used = profile.all().map(|(key, quantity)| match key.dimension {
        Dimension::Choice(_) => (key.name, Value::from(profile.word(key.name))),
        _ if key.is_scaled => (key.name, Value::from(Span(quantity.value).scaled_ppm(scale).0)),
        _ => (key.name, Value::from(quantity.value)),
    });
    let activities: Vec<_> = outcome.processor_loads.iter().map(|of| of.activities).collect();
    let counts = context! { counts => Serde(outcome.counts), activities => Serde(activities) };
    merge_maps([Value::from_pairs(used), counts, Value::from(Serde(&outcome))])
}

impl Law {
    fn check(&self, file: &File) -> Result<(), String> {
        let mut combinations = vec![Names::new()];
        for (name, values) in &self.each {
            let with = |of: &Names, value| {
                of.clone().into_iter().chain([(name.clone(), Value::from(Serde(value)))]).collect::<Names>()
            };
            combinations = combinations.iter().flat_map(|of| values.iter().map(move |value| with(of, value))).collect();
        }
        let draws: Vec<_> = (self.draw.values().cloned())
            .map(|draw| match draw {
                Draw::Number([low, high]) => (low..=high).prop_map(Value::from).boxed(),
                Draw::Word(words) => prop::sample::select(words).prop_map(Value::from).boxed(),
            })
            .collect();
        let config =
            ProptestConfig { cases: self.cases.unwrap_or(1), failure_persistence: None, ..ProptestConfig::default() };
        combinations.into_iter().try_for_each(|each| {
            let case =
                |drawn| self.holds_for(file, each.clone().into_iter().chain(self.draw.keys().cloned().zip(drawn)));
            TestRunner::new(config.clone())
                .run(&draws, case)
                .map_err(|error| format!("{}: {each:?} {error}", self.name))
        })
    }

    fn holds_for(&self, file: &File, drawn: impl Iterator<Item = (String, Value)>) -> Result<(), TestCaseError> {
        let mut names = drawn.collect();
        define(&mut names, &self.given);
        let only = BTreeMap::from([("of".to_owned(), Texts::new())]);
        for (name, own) in if self.run.is_empty() { &only } else { &self.run } {
            let text = |(key, text): (&String, &String)| (key.clone(), ENVIRONMENT.render_str(text, &names).unwrap());
            let settings = file.set.iter().chain(&self.set).chain(own).map(text).collect();
            names.insert(name.clone(), outcome(settings));
        }
        define(&mut names, &self.read);
        if self.assume.as_ref().is_some_and(|text| !evaluate(text, &names).is_true()) {
            return Err(TestCaseError::reject("the law says nothing of it"));
        }
        for text in &self.holds {
            prop_assert!(evaluate(text, &names).is_true(), "{text}\n{names:?}");
        }
        Ok(())
    }
}

#[test]
fn every_law_of_drawn_systems_holds_and_fails_where_it_does_not() {
    let read = |path: &Path| -> File {
        toml::from_str(&std::fs::read_to_string(path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let entries = std::fs::read_dir(Path::new(DIRECTORY).join("drawn")).unwrap();
    let files: Vec<File> = entries.map(|entry| read(&entry.unwrap().path())).collect();
    let laws: Vec<_> = files.iter().flat_map(|file| file.law.iter().map(move |law| (file, law))).collect();
    let checked = pool::map(&laws, pool::threads(), |(file, law)| law.check(file), |_, _| true);
    let broken: Vec<_> = checked.into_iter().flatten().filter_map(Result::err).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
    let wrong = "[[law]]\nname = \"x\"\ncases = 9\ndraw = { mhz = [8, 9] }\nholds = [\"of.counts.interrupts == 0\"]\n\
                 set = { system = \"486-wd8003ep\", workload = \"ttcp-receive\", \"bus.clock\" = \"{{ mhz }}MHz\" }\n";
    let wrong: File = toml::from_str(wrong).unwrap();
    assert!(wrong.law[0].check(&wrong).unwrap_err().contains("of.counts.interrupts == 0"));
}

#[test]
fn every_law_holds_and_fails_where_its_figures_do_not() {
    let cases = claims::read(&[Path::new(DIRECTORY).join("laws")]).unwrap();
    let table = claims::check(&cases, |_| false, 0).unwrap();
    let broken: Vec<_> = table.rows.iter().filter(|row| row.ok != Some(true)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    let law = "published = \"x\"\nsource = \"x\"\nsystem = \"486-wd8003ep\"\nworkload = \"ttcp-receive\"\n\
               [[row]]\nshows = \"{{ interrupts }}\"\nholds = \"interrupts == 0\"\n";
    let wrong = claims::Case::parse(law, "wrong.toml".as_ref()).unwrap();
    assert_eq!(claims::check(&[wrong], |_| false, 0).unwrap().rows[0].ok, Some(false));
}

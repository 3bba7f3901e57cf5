//! Tests that the dependencies between crates equal the list in `docs/design.md`, and that the picture
//! `docs/crates.svg` shows this list.

#[path = "arrows/picture.rs"]
mod picture;

use picture::Row;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// Maximum length of a crate's task in the list, in characters, so that the task fits into the crate's box of the
/// picture.
const TASK_LEN_MAX: usize = 31;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn manifest(file: &Path) -> Table {
    fs::read_to_string(file).unwrap().parse().unwrap()
}

/// Returns the package of a dependency, which can have another name in the manifest.
fn package<'a>(name: &'a str, dependency: &'a Value, shared: &'a Table) -> &'a str {
    let inherited = dependency.get("workspace").and_then(|_| shared.get(name));
    inherited.unwrap_or(dependency).get("package").and_then(Value::as_str).unwrap_or(name)
}

/// Returns a manifest's dependencies for all targets, except dependencies of tests. `shared` are the dependencies of
/// the workspace.
fn dependencies<'a>(manifest: &'a Table, shared: &'a Table) -> BTreeSet<&'a str> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let sections = targets.filter_map(Value::as_table).chain([manifest]);
    let lists = sections.flat_map(|section| [section.get("dependencies"), section.get("build-dependencies")]);
    let dependencies = lists.flatten().filter_map(Value::as_table).flatten();
    dependencies.map(|(name, dependency)| package(name, dependency, shared)).collect()
}

/// Returns the rows of the list in the design document.
fn listed(design: &str) -> Vec<Row<'_>> {
    let (_, section) = design.split_once("\n## Which crate depends on which?\n").expect("the design has the list");
    let rows = section.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let columns: Vec<&str> = row.split('|').collect();
        let names = |column: usize| columns[column].split('`').skip(1).step_by(2);
        Row { name: names(1).next().unwrap(), task: columns[2].trim(), depends_on: names(3).collect() }
    })
    .collect()
}

#[test]
fn crates_depend_on_those_that_the_design_lists() {
    let workspace = manifest(&root().join("Cargo.toml"));
    let shared = workspace["workspace"]["dependencies"].as_table().unwrap();
    let directories = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let directories = directories.chain([root().join("compare")]);
    let manifests: Vec<Table> = directories.map(|directory| manifest(&directory.join("Cargo.toml"))).collect();
    let design = fs::read_to_string(root().join("docs/design.md")).unwrap();
    let listed = listed(&design);
    let crates: BTreeSet<&str> =
        manifests.iter().map(|manifest| manifest["package"]["name"].as_str().unwrap()).collect();
    assert_eq!(listed.iter().map(|row| row.name).collect::<BTreeSet<_>>(), crates);
    for manifest in &manifests {
        let name = manifest["package"]["name"].as_str().unwrap();
        let found: BTreeSet<&str> = dependencies(manifest, shared).intersection(&crates).copied().collect();
        let place = listed.iter().position(|row| row.name == name).unwrap();
        assert_eq!(found, listed[place].depends_on, "{name}");
        let below: BTreeSet<&str> = listed[..place].iter().map(|row| row.name).collect();
        assert!(found.is_subset(&below), "{name} depends on a crate that is not listed before it");
    }
}

#[test]
fn the_picture_shows_the_list() {
    let design = fs::read_to_string(root().join("docs/design.md")).unwrap();
    let rows = listed(&design);
    assert!(rows.iter().all(|row| row.task.chars().count() <= TASK_LEN_MAX), "a task does not fit into its box");
    let drawn = picture::svg(&rows);
    let file = root().join("docs/crates.svg");
    if std::env::var_os("OFFRAMP_BLESS").is_some() {
        fs::write(&file, &drawn).unwrap();
    }
    let stored = fs::read_to_string(&file).unwrap_or_default();
    assert!(stored == drawn, "docs/crates.svg is stale; run OFFRAMP_BLESS=1 cargo test -p offramp --test arrows");
}

#[test]
fn a_picture_has_a_box_for_each_crate_and_an_arrow_for_each_dependency_that_no_other_implies() {
    let row =
        |name, depends_on: &[&'static str]| Row { name, task: "", depends_on: depends_on.iter().copied().collect() };
    let drawn = picture::svg(&[row("a", &[]), row("b", &["a"]), row("c", &["a", "b"]), row("d", &["a"])]);
    assert_eq!(drawn.matches("class=\"box\"").count(), 4);
    assert_eq!(drawn.matches("class=\"edge\"").count(), 3, "c reaches a through b");
}

#[test]
fn the_daemon_is_a_library_without_a_command_line() {
    let found = manifest(&root().join("crates/offramp-daemon/Cargo.toml"));
    assert!(!dependencies(&found, &Table::new()).contains("clap"));
}

#[test]
fn a_dependency_is_found_under_any_name_and_for_any_target() {
    let shared = r#"elsewhere = { package = "offramp-lab", path = "crates/offramp-lab" }"#.parse().unwrap();
    let manifest = r#"
        [dependencies]
        elsewhere.workspace = true
        plain = "1"
        [build-dependencies]
        tool = { package = "xtask", path = "../xtask" }
        [target.'cfg(unix)'.dependencies]
        ports = { package = "offramp-ports", path = "../offramp-ports" }
        [dev-dependencies]
        offramp-testkit.path = "../offramp-testkit"
    "#;
    assert_eq!(
        dependencies(&manifest.parse().unwrap(), &shared),
        ["offramp-lab", "offramp-ports", "plain", "xtask"].into()
    );
}

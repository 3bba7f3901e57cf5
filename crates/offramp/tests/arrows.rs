//! Tests that the dependencies between crates equal the list in `docs/design.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

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

/// Returns each crate in the list of the design document, with its dependencies.
fn listed(design: &str) -> Vec<(&str, BTreeSet<&str>)> {
    let (_, section) = design.split_once("\n## Which crate depends on which?\n").expect("the design has the list");
    let rows = section.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut columns = row.split('|').skip(1).map(|column| column.split('`').skip(1).step_by(2));
        (columns.next().unwrap().next().unwrap(), columns.next().unwrap().collect())
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
    assert_eq!(listed.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), crates);
    for manifest in &manifests {
        let name = manifest["package"]["name"].as_str().unwrap();
        let found: BTreeSet<&str> = dependencies(manifest, shared).intersection(&crates).copied().collect();
        let place = listed.iter().position(|(listed, _)| *listed == name).unwrap();
        assert_eq!(found, listed[place].1, "{name}");
        let below: BTreeSet<&str> = listed[..place].iter().map(|(name, _)| *name).collect();
        assert!(found.is_subset(&below), "{name} depends on a crate that is not listed before it");
    }
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

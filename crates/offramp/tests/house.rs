//! Tests of the repository's structure: files import each other in no new cycle, and every test file is part of a test
//! program.

#[path = "house/files.rs"]
mod files;

use files::{Circle, circles};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// The permitted import cycles of more than two files, one per line: the crate, then its files. No new cycle may be
/// added.
const CIRCLES: &str = include_str!("house/circles.txt");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Returns the directories of all crates, sorted by name.
fn crates() -> Vec<std::path::PathBuf> {
    let mut crates: Vec<_> = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path()).collect();
    crates.sort();
    crates
}

/// Returns true if a cycle needs a line in the list. Two files may import each other, and so may a module and its
/// children.
fn needs_line(circle: &Circle) -> bool {
    let family = |parent: &String| {
        let child = |file: &String| file.strip_prefix(parent.as_str()).is_some_and(|rest| !rest[2..].contains("::"));
        circle.iter().all(|file| file == parent || file.starts_with(&format!("{parent}::")) && child(file))
    };
    circle.len() > 2 && !circle.iter().any(family)
}

#[test]
fn files_import_each_other_in_no_circle_but_those_of_the_list() {
    let mut found = Vec::new();
    for folder in crates() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let circles = circles(&folder.join("src"));
        found.extend(
            circles.iter().filter(|circle| needs_line(circle)).map(|circle| format!("{name}: {}", circle.join(" "))),
        );
    }
    let listed: Vec<&str> = CIRCLES.lines().collect();
    assert_eq!(
        found, listed,
        "move the types that two files share into a file below both; never add a line to circles.txt"
    );
}

#[test]
fn a_parent_and_its_children_are_no_circle_of_the_list() {
    let circle = |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect::<Circle>();
    assert!(!needs_line(&circle(&["a", "b"])));
    assert!(!needs_line(&circle(&["a", "a::b", "a::c"])));
    assert!(needs_line(&circle(&["a", "a::b", "a::b::c"])));
    assert!(needs_line(&circle(&["a", "a::b", "ab"])));
    assert!(needs_line(&circle(&["a::b", "a::c", "a::d"])));
}

/// Returns the names of a manifest's programs of one kind, such as `test`.
fn programs(manifest: &Table, kind: &str) -> BTreeSet<String> {
    let programs = manifest.get(kind).and_then(Value::as_array).into_iter().flatten();
    programs.map(|program| program["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_file_of_tests_is_in_a_program() {
    let mut programs_of_many = 0;
    for folder in crates() {
        let Ok(all) = fs::read_to_string(folder.join("tests/all.rs")) else { continue };
        programs_of_many += 1;
        let manifest: Table = fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap();
        let alone = programs(&manifest, "test");
        for entry in fs::read_dir(folder.join("tests")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if path.extension().is_some_and(|end| end == "rs") && !alone.contains(name) {
                assert!(
                    all.lines().any(|line| line == format!("mod {name};")),
                    "{} has no line in all.rs",
                    path.display()
                );
            }
        }
    }
    assert!(programs_of_many >= 2);
}

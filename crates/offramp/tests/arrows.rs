//! Which crate may know of which: an arrow points up the list of `docs/design.md` only.

use std::fs;
use std::path::Path;

/// The crates from the bottom to the top: each may depend on those before it.
const ORDER: [&str; 8] = [
    "offramp-offload",
    "offramp-virtio",
    "offramp-adapter",
    "offramp-impair",
    "offramp-ports",
    "offramp-model",
    "offramp-lab",
    "offramp",
];
/// Arrows that would point up and still must not be: virtio knows no offloads, the model no input and output.
const NEVER: [(&str, &str); 3] =
    [("offramp-adapter", "offramp-virtio"), ("offramp-virtio", "offramp-offload"), ("offramp-model", "offramp-ports")];

/// The crates of the workspace that a crate depends on, but for its tests.
fn dependencies(name: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name).join("Cargo.toml");
    let manifest: toml::Table = fs::read_to_string(file).unwrap().parse().unwrap();
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
    dependencies
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .filter(|name| name.starts_with("offramp"))
        .collect()
}

#[test]
fn crates_depend_only_on_those_below_them() {
    for (place, name) in ORDER.iter().enumerate() {
        for dependency in dependencies(name) {
            let at = ORDER.iter().position(|below| *below == dependency);
            assert!(at.is_some_and(|at| at < place), "{name} depends on {dependency}");
            assert!(!NEVER.contains(&(name, dependency.as_str())), "{name} depends on {dependency}");
        }
    }
}

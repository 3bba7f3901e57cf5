//! Programs of this repository, built by Cargo.

use crate::failure::{Result, failed};
use crate::program;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Builds the one program selected by `args`, unless already built. Returns the path of the executable.
///
/// # Errors
/// Returns an error if the build fails.
pub fn build(args: &[&str], variables: &[(&str, &str)]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).args(["--message-format", "json-render-diagnostics"]);
    command.envs(variables.iter().copied()).current_dir(Path::new(ROOT));
    let messages = program::output(command, None)?;
    messages
        .lines()
        .find_map(executable)
        .map_or_else(|| failed(format!("cargo {} built no program", args.join(" "))), Ok)
}

/// Returns the path of the executable named in a JSON message of Cargo, if any.
fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    message["executable"].as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_what_cargo_names_and_nothing_else_is() {
        let named = r#"{"reason":"compiler-artifact","executable":"/t/release/offramp"}"#;
        assert_eq!(executable(named), Some(PathBuf::from("/t/release/offramp")));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
        assert_eq!(executable("no message"), None);
    }
}

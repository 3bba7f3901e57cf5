//! The configuration that `offramp up` generates if no file is given: one switch with a port for each `--tap` and
//! `--vhost-user`.

use offramp_daemon::Input;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use toml::Value;

/// The name of the switch.
const SWITCH: &str = "lan";
/// Maximum length of a port's name, in bytes.
const NAME_LEN_MAX: usize = 32;

/// The ports of the switch.
#[derive(clap::Args)]
pub struct Simple {
    /// A TAP on a switch, with its addresses, such as `ofr0=198.18.0.1/24,fd00::1/64`; repeat for more
    #[arg(long, value_name = "NAME[=ADDRESS/BITS]", conflicts_with = "file")]
    tap: Vec<String>,
    /// A guest's socket on the same switch; repeat for more
    #[arg(long, value_name = "SOCKET", conflicts_with = "file")]
    vhost_user: Vec<PathBuf>,
    /// Only print the file for --tap and --vhost-user
    #[arg(long, conflicts_with = "file")]
    pub print_config: bool,
}

impl Simple {
    /// Returns the text of the file, and the option from which each port was made. The ports are named after their
    /// interfaces and socket files.
    ///
    /// # Errors
    /// Fails if the current directory is unknown, or a path is not UTF-8.
    pub fn file(&self) -> Result<Input, String> {
        let (mut names, mut origins) = (BTreeSet::new(), Vec::new());
        // Returns the number of the line `[[port]]` of the next port, which follows an empty line.
        let line_after = |text: &str| text.lines().count() + 2;
        let mut text = format!("[[switch]]\nname = \"{SWITCH}\"\n");
        for tap in &self.tap {
            let (interface, addresses) = match tap.split_once('=') {
                Some((interface, addresses)) => (interface, addresses.split(',').map(Value::from).collect()),
                None => (tap.as_str(), Vec::new()),
            };
            origins.push((line_after(&text), format!("--tap {tap}")));
            add_port(&mut text, &unique(interface, &mut names), "host.tap", interface);
            if !addresses.is_empty() {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "host.address = {}", Value::Array(addresses));
            }
        }
        for socket in &self.vhost_user {
            let option = format!("--vhost-user {}", socket.display());
            let wrong = |cause: &str| format!("{option}: {cause}");
            let path = std::path::absolute(socket).map_err(|error| wrong(&error.to_string()))?;
            let path = path.to_str().ok_or_else(|| wrong("the path is not UTF-8"))?;
            let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let name = unique(stem, &mut names);
            origins.push((line_after(&text), option));
            add_port(&mut text, &name, "host.vhost_user", path);
        }
        Ok(Input::Text { toml: text, origins })
    }
}

fn add_port(text: &mut String, name: &str, key: &str, value: &str) {
    let value = Value::from(value);
    // Writing to a string cannot fail.
    let _ = write!(text, "\n[[port]]\nname = \"{name}\"\nwire.switch = \"{SWITCH}\"\n{key} = {value}\n");
}

/// Returns a valid port name that is derived from `name` and not in `names`, and adds the port name to `names`.
fn unique(name: &str, names: &mut BTreeSet<String>) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let mut stem: String = name.chars().map(valid).take(NAME_LEN_MAX).collect();
    if stem.is_empty() {
        stem.push_str("port");
    }
    let mut candidate = stem.clone();
    let mut number = 2;
    while !names.insert(candidate.clone()) {
        let suffix = format!("-{number}");
        candidate = stem.chars().take(NAME_LEN_MAX - suffix.len()).chain(suffix.chars()).collect();
        number += 1;
    }
    candidate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_and_a_guest_make_a_file_with_one_switch() {
        let simple = Simple {
            tap: vec!["ofr0=198.18.0.1/24,fd00::1/64".into(), "ofr1".into()],
            vhost_user: vec!["/tmp/vm0.sock".into(), "/run/vm0.sock".into()],
            print_config: true,
        };
        let expected = "\
[[switch]]
name = \"lan\"

[[port]]
name = \"ofr0\"
wire.switch = \"lan\"
host.tap = \"ofr0\"
host.address = [\"198.18.0.1/24\", \"fd00::1/64\"]

[[port]]
name = \"ofr1\"
wire.switch = \"lan\"
host.tap = \"ofr1\"

[[port]]
name = \"vm0\"
wire.switch = \"lan\"
host.vhost_user = \"/tmp/vm0.sock\"

[[port]]
name = \"vm0-2\"
wire.switch = \"lan\"
host.vhost_user = \"/run/vm0.sock\"
";
        let Input::Text { toml, origins } = simple.file().unwrap() else { panic!("a text") };
        assert_eq!(toml, expected);
        for (line, option) in origins {
            let (_, value) = option.split_once(' ').unwrap();
            let table: Vec<&str> = expected.lines().skip(line - 1).take(4).collect();
            assert_eq!(table[0], "[[port]]", "{option}");
            assert!(value.starts_with(table[3].split('"').nth(1).unwrap()), "{option} {table:?}");
        }
    }

    #[test]
    fn names_are_valid_and_unique() {
        let mut names = BTreeSet::new();
        let long = "a".repeat(40);
        assert_eq!(unique("a b\"", &mut names), "a-b-");
        assert_eq!(unique("", &mut names), "port");
        assert_eq!(unique(&long, &mut names), "a".repeat(32));
        assert_eq!(unique(&long, &mut names), "a".repeat(30) + "-2");
    }
}

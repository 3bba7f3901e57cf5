//! `offramp sa`: security associations of a running adapter.

mod import;

use crate::control::Control;
use crate::exit::{SETUP, fail, print};
use crate::show;
use offramp_daemon::control::client::{ClientError, ask};
use offramp_daemon::schema::direction;
use offramp_daemon::schema::{IpsecStatus, KeyText, SaKeys};
use offramp_daemon::schema::{Outcome, Request, Status, VERSION};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The name that means standard input in place of a key file.
const STANDARD_INPUT: &str = "-";

const NOTES: &str = "\
Examples:
  offramp sa add a direction=out spi=0x1000 suite=aes128gcm16 key_file=/etc/offramp/out.key
  offramp sa rekey a out 0x1000 spi=0x1001 key_file=- < new.key
  offramp sa del a out 0x1000
  offramp sa import a peer.txt --peer --dry-run
  offramp sa show a
Words are the keys of [[port.sa]] in docs/config.md; docs/ipsec.md says how to rekey without losing a frame.
Keys come from a file that only its owner may read, or from standard input (key_file=-).

Exit status: 0 done; 2 wrong options, refused, or no daemon answered.";

/// Add, remove, replace and show security associations of a running adapter.
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    control: Control,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Install an association
    Add {
        /// The port
        port: String,
        /// Keys of the association
        #[arg(value_name = "KEY=VALUE", required = true)]
        words: Vec<String>,
    },
    /// Remove an association at once
    Del {
        /// The port
        port: String,
        /// Direction: in or out
        #[arg(value_parser = direction_word)]
        direction: String,
        /// Its security parameters index
        #[arg(value_parser = spi)]
        spi: u32,
    },
    /// Replace an association; inbound, the old one stays valid for a time of grace
    Rekey {
        /// The port
        port: String,
        /// Direction: in or out
        #[arg(value_parser = direction_word)]
        direction: String,
        /// The security parameters index of the old association
        #[arg(value_name = "OLD_SPI", value_parser = spi)]
        spi: u32,
        /// spi, `key_file` and, if they change, suite and legacy of the new association
        #[arg(value_name = "KEY=VALUE", required = true)]
        words: Vec<String>,
        /// Time for which the old inbound association stays valid
        #[arg(long, value_name = "SECS")]
        grace_seconds: Option<u64>,
    },
    /// Install what "ip xfrm" takes and prints: a Linux kernel's states and policies
    Import(import::Args),
    /// Show the associations of one port, or of all
    Show {
        /// Only this port
        port: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

fn direction_word(text: &str) -> Result<String, String> {
    direction(text).map(|direction| direction.to_string())
}

/// Parses an SPI in decimal, or in hexadecimal after `0x`.
fn spi(text: &str) -> Result<u32, String> {
    let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16));
    parsed.map_err(|_| format!("\"{text}\" is no SPI; write a number such as 0x1000"))
}

/// Runs `offramp sa`.
pub fn run(args: &Args) -> ExitCode {
    match act(args) {
        Ok(text) => {
            print(text);
            ExitCode::SUCCESS
        }
        Err(message) => fail(format!("sa: {message}"), SETUP),
    }
}

fn act(args: &Args) -> Result<String, String> {
    let control = args.control.path().map_err(|error| error.to_string())?;
    let request = match &args.action {
        Action::Show { port, json } => return show(&control, port.as_ref(), *json),
        Action::Import(import) => return import::run(import, &control),
        Action::Add { port, words } => {
            let sa = keys_of(words)?;
            let key = key_of(&sa)?;
            Request::SaAdd { version: VERSION, port: port.clone(), sa: Box::new(sa.without_file()), key }
        }
        Action::Del { port, direction, spi } => {
            Request::SaDel { version: VERSION, port: port.clone(), direction: direction.clone(), spi: *spi }
        }
        Action::Rekey { port, direction, spi, words, grace_seconds } => {
            let to = keys_of(words)?;
            let key = key_of(&to)?;
            let (port, direction, to) = (port.clone(), direction.clone(), Box::new(to.without_file()));
            Request::SaRekey { version: VERSION, port, direction, spi: *spi, to, key, grace_seconds: *grace_seconds }
        }
    };
    match ask(&control, &request).map_err(|error| error.to_string())? {
        Outcome::Ipsec(status) => Ok(lines(&status)),
        _ => Err(ClientError::Unexpected(control).to_string()),
    }
}

fn show(control: &Path, port: Option<&String>, json: bool) -> Result<String, String> {
    let Status { ports, .. } = show::ask_status(control, port).map_err(|error| error.to_string())?;
    if json {
        let all: std::collections::BTreeMap<_, _> = ports.into_iter().map(|port| (port.name, port.ipsec)).collect();
        return Ok(serde_json::to_string(&all).unwrap_or_default() + "\n");
    }
    Ok(text(ports.into_iter().map(|port| (port.name, port.ipsec))))
}

/// Formats the associations of all ports, and the reasons why the faster cipher library is not used, each once.
fn text(ports: impl Iterator<Item = (String, Option<IpsecStatus>)>) -> String {
    let (mut shown, mut reasons) = (Vec::new(), BTreeSet::new());
    for (name, status) in ports {
        shown.push(match &status {
            Some(status) => format!("{name}\n{}", lines(status)),
            None => format!("{name}\n  no associations: this daemon is older, and has none here\n"),
        });
        reasons.extend(status.iter().filter_map(show::library_reason).map(|reason| format!("{reason}\n")));
    }
    shown.into_iter().chain(reasons).collect()
}

fn lines(status: &IpsecStatus) -> String {
    show::ipsec_lines(status).join("\n") + "\n"
}

/// Parses words `KEY=VALUE` with the keys of the configuration file. Unlike in the file, text needs no quotes.
fn keys_of(words: &[String]) -> Result<SaKeys, String> {
    let mut lines = Vec::with_capacity(words.len());
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("\"{word}\" has no =; write KEY=VALUE"))?;
        if key == "key" {
            return Err("a key is never written on a command line; use key_file=FILE or key_file=-".to_owned());
        }
        let is_value = toml::from_str::<toml::Table>(&format!("x = {value}")).is_ok();
        let value = if is_value { value.to_owned() } else { toml::Value::String(value.to_owned()).to_string() };
        lines.push(format!("{key} = {value}"));
    }
    toml::from_str(&lines.join("\n")).map_err(|error| error.message().trim().replace('\n', ", "))
}

fn key_of(sa: &SaKeys) -> Result<KeyText, String> {
    match &sa.key_file {
        None => Err("has no key_file; write key_file=FILE, or key_file=- for standard input".to_owned()),
        Some(file) if file == Path::new(STANDARD_INPUT) => {
            KeyText::from_reader(io::stdin()).map_err(|error| format!("standard input: {error}"))
        }
        Some(file) => KeyText::from_file(file, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<SaKeys, String> {
        keys_of(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_the_keys_of_the_file() {
        let keys = parsed(&[
            "direction=out",
            "spi=0x1000",
            "suite=aes128gcm16",
            "esn=true",
            "source=192.0.2.1",
            "selector.destination=10.0.0.0/8",
            "selector.protocol=17",
            "lifetime.soft_seconds=5",
            "key_file=/a b",
        ]);
        let keys = keys.unwrap();
        assert_eq!((keys.direction.as_deref(), keys.spi, keys.esn), (Some("out"), Some(0x1000), Some(true)));
        assert_eq!(keys.selector.unwrap().destination.as_deref(), Some("10.0.0.0/8"));
        assert_eq!((keys.lifetime.unwrap().0.soft_seconds, keys.key_file), (Some(5), Some("/a b".into())));
    }

    #[test]
    fn the_reason_for_the_cipher_library_is_shown_once_after_all_ports() {
        let reason = "ipsec-mb: libIPSec_MB.so.1: cannot open; install it";
        let status = |name: &str, library: &str| {
            let ipsec = serde_json::json!({
                "library": library, "transmit": "bypass", "receive": "bypass", "associations": [], "events": []
            });
            (name.to_owned(), serde_json::from_value::<IpsecStatus>(ipsec).ok())
        };
        let slow = format!("aws-lc ({reason})");
        let line =
            |name, library| format!("{name}\n  IPsec by {library}; no match: bypass on transmit, bypass on receive\n");
        assert_eq!(
            text([status("a", &slow), status("b", &slow)].into_iter()),
            line("a", "aws-lc") + &line("b", "aws-lc") + reason + "\n"
        );
        assert_eq!(text([status("c", "ipsec-mb")].into_iter()), line("c", "ipsec-mb"));
    }

    #[test]
    fn a_wrong_word_is_one_line_and_a_key_on_the_command_line_is_refused() {
        for (words, said) in
            [(["spi"], "KEY=VALUE"), (["key=00"], "never"), (["sip=5"], "unknown field"), (["esn=maybe"], "boolean")]
        {
            let error = parsed(&words).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
    }
}

//! `offramp set`: switches features of a running adapter, changes its moderation or its limit, or sets its link.

use crate::control::Control;
use crate::exit::{SETUP, fail, print};
use crate::show::waits_text;
use offramp_daemon::control::client::{ClientError, ask};
use offramp_daemon::schema::Limit;
use offramp_daemon::schema::Moderation;
use offramp_daemon::schema::limit::OFF;
use offramp_daemon::schema::{Changed, FeatureStatus, Outcome, Request, VERSION};
use offramp_daemon::schema::{feature, unknown};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// The word before a moderation policy on the command line.
const MODERATION: &str = "moderation";
/// The word before the keys of a limit on the command line.
const LIMIT: &str = "limit";
/// The word before the link state `on` or `off` on the command line.
const LINK: &str = "link";

const NOTES: &str = "\
Examples:
  offramp set vm0 rsc off               frames for this host are no longer coalesced
  offramp set vm0 all off tso4 on       TSO4 only (it needs tx-checksum); the last setting wins
  offramp set vm0 moderation quiet-or-area
  offramp set vm0 moderation rx_usecs=50 rx_frames=32
  offramp set vm0 limit tx_bits_per_second=1G rx_frames_per_second=100k
  offramp set vm0 limit off
  offramp set vm0 link off              as if its cable were unplugged: no frame passes
  offramp set vm0 link on
Features: those of `offramp show`, ethtool's names, and the groups lso, tso, rsc, rx-gro, checksum, all.
Moderation: off, net-dim, e1000, area, quiet-or-area, max_interrupts_per_second=N, rx_usecs=N.
Limit: tx_ or rx_ with bits_per_second=N, frames_per_second=N, burst_bytes=N, burst_frames=N; an absent one is no limit.
Numbers may have a unit: 100M, 64KiB, 10ms. docs/config.md has all keys.
A change loses no frame. While the link is off, every frame is lost and counted.

Exit status: 0 changed; 2 wrong options, refused, or no daemon answered.";

/// Switch features of a running adapter, change its moderation or its limit, or set its link.
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// The port
    #[arg(value_name = "PORT")]
    port: String,
    /// A feature or a group of features, and on or off; repeat for more. The last setting wins. Or the word moderation,
    /// and a policy or its keys; or the word limit, and its keys or off; or the word link, and on or off
    #[arg(value_name = "FEATURE on|off", required = true, num_args = 2..)]
    changes: Vec<String>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// Runs `offramp set`.
pub fn run(args: &Args) -> ExitCode {
    let request = match request(args) {
        Ok(request) => request,
        Err(message) => return fail(format!("set: {message}"), SETUP),
    };
    match change(args, &request) {
        Ok(changed) if args.json => {
            // Serialization to JSON cannot fail, because every map has string keys.
            print(format_args!("{}\n", serde_json::to_string(&changed).unwrap_or_default()));
            ExitCode::SUCCESS
        }
        Ok(changed) => {
            changed.features.iter().for_each(|feature| {
                print(format_args!("{}: {}\n", changed.port, sentence(feature)));
            });
            changed.moderation.iter().for_each(|moderation| {
                print(format_args!("{}: moderation {}\n", changed.port, moderation.sentence()));
            });
            changed.limit.iter().for_each(|limit| {
                let limit = Some(limit.sentence()).filter(|limit| !limit.is_empty());
                print(format_args!("{}: limit {}\n", changed.port, limit.as_deref().unwrap_or(OFF)));
            });
            changed.link.iter().for_each(|is_on| print(format_args!("{}: link {}\n", changed.port, on_off(*is_on))));
            ExitCode::SUCCESS
        }
        Err(error) => fail(format!("set: {error}"), SETUP),
    }
}

/// Returns the request for the change in `args`.
fn request(args: &Args) -> Result<Request, String> {
    let (mut features, mut moderation, mut limit, mut link) = (BTreeMap::new(), None, None, None);
    match args.changes.split_first() {
        Some((first, policy)) if first == MODERATION => moderation = Some(Moderation::from_words(policy)?),
        Some((first, keys)) if first == LIMIT => limit = Some(Limit::from_words(keys)?),
        Some((first, states)) if first == LINK => link = Some(link_state(states)?),
        _ => features = changes(&args.changes)?,
    }
    Ok(Request::Set { version: VERSION, port: args.port.clone(), features, moderation, limit, link })
}

fn change(args: &Args, request: &Request) -> Result<Changed, ClientError> {
    let control = args.control.path()?;
    match ask(&control, request)? {
        Outcome::Changed(changed) => Ok(changed),
        _ => Err(ClientError::Unexpected(control)),
    }
}

/// Parses pairs of a name and a state. Groups are expanded, so that the last setting of a feature takes precedence.
fn changes(words: &[String]) -> Result<BTreeMap<String, bool>, String> {
    let mut changes = BTreeMap::new();
    for pair in words.chunks(2) {
        let [name, state] = pair else {
            return Err(format!("\"{}\" has no on or off after it", pair.concat()));
        };
        let allow = is_on(name, state)?;
        let offloads = feature(name)?;
        for known in offramp_offload::caps::NAMES.iter().filter(|known| offloads.contains(known.offload)) {
            changes.insert(known.name.to_owned(), allow);
        }
    }
    Ok(changes)
}

/// Parses the requested state of the link.
fn link_state(words: &[String]) -> Result<bool, String> {
    match words {
        [state] => is_on(LINK, state),
        _ => Err(format!("{LINK} takes one word, on or off, not \"{}\"", words.join(" "))),
    }
}

/// Parses the word on or off. `name` is the subject of the error message.
fn is_on(name: &str, state: &str) -> Result<bool, String> {
    match state {
        "on" => Ok(true),
        "off" => Ok(false),
        "up" if name == LINK => Err("link: \"up\" means on; write on".to_owned()),
        "down" if name == LINK => Err("link: unknown state \"down\"; use off".to_owned()),
        other => Err(format!("{name}: {}", unknown("state", other, ["on", "off"]))),
    }
}

fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn sentence(feature: &FeatureStatus) -> String {
    let waits = feature.waits_for.map_or(String::new(), |reason| format!(" ({})", waits_text(reason)));
    let (allowed, negotiated, in_use) = (on_off(feature.allowed), on_off(feature.negotiated), on_off(feature.in_use));
    format!("{} allowed {allowed}, negotiated {negotiated}, in use {in_use}{waits}", feature.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_offload::names::GROUPS;

    fn parsed(text: &str) -> Result<BTreeMap<String, bool>, String> {
        changes(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_later_change_counts_and_groups_are_taken_apart() {
        let changes = parsed("all off tso4 on").unwrap();
        assert_eq!(changes.len(), offramp_offload::caps::Offloads::RATIFIED.iter().count());
        assert_eq!(changes.iter().filter(|(_, on)| **on).map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["tso4"]);
        assert_eq!(parsed("rsc off").unwrap().into_keys().collect::<Vec<_>>(), ["rsc-ecn", "rsc4", "rsc6"]);
        assert_eq!(parsed("tso off"), parsed("lso off"));
        assert_eq!(parsed("tx-tcp-segmentation off"), parsed("tso4 off"));
        assert!(GROUPS.iter().all(|group| NOTES.contains(group)));
    }

    #[test]
    fn a_wrong_word_is_named_with_what_is_known() {
        assert!(parsed("tos4 on").unwrap_err().contains("did you mean \"tso4\""));
        assert!(parsed("foo on").unwrap_err().contains("unknown feature \"foo\"; there are: tx-checksum, "));
        assert!(parsed("gso on").unwrap_err().contains("belongs to the host's interface"));
        assert!(parsed("tso4 onn").unwrap_err().contains("did you mean \"on\""));
        assert_eq!(parsed("tso4 on uso").unwrap_err(), "\"uso\" has no on or off after it");
    }

    #[test]
    fn the_link_is_set_by_one_word_on_or_off() {
        let parsed = |text: &str| link_state(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!((parsed("on"), parsed("off")), (Ok(true), Ok(false)));
        let message = parsed("maybe").unwrap_err();
        assert!(message.starts_with("link: unknown state \"maybe\"") && message.ends_with("on, off"), "{message}");
        assert_eq!(parsed("down").unwrap_err(), "link: unknown state \"down\"; use off");
        assert_eq!(parsed("up").unwrap_err(), "link: \"up\" means on; write on");
        assert_eq!(parsed("off tso4").unwrap_err(), "link takes one word, on or off, not \"off tso4\"");
    }
}

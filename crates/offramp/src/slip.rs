//! Answers to typical slips on the command line: the line that was probably meant.

use clap::error::{ContextKind, ContextValue};
use offramp_offload::names::{nearest, offloads};

/// Words that other programs use for a command of offramp.
const OTHER_WORDS: [(&str, &[&str]); 5] = [
    ("show", &["status", "list", "stats", "info", "ports"]),
    ("up", &["start", "run", "daemon", "serve"]),
    ("capture", &["dump", "tcpdump", "sniff"]),
    ("check", &["test", "verify"]),
    ("lab", &["bench", "benchmark", "measure"]),
];

/// The options of `up` that replace its file.
const WITHOUT_FILE: [&str; 2] = ["--tap", "--vhost-user"];

/// Adds the intended command line to an error of the command line parser, and drops the parser's suggestions that are
/// not similar to the given word.
pub fn explained(mut error: clap::Error, words: &[String]) -> clap::Error {
    let pairs = [
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidValue, ContextKind::SuggestedValue),
    ];
    for (invalid, suggested) in pairs {
        let Some(ContextValue::String(invalid)) = error.get(invalid).cloned() else { continue };
        let near = match error.remove(suggested) {
            Some(ContextValue::String(known)) => nearest(&invalid, [known.as_str()]).map(str::to_owned),
            Some(ContextValue::Strings(known)) => {
                nearest(&invalid, known.iter().map(String::as_str)).map(str::to_owned)
            }
            _ => None,
        };
        if let Some(near) = near {
            error.insert(suggested, ContextValue::String(near));
        }
    }
    let is_known = error.get(ContextKind::SuggestedArg).is_some();
    let tip = remedy(words, is_known).or_else(|| meant(words).map(|line| format!("did you mean: offramp {line}")));
    if let Some(tip) = tip {
        // The parser's usage line shows the option that the parser suggests, so the line is removed with the
        // suggestion.
        if error.remove(ContextKind::SuggestedArg).is_some() {
            error.remove(ContextKind::Usage);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Returns the remedy for a slip that [`meant`] cannot correct. `is_known` is true if the parser suggests a known
/// option in place of an unknown one.
fn remedy(words: &[String], is_known: bool) -> Option<String> {
    let (command, rest) = words.split_first()?;
    let control = rest.iter().enumerate().find_map(|(at, word)| match word.strip_prefix("--control")? {
        "" => Some(rest.get(at + 1).map_or("PATH", String::as_str)),
        path => path.strip_prefix('='),
    });
    let is_other = |word: &String| word.starts_with("--") && !WITHOUT_FILE.iter().any(|own| word.starts_with(own));
    match command.as_str() {
        "up" => match control {
            Some(path) => Some(format!("write into the daemon's file, at its top: daemon.control = \"{path}\"")),
            None => (!is_known && rest.iter().all(is_other))
                .then(|| "without a file: offramp up --tap NAME=ADDRESS/BITS --vhost-user SOCKET".to_owned()),
        },
        "stop" | "down" | "quit" | "kill" => Some("a signal ends the daemon: kill $(pidof offramp)".to_owned()),
        _ => None,
    }
}

/// Returns the intended words after `offramp`, if the given words are a known slip.
fn meant(words: &[String]) -> Option<String> {
    let (command, rest) = words.split_first()?;
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let bare = rest.iter().take_while(|word| !word.starts_with('-')).copied().collect::<Vec<_>>();
    let options = &rest[bare.len()..];
    let is_offload =
        |word: &&str| word.strip_prefix("--").is_some_and(|name| name != "all" && offloads(name).is_some());
    if command == "lab" && options.iter().any(is_offload) {
        let (named, others): (Vec<&str>, Vec<&str>) = options.iter().copied().partition(is_offload);
        let named = named.into_iter().map(|word| word.trim_start_matches('-'));
        let only = bare.iter().copied().chain(named).collect::<Vec<_>>().join(",");
        return Some([&["lab", "--only", only.as_str()][..], &others].concat().join(" "));
    }
    let line = match (command.as_str(), bare.as_slice()) {
        ("check", [a, b]) => format!("check --pair {a} {b}"),
        ("check", [a]) => format!("check --pair {a} OTHER-END"),
        ("lab", [_, ..]) => format!("lab --only {}", bare.join(",")),
        ("set", [port, feature]) => format!("set {port} {feature} off"),
        ("capture", [port, file]) => format!("capture {port} -w {file}"),
        ("ttcp", [host]) => format!("ttcp --to {host}"),
        ("monitor", [_, ..]) => "monitor".to_owned(),
        ("port" | "switch", ["list" | "show", names @ ..]) => format!("show {}", names.join(" ")).trim_end().to_owned(),
        (other, _) => {
            let known = OTHER_WORDS.iter().find(|(_, others)| others.contains(&other))?;
            return Some([&[known.0][..], &rest].concat().join(" "));
        }
    };
    Some([&[line.as_str()][..], options].concat().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant_by(line: &str) -> Option<String> {
        meant(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_typical_slip_has_the_line_that_was_meant() {
        for (line, meant) in [
            ("check va vb", "check --pair va vb"),
            ("check va blue/vb --quick", "check --pair va blue/vb --quick"),
            ("check eth0", "check --pair eth0 OTHER-END"),
            ("lab lso", "lab --only lso"),
            ("lab lso rsc --repeats 9", "lab --only lso,rsc --repeats 9"),
            ("lab --lso", "lab --only lso"),
            ("lab --repeats 9 --lso --rsc", "lab --only lso,rsc --repeats 9"),
            ("capture vm0 a.pcapng -c 5", "capture vm0 -w a.pcapng -c 5"),
            ("set vm0 lso", "set vm0 lso off"),
            ("ttcp 10.0.0.2", "ttcp --to 10.0.0.2"),
            ("status", "show"),
            ("port list", "show"),
            ("switch show lan --json", "show lan --json"),
            ("switch list", "show"),
            ("tcpdump vm0", "capture vm0"),
        ] {
            assert_eq!(meant_by(line).as_deref(), Some(meant), "{line}");
        }
        for line in ["check --pair va", "show", "frobnicate", "lab --onyl lso", "lab --repeets 9", "set vm0"] {
            assert_eq!(meant_by(line), None, "{line}");
        }
    }

    #[test]
    fn a_slip_without_such_a_line_has_its_remedy() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let remedy = |line: &str| remedy(&words(line), false);
        for (line, part) in [
            ("up vm.toml --control /run/x.sock", "at its top: daemon.control = \"/run/x.sock\""),
            ("up --control=/run/x.sock", "daemon.control = \"/run/x.sock\""),
            ("up", "without a file: offramp up --tap NAME=ADDRESS/BITS --vhost-user SOCKET"),
            ("up --detach", "--vhost-user SOCKET"),
            ("stop", "kill $(pidof offramp)"),
        ] {
            assert!(remedy(line).is_some_and(|remedy| remedy.contains(part)), "{line}");
        }
        for line in ["up a.toml b.toml", "up --tap", "up --tap=a --dettach", "show --control"] {
            assert_eq!(remedy(line), None, "{line}");
        }
        assert_eq!(super::remedy(&words("up --detahc"), true), None, "the parser suggests --detach");
    }
}

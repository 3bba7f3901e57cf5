//! Tests that the marked commands of the documents run as printed and print what the documents show.
//!
//! A code block is marked by the word `runnable` after the language of its fence, such as `sh runnable`;
//! `documents/block.rs` describes all marks. Each page runs in its own network, process and mount namespaces, with an
//! empty `/run` and `/tmp`. Its working directory contains the repository's `examples`. The blocks of a page run in one
//! bash, from top to bottom. The pages are written for root of the machine. In a user namespace, an existing
//! `/run/offramp` makes the program use root's paths.

#![cfg(feature = "lab")]

#[path = "documents/block.rs"]
mod block;

use block::{Kind, Step, is_as_shown, steps};
use offramp_ports::sys::user::is_root_of_system;
use offramp_testbed::scratch::Scratch;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Pages with a test of their own, because they start daemons. All pages of `docs/model` are tested together.
const PAGES: [&str; 5] = ["README.md", "docs/guests.md", "docs/results.md", "docs/check.md", "docs/troubleshooting.md"];
/// Exit status of a shell for a command that does not exist.
const NOT_FOUND: i32 = 127;
/// Prepares the namespaces, and runs the steps. `$1` is the program, `$2` the directory of the steps, `$3` the
/// examples, `$4` the number of steps, `$5` the directory that a user other than root owns. A script that runs its
/// arguments stands for `sudo`.
const RUN: &str = r#"
set -e
mount -t tmpfs -o mode=755 documents /run
mkdir /run/bin /run/steps /run/page /run/page/examples ${5:+"$5"}
touch /run/bin/offramp
mount --bind "$1" /run/bin/offramp
mount --bind "$2" /run/steps
mount --bind "$3" /run/page/examples
mount -t tmpfs -o mode=1777 documents /tmp
printf '#!/bin/sh\nexec "$@"\n' > /run/bin/sudo
chmod 755 /run/bin/sudo
unset XDG_RUNTIME_DIR TMPDIR
export XDG_STATE_HOME=/run/state
PATH=/run/bin:$PATH
cd /run/page
steps=$4
for step in $(seq 1 "$steps"); do
    . "/run/steps/$step" > "/run/steps/$step.open" 2>&1
    cp "/run/steps/$step.open" "/run/steps/$step.printed"
done
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Returns the shell commands of a step. The commands of a step with a file write its text unchanged.
fn script(kind: &Kind) -> String {
    match kind {
        Kind::Commands(commands) => format!("{commands}\n"),
        Kind::File { name, text } => format!("cat > '{name}' <<'the end of the file'\n{text}the end of the file\n"),
    }
}

/// Runs a document's marked blocks, and returns the number of steps and a message for each fault.
fn run(page: &str, document: &str) -> (usize, Vec<String>) {
    let steps = match steps(document) {
        Ok(steps) => steps,
        Err(fault) => return (0, vec![format!("{page}: {fault}")]),
    };
    let scratch = Scratch::new().unwrap();
    for (number, step) in (1..).zip(&steps) {
        fs::write(scratch.file(&number.to_string()), script(&step.kind)).unwrap();
    }
    let examples = root().join("examples");
    let status = Command::new("timeout")
        .args([
            "--signal=KILL",
            "300",
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "-c", RUN, "documents", env!("CARGO_BIN_EXE_offramp")])
        .args([scratch.path(), &examples])
        .arg(steps.len().to_string())
        .args((!is_root_of_system()).then_some("/run/offramp"))
        .status()
        .unwrap();
    // A daemon that a step started may still write to the step's file `.open` during later steps. So the output is
    // copied to `.printed` at the end of each step. A failed step has only the file `.open`.
    let file = |number: usize, end| fs::read(scratch.file(&format!("{number}.{end}")));
    let printed = |number: usize| file(number, "printed").or_else(|_| file(number, "open")).ok();
    let last = (1..=steps.len()).take_while(|number| printed(*number).is_some()).last().unwrap_or(0);
    let mut faults = Vec::new();
    for (number, step) in (1..=last).zip(&steps) {
        let printed = String::from_utf8_lossy(&printed(number).unwrap_or_default()).into_owned();
        if number == last && status.code() == Some(NOT_FOUND) && std::env::var_os("CI").is_none() {
            println!("skipped the rest of {page} from line {}: {printed}", step.line);
            break;
        }
        faults.extend((number == last && !status.success()).then(|| fault(page, step, &printed, "it failed")));
        let differs = step.shown.as_ref().is_some_and(|shown| !is_as_shown(shown, &printed, step.is_exact));
        faults.extend(differs.then(|| fault(page, step, &printed, "the document shows other output")));
    }
    if last == 0 && !steps.is_empty() {
        faults.push(format!("{page}: no namespace: {status}"));
    }
    (steps.len(), faults)
}

fn fault(page: &str, step: &Step, printed: &str, what: &str) -> String {
    let mut text = format!("{page}:{}: {what}\n{}", step.line, script(&step.kind));
    if let Some(shown) = &step.shown {
        let _ = write!(text, "--- shown\n{}\n", shown.trim_end());
    }
    let _ = write!(text, "--- printed\n{}\n", printed.trim_end());
    text
}

/// Runs the marked blocks of all `pages`, and returns the number of steps. Panics if a step fails or prints something
/// else than the page shows.
fn check(pages: &[String]) -> usize {
    let run = |page: &String| run(page, &fs::read_to_string(root().join(page)).unwrap());
    let (counts, faults): (Vec<usize>, Vec<Vec<String>>) = pages.iter().map(run).unzip();
    let faults = faults.concat();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    counts.iter().sum()
}

fn model_pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs/model")).unwrap().map(|entry| entry.unwrap().path());
    let pages: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    let name = |path: &PathBuf| format!("docs/model/{}", path.file_name().unwrap().to_str().unwrap());
    pages.iter().map(name).collect()
}

#[test]
fn the_commands_of_the_readme_run() {
    assert!(check(&["README.md".to_owned()]) > 0);
}

#[test]
fn the_commands_of_the_quickstarts_run() {
    assert!(check(&["docs/quickstart.md".to_owned()]) > 0);
}

#[test]
fn the_commands_for_guests_run() {
    assert!(check(&["docs/guests.md".to_owned()]) > 0);
}

/// Returns the text of the block that contains `text`.
fn block_with<'a>(document: &'a str, text: &str) -> &'a str {
    let mut blocks = document.split("\n```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(text)).unwrap_or_else(|| panic!("no block has {text}"));
    block.split_once('\n').unwrap().1
}

/// The page's lines are unmarked, because they need a kernel: this test gives them that of User Mode Linux, as the page
/// describes.
#[test]
fn the_small_guest_is_made_by_the_printed_lines_and_pings_the_host() {
    let page = fs::read_to_string(root().join("docs/guests.md")).unwrap();
    let file = block_with(&page, "# vm.toml");
    let recipe = block_with(&page, "mkdir -p guest/bin").replace("/lib/modules/$(uname -r)", "/usr/lib/uml/modules");
    let boot = block_with(&page, "linux.uml mem=64M").replace("linux.uml", "yes 'busybox poweroff -f' | linux.uml");
    let steps = [
        "```sh runnable\ncommand -v busybox > /dev/null && command -v linux.uml > /dev/null || exit 127",
        &format!("```toml runnable\n{file}"),
        &format!("```sh runnable\n{recipe}"),
        &format!("```sh runnable\nexport HOME=$PWD\nunshare --user --map-root-user --net bash -e <<'END'\n{boot}\nEND"),
        "```text output exact\n…\n…3 packets received…\n…",
    ];
    let document = steps.map(|step| format!("{step}\n```\n")).concat();
    let (count, faults) = run("docs/guests.md, the small guest", &document);
    assert!(faults.is_empty() && count == 4, "{count} steps\n{}", faults.join("\n"));
}

#[test]
fn the_commands_of_the_results_run() {
    assert!(check(&["docs/results.md".to_owned()]) > 0);
}

#[test]
fn the_commands_of_the_check_run() {
    assert!(check(&["docs/check.md".to_owned()]) > 0);
}

#[test]
fn each_message_of_the_troubleshooting_page_is_printed() {
    if !is_root_of_system() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root of the machine, and CI skips nothing");
        println!("skipped: only root of the machine can become the users of this page");
        return;
    }
    assert!(check(&["docs/troubleshooting.md".to_owned()]) >= 15);
}

#[test]
fn the_commands_of_the_models_tutorials_run() {
    let count = check(&model_pages());
    assert!(count >= 10, "{count} steps");
}

#[test]
fn the_example_with_every_key_is_right() {
    let scratch = Scratch::new().unwrap();
    fs::copy(root().join("examples/all-keys.toml"), scratch.file("all-keys.toml")).unwrap();
    for (key, byte) in [("out.key", "00"), ("in.key", "01")] {
        fs::write(scratch.file(key), byte.repeat(20)).unwrap();
        fs::set_permissions(scratch.file(key), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let file = scratch.file("all-keys.toml");
    let output = Command::new(env!("CARGO_BIN_EXE_offramp")).args(["up", "--check", &file]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn at_least_15_blocks_are_marked() {
    let pages = PAGES.iter().map(|page| (*page).to_owned()).chain(model_pages());
    let documents = pages.map(|page| fs::read_to_string(root().join(page)).unwrap());
    let marked: usize = documents.map(|document| document.matches(" runnable").count()).sum();
    assert!(marked >= 15, "{marked} blocks");
}

#[test]
fn a_block_with_stale_output_is_a_fault() {
    let document = "```console runnable\n$ echo 3 frames, 0 lost\n4 frames, 2 lost\n$ echo 3 segments\n3 frames\n```\n";
    let (count, faults) = run("sample.md", document);
    assert_eq!((count, faults.len()), (2, 1), "{faults:?}");
    assert!(faults[0].starts_with("sample.md:4: the document shows other output"), "{faults:?}");
}

#[test]
fn a_block_that_fails_is_a_fault_and_ends_the_page() {
    let document = "```sh runnable\nfalse\n```\n```sh runnable\ntouch never\n```\n";
    let (_, faults) = run("sample.md", document);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with("sample.md:1: it failed"), "{faults:?}");
}

#[test]
fn a_saved_file_and_a_variable_reach_the_next_block() {
    let document = "```toml runnable\n# a.toml\nkey = \"$HOME\"\n```\n```sh runnable\nname=a.toml\n```\n\
                    ```sh runnable\ncat $name\n```\n```text output\n# a.toml\n…\"$HOME\"\n```\n";
    assert_eq!(run("sample.md", document), (3, Vec::new()));
}

#[test]
fn a_mark_with_a_slip_is_a_fault() {
    for (document, line) in [
        ("\n```sh runable\n```\n", 2),
        ("```text output\n```\n", 1),
        ("```toml runnable\na = 1\n```\n", 1),
        ("```console runnable\nls\n```\n", 1),
    ] {
        let fault = steps(document).unwrap_err();
        assert!(fault.starts_with(&format!("line {line}: ")), "{fault}");
    }
}

#[test]
fn numbers_blanks_and_dots_are_not_compared() {
    for (shown, printed) in [
        ("vm0  12.5 Mbit/s", "vm0 9 Mbit/s"),
        ("delta -1.000 (+2)", "delta 0.934 (7)"),
        ("a\n…\nd", "a\nb\nc\nd"),
        ("a\n...", "a"),
        ("read … bytes from … done", "read 7 bytes from x, y done"),
    ] {
        assert!(is_as_shown(shown, printed, false), "{shown} {printed}");
    }
    for (shown, printed, is_exact) in [
        ("a\nb", "a", false),
        ("a", "a\nb", false),
        ("a\n…\nd", "a\nb", false),
        ("host.processors -1.000", "link.rate 0.934", false),
        ("read … done", "read 7", false),
        ("12", "13", true),
    ] {
        assert!(!is_as_shown(shown, printed, is_exact), "{shown} {printed}");
    }
    assert!(is_as_shown("12  a", "12 a", true));
}

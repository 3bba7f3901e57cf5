//! `offramp man` and `offramp completions`, generated from the options.

use crate::exit::{self, fail, print};
use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const NAME: &str = "offramp";

/// Write the man pages.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Directory of the pages, made if missing; `man -l DIRECTORY/offramp.1` shows the first
    directory: PathBuf,
}

/// Print the completions of a shell.
#[derive(clap::Args)]
#[command(after_help = "In a running bash: source <(offramp completions bash)")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs `offramp man`.
pub fn man(args: &ManArgs, command: Command) -> ExitCode {
    match write_man(&args.directory, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(format_args!("man: writing to {}: {error}", args.directory.display()), exit::FAILED),
    }
}

fn write_man(directory: &Path, command: Command) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut command = without_help_commands(command);
    command.build();
    write_pages(&command, directory)
}

/// Writes the page of a command, and the pages of its subcommands.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    command.get_subcommands().filter(|one| !one.is_hide_set()).try_for_each(|one| write_pages(one, directory))?;
    let man = Man::new(command.clone().override_usage(synopsis(command)));
    fs::write(directory.join(man.get_filename()), page(&man, command)?)
}

/// Renders a page as [`Man::render`] does, except that the notes have a section of their own.
fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        let notes = notes.to_string();
        let (title, lines) = notes.strip_prefix("Examples:\n").map_or(("NOTES", &*notes), |rest| ("EXAMPLES", rest));
        page.extend(format!(".SH {title}\n").bytes());
        page.extend(filled(lines).bytes());
    }
    man.render_version_section(&mut page)?;
    Ok(page)
}

/// Returns the source of notes. Indented lines are examples and keep their line breaks; each other line is a paragraph
/// that roff wraps.
fn filled(notes: &str) -> String {
    let (mut source, mut is_example) = (String::new(), false);
    for line in notes.lines() {
        let was_example = std::mem::replace(&mut is_example, line.starts_with(' '));
        source.push_str(match (was_example, is_example) {
            (false, true) => ".nf\n",
            (true, false) => ".fi\n",
            (false, false) => ".br\n",
            (true, true) => "",
        });
        source.push_str(&literal(line));
    }
    source + if is_example { ".fi\n" } else { "" }
}

/// Returns a line that roff prints unchanged (groff(7)).
fn literal(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    // Roff takes a line that starts with a dot for a request.
    let guard = if line.starts_with('.') { "\\&" } else { "" };
    format!("{guard}{line}\n")
}

/// Returns the synopsis of a command, with the values of its options.
fn synopsis(command: &Command) -> String {
    let required: Vec<_> = command.get_groups().filter(|group| group.is_required_set()).collect();
    let has_group = |arg: &&Arg| required.iter().any(|group| group.get_args().any(|id| id == arg.get_id()));
    let (grouped, alone): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(|arg| !arg.is_hide_set()).partition(has_group);
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = alone.into_iter().partition(|arg| arg.is_positional());
    let option = |arg: &Arg| if arg.is_required_set() { arg.to_string() } else { format!("[{arg}]") };
    let choice = grouped.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ");
    let words = [command.get_bin_name().unwrap_or(NAME).to_owned()].into_iter();
    let words = words.chain(options.into_iter().map(option));
    let words = words.chain((!choice.is_empty()).then(|| format!("{{{choice}}}")));
    let words = words.chain(positional.into_iter().map(ToString::to_string));
    let words = words.chain(command.has_subcommands().then(|| "COMMAND".to_owned()));
    words.collect::<Vec<_>>().join(" ")
}

/// Runs `offramp completions`.
pub fn completions(args: &CompletionsArgs, command: &Command) -> ExitCode {
    print(script(args.shell, command));
    ExitCode::SUCCESS
}

fn script(shell: Shell, command: &Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut without_help_commands(without_hidden_commands(command)), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Leaves out the commands that only offramp itself runs.
fn without_hidden_commands(command: &Command) -> Command {
    let visible = command.get_subcommands().filter(|one| !one.is_hide_set()).cloned();
    Command::new(NAME).args(command.get_arguments().cloned()).subcommands(visible)
}

/// Leaves the `help` subcommands out of man pages and completions, because `offramp help model` prints the same as
/// `offramp model --help`.
fn without_help_commands(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(|one| one.disable_help_subcommand(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn each_command_has_a_man_page_and_help_has_none() {
        let directory = std::env::temp_dir().join(format!("offramp-man-{}", std::process::id()));
        write_man(&directory, crate::Cli::command()).unwrap();
        let has = |page: &str| directory.join(page).exists();
        assert!(has("offramp.1") && has("offramp-up.1") && has("offramp-port-add.1") && has("offramp-man.1"));
        assert!(!has("offramp-help.1") && !has("offramp-port-help.1"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_man_page_has_the_lines_of_the_examples_and_the_values_of_the_options() {
        let mut command = without_help_commands(crate::Cli::command());
        command.build();
        let text = |path: &[&str]| {
            let command = path.iter().fold(&command, |command, name| command.find_subcommand(name).unwrap());
            let man = Man::new(command.clone().override_usage(synopsis(command)));
            (String::from_utf8(page(&man, command).unwrap()).unwrap().replace("\\-", "-"), command.clone())
        };
        for path in [&["set"][..], &["port", "add"], &["capture"], &["sa"], &["completions"]] {
            let (page, command) = text(path);
            let notes = page.split_once("\n.SH EXAMPLES\n").or(page.split_once("\n.SH NOTES\n")).unwrap().1;
            let (notes, _) = notes.split_once("\n.SH ").unwrap();
            let (mut lines, mut is_example) = (Vec::new(), false);
            for line in notes.lines() {
                match line {
                    ".nf" | ".fi" => is_example = line == ".nf",
                    ".br" => assert!(!is_example, "{path:?}"),
                    // The lines `.ie` and `.el` before the next section define the section's quotation marks.
                    line if line.starts_with(".ie ") || line.starts_with(".el ") => {}
                    line => {
                        assert_eq!(line.starts_with(' '), is_example, "{path:?}: {line}");
                        lines.push(line.replace("\\(aq", "'").replace("\\e", "\\"));
                    }
                }
            }
            let help = command.get_after_help().unwrap().to_string();
            assert_eq!(lines.join("\n"), help.strip_prefix("Examples:\n").unwrap_or(&help), "{path:?}");
        }
        let (page, _) = text(&["show"]);
        assert!(page.contains(" [--interval <SECS>] ") && page.contains("[PORT|SWITCH]"), "{page}");
        let (page, _) = text(&["port", "add"]);
        assert!(page.contains("[--control <SOCKET>]") && page.contains(" <FILE>"), "{page}");
    }

    /// Calls `check` with a command and each of its subcommands.
    fn each(command: &Command, check: &mut impl FnMut(&Command)) {
        check(command);
        command.get_subcommands().for_each(|one| each(one, check));
    }

    #[test]
    fn only_clap_breaks_the_lines_of_help_and_examples_fit_its_width() {
        let mut count = 0;
        each(&crate::Cli::command(), &mut |command| {
            let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in notes.lines().filter(|line| !line.is_empty()) {
                count += 1;
                if line.starts_with(' ') {
                    assert!(line.chars().count() <= crate::HELP_WIDTH_MAX, "{}: {line}", command.get_name());
                } else {
                    assert!(line.ends_with(['.', ':', ')']), "{}: {line}", command.get_name());
                }
            }
        });
        assert!(count > 30, "{count} lines");
    }

    #[test]
    fn a_line_of_an_example_is_no_request() {
        assert_eq!(literal(".so x"), "\\&.so x\n");
        assert_eq!(literal("'a' \\ --b"), "\\(aqa\\(aq \\e \\-\\-b\n");
    }

    #[test]
    fn each_shell_completes_each_command_except_hidden_ones() {
        for &shell in Shell::value_variants() {
            let script = script(shell, &crate::Cli::command());
            for command in crate::Cli::command().get_subcommands() {
                assert_eq!(
                    script.contains(command.get_name()),
                    !command.is_hide_set(),
                    "{shell}: {}",
                    command.get_name()
                );
            }
        }
    }
}

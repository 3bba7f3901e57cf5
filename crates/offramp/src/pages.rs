//! `offramp man` and `offramp completions`, generated from the options.

use crate::exit::{self, fail, print};
use clap::Command;
use clap_complete::Shell;
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
#[command(after_help = "For this session of bash: source <(offramp completions bash)")]
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
    clap_mangen::generate_to(without_help_commands(command), directory)
}

/// Runs `offramp completions`.
pub fn completions(args: &CompletionsArgs, command: Command) -> ExitCode {
    print(script(args.shell, command));
    ExitCode::SUCCESS
}

fn script(shell: Shell, command: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut without_help_commands(command), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Removes the help subcommands: `offramp help model` prints the same as `offramp model --help`.
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
    fn each_shell_completes_each_command() {
        for &shell in Shell::value_variants() {
            let script = script(shell, crate::Cli::command());
            for command in crate::Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}

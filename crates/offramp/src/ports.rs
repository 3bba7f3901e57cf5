//! `offramp port` and `offramp switch`: add and remove ports and switches of a running daemon.

use crate::control::Control;
use crate::exit::{SETUP, fail, print};
use offramp_daemon::control::client::{ClientError, ask};
use offramp_daemon::schema::{Difference, Outcome, Request, VERSION};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const ADD_NOTES: &str = "\
Examples:
  offramp port add vm7.toml
  echo '[[port]]
  name = \"vm7\"
  host.vhost_user = \"/run/offramp/vm7.sock\"
  wire.switch = \"lan\"' | offramp port add -
All ports and switches of FILE are added, or none. Both ports of a cable must be in one file.
No other port loses a frame. docs/config.md has the keys, docs/control.md the limits of a running daemon.

Exit status: 0 added; 2 wrong options, refused, or no daemon answered.";

const REMOVE_NOTES: &str = "\
All named ports and switches are removed, or none. Guests are disconnected, and their frames under way are lost.
No other port loses a frame. Remove a switch after its ports, and both ports of a cable together.
The interface of a TAP disappears with its port, except with host.existing. A restart of the daemon makes it again.

Exit status: 0 removed; 2 wrong options, refused, or no daemon answered.";

/// The command.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Add the ports and switches of a file
    #[command(after_help = ADD_NOTES)]
    Add {
        /// `[[port]]` and `[[switch]]` as in the daemon's file; - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        daemon: To,
    },
    /// Remove by name
    #[command(after_help = REMOVE_NOTES)]
    Remove {
        /// Names
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        daemon: To,
    },
}

/// The control socket and the output format.
#[derive(clap::Args)]
pub struct To {
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

/// Runs `offramp port` or `offramp switch`. `noun` is `port` or `switch`.
pub fn run(noun: &str, command: &Command) -> ExitCode {
    match change(noun, command) {
        Ok((to, difference)) => {
            // Serialization to JSON cannot fail, because every map has string keys.
            let json = || serde_json::to_string(&difference).unwrap_or_default() + "\n";
            print(if to.json { json() } else { difference.to_string() });
            ExitCode::SUCCESS
        }
        Err(message) => fail(format!("{noun}: {message}"), SETUP),
    }
}

fn change<'a>(noun: &str, command: &'a Command) -> Result<(&'a To, Difference), String> {
    let (to, request) = match command {
        Command::Add { file, daemon } => {
            let toml = read(file).map_err(|cause| format!("{}: cannot be read: {cause}", file.display()))?;
            (daemon, Request::Add { version: VERSION, source: file.display().to_string(), toml })
        }
        Command::Remove { names, daemon } => {
            let (ports, switches) = if noun == "port" { (names.clone(), vec![]) } else { (vec![], names.clone()) };
            (daemon, Request::Remove { version: VERSION, ports, switches })
        }
    };
    let control = to.control.path().map_err(|error| error.to_string())?;
    match ask(&control, &request) {
        Ok(Outcome::Difference(difference)) => Ok((to, difference)),
        Ok(_) => Err(ClientError::Unexpected(control).to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn read(file: &Path) -> io::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        return io::stdin().read_to_string(&mut text).map(|_| text);
    }
    std::fs::read_to_string(file)
}

//! The daemon of offramp as a library. The daemon runs ports. Each port is a virtual network adapter between a host (a
//! guest or the kernel) and a wire (a cable, a switch or an interface). The daemon also answers the operator's
//! requests.
//!
//! The entry point is [`Daemon`], the running ports and switches of one configuration. [`Process`] adds the other parts
//! of `offramp up`: privileges, sandbox, control sockets, metrics and signals. The command line and the printed tables
//! are not in this crate, but in the program `offramp`.
//!
//! | module | purpose |
//! |---|---|
//! | [`schema`] | types of all text formats: keys of the file, requests and answers of the control socket |
//! | [`control`] | the control protocol; [`control::client`] sends requests to a daemon |
//! | `config` | the checked configuration; every error names the line and the remedy |
//! | `run` | [`Process`] and [`Daemon::start`]: the steps of the start, in their order |
//! | `kind` | the kinds of hosts and of interfaces on a wire, one file per kind |
//! | `build`, `port`, `switch` | building running ports and switches from a configuration |
//! | `daemon`, `show`, `rates`, `change`, `apply` | answering requests; adding and removing ports and switches |
//! | `ipsec`, `sa_log`, `state` | security associations, their events, and their sequence numbers kept over a crash |
//! | `drain`, `watchdog`, `events`, `report` | stopping without losing frames; stalled threads; events and log lines |
//! | `metrics` | counters for Prometheus |
//! | `privilege`, `sandbox`, `process` | the process's user, its sandbox, and its limits |
//! | `missing` | the reasons why a configuration cannot start now, for `offramp up --check` |
//! | `notify`, `given` | notifications to the service manager; guest sockets that replace the sockets in the file |
//!
//! # A switch with two ports
//! Each port waits for a guest at its own socket. The example needs no privilege.
//! ```
//! use offramp_daemon::{Config, Daemon};
//!
//! let directory = std::env::temp_dir().join(format!("offramp-daemon-{}", std::process::id()));
//! std::fs::create_dir(&directory)?;
//! let port = |name: &str| {
//!     let socket = directory.join(format!("{name}.sock"));
//!     format!("[[port]]\nname = {name:?}\nhost.vhost_user = {socket:?}\nwire.switch = \"lan\"\n")
//! };
//! let text = format!("[[switch]]\nname = \"lan\"\n{}{}", port("a"), port("b"));
//! let daemon = Daemon::start(Config::parse("lan.toml".as_ref(), &text)?)?;
//!
//! let status = daemon.status();
//! assert_eq!(status.ports.len(), 2);
//! for port in &status.ports {
//!     assert!(directory.join(format!("{}.sock", port.name)).exists());
//!     assert_eq!(port.queues[0].transmit.counts.get("frames_in"), Some(0), "no guest is there yet");
//! }
//!
//! assert!(daemon.stop(), "every frame that it took has gone out");
//! assert_eq!(std::fs::read_dir(&directory)?.count(), 0, "the sockets are gone");
//! std::fs::remove_dir(&directory)?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

/// Prints a line to standard error. The line is lost if standard error has no reader, such as a closed terminal.
macro_rules! log {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod apply;
mod build;
mod change;
mod config;
pub mod control;
mod daemon;
mod drain;
mod error;
mod events;
mod given;
mod ipsec;
mod kind;
mod metrics;
mod missing;
mod notify;
mod port;
mod privilege;
mod process;
mod rates;
mod report;
mod run;
mod sa_log;
mod sandbox;
pub mod schema;
mod show;
mod state;
mod switch;
mod threads;
mod touched;
mod watchdog;

pub use config::{Config, ConfigError};
pub use daemon::Daemon;
pub use run::{GuestSockets, Input, Process, READY, StartError, check};

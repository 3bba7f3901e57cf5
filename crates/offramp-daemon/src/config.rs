//! The checked form of the daemon's configuration file.
//!
//! Every error of a check names the file, the line, the key and the remedy.

pub(crate) mod check;
mod daemon;
pub(crate) mod impair;
mod ipsec;
mod load;
pub(crate) mod place;
mod port;
mod security;
mod share;
mod switch;
#[cfg(test)]
mod tests;
mod types;
mod wire;

pub use place::ConfigError;
pub use types::{Config, DaemonConfig, IpsecConfig, MetricsAddress, PortConfig, SaEntry, SwitchConfig};

//! strongSwan's charon as one end of a tunnel, with its ESP in user space (`kernel-libipsec`).

use crate::failure::{Doing, Result, failed};
use crate::packages::{self, CHARON, SWANCTL};
use crate::program::{self, Program};
use crate::scratch::Scratch;
use crate::stop;
use offramp_ports::sys::NetNs;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const READY_TIMEOUT: Duration = Duration::from_secs(15);
const SETTLE: Duration = Duration::from_millis(300);

/// One end of a tunnel. The peer's configuration has each pair of addresses in reverse order.
#[derive(Clone, Copy, Debug)]
pub struct TunnelEnd<'a> {
    /// Outer addresses of the tunnel: this end's address first.
    pub outer: [Ipv4Addr; 2],
    /// Addresses of the hosts inside the tunnel: this end's host first.
    pub inner: [Ipv4Addr; 2],
    /// strongSwan's name for the cipher suite.
    pub suite: &'a str,
    /// True if charon writes the negotiated keys into its log and leaves the routes unchanged.
    pub logs_keys: bool,
}

/// A running charon. Dropping the value kills charon without notice to its peer.
#[derive(Debug)]
pub struct Charon {
    /// The running program.
    pub program: Program,
    /// Path of charon's log.
    pub log: PathBuf,
    swanctl: PathBuf,
    directory: PathBuf,
}

impl Charon {
    /// Starts a charon in a namespace. The files of the charon are named after `name`.
    ///
    /// # Errors
    /// Returns an error if a program is missing or does not start.
    pub fn start(name: &str, end: &TunnelEnd, ns: &NetNs, scratch: &Scratch) -> Result<Self> {
        let (charon, swanctl) = (packages::need(CHARON)?, packages::need(SWANCTL)?);
        let directory = scratch.path().join(name);
        fs::create_dir_all(directory.join("run")).doing("making a directory for strongSwan")?;
        let connections = directory.join("swanctl.conf");
        fs::write(&connections, swanctl_conf(end)).doing(connections.display())?;
        let settings = directory.join("strongswan.conf");
        fs::write(&settings, strongswan_conf(end.logs_keys, &directory)).doing(settings.display())?;
        // Two daemons cannot share `/run`. Each daemon therefore gets a mount namespace with its own `/run`.
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount --bind \"$0/run\" /run && exec \"$1\""]);
        command.args([&directory, &charon]).env("STRONGSWAN_CONF", settings);
        let program = Program::start("charon", command, Some(ns))?;
        let charon = Self { program, log: directory.join("log"), swanctl, directory };
        program::wait_for_socket(&charon.socket(), READY_TIMEOUT)?;
        stop::sleep(SETTLE)?;
        charon.swanctl(&["--load-all", "--file", &connections.to_string_lossy()])?;
        Ok(charon)
    }

    /// Negotiates the tunnel.
    ///
    /// # Errors
    /// Returns an error if the peer does not agree.
    pub fn initiate(&self) -> Result<()> {
        self.swanctl(&["--initiate", "--child", "link", "--timeout", "15"])
    }

    fn socket(&self) -> String {
        self.directory.join("vici.sock").to_string_lossy().into_owned()
    }

    /// Runs swanctl. On swanctl's command line, the subcommand must precede the control socket.
    fn swanctl(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.swanctl);
        command.env("STRONGSWAN_CONF", self.directory.join("strongswan.conf")).args(args);
        command.args(["--uri", &format!("unix://{}", self.socket())]);
        let output = command.output().doing("running swanctl")?;
        if output.status.success() {
            return Ok(());
        }
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
        failed(format!("swanctl: {}\n{}\n{}", output.status, stdout.trim(), stderr.trim()))
    }
}

/// Returns the configuration for ESP in user space with a separate control socket.
fn strongswan_conf(logs_keys: bool, directory: &Path) -> String {
    let directory = directory.display();
    let (routes, level) = if logs_keys { ("no", 4) } else { ("yes", 1) };
    format!(
        "charon-systemd {{\n  load_modular = yes\n  install_routes = {routes}\n  journal {{ default = -1 }}\n  \
         filelog {{ l {{\n    path = {directory}/log\n    default = 1\n    chd = {level}\n    flush_line = yes\n  }} }}\n  \
         plugins {{\n    include /etc/strongswan.d/charon/*.conf\n    kernel-libipsec {{ load = yes }}\n    \
         vici {{ socket = unix://{directory}/vici.sock }}\n    bypass-lan {{ load = no }}\n  }}\n}}\n"
    )
}

/// Returns the configuration of one tunnel with ESP in UDP, the only mode of ESP in user space.
fn swanctl_conf(end: &TunnelEnd) -> String {
    let TunnelEnd { outer: [own, other], inner: [local, remote], suite, .. } = end;
    format!(
        "connections {{ link {{\n  version = 2\n  local_addrs = {own}\n  remote_addrs = {other}\n  encap = yes\n  \
         proposals = aes128gcm16-prfsha256-x25519\n  local {{ auth = psk\n id = {own} }}\n  remote {{ auth = psk\n id = {other} }}\n  \
         children {{ link {{\n    local_ts = {local}/32\n    remote_ts = {remote}/32\n    esp_proposals = {suite}\n    \
         mode = tunnel\n  }} }}\n}} }}\nsecrets {{ ike-link {{ secret = \"a test keeps no secret\" }} }}\n"
    )
}

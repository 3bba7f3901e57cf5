//! Tests that a TCP connection between a guest and the host survives a kill and a restart of the backend between them.
//!
//! QEMU reconnects the vhost-user socket automatically (option `reconnect`). The TAP vanishes with the backend. An
//! operator must assign the address to the new interface, as this case does.

use super::{Bench, behind_port, counters, options};
use crate::tcp;
use offramp_ports::sys::NetNs;
use offramp_testbed::daemon::{self, Daemon};
use offramp_testbed::failure::{Result, failed, new_namespace};
use offramp_testbed::guest::busybox::{HOST, TAP, prepare_host, random_bytes, vhost_user_network};
use offramp_testbed::guest::shell::Machine;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Time limit from the start of a connection to its first bytes in both directions.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The backend is killed after 1/`FIRST_PART` of the bytes in each direction. The remaining bytes far exceed the socket
/// buffers of the host and the guest.
const FIRST_PART: usize = 8;
/// Seed of the bytes sent by the host.
const SENT_SEED: u64 = 3;
/// Number of kills, each during a separate connection.
const KILLS: usize = 2;
/// The TAP's Ethernet address, which is fixed because the guest resolves it only once.
const TAP_MAC: &str = "02:00:00:00:00:01";

/// Runs the case.
///
/// # Errors
/// Returns an error if a process does not start, or a connection breaks or carries wrong bytes.
pub fn run(bench: &Bench) -> Result<()> {
    let executable = daemon::build()?;
    let ns = new_namespace()?;
    let mut backend = Some(start_backend(bench, &executable, &ns)?);
    // Use split rings: only the frontend could preserve the position in a packed ring, and QEMU does not preserve this
    // position for network cards.
    let options = options::short(&[("mq", "off"), ("packed", "off")]);
    let network = vhost_user_network(&socket(bench), 1, ",reconnect=1");
    let mut machine = Machine::boot(&behind_port(&bench.base, &options, network, "")?, &ns)?;
    let mut judged = Ok(());
    for kill in 0..KILLS {
        judged =
            judged.and_then(|()| connection_through_kill(bench, &executable, &ns, &mut machine, &mut backend, kill));
    }
    let judged = judged.map_err(|why| why.map(|why| why + &counters(&mut machine, &ns)));
    machine.power_off();
    let last_words = backend.map(Daemon::terminate).unwrap_or_default();
    judged.map_err(|why| why.map(|why| why + &last_words))
}

fn socket(bench: &Bench) -> String {
    bench.scratch.file("vm0.sock")
}

/// Starts the daemon, and assigns the address to the host's interface.
fn start_backend(bench: &Bench, executable: &Path, ns: &NetNs) -> Result<Daemon> {
    let file = format!(
        "[[port]]\nname = \"vm0\"\nhost = {{ vhost_user = \"{}\" }}\nwire = {{ switch = \"lan\" }}\n\n\
         [[port]]\nname = \"uplink\"\nhost = {{ tap = \"{TAP}\", mac = \"{TAP_MAC}\" }}\nwire = {{ switch = \"lan\" }}\n\n\
         [[switch]]\nname = \"lan\"\n",
        socket(bench)
    );
    let daemon = Daemon::start(executable, &file, &bench.scratch, ns)?;
    prepare_host(ns, options::short(&[]).mtu())?;
    Ok(daemon)
}

fn connection_through_kill(
    bench: &Bench,
    executable: &Path,
    ns: &NetNs,
    machine: &mut Machine,
    backend: &mut Option<Daemon>,
    kill: usize,
) -> Result<()> {
    let payload = bench.base.payload.clone();
    let sent = random_bytes(SENT_SEED, payload.len());
    let expected = tcp::digest(&sent);
    let (under_way, wait_under_way) = channel();
    let (restarted, wait_restarted) = channel();
    let halves = Halves { sent, received_len: payload.len(), under_way, restarted: wait_restarted };
    let (port, host) = tcp::serve(ns, HOST.into(), move |stream| halves.talk(&stream))?;
    let begun = machine.begin(&format!("nc {HOST} {port} </payload | sha256sum"))?;
    if wait_under_way.recv_timeout(START_TIMEOUT).is_err() {
        return failed(format!("connection {kill} did not start within {START_TIMEOUT:?}"));
    }
    // Dropping the daemon sends SIGKILL, so the daemon can neither return chains nor end its connection in an orderly
    // way.
    *backend = None;
    *backend = Some(start_backend(bench, executable, ns)?);
    // If the host's thread has failed, `join` returns the reason.
    let _ = restarted.send(());
    let (received, printed) = tcp::join(host, machine.finish(&begun))?;
    let found = printed.split_whitespace().next().unwrap_or_default();
    tcp::same(&tcp::digest(&received), &tcp::digest(&payload), &format!("connection {kill}, guest to host"))?;
    tcp::same(found, &expected, &format!("connection {kill}, host to guest"))
}

/// The host's end of the TCP connection. The host transfers a first part in both directions, pauses while the backend
/// is killed, and then transfers the remaining bytes.
struct Halves {
    sent: Vec<u8>,
    received_len: usize,
    under_way: Sender<()>,
    restarted: Receiver<()>,
}

impl Halves {
    fn talk(self, stream: &TcpStream) -> io::Result<Vec<u8>> {
        let mut received = vec![0; self.received_len];
        let (first_in, rest_in) = received.split_at_mut(self.received_len / FIRST_PART);
        let (first_out, rest_out) = self.sent.split_at(self.sent.len() / FIRST_PART);
        both_ways(stream, first_out, first_in)?;
        // A channel operation fails only if the case has ended, which closes both channels.
        let gone = || io::Error::other("the backend was not started again");
        self.under_way.send(()).map_err(|_| gone())?;
        self.restarted.recv().map_err(|_| gone())?;
        both_ways(stream, rest_out, rest_in)?;
        // Shut down the connection only here, because the guest closes its end after the host's shutdown.
        stream.shutdown(Shutdown::Write)?;
        Ok(received)
    }
}

/// Sends and receives at the same time, because the guest stops receiving while nobody reads the guest's bytes.
fn both_ways(stream: &TcpStream, out: &[u8], into: &mut [u8]) -> io::Result<()> {
    let (mut writer, mut reader) = (stream, stream);
    thread::scope(|scope| {
        let sending = scope.spawn(move || writer.write_all(out));
        let received = reader.read_exact(into);
        let sent = sending.join().unwrap_or_else(|_| Err(io::Error::other("the sender panicked")));
        received.and(sent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn both_parts_of_both_directions_arrive_and_the_pause_waits_for_the_restart() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (under_way, wait_under_way) = channel();
        let (restarted, wait_restarted) = channel();
        let sent = random_bytes(1, 64);
        let halves = Halves { sent: sent.clone(), received_len: 16, under_way, restarted: wait_restarted };
        let host = thread::spawn(move || halves.talk(&stream));
        other.write_all(&[7; 16]).unwrap();
        wait_under_way.recv().unwrap();
        restarted.send(()).unwrap();
        let mut got = Vec::new();
        other.read_to_end(&mut got).unwrap();
        assert_eq!(got, sent);
        assert_eq!(host.join().unwrap().unwrap(), [7; 16]);
    }
}

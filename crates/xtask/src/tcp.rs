//! Transfers over TCP between a guest and the host, checked by their SHA-256.

use offramp_ports::sys::NetNs;
use offramp_testbed::failure::{Doing, Failure, Result, failed, inside};
use offramp_testbed::guest::busybox::random_bytes;
use offramp_testbed::guest::shell::Machine;
use offramp_testbed::stop;
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limit from the start of a transfer to the guest's connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum pause during a transfer.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// Time limit of the guest's program, in seconds. The limit is shorter than the time limit of a command in the guest,
/// so the program ends first.
const GUEST_TIMEOUT_SECONDS: u32 = 85;
/// Interval between two checks for a connection.
const LOOK: Duration = Duration::from_millis(10);
/// Number of bytes sent by the host.
const SENT_LEN: usize = 8 << 20;
/// Seed of the bytes sent by the host.
const SENT_SEED: u64 = 2;

/// Sends the guest's `/payload` to an address of the host.
///
/// # Errors
/// Returns an error if bytes are wrong or missing, or if no byte arrives in time.
pub fn guest_to_host(machine: &mut Machine, ns: &NetNs, address: IpAddr, payload: &[u8]) -> Result<()> {
    let (port, host) = receive(ns, address)?;
    let ran = machine.run(&format!("timeout {GUEST_TIMEOUT_SECONDS} nc {address} {port} </payload"));
    let received = join(host, ran).map_err(|why| why.during("TCP from guest to host"))?.0;
    same(&digest(&received), &digest(payload), &format!("TCP from guest to host, {} bytes", received.len()))
}

/// Sends bytes from one of the host's addresses. The guest computes the digest.
///
/// # Errors
/// Returns an error if bytes are wrong or missing, or if no byte arrives in time.
pub fn host_to_guest(machine: &mut Machine, ns: &NetNs, address: IpAddr) -> Result<()> {
    let payload = random_bytes(SENT_SEED, SENT_LEN);
    let expected = digest(&payload);
    let (port, host) = serve(ns, address, move |mut stream| {
        stream.write_all(&payload)?;
        stream.shutdown(Shutdown::Write)?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)?;
        Ok(rest)
    })?;
    let ran = machine.run(&format!("timeout {GUEST_TIMEOUT_SECONDS} nc {address} {port} </dev/null | sha256sum"));
    let printed = join(host, ran).map_err(|why| why.during("TCP from host to guest"))?.1;
    let found = printed.split_whitespace().next().unwrap_or_default();
    same(found, &expected, "TCP from host to guest")
}

/// Returns the SHA-256 in hexadecimal digits, as `sha256sum` prints it.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// Checks a digest against the expected digest.
///
/// # Errors
/// Returns an error if the digests differ. The message contains `what`.
pub fn same(found: &str, expected: &str, what: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    failed(format!("{what}: SHA-256 is {found:?}, not {expected}"))
}

/// Receives all bytes of one connection at an address in the namespace, through [`serve`].
///
/// # Errors
/// Returns an error if the socket cannot listen.
pub fn receive(ns: &NetNs, address: IpAddr) -> Result<(u16, Served)> {
    serve(ns, address, |mut stream| {
        let mut received = Vec::new();
        stream.read_to_end(&mut received)?;
        Ok(received)
    })
}

/// The thread of the host's end of a connection, which returns the received bytes.
pub type Served = JoinHandle<std::io::Result<Vec<u8>>>;

/// Listens at an address in the namespace, and serves one connection on a new thread. Returns the port number and the
/// thread.
///
/// # Errors
/// Returns an error if the socket cannot listen.
pub fn serve(
    ns: &NetNs,
    address: IpAddr,
    talk: impl FnOnce(TcpStream) -> std::io::Result<Vec<u8>> + Send + 'static,
) -> Result<(u16, Served)> {
    let listener = inside(ns, "listening", || TcpListener::bind((address, 0)))?;
    listener.set_nonblocking(true).doing("listening")?;
    let port = listener.local_addr().as_ref().map(SocketAddr::port).doing("listening")?;
    let thread = std::thread::spawn(move || {
        let stream = accept(&listener)?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PAUSE_MAX))?;
        stream.set_write_timeout(Some(PAUSE_MAX))?;
        talk(stream)
    });
    Ok((port, thread))
}

fn accept(listener: &TcpListener) -> std::io::Result<TcpStream> {
    let accepted = stop::until(CONNECT_TIMEOUT, LOOK, || match listener.accept() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        other => Ok(Some(other)),
    });
    match accepted {
        Ok(Some(accepted)) => accepted.map(|(stream, _)| stream),
        Ok(None) => Err(ErrorKind::TimedOut.into()),
        Err(stopped) => Err(std::io::Error::other(stopped)),
    }
}

/// Returns the results of both ends: the bytes received by the host, and the text printed by the guest.
///
/// # Errors
/// Returns an error if either end failed.
pub fn join(host: Served, guest: Result<String>) -> Result<(Vec<u8>, String)> {
    let host = host.join().map_err(|_| Failure::Failed("the host's end panicked".to_owned()))?;
    // If both ends failed, the guest's error is more informative.
    let printed = guest?;
    Ok((host.doing("the host's end")?, printed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_sha_256_in_hexadecimal() {
        assert_eq!(digest(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_wrong_digest_fails_with_the_direction() {
        let error = same("a", "b", "guest to host").unwrap_err().to_string();
        assert!(error.contains("guest to host"), "{error}");
    }
}

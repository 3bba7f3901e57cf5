//! Tests of TCP with AccECN (RFC 9768) between two guests with Linux 7 on one switch. The bytes must arrive unchanged
//! with and without AccECN, and the receiving port must coalesce nearly as many frames with AccECN as without.
//!
//! Linux 7.3.4 negotiates AccECN if both ends have `net.ipv4.tcp_ecn = 3`. With AccECN, every segment carries the
//! counter of CE-marked packets in the TCP flags AE, CWR and ECE. Linux' virtio-net driver cannot segment a stream with
//! AccECN, so the guest's kernel segments the stream in software.

use super::Bench;
use super::backports::Backports;
use super::switch::{Counts, Guest, exchange, on_one_switch};
use crate::tcp;
use offramp_testbed::daemon::Daemon;
use offramp_testbed::failure::{Doing, Failure, Result, failed, not_possible};
use offramp_testbed::guest::busybox::{Base, Extras};
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stop;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::fs;
use std::time::Duration;

/// Values of `net.ipv4.tcp_ecn`: no ECN, and AccECN.
const MODES: [u8; 2] = [0, 3];
/// Minimum ratio of the share of coalesced frames with AccECN to the share without AccECN.
const COALESCED_MIN: f64 = 0.9;
/// Number of bytes captured from each packet: the Ethernet, IPv4 and TCP headers with all options.
const SNAP_LEN: usize = 14 + 60 + 60;
/// Maximum length of a packet without payload, in bytes.
const HEADERS_LEN_MAX: u32 = SNAP_LEN as u32;
/// Time limit for a capture to start, and to write its last packet.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(10);
const CAPTURE_POLL: Duration = Duration::from_millis(20);

/// Runs the case.
///
/// # Errors
/// Returns an error if Linux 7 is not available, or a process does not start. Also returns an error if wrong bytes
/// arrive, AccECN is not negotiated, or too few frames are coalesced.
pub fn run(bench: &Bench) -> Result<()> {
    let backports = match Backports::get(bench.args.guest.cache.as_deref()) {
        Err(Failure::Failed(why)) => return not_possible(format!("no Linux 7 is available: {why}")),
        other => other?,
    };
    let scratch = Scratch::new()?;
    let qemu = (backports.qemu, bench.args.guest.accel.clone());
    let base = Base::new(Some(qemu), backports.kernel, Extras::default(), &scratch)?;
    on_one_switch(&Bench { args: bench.args, base, scratch }, judge)
}

fn judge(bench: &Bench, guests: &mut [Guest; 2], daemon: &Daemon) -> Result<()> {
    let expected = tcp::digest(&bench.base.payload);
    let mut shares = Vec::new();
    for mode in MODES {
        for guest in &mut *guests {
            guest.machine()?.run(&format!("echo {mode} >/proc/sys/net/ipv4/tcp_ecn"))?;
        }
        let during = format!("with tcp_ecn = {mode}");
        let file = bench.scratch.file(&format!("{mode}.pcapng"));
        let capture = daemon.capture(guests[1].port, &file, SNAP_LEN)?;
        let has_bytes = || Ok(fs::metadata(&file).is_ok_and(|file| file.len() > 0).then_some(()));
        stop::until(CAPTURE_TIMEOUT, CAPTURE_POLL, has_bytes).map_err(|why| why.during("while a capture begins"))?;
        let counts = exchange(guests, daemon, &expected).map_err(|why| why.during(&during))?;
        capture.terminate(CAPTURE_TIMEOUT);
        let seen = Seen::read(&file)?;
        if seen.data == 0 || seen.with_counter != if mode == 0 { 0 } else { seen.data } {
            let Seen { data, with_counter } = seen;
            return failed(format!("{during}: {with_counter} of {data} packets with data have AccECN's counter"));
        }
        let share = counts.each_ref().map(coalesced);
        let [first, second] = share.map(|share| 100.0 * share);
        println!("{during}: {} packets with data, {first:.0} % and {second:.0} % of the frames coalesced", seen.data);
        shares.push(share);
    }
    for ((without, with), guest) in shares[0].iter().zip(shares[1]).zip(guests) {
        if with < COALESCED_MIN * without {
            return failed(format!(
                "{}: {with:.3} of the frames are coalesced, {without:.3} without AccECN",
                guest.port
            ));
        }
    }
    Ok(())
}

/// Returns the share of frames that coalescing saved the guest: 1 minus the delivered frames per wire frame.
fn coalesced(counts: &Counts) -> f64 {
    1.0 - counts.host_frames as f64 / counts.frames as f64
}

/// The packets with TCP payload in a capture.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    data: u64,
    /// Number of packets in which the TCP flag AE, CWR or ECE is set.
    with_counter: u64,
}

impl Seen {
    fn read(path: &str) -> Result<Self> {
        let bytes = fs::read(path).doing(path)?;
        let mut reader = PcapNgReader::new(&bytes[..]).doing(path)?;
        let mut seen = Self::default();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.doing(path)? {
                seen.count(&packet.data, packet.original_len);
            }
        }
        Ok(seen)
    }

    /// Counts a packet if the packet is TCP over IPv4 and has payload.
    fn count(&mut self, packet: &[u8], len: u32) {
        let has_tcp = packet.get(12..14) == Some(&[8, 0]) && packet.get(23) == Some(&6);
        let ip_len = packet.get(14).map_or(0, |byte| usize::from(byte & 15) * 4);
        let (true, Some(&[offset, flags])) =
            (has_tcp && len > HEADERS_LEN_MAX, packet.get(14 + ip_len + 12..14 + ip_len + 14))
        else {
            return;
        };
        self.data += 1;
        self.with_counter += u64::from(offset & 1 != 0 || flags & 0xc0 != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_with_data_and_any_of_the_three_flags_has_the_counter() {
        let packet = |offset: u8, flags: u8| {
            let mut packet = [0; SNAP_LEN];
            packet[12] = 8;
            packet[14] = 0x45;
            packet[23] = 6;
            packet[46] = 0x80 | offset;
            packet[47] = 0x10 | flags;
            packet
        };
        let mut seen = Seen::default();
        for (offset, flags) in [(0, 0), (1, 0), (0, 0x40), (0, 0x80)] {
            seen.count(&packet(offset, flags), 1514);
        }
        seen.count(&packet(1, 0), 66);
        seen.count(&[0; 20], 1514);
        assert_eq!(seen, Seen { data: 4, with_counter: 3 });
    }
}

//! Packet captures in the classic format (libpcap, `pcap-savefile(5)`), and comparison of two captures.

use offramp_testbed::failure::{Doing, Result, failed};
use pcap_file::Endianness;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Maximum length of a packet in a capture, in bytes.
const SNAP_LEN: u32 = 262_144;

/// Writes frames as a little-endian capture, with a time stamp of 0 for each frame.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn write(path: &str, frames: &[Vec<u8>]) -> Result<()> {
    let header = PcapHeader { endianness: Endianness::Little, snaplen: SNAP_LEN, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).doing(path)?;
    for frame in frames {
        writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, frame)).doing(path)?;
    }
    fs::write(path, writer.into_writer()).doing(path)
}

/// Reads the frames of a capture in either byte order.
///
/// # Errors
/// Returns an error if the file cannot be read or is not a capture of whole frames.
pub fn read(path: &str) -> Result<Vec<Vec<u8>>> {
    parse(&fs::read(path).doing(path)?).doing(path)
}

fn parse(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut reader = PcapReader::new(bytes).doing("reading its header")?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.doing(format!("reading packet {}", frames.len()))?;
        if packet.data.len() != packet.orig_len as usize {
            return failed(format!("packet {} has {} of {} bytes", frames.len(), packet.data.len(), packet.orig_len));
        }
        frames.push(packet.data.into_owned());
    }
    Ok(frames)
}

/// The required order of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Frames must arrive in the order of sending.
    Kept,
    /// Frames may arrive in any order, because several queues do not preserve the order.
    Any,
}

/// Compares the received frames with the sent frames.
///
/// # Errors
/// Returns an error that describes the first difference.
pub fn compare(sent: &[Vec<u8>], received: &[Vec<u8>], order: Order) -> Result<()> {
    match order {
        Order::Kept => compare_in_order(sent, received),
        Order::Any => compare_in_any_order(sent, received),
    }
}

fn compare_in_order(sent: &[Vec<u8>], received: &[Vec<u8>]) -> Result<()> {
    for (index, (expected, found)) in sent.iter().zip(received).enumerate() {
        if expected.len() != found.len() {
            return failed(format!("frame {index} has {} bytes, {} were sent", found.len(), expected.len()));
        }
        if let Some(at) = expected.iter().zip(found).position(|(a, b)| a != b) {
            return failed(format!("frame {index} of {} bytes differs from byte {at} on", found.len()));
        }
    }
    same_count(sent, received)
}

fn compare_in_any_order(sent: &[Vec<u8>], received: &[Vec<u8>]) -> Result<()> {
    let mut missing: BTreeMap<&[u8], usize> = BTreeMap::new();
    for frame in sent {
        *missing.entry(frame).or_default() += 1;
    }
    for (index, frame) in received.iter().enumerate() {
        match missing.get_mut(frame.as_slice()) {
            Some(count @ 1..) => *count -= 1,
            _ => return failed(format!("frame {index} of {} bytes was not sent, or fewer times", frame.len())),
        }
    }
    same_count(sent, received)
}

fn same_count(sent: &[Vec<u8>], received: &[Vec<u8>]) -> Result<()> {
    if sent.len() == received.len() {
        return Ok(());
    }
    failed(format!("{} frames were sent, {} received", sent.len(), received.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_testbed::scratch::Scratch;

    /// First word of a capture with nanosecond time stamps, as written by DPDK.
    const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;

    fn frames() -> Vec<Vec<u8>> {
        vec![vec![1; 60], vec![2; 1514], vec![3; 61], vec![1; 60]]
    }

    #[test]
    fn what_is_written_is_read_again() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.file("a.pcap");
        write(&path, &frames()).unwrap();
        assert_eq!(read(&path).unwrap(), frames());
    }

    #[test]
    fn a_capture_of_the_other_byte_order_and_of_nanoseconds_is_read() {
        let mut bytes = Vec::new();
        for word in [MAGIC_NANOSECONDS, 0x0002_0004, 0, 0, SNAP_LEN, 1, 5, 6, 2, 2] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend([7, 8]);
        assert_eq!(parse(&bytes).unwrap(), vec![vec![7, 8]]);
    }

    #[test]
    fn a_capture_that_is_cut_off_anywhere_else_than_between_packets_is_refused() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.file("a.pcap");
        write(&path, &frames()).unwrap();
        let whole = fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..whole.len()).filter(|&end| parse(&whole[..end]).is_ok()).collect();
        assert_eq!(ends, [24, 24 + 76, 24 + 76 + 1530, 24 + 76 + 1530 + 77]);
    }

    #[test]
    fn a_changed_byte_a_lost_a_doubled_and_a_swapped_frame_are_found() {
        let sent = frames();
        assert!(compare(&sent, &sent, Order::Kept).is_ok());
        assert!(compare(&sent, &sent, Order::Any).is_ok());
        let mut changed = sent.clone();
        changed[1][1000] ^= 1;
        let lost = &sent[..3];
        let doubled = [sent.clone(), vec![sent[3].clone()]].concat();
        for wrong in [&changed[..], lost, &doubled] {
            assert!(compare(&sent, wrong, Order::Kept).is_err());
            assert!(compare(&sent, wrong, Order::Any).is_err());
        }
        let mut swapped = sent.clone();
        swapped.swap(1, 2);
        assert!(compare(&sent, &swapped, Order::Kept).is_err());
        assert!(compare(&sent, &swapped, Order::Any).is_ok());
    }
}

//! A capture of the faulty cases' frames in pcapng format.

use std::borrow::Cow;
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};

use crate::verdict::{Report, Verdict};

/// Kinds of frames, each with a separate interface in the capture.
const KINDS: [&str; 3] = ["sent", "expected", "captured"];

/// Returns a capture with the sent, expected and captured frames of each faulty offload. A comment on each frame names
/// the offload, the direction and the kind of frame.
///
/// # Errors
/// Never returns an error, because the writer writes to memory.
pub fn pcapng(report: &Report) -> Result<Vec<u8>, PcapError> {
    let mut writer = PcapNgWriter::new(Vec::new())?;
    for kind in KINDS {
        writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![InterfaceDescriptionOption::IfName(Cow::Borrowed(kind))],
        })?;
    }
    for row in &report.rows {
        let Verdict::Wrong(finding) = &row.verdict else { continue };
        let evidence = [&finding.evidence.sent, &finding.evidence.expected, &finding.evidence.captured];
        for (interface, frames) in evidence.iter().enumerate() {
            let comment = format!("{}, {} to {}: {}", row.offload, row.from, row.to, KINDS[interface]);
            for frame in *frames {
                writer.write_pcapng_block(EnhancedPacketBlock {
                    interface_id: interface as u32,
                    timestamp: Duration::ZERO,
                    original_len: frame.len() as u32,
                    data: Cow::Borrowed(frame),
                    options: vec![EnhancedPacketOption::Comment(Cow::Borrowed(&comment))],
                })?;
            }
        }
    }
    Ok(writer.into_inner())
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn the_capture_has_all_frames_of_what_is_wrong_by_kind() {
        let bytes = pcapng(&report()).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                packets.push((packet.interface_id, packet.data.len()));
            }
        }
        assert_eq!(packets, [(0, 60), (1, 61), (2, 62), (2, 62)]);
    }
}

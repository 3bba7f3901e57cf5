//! Writes the packets of a capture to a client in the pcapng format, one block per packet.

use offramp_offload::meta::{Cwr, SegmentationKind};
use offramp_ports::capture::{Capture, Packet, Way};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Time between two checks whether the reader still wants packets.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum wait until all threads of the port have left an ended capture. A sleeping thread wakes ten times per second.
const END_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause after the last queued packet was sent. Packets captured during the pause are sent together, and the port's
/// thread does not wake this thread for each packet.
const PAUSE: Duration = Duration::from_millis(2);
/// Size of the buffer for blocks that are not yet sent, in bytes.
const BUFFER_LEN: usize = 256 << 10;
/// Resolution of timestamps: nanoseconds (`if_tsresol`).
const NANOSECONDS: u8 = 9;
/// Directions in `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writes the packets of `port` until the port or the capture ends. `is_over` returns whether the reader wants no more
/// packets; if so, the capture is stopped. At the end, the statistics are written.
///
/// # Errors
/// Fails if the reader has disconnected.
pub fn write(
    port: &str,
    snaplen: u32,
    capture: &Capture,
    out: impl Write,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let mut writer = PcapNgWriter::new(BufWriter::with_capacity(BUFFER_LEN, out)).map_err(io_error)?;
    let options = vec![
        InterfaceDescriptionOption::IfName(Cow::Borrowed(port)),
        InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
    ];
    let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen, options };
    writer.write_pcapng_block(interface).map_err(io_error)?;
    writer.get_mut().flush()?;
    let (mut checked, mut is_stopped, mut delivered, mut missed) = (Instant::now(), false, 0, 0);
    let mut unsent = 0;
    loop {
        let wait = match (unsent, is_stopped) {
            (0, true) => END_TIME_MAX,
            (0, false) => CHECK_INTERVAL,
            _ => Duration::ZERO,
        };
        match capture.next(wait) {
            Ok(packet) => {
                unsent += 1;
                delivered += 1;
                missed += packet.missed;
                writer.write_pcapng_block(block(&packet)).map_err(io_error)?;
            }
            Err(RecvTimeoutError::Timeout) if unsent > 0 => {
                writer.get_mut().flush()?;
                unsent = 0;
                thread::sleep(PAUSE);
            }
            // A thread of the port has stalled and has not left the capture in time.
            Err(RecvTimeoutError::Timeout) if is_stopped => break,
            Err(RecvTimeoutError::Timeout) => {}
            // All threads of the port have left the capture, and all packets are written.
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !is_stopped && checked.elapsed() >= CHECK_INTERVAL {
            checked = Instant::now();
            if is_over() {
                is_stopped = true;
                capture.stop();
            }
        }
    }
    let options = vec![
        InterfaceStatisticsOption::IsbOsDrop(missed + capture.missed()),
        InterfaceStatisticsOption::IsbUsrDeliv(delivered),
    ];
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    // The upper half of the timestamp must come first. On a little-endian machine, the library writes the lower half
    // first, so the halves are swapped here.
    let timestamp = if cfg!(target_endian = "little") { now.rotate_left(32) } else { now };
    let statistics = InterfaceStatisticsBlock { interface_id: 0, timestamp, options };
    writer.write_pcapng_block(statistics).map_err(io_error)?;
    writer.get_mut().flush()
}

/// Returns the system's error, or an error that describes the violation of the pcapng format.
fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        error => io::Error::other(error),
    }
}

fn block(packet: &Packet) -> EnhancedPacketBlock<'_> {
    let direction = if packet.way == Way::Receive { INBOUND } else { OUTBOUND };
    let mut options = vec![EnhancedPacketOption::Flags(direction)];
    if packet.missed > 0 {
        options.push(EnhancedPacketOption::DropCount(packet.missed));
    }
    let comment = comment(packet);
    if !comment.is_empty() {
        options.push(EnhancedPacketOption::Comment(Cow::Owned(comment)));
    }
    EnhancedPacketBlock {
        interface_id: 0,
        timestamp: packet.at,
        original_len: packet.len as u32,
        data: Cow::Borrowed(&packet.data),
        options,
    }
}

/// Formats the reason of a loss and the metadata of a frame as a comment. The metadata have the names of the vnet
/// header (virtio 1.3, 5.1.6).
fn comment(packet: &Packet) -> String {
    let mut parts = Vec::new();
    if let Some((reason, frames)) = packet.lost {
        parts.push(format!("lost={} frames={frames}", reason.name()));
    }
    if let Some(segmentation) = packet.vnet.segmentation {
        let kind = match segmentation.kind {
            SegmentationKind::Tcp4 => "tcpv4",
            SegmentationKind::Tcp6 => "tcpv6",
            SegmentationKind::Udp => "udp_l4",
            SegmentationKind::UdpFragments => "udp",
        };
        let ecn = match segmentation.cwr {
            Cwr::Unmarked => "",
            Cwr::First => " ecn",
            Cwr::All => " accecn",
        };
        parts.push(format!("gso_type={kind}{ecn} gso_size={}", segmentation.size));
    }
    if let Some(partial) = packet.vnet.partial {
        parts.push(format!("needs_csum csum_start={} csum_offset={}", partial.start, partial.offset));
    }
    parts.extend(packet.vnet.verdict.map(|is_good| if is_good { "data_valid" } else { "bad_csum" }.to_owned()));
    if packet.queue > 0 {
        parts.push(format!("queue={}", packet.queue));
    }
    parts.join(" ")
}

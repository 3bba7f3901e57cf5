//! Shared parts of the integration tests: a frame builder independent of the code under test, and the frames that a
//! host receives, single or coalesced.
#![allow(dead_code)]

use offramp_offload::frame::Frame;
use offramp_offload::layout::{FrameLayout, Malformed};

pub mod packet;
pub mod pieces;

/// Returns the layout of a frame from the wire.
pub fn layout(frame: &[u8]) -> Result<FrameLayout, Malformed> {
    Frame::received(&mut frame.to_vec()).layout().copied()
}

/// Returns the source address followed by the destination address of a frame from the wire. Returns no bytes if the
/// frame carries no IP.
pub fn addresses(frame: &[u8]) -> Vec<u8> {
    Frame::received(&mut frame.to_vec()).addresses().to_vec()
}

/// Returns the first difference of two frames, with the bytes around it.
pub fn difference(kernel: &[u8], ours: &[u8]) -> Option<String> {
    const AROUND: usize = 8;
    let at = match kernel.iter().zip(ours).position(|(a, b)| a != b) {
        None if kernel.len() == ours.len() => return None,
        None => kernel.len().min(ours.len()),
        Some(at) => at,
    };
    let around = |bytes: &[u8]| hex(&bytes[at.saturating_sub(AROUND).min(bytes.len())..(at + AROUND).min(bytes.len())]);
    Some(format!(
        "at byte {at} ({} and {} bytes long)\n      kernel …{}…\n      ours   …{}…",
        kernel.len(),
        ours.len(),
        around(kernel),
        around(ours)
    ))
}

/// Formats bytes as hexadecimal numbers, separated by spaces.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

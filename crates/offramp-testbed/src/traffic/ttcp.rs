//! Bulk data over TCP: sender and sink, with one thread each.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use offramp_ports::socket::set_tcp_window_clamp;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::error::reason;
use super::pace::Pace;
use super::side::{Context, Phase, WorkerEnd};

/// Maximum number of bytes per read of a sink.
const READ_LEN: usize = 256 * 1024;
/// Period of patterned data in bytes, a prime that matches no segment, write or buffer size.
const PATTERN_PERIOD_LEN: usize = 262_139;
/// Byte value of constant data.
const FILL: u8 = 0x55;

/// Endless periodic data, stored in one buffer. Any range of the data, up to a maximum length, is one slice of the
/// buffer.
pub(super) struct Source {
    bytes: Vec<u8>,
    period: usize,
    slice_len_max: usize,
}

impl Source {
    /// Returns constant data in slices of at most `slice_len_max` bytes.
    pub(super) fn constant(slice_len_max: usize) -> Self {
        Self { bytes: vec![FILL; slice_len_max], period: 1, slice_len_max }
    }

    /// Returns pseudo-random data in slices of at most `slice_len_max` bytes. Both ends create equal data from equal
    /// seeds.
    pub(super) fn pattern(seed: u64, slice_len_max: usize) -> Self {
        let mut period = vec![0; PATTERN_PERIOD_LEN];
        ChaCha8Rng::seed_from_u64(seed).fill(period.as_mut_slice());
        let bytes = period.iter().copied().cycle().take(PATTERN_PERIOD_LEN + slice_len_max).collect();
        Self { bytes, period: PATTERN_PERIOD_LEN, slice_len_max }
    }

    /// Returns the pattern for comparison at the sink, in slices as long as the sink's longest read.
    pub(super) fn pattern_for_sink(seed: u64) -> Self {
        Self::pattern(seed, READ_LEN)
    }

    /// Returns the data from `offset` on, at most `len` bytes.
    pub(super) fn slice(&self, offset: u64, len: u64) -> &[u8] {
        let start = (offset % self.period as u64) as usize;
        // For constant data, the buffer is one slice long, and `start` is always 0.
        let len = len.min(self.slice_len_max as u64) as usize;
        &self.bytes[start..start + len]
    }
}

/// Sends until the phase reaches [`Phase::Stop`], or until `limit` bytes are sent. After the last byte, closes the
/// sending direction of the stream. `rate_bps` is this stream's share of the rate; 0 means no limit.
pub(super) fn send(
    stream: &TcpStream,
    source: &Source,
    limit: Option<u64>,
    rate_bps: u64,
    context: &mut Context,
) -> WorkerEnd {
    let limit = limit.unwrap_or(u64::MAX);
    let mut end = WorkerEnd::default();
    context.wait_begin();
    let mut pace = Pace::new(rate_bps);
    end.first = Some(Instant::now());
    let outcome = loop {
        if context.phase() >= Phase::Stop || end.bytes == limit || !pace.wait(context) {
            break Ok(());
        }
        match (&*stream).write(source.slice(end.bytes, limit - end.bytes)) {
            Ok(0) => break Err(ErrorKind::WriteZero.into()),
            Ok(len) => {
                end.bytes += len as u64;
                pace.sent(len);
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => break Err(error),
        }
        context.count(end.bytes, 0);
    };
    end.last = Some(Instant::now());
    finish(end, outcome.and_then(|()| stream.shutdown(Shutdown::Write)), context)
}

/// Receives to the end of the stream, and compares the data with `expected` if given. `window_bytes` is the maximum
/// offered window; 0 lets the kernel choose.
pub(super) fn receive(
    stream: &TcpStream,
    expected: Option<&Source>,
    window_bytes: u32,
    context: &mut Context,
) -> WorkerEnd {
    let mut buffer = vec![0; READ_LEN];
    let mut end = WorkerEnd::default();
    let outcome = loop {
        if context.phase() == Phase::Abort {
            break Err(io::Error::other("aborted before the end of the stream"));
        }
        match (&*stream).read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(len) => {
                end.first.get_or_insert_with(Instant::now);
                if let Some(expected) = expected {
                    end.corrupt_bytes += differing(&buffer[..len], expected.slice(end.bytes, len as u64));
                }
                end.bytes += len as u64;
                if window_bytes > 0 {
                    // The kernel resets the window clamp when it learns the segment size. The limit is therefore set
                    // again after each read.
                    set_tcp_window_clamp(stream, window_bytes).unwrap_or_default();
                }
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => break Err(error),
        }
        context.count(end.bytes, 0);
    };
    // The end of the stream arrives with the last byte or directly after it, so this time is recorded as the time of
    // the last byte.
    end.last = Some(Instant::now());
    finish(end, outcome, context)
}

/// Returns whether a call ended without data because of its timeout or a signal. After a timeout or a signal, the
/// caller can read the phase and retry.
pub(super) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Records in a thread's results whether the thread succeeded, and the thread's error if not.
pub(super) fn finish(mut end: WorkerEnd, outcome: io::Result<()>, context: &mut Context) -> WorkerEnd {
    end.complete = outcome.is_ok();
    if let Err(error) = outcome {
        let after = end.bytes;
        end.error = Some(format!("{} after {after} bytes", reason(&error)));
    }
    context.phase();
    end
}

fn differing(found: &[u8], expected: &[u8]) -> u64 {
    if found == expected {
        0
    } else {
        found.iter().zip(expected).filter(|(found, expected)| found != expected).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterned_data_is_the_same_however_it_is_sliced() {
        let (sender, sink) = (Source::pattern(7, 1000), Source::pattern_for_sink(7));
        let mut sent = Vec::new();
        while sent.len() < 3 * PATTERN_PERIOD_LEN {
            sent.extend_from_slice(sender.slice(sent.len() as u64, u64::MAX));
        }
        let mut offset = 0;
        for len in [1, 1448, 65_160, 255_000, READ_LEN, 100_000] {
            let expected = sink.slice(offset as u64, len as u64);
            assert_eq!(&sent[offset..offset + len], expected);
            offset += len;
        }
        assert_ne!(Source::pattern(8, 1000).slice(0, 100), sender.slice(0, 100));
    }

    #[test]
    fn a_byte_changed_or_moved_is_found() {
        let source = Source::pattern(1, 4096);
        let mut data = source.slice(5, 100).to_vec();
        assert_eq!(differing(&data, source.slice(5, 100)), 0);
        data[50] ^= 1;
        assert_eq!(differing(&data, source.slice(5, 100)), 1);
        assert!(differing(source.slice(6, 100), source.slice(5, 100)) > 50);
    }
}

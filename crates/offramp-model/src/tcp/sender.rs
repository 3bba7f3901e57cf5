//! The sending side of TCP: window, congestion control, retransmission.

use crate::time::{Span, Time};
use serde::Deserialize;

/// Number of duplicate acknowledgements that indicate a loss (RFC 5681 3.2).
const DUPLICATE_ACKS: u32 = 3;
/// Divisor of the window: a super-frame waits until its length is the window divided by this number (Linux'
/// `tcp_tso_win_divisor`).
const TSO_WINDOW_PARTS: u64 = 3;
/// Maximum number of doublings of the timeout (RFC 6298 5.5). BSD's limit `TCP_MAXRXTSHIFT` is higher.
const BACKOFF_DOUBLINGS_MAX: u32 = 6;
/// The weights of a new measurement in the smoothed round-trip time (1/8) and in its variation (1/4), as right shifts
/// (RFC 6298 2.3).
const SRTT_SHIFT: u32 = 3;
const RTTVAR_SHIFT: u32 = 2;
/// Factor of the round-trip time variation in the timeout (RFC 6298 2.3).
const RTTVAR_TIMES: u64 = 4;

/// The congestion control variant: the sender's reaction to loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// TCP before 1988. The sender fills the window, ignores duplicate acknowledgements, and after a timeout resends
    /// from the first unacknowledged byte.
    #[default]
    GoBackN,
    /// BSD 4.3-Tahoe: slow start, congestion avoidance, fast retransmit.
    Tahoe,
    /// BSD 4.3-Reno: Tahoe with fast recovery (RFC 5681 3.2).
    Reno,
    /// Reno that stays in recovery until all bytes in flight are acknowledged (RFC 6582).
    NewReno,
    /// `NewReno` with a window that grows as a cubic function of time (RFC 9438).
    Cubic,
}

/// CUBIC's window after a loss, relative to the window before the loss, parts per thousand (RFC 9438 4.6).
const CUBIC_BETA_PERMILLE: u64 = 700;
/// CUBIC's α: growth of the window relative to Reno's growth, parts per thousand (RFC 9438 4.3: 3 (1 - beta) / (1 +
/// beta)).
const CUBIC_ALPHA_PERMILLE: u64 = 529;
/// The constant C of RFC 9438 5.1, in tenths of a segment per second cubed.
const CUBIC_C_TENTHS: i128 = 4;

/// The state of CUBIC.
#[derive(Clone, Copy, Debug, Default)]
struct Cubic {
    /// Congestion window at the last loss, at most the receiver's window, in bytes.
    window_max: u64,
    /// Start of the window's growth after the last loss.
    epoch: Option<Time>,
    /// Time from `epoch` until the window is back at `window_max`, in milliseconds.
    k_ms: i128,
    /// Congestion window that Reno would have reached since `epoch`, in bytes.
    reno: u64,
}

/// Returns the cube root, rounded down.
fn cube_root(value: u128) -> u128 {
    const BITS_MAX: u32 = 42;
    (0..BITS_MAX).rev().fold(0, |root, bit| {
        let next = root | 1 << bit;
        if next * next * next <= value { next } else { root }
    })
}

/// The settings of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SenderConfig {
    /// Payload of a full segment, in bytes.
    #[serde(skip)]
    pub mss: u64,
    /// Congestion control variant.
    #[serde(rename = "tcp")]
    pub variant: Variant,
    /// Minimum retransmission timeout.
    pub rto_min: Span,
    /// Initial congestion window, segments.
    #[serde(rename = "initial_window")]
    pub initial_window_segments: u64,
    /// Window that the receiver offers at the start, in bytes.
    #[serde(skip)]
    pub window: u64,
}

/// A range of the stream to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte of the range.
    pub start: u64,
    /// Length of the range, in bytes.
    pub len: u64,
    /// `true` if the range was sent before.
    pub is_retransmission: bool,
}

/// The sending side of a stream.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    config: SenderConfig,
    /// First unacknowledged byte.
    una: u64,
    /// Next byte to send.
    nxt: u64,
    /// First byte never sent.
    sent_max: u64,
    /// Total number of bytes written by the application.
    available: u64,
    cwnd: u64,
    ssthresh: u64,
    duplicates: u32,
    /// Byte whose acknowledgement ends fast recovery; `None` outside fast recovery.
    recover: Option<u64>,
    /// `true` if the first unacknowledged segment must be retransmitted at once.
    resend: bool,
    window: u64,
    srtt: Option<Span>,
    rttvar: Span,
    /// End and send time of the segment used for the round-trip measurement; `None` if no measurement is in progress.
    /// Retransmitted segments are never measured (Karn).
    timed: Option<(u64, Time)>,
    doublings: u32,
    cubic: Cubic,
    /// Number of timeouts since the last acknowledgement.
    pub timeouts_in_row: u32,
    /// Time of the next timeout; [`Time::NEVER`] while no bytes are in flight.
    pub deadline: Time,
    /// Number of retransmitted segments.
    pub retransmissions: u64,
    /// Number of timeouts.
    pub timeouts: u64,
    /// Number of duplicate acknowledgements received while bytes were in flight.
    pub duplicate_acks: u64,
}

impl Sender {
    /// Creates a sender of an unlimited stream.
    pub fn new(config: SenderConfig) -> Self {
        Self {
            available: u64::MAX,
            cwnd: config.mss * config.initial_window_segments,
            ssthresh: u64::MAX,
            window: config.window,
            deadline: Time::NEVER,
            config,
            ..Self::default()
        }
    }

    /// Sets the total number of bytes written by the application.
    pub fn write_until(&mut self, available: u64) {
        self.available = available;
    }

    /// Returns the first unacknowledged byte.
    pub fn unacknowledged(&self) -> u64 {
        self.una
    }

    /// Returns the number of bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.nxt - self.una
    }

    /// Returns the congestion window, in bytes. [`Variant::GoBackN`] has no congestion window, and uses the receiver's
    /// window.
    pub fn cwnd(&self) -> u64 {
        if self.config.variant == Variant::GoBackN { self.window } else { self.cwnd }
    }

    /// Returns the next range to send, at most `len_max` bytes. `None` if the windows allow no segment.
    pub fn next(&mut self, now: Time, len_max: u64) -> Option<Segment> {
        if std::mem::take(&mut self.resend) {
            let len = self.config.mss.min(self.sent_max - self.una);
            return (len > 0).then(|| self.emit(now, self.una, len));
        }
        let usable = self.window.min(self.cwnd()).saturating_sub(self.in_flight());
        let written = self.available - self.nxt;
        let len = usable.min(written).min(len_max);
        let len = self.whole_segments(len, written);
        if !self.is_worth_sending(len, written) || self.waits_for_more(len, len_max) {
            return None;
        }
        let segment = self.emit(now, self.nxt, len);
        self.nxt += len;
        self.sent_max = self.sent_max.max(self.nxt);
        Some(segment)
    }

    /// Shortens a super-frame to whole segments. A super-frame at the end of the written data keeps its length if no
    /// bytes are in flight.
    fn whole_segments(&self, len: u64, written: u64) -> u64 {
        let is_end = len == written && self.in_flight() == 0;
        if len > self.config.mss && !is_end { len - len % self.config.mss } else { len }
    }

    /// Avoids the silly window syndrome (RFC 1122 4.2.3.4). A send must have the length of at least a full segment, or
    /// of half of the receiver's initial window. A shorter send is permitted at the end of the written data, if no
    /// bytes are in flight (Nagle). [`Variant::GoBackN`] sends any length.
    fn is_worth_sending(&self, len: u64, written: u64) -> bool {
        let is_end = len == written && self.in_flight() == 0;
        let is_enough = len >= self.config.mss || is_end || len * 2 >= self.config.window;
        len > 0 && (is_enough || self.config.variant == Variant::GoBackN)
    }

    /// Defers a super-frame while bytes are in flight, until the super-frame fills a third of the window or has its
    /// maximum length (as in Linux).
    fn waits_for_more(&self, len: u64, len_max: u64) -> bool {
        let wanted = len_max.min(self.window.min(self.cwnd()) / TSO_WINDOW_PARTS);
        len_max > self.config.mss && self.in_flight() > 0 && len + self.config.mss <= wanted
    }

    fn emit(&mut self, now: Time, start: u64, len: u64) -> Segment {
        let is_retransmission = start < self.sent_max;
        if is_retransmission {
            self.retransmissions += 1;
            self.timed = None;
        } else if self.timed.is_none() {
            self.timed = Some((start + len, now));
        }
        if self.deadline == Time::NEVER {
            self.deadline = now + self.rto();
        }
        Segment { start, len, is_retransmission }
    }

    /// Processes an acknowledgement of all bytes before `ack`, with the receiver's window.
    pub fn acknowledge(&mut self, now: Time, ack: u64, window: u64) {
        let is_update = window != self.window;
        self.window = window;
        if ack > self.una {
            self.acknowledge_new(now, ack);
        } else if ack == self.una && self.in_flight() > 0 && !is_update {
            self.duplicate_acks += 1;
            self.acknowledge_again();
        }
    }

    fn acknowledge_new(&mut self, now: Time, ack: u64) {
        let acked = ack - self.una;
        self.measure(now, ack);
        self.una = ack;
        self.nxt = self.nxt.max(ack);
        self.doublings = 0;
        self.timeouts_in_row = 0;
        self.duplicates = 0;
        self.deadline = if self.nxt > self.una { now + self.rto() } else { Time::NEVER };
        match self.recover.take() {
            // A partial acknowledgement: retransmit the next missing segment at once (RFC 6582 3.2).
            Some(recover) if matches!(self.config.variant, Variant::NewReno | Variant::Cubic) && ack < recover => {
                self.recover = Some(recover);
                self.resend = true;
                self.cwnd = (self.cwnd.saturating_sub(acked) + self.config.mss).max(self.config.mss);
            }
            // Reno leaves recovery with the first new acknowledgement.
            Some(_) => self.cwnd = self.ssthresh,
            None => self.grow(now, acked),
        }
    }

    /// Grows the congestion window. Slow start adds the acknowledged bytes, at most two segments (RFC 3465). Congestion
    /// avoidance adds a segment per window (RFC 5681 3.1), or CUBIC's growth.
    fn grow(&mut self, now: Time, acked: u64) {
        let mss = self.config.mss;
        let by = if self.cwnd < self.ssthresh {
            acked.min(2 * mss)
        } else if self.config.variant == Variant::Cubic {
            self.grow_cubic(now, acked)
        } else {
            (mss * mss / self.cwnd).max(1)
        };
        self.cwnd = (self.cwnd + by).min(self.config.window.max(mss) * 2);
    }

    /// Returns the growth of CUBIC's window, in bytes (RFC 9438 4.2 to 4.5).
    fn grow_cubic(&mut self, now: Time, acked: u64) -> u64 {
        const MS: u64 = 1_000_000_000;
        const MS3_PER_S3: i128 = 1_000_000_000;
        let (mss, cwnd) = (self.config.mss, self.cwnd);
        if self.cubic.epoch.is_none() {
            let missing = self.cubic.window_max.saturating_sub(cwnd);
            let k3 = u128::from(missing) * 10 * MS3_PER_S3 as u128 / (CUBIC_C_TENTHS as u128 * u128::from(mss));
            (self.cubic.epoch, self.cubic.k_ms, self.cubic.reno) = (Some(now), cube_root(k3) as i128, cwnd);
        }
        self.cubic.reno += CUBIC_ALPHA_PERMILLE * mss * acked / cwnd / 1000;
        let since = now.since(self.cubic.epoch.unwrap_or(now)) + self.srtt.unwrap_or(Span::ZERO);
        let from_k = i128::from(since.0 / MS) - self.cubic.k_ms;
        let above = CUBIC_C_TENTHS * i128::from(mss) * from_k.pow(3) / (10 * MS3_PER_S3);
        let target = u64::try_from(i128::from(self.cubic.window_max.max(cwnd.min(self.ssthresh))) + above).unwrap_or(0);
        if target < self.cubic.reno {
            return self.cubic.reno.saturating_sub(cwnd);
        }
        let target = target.min(cwnd + cwnd / 2);
        (u128::from(target.saturating_sub(cwnd)) * u128::from(acked) / u128::from(cwnd)) as u64
    }

    fn acknowledge_again(&mut self) {
        self.duplicates += 1;
        match self.config.variant {
            Variant::Tahoe if self.duplicates == DUPLICATE_ACKS => {
                self.halve();
                self.cwnd = self.config.mss;
                self.resend = true;
            }
            Variant::NewReno | Variant::Cubic if self.recover.is_some() => self.cwnd += self.config.mss,
            Variant::Reno | Variant::NewReno | Variant::Cubic if self.duplicates == DUPLICATE_ACKS => {
                self.halve();
                self.cwnd = self.ssthresh + u64::from(DUPLICATE_ACKS) * self.config.mss;
                self.recover = Some(self.nxt);
                self.resend = true;
            }
            Variant::Reno if self.recover.is_some() => self.cwnd += self.config.mss,
            Variant::GoBackN | Variant::Tahoe | Variant::Reno | Variant::NewReno | Variant::Cubic => {}
        }
    }

    fn halve(&mut self) {
        let under_way = self.in_flight().min(self.window);
        let kept = if self.config.variant == Variant::Cubic {
            self.cubic = Cubic { window_max: self.cwnd.min(self.window), ..Cubic::default() };
            under_way * CUBIC_BETA_PERMILLE / 1000
        } else {
            under_way / 2
        };
        self.ssthresh = kept.max(2 * self.config.mss);
    }

    /// Handles a retransmission timeout: resends all unacknowledged bytes.
    pub fn time_out(&mut self, now: Time) {
        self.timeouts += 1;
        self.timeouts_in_row += 1;
        self.halve();
        self.cwnd = self.config.mss;
        self.nxt = self.una;
        (self.recover, self.resend, self.timed, self.duplicates) = (None, false, None, 0);
        self.doublings = (self.doublings + 1).min(BACKOFF_DOUBLINGS_MAX);
        self.deadline = now + self.rto();
    }

    fn measure(&mut self, now: Time, ack: u64) {
        let Some((_, sent)) = self.timed.filter(|&(byte, _)| byte <= ack) else { return };
        self.timed = None;
        let rtt = now.since(sent);
        match self.srtt {
            None => (self.srtt, self.rttvar) = (Some(rtt), Span(rtt.0 / 2)),
            Some(srtt) => {
                let error = Span(srtt.0.abs_diff(rtt.0));
                self.rttvar = self.rttvar - Span(self.rttvar.0 >> RTTVAR_SHIFT) + Span(error.0 >> RTTVAR_SHIFT);
                self.srtt = Some(srtt - Span(srtt.0 >> SRTT_SHIFT) + Span(rtt.0 >> SRTT_SHIFT));
            }
        }
    }

    /// Returns the retransmission timeout, with the back-off applied.
    fn rto(&self) -> Span {
        let measured = self.srtt.map_or(Span::ZERO, |srtt| srtt + self.rttvar.times(RTTVAR_TIMES));
        measured.max(self.config.rto_min).times(1 << self.doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1460;

    fn sender(variant: Variant, window: u64) -> Sender {
        let rto_min = Span::us(500_000);
        Sender::new(SenderConfig { mss: MSS, variant, rto_min, initial_window_segments: 1, window })
    }

    fn sent(sender: &mut Sender) -> Vec<u64> {
        std::iter::from_fn(|| sender.next(Time(0), MSS).map(|segment| segment.len)).collect()
    }

    #[test]
    fn reno_doubles_its_window_each_round_trip_until_the_receiver_limits_it() {
        let mut sender = sender(Variant::Reno, 16 * MSS);
        let mut acked = 0;
        for expected in [1, 2, 4, 8, 16, 16] {
            let segments = sent(&mut sender);
            assert_eq!(segments.len(), expected);
            for len in segments {
                acked += len;
                sender.acknowledge(Time(1), acked, 16 * MSS);
            }
        }
    }

    #[test]
    fn three_duplicates_send_one_segment_again_and_reno_keeps_half_of_its_window() {
        for (variant, cwnd) in [(Variant::Tahoe, MSS), (Variant::Reno, 4 * MSS)] {
            let mut sender = sender(variant, 8 * MSS);
            let mut acked = 0;
            while sender.cwnd() < 8 * MSS {
                acked += sent(&mut sender).iter().sum::<u64>();
                sender.acknowledge(Time(1), acked, 8 * MSS);
            }
            sent(&mut sender);
            for _ in 0..3 {
                sender.acknowledge(Time(2), acked, 8 * MSS);
            }
            let again = sender.next(Time(2), MSS).unwrap();
            assert_eq!((again.start, again.is_retransmission), (acked, true), "{variant:?}");
            sender.acknowledge(Time(3), acked + 8 * MSS, 8 * MSS);
            let grown = if variant == Variant::Tahoe { cwnd + 2 * MSS } else { cwnd };
            assert_eq!(sender.cwnd(), grown, "{variant:?}");
        }
    }

    #[test]
    fn go_back_n_knows_no_duplicates_and_starts_again_when_time_is_out() {
        let mut sender = sender(Variant::GoBackN, 4 * MSS);
        sent(&mut sender);
        for _ in 0..5 {
            sender.acknowledge(Time(2), 0, 4 * MSS);
        }
        assert_eq!(sender.next(Time(2), MSS), None);
        let deadline = sender.deadline;
        sender.time_out(deadline);
        assert_eq!(sender.deadline, deadline + Span::us(1_000_000), "the next one is twice as far");
        assert_eq!(sent(&mut sender).len(), 4);
        assert_eq!((sender.retransmissions, sender.timeouts), (4, 1));
    }
}

//! The parameters of a test, and their limits. The client chooses the parameters, and the server accepts or refuses
//! them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Default control port of a server, used by ttcp and nttcp since the 1980s.
pub const PORT_DEFAULT: u16 = 5010;
/// Default congestion control, without pacing, so that the effect of an offload is visible.
pub const CONGESTION_DEFAULT: &str = "cubic";
/// Maximum number of streams per direction. Each stream has one thread at each end.
pub const STREAMS_MAX: u32 = 64;
/// Default number of bytes per write of a bulk sender.
pub const LENGTH_DEFAULT_BYTES: u32 = 128 * 1024;
/// Maximum number of bytes per write of a bulk sender.
pub const LENGTH_MAX_BYTES: u32 = 4 * 1024 * 1024;
/// Maximum length of a request or response, in bytes.
pub const MESSAGE_MAX_BYTES: u32 = 16 * 1024 * 1024;
/// Length of the request and of the response in a ping-pong test, in bytes.
pub const RR_MESSAGE_BYTES: u32 = 64;
/// Minimum payload of a UDP datagram in bytes, the length of the sequence number.
pub const DATAGRAM_BYTES_MIN: u32 = 8;
/// Maximum payload of a UDP datagram over IPv4, in bytes: 65,535 minus the IP and UDP headers.
pub const DATAGRAM_BYTES_MAX: u32 = 65_507;
/// Maximum number of datagrams in one UDP super-frame (Linux `UDP_MAX_SEGMENTS`: 128 since 6.9, 64 before).
pub const GSO_SEGMENTS_MAX: u32 = 128;
/// Default payload of an RPC request in bytes, about the length of an NFS READ request.
pub const RPC_REQUEST_BYTES: u32 = 128;
/// Default payload of an RPC response in bytes, as in NFS reads of 8 KiB.
pub const RPC_RESPONSE_BYTES: u32 = 8 * 1024;
/// Default number of outstanding calls.
pub const RPC_OUTSTANDING: u32 = 4;
/// Maximum number of outstanding calls per stream.
pub const RPC_OUTSTANDING_MAX: u32 = 1024;
/// Default retransmission timeout of a request in microseconds, NFS' 0.7 s (`timeo=7` in nfs(5)).
pub const RPC_TIMER_USECS: u64 = 700_000;
/// Maximum retransmission timeout of a request in microseconds: one minute.
const RPC_TIMER_MAX_USECS: u64 = 60_000_000;
/// Smallest receive window in bytes to which Linux can limit a socket (`TCP_WINDOW_CLAMP`), half of Linux' smallest
/// receive buffer.
const RECEIVE_WINDOW_MIN_BYTES: u32 = 1152;
/// Bytes of receive buffer per byte of a limited receive window. The ratio exceeds 1, because a short segment occupies
/// more buffer than its length.
pub(super) const RECEIVE_WINDOW_BUFFERS: u64 = 4;
/// Default duration of the warm-up, in microseconds.
pub const WARMUP_DEFAULT_USECS: u64 = 200_000;
/// Maximum duration of the measured window, and of the warm-up, in microseconds: one day.
const DURATION_MAX_USECS: u64 = 86_400_000_000;
/// Minimum interval between two interim results, in microseconds.
const INTERVAL_MIN_USECS: u64 = 1_000;
/// Maximum size of a socket buffer, in bytes.
const WINDOW_MAX_BYTES: u32 = 1 << 30;
/// Maximum length of a congestion control's name (`TCP_CA_NAME_MAX` minus the final zero).
const CONGESTION_LEN_MAX: usize = 15;
/// Maximum number of rounds of work per transaction: a few minutes of processor time.
const WORK_ITERATIONS_MAX: u64 = 100_000_000_000;
/// Maximum pause between two transactions, in microseconds.
const THINK_MAX_USECS: u64 = 60_000_000;
/// Maximum number of requests per second and stream in an open loop.
const REQUESTS_PER_S_MAX: u32 = 1_000_000;
/// Maximum number of requests in one burst.
const BURST_MAX: u32 = 1024;
/// Maximum time between the starts of two bursts, in microseconds.
const BURST_EVERY_MAX_USECS: u32 = 60_000_000;
/// Maximum busy-poll time of a socket, in microseconds.
pub const BUSY_POLL_MAX_USECS: u32 = 1_000_000;

/// The direction of a test's data, seen from the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The client sends, the server receives.
    #[default]
    Send,
    /// The server sends, the client receives.
    Receive,
    /// Both ends send at the same time, each on separate connections.
    Both,
}

impl Direction {
    /// Returns whether the client sends.
    pub fn sends(self) -> bool {
        self != Self::Receive
    }

    /// Returns whether the client receives.
    pub fn receives(self) -> bool {
        self != Self::Send
    }
}

/// The duration of a test, or the number of bytes that it transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// Duration of the measured window, in microseconds. The warm-up precedes the measured window.
    Usecs(u64),
    /// Payload bytes in each direction over all streams, without a warm-up.
    Bytes(u64),
}

/// Parameters of a TCP bulk test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BulkParams {
    /// Number of bytes per write of the sender.
    pub length_bytes: u32,
    /// Seed of patterned data, compared byte by byte at the sink. `None` sends constant data without comparison.
    pub pattern_seed: Option<u64>,
    /// True if the streams end when the measured window ends, with data still in flight. A stream that ends in this way
    /// counts as complete. The option suits connections with possible stalls, or with more queued data than the link
    /// transmits during the test. The option requires a timed test.
    pub cut_off: bool,
    /// Payload bits per second in each direction, over all streams; 0 means no limit.
    pub rate_bps: u64,
}

impl Default for BulkParams {
    fn default() -> Self {
        Self { length_bytes: LENGTH_DEFAULT_BYTES, pattern_seed: None, cut_off: false, rate_bps: 0 }
    }
}

/// Parameters of a request/response test. Each stream has one transaction at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransactionParams {
    /// Length of a request, in bytes.
    pub request_bytes: u32,
    /// Length of a response, in bytes.
    pub response_bytes: u32,
    /// Rounds of [`work`](super::work) done by the server between a request and its response.
    pub server_work_iterations: u64,
    /// Rounds of [`work`](super::work) done by the client before each request.
    pub client_work_iterations: u64,
    /// The client's pause before each request, in microseconds. The pause models an idle client (claim M4).
    pub think_usecs: u64,
}

impl Default for TransactionParams {
    fn default() -> Self {
        Self {
            request_bytes: RR_MESSAGE_BYTES,
            response_bytes: RR_MESSAGE_BYTES,
            server_work_iterations: 0,
            client_work_iterations: 0,
            think_usecs: 0,
        }
    }
}

/// Parameters of a UDP test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UdpParams {
    /// Payload of one datagram, in bytes.
    pub datagram_bytes: u32,
    /// Number of datagrams in one send with `UDP_SEGMENT`; 1 sends without `UDP_SEGMENT`.
    pub gso_segments: u32,
    /// True if the receiver enables `UDP_GRO`, so that one read returns several datagrams.
    pub gro: bool,
    /// Payload bits per second in each direction, over all streams; 0 means no limit.
    pub rate_bps: u64,
}

impl Default for UdpParams {
    fn default() -> Self {
        Self { datagram_bytes: 1472, gso_segments: 1, gro: false, rate_bps: 0 }
    }
}

/// Parameters of a test with remote procedure calls over UDP, similar to NFS. Requests are short. Responses are long
/// and fragmented by IP. The client repeats a request after a timeout without a response. Each stream reads a file in
/// order, with several outstanding calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcParams {
    /// Payload of a request, in bytes.
    pub request_bytes: u32,
    /// Payload of a response in bytes: one UDP datagram, fragmented by IP according to the MTU.
    pub response_bytes: u32,
    /// Maximum number of outstanding calls per stream. Calls are numbered in order. A new call begins only if its
    /// number exceeds the number of the oldest unanswered call by less than `outstanding`.
    pub outstanding: u32,
    /// Retransmission timeout of a request, in microseconds, without backoff.
    pub timer_usecs: u64,
}

impl Default for RpcParams {
    fn default() -> Self {
        Self {
            request_bytes: RPC_REQUEST_BYTES,
            response_bytes: RPC_RESPONSE_BYTES,
            outstanding: RPC_OUTSTANDING,
            timer_usecs: RPC_TIMER_USECS,
        }
    }
}

/// Times at which an open loop sends its requests. The times are chosen in advance, so that a late answer delays no
/// request. A latency is measured from the chosen time of the request, and therefore includes every wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// Requests as from many independent clients, with exponentially distributed times between two requests.
    Poisson {
        /// Average number of requests per second and stream.
        per_s: u32,
        /// Seed of the random times. Equal seeds give equal times. Each stream adds its index to the seed.
        seed: u64,
    },
    /// Bursts of `requests` requests each. With one request per burst, the requests have equal intervals.
    Bursts {
        /// Number of requests per burst.
        requests: u32,
        /// Time between the starts of two bursts, in microseconds.
        every_usecs: u32,
    },
}

/// Parameters of requests over UDP in an open loop.
///
/// Over UDP, each request and each answer is one datagram. A datagram up to the MTU is one frame. Requests are sent
/// when due. TCP is unsuitable: it adds acknowledgements, and a lost or late segment delays later requests. An
/// unanswered request is counted, and its latency is the time that the client waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestParams {
    /// Payload of a request, in bytes.
    pub request_bytes: u32,
    /// Payload of a response, in bytes.
    pub response_bytes: u32,
    /// Times of the requests.
    pub arrivals: Arrivals,
}

/// Parameters of bulk data over TCP with simultaneous requests over UDP. One stream carries the requests from the
/// client to the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixedParams {
    /// The bulk data. The test's direction and number of streams apply to the bulk data.
    pub bulk: BulkParams,
    /// The requests.
    pub requests: RequestParams,
}

/// The workload of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// TCP bulk data at the path's full rate, or at a given rate.
    Bulk(BulkParams),
    /// Requests and responses over TCP.
    Transaction(TransactionParams),
    /// UDP datagrams.
    Udp(UdpParams),
    /// Remote procedure calls over UDP.
    Rpc(RpcParams),
    /// Requests and responses over UDP. Each request is sent at its given time, regardless of earlier answers.
    Requests(RequestParams),
    /// Bulk data over TCP, with simultaneous requests over UDP at given times.
    Mixed(MixedParams),
}

/// All parameters of a test. Both ends use the same parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// The workload.
    pub workload: Workload,
    /// The direction of the data. A test of transactions or requests requires [`Direction::Send`].
    pub direction: Direction,
    /// Number of streams in each direction.
    pub streams: u32,
    /// Duration of the test, or its number of bytes.
    pub amount: Amount,
    /// Time under load before the measured window, in microseconds. Ignored with [`Amount::Bytes`].
    pub warmup_usecs: u64,
    /// Interval of interim results in microseconds; 0 means no interim results.
    pub interval_usecs: u64,
    /// TCP congestion control, set on every data socket of both ends.
    pub congestion: String,
    /// `SO_SNDBUF` and `SO_RCVBUF` of every data socket, in bytes; 0 means the kernel's default. The kernel doubles the
    /// value.
    pub window_bytes: u32,
    /// Maximum window offered by a TCP receiver in bytes (`TCP_WINDOW_CLAMP`); 0 lets the kernel choose. Linux rounds
    /// the offered window to whole segments. A limited receiver has buffers of fixed size, large enough for the window.
    pub receive_window_bytes: u32,
    /// True if every data socket sets `TCP_NODELAY`. A transaction test always sets `TCP_NODELAY`.
    pub nodelay: bool,
    /// `SO_BUSY_POLL` of every data socket at both ends, in microseconds; 0 means the kernel's default. A read polls
    /// the adapter's queue for up to this time before the reading thread sleeps. Busy polling needs an interface with
    /// NAPI; a TAP has NAPI only with `IFF_NAPI`.
    pub busy_poll_usecs: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            workload: Workload::Bulk(BulkParams::default()),
            direction: Direction::Send,
            streams: 1,
            amount: Amount::Usecs(10_000_000),
            warmup_usecs: WARMUP_DEFAULT_USECS,
            interval_usecs: 0,
            congestion: CONGESTION_DEFAULT.to_owned(),
            window_bytes: 0,
            receive_window_bytes: 0,
            nodelay: false,
            busy_poll_usecs: 0,
        }
    }
}

impl Params {
    /// Checks every limit, and the consistency of the parameters. Both ends call this function, because the server
    /// trusts no client.
    ///
    /// # Errors
    /// Returns one sentence with the parameter, its value and its limit.
    pub fn check(&self) -> Result<(), String> {
        within("streams", u64::from(self.streams), 1, u64::from(STREAMS_MAX))?;
        match self.amount {
            Amount::Usecs(usecs) => within("length of the test in microseconds", usecs, 1, DURATION_MAX_USECS)?,
            Amount::Bytes(bytes) => self.check_bytes(bytes)?,
        }
        within("warm-up in microseconds", self.warmup_usecs, 0, DURATION_MAX_USECS)?;
        if self.interval_usecs != 0 {
            within("interval in microseconds", self.interval_usecs, INTERVAL_MIN_USECS, DURATION_MAX_USECS)?;
        }
        within("window in bytes", u64::from(self.window_bytes), 0, u64::from(WINDOW_MAX_BYTES))?;
        within("busy polling in microseconds", self.busy_poll_usecs.into(), 0, BUSY_POLL_MAX_USECS.into())?;
        self.check_receive_window()?;
        self.check_congestion()?;
        match &self.workload {
            Workload::Bulk(bulk) => self.check_bulk(bulk),
            Workload::Transaction(transaction) => self.check_transaction(transaction),
            Workload::Udp(udp) => udp.check(),
            Workload::Rpc(rpc) => self.check_rpc(rpc),
            Workload::Requests(requests) => {
                self.check_goes_both_ways("a test of requests")?;
                requests.check()
            }
            Workload::Mixed(mixed) => {
                self.check_bulk(&mixed.bulk)?;
                mixed.requests.check()
            }
        }
    }

    fn check_receive_window(&self) -> Result<(), String> {
        let (window, min) = (u64::from(self.receive_window_bytes), u64::from(RECEIVE_WINDOW_MIN_BYTES));
        if window == 0 {
            return Ok(());
        }
        if self.window_bytes > 0 {
            return Err("a receive window determines the socket buffers; drop the socket buffer size".to_owned());
        }
        within("receive window in bytes", window, min, u64::from(WINDOW_MAX_BYTES) / RECEIVE_WINDOW_BUFFERS)
    }

    fn check_bulk(&self, bulk: &BulkParams) -> Result<(), String> {
        if bulk.cut_off && !self.is_timed() {
            return Err("a test of a number of bytes ends with the last byte; drop the cut-off".to_owned());
        }
        within("length of a write in bytes", u64::from(bulk.length_bytes), 1, u64::from(LENGTH_MAX_BYTES))
    }

    fn check_bytes(&self, bytes: u64) -> Result<(), String> {
        if !matches!(self.workload, Workload::Bulk(_)) {
            return Err("only a TCP bulk test can end after a number of bytes; give a number of seconds".to_owned());
        }
        within("bytes", bytes, u64::from(self.streams), u64::MAX)
    }

    fn check_congestion(&self) -> Result<(), String> {
        let known_letter = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'_' || letter == b'-';
        let len = self.congestion.len();
        if len == 0 || len > CONGESTION_LEN_MAX || !self.congestion.bytes().all(known_letter) {
            return Err(format!(
                "congestion control {:?} is not a valid kernel name; see net.ipv4.tcp_available_congestion_control",
                self.congestion
            ));
        }
        Ok(())
    }

    fn check_goes_both_ways(&self, what: &str) -> Result<(), String> {
        if self.direction == Direction::Send {
            return Ok(());
        }
        Err(format!("{what} always goes both ways; leave the direction at send"))
    }

    fn check_transaction(&self, transaction: &TransactionParams) -> Result<(), String> {
        self.check_goes_both_ways("a transaction test")?;
        let message_max = u64::from(MESSAGE_MAX_BYTES);
        within("request in bytes", u64::from(transaction.request_bytes), 1, message_max)?;
        within("response in bytes", u64::from(transaction.response_bytes), 1, message_max)?;
        within("server's work in iterations", transaction.server_work_iterations, 0, WORK_ITERATIONS_MAX)?;
        within("client's work in iterations", transaction.client_work_iterations, 0, WORK_ITERATIONS_MAX)?;
        within("think time in microseconds", transaction.think_usecs, 0, THINK_MAX_USECS)
    }

    fn check_rpc(&self, rpc: &RpcParams) -> Result<(), String> {
        self.check_goes_both_ways("a test of calls")?;
        let (min, max) = (u64::from(DATAGRAM_BYTES_MIN), u64::from(DATAGRAM_BYTES_MAX));
        within("request in bytes", u64::from(rpc.request_bytes), min, max)?;
        within("response in bytes", u64::from(rpc.response_bytes), min, max)?;
        within("outstanding calls", u64::from(rpc.outstanding), 1, u64::from(RPC_OUTSTANDING_MAX))?;
        within("retransmission timer in microseconds", rpc.timer_usecs, 1, RPC_TIMER_MAX_USECS)
    }

    /// Returns whether streams are cut off at the end of the measured window.
    pub fn is_cut_off(&self) -> bool {
        self.bulk().is_some_and(|bulk| bulk.cut_off)
    }

    /// Returns whether the test has a warm-up and a measured window of given duration, instead of a number of bytes.
    pub(super) fn is_timed(&self) -> bool {
        matches!(self.amount, Amount::Usecs(_))
    }

    /// Returns the parameters of the bulk data over TCP, or `None` if the workload has no bulk data.
    pub(super) fn bulk(&self) -> Option<&BulkParams> {
        match &self.workload {
            Workload::Bulk(bulk) => Some(bulk),
            Workload::Mixed(mixed) => Some(&mixed.bulk),
            _ => None,
        }
    }

    /// Returns the parameters of the open loop's requests, or `None` if the workload has no open loop.
    pub(super) fn requests(&self) -> Option<&RequestParams> {
        match &self.workload {
            Workload::Requests(requests) => Some(requests),
            Workload::Mixed(mixed) => Some(&mixed.requests),
            _ => None,
        }
    }

    /// Returns the number of TCP data sockets at one end. Sockets that carry data from the client to the server have
    /// the first indices.
    pub(super) fn tcp_sockets(&self) -> u32 {
        match self.workload {
            Workload::Udp(_) | Workload::Requests(_) | Workload::Rpc(_) => 0,
            _ => self.sockets_of_streams(),
        }
    }

    /// Returns the number of UDP data sockets at one end. Sockets that carry data from the client to the server have
    /// the first indices.
    pub(super) fn udp_sockets(&self) -> u32 {
        match self.workload {
            Workload::Udp(_) | Workload::Requests(_) | Workload::Rpc(_) => self.sockets_of_streams(),
            Workload::Mixed(_) => 1,
            Workload::Bulk(_) | Workload::Transaction(_) => 0,
        }
    }

    fn sockets_of_streams(&self) -> u32 {
        self.streams * if self.direction == Direction::Both { 2 } else { 1 }
    }

    /// Returns whether the stream with this index carries data from the client to the server.
    pub(super) fn client_sends(&self, index: u32) -> bool {
        self.direction.sends() && index < self.streams
    }

    /// Returns the number of bytes of the stream with this index, in a test that transfers a given number of bytes. The
    /// streams of a direction carry equal shares of the bytes, and each of the first streams carries one byte of the
    /// remainder.
    pub(super) fn stream_bytes(&self, index: u32) -> Option<u64> {
        let Amount::Bytes(bytes) = self.amount else { return None };
        let streams = u64::from(self.streams);
        let position = u64::from(index % self.streams);
        Some(bytes / streams + u64::from(position < bytes % streams))
    }

    /// Returns the rate of one stream in bits per second, an equal share of its direction's rate; 0 means no limit.
    /// Shares are rounded up, so that a small share does not become 0.
    pub(super) fn stream_rate_bps(&self) -> u64 {
        let rate_bps = match &self.workload {
            Workload::Udp(udp) => udp.rate_bps,
            _ => self.bulk().map_or(0, |bulk| bulk.rate_bps),
        };
        rate_bps.div_ceil(u64::from(self.streams))
    }

    /// Returns the time between interim results, or `None` without interim results.
    pub(super) fn interval(&self) -> Option<Duration> {
        (self.interval_usecs > 0).then(|| Duration::from_micros(self.interval_usecs))
    }
}

impl RequestParams {
    fn check(&self) -> Result<(), String> {
        let (min, max) = (u64::from(DATAGRAM_BYTES_MIN), u64::from(DATAGRAM_BYTES_MAX));
        within("request in bytes", self.request_bytes.into(), min, max)?;
        within("response in bytes", self.response_bytes.into(), min, max)?;
        match self.arrivals {
            Arrivals::Poisson { per_s, .. } => {
                within("requests per second", per_s.into(), 1, REQUESTS_PER_S_MAX.into())
            }
            Arrivals::Bursts { requests, every_usecs } => {
                within("requests of a burst", requests.into(), 1, BURST_MAX.into())?;
                within("microseconds between bursts", every_usecs.into(), 1, BURST_EVERY_MAX_USECS.into())
            }
        }
    }
}

impl UdpParams {
    fn check(&self) -> Result<(), String> {
        let (min, max) = (u64::from(DATAGRAM_BYTES_MIN), u64::from(DATAGRAM_BYTES_MAX));
        within("datagram in bytes", u64::from(self.datagram_bytes), min, max)?;
        within("datagrams in one super-frame", u64::from(self.gso_segments), 1, u64::from(GSO_SEGMENTS_MAX))?;
        within("super-frame in bytes", u64::from(self.datagram_bytes) * u64::from(self.gso_segments), min, max)
    }
}

fn within(what: &str, value: u64, min: u64, max: u64) -> Result<(), String> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(format!("{what}: {value} is not within {min} to {max}")) }
}

#[cfg(test)]
mod tests;

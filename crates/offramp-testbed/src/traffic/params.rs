//! The parameters of a test, chosen by the client and accepted by the server, with their limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Default control port of a server: the port of ttcp and nttcp since the 1980s.
pub const PORT_DEFAULT: u16 = 5010;
/// Default congestion control: it does not pace, so it shows the value of an offload.
pub const CONGESTION_DEFAULT: &str = "cubic";
/// Maximum number of streams in one direction. Each is a thread on both ends.
pub const STREAMS_MAX: u32 = 64;
/// Default bytes per write of a bulk sender.
pub const LENGTH_DEFAULT_BYTES: u32 = 128 * 1024;
/// Maximum bytes per write of a bulk sender.
pub const LENGTH_MAX_BYTES: u32 = 4 * 1024 * 1024;
/// Maximum bytes of one request or response.
pub const MESSAGE_MAX_BYTES: u32 = 16 * 1024 * 1024;
/// Bytes of the request and of the response of a ping-pong test.
pub const RR_MESSAGE_BYTES: u32 = 64;
/// Minimum payload of a UDP datagram: it carries an eight-byte sequence number.
pub const DATAGRAM_BYTES_MIN: u32 = 8;
/// Maximum payload of a UDP datagram over IPv4: 65,535 less the IP and UDP headers.
pub const DATAGRAM_BYTES_MAX: u32 = 65_507;
/// Maximum datagrams in one UDP super-frame (`UDP_MAX_SEGMENTS` of Linux since 6.9; 64 before).
pub const GSO_SEGMENTS_MAX: u32 = 128;
/// Default payload of a call's request: about an NFS READ's.
pub const RPC_REQUEST_BYTES: u32 = 128;
/// Default payload of a call's response: NFS' 8 KiB.
pub const RPC_RESPONSE_BYTES: u32 = 8 * 1024;
/// Default number of calls under way.
pub const RPC_OUTSTANDING: u32 = 4;
/// Maximum calls under way in one stream.
pub const RPC_OUTSTANDING_MAX: u32 = 1024;
/// Default retransmission timeout of a request: NFS' 0.7 s (`timeo=7` of nfs(5)).
pub const RPC_TIMER_USECS: u64 = 700_000;
/// Maximum retransmission timeout of a request: a minute, in microseconds.
const RPC_TIMER_MAX_USECS: u64 = 60_000_000;
/// Minimum receive window limit enforced by Linux, in bytes: half its smallest receive buffer.
const RECEIVE_WINDOW_MIN_BYTES: u32 = 1152;
/// Bytes of receive buffer for each byte of a limited receive window: a short segment occupies more than itself.
pub(super) const RECEIVE_WINDOW_BUFFERS: u64 = 4;
/// Default time before the measured window, in microseconds.
pub const WARMUP_DEFAULT_USECS: u64 = 200_000;
/// Longest measured window and longest warm-up: one day, in microseconds.
const DURATION_MAX_USECS: u64 = 86_400_000_000;
/// Shortest interval between two interim results, in microseconds.
const INTERVAL_MIN_USECS: u64 = 1_000;
/// Maximum socket buffer.
const WINDOW_MAX_BYTES: u32 = 1 << 30;
/// Maximum length of a congestion control name (`TCP_CA_NAME_MAX` less the final zero).
const CONGESTION_LEN_MAX: usize = 15;
/// Maximum work per transaction: about a minute of processor time.
const WORK_ITERATIONS_MAX: u64 = 100_000_000_000;
/// Maximum pause between two transactions, in microseconds.
const THINK_MAX_USECS: u64 = 60_000_000;
/// Maximum requests per second of one stream of an open loop.
const REQUESTS_PER_S_MAX: u32 = 1_000_000;
/// Maximum requests of one burst.
const BURST_MAX: u32 = 1024;
/// Maximum time from one burst to the next, in microseconds.
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
    /// Both at once, each on connections of its own.
    Both,
}

impl Direction {
    /// Returns true if the client sends.
    pub fn sends(self) -> bool {
        self != Self::Receive
    }

    /// Returns true if the client receives.
    pub fn receives(self) -> bool {
        self != Self::Send
    }
}

/// The length of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// Length of the measured window, in microseconds; the warm-up comes before it.
    Usecs(u64),
    /// Payload bytes in each direction, over all streams; without a warm-up.
    Bytes(u64),
}

/// One TCP bulk test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BulkParams {
    /// Bytes per write of the sender.
    pub length_bytes: u32,
    /// Send patterned data made from this seed, and have the sink compare each byte. `None`: constant data, unchecked.
    pub pattern_seed: Option<u64>,
    /// End the streams when the window closes, with data still in flight. Such a stream counts as complete. Meant for a
    /// connection that may stall, or that queues more than the link carries in the test. Only in a timed test.
    pub cut_off: bool,
    /// Payload bits per second in each direction, over all streams; 0 for no limit.
    pub rate_bps: u64,
}

impl Default for BulkParams {
    fn default() -> Self {
        Self { length_bytes: LENGTH_DEFAULT_BYTES, pattern_seed: None, cut_off: false, rate_bps: 0 }
    }
}

/// One request/response test: each stream has one transaction under way at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransactionParams {
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Bytes of a response.
    pub response_bytes: u32,
    /// Rounds of [`work`](super::work) in the server between a request and its response.
    pub server_work_iterations: u64,
    /// Rounds of [`work`](super::work) in the client before each request.
    pub client_work_iterations: u64,
    /// Pause of the client before each request, in microseconds: models an idle client (claim M4).
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

/// One UDP test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UdpParams {
    /// Payload of one datagram, in bytes.
    pub datagram_bytes: u32,
    /// Datagrams handed to the kernel at once through `UDP_SEGMENT`; 1 switches it off.
    pub gso_segments: u32,
    /// The receiver takes several datagrams at once through `UDP_GRO`.
    pub gro: bool,
    /// Payload bits per second in each direction, over all streams; 0 for no limit.
    pub rate_bps: u64,
}

impl Default for UdpParams {
    fn default() -> Self {
        Self { datagram_bytes: 1472, gso_segments: 1, gro: false, rate_bps: 0 }
    }
}

/// One test of remote procedure calls over UDP in the manner of NFS: short requests, and long responses fragmented by
/// IP. The client repeats a request if its response is late. Each stream reads a file in order, with several calls
/// under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcParams {
    /// Payload of a request, in bytes.
    pub request_bytes: u32,
    /// Payload of a response, in bytes: one UDP datagram, fragmented by IP to the MTU.
    pub response_bytes: u32,
    /// Maximum calls under way in each stream: a new call begins less than this far beyond the oldest unanswered one.
    pub outstanding: u32,
    /// Retransmission timeout of a request, in microseconds. It does not grow.
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

/// The times of the requests of an open loop. They are chosen beforehand: a late answer delays no request, so the
/// figures include every wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// Arrivals of many independent clients: gaps of exponential length.
    Poisson {
        /// Requests per second of each stream, on average.
        per_s: u32,
        /// Seed of the gaps: the same seed gives the same times. Each stream adds its number to it.
        seed: u64,
    },
    /// Bursts of `requests` each; bursts of one are an even pace.
    Bursts {
        /// Requests of one burst.
        requests: u32,
        /// Time from the begin of one burst to the begin of the next, in microseconds.
        every_usecs: u32,
    },
}

/// Requests over UDP in an open loop.
///
/// Over UDP each request and each answer is one datagram, and up to the MTU one frame, sent when it is due. TCP would
/// add acknowledgements, and a lost or late segment would delay those after it. A request without an answer is counted,
/// and enters the latencies with the client's waiting time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestParams {
    /// Payload of a request.
    pub request_bytes: u32,
    /// Payload of a response.
    pub response_bytes: u32,
    /// The times of the requests.
    pub arrivals: Arrivals,
}

/// Bulk data over TCP, and beside it requests over UDP on one stream, from the client to the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixedParams {
    /// The bulk data; direction and streams of the test apply to it.
    pub bulk: BulkParams,
    /// The requests.
    pub requests: RequestParams,
}

/// The workload of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// TCP, as much as the path carries.
    Bulk(BulkParams),
    /// TCP, requests and responses.
    Transaction(TransactionParams),
    /// UDP datagrams.
    Udp(UdpParams),
    /// UDP, calls and their responses.
    Rpc(RpcParams),
    /// Requests and responses over UDP, sent at given times regardless of the answers.
    Requests(RequestParams),
    /// Bulk data and such requests at the same time.
    Mixed(MixedParams),
}

/// All parameters of a test, for both ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// The workload.
    pub workload: Workload,
    /// The direction of the data. A test of transactions or requests requires [`Direction::Send`].
    pub direction: Direction,
    /// Streams in each direction.
    pub streams: u32,
    /// The length of the test.
    pub amount: Amount,
    /// Time under load before the measured window, in microseconds. Unused with [`Amount::Bytes`].
    pub warmup_usecs: u64,
    /// Time between interim results, in microseconds; 0 for none.
    pub interval_usecs: u64,
    /// TCP congestion control, set on every data socket of both ends.
    pub congestion: String,
    /// `SO_SNDBUF` and `SO_RCVBUF` of every data socket, in bytes (the kernel doubles it); 0 for the kernel's choice.
    pub window_bytes: u32,
    /// Maximum window offered by a TCP receiver, in bytes (`TCP_WINDOW_CLAMP`); Linux offers whole segments of it. Its
    /// buffers are then fixed and large enough for that window. 0 for the kernel's choice.
    pub receive_window_bytes: u32,
    /// `TCP_NODELAY` on every data socket. A transaction test always sets it.
    pub nodelay: bool,
    /// `SO_BUSY_POLL` of every data socket of both ends, in microseconds: the time a read polls the adapter's queue
    /// itself before it sleeps; 0 for the kernel's choice. It needs an adapter with NAPI; a TAP has none.
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
    /// Checks every limit, and the parameters' consistency. Both ends call it: the server trusts no client.
    ///
    /// # Errors
    /// One sentence with the parameter, its value and the limit.
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

    /// Returns true if streams are cut off at the end of the window.
    pub fn is_cut_off(&self) -> bool {
        self.bulk().is_some_and(|bulk| bulk.cut_off)
    }

    /// Returns true for a test with a warm-up and a window of given length, false for a number of bytes.
    pub(super) fn is_timed(&self) -> bool {
        matches!(self.amount, Amount::Usecs(_))
    }

    /// Returns the bulk data over TCP, if any.
    pub(super) fn bulk(&self) -> Option<&BulkParams> {
        match &self.workload {
            Workload::Bulk(bulk) => Some(bulk),
            Workload::Mixed(mixed) => Some(&mixed.bulk),
            _ => None,
        }
    }

    /// Returns the requests of an open loop, if any.
    pub(super) fn requests(&self) -> Option<&RequestParams> {
        match &self.workload {
            Workload::Requests(requests) => Some(requests),
            Workload::Mixed(mixed) => Some(&mixed.requests),
            _ => None,
        }
    }

    /// Returns the number of TCP data sockets of one end: first the streams from the client to the server, then those
    /// from the server.
    pub(super) fn tcp_sockets(&self) -> u32 {
        match self.workload {
            Workload::Udp(_) | Workload::Requests(_) | Workload::Rpc(_) => 0,
            _ => self.sockets_of_streams(),
        }
    }

    /// Returns the number of UDP data sockets of one end, in the same order.
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

    /// Returns true if the stream with this index carries data from the client to the server.
    pub(super) fn client_sends(&self, index: u32) -> bool {
        self.direction.sends() && index < self.streams
    }

    /// Returns the bytes of the stream with this index, in a test over a number of bytes. The streams of a direction
    /// share evenly; the first ones carry the remainder.
    pub(super) fn stream_bytes(&self, index: u32) -> Option<u64> {
        let Amount::Bytes(bytes) = self.amount else { return None };
        let streams = u64::from(self.streams);
        let position = u64::from(index % self.streams);
        Some(bytes / streams + u64::from(position < bytes % streams))
    }

    /// Returns each stream's share of the rate of its direction; 0 means no limit. A share is rounded up, so that it
    /// never becomes "no limit".
    pub(super) fn stream_rate_bps(&self) -> u64 {
        let rate_bps = match &self.workload {
            Workload::Udp(udp) => udp.rate_bps,
            _ => self.bulk().map_or(0, |bulk| bulk.rate_bps),
        };
        rate_bps.div_ceil(u64::from(self.streams))
    }

    /// Time between interim results.
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

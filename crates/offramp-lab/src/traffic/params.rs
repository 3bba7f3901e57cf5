//! What a test is: the parameters that the client chooses and the server accepts, with their limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Control port of a server unless told otherwise, the port of ttcp and nttcp since the 1980s.
pub const PORT_DEFAULT: u16 = 5010;
/// Congestion control unless told otherwise: it does not pace, so it shows what an offload is worth.
pub const CONGESTION_DEFAULT: &str = "cubic";
/// Streams in one direction, at most. Each is a thread on both ends.
pub const STREAMS_MAX: u32 = 64;
/// Bytes per write of a bulk sender unless told otherwise.
pub const LENGTH_DEFAULT_BYTES: u32 = 128 * 1024;
/// Bytes per write of a bulk sender, at most.
pub const LENGTH_MAX_BYTES: u32 = 4 * 1024 * 1024;
/// Bytes of one request or response, at most.
pub const MESSAGE_MAX_BYTES: u32 = 16 * 1024 * 1024;
/// Bytes of the request and of the response of a ping-pong test.
pub const RR_MESSAGE_BYTES: u32 = 64;
/// Payload of a UDP datagram, at least: it carries an eight-byte sequence number.
pub const DATAGRAM_BYTES_MIN: u32 = 8;
/// Payload of a UDP datagram over IPv4, at most: 65,535 less the IP and UDP headers.
pub const DATAGRAM_BYTES_MAX: u32 = 65_507;
/// Datagrams in one UDP super-frame, at most (`UDP_MAX_SEGMENTS` of Linux since 6.9; 64 before).
pub const GSO_SEGMENTS_MAX: u32 = 128;
/// Payload of a call's request unless told otherwise: about that of an NFS READ.
pub const RPC_REQUEST_BYTES: u32 = 128;
/// Payload of a call's response unless told otherwise: NFS' 8 KiB.
pub const RPC_RESPONSE_BYTES: u32 = 8 * 1024;
/// Calls under way unless told otherwise.
pub const RPC_OUTSTANDING: u32 = 4;
/// Calls under way in one stream, at most.
pub const RPC_OUTSTANDING_MAX: u32 = 1024;
/// When a request is sent again unless told otherwise: NFS' 0.7 s (`timeo=7` of nfs(5)).
pub const RPC_TIMER_USECS: u64 = 700_000;
/// Longest time after which a request is sent again: a minute, in microseconds.
const RPC_TIMER_MAX_USECS: u64 = 60_000_000;
/// Smallest limit of the receive window that Linux keeps to, in bytes: half its smallest receive buffer.
const RECEIVE_WINDOW_MIN_BYTES: u32 = 1152;
/// Bytes of receive buffer for each byte of a limited receive window: a short segment occupies more than itself.
pub(super) const RECEIVE_WINDOW_BUFFERS: u64 = 4;
/// Time before the measured window, unless told otherwise, in microseconds.
pub const WARMUP_DEFAULT_USECS: u64 = 200_000;
/// Longest measured window and longest warm-up: one day, in microseconds.
const DURATION_MAX_USECS: u64 = 86_400_000_000;
/// Shortest interval between two interim results, in microseconds.
const INTERVAL_MIN_USECS: u64 = 1_000;
/// Largest socket buffer that may be asked for.
const WINDOW_MAX_BYTES: u32 = 1 << 30;
/// Length of a congestion control name, at most (`TCP_CA_NAME_MAX` less the final zero).
const CONGESTION_LEN_MAX: usize = 15;
/// Most work per transaction: about a minute of processor time.
const WORK_ITERATIONS_MAX: u64 = 100_000_000_000;
/// Longest pause between two transactions, in microseconds.
const THINK_MAX_USECS: u64 = 60_000_000;

/// Which way the data of a test goes, seen from the client.
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
    /// Says whether the client sends.
    pub fn sends(self) -> bool {
        self != Self::Receive
    }

    /// Says whether the client receives.
    pub fn receives(self) -> bool {
        self != Self::Send
    }
}

/// How long a test lasts.
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
#[serde(deny_unknown_fields)]
pub struct BulkParams {
    /// Bytes per write of the sender.
    pub length_bytes: u32,
    /// Send patterned data made from this seed, and have the sink compare each byte. `None`: constant data, unchecked.
    pub pattern_seed: Option<u64>,
    /// Cut the streams off when the window has closed, with whatever is still under way, and take a stream that was
    /// cut for one that came to its end: for a connection that may stall, or whose queues hold more than the line
    /// carries in the test. Only in a timed test.
    #[serde(default)]
    pub cut_off: bool,
}

impl Default for BulkParams {
    fn default() -> Self {
        Self { length_bytes: LENGTH_DEFAULT_BYTES, pattern_seed: None, cut_off: false }
    }
}

/// One request/response test: each stream has one transaction under way at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransactionParams {
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Bytes of a response.
    pub response_bytes: u32,
    /// Rounds of [`work`](super::work) that the server does between a request and its response.
    pub server_work_iterations: u64,
    /// Rounds of [`work`](super::work) that the client does before each request.
    pub client_work_iterations: u64,
    /// Pause of the client before each request, in microseconds: a client that is not busy (claim M4).
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
#[serde(deny_unknown_fields)]
pub struct UdpParams {
    /// Payload of one datagram, in bytes.
    pub datagram_bytes: u32,
    /// Datagrams handed to the kernel at once through `UDP_SEGMENT`; 1 switches it off.
    pub gso_segments: u32,
    /// The receiver takes several datagrams at once through `UDP_GRO`.
    pub gro: bool,
    /// Payload bits per second in each direction, over all streams; 0 sends as fast as it goes.
    pub rate_bps: u64,
}

/// One test of remote procedure calls over UDP in the manner of NFS: short requests, long responses that IP cuts into
/// frames, and a request that is sent again when its response does not come in time. Each stream keeps so many calls
/// under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpcParams {
    /// Payload of a request, in bytes.
    pub request_bytes: u32,
    /// Payload of a response, in bytes: one UDP datagram, which IP cuts to the MTU.
    pub response_bytes: u32,
    /// Calls that each stream has under way.
    pub outstanding: u32,
    /// Time after which a request without a response is sent again, in microseconds. It does not grow.
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

/// The work that a test does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// TCP, as much as goes through.
    Bulk(BulkParams),
    /// TCP, requests and responses.
    Transaction(TransactionParams),
    /// UDP datagrams.
    Udp(UdpParams),
    /// UDP, calls and their responses.
    Rpc(RpcParams),
}

/// Everything that both ends must know of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// What is done.
    pub workload: Workload,
    /// Which way the data goes. A transaction test asks for [`Direction::Send`].
    pub direction: Direction,
    /// Streams in each direction.
    pub streams: u32,
    /// How long.
    pub amount: Amount,
    /// Time under load before the measured window, in microseconds. Unused with [`Amount::Bytes`].
    pub warmup_usecs: u64,
    /// Time between interim results, in microseconds; 0 for none.
    pub interval_usecs: u64,
    /// TCP congestion control, set on every data socket of both ends.
    pub congestion: String,
    /// `SO_SNDBUF` and `SO_RCVBUF` of every data socket, in bytes (the kernel doubles it); 0 leaves them to the
    /// kernel.
    pub window_bytes: u32,
    /// Largest window that a TCP receiver offers, in bytes (`TCP_WINDOW_CLAMP`); Linux offers whole segments of it. Its
    /// buffers are then large enough for that window and fixed. 0 leaves it to the kernel.
    #[serde(default)]
    pub receive_window_bytes: u32,
    /// `TCP_NODELAY` on every data socket. A transaction test always sets it.
    pub nodelay: bool,
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
        }
    }
}

impl Params {
    /// Checks every limit, and that the parts fit together. Both ends call it: the server trusts no client.
    ///
    /// # Errors
    /// One sentence that names the parameter, its value and the limit.
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
        self.check_receive_window()?;
        self.check_congestion()?;
        match &self.workload {
            Workload::Bulk(bulk) => self.check_bulk(bulk),
            Workload::Transaction(transaction) => self.check_transaction(transaction),
            Workload::Udp(udp) => udp.check(),
            Workload::Rpc(rpc) => self.check_rpc(rpc),
        }
    }

    fn check_receive_window(&self) -> Result<(), String> {
        let (window, min) = (u64::from(self.receive_window_bytes), u64::from(RECEIVE_WINDOW_MIN_BYTES));
        if window == 0 {
            return Ok(());
        }
        if self.window_bytes > 0 {
            return Err("a receive window sets the buffers itself; give no socket buffers beside it".to_owned());
        }
        within("receive window in bytes", window, min, u64::from(WINDOW_MAX_BYTES) / RECEIVE_WINDOW_BUFFERS)
    }

    fn check_bulk(&self, bulk: &BulkParams) -> Result<(), String> {
        if bulk.cut_off && !self.is_timed() {
            return Err("a test over a number of bytes ends with its last byte; it is not cut off".to_owned());
        }
        within("length of a write in bytes", u64::from(bulk.length_bytes), 1, u64::from(LENGTH_MAX_BYTES))
    }

    fn check_bytes(&self, bytes: u64) -> Result<(), String> {
        if !matches!(self.workload, Workload::Bulk(_)) {
            return Err("a number of bytes ends a TCP bulk test only; give a number of seconds".to_owned());
        }
        within("bytes", bytes, u64::from(self.streams), u64::MAX)
    }

    fn check_congestion(&self) -> Result<(), String> {
        let known_letter = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'_' || letter == b'-';
        let len = self.congestion.len();
        if len == 0 || len > CONGESTION_LEN_MAX || !self.congestion.bytes().all(known_letter) {
            return Err(format!("congestion control {:?} is not a name that the kernel could have", self.congestion));
        }
        Ok(())
    }

    fn check_transaction(&self, transaction: &TransactionParams) -> Result<(), String> {
        if self.direction != Direction::Send {
            return Err("a transaction test goes both ways by itself; leave the direction at send".to_owned());
        }
        let message_max = u64::from(MESSAGE_MAX_BYTES);
        within("request in bytes", u64::from(transaction.request_bytes), 1, message_max)?;
        within("response in bytes", u64::from(transaction.response_bytes), 1, message_max)?;
        within("server's work in iterations", transaction.server_work_iterations, 0, WORK_ITERATIONS_MAX)?;
        within("client's work in iterations", transaction.client_work_iterations, 0, WORK_ITERATIONS_MAX)?;
        within("think time in microseconds", transaction.think_usecs, 0, THINK_MAX_USECS)
    }

    fn check_rpc(&self, rpc: &RpcParams) -> Result<(), String> {
        if self.direction != Direction::Send {
            return Err("calls go both ways by themselves; leave the direction at send".to_owned());
        }
        let (min, max) = (u64::from(DATAGRAM_BYTES_MIN), u64::from(DATAGRAM_BYTES_MAX));
        within("request in bytes", u64::from(rpc.request_bytes), min, max)?;
        within("response in bytes", u64::from(rpc.response_bytes), min, max)?;
        within("calls under way", u64::from(rpc.outstanding), 1, u64::from(RPC_OUTSTANDING_MAX))?;
        within("time before a request is sent again in microseconds", rpc.timer_usecs, 1, RPC_TIMER_MAX_USECS)
    }

    /// Says whether streams are cut off at the end of the window.
    pub(crate) fn is_cut_off(&self) -> bool {
        matches!(&self.workload, Workload::Bulk(bulk) if bulk.cut_off)
    }

    /// Says whether a warm-up and a window of given length are measured, rather than a number of bytes.
    pub(super) fn is_timed(&self) -> bool {
        matches!(self.amount, Amount::Usecs(_))
    }

    /// Says whether the data goes over UDP.
    pub(super) fn is_udp(&self) -> bool {
        matches!(self.workload, Workload::Udp(_) | Workload::Rpc(_))
    }

    /// Data sockets of one end: first the streams from the client to the server, then those from the server.
    pub(super) fn socket_count(&self) -> u32 {
        self.streams * if self.direction == Direction::Both { 2 } else { 1 }
    }

    /// Says whether the stream with this index carries data from the client to the server.
    pub(super) fn client_sends(&self, index: u32) -> bool {
        self.direction.sends() && index < self.streams
    }

    /// Bytes that the stream with this index carries, when the test is over a number of bytes. The streams of a
    /// direction share evenly; the first ones carry what does not divide.
    pub(super) fn stream_bytes(&self, index: u32) -> Option<u64> {
        let Amount::Bytes(bytes) = self.amount else { return None };
        let streams = u64::from(self.streams);
        let position = u64::from(index % self.streams);
        Some(bytes / streams + u64::from(position < bytes % streams))
    }

    /// Time between interim results.
    pub(super) fn interval(&self) -> Option<Duration> {
        (self.interval_usecs > 0).then(|| Duration::from_micros(self.interval_usecs))
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
mod tests {
    use super::*;

    #[test]
    fn the_streams_share_the_bytes_and_none_is_lost_in_the_division() {
        let params =
            Params { streams: 4, amount: Amount::Bytes(1003), direction: Direction::Both, ..Params::default() };
        let sum = |range: std::ops::Range<u32>| range.map(|index| params.stream_bytes(index).unwrap()).sum::<u64>();
        assert_eq!((sum(0..4), sum(4..8)), (1003, 1003));
        assert_eq!(params.stream_bytes(4), Some(251));
    }

    #[test]
    fn limits_are_kept_and_named() {
        let refused = |params: Params| params.check().unwrap_err();
        assert_eq!(refused(Params { streams: 65, ..Params::default() }), "streams: 65 is not within 1 to 64");
        assert!(refused(Params { streams: 0, ..Params::default() }).starts_with("streams"));
        assert!(refused(Params { congestion: "cu/bic".into(), ..Params::default() }).contains("cu/bic"));
        assert!(refused(Params { amount: Amount::Bytes(0), ..Params::default() }).starts_with("bytes"));
        let udp = UdpParams { datagram_bytes: 1472, gso_segments: 45, gro: false, rate_bps: 0 };
        let params = Params { workload: Workload::Udp(udp), ..Params::default() };
        assert!(refused(params).starts_with("super-frame in bytes: 66240"));
        assert_eq!(Params::default().check(), Ok(()));
    }

    #[test]
    fn calls_and_receive_windows_have_limits_too() {
        let refused = |params: Params| params.check().unwrap_err();
        let rpc = |rpc| Params { workload: Workload::Rpc(rpc), ..Params::default() };
        assert_eq!(rpc(RpcParams::default()).check(), Ok(()));
        assert!(refused(rpc(RpcParams { outstanding: 0, ..RpcParams::default() })).starts_with("calls under way: 0"));
        assert!(refused(rpc(RpcParams { request_bytes: 7, ..RpcParams::default() })).starts_with("request in bytes"));
        assert!(refused(rpc(RpcParams { timer_usecs: 0, ..RpcParams::default() })).contains("sent again"));
        let both_ways = Params { direction: Direction::Both, ..rpc(RpcParams::default()) };
        assert!(refused(both_ways).contains("leave the direction"));
        let narrow = Params { receive_window_bytes: 4096, ..Params::default() };
        assert_eq!(narrow.check(), Ok(()));
        assert!(refused(Params { receive_window_bytes: 100, ..Params::default() }).starts_with("receive window"));
        assert!(refused(Params { window_bytes: 1, ..narrow }).contains("no socket buffers"));
        let bulk = BulkParams { cut_off: true, ..BulkParams::default() };
        let over_bytes = Params { workload: Workload::Bulk(bulk), amount: Amount::Bytes(1), ..Params::default() };
        assert!(refused(over_bytes).contains("not cut off"));
    }
}

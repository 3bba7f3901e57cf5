//! The results of a test: figures of each end, of each direction, and of the whole test. A report is written as JSON
//! for programs, and as text for people.

use std::fmt;
use std::ops::{AddAssign, Sub};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::params::{Direction, Params, Workload};

/// Nanoseconds per microsecond.
const NSECS_PER_USEC: f64 = 1e3;
/// Minimum duration of a stall that the text report mentions, in seconds. A working connection within one machine never
/// stalls this long.
const STALL_TOLD_SECONDS: f64 = 0.1;

/// Processor time of the data threads, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Processor time in the program, in seconds.
    pub user_seconds: f64,
    /// Processor time in the kernel on behalf of the program, in seconds. Interrupts handled by other threads are not
    /// included.
    pub system_seconds: f64,
}

impl CpuTime {
    /// Returns the sum of program and kernel time, in seconds.
    pub fn total_seconds(self) -> f64 {
        self.user_seconds + self.system_seconds
    }
}

impl AddAssign for CpuTime {
    fn add_assign(&mut self, other: Self) {
        self.user_seconds += other.user_seconds;
        self.system_seconds += other.system_seconds;
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            user_seconds: self.user_seconds - earlier.user_seconds,
            system_seconds: self.system_seconds - earlier.system_seconds,
        }
    }
}

/// TCP figures of one end. Counts cover the measured window and all streams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpFigures {
    /// Congestion control, read back from the socket.
    pub congestion: String,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Segments sent, as counted by TCP: a super-frame counts as all its segments.
    pub segments_sent: u64,
    /// Segments received.
    pub segments_received: u64,
    /// Segments received out of order.
    pub segments_out_of_order: u64,
    /// Maximum segment size in bytes of payload, as the mean over the streams.
    pub mss_bytes: u32,
    /// Congestion window in segments at the end of the measured window, as the mean over the streams.
    pub cwnd_segments: u32,
    /// Smoothed round-trip time in microseconds at the end of the measured window, as the mean over the streams.
    pub rtt_us: u32,
    /// Deviation of the round-trip time in microseconds at the end of the measured window, as the mean over the
    /// streams.
    pub rttvar_us: u32,
    /// Duplicate SACKs received (RFC 2883), one for each needless retransmission.
    #[serde(default)]
    pub dsacks: u64,
    /// Number of reordering events that TCP detected (`tcpi_reord_seen`).
    #[serde(default)]
    pub reorderings: u64,
    /// Median congestion window in segments, over all streams and the whole measured window, sampled a hundred times a
    /// second. `None` if this end did not send, or if the measured window was too short for a sample.
    #[serde(default)]
    pub cwnd_median_segments: Option<f64>,
}

/// Counters of remote procedure calls in the measured window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcCounts {
    /// Requests retransmitted.
    pub retransmits: u64,
    /// Responses that match no outstanding call, because the call was already answered or the size is wrong.
    pub unwanted: u64,
}

/// Counters of a UDP receiver over the whole test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagrams {
    /// Datagrams with a lower sequence number than an earlier datagram.
    pub out_of_order: u64,
    /// Datagrams whose size differs from the sent size.
    pub wrong_size: u64,
    /// Reads that returned data. With `UDP_GRO`, one read can return several datagrams.
    pub reads: u64,
}

/// An interim result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Start of the interval, in seconds since the start of the measured window.
    pub start_seconds: f64,
    /// End of the interval, in seconds since the start of the measured window.
    pub end_seconds: f64,
    /// Payload bytes carried.
    pub bytes: u64,
    /// Datagrams or transactions carried; 0 for TCP bulk data.
    pub units: u64,
    /// Payload bits per second.
    pub throughput_bps: f64,
    /// Segments retransmitted by this end.
    pub retransmits: u64,
    /// Congestion window of this end in segments, as the mean over the streams; 0 for UDP.
    pub cwnd_segments: u32,
}

/// Figures of one end in one direction, over all streams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndFigures {
    /// Payload bytes in the measured window.
    pub bytes: u64,
    /// Exact duration of this end's measured window, in seconds.
    pub seconds: f64,
    /// Payload bytes over the whole test, including warm-up and drain.
    pub bytes_total: u64,
    /// Number of datagrams or transactions in the measured window; 0 for TCP bulk data.
    pub units: u64,
    /// Number of datagrams or transactions over the whole test.
    pub units_total: u64,
    /// Processor time in the measured window.
    pub cpu: CpuTime,
    /// TCP figures; `None` for UDP.
    pub tcp: Option<TcpFigures>,
    /// Counters of a UDP receiver; `None` for an end that receives no UDP bulk data.
    pub datagrams: Option<Datagrams>,
    /// Counters of the client's remote procedure calls; `None` for an end that makes no remote procedure calls.
    #[serde(default)]
    pub rpc: Option<RpcCounts>,
    /// Longest time without progress in the measured window, in seconds, exact to 0.01 s; `None` in a test without TCP.
    #[serde(default)]
    pub stall_seconds: Option<f64>,
    /// Number of bytes that differ from the pattern; 0 without a pattern.
    pub corrupt_bytes: u64,
    /// Number of an open loop's requests that were due in the measured window but never answered, counted by the
    /// client.
    #[serde(default)]
    pub unanswered: u64,
    /// True if every stream is complete: the sender sent all data, or the receiver reached the end of the stream.
    pub complete: bool,
    /// Interim results; empty if none were requested.
    pub intervals: Vec<Interval>,
    /// Errors of the incomplete streams.
    pub errors: Vec<String>,
}

/// Figures of one direction, from its sender and its receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Payload bits per second at the receiver.
    pub throughput_bps: f64,
    /// Payload bytes in the receiver's measured window.
    pub bytes: u64,
    /// Duration of the receiver's measured window, in seconds.
    pub seconds: f64,
    /// Segments retransmitted in the sender's measured window.
    pub retransmits: u64,
    /// Datagrams sent but never received over the whole test; 0 for TCP.
    pub datagrams_lost: u64,
    /// Figures of the sending end.
    pub sender: EndFigures,
    /// Figures of the receiving end.
    pub receiver: EndFigures,
}

impl Flow {
    pub(super) fn new(sender: EndFigures, receiver: EndFigures) -> Self {
        Self {
            throughput_bps: rate_bps(receiver.bytes, receiver.seconds),
            bytes: receiver.bytes,
            seconds: receiver.seconds,
            retransmits: sender.tcp.as_ref().map_or(0, |tcp| tcp.retransmits),
            datagrams_lost: sender.units_total.saturating_sub(receiver.units_total),
            sender,
            receiver,
        }
    }
}

/// Distribution of the transaction times, in microseconds with three significant digits. A transaction lasts from the
/// write of the request's first byte to the read of the response's last byte. In an open loop, a transaction begins
/// earlier, when its request is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of transactions in the distribution.
    pub count: u64,
    /// Shortest transaction time, in microseconds.
    pub min_us: f64,
    /// Mean transaction time, in microseconds.
    pub mean_us: f64,
    /// Median transaction time, in microseconds.
    pub p50_us: f64,
    /// 90th percentile of the transaction times, in microseconds.
    pub p90_us: f64,
    /// 99th percentile of the transaction times, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the transaction times, in microseconds.
    pub p99_9_us: f64,
    /// Longest transaction time, in microseconds.
    pub max_us: f64,
}

impl Latency {
    /// Returns the figures of a histogram of nanoseconds; all figures are 0 if the histogram is empty.
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let quantile = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / NSECS_PER_USEC;
        Self {
            count: histogram.len(),
            min_us: histogram.min() as f64 / NSECS_PER_USEC,
            mean_us: histogram.mean() / NSECS_PER_USEC,
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p99_9_us: quantile(0.999),
            max_us: histogram.max() as f64 / NSECS_PER_USEC,
        }
    }
}

/// Results of a request/response test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transactions {
    /// Transactions completed per second of the client's measured window, over all streams.
    pub per_second: f64,
    /// Distribution of the transaction times.
    pub latency: Latency,
    /// Figures of the client. The bytes include requests and responses.
    pub client: EndFigures,
    /// Figures of the server. The bytes include requests and responses.
    pub server: EndFigures,
}

/// Results of a test with remote procedure calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rpc {
    /// Calls answered per second of the client's measured window, over all streams.
    pub per_second: f64,
    /// Payload bits per second of the responses that answered an outstanding call.
    pub goodput_bps: f64,
    /// Distribution of the answered calls' times, from the first request to the response.
    pub latency: Latency,
    /// Counters of retransmissions and unwanted responses.
    pub counts: RpcCounts,
    /// Figures of the client. The bytes include only responses that answered an outstanding call.
    pub client: EndFigures,
    /// Figures of the server. The bytes include all responses.
    pub server: EndFigures,
}

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Control address of the server.
    pub server: String,
    /// The parameters of the test.
    pub params: Params,
    /// The direction of the data.
    pub direction: Direction,
    /// Number of streams in each direction.
    pub streams: u32,
    /// Congestion control read back from the data sockets; empty for UDP.
    pub congestion: String,
    /// Payload bits per second of both directions together, each measured at its receiver. In a test of transactions,
    /// the bytes of requests and responses count. In a mixed test, only the bulk data counts.
    pub throughput_bps: f64,
    /// Payload bytes of both directions in the measured window, counted as in `throughput_bps`.
    pub bytes: u64,
    /// Duration of the client's measured window in seconds. In a test that transfers a given number of bytes, this is
    /// the time from the first to the last byte at the receiver.
    pub seconds: f64,
    /// Segments retransmitted in the measured window by both ends.
    pub retransmits: u64,
    /// Segments sent in the measured window by both ends, including acknowledgements; 0 for UDP.
    pub segments: u64,
    /// Processor time of the client's data threads in the client's measured window.
    pub client_cpu: CpuTime,
    /// Processor time of the server's data threads in the server's measured window.
    pub server_cpu: CpuTime,
    /// Figures of the bulk data or UDP datagrams from the client to the server, if the test sends any.
    pub send: Option<Flow>,
    /// Figures of the bulk data or UDP datagrams from the server to the client, if the test sends any.
    pub receive: Option<Flow>,
    /// Figures of the requests and responses, if the test makes requests.
    pub transactions: Option<Transactions>,
    /// Figures of the remote procedure calls, if the test makes calls.
    #[serde(default)]
    pub rpc: Option<Rpc>,
}

impl Report {
    /// Parses the report in the output of `offramp ttcp --json`. Returns `None` if the output contains no report yet.
    pub fn printed(text: &str) -> Option<Self> {
        text.lines().find_map(|line| match serde_json::from_str(line) {
            Ok(Event::Report(report)) => Some(*report),
            _ => None,
        })
    }

    /// Returns the transactions per second, or `None` if the test had no transactions.
    pub fn transactions_per_second(&self) -> Option<f64> {
        self.transactions.as_ref().map(|transactions| transactions.per_second)
    }

    /// Returns the processor time of the sending threads. In a test of transactions or calls, the sending threads are
    /// the client's threads.
    pub fn sender_cpu(&self) -> CpuTime {
        self.cpu_of(|flow| &flow.sender, |transactions| &transactions.client, |rpc| &rpc.client)
    }

    /// Returns the processor time of the receiving threads. In a test of transactions or calls, the receiving threads
    /// are the server's threads.
    pub fn receiver_cpu(&self) -> CpuTime {
        self.cpu_of(|flow| &flow.receiver, |transactions| &transactions.server, |rpc| &rpc.server)
    }

    /// Returns the figures of both ends in every direction.
    pub fn ends(&self) -> impl Iterator<Item = &EndFigures> {
        let flows = self.send.iter().chain(&self.receive).flat_map(|flow| [&flow.sender, &flow.receiver]);
        let transactions = self.transactions.iter().flat_map(|found| [&found.client, &found.server]);
        let rpc = self.rpc.iter().flat_map(|found| [&found.client, &found.server]);
        flows.chain(transactions).chain(rpc)
    }

    /// Returns whether every stream at both ends was complete, or cut off on request, and no byte differed from the
    /// pattern.
    pub fn is_complete(&self) -> bool {
        self.ends().all(|end| (end.complete || self.params.is_cut_off()) && end.corrupt_bytes == 0)
    }

    /// Returns the TCP figures of the ends that sent bulk data.
    pub fn sending_tcp(&self) -> impl Iterator<Item = &TcpFigures> {
        self.send.iter().chain(&self.receive).filter_map(|flow| flow.sender.tcp.as_ref())
    }

    /// Returns the TCP figures of the ends that received bulk data.
    pub fn receiving_tcp(&self) -> impl Iterator<Item = &TcpFigures> {
        self.send.iter().chain(&self.receive).filter_map(|flow| flow.receiver.tcp.as_ref())
    }

    fn cpu_of(
        &self,
        of_flow: impl Fn(&Flow) -> &EndFigures,
        of_transactions: impl Fn(&Transactions) -> &EndFigures,
        of_rpc: impl Fn(&Rpc) -> &EndFigures,
    ) -> CpuTime {
        let mut sum = CpuTime::default();
        for flow in self.send.iter().chain(&self.receive) {
            sum += of_flow(flow).cpu;
        }
        if let Some(transactions) = &self.transactions {
            sum += of_transactions(transactions).cpu;
        }
        if let Some(rpc) = &self.rpc {
            sum += of_rpc(rpc).cpu;
        }
        sum
    }
}

/// An event of a test, passed by [`run_client`](super::run_client) to its caller without delay. In JSON, each event is
/// one object with its name in `event`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// All streams are connected, and the senders are about to start.
    Connected {
        /// Control address of the server.
        server: String,
        /// Congestion control of the data sockets; empty for UDP.
        congestion: String,
    },
    /// The client's measured window begins. An observer should take its first sample now.
    Start,
    /// An interim result of the client.
    Interval {
        /// Data sent by the client, or transactions made by the client.
        sent: Option<Interval>,
        /// Data received by the client.
        received: Option<Interval>,
    },
    /// The client's measured window ends. An observer should take its second sample now.
    End,
    /// The final report of the test.
    Report(Box<Report>),
}

/// Returns the bits per second of `bytes` in `seconds`, or 0 if `seconds` is 0.
pub(super) fn rate_bps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

/// Formats a rate with a suitable unit, such as `34.21 Gbit/s`.
pub fn bits_text(bits_per_second: f64) -> String {
    scaled(bits_per_second, 1000.0, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

fn bytes_text(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} {}", units[0]) } else { format!("{value:.2} {}", units[unit]) }
}

impl fmt::Display for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (amount, rate) = (bytes_text(self.bytes), bits_text(self.throughput_bps));
        write!(formatter, "{:7.2} - {:7.2} s  {amount:>12}  {rate:>14}", self.start_seconds, self.end_seconds)?;
        if self.units > 0 {
            let seconds = self.end_seconds - self.start_seconds;
            write!(formatter, "  {:>12.0} /s", self.units as f64 / seconds)?;
        }
        if self.cwnd_segments > 0 {
            write!(formatter, "  retransmits {:<6} cwnd {}", self.retransmits, self.cwnd_segments)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(flow) = &self.send {
            write_flow(formatter, "client to server", flow)?;
        }
        if let Some(flow) = &self.receive {
            write_flow(formatter, "server to client", flow)?;
        }
        if self.send.is_some() && self.receive.is_some() {
            writeln!(formatter, "both directions   {}", bits_text(self.throughput_bps))?;
        }
        if let Some(transactions) = &self.transactions {
            write_transactions(formatter, &self.params, transactions)?;
        }
        if let Some(rpc) = &self.rpc {
            write_rpc(formatter, rpc)?;
        }
        write_cpu(formatter, "client", self.client_cpu, self.seconds)?;
        write_cpu(formatter, "server", self.server_cpu, self.seconds)?;
        for error in self.ends().flat_map(|end| &end.errors) {
            writeln!(formatter, "incomplete        {error}")?;
        }
        Ok(())
    }
}

fn write_flow(formatter: &mut fmt::Formatter<'_>, name: &str, flow: &Flow) -> fmt::Result {
    let (rate, amount) = (bits_text(flow.throughput_bps), bytes_text(flow.bytes));
    writeln!(formatter, "{name}  {rate} at the receiver ({amount} in {:.3} s)", flow.seconds)?;
    if let Some(tcp) = &flow.sender.tcp {
        writeln!(
            formatter,
            "  {}: retransmits {}, cwnd {} x {} bytes, rtt {} +- {} us",
            tcp.congestion, tcp.retransmits, tcp.cwnd_segments, tcp.mss_bytes, tcp.rtt_us, tcp.rttvar_us
        )?;
        if tcp.dsacks > 0 || tcp.reorderings > 0 {
            writeln!(formatter, "  spurious retransmits {}, reorderings seen {}", tcp.dsacks, tcp.reorderings)?;
        }
    }
    if let Some(tcp) = flow.receiver.tcp.as_ref().filter(|tcp| tcp.segments_out_of_order > 0) {
        writeln!(formatter, "  segments out of order {}", tcp.segments_out_of_order)?;
    }
    if let Some(seconds) = flow.receiver.stall_seconds.filter(|&seconds| seconds >= STALL_TOLD_SECONDS) {
        writeln!(formatter, "  longest stall {seconds:.2} s")?;
    }
    if let Some(datagrams) = &flow.receiver.datagrams {
        let sent = flow.sender.units_total;
        let percent = if sent > 0 { flow.datagrams_lost as f64 * 100.0 / sent as f64 } else { 0.0 };
        writeln!(
            formatter,
            "  datagrams: sent {sent}, received {}, lost {} ({percent:.3} %), out of order {}, wrong size {}",
            flow.receiver.units_total, flow.datagrams_lost, datagrams.out_of_order, datagrams.wrong_size
        )?;
    }
    if flow.receiver.corrupt_bytes > 0 {
        writeln!(formatter, "  CORRUPT: {} bytes differ from the sent ones", flow.receiver.corrupt_bytes)?;
    }
    Ok(())
}

fn write_transactions(formatter: &mut fmt::Formatter<'_>, params: &Params, found: &Transactions) -> fmt::Result {
    let (request_bytes, response_bytes) = match &params.workload {
        Workload::Transaction(asked) => (asked.request_bytes, asked.response_bytes),
        _ => params.requests().map_or((0, 0), |asked| (asked.request_bytes, asked.response_bytes)),
    };
    writeln!(
        formatter,
        "transactions      {:.0} /s ({} in {:.3} s; request {request_bytes} bytes, response {response_bytes} bytes)",
        found.per_second, found.client.units, found.client.seconds
    )?;
    if let Workload::Transaction(asked) = &params.workload {
        let (server, client) = (asked.server_work_iterations, asked.client_work_iterations);
        if server > 0 || client > 0 {
            writeln!(formatter, "  work per transaction: server {server}, client {client} iterations")?;
        }
    }
    if found.client.unanswered > 0 {
        writeln!(formatter, "  without an answer: {}", found.client.unanswered)?;
    }
    write_latency(formatter, &found.latency)?;
    let tcp = found.client.tcp.as_ref();
    tcp.map_or(Ok(()), |tcp| writeln!(formatter, "  {}: retransmits {}", tcp.congestion, tcp.retransmits))
}

fn write_rpc(formatter: &mut fmt::Formatter<'_>, found: &Rpc) -> fmt::Result {
    let (rate, counts) = (bits_text(found.goodput_bps), found.counts);
    writeln!(
        formatter,
        "calls             {:.0} /s, {rate} of responses ({} in {:.3} s; retransmitted {}, unexpected responses {})",
        found.per_second, found.client.units, found.client.seconds, counts.retransmits, counts.unwanted
    )?;
    write_latency(formatter, &found.latency)
}

fn write_latency(formatter: &mut fmt::Formatter<'_>, latency: &Latency) -> fmt::Result {
    writeln!(
        formatter,
        "  latency us: min {:.1}, p50 {:.1}, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}",
        latency.min_us, latency.p50_us, latency.p90_us, latency.p99_us, latency.p99_9_us, latency.max_us
    )
}

fn write_cpu(formatter: &mut fmt::Formatter<'_>, name: &str, cpu: CpuTime, seconds: f64) -> fmt::Result {
    let percent = if seconds > 0.0 { cpu.total_seconds() * 100.0 / seconds } else { 0.0 };
    let (user, system) = (cpu.user_seconds, cpu.system_seconds);
    writeln!(formatter, "{name} cpu        user {user:.3} s, system {system:.3} s ({percent:.0} % of one processor)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_sizes_take_the_unit_that_suits_them() {
        assert_eq!(bits_text(34_210_000_000.0), "34.21 Gbit/s");
        assert_eq!(bits_text(999.0), "999 bit/s");
        assert_eq!(bytes_text(1536), "1.50 KiB");
        assert_eq!(rate_bps(1000, 0.0).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn latency_figures_come_from_the_distribution() {
        let mut histogram = Histogram::new(3).unwrap();
        for usecs in 1..=1000 {
            histogram.record(usecs * 1000).unwrap();
        }
        let latency = Latency::of(&histogram);
        assert_eq!(latency.count, 1000);
        assert!((latency.p50_us - 500.0).abs() < 1.0 && (latency.p99_us - 990.0).abs() < 1.0);
        assert_eq!(Latency::of(&Histogram::new(3).unwrap()), Latency::default());
    }
}

//! `offramp ttcp`: sends traffic through the kernel's sockets and measures it.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use crate::exit::{self, FAILED, SETUP};
use crate::show::seconds;
use clap::{ArgGroup, ValueEnum};
use offramp_daemon::schema::unit::Unit;
use offramp_testbed::traffic::{
    self, Amount, Arrivals, BulkParams, Direction, EndFigures, Event, LENGTH_DEFAULT_BYTES, MixedParams, PORT_DEFAULT,
    Params, RequestParams, RpcParams, ServeOptions, ServerEvent, ServerStats, TransactionParams, UdpParams, Workload,
    bits_text, iterations_for_usecs,
};
use serde_json::json;

/// Microseconds per second.
const USECS_PER_SEC: f64 = 1e6;
/// Default duration of a test, in seconds.
const SECONDS_DEFAULT: f64 = 10.0;

/// Default length of a transaction's request and response, in bytes: those of a short query and of a web page.
const TRANSACTION_REQUEST_BYTES: u32 = 512;
const TRANSACTION_RESPONSE_BYTES: u32 = 8192;

const EXAMPLES: &str = "\
Examples:
  offramp ttcp --serve                                 on one host, then on another:
  offramp ttcp --to 10.0.0.2                           one stream for 10 seconds
  offramp ttcp --to 10.0.0.2 --streams 4 --direction both --interval 1
  offramp ttcp --to 10.0.0.2 --rr                      64-byte ping-pong, and its latencies
  offramp ttcp --to 10.0.0.2 --transaction --response-bytes 32K --work-usecs 50
  offramp ttcp --to 10.0.0.2 --requests --burst 32 --every-usecs 2000
  offramp ttcp --to 10.0.0.2 --mixed --per-second 5000 --rate 500M
  offramp ttcp --to 10.0.0.2 --rpc --reply-bytes 8K --outstanding 4
  offramp ttcp --to 10.0.0.2 --udp --datagram-bytes 1472 --gso-segments 44 --gro --rate 2G

Sizes take K, M, G (times 1024); rates take k, M, G (times 1000).
With --json each line of output is one object: connected, start, interval, end, report. The measured \
window lies between start and end. The throughput is the receiver's.
Exit status: 0 measured; 1 cut off or incomplete; 2 wrong options, or no test began.";

/// Send traffic through the kernel's sockets and measure it at both ends.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, group(ArgGroup::new("mode").required(true).args(["serve", "to"])))]
#[command(group(ArgGroup::new("over_udp").args(["udp", "rpc", "requests"])))]
#[command(group(ArgGroup::new("exchange").args(["rr", "transaction"])))]
#[command(group(ArgGroup::new("open_loop").args(["requests", "mixed"])))]
#[command(group(ArgGroup::new("sized").args(["transaction", "requests", "mixed"]).multiple(true)))]
pub struct Args {
    /// Answer tests until stopped
    #[arg(long)]
    serve: bool,
    /// Run one test against the server at HOST
    #[arg(long, value_name = "HOST")]
    to: Option<String>,
    /// Control port of the server; the kernel chooses the data ports
    #[arg(long, default_value_t = PORT_DEFAULT)]
    port: u16,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// The whole test as one JSON object, as in `params` of a report; for programs
    #[arg(long, hide = true, requires = "to", value_name = "JSON")]
    params: Option<String>,

    /// Address to answer at [default: all]
    #[arg(long, value_name = "ADDR", conflicts_with = "to", help_heading = "Server")]
    bind: Option<IpAddr>,
    /// Stop after one test
    #[arg(long, conflicts_with = "to", help_heading = "Server")]
    once: bool,

    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    exchange: Exchange,
    #[command(flatten)]
    open_loop: OpenLoop,
    #[command(flatten)]
    datagrams: Datagrams,
    #[command(flatten)]
    calls: Calls,
}

/// Options of every test.
#[derive(clap::Args)]
#[command(next_help_heading = "Test")]
struct Load {
    /// Duration of the measurement [default: 10]
    #[arg(long, value_parser = seconds, conflicts_with = "serve", value_name = "SECS")]
    seconds: Option<f64>,
    /// Send this number of bytes in each direction instead, over all streams, without a warm-up
    #[arg(long, value_parser = size, value_name = "SIZE", conflicts_with_all = ["serve", "seconds", "warmup"])]
    bytes: Option<u64>,
    /// Time under load before the measurement
    #[arg(long, value_parser = seconds, default_value = "0.2", conflicts_with = "serve", value_name = "SECS")]
    warmup: f64,
    /// Show interim results [default: none]
    #[arg(long, value_parser = seconds, conflicts_with = "serve", value_name = "SECS")]
    interval: Option<f64>,
    /// Streams in each direction, a thread each
    #[arg(long, default_value_t = 1, conflicts_with = "serve")]
    streams: u32,
    /// Direction of the data
    #[arg(long, value_enum, default_value = "send", conflicts_with = "serve")]
    direction: Way,
    /// Bytes per write
    #[arg(long, value_parser = size32, default_value_t = LENGTH_DEFAULT_BYTES)]
    #[arg(conflicts_with_all = ["serve", "exchange", "over_udp"], value_name = "SIZE")]
    length: u32,
    /// Payload bits per second of bulk data or datagrams in each direction, over all streams [default: no limit]
    #[arg(long, value_parser = rate, conflicts_with_all = ["serve", "exchange", "requests", "rpc"], value_name = "BITS")]
    rate: Option<u64>,
    /// TCP congestion control of all data sockets
    #[arg(long, default_value = traffic::CONGESTION_DEFAULT, conflicts_with_all = ["serve", "over_udp"])]
    #[arg(value_name = "NAME")]
    congestion: String,
    /// Socket buffers of all data sockets [default: the kernel's]
    #[arg(long, value_parser = size32, conflicts_with = "serve", value_name = "SIZE")]
    window: Option<u32>,
    /// Largest window offered by a TCP receiver; Linux offers whole segments of it [default: no limit]
    #[arg(long, value_parser = size32, conflicts_with_all = ["serve", "over_udp", "window"], value_name = "SIZE")]
    receive_window: Option<u32>,
    /// Cut TCP streams off when the duration is over; a stalled stream does not fail the run
    #[arg(long, conflicts_with_all = ["serve", "bytes", "exchange", "over_udp"])]
    cut_off: bool,
    /// Send small segments at once; --rr and --transaction always do
    #[arg(long, conflicts_with_all = ["serve", "over_udp"])]
    nodelay: bool,
    /// Let reads of the data sockets poll the adapter this long before they sleep (`SO_BUSY_POLL`)
    #[arg(long, conflicts_with = "serve", default_value_t = 0, value_name = "USECS")]
    busy_poll_usecs: u32,
    /// Send data made from SEED, and have the receiver compare each byte
    #[arg(long, value_name = "SEED", conflicts_with_all = ["serve", "exchange", "over_udp"])]
    pattern: Option<u64>,
}

/// Options of a request/response test.
#[derive(clap::Args)]
#[command(next_help_heading = "Request and response")]
struct Exchange {
    /// Ping-pong of 64 bytes, and its latency distribution
    #[arg(long, conflicts_with_all = ["serve", "transaction", "over_udp"])]
    rr: bool,
    /// Requests and responses
    #[arg(long, conflicts_with_all = ["serve", "over_udp"])]
    transaction: bool,
    /// Bytes of a request [default: 512; 64 of --requests and --mixed]
    #[arg(long, value_parser = size32, requires = "sized", conflicts_with = "serve", value_name = "SIZE")]
    request_bytes: Option<u32>,
    /// Bytes of a response [default: 8K; 64 of --requests and --mixed]
    #[arg(long, value_parser = size32, requires = "sized", conflicts_with = "serve", value_name = "SIZE")]
    response_bytes: Option<u32>,
    /// Processor time of the server's work on each request, calibrated on this machine now
    #[arg(long, default_value_t = 0, requires = "exchange", conflicts_with = "serve", value_name = "USECS")]
    work_usecs: u64,
    /// The same as a fixed number of rounds, for equal work in all runs of a comparison
    #[arg(long, requires = "exchange", value_name = "N", conflicts_with_all = ["serve", "work_usecs"])]
    work_iterations: Option<u64>,
    /// Processor time of the client's work before each request
    #[arg(long, default_value_t = 0, requires = "exchange", conflicts_with = "serve", value_name = "USECS")]
    client_work_usecs: u64,
    /// The same as a fixed number of rounds
    #[arg(long, requires = "exchange", value_name = "N", conflicts_with_all = ["serve", "client_work_usecs"])]
    client_work_iterations: Option<u64>,
    /// Pause of the client before each request
    #[arg(long, default_value_t = 0, requires = "exchange", conflicts_with = "serve", value_name = "USECS")]
    think_usecs: u64,
}

/// Options of a test of remote procedure calls.
#[derive(clap::Args)]
#[command(next_help_heading = "Remote procedure calls")]
struct Calls {
    /// Calls over UDP as NFS makes them: resend a request without an answer in time
    #[arg(long, conflicts_with_all = ["serve", "exchange"])]
    rpc: bool,
    /// Payload of a call's request
    #[arg(long, value_parser = size32, default_value_t = traffic::RPC_REQUEST_BYTES, requires = "rpc")]
    #[arg(conflicts_with = "serve", value_name = "SIZE")]
    call_bytes: u32,
    /// Payload of a call's response, one datagram
    #[arg(long, value_parser = size32, default_value_t = traffic::RPC_RESPONSE_BYTES, requires = "rpc")]
    #[arg(conflicts_with = "serve", value_name = "SIZE")]
    reply_bytes: u32,
    /// Calls under way on each stream
    #[arg(long, default_value_t = traffic::RPC_OUTSTANDING, requires = "rpc", conflicts_with = "serve")]
    #[arg(value_name = "N")]
    outstanding: u32,
    /// Time until a request is resent
    #[arg(long, default_value_t = traffic::RPC_TIMER_USECS, requires = "rpc", conflicts_with = "serve")]
    #[arg(value_name = "USECS")]
    timer_usecs: u64,
}

/// Options of open-loop requests, sent without regard to earlier answers.
#[derive(clap::Args)]
#[command(next_help_heading = "Requests at given moments")]
struct OpenLoop {
    /// Requests over UDP at given moments; latencies count from these
    #[arg(long, conflicts_with_all = ["serve", "exchange", "mixed"])]
    requests: bool,
    /// TCP bulk data, and such requests beside it on one stream
    #[arg(long, conflicts_with_all = ["serve", "exchange", "over_udp"])]
    mixed: bool,
    /// Requests per second of each stream, at the moments of a Poisson process
    #[arg(long, default_value_t = 1000, requires = "open_loop", value_name = "N", conflicts_with_all = ["serve", "burst"])]
    per_second: u32,
    /// Seed of these moments
    #[arg(long, default_value_t = 1, requires = "open_loop", conflicts_with_all = ["serve", "burst"], value_name = "SEED")]
    arrival_seed: u64,
    /// This number of requests at once instead, again and again
    #[arg(long, requires_all = ["open_loop", "every_usecs"], conflicts_with = "serve", value_name = "N")]
    burst: Option<u32>,
    /// From the begin of one burst to the begin of the next
    #[arg(long, requires = "burst", conflicts_with = "serve", value_name = "USECS")]
    every_usecs: Option<u32>,
}

/// Options of a UDP test.
#[derive(clap::Args)]
#[command(next_help_heading = "UDP")]
struct Datagrams {
    /// UDP datagrams with sequence numbers
    #[arg(long, conflicts_with = "serve")]
    udp: bool,
    /// Payload of a datagram
    #[arg(long, value_parser = size32, default_value = "1472", requires = "udp")]
    #[arg(conflicts_with = "serve", value_name = "SIZE")]
    datagram_bytes: u32,
    /// Datagrams per write, segmented by the kernel (`UDP_SEGMENT`)
    #[arg(long, default_value_t = 1, requires = "udp", conflicts_with = "serve", value_name = "N")]
    gso_segments: u32,
    /// The receiver takes several datagrams at once (`UDP_GRO`)
    #[arg(long, requires = "udp", conflicts_with = "serve")]
    gro: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// From this host to the server
    Send,
    /// From the server to this host
    Receive,
    /// Both at once
    Both,
}

/// Runs `offramp ttcp`.
pub fn run(args: &Args) -> ExitCode {
    match &args.to {
        Some(host) => run_test(args, host),
        None => run_server(args),
    }
}

fn run_test(args: &Args, host: &str) -> ExitCode {
    let params = match &args.params {
        Some(json) => match serde_json::from_str(json) {
            Ok(params) => params,
            Err(error) => return fail(format!("--params: {error}"), SETUP),
        },
        None => args.params(),
    };
    let result = traffic::run_client(host, args.port, &params, &mut |event| {
        if args.json { print_json(event) } else { print_event(event, &params) }
    });
    match result {
        Ok(report) if report.is_complete() => ExitCode::SUCCESS,
        Ok(_) => fail("incomplete: some streams ended early or with changed data; see the report", FAILED),
        Err(error) => fail(&error, if error.is_setup() { SETUP } else { FAILED }),
    }
}

fn run_server(args: &Args) -> ExitCode {
    let (listener, address) = match listen(args) {
        Ok(listening) => listening,
        Err(error) => return fail(error, SETUP),
    };
    if args.json {
        print_json(&json!({"event": "listening", "address": address.to_string(), "port": address.port()}));
    } else {
        print_line(format!("ttcp: serving at {address}"));
    }
    let options = ServeOptions { once: args.once };
    let stats = ServerStats::default();
    let tell = |event| if args.json { print_json(&json_of(&event)) } else { print_line(text_of(&event)) };
    match traffic::serve(&listener, options, &AtomicBool::new(false), &stats, &tell) {
        Ok(()) if stats.lost.into_inner() == 0 => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(FAILED),
        Err(error) => fail(format!("cannot serve at {address}: {error}"), FAILED),
    }
}

/// Listens at the given address. By default, listens at all addresses of both families, or of IPv4 if IPv6 is off.
fn listen(args: &Args) -> Result<(TcpListener, SocketAddr), String> {
    let all = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let wanted = args.bind.map_or(all.to_vec(), |address| vec![address]);
    let mut failure = String::new();
    for ip in wanted {
        let address = SocketAddr::new(ip, args.port);
        match TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((bound, listener)) => return Ok((listener, bound)),
            Err(error) => {
                failure = format!("cannot listen at {address}: {error}; choose another with --port or --bind");
                if error.kind() == io::ErrorKind::AddrInUse {
                    break;
                }
            }
        }
    }
    Err(failure)
}

impl Args {
    fn params(&self) -> Params {
        let load = &self.load;
        Params {
            workload: self.workload(),
            direction: load.direction.into(),
            streams: load.streams,
            amount: match load.bytes {
                Some(bytes) => Amount::Bytes(bytes),
                None => Amount::Usecs(usecs(load.seconds.unwrap_or(SECONDS_DEFAULT))),
            },
            warmup_usecs: usecs(load.warmup),
            interval_usecs: load.interval.map_or(0, usecs),
            congestion: load.congestion.clone(),
            window_bytes: load.window.unwrap_or(0),
            receive_window_bytes: load.receive_window.unwrap_or(0),
            nodelay: load.nodelay,
            busy_poll_usecs: load.busy_poll_usecs,
        }
    }

    fn workload(&self) -> Workload {
        let (exchange, datagrams) = (&self.exchange, &self.datagrams);
        if datagrams.udp {
            Workload::Udp(UdpParams {
                datagram_bytes: datagrams.datagram_bytes,
                gso_segments: datagrams.gso_segments,
                gro: datagrams.gro,
                rate_bps: self.load.rate.unwrap_or(0),
            })
        } else if self.calls.rpc {
            Workload::Rpc(self.calls.params())
        } else if exchange.rr || exchange.transaction {
            Workload::Transaction(exchange.params())
        } else if self.open_loop.requests {
            Workload::Requests(self.requests())
        } else if self.open_loop.mixed {
            Workload::Mixed(MixedParams { bulk: self.load.bulk(), requests: self.requests() })
        } else {
            Workload::Bulk(self.load.bulk())
        }
    }

    fn requests(&self) -> RequestParams {
        let asked = &self.open_loop;
        RequestParams {
            request_bytes: self.exchange.request_bytes.unwrap_or(traffic::RR_MESSAGE_BYTES),
            response_bytes: self.exchange.response_bytes.unwrap_or(traffic::RR_MESSAGE_BYTES),
            arrivals: match asked.burst.zip(asked.every_usecs) {
                Some((requests, every_usecs)) => Arrivals::Bursts { requests, every_usecs },
                None => Arrivals::Poisson { per_s: asked.per_second, seed: asked.arrival_seed },
            },
        }
    }
}

impl Load {
    fn bulk(&self) -> BulkParams {
        let Self { length, pattern, cut_off, rate, .. } = self;
        BulkParams { length_bytes: *length, pattern_seed: *pattern, cut_off: *cut_off, rate_bps: rate.unwrap_or(0) }
    }
}

impl Exchange {
    fn params(&self) -> TransactionParams {
        let work = |iterations: Option<u64>, usecs| match (iterations, usecs) {
            (Some(iterations), _) => iterations,
            (None, 0) => 0,
            (None, usecs) => iterations_for_usecs(usecs),
        };
        let (request_bytes, response_bytes) = if self.rr {
            (traffic::RR_MESSAGE_BYTES, traffic::RR_MESSAGE_BYTES)
        } else {
            (
                self.request_bytes.unwrap_or(TRANSACTION_REQUEST_BYTES),
                self.response_bytes.unwrap_or(TRANSACTION_RESPONSE_BYTES),
            )
        };
        TransactionParams {
            request_bytes,
            response_bytes,
            server_work_iterations: work(self.work_iterations, self.work_usecs),
            client_work_iterations: work(self.client_work_iterations, self.client_work_usecs),
            think_usecs: self.think_usecs,
        }
    }
}

impl Calls {
    fn params(&self) -> RpcParams {
        RpcParams {
            request_bytes: self.call_bytes,
            response_bytes: self.reply_bytes,
            outstanding: self.outstanding,
            timer_usecs: self.timer_usecs,
        }
    }
}

impl From<Way> for Direction {
    fn from(way: Way) -> Self {
        match way {
            Way::Send => Self::Send,
            Way::Receive => Self::Receive,
            Way::Both => Self::Both,
        }
    }
}

fn print_event(event: &Event, params: &Params) {
    match event {
        Event::Connected { server, congestion } => {
            let streams =
                if params.streams == 1 { "1 stream".to_owned() } else { format!("{} streams", params.streams) };
            let control =
                if congestion.is_empty() { String::new() } else { format!(", congestion control {congestion}") };
            print_line(format!("ttcp: {}, {streams} with {server}{control}", kind_text(params)));
        }
        Event::Interval { sent, received } => {
            for (name, interval) in [("sent    ", sent), ("received", received)] {
                if let Some(interval) = interval {
                    print_line(format!("{name} {interval}"));
                }
            }
        }
        Event::Report(report) => print_line(report.to_string().trim_end()),
        Event::Start | Event::End => {}
    }
}

fn kind_text(params: &Params) -> &'static str {
    match params.workload {
        Workload::Bulk(_) => "TCP bulk data",
        Workload::Transaction(_) => "TCP requests and responses",
        Workload::Udp(_) => "UDP datagrams",
        Workload::Requests(_) => "UDP requests at given moments",
        Workload::Mixed(_) => "TCP bulk data beside UDP requests at given moments",
        Workload::Rpc(_) => "calls over UDP",
    }
}

fn text_of(event: &ServerEvent) -> String {
    let rate = |end: &EndFigures| bits_text(if end.seconds > 0.0 { end.bytes as f64 * 8.0 / end.seconds } else { 0.0 });
    match event {
        ServerEvent::Served { peer, params, sent, received } => {
            let part = |(name, end): (&str, &Option<Box<EndFigures>>)| {
                end.as_ref().map(|end| format!(", {name} {} for {:.3} s", rate(end), end.seconds))
            };
            let parts: String = [("received", received), ("sent", sent)].into_iter().filter_map(part).collect();
            format!("ttcp: {peer}: {}{parts}", kind_text(params))
        }
        ServerEvent::Refused { peer, reason } => format!("ttcp: {peer}: refused: {reason}"),
        ServerEvent::Lost { peer, reason } => format!("ttcp: {peer}: cut off: {reason}"),
    }
}

fn json_of(event: &ServerEvent) -> serde_json::Value {
    match event {
        ServerEvent::Served { peer, params, sent, received } => {
            json!({"event": "served", "peer": peer.to_string(), "params": params, "sent": sent, "received": received})
        }
        ServerEvent::Refused { peer, reason } => {
            json!({"event": "refused", "peer": peer.to_string(), "reason": reason})
        }
        ServerEvent::Lost { peer, reason } => json!({"event": "lost", "peer": peer.to_string(), "reason": reason}),
    }
}

fn print_json(value: &impl serde::Serialize) {
    // Serialization cannot fail, because every map has string keys and all numbers are finite.
    print_line(serde_json::to_string(value).unwrap_or_default());
}

/// Prints and flushes one line, so that the reader of a pipe receives an event at once.
fn print_line(line: impl Display) {
    let mut out = io::stdout().lock();
    // Without a reader, the test still runs to its end, and the exit status reports the result.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn fail(message: impl Display, status: u8) -> ExitCode {
    exit::fail(format_args!("ttcp: {message}"), status)
}

fn usecs(seconds: f64) -> u64 {
    (seconds * USECS_PER_SEC).round() as u64
}

fn size(text: &str) -> Result<u64, String> {
    Unit::Bytes.parse(text)
}

fn size32(text: &str) -> Result<u32, String> {
    size(text)?.try_into().map_err(|_| "too large".to_owned())
}

pub fn rate(text: &str) -> Result<u64, String> {
    Unit::BitsPerSecond.parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_in_1024_and_rates_in_1000() {
        assert_eq!((size("128K"), rate("2G")), (Ok(131_072), Ok(2_000_000_000)));
        assert_eq!(size("7"), Ok(7));
        assert!(size("K").is_err() && size("1T").is_err() && size("-1").is_err() && size("").is_err());
        assert!(size("99999999999G").is_err() && size32("4G").is_err());
    }

    #[test]
    fn a_time_is_finite_and_not_negative() {
        assert_eq!(seconds("0.2").map(usecs), Ok(200_000));
        assert!(seconds("-1").is_err() && seconds("nan").is_err() && seconds("inf").is_err());
    }
}

//! The client's end of one test.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::error::{TrafficError, reason};
use super::params::{Amount, Params, Workload};
use super::report::{CpuTime, EndFigures, Event, Flow, Latency, Report, Rpc, Transactions, rate_bps};
use super::side::{DRAIN_MAX, DRAIN_STALL, Intervals, Side, SideFigures};
use super::sockets::{CONNECT_TIMEOUT, congestion_of, data_connect, ready_stream, udp_socket};
use super::streams::{End, Sources, spawn_tcp, spawn_udp};
use super::wire::{
    ClientLine, Control, SERVER_LINE_LEN_MAX, ServerLine, VERSION, WireError, data_hello, token_from_text,
};

/// Timeout for the server's answer during set-up, longer than the server's own timeout for data connections.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for the server's [`ServerLine::Ended`]. The server answers late if the client's [`ClientLine::End`] waits in
/// a queue of the path behind measured data.
const ENDED_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time without progress in a test that transfers a given number of bytes.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Interval at which a waiting client checks the progress.
const PROGRESS_POLL: Duration = Duration::from_millis(500);

/// Runs one test against the server at `host`, control port `port`, and passes each event to `on_event`. All threads
/// and sockets belong to the caller's network namespace. When the function returns, all threads have ended and all
/// sockets are closed.
///
/// # Errors
/// Returns a [`TrafficError`] if the test does not begin or is aborted. [`is_setup`](TrafficError::is_setup)
/// distinguishes a test that did not begin from an aborted test. A finished test with failed streams is no error; see
/// [`Report::is_complete`].
pub fn run_client(
    host: &str,
    port: u16,
    params: &Params,
    on_event: &mut dyn FnMut(&Event),
) -> Result<Report, TrafficError> {
    params.check().map_err(TrafficError::Params)?;
    let (stream, address) = connect_control(host, port)?;
    let control = Control::new(stream, SERVER_LINE_LEN_MAX)
        .map_err(|error| TrafficError::socket("set up the control connection", &error))?;
    let mut test = Test { control, address, params, side: Side::new(params), on_event };
    let congestion = test.set_up()?;
    (test.on_event)(&Event::Connected { server: address.to_string(), congestion: congestion.clone() });
    match params.amount {
        Amount::Usecs(usecs) => test.run_timed(Duration::from_micros(usecs))?,
        Amount::Bytes(_) => test.run_bytes()?,
    }
    let server = test.results()?;
    let (client, times) = test.side.figures();
    if !params.is_timed() {
        (test.on_event)(&Event::End);
    }
    let report = merge(address, params, congestion, client, server, times.as_ref())
        .ok_or_else(|| test.protocol("the server's results do not match the test"))?;
    (test.on_event)(&Event::Report(Box::new(report.clone())));
    Ok(report)
}

fn connect_control(host: &str, port: u16) -> Result<(TcpStream, SocketAddr), TrafficError> {
    let unresolved = |reason| TrafficError::Resolve { host: host.to_owned(), reason };
    let addresses = (host, port).to_socket_addrs().map_err(|error| unresolved(reason(&error)))?;
    let mut failure = unresolved("no address".to_owned());
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => failure = TrafficError::Connect { address, reason: reason(&error) },
        }
    }
    Err(failure)
}

struct Test<'test> {
    control: Control,
    address: SocketAddr,
    params: &'test Params,
    side: Side,
    on_event: &'test mut dyn FnMut(&Event),
}

impl Test<'_> {
    /// Sets the test up, from the client's line `hello` to the server's line `go`. On return, all streams are connected
    /// and all receivers run. Returns the congestion control.
    fn set_up(&mut self) -> Result<String, TrafficError> {
        let udp = self.udp_sockets()?;
        let udp_ports = udp.iter().map(|socket| Ok(socket.local_addr()?.port())).collect::<io::Result<Vec<_>>>();
        let udp_ports = udp_ports.map_err(|error| TrafficError::socket("read the port of a UDP socket", &error))?;
        self.say(&ClientLine::Hello { version: VERSION, params: self.params.clone(), udp_ports })?;
        let ServerLine::Ready { port, udp_ports, token } = self.hear_in_setup()? else {
            return Err(self.protocol("the server did not answer the hello with ready"));
        };
        self.start_udp(udp, &udp_ports)?;
        let congestion = if self.params.tcp_sockets() > 0 {
            let token = token_from_text(&token).ok_or_else(|| self.protocol("the server's token is malformed"))?;
            self.start_tcp(port, token)?
        } else {
            String::new()
        };
        match self.hear_in_setup()? {
            ServerLine::Go => Ok(congestion),
            _ => Err(self.protocol("the server did not send go")),
        }
    }

    fn udp_sockets(&self) -> Result<Vec<UdpSocket>, TrafficError> {
        let any = if self.address.is_ipv4() {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        };
        let sockets: io::Result<_> = (0..self.params.udp_sockets()).map(|_| udp_socket(any, self.params)).collect();
        sockets.map_err(|error| TrafficError::socket("open a UDP socket", &error))
    }

    fn start_udp(&mut self, sockets: Vec<UdpSocket>, ports: &[u16]) -> Result<(), TrafficError> {
        if sockets.len() != ports.len() {
            return Err(self.protocol("the server has a different number of UDP sockets"));
        }
        for (socket, &port) in sockets.iter().zip(ports) {
            socket
                .connect(SocketAddr::new(self.address.ip(), port))
                .map_err(|error| TrafficError::socket("connect a UDP socket", &error))?;
        }
        spawn_udp(&mut self.side, End::Client, self.params, sockets)
            .map_err(|error| TrafficError::socket("start a UDP stream", &error))
    }

    fn start_tcp(&mut self, port: u16, token: u128) -> Result<String, TrafficError> {
        let address = SocketAddr::new(self.address.ip(), port);
        let sources = Sources::new(self.params);
        let mut congestion = String::new();
        for index in 0..self.params.tcp_sockets() {
            let stream = data_connect(address, self.params).map_err(|failed| {
                let action = failed.0.clone();
                TrafficError::socket(action, &failed.1)
            })?;
            congestion = congestion_of(&stream);
            greet(&stream, token, index)
                .and_then(|()| ready_stream(&stream, self.params))
                .and_then(|()| spawn_tcp(&mut self.side, End::Client, self.params, &sources, index, stream))
                .map_err(|error| TrafficError::socket(format!("start stream {index}"), &error))?;
        }
        Ok(congestion)
    }

    fn run_timed(&mut self, length: Duration) -> Result<(), TrafficError> {
        self.begin()?;
        self.keep_running(Instant::now() + Duration::from_micros(self.params.warmup_usecs))?;
        self.side.open_window();
        (self.on_event)(&Event::Start);
        self.say(&ClientLine::Start)?;
        self.keep_running(Instant::now() + length)?;
        let last = self.side.close_window();
        self.tell_interval(last);
        (self.on_event)(&Event::End);
        self.say(&ClientLine::End)?;
        match self.control.receive(Instant::now() + ENDED_TIMEOUT) {
            Ok(ServerLine::Ended) | Err(WireError::Timeout) => {}
            Ok(other) => return Err(self.unexpected(other)),
            Err(error) => return Err(self.lost(error)),
        }
        self.side.stop();
        self.say(&ClientLine::Stop)?;
        self.side.drain(|| true);
        Ok(())
    }

    fn run_bytes(&mut self) -> Result<(), TrafficError> {
        (self.on_event)(&Event::Start);
        self.begin()?;
        let (mut moved, mut progress) = (Instant::now(), 0);
        while !self.wait_and_tick(Instant::now() + PROGRESS_POLL) {
            if self.side.progress() != progress {
                (moved, progress) = (Instant::now(), self.side.progress());
            }
            if moved.elapsed() > STALL_MAX {
                return Err(self.lost(format!("no data moved for {} s", STALL_MAX.as_secs())));
            }
        }
        self.say(&ClientLine::Stop)
    }

    fn begin(&mut self) -> Result<(), TrafficError> {
        self.side.begin();
        self.say(&ClientLine::Begin)
    }

    /// Waits until `until` while the load runs. Fails if all data threads end earlier.
    fn keep_running(&mut self, until: Instant) -> Result<(), TrafficError> {
        while Instant::now() < until {
            if self.wait_and_tick(until) {
                let (figures, _) = self.side.figures();
                let errors: Vec<_> = figures.ends().flat_map(|end| end.errors.clone()).collect();
                return Err(self.lost(format!("every stream ended early ({})", errors.join("; "))));
            }
        }
        Ok(())
    }

    /// Waits until all data threads have ended or the next poll is due, at most until `until`. Reports an interim
    /// result if one is due. Returns whether all data threads have ended.
    fn wait_and_tick(&mut self, until: Instant) -> bool {
        let next = self.side.next_tick().map_or(until, |tick| tick.min(until));
        let ended = self.side.wait(next);
        let interval = self.side.tick();
        self.tell_interval(interval);
        ended
    }

    fn tell_interval(&mut self, interval: Option<Intervals>) {
        if let Some((sent, received)) = interval {
            (self.on_event)(&Event::Interval { sent, received });
        }
    }

    fn results(&mut self) -> Result<SideFigures, TrafficError> {
        let deadline = Instant::now() + DRAIN_MAX + 2 * DRAIN_STALL;
        loop {
            match self.control.receive(deadline) {
                Ok(ServerLine::Results(figures)) => return Ok(*figures),
                // The server sent this line after the client had stopped waiting for the line.
                Ok(ServerLine::Ended) => {}
                Ok(other) => return Err(self.unexpected(other)),
                Err(error) => return Err(self.lost(error)),
            }
        }
    }

    fn say(&mut self, line: &ClientLine) -> Result<(), TrafficError> {
        let sent = self.control.send(line);
        sent.map_err(|error| self.lost(error))
    }

    fn hear_in_setup(&mut self) -> Result<ServerLine, TrafficError> {
        match self.control.receive(Instant::now() + ANSWER_TIMEOUT) {
            Ok(ServerLine::Refused { reason }) => Err(TrafficError::Refused { address: self.address, reason }),
            Ok(line) => Ok(line),
            Err(error) => Err(self.protocol(error)),
        }
    }

    fn unexpected(&self, line: ServerLine) -> TrafficError {
        match line {
            ServerLine::Refused { reason } => self.lost(format!("the server aborted the test: {reason}")),
            _ => self.lost("the server's lines are out of order"),
        }
    }

    fn protocol(&self, reason: impl Into<String>) -> TrafficError {
        TrafficError::Protocol { address: self.address, reason: reason.into() }
    }

    fn lost(&self, reason: impl Into<String>) -> TrafficError {
        TrafficError::Lost { address: self.address, reason: reason.into() }
    }
}

fn greet(mut stream: &TcpStream, token: u128, index: u32) -> io::Result<()> {
    io::Write::write_all(&mut stream, &data_hello(token, index))
}

/// Merges the figures of both ends. Returns `None` if the figures of an end lack a part that the test's workload
/// requires.
fn merge(
    address: SocketAddr,
    params: &Params,
    congestion: String,
    client: SideFigures,
    server: SideFigures,
    times: Option<&Histogram<u64>>,
) -> Option<Report> {
    let cpu_of = |side: &SideFigures| {
        let mut sum = CpuTime::default();
        side.ends().for_each(|end| sum += end.cpu);
        sum
    };
    let (client_cpu, server_cpu) = (cpu_of(&client), cpu_of(&server));
    let client_seconds = client.sending.as_ref().or(client.receiving.as_ref())?.seconds;
    let (mut send, mut receive, mut transactions, mut rpc) = (None, None, None, None);
    match params.workload {
        Workload::Transaction(_) | Workload::Requests(_) => {
            transactions = Some(merge_transactions(client.sending?, server.receiving?, times));
        }
        Workload::Rpc(_) => rpc = Some(merge_rpc(client.sending?, server.receiving?, times)),
        Workload::Bulk(_) | Workload::Udp(_) | Workload::Mixed(_) => {
            if matches!(params.workload, Workload::Mixed(_)) {
                transactions = Some(merge_transactions(client.exchanging?, server.exchanging?, times));
            }
            if params.direction.sends() {
                send = Some(Flow::new(client.sending?, server.receiving?));
            }
            if params.direction.receives() {
                receive = Some(Flow::new(server.sending?, client.receiving?));
            }
        }
    }
    let flows = || send.iter().chain(&receive);
    let seconds = if params.is_timed() { client_seconds } else { flows().map(|flow| flow.seconds).fold(0.0, f64::max) };
    // In a test with bulk data, requests do not count in the throughput.
    let alone = transactions.as_ref().filter(|_| send.is_none() && receive.is_none());
    let of_transactions = alone.map_or(0, |found: &Transactions| found.client.bytes);
    let exchanged = rpc.as_ref().map_or(of_transactions, |found: &Rpc| found.client.bytes);
    let mut report = Report {
        server: address.to_string(),
        params: params.clone(),
        direction: params.direction,
        streams: params.streams,
        congestion,
        throughput_bps: flows().map(|flow| flow.throughput_bps).sum::<f64>() + rate_bps(exchanged, client_seconds),
        bytes: flows().map(|flow| flow.bytes).sum::<u64>() + exchanged,
        seconds,
        retransmits: 0,
        segments: 0,
        client_cpu,
        server_cpu,
        send,
        receive,
        transactions,
        rpc,
    };
    let tcp = || report.ends().filter_map(|end| end.tcp.as_ref());
    (report.retransmits, report.segments) =
        (tcp().map(|tcp| tcp.retransmits).sum(), tcp().map(|tcp| tcp.segments_sent).sum());
    Some(report)
}

fn merge_transactions(client: EndFigures, server: EndFigures, times: Option<&Histogram<u64>>) -> Transactions {
    let per_second = if client.seconds > 0.0 { client.units as f64 / client.seconds } else { 0.0 };
    Transactions { per_second, latency: times.map(Latency::of).unwrap_or_default(), client, server }
}

fn merge_rpc(client: EndFigures, server: EndFigures, times: Option<&Histogram<u64>>) -> Rpc {
    let per_second = if client.seconds > 0.0 { client.units as f64 / client.seconds } else { 0.0 };
    let (goodput_bps, counts) = (rate_bps(client.bytes, client.seconds), client.rpc.unwrap_or_default());
    Rpc { per_second, goodput_bps, latency: times.map(Latency::of).unwrap_or_default(), counts, client, server }
}

//! Tests of both ends over loopback, in threads of this process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::wire::{ClientLine, ServerLine, VERSION};
use super::*;

/// Duration of a timed test, in microseconds.
const SHORT_USECS: u64 = 200_000;
/// Duration of a timed test's warm-up, in microseconds.
const WARMUP_USECS: u64 = 20_000;

struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    stats: Arc<ServerStats>,
    events: Arc<Mutex<Vec<ServerEvent>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        Self::start_with(ServeOptions::default())
    }

    fn start_with(options: ServeOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::new(ServerStats::default()));
        let events = Arc::new(Mutex::new(Vec::new()));
        let (its_stop, its_stats, its_events) = (Arc::clone(&stop), Arc::clone(&stats), Arc::clone(&events));
        let thread = thread::spawn(move || {
            let tell = |event| its_events.lock().unwrap().push(event);
            serve(&listener, options, &its_stop, &its_stats, &tell).unwrap();
        });
        Self { address, stop, stats, events, thread: Some(thread) }
    }

    fn run(&self, params: &Params) -> (Report, Vec<Event>) {
        let mut events = Vec::new();
        let report = self.try_run(params, &mut |event| events.push(event.clone())).unwrap();
        (report, events)
    }

    fn try_run(&self, params: &Params, on_event: &mut dyn FnMut(&Event)) -> Result<Report, TrafficError> {
        run_client(&self.address.ip().to_string(), self.address.port(), params, on_event)
    }

    /// Sends raw bytes to the control port and returns the server's whole answer.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // The server may refuse and close the connection before all bytes are written.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn wait_for(&self, what: impl Fn(&ServerStats) -> bool) {
        while !what(&self.stats) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "the server panicked");
    }
}

fn timed() -> Params {
    Params { amount: Amount::Usecs(SHORT_USECS), warmup_usecs: WARMUP_USECS, ..Params::default() }
}

fn ping_pong() -> Params {
    Params { workload: Workload::Transaction(TransactionParams::default()), ..timed() }
}

fn udp(gso_segments: u32, gro: bool) -> Params {
    let udp = UdpParams { datagram_bytes: 1000, gso_segments, gro, rate_bps: 200_000_000 };
    Params { workload: Workload::Udp(udp), ..timed() }
}

fn requests(arrivals: Arrivals) -> RequestParams {
    RequestParams { request_bytes: 64, response_bytes: 200, arrivals }
}

fn mixed(rate_bps: u64) -> Params {
    let bulk = BulkParams { length_bytes: 16 * 1024, rate_bps, ..BulkParams::default() };
    let requests = requests(Arrivals::Poisson { per_s: 2000, seed: 1 });
    Params { workload: Workload::Mixed(MixedParams { bulk, requests }), ..timed() }
}

#[test]
fn every_byte_sent_arrives_unchanged_with_one_stream_and_with_four_in_each_direction() {
    let server = Server::start();
    let amount = 10_000_019;
    for direction in [Direction::Send, Direction::Receive, Direction::Both] {
        for streams in [1, 4] {
            let bulk = BulkParams { pattern_seed: Some(42), ..BulkParams::default() };
            let (workload, amount_asked) = (Workload::Bulk(bulk), Amount::Bytes(amount));
            let params = Params { workload, direction, streams, amount: amount_asked, ..Params::default() };
            let (report, _) = server.run(&params);
            assert!(report.is_complete(), "{report}");
            for flow in report.send.iter().chain(&report.receive) {
                assert_eq!((flow.sender.bytes_total, flow.receiver.bytes_total), (amount, amount));
                assert_eq!((flow.bytes, flow.receiver.corrupt_bytes), (amount, 0));
                assert!(flow.throughput_bps > 0.0 && flow.seconds > 0.0);
            }
            assert_eq!(report.send.is_some(), direction.sends());
            assert_eq!(report.receive.is_some(), direction.receives());
        }
    }
    // The client may return before the server increments its counter.
    server.wait_for(|stats| stats.served.load(Ordering::Relaxed) == 6);
}

#[test]
fn a_timed_test_measures_a_window_within_the_load_and_conserves_what_lies_outside_it() {
    let server = Server::start();
    for direction in [Direction::Send, Direction::Receive, Direction::Both] {
        let (report, _) = server.run(&Params { direction, streams: 2, ..timed() });
        assert!(report.is_complete(), "{report}");
        for flow in report.send.iter().chain(&report.receive) {
            assert_eq!(flow.sender.bytes_total, flow.receiver.bytes_total);
            assert!(flow.bytes > 0 && flow.bytes < flow.receiver.bytes_total);
            let tcp = flow.sender.tcp.as_ref().unwrap();
            assert!(tcp.segments_sent > 0 && tcp.cwnd_segments > 0 && tcp.rtt_us > 0);
            assert_eq!(tcp.congestion, "cubic");
        }
        assert_eq!(report.congestion, "cubic");
        assert!(report.seconds >= SHORT_USECS as f64 / 1e6);
        assert!(report.sender_cpu().total_seconds() > 0.0 && report.receiver_cpu().total_seconds() > 0.0);
    }
}

#[test]
fn the_window_is_told_as_it_opens_and_closes_and_its_intervals_add_up() {
    let server = Server::start();
    let (report, events) = server.run(&Params { interval_usecs: 50_000, direction: Direction::Both, ..timed() });
    assert!(matches!(&events[0], Event::Connected { congestion, .. } if congestion == "cubic"));
    assert_eq!(events[1], Event::Start);
    assert!(matches!(events[2], Event::Interval { sent: Some(_), received: Some(_) }));
    assert_eq!(events[events.len() - 2], Event::End);
    assert_eq!(events[events.len() - 1], Event::Report(Box::new(report.clone())));
    for end in report.ends() {
        let sum: u64 = end.intervals.iter().map(|interval| interval.bytes).sum();
        assert_eq!(sum, end.bytes);
        assert!(!end.intervals.is_empty());
        assert!(end.intervals.windows(2).all(|two| two[0].end_seconds.to_bits() == two[1].start_seconds.to_bits()));
    }
}

#[test]
fn ping_pong_gives_a_latency_distribution() {
    let server = Server::start();
    let (report, _) = server.run(&ping_pong());
    let found = report.transactions.as_ref().unwrap();
    assert!(found.latency.count > 0 && found.per_second > 0.0, "{report}");
    assert!(found.latency.min_us <= found.latency.p50_us && found.latency.p50_us <= found.latency.p99_us);
    assert!(found.latency.p99_us <= found.latency.p99_9_us && found.latency.p99_9_us <= found.latency.max_us);
    assert_eq!(found.client.units_total, found.server.units_total);
    assert!(report.is_complete());
}

#[test]
fn transactions_of_any_size_are_answered_whole_and_the_work_shows_on_the_server() {
    let server = Server::start();
    let transaction = TransactionParams {
        request_bytes: 100_000,
        response_bytes: 300_001,
        server_work_iterations: iterations_for_usecs(200),
        client_work_iterations: 10,
        think_usecs: 10,
    };
    let params = Params { workload: Workload::Transaction(transaction), streams: 3, ..timed() };
    let (report, _) = server.run(&params);
    let found = report.transactions.as_ref().unwrap();
    assert_eq!(found.client.bytes_total, found.client.units_total * 400_001);
    assert_eq!(found.client.bytes_total, found.server.bytes_total);
    assert!(report.server_cpu.user_seconds > report.client_cpu.user_seconds, "{report}");
}

#[test]
fn requests_of_an_open_loop_are_made_at_their_moments_and_answered() {
    let server = Server::start();
    for arrivals in [Arrivals::Poisson { per_s: 2000, seed: 1 }, Arrivals::Bursts { requests: 8, every_usecs: 4000 }] {
        let params = Params { workload: Workload::Requests(requests(arrivals)), streams: 2, ..timed() };
        let (report, _) = server.run(&params);
        assert!(report.is_complete(), "{report}");
        let found = report.transactions.as_ref().unwrap();
        let (latency, client) = (found.latency, &found.client);
        assert!(latency.count > 0 && latency.min_us <= latency.p50_us && latency.p99_us <= latency.max_us);
        assert_eq!(client.bytes_total, client.units_total * 264);
        assert!(found.server.units_total >= client.units_total);
        // Two streams send 2000 requests per second each. On a busy machine, the measured window opens and closes late.
        let expected = 2.0 * 2000.0 * report.seconds;
        let due = latency.count as f64;
        assert!((0.5 * expected..2.0 * expected).contains(&due), "{due} instead of {expected}");
        assert!(report.send.is_none() && report.receive.is_none() && report.congestion.is_empty());
    }
}

#[test]
fn requests_that_nobody_answers_stand_in_the_latencies_with_the_time_they_were_waited_for() {
    // A socket that never answers replaces the server. The client's empty datagram would end a real server's thread.
    let (client, silent) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    client.connect(silent.local_addr().unwrap()).unwrap();
    client.set_write_timeout(Some(sockets::IO_TIMEOUT)).unwrap();
    let mut side = side::Side::new(&timed());
    let params = requests(Arrivals::Bursts { requests: 5, every_usecs: 10_000 });
    side.spawn(marks::Role::Sending, None, move |context| super::requests::request(&client, &params, 0, context))
        .unwrap();
    side.begin();
    thread::sleep(Duration::from_millis(20));
    side.open_window();
    thread::sleep(Duration::from_millis(100));
    side.close_window();
    side.stop();
    side.drain(|| true);
    let (figures, times) = side.figures();
    let (sending, times) = (figures.sending.unwrap(), times.unwrap());
    assert_eq!((sending.units_total, sending.complete), (0, true), "{:?}", sending.errors);
    assert!(sending.unanswered > 0);
    assert_eq!(sending.unanswered, times.len());
    assert!(times.min() >= 100_000_000, "waited {} ns", times.min());
}

#[test]
fn bulk_data_and_requests_run_at_the_same_time_and_each_has_its_figures() {
    let server = Server::start();
    for direction in [Direction::Send, Direction::Receive, Direction::Both] {
        let (report, _) = server.run(&Params { direction, streams: 2, interval_usecs: 50_000, ..mixed(0) });
        assert!(report.is_complete(), "{report}");
        let found = report.transactions.as_ref().unwrap();
        assert!(found.latency.count > 0 && found.client.units_total > 0);
        assert_eq!((report.send.is_some(), report.receive.is_some()), (direction.sends(), direction.receives()));
        let flows = || report.send.iter().chain(&report.receive);
        assert!(flows().all(|flow| flow.bytes > 0 && flow.sender.bytes_total == flow.receiver.bytes_total));
        let bulk: f64 = flows().map(|flow| flow.throughput_bps).sum();
        assert!((report.throughput_bps - bulk).abs() < 1.0, "the requests are not counted as bulk data");
        assert_eq!(report.congestion, "cubic");
    }
    server.wait_for(|stats| stats.served.load(Ordering::Relaxed) == 3);
}

#[test]
fn bulk_data_keeps_to_its_rate() {
    let rate_bps = 40_000_000;
    let server = Server::start();
    let bulk = BulkParams { length_bytes: 8 * 1024, rate_bps, ..BulkParams::default() };
    for params in [Params { workload: Workload::Bulk(bulk), streams: 2, ..timed() }, mixed(rate_bps)] {
        let (report, _) = server.run(&params);
        // A sender may make up for a delay of 10 ms, and a part of a write may fall into the measured window. Both
        // effects can raise the measured rate above `rate_bps`.
        let most = rate_bps as f64 * 1.2;
        assert!(report.throughput_bps > 0.0 && report.throughput_bps < most, "{report}");
    }
}

#[test]
fn a_stream_that_waits_for_its_pace_still_ends_when_it_is_told_to() {
    let server = Server::start();
    let bulk = BulkParams { rate_bps: 1, ..BulkParams::default() };
    let (report, _) = server.run(&Params { workload: Workload::Bulk(bulk), ..timed() });
    assert!(report.is_complete(), "{report}");
}

#[test]
fn udp_super_frames_arrive_as_datagrams_of_the_right_size_and_losses_are_counted() {
    let server = Server::start();
    for (gso_segments, gro) in [(1, false), (1, true), (20, false), (20, true)] {
        for direction in [Direction::Send, Direction::Receive, Direction::Both] {
            let (report, _) = server.run(&Params { direction, streams: 2, ..udp(gso_segments, gro) });
            for flow in report.send.iter().chain(&report.receive) {
                let (sender, receiver) = (&flow.sender, &flow.receiver);
                let seen = receiver.datagrams.unwrap();
                assert_eq!((seen.wrong_size, seen.out_of_order), (0, 0), "{report}");
                assert!(receiver.units_total > 0 && receiver.units_total <= sender.units_total);
                assert_eq!(sender.units_total - receiver.units_total, flow.datagrams_lost);
                assert_eq!(receiver.bytes_total, receiver.units_total * 1000);
                assert!(gro || seen.reads == receiver.units_total);
            }
        }
    }
}

#[test]
fn a_receiver_with_coalescing_reads_several_datagrams_at_once() {
    let (report, _) = Server::start().run(&udp(40, true));
    let receiver = &report.send.as_ref().unwrap().receiver;
    assert!(receiver.datagrams.unwrap().reads < receiver.units_total, "{report}");
}

#[test]
fn datagrams_that_nobody_reads_are_lost_and_the_report_says_so() {
    // Bursts of sixty datagrams overflow a receive buffer of the smallest size.
    let udp = UdpParams { datagram_bytes: 1000, gso_segments: 60, gro: false, rate_bps: 0 };
    let (report, _) = Server::start().run(&Params { workload: Workload::Udp(udp), window_bytes: 1, ..timed() });
    assert!(report.send.as_ref().unwrap().datagrams_lost > 0, "{report}");
}

fn rpc(response_bytes: u32, outstanding: u32, timer_usecs: u64) -> Params {
    let rpc = RpcParams { response_bytes, outstanding, timer_usecs, ..RpcParams::default() };
    Params { workload: Workload::Rpc(rpc), ..timed() }
}

#[test]
fn every_call_that_is_answered_in_time_is_made_once_and_counted_with_its_time() {
    let (report, _) = Server::start().run(&rpc(8192, 4, 60_000_000));
    let found = report.rpc.as_ref().unwrap();
    assert!(report.is_complete() && found.client.units > 0, "{report}");
    assert_eq!(found.counts, RpcCounts::default(), "{report}");
    assert_eq!(found.client.bytes, found.client.units * 8192);
    assert_eq!(report.bytes, found.client.bytes);
    assert!(found.latency.count > 0 && found.latency.p50_us <= found.latency.p99_us, "{report}");
    assert!((found.goodput_bps - report.throughput_bps).abs() < 1.0 && found.per_second > 0.0);
    // A response in flight when the client stops answers no outstanding call.
    assert!(found.server.units_total >= found.client.units_total);
    assert!(report.transactions.is_none() && report.send.is_none());
}

#[test]
fn calls_whose_responses_are_lost_are_made_again() {
    // A receive buffer of the smallest size holds at most one response of 4 KiB. A response that finds the buffer full
    // is dropped, and the client repeats the request after 0.5 ms.
    let (report, _) = Server::start().run(&Params { window_bytes: 1, ..rpc(4096, 32, 500) });
    let found = report.rpc.as_ref().unwrap();
    assert!(found.counts.retransmits > 0, "{report}");
    assert!(report.to_string().contains("retransmitted"), "{report}");
}

#[test]
fn streams_that_are_to_be_cut_off_end_at_once_and_count_as_whole() {
    let bulk = BulkParams { cut_off: true, pattern_seed: Some(3), ..BulkParams::default() };
    let params = Params { workload: Workload::Bulk(bulk), streams: 2, direction: Direction::Both, ..timed() };
    let (report, _) = Server::start().run(&params);
    assert!(report.is_complete() && report.bytes > 0, "{report}");
}

#[test]
fn tcp_tells_its_congestion_window_over_the_time_and_how_long_nothing_moved() {
    // The receive window holds several segments of the loopback. With a receive window shorter than one segment, only
    // timers would trigger sends.
    let (report, _) = Server::start().run(&Params { receive_window_bytes: 256 * 1024, ..timed() });
    let sending = report.sending_tcp().next().unwrap();
    assert!(sending.cwnd_median_segments.is_some_and(|segments| segments >= 1.0), "{report}");
    assert!(report.receiving_tcp().all(|tcp| tcp.cwnd_median_segments.is_none()));
    assert!(report.ends().all(|end| end.stall_seconds.is_some_and(|seconds| seconds <= end.seconds)));
    assert!(report.is_complete() && report.bytes > 0);
}

#[test]
fn a_client_that_vanishes_midway_leaves_the_server_serving() {
    let server = Server::start();
    let gone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        server.try_run(&timed(), &mut |event| {
            // The panic drops all sockets of the client at once, as a kill of the client would.
            if matches!(event, Event::Start) {
                std::panic::resume_unwind(Box::new("gone"));
            }
        })
    }));
    assert!(gone.is_err());
    server.wait_for(|stats| stats.lost.load(Ordering::Relaxed) == 1);
    assert!(server.run(&timed()).0.is_complete());
    server.wait_for(|stats| stats.served.load(Ordering::Relaxed) == 1);
}

#[test]
fn garbage_on_the_control_port_is_refused_and_counted() {
    let server = Server::start();
    let hello = |params: Params, version: u32, udp_ports: Vec<u16>| {
        serde_json::to_string(&ClientLine::Hello { version, params, udp_ports }).unwrap() + "\n"
    };
    let without_end = || Params {
        workload: Workload::Requests(requests(Arrivals::Bursts { requests: u32::MAX, every_usecs: 0 })),
        ..timed()
    };
    let too_many = Params { streams: 100_000, ..Params::default() };
    let strange = Params { congestion: "nosuchthing".to_owned(), ..Params::default() };
    let garbage = [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "\u{0}\u{1}\n".to_owned(),
        "\"begin\"\n".to_owned(),
        "x".repeat(100_000),
        "[".repeat(10_000) + "\n",
        hello(too_many, VERSION, vec![]),
        hello(Params::default(), VERSION + 1, vec![]),
        hello(Params::default(), VERSION, vec![1]),
        hello(udp(1, false), VERSION, vec![]),
        hello(mixed(0), VERSION, vec![]),
        hello(Params { direction: Direction::Both, ..mixed(0) }, VERSION, vec![1, 2]),
        hello(without_end(), VERSION, vec![1]),
        hello(strange, VERSION, vec![]),
    ];
    for (index, bytes) in garbage.iter().enumerate() {
        let answer = server.say(bytes.as_bytes());
        assert!(answer.is_empty() || answer.contains("refused"), "{index}: {answer}");
        server.wait_for(|stats| stats.refused.load(Ordering::Relaxed) == index as u64 + 1);
    }
    assert!(server.run(&timed()).0.is_complete());
}

#[test]
fn a_data_connection_without_the_token_does_not_become_a_stream() {
    let server = Server::start();
    let mut control = TcpStream::connect(server.address).unwrap();
    let hello = ClientLine::Hello { version: VERSION, params: timed(), udp_ports: vec![] };
    control.write_all((serde_json::to_string(&hello).unwrap() + "\n").as_bytes()).unwrap();
    let mut answers = BufReader::new(control.try_clone().unwrap());
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    let Ok(ServerLine::Ready { port, token, .. }) = serde_json::from_str(&line) else { panic!("{line}") };
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.write_all(&[0; 20]).unwrap();
    // The server closes the connection, and still waits for the test's stream.
    assert!(matches!(stranger.read(&mut [0; 1]), Ok(0) | Err(_)));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let token = wire::token_from_text(&token).unwrap();
    stream.write_all(&wire::data_hello(token, 0)).unwrap();
    line.clear();
    answers.read_line(&mut line).unwrap();
    assert!(matches!(serde_json::from_str(&line), Ok(ServerLine::Go)), "{line}");
    // A line that the protocol does not allow at this point ends the session.
    control.write_all(b"\"end\"\n").unwrap();
    server.wait_for(|stats| stats.lost.load(Ordering::Relaxed) == 1);
    let events = server.events.lock().unwrap();
    assert!(matches!(&events[..], [ServerEvent::Lost { reason, .. }] if reason.contains("out of order")), "{events:?}");
}

#[test]
fn datagrams_that_keep_the_clients_lines_out_end_by_themselves() {
    let server = Server::start();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut control = TcpStream::connect(server.address).unwrap();
    let params = Params { direction: Direction::Receive, ..udp(1, false) };
    let udp_ports = vec![socket.local_addr().unwrap().port()];
    let mut say = |line: ClientLine| {
        control.write_all((serde_json::to_string(&line).unwrap() + "\n").as_bytes()).unwrap();
    };
    say(ClientLine::Hello { version: VERSION, params, udp_ports });
    say(ClientLine::Begin);
    say(ClientLine::Start);
    let received = std::iter::from_fn(|| socket.recv(&mut [0; 2000]).ok()).count();
    assert!(received > 0);
    // The client sends these lines late, as if the datagrams had delayed them.
    say(ClientLine::End);
    say(ClientLine::Stop);
    let answers: Vec<String> = BufReader::new(control).lines().map(Result::unwrap).collect();
    let kinds: Vec<ServerLine> = answers.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(matches!(kinds[..], [_, ServerLine::Go, ServerLine::Ended, ServerLine::Results(_)]), "{answers:?}");
}

#[test]
fn the_server_says_why_it_refuses_and_the_client_passes_it_on() {
    let server = Server::start();
    let params = Params { congestion: "nosuchthing".to_owned(), ..timed() };
    let error = server.try_run(&params, &mut |_| {}).unwrap_err();
    assert!(error.is_setup() && matches!(error, TrafficError::Refused { .. }));
    let text = error.to_string();
    assert!(text.contains("nosuchthing") && text.contains("available: "), "{text}");
}

#[test]
fn without_a_server_the_client_says_what_to_start() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = run_client("127.0.0.1", port, &timed(), &mut |_| {}).unwrap_err();
    let expected =
        format!("cannot connect to 127.0.0.1:{port}: connection refused; start \"offramp ttcp --serve\" there");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_server_that_vanishes_midway_ends_the_client_with_a_reason() {
    let server = Server::start();
    let stop = Arc::clone(&server.stop);
    let params = Params { amount: Amount::Usecs(60_000_000), ..timed() };
    let ended = server.try_run(&params, &mut |event| {
        if matches!(event, Event::Start) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let error = ended.unwrap_err();
    assert!(!error.is_setup(), "{error}");
}

#[test]
fn a_server_asked_for_one_test_returns_after_it_and_garbage_does_not_count() {
    let mut server = Server::start_with(ServeOptions { once: true });
    server.say(b"garbage\n");
    server.run(&timed());
    server.thread.take().unwrap().join().unwrap();
    server.thread = Some(thread::spawn(|| {}));
}

#[test]
fn reports_and_events_survive_json() {
    let server = Server::start();
    let interval = |params: Params| Params { interval_usecs: 50_000, ..params };
    let calls = rpc(2048, 2, 100_000);
    for params in [interval(timed()), ping_pong(), interval(udp(4, true)), interval(mixed(0)), calls] {
        let (report, events) = server.run(&params);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        for event in events {
            let line = serde_json::to_string(&event).unwrap();
            assert!(line.starts_with("{\"event\":\"") && !line.contains('\n'));
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        }
        // The last line of a run can be parsed directly as a report.
        let line = serde_json::to_string(&Event::Report(Box::new(report.clone()))).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }
}

#[test]
fn a_test_over_ipv6_works_as_over_ipv4() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
    let (port, stop) = (listener.local_addr().unwrap().port(), AtomicBool::new(false));
    let stats = ServerStats::default();
    thread::scope(|scope| {
        scope.spawn(|| serve(&listener, ServeOptions::default(), &stop, &stats, &|_| {}));
        for params in [timed(), udp(4, true)] {
            let report = run_client("::1", port, &params, &mut |_| {});
            assert!(report.is_ok_and(|report| report.bytes > 0));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

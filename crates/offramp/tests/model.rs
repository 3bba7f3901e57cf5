//! Tests of `offramp model` from a user's view: its output, errors, a closed output pipe, and interrupted sweeps.

#![cfg(feature = "lab")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a few points of a sweep, which only detects a hang.
const PATIENCE: Duration = Duration::from_mins(1);

fn offramp(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    offramp(args).output().unwrap()
}

/// A directory, deleted when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("offramp-model-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_cannot_be_is_refused_in_one_line_that_says_what_would_be_right() {
    let of = ["486-wd8003ep", "--workload", "ttcp-receive"];
    let cases: [(&str, &[&str], &str); 19] = [
        ("run", &["--set", "bus.clock=9MHz..8MHz"], "bus.clock: the interval is empty; write the smaller value first"),
        ("run", &["--set", "adapter.overflow=drop..overrun"], "adapter.overflow: a word has no interval"),
        (
            "run",
            &["--set", "bus.clock=8MHz..9MHz", "--samples", "9999999"],
            "--samples: 9999999 points; use 1 to 1000000",
        ),
        ("run", &["--set", "bus.clok=8MHz"], "bus.clok: there is no such parameter; did you mean \"bus.clock\"?"),
        ("run", &["--set", "bus.clock=8"], "bus.clock: the unit is missing; use one of: Hz, kHz, MHz, GHz"),
        ("run", &["--set", "bus.clock=-8MHz"], "bus.clock: \"-8\" is not a number of 0 or more"),
        ("run", &["--set", "bus.clock=0Hz"], "bus.clock: 0 Hz is out of range"),
        ("run", &["--set", "host.receive_window=1000byte"], "host.receive_window: 1000 byte is out of range"),
        ("run", &["--set", "adapter.receive_descriptors=0"], "adapter.receive_descriptors: 0 frame is out of range"),
        ("sweep", &["--out", "x.csv", "--vary", "bus.clock=1MHz..2MHz/99999999999"], "2 to 1000000 values"),
        (
            "sweep",
            &["--out", "x.csv", "--vary", "bus.clock=1MHz..2MHz"],
            "bus.clock: a grid needs the number of values",
        ),
        ("sensitivity", &["--method", "sobol", "--samples", "99999999999999"], "runs are too many"),
        ("sensitivity", &["--method", "morris", "--paths", "99999999999999"], "runs are too many"),
        ("sensitivity", &["--parameters", "bus.clock,bus.clock"], "bus.clock: named twice"),
        ("run", &["--set", "clock=8MHz"], "clock: there is no such parameter; did you mean bus.clock?"),
        ("run", &["--set", "host.rto=1s"], "host.rto: there is no such parameter; did you mean \"host.rto_min\"?"),
        (
            "run",
            &["--set", "bus.clock=8mhz"],
            "bus.clock: unit \"mhz\" does not fit; use one of: Hz, kHz, MHz, GHz; did you mean \"MHz\"?",
        ),
        ("explain", &["--set", "adapter.lso=on"], "adapter.lso: \"on\" needs adapter.access to be \"master\""),
        ("run", &["--set", "adapter.queues=4"], "adapter.queues: 4 queues need adapter.access to be \"master\""),
    ];
    for (name, why) in [
        ("486-wd8003", "there is no system profile \"486-wd8003\"; did you mean \"486-wd8003e\"?"),
        ("this-host", "there is no system profile \"this-host\"; `offramp calibrate` makes it"),
        ("nowhere.toml", "nowhere.toml: No such file"),
    ] {
        let home = Scratch::new("no-home");
        let mut command = offramp(&["model", "run", name, "--workload", "ttcp"]);
        let output = command.env("XDG_DATA_HOME", &home.0).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(why), "{name}: {text}");
    }
    for (command, more, why) in cases {
        let output = run(&[&["model", command], &of[..], more].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{command} {more:?}: {text}");
        assert!(text.starts_with("model: ") && text.contains(why), "{command} {more:?}: {text}");
    }
}

#[test]
fn a_run_in_which_nothing_comes_through_ends_with_who_waits_for_what() {
    let descriptors = ["--set", "adapter.receive_descriptors=1"];
    let output = run(&[&["model", "run", "server-82599", "--workload", "ttcp-receive"], &descriptors[..]].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{text}");
    assert!(text.contains("the peer waits for the acknowledgement of byte"), "{text}");
}

#[test]
fn transfers_of_a_bus_are_listed() {
    for (args, holds) in [
        (&["model", "dma", "pcie-3x8", "--bytes", "64,1514", "--op", "both"][..], &["Gbit/s", "1514 both"][..]),
        (&["model", "dma", "pci-33-32", "--bytes", "256"], &["256 read", "256 write", "256 both", "the bus"]),
    ] {
        let output = run(args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{args:?}");
        for part in holds {
            assert!(text.contains(part), "{args:?}: {text}");
        }
    }
    for (args, code, why) in [
        (&["model", "dma", "isa-8"][..], 1, "nobody is master"),
        (&["model", "dma", "pcie-3x8", "--set", "bus.lanes=3"], 2, "there is no pcie bus of 3 lane"),
    ] {
        let output = run(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && text.contains(why), "{args:?}: {text}");
    }
}

#[test]
fn a_reader_that_is_gone_is_no_failure() {
    for args in [&["model", "list"][..], &["model", "run", "486-wd8003ep", "--workload", "ttcp-receive"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = offramp(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
    }
}

#[test]
fn help_and_refusals_name_every_workload_and_two_commands_list_what_can_be_set_and_run() {
    let text = |output: &Output| String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    let help = run(&["model", "run", "--help"]);
    let wrong = run(&["model", "run", "486-wd8003ep", "--workload", "tcp-receive"]);
    let listed = run(&["model", "workloads"]);
    assert_eq!(wrong.status.code(), Some(2));
    for name in ["ttcp-receive", "ttcp-send", "ttcp-both", "nfs-read", "udp-send"] {
        assert!([&help, &wrong, &listed].iter().all(|output| text(output).contains(name)), "{name}");
    }
    assert!(text(&wrong).contains("a similar value exists: 'ttcp-receive'"), "{}", text(&wrong));
    let params = run(&["model", "params", "bus.clock"]);
    for part in ["bus.clock", "default 8 MHz", "100 kHz to 200 GHz", "bus/isa-8"] {
        assert!(text(&params).contains(part), "{}", text(&params));
    }
    let json: serde_json::Value = serde_json::from_slice(&run(&["model", "params", "--json"]).stdout).unwrap();
    assert!(json.as_array().unwrap().len() > 100 && json[0]["name"] == "host.cost_scale");
    let output = run(&["model", "params", "host.tcp_tim"]);
    assert!(text(&output).contains("host.tcp_time"));
    let none = run(&["model", "params", "bus.clok"]);
    assert!(none.status.code() == Some(2) && text(&none).contains("did you mean \"bus.clock\"?"), "{}", text(&none));
}

#[test]
fn requests_have_their_latency_in_text_json_comparisons_and_sweeps() {
    let of = |args: &[&str]| {
        let output = run(&[&["model"], args].concat());
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let args = ["run", "server-82599", "--workload", "tcp-rr", "--set", "workload.time=100ms"];
    let text = of(&args);
    for part in ["p99.9 ", "moderation ", "wake-up ", "up to ", "under way"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&of(&[&args[..], &["--json"]].concat())).unwrap();
    let latency = &json["outcome"]["latency"];
    assert!(latency["p50_us"].as_f64().unwrap() <= latency["p99_us"].as_f64().unwrap());
    assert!(latency["histogram"][0]["count"].as_u64().unwrap() > 0 && latency["parts"].as_array().unwrap().len() == 7);
    let pair = ["compare", "server-82599", "server-82599", "--set-second", "adapter.moderation=off"];
    let compared = of(&[&pair[..], &["--workload", "udp-rr"]].concat());
    assert!(compared.contains("latency, p99, us"), "{compared}");
    assert!(!of(&[&pair[..], &["--workload", "ttcp-receive"]].concat()).contains("latency"));
    let scratch = Scratch::new("latency");
    let table = scratch.path("table.csv");
    of(&["sweep", "server-82599", "--workload", "udp-rr", "--vary", "workload.flows=1,4", "--out", &table]);
    assert!(std::fs::read_to_string(&table).unwrap().contains("latency_p99_us"));
}

#[test]
fn numbers_that_are_intervals_reach_the_outcome_in_text_json_and_pages() {
    let scratch = Scratch::new("intervals");
    let page = scratch.path("page.html");
    let of = |args: &[&str]| {
        let workload = ["--workload", "ttcp-receive", "--set", "workload.time=1s", "--samples", "8"];
        let output = run(&[&["model"], args, &workload].concat());
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let open = "host.tcp_time=100us..300us";
    assert!(!of(&["run", "486-wd8003ep"]).contains("uncertainty, from"));
    let text = of(&["run", "486-wd8003ep", "--set", open, "--html", &page]);
    assert!(text.contains("uncertainty, from 8 runs over the interval of host.tcp_time"), "{text}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("Uncertainty, from 8 runs"));
    let json: serde_json::Value = serde_json::from_str(&of(&["run", "486-wd8003ep", "--set", open, "--json"])).unwrap();
    let figure = &json["spread"]["figures"][0];
    let [low, high] = [0, 1].map(|end| figure["interval"][end].as_f64().unwrap());
    let nominal = figure["nominal"].as_f64().unwrap();
    assert!(low < nominal && nominal < high && figure["name"] == "throughput_bytes_per_s", "{figure}");
    let pair = ["compare", "486-wd8003ep", "486-wd8003ep", "--set", open, "--set-second", "bus.clock=16MHz"];
    let text = of(&[&pair[..], &["--html", &page]].concat());
    assert!(text.contains("the second higher in 8 of 8"), "{text}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("8 of 8"));
}

#[test]
fn a_page_of_requests_shows_how_latencies_are_spread_and_what_more_load_does() {
    let scratch = Scratch::new("load");
    let page = scratch.path("page.html");
    let args = ["model", "run", "server-82599", "--workload", "udp-rr", "--set", "workload.time=20ms", "--html", &page];
    assert!(run(&args).status.success());
    let html = std::fs::read_to_string(&page).unwrap();
    for title in ["Time of each frame", "Latency distribution", "requests or datagrams done", "p99"] {
        assert!(html.contains(title), "{title}");
    }
    let pair = |second: &str| {
        let args = ["model", "compare", "server-82599", "server-82599", "--workload", "udp-rr", "--html", &page];
        assert!(run(&[&args[..], &["--set", "workload.time=20ms", "--set-second", second]].concat()).status.success());
        std::fs::read_to_string(&page).unwrap().contains("against load")
    };
    assert!(pair("adapter.moderation=off"));
    assert!(!pair("workload.arrivals=poisson"), "loads of two kinds have no axis in common");
}

#[test]
fn a_published_result_in_a_file_is_run_and_compared_and_what_is_wrong_in_it_has_the_nearest_name() {
    let scratch = Scratch::new("case");
    let file = scratch.path("case.toml");
    let case = |change: (&str, &str)| {
        let text = "published = \"970 kB/s at 13.4 MHz\"\nsource = \"Ethernet HOWTO\"\nsystem = \"486-wd8003ep\"\n\
            workload = \"ttcp-receive\"\nset = { \"bus.clock\" = \"13.4MHz\" }\n\
            [[row]]\nmetric = \"throughput_kib_per_s\"\nvalue = 947\nwithin = \"5 %\"\n";
        std::fs::write(&file, text.replace(change.0, change.1)).unwrap();
        let output = run(&["model", "check", &scratch.path("")]);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), text)
    };
    let (code, text) = case(("", ""));
    assert!(code == 0 && text.contains("case ok   predicted  947 KiB/s") && text.contains("0 rows outside"), "{text}");
    for (from, to, code, why) in [
        ("value = 947", "value = 500", 1, "MISS"),
        ("within =", "withn =", 2, "did you mean \"within\"?"),
        ("5 %", "5%", 2, "write it as"),
        ("throughput_kib_per_s", "throughput_kib_per_", 2, "did you mean \"throughput_kib_per_s\"?"),
        ("486-wd8003ep", "486-wd8003", 2, "did you mean \"486-wd8003e\"?"),
        ("ttcp-receive", "tcp-receive", 2, "did you mean \"ttcp-receive\"?"),
        ("bus.clock", "bus.clok", 2, "did you mean \"bus.clock\"?"),
    ] {
        let (was, text) = case((from, to));
        assert!(was == code && text.contains(why), "{to}: {text}");
    }
}

#[test]
fn the_tutorial_prints_what_its_files_give() {
    let page = include_str!("../../../docs/model/from-a-paper.md");
    let scratch = Scratch::new("tutorial");
    for (name, file) in ["system.toml", "paper.toml"].iter().zip(page.split("```toml\n").skip(1)) {
        std::fs::write(scratch.path(name), file.split("```").next().unwrap()).unwrap();
    }
    let output = run(&["model", "check", &scratch.path("paper.toml")]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.lines().count() > 8);
    for line in printed.lines().filter(|line| !line.starts_with("  bus.")) {
        assert!(page.contains(line), "{line}");
    }
}

#[test]
fn a_chart_in_a_file_is_drawn_and_what_is_wrong_in_it_is_refused() {
    let scratch = Scratch::new("chart");
    let file = scratch.path("clock.toml");
    let draw = |change: (&str, &str)| {
        let text = "title = \"Clock\"\nsays = \"It bends.\"\ncommand = \"-\"\nsystem = \"486-wd8003ep\"\n\
            workload = \"ttcp-receive\"\nset = { \"workload.time\" = \"1s\" }\nrun = { fast = {} }\n\
            x = { title = \"MHz\", parameter = \"bus.clock\", unit = \"MHz\", values = [6.7, 20] }\n\
            [[panel]]\ntitle = \"Throughput\"\ny_title = \"KiB/s\"\n\
            curves = [{ name = \"modelled\", y = \"fast.lost_frames / x\" }, { name = \"published\", points = [[6.7, 740]] }]\n";
        assert!(text.contains(change.0), "{change:?}");
        std::fs::write(&file, text.replace(change.0, change.1)).unwrap();
        let output = run(&["model", "report", &file, "--charts", &scratch.path("")]);
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = draw(("-", "-"));
    assert!(code == 0 && text.contains("wrote 1 charts"), "{text}");
    assert!(std::fs::read_to_string(scratch.path("clock.svg")).unwrap().contains("published"));
    for (from, to, why) in [
        ("y_title", "y_titel", "did you mean \"y_title\"?"),
        ("fast.lost", "fst.lost", "did you mean \"fast\"?"),
        ("lost_frames", "lost_frame", "did you mean \"lost_frames\"?"),
        ("bus.clock", "bus.clok", "did you mean \"bus.clock\"?"),
        ("[6.7, 20]", "[6.7, 0]", "bus.clock: 0 Hz is out of range"),
        ("/ x", "/ 0", "panel.curves.y: invalid operation: unable to calculate"),
        ("[[6.7, 740]]", "[]", "panel.curves.published: a curve needs points"),
    ] {
        let (code, text) = draw((from, to));
        assert!(code == 2 && text.contains("clock.toml: ") && text.contains(why), "{to}: {text}");
    }
}

#[test]
fn costs_are_printed_as_the_run_used_them() {
    let args = ["model", "run", "486-wd8003ep", "--workload", "ttcp-receive", "--set", "host.cost_scale=50%"];
    let text = String::from_utf8(run(&[&args[..], &["--set", "host.tcp_time=100us"]].concat()).stdout).unwrap();
    let line = text.lines().find(|line| line.contains("host.tcp_time")).unwrap();
    assert!(line.contains(" 50 us ") && line.contains("100 us x 50 %"), "{line}");
}

#[test]
fn a_sweep_with_points_that_failed_ends_with_1_and_says_where_the_reasons_are() {
    let directory = Scratch::new("failed");
    let out = directory.path("out.csv");
    let args = ["model", "sweep", "server-82599", "--workload", "ttcp-receive", "--out", &out];
    let output = run(&[&args[..], &["--vary", "adapter.receive_descriptors=1,256"]].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("1 of 2 points failed; the column `error`"), "{text}");
    assert_eq!(lines(&out), 3, "both points are there");
}

#[test]
fn explain_names_what_limits_a_run_in_which_nothing_is_fully_used() {
    let limit = |profile: &str, settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let args = ["model", "explain", profile, "--workload", "ttcp-receive"].into_iter().chain(settings);
        let text = String::from_utf8(run(&args.collect::<Vec<_>>()).stdout).unwrap();
        text.lines().find(|line| line.starts_with("limit: ")).unwrap().to_owned()
    };
    let far = ["link.delay=5ms", "host.receive_window=16KiB", "workload.time=1s"];
    let window = limit("server-82599", &far);
    assert!(window.contains("host.receive_window") && window.contains("link.delay"), "{window}");
    let rate = limit("server-82599", &["workload.rate=100Mbit/s"]);
    assert!(rate.contains("depends on workload.rate (+1.00 % for 1 % of it)") && !rate.contains("window"), "{rate}");
    let gap = limit("486-wd8003ep", &["bus.clock=26.7MHz", "peer.gap=1ms"]);
    assert!(gap.contains("peer.gap"), "{gap}");
}

fn lines(path: &str) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn a_sweep_that_a_signal_interrupts_goes_on_and_ends_with_the_same_bytes() {
    const POINTS: usize = 300;
    let directory = Scratch::new("sweep");
    let (out, whole) = (directory.path("out.csv"), directory.path("whole.csv"));
    let partial = format!("{out}.partial");
    let vary = format!("bus.clock=4MHz..30MHz/{POINTS}");
    let sweep = |out: &str| {
        let args = ["model", "sweep", "486-wd8003ep", "--workload", "ttcp-receive", "--set", "workload.time=2s"];
        offramp(&[&args[..], &["--vary", &vary, "--out", out]].concat())
    };
    let child = sweep(&out).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while lines(&partial) < 3 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(
        text.contains(&format!("of {POINTS} points are kept in {partial}, and the same command goes on")),
        "{text}"
    );
    assert!(!Path::new(&out).exists());

    let output = sweep(&out).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && text.contains("going on behind"), "{text}");
    assert!(!Path::new(&partial).exists());
    assert!(sweep(&whole).output().unwrap().status.success());
    assert_eq!(lines(&out), POINTS + 1);
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&whole).unwrap());
}

#[test]
fn overload_is_an_outcome_that_says_what_was_delivered_where_the_rest_was_lost_and_who_had_the_processor() {
    let directory = Scratch::new("overload");
    let out = directory.path("out.csv");
    let livelock = [
        ["--set", "host.receive=interrupt"],
        ["--set", "adapter.moderation=off"],
        ["--set", "host.output_queue=50"],
        ["--set", "peer.gap=9.6us"],
        ["--set", "workload.time=1s"],
    ]
    .concat();
    let run_forward = |more: &[&str]| {
        let args = ["model", "run", "486-wd8003ep", "--workload", "forward"];
        let output = run(&[&args[..], &livelock, &["--set", "workload.request_rate=6000"], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run_forward(&[]);
    for part in ["6000/s due, ", "in the backlog", "processor by level       interrupt handlers ", "out 0"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&run_forward(&["--json"])).unwrap();
    let frames = &json["outcome"]["latency"];
    let figure = |name: &str| frames[name].as_f64().unwrap();
    assert!((figure("offered_per_second") - 6000.0).abs() < 2.0 && figure("done_per_second") < 3000.0, "{frames}");
    let places = ["sender", "adapter", "backlog", "socket", "output_queue"];
    let lost: f64 = places.iter().map(|place| figure(&format!("{place}_dropped_per_second"))).sum();
    assert!((lost - figure("lost_per_second")).abs() < 1e-6 && figure("backlog_dropped_per_second") > 0.0, "{frames}");
    assert_eq!(frames["queues"].as_array().unwrap().len(), 3, "{frames}");

    let args = ["model", "sweep", "486-wd8003ep", "--workload", "forward", "--out", &out];
    let vary = ["--vary", "workload.request_rate=1000,6000"];
    assert!(run(&[&args[..], &livelock, &vary].concat()).status.success());
    let table = std::fs::read_to_string(&out).unwrap();
    let column = |name: &str| -> Vec<f64> {
        let at = table.lines().next().unwrap().split(',').position(|of| of == name).unwrap_or_else(|| panic!("{name}"));
        table.lines().skip(1).map(|line| line.split(',').nth(at).unwrap().parse().unwrap()).collect()
    };
    assert_eq!(column("lost_backlog_per_s")[0].to_bits(), 0.0_f64.to_bits());
    assert!(column("lost_backlog_per_s")[1] > 0.0 && column("cpu_interrupt_percent")[1] > 50.0, "{table}");
    assert!(column("requests_per_s")[0] > 990.0 && column("offered_per_s")[1] > 5990.0, "{table}");

    let args = ["model", "compare", "486-wd8003ep", "486-wd8003ep", "--workload", "forward"];
    let load = ["--set", "workload.request_rate=6000", "--set-second", "host.receive=deferred"];
    let text = String::from_utf8(run(&[&args[..], &livelock, &load].concat()).stdout).unwrap();
    let row = text.lines().find(|line| line.contains("lost in the backlog/s")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.split_whitespace().any(|word| word == "0"), "{row}");
}

#[test]
fn workloads_of_frames_are_listed_with_their_parameters() {
    let text = String::from_utf8(run(&["model", "workloads"]).stdout).unwrap();
    for (workload, parameter, is_there) in [
        ("source", "workload.direction", true),
        ("forward", "workload.direction", false),
        ("forward", "workload.frame_mix", true),
        ("udp-receive", "workload.frame_size", false),
    ] {
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&format!("{workload} ")));
        let parameters = lines.nth(1).unwrap();
        assert_eq!(parameters.split_whitespace().any(|of| of == parameter), is_there, "{workload} {parameter}");
    }
    let args = ["--workload", "udp-receive", "--set", "host.output_queue=50", "--set", "workload.time=100ms"];
    let output = run(&[&["model", "run", "486-wd8003ep"], &args[..]].concat());
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("host.output_queue has no effect on udp-receive"), "{why}");
}

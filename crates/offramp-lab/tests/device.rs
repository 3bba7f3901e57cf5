//! Tests `offramp lab --device` on a veth pair between two namespaces. The tests check the measurements, and that every
//! setting is restored however a run ends.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use offramp_lab::device::{self, DeviceConfig};
use offramp_lab::model::Experiment;
use offramp_ports::sys::ethtool::{self, Features};
use offramp_ports::sys::{NetNs, link};
use offramp_testbed::device::{DeviceError, restore, restore_interface};
use offramp_testbed::error::TestbedError;
use offramp_testbed::traffic::{CONGESTION_DEFAULT, PORT_DEFAULT, ServeOptions, ServerStats, serve};

const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 3, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 18, 3, 2);
/// Name of the interface under test.
const NAMED: &str = "va";
/// Name of an interface that the run must not change.
const BESIDE: &str = "vbeside";
/// Name of the interface at the peer's end of the veth pair.
const FAR: &str = "vb";
/// Environment variable with the state directory. If it is set, the test binary performs the lab run that another test
/// starts and kills.
const CHILD_STATE_DIR: &str = "OFFRAMP_TEST_DEVICE_STATE_DIR";
/// Time limit of a test.
const PATIENCE: Duration = Duration::from_mins(1);

/// Two namespaces, a veth pair between the namespaces, and a traffic server in the second namespace.
struct Lab {
    host: NetNs,
    _peer: NetNs,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
    dir: PathBuf,
}

impl Lab {
    fn new(name: &str) -> Self {
        let namespace =
            || NetNs::new().unwrap_or_else(|e| panic!("this test needs network namespaces: {e}; run as root"));
        let (host, peer) = (namespace(), namespace());
        host.run(|| {
            link::create_veth(NAMED, FAR).unwrap();
            link::move_to(FAR, &peer).unwrap();
            link::create_veth(BESIDE, "vother").unwrap();
            set_up(NAMED, HOST);
        })
        .unwrap();
        peer.run(|| set_up(FAR, PEER)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let server = start_server(&peer, Arc::clone(&stop));
        let dir = std::env::temp_dir().join(format!("offramp-device-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self { host, _peer: peer, stop, server: Some(server), dir }
    }

    fn config(&self, only: &[&str]) -> DeviceConfig {
        config(&self.dir, only)
    }

    fn run(&self, config: &DeviceConfig, stop: &AtomicBool) -> Result<Vec<Experiment>, TestbedError> {
        self.run_and_hear(config, stop, &mut |_| ())
    }

    fn run_and_hear(
        &self,
        config: &DeviceConfig,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Vec<Experiment>, TestbedError> {
        let mut experiments = Vec::new();
        self.run_into(config, stop, progress, &mut experiments).map(|()| experiments)
    }

    fn run_into(
        &self,
        config: &DeviceConfig,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(&str) + Send),
        experiments: &mut Vec<Experiment>,
    ) -> Result<(), TestbedError> {
        self.host.run(|| device::run(config, stop, progress, experiments)).unwrap()
    }

    fn restore(&self) -> (Result<usize, TestbedError>, Vec<String>) {
        let mut lines = Vec::new();
        let outcome = self.host.run(|| restore(&self.dir, &mut |line| lines.push(line.to_owned()))).unwrap();
        (outcome, lines)
    }

    fn settings(&self, interface: &str) -> Settings {
        self.host.run(|| Settings::read(interface)).unwrap()
    }

    fn state_files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.dir).map_or_else(|_| Vec::new(), |dir| dir.map(|entry| entry.unwrap().path()).collect())
    }

    /// Starts a run in a separate process, and kills the process once the run has switched a feature. The state file
    /// remains.
    fn killed_run(&self) {
        let found = self.settings(NAMED);
        let child = self.host.run(|| spawn_run(&self.dir)).unwrap();
        let mut child = Killed(child);
        let begun = Instant::now();
        while self.settings(NAMED) == found {
            assert!(begun.elapsed() < PATIENCE, "the child never switched anything");
            assert_eq!(child.0.try_wait().unwrap(), None, "the child ended before it was killed");
            thread::sleep(Duration::from_millis(5));
        }
        child.0.kill().unwrap();
        assert_eq!(child.0.wait().unwrap().signal(), Some(9));
        assert_eq!(self.state_files().len(), 1);
        assert_ne!(self.settings(NAMED), found, "nobody has put anything back");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let served = self.server.take().map(JoinHandle::join);
        let _ = fs::remove_dir_all(&self.dir);
        assert!(thread::panicking() || matches!(served, Some(Ok(()))));
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn set_up(name: &str, address: Ipv4Addr) {
    link::disable_ipv6(name).unwrap();
    link::add_address(name, address.into(), 24).unwrap();
    link::set_up(name).unwrap();
}

fn start_server(peer: &NetNs, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    let listener = peer.run(|| TcpListener::bind((PEER, PORT_DEFAULT)).unwrap()).unwrap();
    let peer = peer.try_clone().unwrap();
    thread::spawn(move || {
        peer.enter_current_thread().unwrap();
        serve(&listener, ServeOptions::default(), &stop, &ServerStats::default(), &|_| ()).unwrap();
    })
}

fn config(dir: &Path, only: &[&str]) -> DeviceConfig {
    DeviceConfig {
        interface: NAMED.to_owned(),
        peer: PEER.to_string(),
        repeats: 1,
        seconds: 0.1,
        streams: 1,
        congestion: CONGESTION_DEFAULT.to_owned(),
        state_dir: dir.to_owned(),
        only: only.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// The settings of an interface that a run can change: active and requested state of each feature, and the host's
/// segmentation limit.
#[derive(Clone, Debug, PartialEq)]
struct Settings {
    features: BTreeMap<String, (Option<bool>, Option<bool>)>,
    gso_segs_max: Option<u32>,
}

impl Settings {
    fn read(interface: &str) -> Self {
        let features = Features::read(interface).unwrap();
        let of = |name: &str| (name.to_owned(), (features.active(name), features.requested(name)));
        Self { features: features.names().map(of).collect(), gso_segs_max: link::gso_segs_max(interface).unwrap() }
    }
}

/// Starts this test binary in the calling thread's namespace. The child performs the lab run that the test then kills.
fn spawn_run(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_run_that_is_to_be_killed", "--ignored"])
        .env(CHILD_STATE_DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the child of other tests; it does nothing by itself"]
fn a_run_that_is_to_be_killed() {
    let Some(dir) = std::env::var_os(CHILD_STATE_DIR) else { return };
    let config = DeviceConfig { repeats: 1000, ..config(Path::new(&dir), &["tso"]) };
    device::run(&config, &AtomicBool::new(false), &mut |_| (), &mut Vec::new()).unwrap();
}

#[test]
fn the_matrix_has_tso_and_checksums_and_the_interface_is_as_it_was() {
    let lab = Lab::new("matrix");
    let (named, beside) = (lab.settings(NAMED), lab.settings(BESIDE));
    let experiments = lab.run(&lab.config(&["tso", "tx-checksum"]), &AtomicBool::new(false)).unwrap();
    assert_eq!(lab.settings(NAMED), named);
    assert_eq!(lab.settings(BESIDE), beside);
    assert!(lab.state_files().is_empty(), "all is back, so nothing is left to say");
    let names: Vec<&str> = experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    assert_eq!(names, ["tso", "tx-checksum"]);
    for variant in experiments.iter().flat_map(|experiment| &experiment.variants) {
        assert_eq!(variant.samples.len(), 1);
        assert!(variant.throughput_bps.unwrap() > 0.0 && variant.rtt_p50_us.unwrap() > 0.0, "{variant:?}");
        assert!(variant.host_cpu_s_per_gb.is_some() && variant.retransmits.is_some(), "{variant:?}");
    }
    let variants: Vec<&str> = experiments[0].variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(variants, ["off", "on", "off, host GSO"]);
    let notes = experiments[1].notes.join("\n");
    assert!(notes.contains("\"off\" also turned off") && notes.contains("tx-tcp-segmentation"), "{notes}");
}

#[test]
fn every_experiment_that_a_veth_allows_is_measured_and_undone() {
    let lab = Lab::new("all");
    let named = lab.settings(NAMED);
    let config = DeviceConfig { seconds: 0.02, ..lab.config(&[]) };
    let experiments = lab.run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(lab.settings(NAMED), named);
    let names: Vec<&str> = experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    assert!(["tso", "gso", "tx-checksum", "sg", "gro", "uso"].iter().all(|name| names.contains(name)), "{names:?}");
    for experiment in &experiments {
        let measured = experiment.variants.iter().all(|variant| variant.throughput_bps.is_some());
        assert!(measured, "{}: {:?}", experiment.name, experiment.notes);
    }
}

#[test]
fn settings_that_the_user_made_are_found_again() {
    let lab = Lab::new("user");
    lab.host
        .run(|| {
            ethtool::set_features(NAMED, &[("tx-tcp-segmentation", false), ("rx-gro", true)]).unwrap();
            // Without transmit checksums, TSO over IPv6 is requested, but unavailable.
            ethtool::set_features(NAMED, &[("tx-checksum-ip-generic", false)]).unwrap();
            link::set_gso_segs_max(NAMED, 17).unwrap();
        })
        .unwrap();
    let named = lab.settings(NAMED);
    assert_eq!(named.features["tx-tcp6-segmentation"], (Some(false), Some(true)), "the case that is meant");
    lab.run(&lab.config(&["tso", "tx-checksum"]), &AtomicBool::new(false)).unwrap();
    assert_eq!(lab.settings(NAMED), named);
}

#[test]
fn a_run_that_is_stopped_puts_everything_back() {
    let lab = Lab::new("stopped");
    let named = lab.settings(NAMED);
    let stop = AtomicBool::new(false);
    let mut switched = 0;
    let host = lab.host.try_clone().unwrap();
    let outcome = lab.run_and_hear(&lab.config(&["tso"]), &stop, &mut |line| {
        // Each progress line is printed before the sample that the line names. When the line of the second sample is
        // printed, the first sample has already switched a feature.
        if line.starts_with("tso 2/") {
            switched += usize::from(host.run(|| Settings::read(NAMED)).unwrap() != named);
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(outcome, Err(TestbedError::Stopped)), "{outcome:?}");
    assert_eq!(switched, 1);
    assert_eq!(lab.settings(NAMED), named);
    assert!(lab.state_files().is_empty());
}

#[test]
fn a_run_that_is_stopped_half_way_keeps_the_experiments_that_are_finished() {
    let lab = Lab::new("half");
    let (stop, mut experiments) = (AtomicBool::new(false), Vec::new());
    let outcome = lab.run_into(
        &lab.config(&["tso", "tx-checksum"]),
        &stop,
        &mut |line| stop.store(line.starts_with("tx-checksum 2/"), Ordering::Relaxed),
        &mut experiments,
    );
    assert!(matches!(outcome, Err(TestbedError::Stopped)), "{outcome:?}");
    let [tso] = &experiments[..] else { panic!("one was finished: {experiments:?}") };
    assert_eq!((tso.name.as_str(), tso.variants.iter().all(|variant| variant.samples.len() == 1)), ("tso", true));
    assert!(lab.state_files().is_empty());
}

#[test]
fn a_run_that_panics_puts_everything_back() {
    let lab = Lab::new("panic");
    let named = lab.settings(NAMED);
    let run = || {
        lab.run_and_hear(&lab.config(&["tso"]), &AtomicBool::new(false), &mut |line| {
            assert!(!line.starts_with("tso 2/"));
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    assert_eq!(lab.settings(NAMED), named);
    assert!(lab.state_files().is_empty());
}

#[test]
fn an_interface_that_goes_away_ends_the_run_and_its_state_is_kept() {
    let lab = Lab::new("gone");
    let host = lab.host.try_clone().unwrap();
    let outcome = lab.run_and_hear(&lab.config(&["tso"]), &AtomicBool::new(false), &mut |line| {
        if line.starts_with("tso 2/") {
            host.run(|| link::delete(NAMED).unwrap()).unwrap();
        }
    });
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "no interface \"va\" in this network namespace; there are: lo, vbeside, vother"
    );
    assert_eq!(lab.state_files().len(), 1);
    assert!(lab.restore().0.unwrap_err().to_string().contains("no longer exists"));
}

#[test]
fn what_a_killed_run_left_is_put_back_by_restore() {
    let lab = Lab::new("killed");
    let (named, beside) = (lab.settings(NAMED), lab.settings(BESIDE));
    lab.killed_run();
    let (restored, lines) = lab.restore();
    assert_eq!(restored.unwrap(), 1, "{lines:?}");
    assert_eq!(lab.settings(NAMED), named);
    assert_eq!(lab.settings(BESIDE), beside);
    assert!(lab.state_files().is_empty());
    assert_eq!(lab.restore().0.unwrap(), 0, "once is enough");
}

#[test]
fn the_next_run_first_puts_back_what_a_killed_one_left() {
    let lab = Lab::new("next");
    let named = lab.settings(NAMED);
    lab.killed_run();
    let mut lines = Vec::new();
    let run = lab.run_and_hear(&lab.config(&["sg"]), &AtomicBool::new(false), &mut |line| lines.push(line.to_owned()));
    run.unwrap();
    assert!(lines[0].starts_with("va: all settings restored as process "), "{lines:?}");
    assert_eq!(lab.settings(NAMED), named);
    assert!(lab.state_files().is_empty());
}

#[test]
fn an_interface_in_use_by_a_run_is_left_to_it() {
    let lab = Lab::new("busy");
    let child = Killed(lab.host.run(|| spawn_run(&lab.dir)).unwrap());
    let begun = Instant::now();
    while lab.state_files().iter().all(|path| path.extension().is_none_or(|extension| extension != "json")) {
        assert!(begun.elapsed() < PATIENCE, "the child never wrote its state");
        thread::sleep(Duration::from_millis(5));
    }
    let expected = format!("interface \"va\" is in use by another run; stop process {} first", child.0.id());
    let run = lab.run(&lab.config(&["tso"]), &AtomicBool::new(false));
    assert_eq!(run.unwrap_err().to_string(), expected);
    assert_eq!(lab.restore().0.unwrap_err().to_string(), expected);
}

#[test]
fn a_restoration_by_name_leaves_other_interfaces_and_one_without_leaves_running_runs() {
    let lab = Lab::new("by-name");
    let named = lab.settings(NAMED);
    lab.killed_run();
    let by_name = |name: &str| lab.host.run(|| restore_interface(&lab.dir, name, &mut |_| ())).unwrap();
    assert!(!by_name(BESIDE).unwrap());
    assert!(by_name(NAMED).unwrap());
    assert_eq!(lab.settings(NAMED), named);
    // The first state file is of a run that was killed, the second one of a run that is still running.
    lab.killed_run();
    let [left] = &lab.state_files()[..] else { panic!("one file") };
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(left).unwrap()).unwrap();
    state["interface"] = "busy".into();
    let running = left.with_file_name(left.file_name().unwrap().to_str().unwrap().replace(NAMED, "busy"));
    fs::write(&running, state.to_string()).unwrap();
    let held = fs::File::open(&running).unwrap();
    held.lock().unwrap();
    let (restored, lines) = lab.restore();
    assert_eq!(restored.unwrap(), 1, "{lines:?}");
    assert!(lines.last().unwrap().starts_with("left alone: interface \"busy\" is in use"), "{lines:?}");
    assert_eq!((lab.settings(NAMED), running.exists()), (named, true));
}

#[test]
fn a_state_of_another_namespace_or_interface_is_refused_and_kept() {
    let lab = Lab::new("mismatch");
    lab.killed_run();
    let left = lab.settings(NAMED);
    let [file] = &lab.state_files()[..] else { panic!("one file") };
    let refused = |restored: Result<usize, TestbedError>, difference: &str| {
        let error = restored.unwrap_err();
        assert!(matches!(error, TestbedError::Device(DeviceError::Mismatch { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains(difference) && text.lines().count() == 1, "{text}");
        assert!(file.exists());
    };
    // The interface of the state file is in one namespace. An interface of the same name is in another namespace.
    let other = Lab::new("mismatch-other");
    let theirs = other.settings(NAMED);
    refused(other.host.run(|| restore(&lab.dir, &mut |_| ())).unwrap(), "network namespace");
    assert_eq!(other.settings(NAMED), theirs);
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    state["identity"]["mac"] = "02:00:00:00:00:99".into();
    fs::write(file, state.to_string()).unwrap();
    refused(lab.restore().0, "Ethernet address");
    assert_eq!(lab.settings(NAMED), left, "nothing was touched");
    lab.host.run(|| link::delete(NAMED).unwrap()).unwrap();
    refused(lab.restore().0, "no longer exists");
}

#[test]
fn a_state_of_an_earlier_boot_is_put_away() {
    let lab = Lab::new("boot");
    lab.killed_run();
    let left = lab.settings(NAMED);
    let [file] = &lab.state_files()[..] else { panic!("one file") };
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    state["identity"]["boot_id"] = "another".into();
    fs::write(file, state.to_string()).unwrap();
    let (restored, lines) = lab.restore();
    assert_eq!(restored.unwrap(), 0);
    assert!(lines[0].contains("rebooted since"), "{lines:?}");
    assert_eq!(lab.settings(NAMED), left);
    assert!(!file.exists());
}

#[test]
fn garbage_is_refused_in_one_line_and_does_not_keep_others_from_being_restored() {
    let lab = Lab::new("garbage");
    let named = lab.settings(NAMED);
    lab.killed_run();
    let garbage = lab.dir.join("device-eth0-1.json");
    fs::write(&garbage, "\u{0}{\"version\":\n").unwrap();
    let (restored, lines) = lab.restore();
    let text = restored.unwrap_err().to_string();
    assert!(text.starts_with(&format!("state file {}: is not a state", garbage.display())), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(lab.settings(NAMED), named, "{lines:?}");
    assert_eq!(lab.state_files(), [garbage]);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_touched() {
    let lab = Lab::new("refused");
    let named = lab.settings(NAMED);
    let refused = |config: &DeviceConfig| {
        let text = lab.run(config, &AtomicBool::new(false)).unwrap_err().to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(lab.state_files().is_empty());
        text
    };
    let config = lab.config(&["tso"]);
    assert_eq!(
        refused(&DeviceConfig { interface: "eth9".to_owned(), ..config.clone() }),
        "no interface \"eth9\" in this network namespace; there are: lo, va, vbeside, vother"
    );
    let nobody = DeviceConfig { peer: format!("{PEER}:9"), ..config.clone() };
    let outcome = lab.run(&nobody, &AtomicBool::new(false));
    assert!(matches!(outcome, Err(TestbedError::Device(DeviceError::Peer { .. }))), "nothing has begun: {outcome:?}");
    let text = refused(&nobody);
    assert!(text.contains("198.18.3.2:9") && text.contains("offramp ttcp --serve"), "{text}");
    let text = refused(&DeviceConfig { interface: BESIDE.to_owned(), ..config.clone() });
    assert!(text.starts_with("traffic to 198.18.3.2 does not go through interface \"vbeside\""), "{text}");
    assert!(refused(&lab.config(&["tos"])).starts_with("no experiment \"tos\"; there are: tso, "));
    assert!(refused(&lab.config(&["lro"])).contains("can be changed on interface \"va\" (driver veth)"));
    assert!(refused(&DeviceConfig { repeats: 0, ..config.clone() }).starts_with("repeats"));
    assert!(refused(&DeviceConfig { streams: 0, ..config.clone() }).starts_with("streams"));
    assert!(refused(&DeviceConfig { seconds: f64::NAN, ..config }).starts_with("length of the test"));
    assert_eq!(lab.settings(NAMED), named);
}

//! The memory of a run does not grow with simulated time. This file has a single test, because the peak is measured for
//! the whole process.

use offramp_model::config::Workload;
use offramp_model::profile::Profile;
use offramp_model::simulation::run;

/// Returns the peak memory of this process so far, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_run_of_fifty_times_the_time_takes_no_more_memory() {
    const SLACK_KIB: u64 = 1024;
    let cases = [
        ("486-3c503", Workload::TtcpReceive, "20s", "1000s"),
        ("486-wd8003e", Workload::NfsRead, "20s", "1000s"),
        ("ndis-2011", Workload::TtcpReceive, "1s", "50s"),
        ("p4-e1000-pci", Workload::TtcpBoth, "40ms", "2s"),
        // A 486 cannot forward 10000 frames per second, so the queues of the 486 are full.
        ("486-wd8003ep", Workload::Forward, "20s", "200s"),
        ("486-wd8003ep", Workload::Source, "20s", "200s"),
    ];
    let run_all = |long: bool| {
        for (name, workload, short_time, long_time) in cases {
            let profile = Profile::load(name).unwrap().with("workload.time", if long { long_time } else { short_time });
            run(&profile, workload).unwrap();
        }
        peak_kib()
    };
    let short = run_all(false);
    let long = run_all(true);
    assert!(long <= short + SLACK_KIB, "{short} KiB, then {long} KiB");
}

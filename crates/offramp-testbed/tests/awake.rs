//! Test of the threads that keep processors awake: no thread remains after the value is dropped.

use offramp_ports::sys::cpu::online;
use offramp_testbed::cpu::AwakeCpus;
use std::fs;

/// Returns the number of descriptors and of threads of this process.
fn held() -> (usize, usize) {
    let count = |directory: &str| fs::read_dir(directory).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn a_hundred_starts_and_failures_leave_no_thread() {
    let before = held();
    for _ in 0..100 {
        drop(AwakeCpus::start(&online()).unwrap());
        assert!(AwakeCpus::start(&[online()[0], 1_000_000]).is_err());
    }
    // The kernel may still list an ended thread briefly after `join`.
    for _ in 0..1000 {
        if held() == before {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(held(), before);
}

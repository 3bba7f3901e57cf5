//! Threads that keep processors awake end with the value that stands for them.

use offramp_ports::sys::cpu::online;
use offramp_testbed::cpu::AwakeCpus;
use std::fs;

/// Descriptors and threads of this process.
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
    // The kernel may still be releasing the number of a thread that has ended.
    for _ in 0..1000 {
        if held() == before {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(held(), before);
}

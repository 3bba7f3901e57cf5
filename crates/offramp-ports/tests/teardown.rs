//! Tests that all resources are released. The test runs alone in its process, because it counts the resources of the
//! process.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::namespace;
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{Tap, TapConfig};

/// Number of descriptors and threads of this process, and the namespaces held by them.
#[derive(Debug, PartialEq)]
struct Held {
    descriptors: usize,
    threads: usize,
    namespaces: BTreeSet<String>,
    interfaces: Vec<String>,
}

fn held() -> Held {
    let entries = |dir: &str| fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    let (fds, tasks) = (entries("/proc/self/fd"), entries("/proc/self/task"));
    let links = fds.iter().cloned().chain(tasks.iter().map(|t| t.join("ns/net")));
    let targets = links.filter_map(|l| Some(fs::read_link(l).ok()?.to_string_lossy().into_owned()));
    let namespaces = targets.filter(|t| t.starts_with("net:")).collect();
    Held { descriptors: fds.len(), threads: tasks.len(), namespaces, interfaces: link::list().unwrap() }
}

#[test]
fn a_hundred_openings_and_failures_leave_nothing_behind() {
    let here = NetNs::current().unwrap();
    let before = held();
    for round in 0..100 {
        let ns = namespace();
        let config = TapConfig { queues: 1 + round % 3, ..TapConfig::new("ofr0") };
        let tap = Tap::open_in(&ns, &config).unwrap();
        let queue = tap.queue(0).unwrap();
        drop(tap);
        assert!(ns.run(|| link::index("ofr0").is_ok()).unwrap(), "a queue keeps its interface");
        drop(queue);
        assert_eq!(ns.run(|| link::list().unwrap()).unwrap(), ["lo"]);

        // A group address is refused only after the interface was created.
        let bad = TapConfig { mac: Some([1, 0, 0x5e, 0, 0, 1]), ..config };
        let refused = Tap::open_in(&ns, &bad).map(|_| ()).unwrap_err().to_string();
        assert!(refused.starts_with("tap \"ofr0\": setting the Ethernet address of interface \"ofr0\""), "{refused}");
        assert_eq!(ns.run(|| link::list().unwrap()).unwrap(), ["lo"]);

        assert!(here.run(|| Tap::open(&TapConfig::new("lo"))).unwrap().is_err());
    }
    // The kernel may not have released the id of an ended thread yet.
    for _ in 0..1000 {
        if held() == before {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(held(), before);
}

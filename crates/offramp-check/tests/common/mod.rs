//! Test beds: two namespaces and the path between them.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod rig;
pub mod traffic;
pub mod tunnel;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use offramp_check::end::{End, LocalEnd};
use offramp_check::error::CheckError;
use offramp_check::plan::Depth;
use offramp_check::run::{Config, run};
use offramp_check::verdict::{Report, Verdict};
use offramp_offload::frame::Frame;
use offramp_offload::meta::TxMeta;
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use offramp_ports::sys::ethtool::Features;
use offramp_ports::sys::{NetNs, link};

/// Names of the two interfaces.
pub const NAMES: [&str; 2] = ["cka", "ckb"];

/// Returns a configuration with a few cases of each kind.
pub fn quick() -> Config {
    Config { depth: Depth::Quick, only: Vec::new(), seed: 1 }
}

/// Number of beds made by this process. Each bed has a separate directory.
static BEDS: AtomicUsize = AtomicUsize::new(0);

/// Two namespaces with one interface each.
pub struct Bed {
    pub namespaces: [NetNs; 2],
    /// The namespace of the path between the interfaces, if there is one.
    middle: Option<NetNs>,
    pub state_dir: PathBuf,
}

impl Bed {
    pub fn new(name: &str) -> Self {
        let namespace =
            || NetNs::new().unwrap_or_else(|e| panic!("this test needs network namespaces: {e}; run as root"));
        let number = BEDS.fetch_add(1, Ordering::Relaxed);
        let state_dir = std::env::temp_dir().join(format!("offramp-check-{name}-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&state_dir);
        Self { namespaces: [namespace(), namespace()], middle: None, state_dir }
    }

    pub fn veth(name: &str, mtu: u32) -> Self {
        let bed = Self::new(name);
        let [a, b] = &bed.namespaces;
        a.run(|| {
            link::create_veth(NAMES[0], NAMES[1]).unwrap();
            link::move_to(NAMES[1], b).unwrap();
        })
        .unwrap();
        bed.set_up(mtu);
        bed
    }

    /// Makes two veth pairs with a bridge between them in a third namespace.
    pub fn bridged(name: &str, mtu: u32) -> Self {
        let mut bed = Self::new(name);
        let middle = NetNs::new().unwrap();
        middle
            .run(|| {
                link::create_bridge("br").unwrap();
                link::disable_ipv6("br").unwrap();
                for (n, (namespace, name)) in bed.namespaces.iter().zip(NAMES).enumerate() {
                    let port = format!("port{n}");
                    link::create_veth(&port, name).unwrap();
                    link::move_to(name, namespace).unwrap();
                    link::disable_ipv6(&port).unwrap();
                    link::set_mtu(&port, mtu).unwrap();
                    link::set_master(&port, "br").unwrap();
                    link::set_up(&port).unwrap();
                }
                link::set_up("br").unwrap();
            })
            .unwrap();
        bed.set_up(mtu);
        bed.middle = Some(middle);
        bed
    }

    /// Brings both interfaces up.
    pub fn set_up(&self, mtu: u32) {
        for (namespace, name) in self.namespaces.iter().zip(NAMES) {
            let up = || {
                link::set_mtu(name, mtu).unwrap();
                link::set_up(name).unwrap();
            };
            namespace.run(up).unwrap();
        }
    }

    pub fn end(&self, side: usize) -> Result<LocalEnd, CheckError> {
        let namespace = self.namespaces[side].try_clone().unwrap();
        LocalEnd::open_in(namespace, NAMES[side], NAMES[side], &self.state_dir, &mut |_| ())
    }

    /// Returns the features of both interfaces.
    pub fn settings(&self) -> Vec<Features> {
        let of = |side: usize| self.namespaces[side].run(|| Features::read(NAMES[side]).unwrap()).unwrap();
        vec![of(0), of(1)]
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.state_dir);
    }
}

/// Returns the wire frames of a frame with an offload request.
pub fn segments(bytes: &[u8], request: TxMeta) -> Vec<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let frame = Frame::new(&mut bytes, request);
    let Ok(mut segmenter) = Segmenter::new(&frame, &SegmentPolicy::default()) else { return Vec::new() };
    let mut frames = Vec::new();
    while segmenter.frames_left() > 0 {
        let mut out = vec![0; segmenter.next_len()];
        segmenter.write_next(&frame, &mut out);
        frames.push(out);
    }
    frames
}

/// Runs a check on a bed.
pub fn check(bed: &Bed, config: &Config) -> Report {
    let mut ends: [Box<dyn End>; 2] = [Box::new(bed.end(0).unwrap()), Box::new(bed.end(1).unwrap())];
    run(&mut ends, config, &AtomicBool::new(false), &mut |_| ()).unwrap()
}

/// Returns the faults of a report, one per line.
pub fn wrong(report: &Report) -> String {
    let of = |row: &offramp_check::verdict::Row| match &row.verdict {
        Verdict::Wrong(finding) => Some(format!("{} of {}: {finding:?}\n", row.offload, row.interface)),
        _ => None,
    };
    report.rows.iter().filter_map(of).collect()
}

//! Other traffic during a check. The tests of the `offramp` program include this file, too.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use offramp_ports::sys::NetNs;

/// Environment variable with the number of checks of each path. Without the variable, each path is checked once.
const RUNS: &str = "OFFRAMP_CHECK_RUNS";
const PORT: u16 = 9;
/// Number of datagrams in a burst. After a burst, the sender pauses for the duration of the burst, and thus uses half
/// of a processor's time. A burst fits into the shortest queue of the path. The traffic alone therefore overflows no
/// queue.
const BURST: usize = 32;

pub fn runs() -> u64 {
    std::env::var(RUNS).map_or(1, |text| text.parse().unwrap_or_else(|_| panic!("{RUNS}={text} is not a number")))
}

/// UDP traffic in one direction, active half of the time. Dropping the value ends the traffic.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    /// Sends from the first address, which belongs to the namespace, to the second address.
    pub fn start(namespace: &NetNs, addresses: [Ipv4Addr; 2]) -> Self {
        let socket = namespace.run(|| UdpSocket::bind((addresses[0], 0)).unwrap()).unwrap();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = thread::spawn(move || {
            let datagram = [0x5a; 1400];
            while !until.load(Ordering::Relaxed) {
                let begun = Instant::now();
                for _ in 0..BURST {
                    let is_sent = socket.send_to(&datagram, (addresses[1], PORT)).is_ok();
                    count.fetch_add(u64::from(is_sent), Ordering::Relaxed);
                }
                thread::sleep(begun.elapsed());
            }
        });
        Self { stop, sent, thread: Some(thread) }
    }

    /// Returns the number of datagrams sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

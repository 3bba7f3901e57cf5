//! A switch as a worker's task. While the worker sleeps, an event of any port of the switch wakes the worker.

use crate::worker::{Task, Watch, clock_ns, thread_time_ns};
use offramp_adapter::host_io::HostIo;
use offramp_adapter::port::PortError;
use offramp_adapter::switch::Switch;
use std::task::Waker;

/// The task never ends: after a port has closed, the switch serves the remaining ports. Ports can be added at any time
/// through [`Switch::control`]. Each addition wakes the worker.
impl<P: HostIo + Send> Task for Switch<P> {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        Ok(self.poll_timed(now_ns, &thread_time_ns, &clock_ns).moved)
    }

    fn arm(&mut self, waker: &Waker) {
        self.register(waker);
        self.hosts_mut().for_each(HostIo::arm);
    }

    fn disarm(&mut self) {
        self.unregister();
        self.hosts_mut().for_each(HostIo::disarm);
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        if let Some(at) = self.next_deadline_ns() {
            watch.until(at.max(now_ns));
        }
        for (host, is_held) in self.hosts() {
            watch.host(host, is_held, now_ns);
        }
    }
}

//! The switch as a task that can be brought to rest.

use super::drain::{Mark, Rest, say_gone};
use offramp_adapter::port::PortError;
use offramp_adapter::switch::{Switch, SwitchPort};
use offramp_ports::worker::{HostIo, Task, Watch};
use std::sync::Arc;
use std::task::Waker;

/// A host port of any kind: ports of one switch are a TAP, a guest and an interface side by side.
pub type AnyHost = Box<dyn HostIo + Send>;

/// A switch that says when it is at rest: it holds no frame after a turn of all ports in which none moved.
pub struct RestingSwitch {
    switch: Switch<AnyHost>,
    rest: Arc<Rest>,
    mark: Arc<Mark>,
    ports: Vec<Named>,
}

/// A port of a switch, and what a message calls who sits there.
pub struct Named {
    port: Arc<SwitchPort>,
    /// `None` once it was said that they are gone.
    who: Option<String>,
}

impl Named {
    pub fn new(port: &Arc<SwitchPort>, who: String) -> Self {
        Self { port: Arc::clone(port), who: Some(who) }
    }

    fn say_if_gone(&mut self) {
        if let Some(errno) = self.port.closed()
            && let Some(who) = self.who.take()
        {
            say_gone(&who, PortError::Closed(errno));
        }
    }
}

impl RestingSwitch {
    /// `ports` are all of the switch.
    pub fn new(switch: Switch<AnyHost>, rest: &Arc<Rest>, mark: &Arc<Mark>, ports: Vec<Named>) -> Self {
        Self { switch, rest: Arc::clone(rest), mark: Arc::clone(mark), ports }
    }

    /// Whether nothing is held for any port that is there.
    fn is_empty(&self) -> bool {
        let mut open = self.ports.iter().map(|named| &named.port).filter(|port| port.closed().is_none());
        open.all(|port| self.switch.held(port.index()) == 0)
    }
}

impl Task for RestingSwitch {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let phase = self.rest.phase();
        self.switch.set_draining(!self.rest.is_running());
        let moved = Task::poll(&mut self.switch, now_ns)?;
        self.ports.iter_mut().for_each(Named::say_if_gone);
        if !moved && self.is_empty() {
            self.mark.note(phase);
        }
        Ok(moved)
    }

    fn arm(&mut self, waker: &Waker) {
        Task::arm(&mut self.switch, waker);
    }

    fn disarm(&mut self) {
        Task::disarm(&mut self.switch);
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        watch.readable(self.rest.bell());
        // From then on it is polled until its thread is ended.
        if self.rest.is_running() {
            Task::watch(&mut self.switch, now_ns, watch);
        }
    }
}

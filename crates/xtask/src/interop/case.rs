//! The test cases: ring paths of DPDK's virtio driver, shapes of the bench, and events between two exchanges.

/// Number of entries of a ring whose size is a power of two.
const RING_ENTRIES: u16 = 256;
/// Number of entries of a packed ring whose size is not a power of two.
const RING_ENTRIES_ODD: u16 = 255;

/// A ring path of DPDK's virtio driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPath {
    /// The path's name in DPDK's test plans.
    pub name: &'static str,
    /// The port's arguments that select the path.
    pub arguments: &'static str,
    /// True if a frame can be received into several buffers.
    pub mergeable: bool,
    /// Number of entries of each ring.
    pub entries: u16,
}

const fn path(name: &'static str, arguments: &'static str, mergeable: bool) -> RingPath {
    RingPath { name, arguments, mergeable, entries: RING_ENTRIES }
}

/// All paths. The paths of the short run come first.
pub const PATHS: [RingPath; 12] = [
    path("split mergeable", "packed_vq=0,mrg_rxbuf=1,in_order=0", true),
    path("packed mergeable", "packed_vq=1,mrg_rxbuf=1,in_order=0", true),
    path("split vectorized receive", "packed_vq=0,mrg_rxbuf=0,in_order=0,vectorized=1", false),
    path("packed vectorized", "packed_vq=1,mrg_rxbuf=0,in_order=1,vectorized=1", false),
    path("split in-order mergeable", "packed_vq=0,mrg_rxbuf=1,in_order=1", true),
    path("split plain", "packed_vq=0,mrg_rxbuf=0,in_order=0", false),
    path("split in-order plain", "packed_vq=0,mrg_rxbuf=0,in_order=1", false),
    path("packed in-order mergeable", "packed_vq=1,mrg_rxbuf=1,in_order=1", true),
    path("packed plain", "packed_vq=1,mrg_rxbuf=0,in_order=0", false),
    path("packed in-order plain", "packed_vq=1,mrg_rxbuf=0,in_order=1", false),
    path("packed vectorized transmit", "packed_vq=1,mrg_rxbuf=1,in_order=1,vectorized=1", true),
    RingPath {
        name: "packed vectorized, 255 entries",
        arguments: "packed_vq=1,mrg_rxbuf=0,in_order=1,vectorized=1",
        mergeable: false,
        entries: RING_ENTRIES_ODD,
    },
];
/// Number of [`PATHS`] in the short run.
const SHORT_PATHS: usize = 4;

/// An event between two exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// No event: the case has only one exchange.
    None,
    /// The guest stops and starts its ports.
    PortRestart,
    /// The guest is killed and started again.
    GuestReconnects,
    /// The backend is killed and started again.
    BackendReconnects,
}

impl Event {
    /// Returns the event's name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::PortRestart => "port restart",
            Self::GuestReconnects => "reconnect of the guest",
            Self::BackendReconnects => "reconnect of the backend",
        }
    }
}

/// The way in which the backend connects guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One guest receives its own frames.
    Echo,
    /// Each of two guests receives the other's frames.
    Relay,
}

impl Shape {
    /// Returns the shape's name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Echo => "loopback",
            Self::Relay => "vm2vm",
        }
    }
}

/// A test case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The guests' ring path.
    pub path: RingPath,
    /// The way in which the backend connects the guests.
    pub shape: Shape,
    /// True if the guest has the listening socket (virtio-user's server mode), not the backend.
    pub guest_listens: bool,
    /// Number of queue pairs.
    pub queues: u16,
    /// The event between two exchanges.
    pub event: Event,
}

impl Case {
    /// Returns the case's name, made of shape, event and path.
    pub fn name(&self) -> String {
        let mut parts = vec![self.shape.name().to_owned()];
        if self.guest_listens {
            parts.push("guest listens".to_owned());
        }
        if self.queues > 1 {
            parts.push(format!("{} queues", self.queues));
        }
        if self.event != Event::None {
            parts.push(self.event.name().to_owned());
        }
        format!("{}: {}", parts.join(", "), self.path.name)
    }
}

/// Returns the cases of a full or a short run.
pub fn cases(full: bool) -> Vec<Case> {
    let paths = if full { &PATHS[..] } else { &PATHS[..SHORT_PATHS] };
    let relay = |path| Case { path, shape: Shape::Relay, guest_listens: false, queues: 1, event: Event::None };
    let mut cases: Vec<_> = paths.iter().copied().map(relay).collect();
    for (index, &path) in paths.iter().enumerate() {
        let echo = Case { shape: Shape::Echo, ..relay(path) };
        let mut add = |case: Case, short: bool| {
            if full || short {
                cases.push(case);
            }
        };
        add(Case { guest_listens: true, ..echo }, false);
        add(Case { guest_listens: true, event: Event::BackendReconnects, ..echo }, index < 2);
        add(Case { event: Event::GuestReconnects, ..echo }, index < 2);
        add(Case { event: Event::PortRestart, ..echo }, index == 1);
        add(Case { queues: 2, ..echo }, index == 0);
        add(Case { queues: 8, ..echo }, false);
        add(Case { queues: 2, ..relay(path) }, false);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let cases = cases(true);
        let names: BTreeSet<_> = cases.iter().map(Case::name).collect();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn the_short_run_is_a_part_of_the_full_one_and_has_every_event() {
        let (short, full) = (cases(false), cases(true));
        assert!(short.iter().all(|case| full.contains(case)));
        for event in [Event::None, Event::PortRestart, Event::GuestReconnects, Event::BackendReconnects] {
            assert!(short.iter().any(|case| case.event == event), "{}", event.name());
        }
        assert!(short.iter().any(|case| case.queues > 1));
    }

    #[test]
    fn the_full_run_relays_over_every_path() {
        let full = cases(true);
        for path in PATHS {
            assert!(full.iter().any(|case| case.path == path && case.shape == Shape::Relay), "{}", path.name);
        }
    }
}

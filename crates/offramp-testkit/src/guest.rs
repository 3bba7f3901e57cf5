//! A whole guest: memory, negotiated rings, and queues that send and receive frames.

mod builder;
mod control;
mod pool;
mod queue;
mod rx;
mod tx;

use std::ops::{Deref, DerefMut};
use std::path::Path;

pub use builder::GuestBuilder;
pub use control::ControlQueue;
pub use queue::{Queue, Signals};
pub use rx::{ChainUse, Received, RxQueue};
pub use tx::{DataPlacement, HeaderPlacement, TxLayout, TxQueue};

use crate::frontend::{Frontend, HandshakeOptions, Inflight, Negotiated, PeerError};
use crate::memory::GuestMemory;
use crate::ring::{RingOptions, Virtqueue};

/// Base of an unused packed ring: the two positions are 0, and the two wrap counters are 1.
const PACKED_BASE_AT_FIRST: u32 = 0x8000_8000;

/// A guest with negotiated features and started rings.
#[derive(Debug)]
pub struct Guest {
    memory: GuestMemory,
    frontend: Frontend,
    agreed: Negotiated,
    options: HandshakeOptions,
    /// Receive queues of the guest, except the queues that `take_pairs` has removed.
    rx: Vec<RxQueue>,
    tx: Vec<TxQueue>,
    control: Option<ControlQueue>,
    /// Inflight region, whose contents outlive the backend.
    inflight: Option<Inflight>,
}

impl Guest {
    /// Returns a builder for a guest with one queue pair of split rings with 256 descriptors. The guest negotiates only
    /// the mandatory features of a driver.
    pub fn builder() -> GuestBuilder {
        GuestBuilder::default()
    }

    fn new(builder: &GuestBuilder, frontend: Frontend) -> Self {
        let memory = builder.new_memory();
        let mut guest = Self {
            memory,
            frontend,
            agreed: Negotiated::default(),
            options: builder.handshake,
            rx: Vec::new(),
            tx: Vec::new(),
            control: None,
            inflight: None,
        };
        guest.agreed = guest.frontend.negotiate(&guest.options).expect("negotiating with the backend");
        let (pairs, pairs_max) = (builder.queue_pairs, guest.agreed.queue_pairs_max);
        assert!(u64::from(pairs) <= pairs_max, "the test wants {pairs} queue pairs, the backend has {pairs_max}");
        guest.make_queues(builder);
        if builder.inflight {
            let made = guest.frontend.get_inflight_fd(2 * pairs, builder.queue_size);
            guest.inflight = Some(made.expect("a region for what is in flight"));
            guest.give_inflight();
        }
        guest.start().expect("starting the backend's rings");
        guest
    }

    fn make_queues(&mut self, builder: &GuestBuilder) {
        let features = self.agreed.features;
        let options = RingOptions {
            event_idx: features & crate::features::EVENT_IDX != 0,
            in_order: features & crate::features::IN_ORDER != 0,
        };
        let packed = features & crate::features::RING_PACKED != 0;
        let queue = || Queue::new(&self.memory, packed, builder.queue_size, options, builder.interrupts);
        for _ in 0..builder.queue_pairs {
            self.rx.push(RxQueue::new(queue(), features));
            self.tx.push(TxQueue::new(queue(), features, builder.layout));
        }
        self.control = builder.control_queue.then(|| ControlQueue::new(queue()));
    }

    fn give_inflight(&self) {
        if let Some(inflight) = &self.inflight {
            self.frontend.set_inflight_fd(inflight).expect("giving the region for what is in flight");
        }
    }

    /// Starts all rings at the positions returned by `base`.
    fn start_from(&self, base: impl Fn(&Virtqueue) -> u32) -> Result<(), PeerError> {
        let pairs = self.rx.iter().zip(&self.tx).flat_map(|(rx, tx)| [&rx.queue, &tx.queue]);
        let queues = pairs.chain(self.control.iter().map(|control| &control.queue));
        let vrings: Vec<_> = (0..).zip(queues).map(|(index, queue)| queue.vring(index, base(&queue.ring))).collect();
        self.frontend.start(&self.options, &self.agreed, &self.memory, &vrings)
    }

    /// Starts all rings at the used position that the driver knows. [`Guest::connect`](GuestBuilder::connect) already
    /// calls this function.
    ///
    /// # Errors
    /// Returns an error if the backend refuses the request or closes the connection.
    pub fn start(&self) -> Result<(), PeerError> {
        self.start_from(Virtqueue::resume_base)
    }

    /// Stops all rings (`GET_VRING_BASE`). Returns the backend's positions in the order rx 0, tx 0, rx 1 and so on. The
    /// position of the control queue, if any, is last.
    ///
    /// # Errors
    /// Returns an error if the backend refuses the request or closes the connection.
    pub fn stop(&self) -> Result<Vec<u32>, PeerError> {
        let vrings = 2 * self.rx.len() as u32 + u32::from(self.control.is_some());
        (0..vrings).map(|index| self.frontend.get_vring_base(index)).collect()
    }

    /// Restarts all rings at the positions in `bases`, the result of [`Guest::stop`].
    ///
    /// # Errors
    /// Returns an error if the backend refuses the request or closes the connection.
    pub fn start_at(&self, bases: &[u32]) -> Result<(), PeerError> {
        let next = std::cell::Cell::new(0);
        self.start_from(|_| bases[next.replace(next.get() + 1)])
    }

    /// Resets the rings: the driver drops all chains in flight, and the next device starts with new rings.
    pub fn reset_rings(&mut self) {
        self.rx.iter_mut().for_each(RxQueue::reset);
        self.tx.iter_mut().for_each(TxQueue::reset);
        self.control.iter_mut().for_each(|control| control.queue.reset());
    }

    /// Continues over a new connection to a backend that listens at `path`, with the same memory. The old backend must
    /// be dead or stopped ([`Guest::stop`]). If the old backend still ran, it would notice the end of its connection
    /// too late. Both backends would then use the same rings.
    ///
    /// Split rings continue after the last chain used by the device. Packed rings also do so if the device uses chains
    /// in the order in which the driver made them available. On these split and packed rings, the new backend processes
    /// the chains in flight again. Other packed rings must be reset before the call ([`Guest::reset_rings`]).
    ///
    /// With [`GuestBuilder::inflight`], packed rings are announced with the initial position, because a frontend knows
    /// only this position. The backend must read the old position from the inflight region.
    pub fn reconnect(&mut self, path: impl AsRef<Path>) {
        self.frontend = Frontend::connect(path);
        self.agreed = self.frontend.negotiate(&self.options).expect("negotiating with the backend again");
        if self.inflight.is_some() {
            // Enable the rings before their start, as QEMU does. A backend discards the frames of a ring that is
            // started and not enabled.
            let vrings = 2 * self.rx.len() as u32;
            let enabled = (0..vrings).try_for_each(|index| self.frontend.set_vring_enable(index, true));
            enabled.expect("enabling the backend's rings");
        }
        self.give_inflight();
        let knows = |ring: &Virtqueue| match ring {
            Virtqueue::Packed(_) if self.inflight.is_some() => PACKED_BASE_AT_FIRST,
            ring => ring.resume_base(),
        };
        self.start_from(knows).expect("starting the backend's rings again");
    }

    /// Continues in `memory`, a copy of this guest's memory, with a backend that listens at `path`, as at the end of a
    /// live migration. The rings start at the positions in `bases`, the result of [`Guest::stop`].
    ///
    /// # Errors
    /// Returns an error if the backend refuses the request or closes the connection.
    pub fn move_to(&mut self, memory: GuestMemory, path: impl AsRef<Path>, bases: &[u32]) -> Result<(), PeerError> {
        self.restore(memory, path, bases, None)
    }

    /// Does the same as [`Guest::move_to`], but sends a state ([`Frontend::save_state`]) to the backend before the
    /// rings start.
    ///
    /// # Errors
    /// Returns an error if the backend refuses the request or closes the connection.
    pub fn restore(
        &mut self,
        memory: GuestMemory,
        path: impl AsRef<Path>,
        bases: &[u32],
        state: Option<&[u8]>,
    ) -> Result<(), PeerError> {
        memory.take_over_allocations(&self.memory);
        self.rx.iter_mut().for_each(|queue| queue.move_to(&memory));
        self.tx.iter_mut().for_each(|queue| queue.move_to(&memory));
        self.memory = memory;
        self.frontend = Frontend::connect(path);
        self.agreed = self.frontend.negotiate(&self.options)?;
        state.map_or(Ok(()), |state| self.frontend.load_state(state))?;
        self.start_at(bases)
    }

    /// Returns the number of queue pairs, except the pairs that [`Guest::take_pairs`] has removed.
    pub fn pairs(&self) -> usize {
        self.rx.len()
    }

    /// Returns the transmit queue of pair `pair`.
    pub fn tx(&mut self, pair: usize) -> &mut TxQueue {
        &mut self.tx[pair]
    }

    /// Returns the receive queue of pair `pair`.
    pub fn rx(&mut self, pair: usize) -> &mut RxQueue {
        &mut self.rx[pair]
    }

    /// Returns the two queues of a pair.
    pub fn pair(&mut self, pair: usize) -> (&mut RxQueue, &mut TxQueue) {
        (&mut self.rx[pair], &mut self.tx[pair])
    }

    /// Returns the control queue of [`GuestBuilder::control_queue`]. Panics if the guest has no control queue.
    pub fn control(&mut self) -> &mut ControlQueue {
        self.control.as_mut().expect("a guest with a control queue")
    }

    /// Removes all queue pairs from the guest and returns them, so that separate threads can drive them. The guest
    /// keeps the connection, but can no longer stop or start rings.
    pub fn take_pairs(&mut self) -> Vec<(RxQueue, TxQueue)> {
        std::mem::take(&mut self.rx).into_iter().zip(std::mem::take(&mut self.tx)).collect()
    }

    /// Returns the guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Returns the connection to the backend.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// Returns the result of the negotiation.
    pub fn negotiated(&self) -> &Negotiated {
        &self.agreed
    }
}

/// Each kind of queue is a [`Queue`] with additional buffers.
macro_rules! deref_to_queue {
    ($($kind:ident)*) => {$(
        impl Deref for $kind {
            type Target = Queue;

            fn deref(&self) -> &Queue {
                &self.queue
            }
        }

        impl DerefMut for $kind {
            fn deref_mut(&mut self) -> &mut Queue {
                &mut self.queue
            }
        }
    )*};
}

deref_to_queue!(RxQueue TxQueue ControlQueue);

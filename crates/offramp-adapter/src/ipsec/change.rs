//! Changes of a port's associations and policy: all requested changes are checked first, then applied together.

use super::association::{Events, Inbound, Outbound, SaStatus};
use super::keys::KeyRegistry;
use super::policy::Removed;
use super::{InForce, Policy, PolicyEntry, SaDirection, SaEvent};
use offramp_offload::esp::{CipherLibrary, InvalidSa, SaConfig, SaFault, aws_lc};
use offramp_offload::sync::lock;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};

/// One change of a port's associations or policy.
#[derive(Clone, Debug)]
pub enum SaChange {
    /// Replaces the policy for packets that match no association.
    Policy(Policy),
    /// Forgets the selectors of removed associations; the policy then decides on packets that match these selectors.
    ForgetRemoved,
    /// Adds an association after the existing associations.
    Add {
        /// The association's direction.
        direction: SaDirection,
        /// The association's configuration.
        config: Box<SaConfig>,
    },
    /// Removes an association at once; from then on, packets that the association would have protected are lost.
    Remove {
        /// The association's direction.
        direction: SaDirection,
        /// The association's security parameters index.
        spi: u32,
    },
    /// Replaces an association without losing a frame. A new outbound association seals from the next super-frame on.
    /// In the inbound direction, both associations open packets until the grace time of the old association ends (RFC
    /// 7296 2.8).
    Rekey {
        /// The direction of both associations.
        direction: SaDirection,
        /// Security parameters index of the old association.
        spi: u32,
        /// Configuration of the new association.
        config: Box<SaConfig>,
        /// Time for which the old association still opens packets, in nanoseconds.
        grace_ns: u64,
    },
    /// Removes an inbound association at the end of its grace time.
    Retire {
        /// The association's security parameters index.
        spi: u32,
        /// Time for which the association still opens packets, in nanoseconds.
        grace_ns: u64,
    },
}

/// The reason for refusing all requested changes. Each error message is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaError {
    /// The configuration is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidSa),
    /// No association with this SPI exists to remove or replace.
    #[error("SA {direction} {spi:#010x}: there is none; `offramp sa show` lists the present ones")]
    Unknown {
        /// The requested direction.
        direction: SaDirection,
        /// The requested security parameters index.
        spi: u32,
    },
    /// All inbound associations of an adapter port must receive UDP-encapsulated packets at the same UDP port.
    #[error(
        "SA in {spi:#010x}: UDP encapsulation to port {given}, while another SA takes it at {taken}; \
         a port of the adapter takes it at one"
    )]
    UdpPort {
        /// The association's security parameters index.
        spi: u32,
        /// The requested UDP port.
        given: u16,
        /// The UDP port of another association.
        taken: u16,
    },
    /// The associations of both directions, or two outbound associations, would seal with the same key and the same
    /// sequence numbers.
    #[error(
        "SA {direction} {spi:#010x}: SA {other_direction} {other:#010x} has the same key; make one for each of them"
    )]
    SharedKey {
        /// The requested direction.
        direction: SaDirection,
        /// The requested security parameters index.
        spi: u32,
        /// The direction of the other association.
        other_direction: SaDirection,
        /// Security parameters index of the other association.
        other: u32,
    },
    /// An earlier association has sealed packets with the key of the requested association.
    #[error(
        "SA out {spi:#010x}: its key has sealed packets before; make a new key, \
         or go on after the numbers that were used with sequence = {sequence}"
    )]
    UsedKey {
        /// The association's security parameters index.
        spi: u32,
        /// Minimum [`SaConfig::sequence`] of a further association with the key.
        sequence: u64,
    },
    /// Two ports would seal with the same key and the same sequence numbers.
    #[error("SA out {spi:#010x}: port \"{port}\" seals with the same key; make one for each of them")]
    KeyOfAnotherPort {
        /// The association's security parameters index.
        spi: u32,
        /// The other port's name.
        port: String,
    },
    /// The association's sequence numbers could not be reserved, so they would be used again after a crash.
    #[error("SA {direction} {spi:#010x}: reserving its sequence numbers: {cause}")]
    Unreserved {
        /// The requested direction.
        direction: SaDirection,
        /// The association's security parameters index.
        spi: u32,
        /// The error returned by the [`KeyStore`](super::KeyStore).
        cause: String,
    },
}

/// The associations and policy of a port, changeable by any thread.
#[derive(Debug, Default)]
pub struct Ipsec {
    /// Number of changes of associations and policy so far. A queue pair compares this number with its value in the
    /// previous batch, so a batch without a change takes no lock.
    changes: AtomicU32,
    in_force: Mutex<Arc<InForce>>,
    /// The lock that a thread holds during a whole change, including the wait for a [`KeyStore`](super::KeyStore).
    /// Threads on the frame path lock only `in_force`.
    changing: Mutex<()>,
    context: Mutex<Context>,
}

/// The cipher library, event channel and key registry for new associations.
#[derive(Clone)]
struct Context {
    library: &'static dyn CipherLibrary,
    events: Events,
    keys: Arc<KeyRegistry>,
    /// The port's name in error messages of other ports.
    port: Arc<str>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("library", &self.library.name()).finish_non_exhaustive()
    }
}

impl Default for Context {
    fn default() -> Self {
        Self { library: aws_lc(), events: None, keys: Arc::default(), port: Arc::from("") }
    }
}

impl Ipsec {
    /// Sets the cipher library with which associations created from now on seal and open.
    pub fn use_ciphers(&self, library: &'static dyn CipherLibrary) {
        lock(&self.context).library = library;
    }

    /// Returns the cipher library.
    pub fn library(&self) -> &'static dyn CipherLibrary {
        lock(&self.context).library
    }

    /// Sets the channel for events of associations created from now on.
    pub fn tell(&self, events: Sender<SaEvent>) {
        lock(&self.context).events = Some(events);
    }

    /// Registers the keys of associations created from now on in `keys`, a registry shared with other ports. The port's
    /// name in the registry is `port`. Before this call, the port has its own registry.
    pub fn share_keys(&self, keys: &Arc<KeyRegistry>, port: &str) {
        let mut context = lock(&self.context);
        (context.keys, context.port) = (Arc::clone(keys), port.into());
    }

    /// Returns the policy for packets that match no association.
    pub fn policy(&self) -> Policy {
        lock(&self.in_force).policy.clone()
    }

    /// Returns the selectors of removed associations. Matching packets are lost, unless another association or a policy
    /// entry also matches them.
    pub fn removed(&self) -> Vec<PolicyEntry> {
        lock(&self.in_force).removed.entries().collect()
    }

    /// Returns the state of every association, outbound associations first.
    pub fn status(&self) -> Vec<SaStatus> {
        let in_force = Arc::clone(&lock(&self.in_force));
        let outbound = in_force.outbound.iter().map(|sa| sa.status());
        outbound.chain(in_force.inbound.iter().map(|sa| sa.status())).collect()
    }

    /// Returns an association's configuration with keys, from which a similar association can be created; `None` if
    /// there is no such association.
    pub fn config(&self, direction: SaDirection, spi: u32) -> Option<SaConfig> {
        let in_force = lock(&self.in_force);
        let found = match direction {
            SaDirection::Out => find_outbound(&in_force, spi).map(|at| in_force.outbound[at].shared.config()),
            SaDirection::In => find_inbound(&in_force, spi).map(|at| in_force.inbound[at].shared.config()),
        };
        found.cloned()
    }

    /// Prepares all changes, so that [`Prepared::make`] cannot fail. Blocks other changes until the returned value is
    /// dropped. Waits until the sequence numbers of new associations are reserved.
    ///
    /// # Errors
    /// Returns the index in `changes` of the first failing change, and the reason.
    pub(crate) fn prepare(&self, changes: &[SaChange]) -> Result<Prepared<'_>, (usize, SaError)> {
        let alone = lock(&self.changing);
        let context = lock(&self.context).clone();
        let before = self.in_force();
        let draft = Draft::of(&before, context);
        let mut prepared = Prepared { ipsec: self, before, draft, is_made: false, _alone: alone };
        let draft = &mut prepared.draft;
        changes.iter().enumerate().try_for_each(|(n, change)| draft.make(change).map_err(|error| (n, error)))?;
        draft.reserve(changes)?;
        Ok(prepared)
    }

    /// Removes an inbound association at the end of its grace time.
    pub(super) fn forget(&self, gone: &Arc<Inbound>) {
        let keys = Arc::clone(&lock(&self.context).keys);
        let mut current = lock(&self.in_force);
        if current.inbound.iter().any(|sa| Arc::ptr_eq(sa, gone)) {
            let mut next = InForce::clone(&current);
            next.inbound.retain(|sa| !Arc::ptr_eq(sa, gone));
            next.removed.add(SaDirection::In, &gone.shared.config().selector);
            *current = Arc::new(next);
            self.changes.fetch_add(1, Ordering::Release);
            keys.release_inbound(gone);
        }
    }

    /// Returns the number of changes of associations and policy so far.
    #[inline]
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns the current associations and policy.
    pub(crate) fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&lock(&self.in_force))
    }
}

impl Drop for Ipsec {
    fn drop(&mut self) {
        let keys = Arc::clone(&lock(&self.context).keys);
        let in_force = self.in_force();
        in_force.outbound.iter().for_each(|sa| keys.release_outbound(sa, true));
        in_force.inbound.iter().for_each(|sa| keys.release_inbound(sa));
    }
}

/// Checked changes that are not yet made. Dropping the value discards the changes.
pub(crate) struct Prepared<'a> {
    ipsec: &'a Ipsec,
    before: Arc<InForce>,
    draft: Draft,
    is_made: bool,
    _alone: MutexGuard<'a, ()>,
}

impl Prepared<'_> {
    /// Puts the prepared changes into effect.
    pub fn make(mut self) {
        self.is_made = true;
        let Self { ipsec, before, draft, .. } = &mut self;
        let mut current = lock(&ipsec.in_force);
        draft.retiring.iter().for_each(|(sa, grace_ns)| sa.retire(*grace_ns));
        draft.release();
        // Inbound associations removed since the preparation stay removed, and packets that match the selectors of
        // these associations still require protection.
        let is_gone = |sa: &Arc<Inbound>| {
            let is_in = |all: &InForce| all.inbound.iter().any(|other| Arc::ptr_eq(other, sa));
            is_in(before) && !is_in(&current)
        };
        for gone in draft.next.inbound.extract_if(.., |sa| is_gone(sa)) {
            draft.next.removed.add(SaDirection::In, &gone.shared.config().selector);
        }
        *current = Arc::new(std::mem::take(&mut draft.next));
        ipsec.changes.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if !self.is_made {
            self.draft.give_up();
        }
    }
}

fn find_outbound(in_force: &InForce, spi: u32) -> Option<usize> {
    in_force.outbound.iter().position(|sa| sa.spi() == spi)
}

fn find_inbound(in_force: &InForce, spi: u32) -> Option<usize> {
    in_force.inbound.iter().position(|sa| sa.spi() == spi)
}

/// The associations and policy after the changes, built without changing the current associations and policy.
struct Draft {
    next: InForce,
    context: Context,
    retiring: Vec<(Arc<Inbound>, u64)>,
    /// Outbound associations to remove. An association seals until the draft replaces the current state, so its last
    /// sequence number is not known earlier.
    leaving: Vec<Leaving>,
    /// Inbound associations to remove.
    ending: Vec<Arc<Inbound>>,
    /// New associations, whose keys are already registered.
    made: Vec<Made>,
}

/// A new association.
enum Made {
    Out(Arc<Outbound>),
    In(Arc<Inbound>),
}

/// An outbound association to remove.
struct Leaving {
    sa: Arc<Outbound>,
    /// True if another association replaces the removed association and seals its frames; otherwise, these frames are
    /// lost.
    is_replaced: bool,
}

impl Draft {
    fn of(current: &InForce, context: Context) -> Self {
        let next = current.clone();
        let (retiring, leaving, ending, made) = Default::default();
        Self { next, context, retiring, leaving, ending, made }
    }

    /// Reserves the sequence numbers of the new associations.
    fn reserve(&self, changes: &[SaChange]) -> Result<(), (usize, SaError)> {
        let (direction, spi) = match self.made.last() {
            None => return Ok(()),
            Some(Made::Out(sa)) => (SaDirection::Out, sa.spi()),
            Some(Made::In(sa)) => (SaDirection::In, sa.spi()),
        };
        let last = changes.iter().rposition(|change| matches!(change, SaChange::Add { .. } | SaChange::Rekey { .. }));
        let failed = |cause: io::Error| SaError::Unreserved { direction, spi, cause: cause.to_string() };
        self.context.keys.keep().map(|_| ()).map_err(|cause| (last.unwrap_or(0), failed(cause)))
    }

    /// Releases the keys of the new associations when the changes are discarded.
    fn give_up(&self) {
        for made in &self.made {
            match made {
                Made::Out(sa) => self.context.keys.release_outbound(sa, false),
                Made::In(sa) => self.context.keys.release_inbound(sa),
            }
        }
    }

    /// Releases the keys of the removed associations.
    fn release(&self) {
        self.leaving.iter().for_each(|leaving| self.context.keys.release_outbound(&leaving.sa, leaving.is_replaced));
        self.ending.iter().for_each(|sa| self.context.keys.release_inbound(sa));
    }

    fn make(&mut self, change: &SaChange) -> Result<(), SaError> {
        match change {
            SaChange::Policy(policy) => {
                self.next.policy.clone_from(policy);
                Ok(())
            }
            SaChange::ForgetRemoved => {
                self.next.removed = Removed::default();
                Ok(())
            }
            SaChange::Add { direction: SaDirection::Out, config } => {
                let made = self.outbound(config, None)?;
                self.next.outbound.push(made);
                Ok(())
            }
            SaChange::Add { direction: SaDirection::In, config } => self.add_inbound(config),
            SaChange::Remove { direction, spi } => self.remove(*direction, *spi),
            SaChange::Rekey { direction: SaDirection::Out, spi, config, .. } => {
                let old = find_outbound(&self.next, *spi).ok_or(unknown(SaDirection::Out, *spi))?;
                let made = self.outbound(config, Some(old))?;
                let sa = std::mem::replace(&mut self.next.outbound[old], made);
                self.next.removed.add(SaDirection::Out, &sa.shared.config().selector);
                self.leaving.push(Leaving { sa, is_replaced: true });
                Ok(())
            }
            SaChange::Rekey { direction: SaDirection::In, spi, config, grace_ns } => {
                self.retire(*spi, *grace_ns)?;
                self.add_inbound(config)
            }
            SaChange::Retire { spi, grace_ns } => self.retire(*spi, *grace_ns),
        }
    }

    /// Creates an outbound association, which replaces the association at index `old`, if any.
    fn outbound(&mut self, config: &SaConfig, old: Option<usize>) -> Result<Arc<Outbound>, SaError> {
        let spi = config.spi;
        if find_outbound(&self.next, spi).is_some() {
            return Err(InvalidSa { spi, fault: SaFault::DuplicateSpi }.into());
        }
        self.check_key_is_alone(SaDirection::Out, config)?;
        let Context { library, events, keys, port } = &self.context;
        let mut made = Outbound::new(config, *library, events.clone(), keys.waker().cloned())?;
        if let Some(old) = old {
            made.succeed(&self.next.outbound[old]);
        }
        let made = Arc::new(made);
        keys.take_outbound(&made, port)?;
        self.made.push(Made::Out(Arc::clone(&made)));
        Ok(made)
    }

    /// Refuses a counter-mode key used in both directions or by two outbound associations: two packets would use the
    /// key with the same sequence number.
    fn check_key_is_alone(&self, direction: SaDirection, config: &SaConfig) -> Result<(), SaError> {
        if !config.suite.is_counter_mode() {
            return Ok(());
        }
        let leaving = self.leaving.iter().map(|leaving| &leaving.sa);
        let outbound = self.next.outbound.iter().chain(leaving).map(|sa| (SaDirection::Out, sa.shared.config()));
        let inbound = self.next.inbound.iter().map(|sa| (SaDirection::In, sa.shared.config()));
        // Two inbound associations with the same key are the peer's responsibility.
        let others =
            outbound.chain(inbound).filter(|(other, _)| (*other, direction) != (SaDirection::In, SaDirection::In));
        let same = others.into_iter().find(|(_, other)| other.encryption_key == config.encryption_key);
        match same {
            None => Ok(()),
            Some((other_direction, other)) => {
                Err(SaError::SharedKey { direction, spi: config.spi, other_direction, other: other.spi })
            }
        }
    }

    fn add_inbound(&mut self, config: &SaConfig) -> Result<(), SaError> {
        let spi = config.spi;
        if find_inbound(&self.next, spi).is_some() {
            return Err(InvalidSa { spi, fault: SaFault::DuplicateSpi }.into());
        }
        self.check_key_is_alone(SaDirection::In, config)?;
        let Context { library, events, keys, .. } = &self.context;
        // Sequence numbers that an earlier association accepted are not accepted again.
        let sequence = config.sequence.max(keys.last_number(SaDirection::In, config).unwrap_or(0));
        let config = &SaConfig { sequence, ..config.clone() };
        let made = Arc::new(Inbound::new(config, *library, events.clone(), keys.waker().cloned())?);
        if let (Some(given), Some(taken)) = (udp_port_of(config), udp_port(&self.next))
            && given != taken
        {
            return Err(SaError::UdpPort { spi, given, taken });
        }
        keys.take_inbound(&made);
        self.made.push(Made::In(Arc::clone(&made)));
        self.next.inbound.push(made);
        Ok(())
    }

    fn remove(&mut self, direction: SaDirection, spi: u32) -> Result<(), SaError> {
        let next = &mut self.next;
        match direction {
            SaDirection::Out => {
                let at = find_outbound(next, spi).ok_or(unknown(direction, spi))?;
                next.removed.add(direction, &next.outbound[at].shared.config().selector);
                self.leaving.push(Leaving { sa: next.outbound.remove(at), is_replaced: false });
            }
            SaDirection::In => {
                let at = find_inbound(next, spi).ok_or(unknown(direction, spi))?;
                next.removed.add(direction, &next.inbound[at].shared.config().selector);
                self.ending.push(next.inbound.remove(at));
            }
        }
        Ok(())
    }

    fn retire(&mut self, spi: u32, grace_ns: u64) -> Result<(), SaError> {
        let at = find_inbound(&self.next, spi).ok_or(unknown(SaDirection::In, spi))?;
        self.retiring.push((Arc::clone(&self.next.inbound[at]), grace_ns));
        Ok(())
    }
}

fn unknown(direction: SaDirection, spi: u32) -> SaError {
    SaError::Unknown { direction, spi }
}

/// Returns the UDP port at which encapsulated packets of an inbound association arrive.
fn udp_port_of(config: &SaConfig) -> Option<u16> {
    config.udp.map(|ports| ports.destination)
}

/// Returns the UDP port at which encapsulated packets of all inbound associations arrive; `None` without UDP
/// encapsulation.
pub(super) fn udp_port(in_force: &InForce) -> Option<u16> {
    in_force.inbound.iter().find_map(|sa| udp_port_of(sa.shared.config()))
}

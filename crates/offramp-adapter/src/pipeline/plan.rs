//! Plan: what a host asks for a frame, whether it may, and which frames it becomes.

use crate::ipsec::{Ipsec, Keepalives, Sealer, Sealing};
use crate::stats::{Direction, Loss};
use offramp_offload::esp::SealedSegments;
use offramp_offload::frame::Frame;
use offramp_offload::segment::{IdRange, Refused, SegmentPolicy, Segmenter};

/// What a frame becomes.
#[derive(Debug)]
pub(crate) enum Planned {
    /// It goes in the clear.
    Clear(Segmenter),
    /// It is sealed, by the sealer of that number.
    Sealed(SealedSegments, usize),
}

impl Planned {
    /// Frames that are still to be written.
    pub(crate) fn frames_left(&self) -> usize {
        match self {
            Self::Clear(plan) => plan.frames_left(),
            Self::Sealed(plan, _) => plan.frames_left(),
        }
    }
}

/// The first stage of the pipeline of one queue pair or one port of a switch.
#[derive(Debug)]
pub(crate) struct Plan {
    policy: SegmentPolicy,
    /// `None` while no frame has to do with IPsec.
    sealing: Option<Box<Sealing>>,
    /// `None` while no association reminds a NAT.
    keepalives: Option<Box<Keepalives>>,
    /// The last change of associations that was taken over.
    ipsec_changes: u32,
}

impl Plan {
    pub(crate) fn new(id_range: IdRange) -> Self {
        let policy = SegmentPolicy { id_range, fragment_id: 0 };
        Self { policy, sealing: None, keepalives: None, ipsec_changes: 0 }
    }

    /// Takes over associations that have changed, and lets their time go on. Not while a frame is sealed in part.
    /// Sealed frames fit into `mtu` IP bytes. `is_shared`: other queue pairs seal with the same associations.
    #[inline]
    pub(crate) fn take_over(&mut self, ipsec: &Ipsec, mtu: usize, is_shared: bool, now_ns: u64) {
        let changes = ipsec.changes();
        if changes != self.ipsec_changes {
            self.ipsec_changes = changes;
            let in_force = ipsec.in_force();
            self.sealing = Sealing::new(&in_force, self.sealing.take(), mtu, is_shared);
            self.keepalives = Keepalives::new(&in_force);
        }
        self.tick(now_ns);
    }

    /// Says what time it is to the associations.
    #[inline]
    pub(crate) fn tick(&mut self, now_ns: u64) {
        if let Some(sealing) = &mut self.sealing {
            sealing.tick(now_ns);
        }
    }

    /// When the associations have something to do.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let sealing_ns = self.sealing.as_ref().and_then(|sealing| sealing.next_due_ns());
        let keepalive_ns = self.keepalives.as_ref().and_then(|keepalives| keepalives.next_due_ns());
        sealing_ns.into_iter().chain(keepalive_ns).min()
    }

    /// Whether a frame for which nothing is asked goes as it is.
    #[inline]
    pub(crate) fn leaves_frames(&self) -> bool {
        self.sealing.is_none()
    }

    /// Plans what a frame becomes.
    ///
    /// # Errors
    /// Why it does not go.
    pub(crate) fn plan(&mut self, frame: &mut Frame<'_>, stats: &Direction, now_ns: u64) -> Result<Planned, Loss> {
        let sealed = match &mut self.sealing {
            None => None,
            Some(sealing) => {
                let sealed = sealing.judge(frame, &self.policy, now_ns)?;
                stats.bypassed.add(u64::from(sealed.is_none()));
                sealed
            }
        };
        let planned = match sealed {
            Some((plan, by)) => Planned::Sealed(plan, by),
            None => Planned::Clear(Segmenter::new(frame, &self.policy).map_err(reason)?),
        };
        self.policy.fragment_id = self.policy.fragment_id.wrapping_add(1);
        Ok(planned)
    }

    /// Plans a frame that was admitted before, and waited.
    ///
    /// # Errors
    /// Why it does not go.
    pub(crate) fn in_the_clear(&self, frame: &Frame<'_>) -> Result<Segmenter, Refused> {
        Segmenter::new(frame, &self.policy)
    }

    /// The ICMP message for the host about the frame that was planned last. It is no frame of the wire, and no counter
    /// counts it.
    pub(crate) fn answer(&mut self) -> Option<&[u8]> {
        self.sealing.as_mut()?.answer()
    }

    /// The sealer of a [`Planned::Sealed`], and the keepalives that it tells of what it sealed. `None` when its
    /// association is gone.
    pub(crate) fn sealer(&mut self, by: usize) -> Option<(&mut Sealer, Option<&mut Keepalives>)> {
        Some((self.sealing.as_mut()?.sealers.get_mut(by)?, self.keepalives.as_deref_mut()))
    }

    /// Brings keepalives that are due to `send`, which says whether there was room.
    #[inline]
    pub(crate) fn send_keepalives(&mut self, stats: &Direction, now_ns: u64, send: impl FnMut(&mut [u8]) -> bool) {
        if let Some(keepalives) = &mut self.keepalives {
            keepalives.send(stats, now_ns, send);
        }
    }
}

/// The counter of a refusal.
pub(crate) fn reason(refused: Refused) -> Loss {
    match refused {
        Refused::Malformed(_) => Loss::Malformed,
        _ => Loss::BadRequest,
    }
}

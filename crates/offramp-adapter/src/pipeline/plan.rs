//! Plan: reads a host's offload request for a frame, checks the permissions, and plans the resulting frames.

use super::control::PortControl;
use crate::ipsec::{Keepalives, Sealing};
use crate::limit::Meter;
use crate::port::{HostPort, PortError};
use crate::port_security::PortSecurity;
use crate::stats::{Direction, Loss};
use offramp_offload::esp::SealedSegments;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_offload::segment::{Refused, SegmentPolicy, Segmenter, repair_headers};
use offramp_offload::vlan::pop_tag;
use std::sync::Arc;

/// The plan of a frame.
#[derive(Debug)]
pub(crate) enum Planned {
    /// The frame is sent unencrypted.
    Clear(Segmenter),
    /// The frame is sealed by the sealer with this index.
    Sealed(SealedSegments, usize),
}

impl Planned {
    /// Returns the number of frames not yet written.
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
    /// True if the port's link was on at the start of the batch.
    pub(crate) is_link_on: bool,
    /// The address rules of the host; `None` while the host may use any address.
    security: Option<Arc<PortSecurity>>,
    /// The transmit limit of the host.
    pub(crate) meter: Meter,
    /// The IPsec state for sent frames; `None` while IPsec affects no frame.
    sealing: Option<Box<Sealing>>,
    /// The keepalives of associations; `None` while no association sends NAT-keepalives.
    keepalives: Option<Box<Keepalives>>,
    /// The number of changes of the associations when this stage last applied the associations.
    ipsec_changes: u32,
}

impl Plan {
    pub(crate) fn new(control: &PortControl) -> Self {
        let security = (!control.security().is_off()).then(|| Arc::clone(control.security()));
        let meter = Meter::new(&control.tx_limiter);
        let is_link_on = control.is_link_on();
        Self {
            policy: SegmentPolicy::default(),
            is_link_on,
            security,
            meter,
            sealing: None,
            keepalives: None,
            ipsec_changes: 0,
        }
    }

    /// Applies changed settings of the link and of the transmit limit. Applies changed associations unless the pending
    /// frame is to be sealed, and advances the time of the associations. `mtu` is the maximum number of IP bytes in a
    /// sealed frame. With `is_shared`, other queue pairs seal with the same associations.
    #[inline]
    pub(crate) fn take_over(
        &mut self,
        control: &PortControl,
        pending: Option<&Planned>,
        mtu: usize,
        is_shared: bool,
        now_ns: u64,
    ) {
        self.is_link_on = control.is_link_on();
        self.meter.take_over(now_ns);
        let ipsec = control.ipsec();
        let changes = ipsec.changes();
        if changes != self.ipsec_changes && !matches!(pending, Some(Planned::Sealed(..))) {
            self.ipsec_changes = changes;
            let in_force = ipsec.in_force();
            self.sealing = Sealing::new(&in_force, self.sealing.take(), mtu, is_shared);
            self.keepalives = Keepalives::new(&in_force);
        }
        if let Some(sealing) = &mut self.sealing {
            sealing.tick(now_ns);
        }
    }

    /// Returns the next deadline: of an association, a keepalive, or the end of a wait for the transmit limit.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let sealing_ns = self.sealing.as_ref().and_then(|sealing| sealing.next_due_ns);
        let keepalive_ns = self.keepalives.as_ref().and_then(|keepalives| keepalives.next_due_ns);
        sealing_ns.into_iter().chain(keepalive_ns).chain(self.meter.opens_ns()).min()
    }

    /// Checks that the host may send the frame. This check must precede the learning of the frame's source address by
    /// the switch, and the planning of the frame.
    ///
    /// # Errors
    /// Returns the reason for refusing the frame.
    #[inline]
    fn admit(&self, frame: &Frame<'_>) -> Result<(), Loss> {
        if !self.is_link_on {
            return Err(Loss::LinkOff);
        }
        self.security.as_ref().map_or(Ok(()), |security| security.check(frame))
    }

    /// Returns whether some frames of the host may have to be sealed.
    #[inline]
    pub(crate) fn seals(&self) -> bool {
        self.sealing.is_some()
    }

    /// Returns whether a frame without offload requests can be sent unchanged and unparsed.
    #[inline]
    pub(crate) fn leaves(&self, frame: &[u8]) -> bool {
        self.is_link_on
            && self.sealing.is_none()
            && self.security.as_ref().is_none_or(|security| security.passes_unparsed(frame))
    }

    /// Plans the frames resulting from a host's frame, and charges the resulting frames to the host's transmit limit. A
    /// refused frame is charged, too.
    ///
    /// # Errors
    /// Returns the reason for losing the frame.
    pub(crate) fn plan(&mut self, frame: &mut Frame<'_>, stats: &Direction, now_ns: u64) -> Result<Planned, Loss> {
        let planned = self.admit(frame).and_then(|()| self.plan_admitted(frame, stats, now_ns));
        self.meter.spend_frame(frame, planned.as_ref().map_or(1, Planned::frames_left));
        planned
    }

    fn plan_admitted(&mut self, frame: &mut Frame<'_>, stats: &Direction, now_ns: u64) -> Result<Planned, Loss> {
        repair_headers(frame);
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
            None => Planned::Clear(Segmenter::new(frame, &self.policy)?),
        };
        self.policy.fragment_id = self.policy.fragment_id.wrapping_add(1);
        Ok(planned)
    }

    /// Plans a queued frame that was admitted before queueing.
    ///
    /// # Errors
    /// Returns the reason for refusing the frame.
    pub(crate) fn in_the_clear(&self, frame: &Frame<'_>) -> Result<Segmenter, Refused> {
        Segmenter::new(frame, &self.policy)
    }

    /// Delivers the pending ICMP message about the last planned frame, if any. The message is no frame of the wire, and
    /// no counter includes the message. If the host has no room, the message is dropped, and the next refused frame
    /// causes a new message. With `has_pushed`, the adapter has inserted the VLAN tag of the frame, so the message is
    /// delivered without the tag.
    pub(crate) fn answer(&mut self, host: &mut impl HostPort, has_pushed: bool) -> Option<Result<(), PortError>> {
        let answer = self.sealing.as_mut()?.too_big.take()?;
        let answer = if has_pushed { pop_tag(answer) } else { answer };
        Some(host.rx_deliver(&RxMeta::default(), answer))
    }

    /// Returns the length of the next frame, and the number of consecutive frames of that length.
    ///
    /// # Errors
    /// Returns the reason for losing the next frame: the frame is unencrypted and longer than `mtu`, or the frame's
    /// association is gone.
    #[inline]
    pub(crate) fn next_run(&self, frame: &Frame<'_>, planned: &Planned, mtu: usize) -> Result<(usize, usize), Loss> {
        match planned {
            Planned::Clear(plan) if plan.next_len() - plan.link_header_len() > mtu => Err(Loss::TooLong),
            Planned::Clear(plan) => Ok((plan.next_len(), plan.run_len())),
            Planned::Sealed(plan, by) => {
                let sealer = self.sealing.as_ref().and_then(|sealing| sealing.sealers.get(*by));
                Ok((sealer.ok_or(Loss::Cipher)?.next_len(frame, plan)?, plan.frames_left()))
            }
        }
    }

    /// Writes the next frames, all of one length, into the slots of `out`. Returns the number of frames written.
    ///
    /// # Errors
    /// Returns the reason if the remaining frames cannot be sealed.
    #[inline]
    pub(crate) fn write_run(
        &mut self,
        frame: &mut Frame<'_>,
        planned: &mut Planned,
        out: &mut [u8],
        stride: usize,
        now_ns: u64,
    ) -> Result<usize, Loss> {
        let (plan, by) = match planned {
            Planned::Clear(plan) => return Ok(plan.write_run(frame, out, stride)),
            Planned::Sealed(plan, by) => (plan, *by),
        };
        let sealer = self.sealing.as_mut().and_then(|sealing| sealing.sealers.get_mut(by)).ok_or(Loss::Cipher)?;
        let len = sealer.next_len(frame, plan)?;
        let count = sealer.write_run(frame, plan, out, stride)?;
        if let Some(keepalives) = &mut self.keepalives {
            keepalives.sealed(by, &out[..len], now_ns);
        }
        Ok(count)
    }

    /// Passes due keepalives to `send`, which returns whether the wire had room. No keepalive is sent while the link is
    /// off.
    #[inline]
    pub(crate) fn send_keepalives(&mut self, stats: &Direction, now_ns: u64, mut send: impl FnMut(&mut [u8]) -> bool) {
        let is_link_on = self.is_link_on;
        if let Some(keepalives) = &mut self.keepalives {
            keepalives.send(stats, now_ns, |frame| is_link_on && send(frame));
        }
    }
}

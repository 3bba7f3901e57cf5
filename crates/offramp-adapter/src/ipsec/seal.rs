//! Transmit: finds the association of a frame, segments the frame for the association, and seals the segments.

use super::association::Outbound;
use super::policy::Said;
use super::too_big;
use super::{InForce, NoMatch, PolicyAction, SaDirection, loss_of_sealing};
use crate::stats::Loss;
use offramp_offload::esp::{OutboundSa, PlanRefused, SealedSegments, Selector};
use offramp_offload::frame::Frame;
use offramp_offload::layout::{FrameLayout, Network, Transport};
use offramp_offload::meta::{ChecksumState, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::SegmentPolicy;
use std::sync::Arc;

/// Maximum number of sequence numbers granted to a queue pair at once, if other queue pairs seal with the same
/// association. The maximum limits how far packets of different queue pairs are reordered; different delays of the
/// queue pairs' wires add to the reordering.
const SHARED_RUN_MAX: usize = 16;
/// Minimum permitted segment size of a super-frame to be sealed, in bytes. A super-frame with a smaller size is lost.
/// Linux requests at least 48 (`TCP_MIN_MSS`). With one byte per segment, a super-frame would use up 65,535 sequence
/// numbers.
const SEGMENT_SIZE_MIN: u16 = 8;
/// Unit of the payload sizes of IP fragments, in bytes (RFC 791 3.1).
const FRAGMENT_UNIT: usize = 8;
/// Length of an IPv6 fragment header, in bytes (RFC 8200 4.5).
const IPV6_FRAGMENT_HEADER_LEN: usize = 8;

/// An association, and the cipher context with which a queue pair seals.
#[derive(Debug)]
pub(crate) struct Sealer {
    sa: Arc<Outbound>,
    /// The cipher context; `None` if the cipher library could not create another context. Without a context, packets
    /// for this association are lost, and never sent unencrypted.
    context: Option<OutboundSa>,
    run_max: usize,
}

impl Sealer {
    /// Returns the length of the next sealed frame in bytes.
    pub(crate) fn next_len(&self, frame: &Frame<'_>, plan: &SealedSegments) -> Result<usize, Loss> {
        self.context.as_ref().map(|context| plan.next_len(frame, context)).ok_or(Loss::Cipher)
    }

    /// Seals the next frames, all of one length, into the slots of `out`. Returns the number of frames sealed. May
    /// overwrite the sealed part of `frame`.
    pub(crate) fn write_run(
        &mut self,
        frame: &mut Frame<'_>,
        plan: &mut SealedSegments,
        out: &mut [u8],
        stride: usize,
    ) -> Result<usize, Loss> {
        let slots = out.len().div_ceil(stride).min(self.run_max);
        // All frames except the last have the same length.
        let wanted = slots.min(plan.frames_left() - usize::from(plan.frames_left() > 1));
        let context = self.context.as_mut().ok_or(Loss::Cipher)?;
        let grant = self.sa.grant(wanted as u64, plan.next_packet_len()).map_err(loss_of_sealing)?;
        context.take_over(grant);
        let run = plan.write_run(context, frame, out, stride).map_err(loss_of_sealing)?;
        Ok(run.frames)
    }
}

/// The IPsec state of one queue pair for sent packets.
#[derive(Debug)]
pub(crate) struct Sealing {
    in_force: Arc<InForce>,
    pub(crate) sealers: Vec<Sealer>,
    mtu: usize,
    /// Time at which [`Sealing::tick`] next has work, in nanoseconds.
    pub(crate) next_due_ns: Option<u64>,
    /// ICMP messages to the host about frames that are too long.
    pub(crate) too_big: too_big::Answers,
}

impl Sealing {
    /// Creates the transmit state; `None` if frames of the host pass as they would without IPsec. `before` is the
    /// previous state.
    pub(crate) fn new(
        in_force: &Arc<InForce>,
        before: Option<Box<Self>>,
        mtu: usize,
        is_shared: bool,
    ) -> Option<Box<Self>> {
        if in_force.outbound.is_empty() && in_force.is_open(SaDirection::Out) {
            return None;
        }
        let (mut old, too_big) = before.map_or_else(Default::default, |before| (before.sealers, before.too_big));
        let run_max = if is_shared { SHARED_RUN_MAX } else { usize::MAX };
        let mut sealer_of = |sa: &Arc<Outbound>| {
            let kept = old.iter().position(|sealer| Arc::ptr_eq(&sealer.sa, sa)).map(|at| old.swap_remove(at));
            kept.unwrap_or_else(|| Sealer { sa: Arc::clone(sa), context: sa.shared.sealer().ok(), run_max })
        };
        let sealers = in_force.outbound.iter().map(&mut sealer_of).collect();
        Some(Box::new(Self { in_force: Arc::clone(in_force), sealers, mtu, next_due_ns: Some(0), too_big }))
    }

    /// Advances the time to `now_ns`.
    #[inline]
    pub(crate) fn tick(&mut self, now_ns: u64) {
        if self.next_due_ns.is_some_and(|at| now_ns >= at) {
            self.next_due_ns = self.sealers.iter().filter_map(|sealer| sealer.sa.tick(now_ns)).min();
        }
    }

    /// Finds the association of a frame and plans the resulting segments. Returns the plan and the index of the
    /// [`Sealer`]; `None` if the frame is sent unprotected.
    pub(crate) fn judge(
        &mut self,
        frame: &mut Frame<'_>,
        policy: &SegmentPolicy,
        now_ns: u64,
    ) -> Result<Option<(SealedSegments, usize)>, Loss> {
        let layout = *frame.layout().map_err(|_| Loss::Malformed)?;
        let policy_in_force = &self.in_force.policy;
        if let Some(passes) = policy_in_force.judge_other(SaDirection::Out, frame) {
            return passes.map(|()| None);
        }
        let said = policy_in_force.ask(SaDirection::Out, frame);
        match said.action {
            Some(PolicyAction::Discard) => return Err(Loss::Discard),
            Some(PolicyAction::Bypass) if said.may_need_more => return Err(Loss::EspFragment),
            Some(PolicyAction::Bypass) => return Ok(None),
            Some(PolicyAction::Protect) | None => {}
        }
        let matches = |sealer: &Sealer| sealer.sa.shared.config().selector.matches(frame);
        let Some(at) = self.sealers.iter().position(matches) else {
            return self.pass_unmatched(frame, &said).map(|()| None);
        };
        if frame.request().segmentation.is_some_and(|asked| asked.size < SEGMENT_SIZE_MIN) {
            return Err(Loss::BadRequest);
        }
        let context = self.sealers[at].context.as_ref().ok_or(Loss::Cipher)?;
        let room = context.packet_len_max(self.mtu, layout.transport_start - layout.network_start).unwrap_or(0);
        let planned = plan(context, room, frame, policy);
        if let Err(Loss::TooLong) = planned {
            self.too_big.make(frame, room, now_ns);
        }
        planned.map(|plan| Some((plan, at)))
    }

    /// Passes a packet that matches no selector, if the policy allows packets without a match.
    fn pass_unmatched(&self, frame: &Frame<'_>, said: &Said) -> Result<(), Loss> {
        let InForce { policy, removed, .. } = &*self.in_force;
        let mut removed_ones = removed.of(SaDirection::Out);
        if said.action.is_some() || policy.transmit == NoMatch::Discard || removed_ones.any(|one| one.matches(frame)) {
            return Err(Loss::Discard);
        }
        // The frame may be a fragment of a packet that matches a selector with ports. The fragment does not contain the
        // ports, so it must not be sent unencrypted (RFC 4301 7).
        let is_piece = |selector: &Selector| selector.may_match(frame);
        let is_any_piece = said.may_need_more
            || self.sealers.iter().any(|sealer| is_piece(&sealer.sa.shared.config().selector))
            || removed.of(SaDirection::Out).any(is_piece);
        if is_any_piece { Err(Loss::EspFragment) } else { Ok(()) }
    }
}

/// Plans the packets that result from a frame, so that no unencrypted packet is longer than `room` bytes.
fn plan(
    context: &OutboundSa,
    room: usize,
    frame: &mut Frame<'_>,
    policy: &SegmentPolicy,
) -> Result<SealedSegments, Loss> {
    let request = fit(frame, room)?;
    SealedSegments::new(&mut frame.requesting(request), policy, context).map_err(|refused| match refused {
        PlanRefused::Seal(refused) => loss_of_sealing(refused),
        PlanRefused::Malformed(_) => Loss::Malformed,
        PlanRefused::Segment(refused) => refused.into(),
    })
}

/// Returns the offload request for a frame, adapted so that no resulting packet is longer than `room` bytes.
fn fit(frame: &Frame<'_>, room: usize) -> Result<TxMeta, Loss> {
    let (request, layout) = (frame.request(), frame.layout().map_err(|_| Loss::Malformed)?);
    let headers_len = layout.payload_start - layout.network_start;
    let payload_max = room.checked_sub(headers_len).filter(|&len| len > 0);
    let is_too_long = layout.packet_end - layout.network_start > room;
    let in_sizes_of = |asked: Segmentation, size: usize| {
        let size = size.min(usize::from(asked.size)) as u16;
        TxMeta { segmentation: Some(Segmentation { size, ..asked }), ..request }
    };
    match (request.segmentation, layout.transport) {
        (Some(asked), Transport::Tcp) => Ok(in_sizes_of(asked, payload_max.ok_or(Loss::TooLong)?)),
        (Some(asked), _) if asked.kind == SegmentationKind::UdpFragments => {
            Ok(in_sizes_of(asked, fragment_size(layout, room).ok_or(Loss::TooLong)?))
        }
        // The boundaries of the UDP datagrams must be preserved, so the segment size cannot be reduced.
        (Some(asked), _) if payload_max.is_none_or(|max| usize::from(asked.size).min(layout.payload_len()) > max) => {
            Err(Loss::TooLong)
        }
        (None, Transport::Tcp) if is_too_long => segment_tcp(frame, payload_max.ok_or(Loss::TooLong)?),
        (None, _) if is_too_long => Err(Loss::TooLong),
        _ => Ok(request),
    }
}

/// Segments a TCP frame like a super-frame if the sealed frame would be too long for the wire.
fn segment_tcp(frame: &Frame<'_>, payload_max: usize) -> Result<TxMeta, Loss> {
    let request = frame.request();
    // Segmentation writes new checksums, so a wrong checksum would become right.
    if request.checksum.is_none() && frame.verify() != ChecksumState::Good {
        return Err(Loss::BadRequest);
    }
    let is_ipv4 = frame.layout().is_ok_and(|layout| layout.network == Network::Ipv4);
    let kind = if is_ipv4 { SegmentationKind::Tcp4 } else { SegmentationKind::Tcp6 };
    let segmentation = Some(Segmentation::new(kind, payload_max as u16));
    Ok(TxMeta { segmentation, ..request })
}

/// Returns the payload size of IP fragments that are at most `room` bytes long.
fn fragment_size(layout: &FrameLayout, room: usize) -> Option<usize> {
    let fragment_header_len = if layout.network == Network::Ipv6 { IPV6_FRAGMENT_HEADER_LEN } else { 0 };
    let size = room.checked_sub(layout.transport_start - layout.network_start + fragment_header_len)?;
    Some(size - size % FRAGMENT_UNIT).filter(|&size| size > 0)
}

//! Receive: what a frame of the line is to IPsec, and what of it goes to the host.

use super::association::{Inbound, Passed};
use super::change::{Ipsec, udp_port};
use super::{InForce, NoMatch, loss_of};
use crate::stats::{Direction, Loss};
use offramp_offload::checksum;
use offramp_offload::esp::{Arrival, EspPacket, Refused, Selector};
use offramp_offload::layout::{FrameLayout, LengthFrom, Malformed, Network, PROTOCOL_UDP, Transport};
use std::sync::Arc;

/// Where UDP's checksum stands in its header.
const UDP_CHECKSUM_OFFSET: usize = 6;

/// A frame that goes on to the host, with its layout.
pub(crate) type Clear<'a> = (&'a mut [u8], Result<FrameLayout, Malformed>);

/// What one queue pair opens with.
#[derive(Debug)]
pub(crate) struct Opening {
    in_force: Arc<InForce>,
    udp_port: Option<u16>,
    /// The association of the last packet: they come in runs.
    last: usize,
    /// When time has something to say next.
    next_due_ns: Option<u64>,
}

impl Opening {
    /// `None` when frames of the line go on as if there were no IPsec.
    pub(crate) fn new(in_force: &Arc<InForce>) -> Option<Box<Self>> {
        if in_force.leaves_receive() {
            return None;
        }
        let udp_port = udp_port(in_force);
        Some(Box::new(Self { in_force: Arc::clone(in_force), udp_port, last: 0, next_due_ns: Some(0) }))
    }

    /// When [`Opening::tick`] has something to do.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.next_due_ns
    }

    /// Says what time it is. Associations whose time of grace is over are taken out of `ipsec`.
    #[inline]
    pub(crate) fn tick(&mut self, ipsec: &Ipsec, now_ns: u64) {
        if self.next_due_ns.is_some_and(|at| now_ns >= at) {
            let passed = self.in_force.inbound.iter().filter_map(|sa| match sa.tick(now_ns) {
                Passed::Until(next) => next,
                Passed::Over => {
                    ipsec.forget(sa);
                    None
                }
            });
            self.next_due_ns = passed.min();
        }
    }

    /// Opens what is ESP, and lets pass or refuses what is not. A packet may pass that cannot be parsed, if all
    /// that matches no association may, and if its addresses match none.
    #[inline]
    pub(crate) fn open<'a>(&mut self, frame: &'a mut [u8], stats: &Direction) -> Result<Clear<'a>, Loss> {
        let layout = match FrameLayout::parse(frame, LengthFrom::Ip) {
            Ok(layout) => layout,
            malformed @ Err(_) => return self.judge_malformed(frame, stats).map(|()| (frame, malformed)),
        };
        match Arrival::of(frame, &layout, self.udp_port).map_err(loss_of)? {
            Arrival::Esp(packet) if !self.in_force.inbound.is_empty() => self.open_esp(frame, &layout, &packet),
            Arrival::Keepalive => Err(Loss::Keepalive),
            Arrival::Ike => {
                stats.bypassed.add(1);
                Ok((frame, Ok(layout)))
            }
            Arrival::Clear | Arrival::Esp(_) => self.judge_clear(frame, &layout, stats).map(|()| (frame, Ok(layout))),
        }
    }

    #[inline]
    fn open_esp<'a>(
        &mut self,
        frame: &'a mut [u8],
        layout: &FrameLayout,
        packet: &EspPacket,
    ) -> Result<Clear<'a>, Loss> {
        let sa = self.find(packet.spi).filter(|sa| sa.shared().opener().is_addressed(frame, layout));
        let opened = sa.ok_or(Refused::UnknownSpi).and_then(|sa| sa.open(frame, layout, packet)).map_err(loss_of)?;
        let clear = &mut frame[opened.start..opened.end];
        if opened.checksum_is_stale {
            mend_checksum(clear, &opened.layout);
        }
        Ok((clear, Ok(opened.layout)))
    }

    fn find(&mut self, spi: u32) -> Option<&Arc<Inbound>> {
        let inbound = &self.in_force.inbound;
        if inbound.get(self.last).is_none_or(|sa| sa.spi() != spi) {
            self.last = inbound.iter().position(|sa| sa.spi() == spi)?;
        }
        inbound.get(self.last)
    }

    /// A frame that is not protected: may it be so?
    fn judge_clear(&self, frame: &[u8], layout: &FrameLayout, stats: &Direction) -> Result<(), Loss> {
        if layout.network == Network::Opaque {
            stats.bypassed.add(1);
            return Ok(());
        }
        self.judge_unsealed(stats, |selector| selector.may_match(frame, layout))
    }

    /// The same of a frame without a layout: a host may read more out of it than the adapter does, as a datagram with
    /// bytes behind its end.
    fn judge_malformed(&self, frame: &[u8], stats: &Direction) -> Result<(), Loss> {
        self.judge_unsealed(stats, |selector| selector.may_match_malformed(frame))
    }

    /// RFC 4301 5.2: what an association should have protected is not taken in the clear.
    fn judge_unsealed(&self, stats: &Direction, should_be_sealed: impl Fn(&Selector) -> bool) -> Result<(), Loss> {
        if self.in_force.inbound.iter().any(|sa| should_be_sealed(&sa.shared().config().selector)) {
            return Err(Loss::Unprotected);
        }
        self.pass_unmatched(stats)
    }

    fn pass_unmatched(&self, stats: &Direction) -> Result<(), Loss> {
        match self.in_force.policy.receive {
            NoMatch::Bypass => {
                stats.bypassed.add(1);
                Ok(())
            }
            NoMatch::Discard => Err(Loss::Discard),
        }
    }
}

/// Computes a transport checksum anew that covers addresses which a NAT has changed: the check value has proved
/// the bytes (RFC 3948 3.1.2).
fn mend_checksum(frame: &mut [u8], layout: &FrameLayout) {
    let has_none = layout.protocol == PROTOCOL_UDP
        && frame[layout.transport_start..].get(UDP_CHECKSUM_OFFSET..UDP_CHECKSUM_OFFSET + 2) == Some(&[0, 0]);
    if layout.transport != Transport::Opaque && !has_none {
        let partial = checksum::make_partial(frame, layout);
        // Start and field were just made from the layout.
        let _ = checksum::complete(frame, partial, layout.packet_end);
    }
}

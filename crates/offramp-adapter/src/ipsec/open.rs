//! Receive: opens ESP packets from the wire, and passes or refuses unprotected packets.

use super::association::{Inbound, Passed};
use super::change::{Ipsec, udp_port};
use super::{InForce, NoMatch, PolicyAction, SaDirection, loss_of};
use crate::stats::{Direction, Loss};
use offramp_offload::esp::{Arrival, EspPacket, Refused};
use offramp_offload::frame::Frame;
use std::sync::Arc;

/// The IPsec state of one queue pair for received packets.
#[derive(Debug)]
pub(crate) struct Opening {
    in_force: Arc<InForce>,
    udp_port: Option<u16>,
    /// Index of the association that opened the last packet. Consecutive packets often belong to the same association.
    last: usize,
    /// Time at which [`Opening::tick`] next has work, in nanoseconds.
    pub(crate) next_due_ns: Option<u64>,
}

impl Opening {
    /// Creates the receive state; `None` if frames from the wire pass as they would without IPsec.
    pub(crate) fn new(in_force: &Arc<InForce>) -> Option<Box<Self>> {
        if in_force.inbound.is_empty() && in_force.is_open(SaDirection::In) {
            return None;
        }
        let udp_port = udp_port(in_force);
        Some(Box::new(Self { in_force: Arc::clone(in_force), udp_port, last: 0, next_due_ns: Some(0) }))
    }

    /// Advances the time to `now_ns`. Removes associations from `ipsec` at the end of their grace time.
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

    /// Decrypts an ESP frame in place; passes or refuses other frames. A packet with unparsable headers passes only if
    /// packets without an association pass, and if no selector matches the packet's addresses.
    #[inline]
    pub(crate) fn open(&mut self, frame: &mut Frame<'_>, stats: &Direction) -> Result<(), Loss> {
        match Arrival::of(frame, self.udp_port).map_err(loss_of)? {
            Arrival::Esp(packet) if !self.in_force.inbound.is_empty() => self.open_esp(frame, &packet),
            Arrival::Keepalive => Err(Loss::Keepalive),
            Arrival::Ike if self.in_force.policy.ike => {
                stats.bypassed.add(1);
                Ok(())
            }
            Arrival::Clear | Arrival::Ike | Arrival::Esp(_) => self.judge_clear(frame, stats),
        }
    }

    /// Returns whether a frame is ESP, or belongs to ESP: IKE or a NAT-keepalive.
    pub(crate) fn is_sealed(&self, frame: &Frame<'_>) -> bool {
        !matches!(Arrival::of(frame, self.udp_port), Ok(Arrival::Clear))
    }

    #[inline]
    fn open_esp(&mut self, frame: &mut Frame<'_>, packet: &EspPacket) -> Result<(), Loss> {
        let sa = self.find(packet.spi).filter(|sa| sa.shared.opener().is_addressed(frame));
        let opened = sa.ok_or(Refused::UnknownSpi).and_then(|sa| sa.open(frame, packet)).map_err(loss_of)?;
        if opened.checksum_is_stale {
            frame.write_checksum();
        }
        let action = self.in_force.policy.ask(SaDirection::In, frame).action;
        if action == Some(PolicyAction::Discard) { Err(Loss::SaPolicy) } else { Ok(()) }
    }

    fn find(&mut self, spi: u32) -> Option<&Arc<Inbound>> {
        let inbound = &self.in_force.inbound;
        if inbound.get(self.last).is_none_or(|sa| sa.spi() != spi) {
            self.last = inbound.iter().position(|sa| sa.spi() == spi)?;
        }
        inbound.get(self.last)
    }

    /// Decides whether a frame without ESP passes. An unencrypted packet that an association should have protected is
    /// refused (RFC 4301 5.2). The check also covers frames that the adapter cannot parse, because a host may accept
    /// such frames, for example a datagram with trailing bytes.
    pub(crate) fn judge_clear(&self, frame: &Frame<'_>, stats: &Direction) -> Result<(), Loss> {
        let InForce { policy, removed, inbound, .. } = &*self.in_force;
        if let Some(passes) = policy.judge_other(SaDirection::In, frame) {
            return passes.inspect(|()| stats.bypassed.add(1));
        }
        let said = policy.ask(SaDirection::In, frame);
        let is_named = || {
            inbound.iter().any(|sa| sa.shared.config().selector.may_match(frame))
                || removed.of(SaDirection::In).any(|selector| selector.may_match(frame))
        };
        match said.action {
            Some(PolicyAction::Discard) => return Err(Loss::Discard),
            Some(PolicyAction::Protect) => return Err(Loss::Unprotected),
            Some(PolicyAction::Bypass) | None if said.may_need_more => return Err(Loss::Unprotected),
            None if is_named() => return Err(Loss::Unprotected),
            None if policy.receive == NoMatch::Discard => return Err(Loss::Discard),
            Some(PolicyAction::Bypass) | None => {}
        }
        stats.bypassed.add(1);
        Ok(())
    }
}

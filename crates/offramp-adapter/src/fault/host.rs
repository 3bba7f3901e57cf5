//! Hosts that are told of frames in the wrong order, or with a wrong verdict. What they send goes its way.

use super::config::{VerdictConfig, WrongVerdict};
use crate::port::{HostPort, Interrupts, PortError, Settled};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum;
use offramp_offload::layout::{FrameLayout, LengthFrom, Transport};
use offramp_offload::meta::{ChecksumState, RxMeta, TxMeta};
use std::collections::VecDeque;

/// What a frame that is marked bad is refused with: Linux' `EBADMSG`.
const BAD_MESSAGE: i32 = 74;
/// Where a TCP header has its sequence number, and how long that is (RFC 9293 3.1).
const TCP_SEQUENCE: std::ops::Range<usize> = 4..8;

/// Passes on what concerns the frames that leave, and the host as it is.
macro_rules! pass_on_transmit {
    ($host:ident) => {
        fn take(&mut self) -> Result<bool, PortError> {
            self.$host.take()
        }

        fn taken(&self) -> (TxMeta, &[u8]) {
            self.$host.taken()
        }

        fn taken_mut(&mut self) -> &mut [u8] {
            self.$host.taken_mut()
        }

        fn interrupts(&mut self) -> Option<&mut dyn Interrupts> {
            self.$host.interrupts()
        }

        fn accepts(&self) -> Offloads {
            self.$host.accepts()
        }

        fn takes_verdicts(&self) -> bool {
            self.$host.takes_verdicts()
        }
    };
}

/// A host to which each group of so many frames is handed over in the wrong order, the last one first. What is
/// left at the end of a batch is a group as well.
///
/// A frame is given when its group is whole, so what becomes of it shows late ([`HostPort::settle`]).
#[derive(Debug)]
pub struct Reverse<H> {
    host: H,
    group: usize,
    held: Vec<(RxMeta, Vec<u8>)>,
    free: Vec<Vec<u8>>,
    /// What nobody was told yet.
    settled: VecDeque<Settled>,
}

impl<H: HostPort> Reverse<H> {
    /// Turns groups of `group` frames round; `None`, 0 and 1 turn nothing round.
    pub fn new(host: H, group: Option<usize>) -> Self {
        let group = group.unwrap_or(1);
        Self { host, group, held: Vec::new(), free: Vec::new(), settled: VecDeque::new() }
    }

    /// Hands over what is held.
    fn release(&mut self) {
        while let Some((meta, frame)) = self.held.pop() {
            let outcome = self.host.give(&meta, &frame);
            if outcome != Err(PortError::Held) {
                self.settled.push_back(Settled { meta, len: frame.len(), outcome });
            }
            self.free.push(frame);
        }
    }
}

impl<H> Reverse<H> {
    /// The host below.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The host below, to change it between polls.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }
}

impl<H: HostPort> HostPort for Reverse<H> {
    pass_on_transmit!(host);

    fn give(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        if self.group < 2 {
            return self.host.give(meta, frame);
        }
        let mut copy = self.free.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        self.held.push((*meta, copy));
        if self.held.len() >= self.group {
            self.release();
        }
        Err(PortError::Held)
    }

    fn flush(&mut self) {
        self.release();
        self.host.flush();
    }

    fn settle(&mut self) -> Option<Settled> {
        self.settled.pop_front().or_else(|| self.host.settle())
    }
}

/// A host behind a checksum unit that errs on some frames, by their bytes: on those whose sum over payload and TCP
/// sequence number leaves no remainder. A retransmission of the same bytes is judged wrongly again, which is what
/// makes a TCP connection stand still for good (R8).
///
/// Only a verdict that was made can be wrong: without `rx-checksum` every frame passes. It is one verdict
/// for what was joined, so a retransmission is hit for sure only while frames are not joined.
#[derive(Debug)]
pub struct VerdictFault<H> {
    host: H,
    config: Option<VerdictConfig>,
    marked: Vec<u8>,
    wrong: u64,
}

impl<H: HostPort> VerdictFault<H> {
    /// Lets the verdicts on frames for `host` err; never when `config` is `None`.
    pub fn new(host: H, config: Option<VerdictConfig>) -> Self {
        Self { host, config, marked: Vec::new(), wrong: 0 }
    }

    /// Frames that were judged wrongly.
    pub fn wrong(&self) -> u64 {
        self.wrong
    }

    fn give_as_good(&mut self, meta: &RxMeta, frame: &[u8], layout: &FrameLayout) -> Result<(), PortError> {
        if self.host.takes_verdicts() {
            return self.host.give(&RxMeta { checksum: ChecksumState::Good, ..*meta }, frame);
        }
        self.marked.clear();
        self.marked.extend_from_slice(&frame[..layout.packet_end]);
        let partial = checksum::make_partial(&mut self.marked, layout);
        self.host.give(&RxMeta { checksum: ChecksumState::Partial(partial), ..*meta }, &self.marked)
    }
}

impl<H> VerdictFault<H> {
    /// The host below.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The host below, to change it between polls.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }
}

impl<H: HostPort> HostPort for VerdictFault<H> {
    pass_on_transmit!(host);

    fn give(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let Some(layout) = self.config.and_then(|config| judged_wrongly(&config, meta, frame)) else {
            return self.host.give(meta, frame);
        };
        self.wrong += 1;
        match meta.checksum {
            ChecksumState::Bad => self.give_as_good(meta, frame, &layout),
            _ => Err(PortError::Refused(BAD_MESSAGE)),
        }
    }

    fn flush(&mut self) {
        self.host.flush();
    }

    fn settle(&mut self) -> Option<Settled> {
        self.host.settle()
    }
}

/// The layout of a frame whose verdict is to be wrong.
fn judged_wrongly(config: &VerdictConfig, meta: &RxMeta, frame: &[u8]) -> Option<FrameLayout> {
    let is_concerned = match (config.wrong, meta.checksum) {
        (_, ChecksumState::Unknown) => false,
        (WrongVerdict::GoodIsBad, verdict) => verdict != ChecksumState::Bad,
        (WrongVerdict::BadIsGood, verdict) => verdict == ChecksumState::Bad,
    };
    if !is_concerned {
        return None;
    }
    let layout = FrameLayout::parse(frame, LengthFrom::Ip).ok()?;
    // A checksum of UDP or TCP; without payload there is nothing that could be retransmitted.
    let is_summed = matches!(layout.transport, Transport::Tcp | Transport::Udp) && !layout.fragment;
    if !is_summed || layout.payload_start >= layout.packet_end {
        return None;
    }
    let payload = u64::from(checksum::sum(&frame[layout.payload_start..layout.packet_end]).fold());
    let sequence = match layout.transport {
        Transport::Tcp => u64::from(checksum::sum(&frame[layout.transport_start..][TCP_SEQUENCE]).fold()),
        _ => 0,
    };
    (payload + sequence).is_multiple_of(u64::from(config.one_in.max(1))).then_some(layout)
}

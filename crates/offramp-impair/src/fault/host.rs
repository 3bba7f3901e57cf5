//! Hosts that are told of frames in the wrong order, or with a wrong verdict. What they send goes its way.

use super::config::{VerdictConfig, WrongVerdict};
use offramp_adapter::port::{HostPort, Interrupts, PortError, Settled};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum;
use offramp_offload::frame::Frame;
use offramp_offload::layout::Transport;
use offramp_offload::meta::{ChecksumState, RxMeta};
use std::collections::VecDeque;

/// What a frame that is marked bad is refused with: Linux' `EBADMSG`.
const BAD_MESSAGE: i32 = 74;
/// Where a TCP header has its sequence number, and how long that is (RFC 9293 3.1).
const TCP_SEQUENCE: std::ops::Range<usize> = 4..8;

/// Passes on what concerns the frames that leave, and the host as it is.
macro_rules! pass_on_transmit {
    ($host:ident) => {
        fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
            self.$host.tx_next(now_ns)
        }

        fn tx_frame(&mut self) -> Frame<'_> {
            self.$host.tx_frame()
        }

        fn interrupts(&mut self) -> Option<&mut dyn Interrupts> {
            self.$host.interrupts()
        }

        fn accepts(&self) -> Offloads {
            self.$host.accepts()
        }

        fn honours_data_valid(&self) -> bool {
            self.$host.honours_data_valid()
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
            let outcome = self.host.rx_deliver(&meta, &frame);
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

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        if self.group < 2 {
            return self.host.rx_deliver(meta, frame);
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

    fn rx_flush(&mut self, now_ns: u64) {
        self.release();
        self.host.rx_flush(now_ns);
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
    copy: Vec<u8>,
    wrong: u64,
}

impl<H: HostPort> VerdictFault<H> {
    /// Lets the verdicts on frames for `host` err; never when `config` is `None`.
    pub fn new(host: H, config: Option<VerdictConfig>) -> Self {
        Self { host, config, copy: Vec::new(), wrong: 0 }
    }

    /// Frames that were judged wrongly.
    pub fn wrong(&self) -> u64 {
        self.wrong
    }

    fn deliver_as_good(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        if self.host.honours_data_valid() {
            return self.host.rx_deliver(&RxMeta { checksum: ChecksumState::Good, ..*meta }, frame);
        }
        let mut marked = Frame::received(&mut self.copy);
        let (Some(partial), Ok(layout)) = (marked.make_partial(), marked.layout()) else {
            return self.host.rx_deliver(meta, frame);
        };
        let frame = &marked.bytes()[..layout.packet_end];
        self.host.rx_deliver(&RxMeta { checksum: ChecksumState::Partial(partial), ..*meta }, frame)
    }

    /// Whether the verdict on a frame is to be wrong. Its copy is made then.
    fn is_judged_wrongly(&mut self, meta: &RxMeta, frame: &[u8]) -> bool {
        let Some(config) = self.config.filter(|config| may_be_wrong(config.wrong, meta.checksum)) else {
            return false;
        };
        self.copy.clear();
        self.copy.extend_from_slice(frame);
        sum_of(&Frame::received(&mut self.copy)).is_some_and(|sum| sum.is_multiple_of(u64::from(config.one_in.max(1))))
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

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        if !self.is_judged_wrongly(meta, frame) {
            return self.host.rx_deliver(meta, frame);
        }
        self.wrong += 1;
        match meta.checksum {
            ChecksumState::Bad => self.deliver_as_good(meta, frame),
            _ => Err(PortError::Refused(BAD_MESSAGE)),
        }
    }

    fn rx_flush(&mut self, now_ns: u64) {
        self.host.rx_flush(now_ns);
    }

    fn settle(&mut self) -> Option<Settled> {
        self.host.settle()
    }
}

fn may_be_wrong(wrong: WrongVerdict, verdict: ChecksumState) -> bool {
    match (wrong, verdict) {
        (_, ChecksumState::Unknown) => false,
        (WrongVerdict::GoodIsBad, verdict) => verdict != ChecksumState::Bad,
        (WrongVerdict::BadIsGood, verdict) => verdict == ChecksumState::Bad,
    }
}

/// What decides whether a verdict is wrong: the sum over payload and TCP sequence number. `None` without a checksum of
/// UDP or TCP, and without payload, of which nothing could be retransmitted.
fn sum_of(frame: &Frame<'_>) -> Option<u64> {
    let (bytes, layout) = (frame.bytes(), frame.layout().ok()?);
    let is_summed = matches!(layout.transport, Transport::Tcp | Transport::Udp) && !layout.fragment;
    if !is_summed || layout.payload_start >= layout.packet_end {
        return None;
    }
    let payload = u64::from(checksum::sum(&bytes[layout.payload_start..layout.packet_end]).fold());
    let sequence = match layout.transport {
        Transport::Tcp => u64::from(checksum::sum(&bytes[layout.transport_start..][TCP_SEQUENCE]).fold()),
        _ => 0,
    };
    Some(payload + sequence)
}

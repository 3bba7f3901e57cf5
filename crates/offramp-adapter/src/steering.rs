//! Steering of frames from the wire among a host's queue pairs, if one thread serves them all.
//!
//! The rule is that of the kernel's TAP (`tun_select_queue`). A flow is received on the pair of the host's last
//! transmission, since the processor at work on it is there. If the host has not sent a flow lately, its hash spreads
//! it over the pairs in use. So a flow stays on one pair, and flows spread.
//!
//! # What order a host sees
//! Frames of a flow are always given in the order of arrival. While the flow stays on its pair, the host also sees them
//! so. A flow moves when the host sends it on another pair, when it was not sent for [`AGE_MAX_NS`] and its hash names
//! another pair, and when pairs come into use or go out of it. At a move, unseen frames lie in one ring and later ones
//! in another. The host chooses the ring it reads first, as with every adapter with steering. Steering can promise that
//! the host was shown the former before the latter: [`Choice::left`] names the pair to flush first.

use offramp_offload::frame::Frame;
use offramp_offload::layout::{Network, Transport};
use std::hash::{BuildHasher, RandomState};

/// Time for which a flow stays on the pair of the host's last transmission, in nanoseconds: 3 s, as the kernel's
/// `TUN_FLOW_EXPIRATION`.
pub const AGE_MAX_NS: u64 = 3_000_000_000;
/// Maximum of remembered flows: as the kernel's `MAX_TAP_FLOWS`.
pub const FLOWS_MAX: usize = BUCKETS * WAYS;
const BUCKETS: usize = 1024;
/// Flows of one bucket: together they fit into one cache line.
const WAYS: usize = 4;
/// Age is kept in milliseconds: an entry then has 12 bytes.
const NS_PER_MS: u64 = 1_000_000;

/// A hash of a flow's identity, the same in either direction: both IP addresses, and the ports of TCP and UDP.
/// Fragments have no ports: so all fragments of a datagram are of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHash(u32);

impl From<u32> for FlowHash {
    fn from(hash: u32) -> Self {
        Self(hash.max(1))
    }
}

impl From<FlowHash> for u32 {
    fn from(flow: FlowHash) -> Self {
        flow.0
    }
}

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The receiving pair of the flow from now on.
    pub pair: usize,
    /// The pair possibly left by this flow, or by a forgotten one: the host must be shown the frames given there before
    /// the next frame.
    pub left: Option<usize>,
}

/// A flow sent by the host. A hash of 0 means an empty entry.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    hash: u32,
    sent_ms: u32,
    pair: u16,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket([Flow; WAYS]);

/// The receiving pairs of one host's flows. All memory is allocated once: 64 KiB.
///
/// The hash has a secret, so that nobody outside can choose flows with the same bucket or pair.
#[derive(Debug)]
pub struct Steering {
    buckets: Box<[Bucket]>,
    /// The pairs in use, in rising order; never empty.
    pairs: Vec<u16>,
    now_ms: u32,
    secrets: [u64; 2],
}

impl Default for Steering {
    fn default() -> Self {
        Self::new()
    }
}

impl Steering {
    /// Creates a steering without known flows and with the first pair alone in use.
    pub fn new() -> Self {
        let random = RandomState::new();
        Self {
            buckets: vec![Bucket::default(); BUCKETS].into(),
            pairs: vec![0],
            now_ms: 0,
            secrets: [random.hash_one(0) | 1, random.hash_one(1) | 1],
        }
    }

    /// Sets the time: once per batch is enough.
    pub fn set_now(&mut self, now_ns: u64) {
        // Wraps around after 49 days. A flow idle for the whole period then seems to be a young one.
        self.now_ms = (now_ns / NS_PER_MS) as u32;
    }

    /// Sets the pairs in use, in rising order. Returns whether this changed anything. Flows may move then: the host
    /// must first be shown the frames already given. With none in use, frames go to the first pair: every host uses it
    /// (virtio 1.3, 5.1.6.5.6), and it has no room then.
    pub fn set_pairs(&mut self, pairs: impl Iterator<Item = usize> + Clone) -> bool {
        let first = pairs.clone().next().is_none().then_some(0);
        let pairs = pairs.chain(first).map(|pair| pair as u16);
        let has_changed = !pairs.clone().eq(self.pairs.iter().copied());
        if has_changed {
            self.pairs.clear();
            self.pairs.extend(pairs);
        }
        has_changed
    }

    /// Returns the flow of a frame; `None` for frames other than IP and for malformed ones.
    #[inline]
    pub fn flow(&self, frame: &Frame<'_>) -> Option<FlowHash> {
        let layout = frame.layout().ok()?;
        let addresses = frame.addresses();
        let (source, destination) = addresses.split_at(addresses.len() / 2);
        let [source, destination] = match layout.network {
            Network::Opaque => return None,
            Network::Ipv4 | Network::Ipv6 => [source, destination].map(|address| self.mix_address(address)),
        };
        let ports = match layout.transport {
            Transport::Tcp | Transport::Udp => {
                frame.bytes().get(layout.transport_start..)?.first_chunk().copied().unwrap_or_default()
            }
            Transport::Opaque => [0; 4],
        };
        let [a, b, c, d] = ports.map(u64::from);
        // The sum of both ends is the same in either direction.
        let ends = self.mix(source ^ (a << 8 | b)).wrapping_add(self.mix(destination ^ (c << 8 | d)));
        Some(FlowHash::from((self.mix(ends) >> u32::BITS) as u32))
    }

    fn mix_address(&self, address: &[u8]) -> u64 {
        address.chunks(4).fold(self.secrets[1], |sum, word| {
            let word = word.first_chunk().copied().map_or(0, u32::from_be_bytes);
            self.mix(sum ^ u64::from(word) << 16)
        })
    }

    /// Combines both halves of a product of 128 bits: each bit of the result depends on all of the factor.
    fn mix(&self, value: u64) -> u64 {
        let product = u128::from(value ^ self.secrets[1]) * u128::from(self.secrets[0]);
        product as u64 ^ (product >> u64::BITS) as u64
    }

    /// Notes that the host has sent a frame of this flow on `pair`. A full bucket remembers no further flow, so no
    /// young flow moves because others come. It forgets a too old flow, free to move then, and remembers the new one at
    /// its next transmission.
    #[inline]
    pub fn sent(&mut self, flow: FlowHash, pair: usize) -> Choice {
        let before = self.receiver(flow);
        let now_ms = self.now_ms;
        if self.pairs.binary_search(&(pair as u16)).is_err() {
            return Choice { pair: before, left: None };
        }
        let ways = &mut self.buckets[bucket_of(flow)].0;
        let with_hash = |hash| ways.iter().position(|known| known.hash == hash);
        if let Some(slot) = with_hash(flow.0).or_else(|| with_hash(0)) {
            ways[slot] = Flow { hash: flow.0, sent_ms: now_ms, pair: pair as u16 };
            return Choice { pair, left: (pair != before).then_some(before) };
        }
        let aged = ways.iter_mut().find(|known| !known.is_young(now_ms));
        Choice { pair: before, left: aged.map(|aged| usize::from(std::mem::take(aged).pair)) }
    }

    /// Returns the receiving pair for a frame from the wire. A too old flow is forgotten, and may move.
    #[inline]
    pub fn receive(&mut self, flow: Option<FlowHash>) -> Choice {
        let Some(flow) = flow else { return Choice { pair: usize::from(self.pairs[0]), left: None } };
        let now_ms = self.now_ms;
        let known = self.buckets[bucket_of(flow)].0.iter_mut().find(|known| known.hash == flow.0);
        let Some(aged) = known.filter(|known| !known.is_young(now_ms)) else {
            return Choice { pair: self.receiver(flow), left: None };
        };
        let before = usize::from(std::mem::take(aged).pair);
        let pair = self.receiver(flow);
        Choice { pair, left: (pair != before).then_some(before) }
    }

    /// As [`Steering::receive`], for a frame that is not received: no flow is forgotten, and none moves.
    pub fn would_receive(&self, flow: Option<FlowHash>) -> usize {
        let Some(flow) = flow else { return usize::from(self.pairs[0]) };
        let is_aged = |known: &Flow| known.hash == flow.0 && !known.is_young(self.now_ms);
        if self.buckets[bucket_of(flow)].0.iter().any(is_aged) { self.spread(flow) } else { self.receiver(flow) }
    }

    /// Returns the receiving pair of the flow now.
    fn receiver(&self, flow: FlowHash) -> usize {
        let known = self.buckets[bucket_of(flow)].0.iter().find(|known| known.hash == flow.0);
        match known {
            Some(known) if self.pairs.binary_search(&known.pair).is_ok() => usize::from(known.pair),
            _ => self.spread(flow),
        }
    }

    /// Returns the receiving pair of a flow that the host has not sent lately.
    #[inline]
    fn spread(&self, flow: FlowHash) -> usize {
        // A multiplication in place of a division, as the kernel does it.
        let nth = (u64::from(flow.0) * self.pairs.len() as u64) >> u32::BITS;
        usize::from(self.pairs[nth as usize])
    }
}

impl Flow {
    fn is_young(&self, now_ms: u32) -> bool {
        self.hash != 0 && u64::from(now_ms.wrapping_sub(self.sent_ms)) <= AGE_MAX_NS / NS_PER_MS
    }
}

fn bucket_of(flow: FlowHash) -> usize {
    flow.0 as usize % BUCKETS
}

//! Steering of received frames among a host's queue pairs, if one thread serves all pairs.
//!
//! The rule is the same as for the kernel's TAP (`tun_select_queue`). A flow is received on the queue pair on which the
//! host last sent a frame of the flow. That pair's processor handles the flow. If the host has not lately sent a frame
//! of the flow, the flow's hash selects one of the pairs in use. So each flow stays on one pair, and the flows are
//! spread over the pairs.
//!
//! # The order of frames at the host
//! Frames of a flow are always delivered in the order of arrival. While a flow stays on one pair, the host also sees
//! the frames in the order of arrival.
//!
//! A flow moves if the host sends a frame of the flow on another pair, or if the set of pairs in use changes. A flow
//! also moves if the host sent no frame of the flow for [`AGE_MAX_NS`] and the flow's hash selects another pair. After
//! a move, frames that the host has not yet seen are in the old pair's ring, and later frames in the new pair's ring.
//! The host chooses the ring to read first, as with every adapter with steering. Steering guarantees only that the
//! earlier frames are published before the later frames. The caller flushes the old pair, [`Choice::left`], before it
//! delivers a later frame.

use offramp_offload::frame::Frame;
use offramp_offload::layout::{Network, Transport};
use std::hash::{BuildHasher, RandomState};

/// Time for which a flow stays on the pair of the host's last frame of this flow, in nanoseconds. The kernel has the
/// same 3 s (`TUN_FLOW_EXPIRATION`).
pub const AGE_MAX_NS: u64 = 3_000_000_000;
/// Maximum number of remembered flows: the kernel's `MAX_TAP_FLOWS`.
pub const FLOWS_MAX: usize = BUCKETS * WAYS;
const BUCKETS: usize = 1024;
/// Flows per bucket: a bucket fits into one cache line.
const WAYS: usize = 4;
/// Nanoseconds per millisecond. Ages are stored in milliseconds, so that an entry has 12 bytes.
const NS_PER_MS: u64 = 1_000_000;

/// A hash of a flow's IP addresses and its TCP or UDP ports, the same in both directions. Fragments have no ports, so
/// all fragments of a datagram belong to one flow.
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

/// The queue pair on which a host receives a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index of the pair on which the host receives this frame and later frames of the flow.
    pub pair: usize,
    /// Index of the old pair of this flow, or of a flow removed from the table; `None` if no flow moves. Frames
    /// delivered to the old pair must be published to the host before the next frame is delivered.
    pub left: Option<usize>,
}

/// A flow of which the host has sent a frame. A hash of 0 marks an empty entry.
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
/// The hash is keyed with a secret, so that an attacker cannot choose flows with the same bucket or pair.
#[derive(Debug)]
pub struct Steering {
    buckets: Box<[Bucket]>,
    /// The pairs in use, in ascending order; never empty.
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
    /// Creates a steering without known flows, with only the first pair in use.
    pub fn new() -> Self {
        let random = RandomState::new();
        Self {
            buckets: vec![Bucket::default(); BUCKETS].into(),
            pairs: vec![0],
            now_ms: 0,
            secrets: [random.hash_one(0) | 1, random.hash_one(1) | 1],
        }
    }

    /// Sets the time; one call per batch is enough.
    pub fn set_now(&mut self, now_ns: u64) {
        // The number of milliseconds wraps around after 49 days, so a flow that was idle for 49 days counts as young.
        self.now_ms = (now_ns / NS_PER_MS) as u32;
    }

    /// Sets the pairs in use to `pairs`, in ascending order. Returns whether the set has changed. If the set has
    /// changed, any flow may move, so publish all delivered frames to the host before the next frame is delivered. If
    /// no pair is in use, the first pair is chosen for every frame, and has no room. A host that receives frames always
    /// uses the first pair (virtio 1.3, 5.1.6.5.6).
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

    /// Returns the flow of a frame; `None` for a malformed frame or a frame other than IP.
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
        let ports = u64::from(u32::from_be_bytes(ports));
        let (from, to) = (ports >> u16::BITS, ports & u64::from(u16::MAX));
        // The sum is the same for both directions of a flow.
        let ends = self.mix(source ^ from).wrapping_add(self.mix(destination ^ to));
        Some(FlowHash::from((self.mix(ends) >> u32::BITS) as u32))
    }

    fn mix_address(&self, address: &[u8]) -> u64 {
        address.chunks(4).fold(self.secrets[1], |sum, word| {
            let word = word.first_chunk().copied().map_or(0, u32::from_be_bytes);
            self.mix(sum ^ u64::from(word) << 16)
        })
    }

    /// Combines both halves of a 128-bit product: each bit of the result depends on all bits of the factor.
    fn mix(&self, value: u64) -> u64 {
        let product = u128::from(value ^ self.secrets[1]) * u128::from(self.secrets[0]);
        product as u64 ^ (product >> u64::BITS) as u64
    }

    /// Records that the host sent a frame of this flow on `pair`. A full bucket stores no further flow, so new flows
    /// never displace a young flow. If the full bucket holds an expired flow, the expired flow is removed and may move
    /// to another pair. The new flow is stored when the host next sends a frame of the new flow.
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

    /// Returns the pair on which the host receives a frame from the wire. If the frame's flow has expired, the flow is
    /// removed from the table and may move to another pair.
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

    /// Returns the same pair as [`Steering::receive`], for a frame that is not delivered: no flow is removed or moved.
    pub fn would_receive(&self, flow: Option<FlowHash>) -> usize {
        let Some(flow) = flow else { return usize::from(self.pairs[0]) };
        let is_aged = |known: &Flow| known.hash == flow.0 && !known.is_young(self.now_ms);
        if self.buckets[bucket_of(flow)].0.iter().any(is_aged) { self.spread(flow) } else { self.receiver(flow) }
    }

    /// Returns the current receiving pair of the flow.
    fn receiver(&self, flow: FlowHash) -> usize {
        let known = self.buckets[bucket_of(flow)].0.iter().find(|known| known.hash == flow.0);
        match known {
            Some(known) if self.pairs.binary_search(&known.pair).is_ok() => usize::from(known.pair),
            _ => self.spread(flow),
        }
    }

    /// Returns the pair that the flow's hash selects, for a flow of which the host has not lately sent a frame.
    #[inline]
    fn spread(&self, flow: FlowHash) -> usize {
        // A multiplication and a shift select the index without a division, as in the kernel.
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

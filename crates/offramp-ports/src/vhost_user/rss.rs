//! The hash of a guest's received frames, and the guest's queue pair for each flow (virtio 1.3, 5.1.6.4.3 and
//! 5.1.6.5.7).

use offramp_offload::frame::Frame;
use offramp_offload::meta::{RxMeta, SegmentationKind};
use offramp_offload::rss::{HashTypes, INDIRECTION_ENTRIES_DEFAULT, KEY_LEN, Toeplitz};
use offramp_virtio::control::{HashConfig, RssConfig};
use offramp_virtio::net_header::NetHeader;

/// A guest's settings for hashing received frames and steering flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashStatus {
    /// The hashed packet types.
    pub types: HashTypes,
    /// The Toeplitz key. A shorter key is padded with zeros.
    pub key: [u8; KEY_LEN],
    /// True if the header of each frame reports the hash.
    pub is_reported: bool,
    /// The pair for each value of the hash's low bits. If empty, the port steers the flows.
    pub table: Vec<u16>,
    /// The pair for frames that are not hashed, if the guest set a table.
    pub unclassified: Option<u16>,
}

/// Maximum number of entries in an indirection table.
pub(super) const TABLE_LEN_MAX: usize = INDIRECTION_ENTRIES_DEFAULT;

/// The hash of a guest's received frames, and the steering of flows to queue pairs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rss {
    hash: Toeplitz,
    types: HashTypes,
    /// The indirection table. If `None`, the port steers the flows.
    table: Option<Table>,
}

/// The pair for each value of the hash's low bits, and the pair for unhashed frames.
#[derive(Clone, Debug, PartialEq)]
struct Table {
    pairs: Vec<u16>,
    unclassified: u16,
}

/// The hash of a frame and its hashed packet type, which is empty if the guest's types do not include the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameHash {
    value: u32,
    hashed: HashTypes,
}

impl Rss {
    /// Returns settings that only hash frames. Returns `None` if the key is too long, or a packet type is unknown.
    pub(super) fn hashing(config: &HashConfig) -> Option<Self> {
        // A shorter key is padded with zeros.
        let mut key = [0; KEY_LEN];
        key.get_mut(..config.key.len())?.copy_from_slice(&config.key);
        Some(Self { hash: Toeplitz::new(&key), types: HashTypes::from_bits(config.types)?, table: None })
    }

    /// Returns settings that hash frames and steer flows. Returns `None` in the cases of [`Self::hashing`]. Returns
    /// `None` if the table is too long, its length is not a power of two, or the table names a missing pair.
    pub(super) fn spreading(config: &RssConfig, queue_pairs: u16) -> Option<Self> {
        let RssConfig { hash, unclassified, table, .. } = config;
        let mut pairs = table.iter().chain([unclassified]);
        if !table.len().is_power_of_two() || table.len() > TABLE_LEN_MAX || !pairs.all(|pair| *pair < queue_pairs) {
            return None;
        }
        Some(Self::hashing(hash)?.with_table(Some(Table { pairs: table.clone(), unclassified: *unclassified })))
    }

    /// Returns the same settings without a table, so that the port steers the flows.
    pub(super) fn without_table(self) -> Self {
        self.with_table(None)
    }

    fn with_table(self, table: Option<Table>) -> Self {
        Self { table, ..self }
    }

    /// Returns the settings for display. `is_reported` is true if the header of each frame reports the hash.
    pub(super) fn status(&self, is_reported: bool) -> HashStatus {
        let (table, unclassified) = self.table.as_ref().map(|table| (table.pairs.clone(), table.unclassified)).unzip();
        let table = table.unwrap_or_default();
        HashStatus { types: self.types, key: *self.hash.key(), is_reported, table, unclassified }
    }

    /// Returns whether the guest steers its flows with a table.
    pub(super) fn spreads(&self) -> bool {
        self.table.is_some()
    }

    /// Returns the number of pairs needed to include every pair in the table.
    pub(super) fn queue_pairs(&self) -> u16 {
        let Some(Table { pairs, unclassified }) = &self.table else { return 1 };
        pairs.iter().fold(*unclassified, |last, pair| last.max(*pair)) + 1
    }

    /// Returns the hash of a frame.
    #[inline]
    pub(super) fn hash(&self, meta: &RxMeta, frame: &[u8]) -> FrameHash {
        self.hash_of(frame, meta.segmentation.is_some(), self.types)
    }

    #[inline]
    fn hash_of(&self, frame: &[u8], is_super_frame: bool, types: HashTypes) -> FrameHash {
        let (value, hashed) = self.hash.hash_of_types(frame, is_super_frame, types);
        FrameHash { value, hashed }
    }

    /// Returns the pair for a frame with this hash, if the guest steers its flows (requirements V59 and V60 in
    /// `docs/vhost-user.md`).
    #[inline]
    pub(super) fn pair(&self, hash: FrameHash) -> Option<usize> {
        let Table { pairs, unclassified } = self.table.as_ref()?;
        let of_hash = pairs.get(hash.value as usize & (pairs.len() - 1)).filter(|_| !hash.hashed.is_empty());
        Some(of_hash.copied().unwrap_or(*unclassified).into())
    }

    /// Returns the pair for an unsegmented frame from another host, if the guest steers its flows. `frames` is the
    /// number of frames after segmentation.
    pub(super) fn pair_of(&self, frame: &Frame<'_>, frames: usize) -> Option<usize> {
        if !self.spreads() {
            return None;
        }
        let segmentation = frame.request().segmentation.filter(|_| frames > 1);
        let has_fragments = segmentation.is_some_and(|wanted| wanted.kind == SegmentationKind::UdpFragments);
        // Fragments are hashed without their ports.
        let types = if has_fragments { self.types & (HashTypes::IPV4 | HashTypes::IPV6) } else { self.types };
        self.pair(self.hash_of(frame.bytes(), segmentation.is_some(), types))
    }
}

impl FrameHash {
    /// Writes the hash and the hashed packet type into the frame's header (`hash_report` is 1 for the first type).
    #[inline]
    pub(super) fn report(self, header: &mut NetHeader) {
        if !self.hashed.is_empty() {
            header.hash_value = self.value;
            header.hash_report = self.hashed.bits().trailing_zeros() as u16 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_offload::meta::{Segmentation, TxMeta};

    fn config() -> RssConfig {
        let hash = HashConfig { types: 0x3f, key: vec![7; KEY_LEN] };
        RssConfig { hash, unclassified: 1, table: vec![0, 1, 2, 0], max_tx_vq: 3 }
    }

    #[test]
    fn what_no_adapter_could_do_is_refused() {
        let with = |change: fn(&mut RssConfig)| {
            let mut config = config();
            change(&mut config);
            Rss::spreading(&config, 3)
        };
        assert_eq!(with(|_| ()).map(|rss| rss.queue_pairs()), Some(3));
        assert_eq!(with(|config| config.table = vec![0]).map(|rss| rss.queue_pairs()), Some(2), "the unclassified one");
        assert!(with(|config| config.hash.types = 0).is_some() && with(|config| config.hash.key.clear()).is_some());
        assert!(with(|config| config.table = vec![2; TABLE_LEN_MAX]).is_some());
        let wrong: [fn(&mut RssConfig); 7] = [
            |config| config.table = vec![0; 3],
            |config| config.table.clear(),
            |config| config.table = vec![0; 2 * TABLE_LEN_MAX],
            |config| config.table[3] = 3,
            |config| config.unclassified = u16::MAX,
            |config| config.hash.key.push(0),
            |config| config.hash.types = 0x40,
        ];
        for change in wrong {
            assert_eq!(with(change), None);
        }
    }

    #[test]
    fn a_frame_has_the_pair_of_the_frames_that_it_makes() {
        let udp = [&[0; 12][..], &[8, 0, 0x45, 0, 0, 92, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat();
        let mut whole = [&udp[..], &[3, 4, 5, 6, 0, 72, 0, 0], &[0; 64]].concat();
        let mut fragment = whole[..66].to_vec();
        (fragment[17], fragment[20]) = (52, 0x20);
        let rss = |table: Vec<u16>| Rss::spreading(&RssConfig { table, max_tx_vq: 64, ..config() }, 64).unwrap();
        let spreading = rss((0..64).collect());
        let pair = |bytes: &[u8]| spreading.pair(spreading.hash(&RxMeta::default(), bytes));
        assert_ne!(pair(&whole), pair(&fragment), "else this test shows nothing");
        let expected = [pair(&whole), pair(&whole), pair(&fragment)];
        let kinds = [None, Some(SegmentationKind::Udp), Some(SegmentationKind::UdpFragments)];
        for (kind, expected) in kinds.into_iter().zip(expected) {
            let segmentation = kind.map(|kind| Segmentation::new(kind, 32));
            let frame = Frame::new(&mut whole, TxMeta { checksum: None, segmentation });
            assert_eq!(spreading.pair_of(&frame, 2), expected, "{kind:?}");
            assert_eq!(spreading.pair_of(&frame, 1), pair(frame.bytes()), "{kind:?}: it stays one frame");
            assert_eq!(spreading.clone().without_table().pair_of(&frame, 2), None);
        }
        // Segmentation overwrites the length field of a super-frame, so any value is valid. In a frame that is not
        // segmented later, the length must be correct.
        whole[16..18].fill(0);
        let expected = pair(&whole);
        let segmentation = Some(Segmentation::new(SegmentationKind::Udp, 1000));
        let frame = Frame::new(&mut whole, TxMeta { checksum: None, segmentation });
        assert_eq!(spreading.pair_of(&frame, 1), expected);
        assert_ne!(spreading.pair_of(&frame, 2), expected);
    }

    #[test]
    fn what_is_not_hashed_goes_to_the_unclassified_pair() {
        let mut config = config();
        let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat();
        let rss = Rss::spreading(&config, 3).unwrap();
        let hash = rss.hash(&RxMeta::default(), &arp);
        assert_eq!(rss.pair(hash), Some(1));
        let mut header = NetHeader::default();
        hash.report(&mut header);
        assert_eq!(header, NetHeader::default());
        assert_eq!(rss.without_table().pair(hash), None);
        config.hash.types = 0;
        config.unclassified = 2;
        let ipv4 = [&[0; 12][..], &[8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat();
        let rss = Rss::spreading(&config, 3).unwrap();
        assert_eq!(rss.pair(rss.hash(&RxMeta::default(), &ipv4)), Some(2));
    }
}

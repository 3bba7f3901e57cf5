//! The queue pair on which a guest wants each flow (`VIRTIO_NET_F_RSS`; virtio 1.3, 5.1.6.5.7).

use offramp_offload::meta::RxMeta;
use offramp_offload::rss::{HashTypes, INDIRECTION_ENTRIES_DEFAULT, KEY_LEN, Toeplitz};
use offramp_virtio::control::RssConfig;

/// Entries of the longest table.
pub(super) const TABLE_LEN_MAX: usize = INDIRECTION_ENTRIES_DEFAULT;

/// How a guest's received flows are spread over its queue pairs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rss {
    hash: Toeplitz,
    types: HashTypes,
    unclassified: u16,
    table: Vec<u16>,
}

impl Rss {
    /// `None`: the table is too long or has no power of two of entries, names a pair that is not there, the key is too long,
    /// or a kind of packets is unknown.
    pub fn new(config: &RssConfig, queue_pairs: u16) -> Option<Self> {
        let RssConfig { hash, unclassified, table, .. } = config;
        let mut pairs = table.iter().chain([unclassified]);
        if !table.len().is_power_of_two() || table.len() > TABLE_LEN_MAX || !pairs.all(|pair| *pair < queue_pairs) {
            return None;
        }
        // A shorter key is followed by zeros.
        let mut key = [0; KEY_LEN];
        key.get_mut(..hash.key.len())?.copy_from_slice(&hash.key);
        let types = HashTypes::from_bits(hash.types)?;
        Some(Self { hash: Toeplitz::new(&key), types, unclassified: *unclassified, table: table.clone() })
    }

    /// How many pairs, from the first on, have all of its pairs among them.
    pub fn queue_pairs(&self) -> u16 {
        self.table.iter().fold(self.unclassified, |last, pair| last.max(*pair)) + 1
    }

    /// The pair of a frame (V59, V60).
    pub fn pair(&self, meta: &RxMeta, frame: &[u8]) -> usize {
        let hash = self.hash.hash_of_types(frame, meta.segmentation.is_some(), self.types);
        let pair = hash.map_or(self.unclassified, |(hash, _)| self.table[hash as usize & (self.table.len() - 1)]);
        usize::from(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_virtio::control::HashConfig;

    fn config() -> RssConfig {
        let hash = HashConfig { types: 0x3f, key: vec![7; KEY_LEN] };
        RssConfig { hash, unclassified: 1, table: vec![0, 1, 2, 0], max_tx_vq: 3 }
    }

    #[test]
    fn what_no_adapter_could_do_is_refused() {
        let with = |change: fn(&mut RssConfig)| {
            let mut config = config();
            change(&mut config);
            Rss::new(&config, 3)
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
    fn what_is_not_hashed_goes_to_the_unclassified_pair() {
        let mut config = config();
        let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat();
        assert_eq!(Rss::new(&config, 3).unwrap().pair(&RxMeta::default(), &arp), 1);
        config.hash.types = 0;
        config.unclassified = 2;
        let ipv4 = [&[0; 12][..], &[8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat();
        assert_eq!(Rss::new(&config, 3).unwrap().pair(&RxMeta::default(), &ipv4), 2);
    }
}

//! The words for offloads, shared by all commands and files, and the nearest known word for a misspelt one.

use crate::caps::{NAMES, Offloads};
use std::cmp::Reverse;

/// Other words for offloads: groups, names of `ethtool -K` and `ethtool -k`, and short forms.
struct Word {
    names: &'static [&'static str],
    /// The adapter's offloads; empty for a feature that only Linux has.
    offloads: Offloads,
    /// Linux' features.
    features: &'static [&'static str],
}

const TCP_SEGMENTATION: &[&str] = &[
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
];
const TX_CHECKSUM: &[&str] = &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];
const CHECKSUM: &[&str] = &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6", "rx-checksum"];
const SCATTER_GATHER: &[&str] = &["tx-scatter-gather", "tx-scatter-gather-fraglist"];

const fn word(names: &'static [&'static str], offloads: Offloads, features: &'static [&'static str]) -> Word {
    Word { names, offloads, features }
}

const WORDS: &[Word] = &[
    word(&["tso", "lso", "tcp-segmentation-offload"], Offloads::LSO, TCP_SEGMENTATION),
    word(&["gso", "tx-generic-segmentation", "generic-segmentation-offload"], NONE, &["tx-generic-segmentation"]),
    word(&["rx-gro", "gro", "generic-receive-offload"], Offloads::RSC, &["rx-gro"]),
    word(&["rx-gro-hw", "gro-hw"], Offloads::RSC, &["rx-gro-hw"]),
    word(&["rx-lro", "lro", "large-receive-offload"], Offloads::RSC, &["rx-lro"]),
    word(&["rsc"], Offloads::RSC, &["rx-gro-hw", "rx-lro"]),
    word(&["rx-udp-gro", "udp-gro", "uro"], Offloads::RSC_UDP, &["rx-udp-gro-forwarding"]),
    word(&["ufo", "udp-fragmentation-offload"], Offloads::UFO, &["tx-udp-fragmentation"]),
    word(&["checksum"], Offloads::TX_CHECKSUM.union(Offloads::RX_CHECKSUM), CHECKSUM),
    word(&["tx-checksum", "tx-checksumming"], Offloads::TX_CHECKSUM, TX_CHECKSUM),
    word(&["tx-checksum-ipv4"], Offloads::TX_CHECKSUM, &["tx-checksum-ipv4"]),
    word(&["tx-checksum-ipv6"], Offloads::TX_CHECKSUM, &["tx-checksum-ipv6"]),
    word(&["rx-checksum", "rx-checksumming"], Offloads::RX_CHECKSUM, &["rx-checksum"]),
    word(&["tx-scatter-gather", "sg", "scatter-gather"], NONE, SCATTER_GATHER),
    word(&["tx-vlan", "txvlan", "tx-vlan-offload", "tx-vlan-hw-insert"], NONE, &["tx-vlan-hw-insert"]),
    word(&["rx-vlan", "rxvlan", "rx-vlan-offload", "rx-vlan-hw-parse"], NONE, &["rx-vlan-hw-parse"]),
    word(&["all"], Offloads::RATIFIED, &[]),
];
const NONE: Offloads = Offloads::empty();

/// The groups of the adapter's offloads. Each group is a word of [`offloads`].
pub const GROUPS: [&str; 6] = ["lso", "tso", "rsc", "rx-gro", "checksum", "all"];

/// Returns the adapter's offloads with this name, or of the group with this name. The names are those of
/// [`NAMES`], ethtool's names and [`GROUPS`]. The result is empty for a feature that only Linux has, such as `gso`, and
/// `None` for an unknown word.
pub fn offloads(name: &str) -> Option<Offloads> {
    let other = WORDS.iter().find(|word| word.names.contains(&name)).map(|word| word.offloads);
    let of_ethtool = || {
        let found = NAMES.iter().filter(|known| known.ethtool == name);
        found.map(|known| known.offload).reduce(Offloads::union)
    };
    Offloads::by_name(name).or(other).or_else(of_ethtool)
}

/// Returns Linux' features (`ethtool -k`) with this name, or of the group with this name. Empty for an unknown word.
pub fn features(name: &str) -> Vec<&'static str> {
    if let Some(word) = WORDS.iter().find(|word| word.names.contains(&name)) {
        return word.features.to_vec();
    }
    NAMES
        .iter()
        .find(|known| known.name == name || known.ethtool == name)
        .map(|known| known.ethtool)
        .into_iter()
        .collect()
}

/// Returns every word of [`offloads`].
pub fn all() -> impl Iterator<Item = &'static str> {
    let others = WORDS.iter().flat_map(|word| word.names).copied();
    NAMES.iter().flat_map(|known| [known.name, known.ethtool]).chain(others)
}

/// Maximum edit distance of a suggestion, letters.
const LETTERS_MAX: usize = 2;

/// Returns the known word that `name` probably means, or `None` if no known word is near.
///
/// A known word is near if at most two of its letters differ, and at most half of its letters. A swap of two adjacent
/// letters counts as one letter. Among equally near words, the function returns the word with more equal letters at its
/// beginning. A known word is also near if `name` leaves out or shortens some of its parts, as `tx_bits_per_sec` does
/// for `tx_bits_per_second`.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = name.chars().count();
    let distance = |candidate: &str| {
        let distance = edit_distance(name, candidate);
        let is_near = distance <= LETTERS_MAX && 2 * distance <= letters.max(candidate.chars().count());
        if is_near { Some(distance) } else { is_shortened(name, candidate).then_some(LETTERS_MAX + 1) }
    };
    let near = known.into_iter().filter_map(|candidate| Some((distance(candidate)?, candidate)));
    let equal_letters = |candidate: &str| name.chars().zip(candidate.chars()).take_while(|(a, b)| a == b).count();
    near.min_by_key(|(distance, candidate)| (*distance, Reverse(equal_letters(candidate))))
        .map(|(_, candidate)| candidate)
}

/// Returns the hint "did you mean …? " at the nearest known word; empty if no known word is near.
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map(|near| format!("did you mean \"{near}\"? ")).unwrap_or_default()
}

/// Returns whether each part of `name` abbreviates a part of `whole`, in order. The first parts are equal.
fn is_shortened(name: &str, whole: &str) -> bool {
    const LEN_MIN: usize = 3;
    let parts = |text| str::split(text, ['_', '-', '.', ' ']);
    let mut rest = parts(whole);
    let is_first_equal = parts(name).next() == parts(whole).next();
    name.len() >= LEN_MIN
        && is_first_equal
        && parts(name).all(|part| !part.is_empty() && rest.any(|of_whole| is_abbreviation(part, of_whole)))
}

/// Returns whether the letters of `short` occur in `long` in this order, beginning with the first letter.
fn is_abbreviation(short: &str, long: &str) -> bool {
    let mut letters = long.chars();
    short.chars().next() == long.chars().next() && short.chars().all(|letter| letters.any(|of_long| of_long == letter))
}

/// Returns the number of inserted, removed, replaced and swapped letters between two words (optimal string alignment).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_of_ethtool_and_each_group_means_its_offloads() {
        for (word, meant) in [
            ("tso4", Offloads::TSO4),
            ("tso", Offloads::LSO),
            ("lso", Offloads::LSO),
            ("tx-tcp-segmentation", Offloads::TSO4),
            ("tcp-segmentation-offload", Offloads::LSO),
            ("rx-gro-hw", Offloads::RSC),
            ("gro", Offloads::RSC),
            ("tx-udp-segmentation", Offloads::USO),
            ("rx-checksumming", Offloads::RX_CHECKSUM),
            ("tx-tcp-accecn-segmentation", Offloads::TSO_ACCECN),
            ("checksum", Offloads::TX_CHECKSUM | Offloads::RX_CHECKSUM),
            ("gso", Offloads::empty()),
        ] {
            assert_eq!(offloads(word), Some(meant), "{word}");
        }
        assert_eq!(offloads("foo"), None);
        assert!(NAMES.iter().all(|known| offloads(known.name) == Some(known.offload)));
        assert!(GROUPS.iter().all(|group| offloads(group).is_some_and(|offloads| !offloads.is_empty())));
    }

    #[test]
    fn each_word_but_all_means_features_of_linux() {
        assert!(all().filter(|word| *word != "all").all(|word| !features(word).is_empty()));
        assert_eq!(features("tso4"), ["tx-tcp-segmentation"]);
        assert_eq!(features("uso"), ["tx-udp-segmentation"]);
        assert_eq!(features("rsc"), ["rx-gro-hw", "rx-lro"]);
        assert_eq!((features("foo"), features("all")), (vec![], vec![]));
    }

    #[test]
    fn a_word_is_suggested_within_two_letters_or_as_a_longer_form() {
        let nearest = |name, known: &[&'static str]| nearest(name, known.iter().copied());
        for (name, meant) in [("mutt", "mtu"), ("aa", "a"), ("lsso", "lso"), ("tpc", "tcp"), ("ls", "lso")] {
            assert_eq!(nearest(name, &["zzzzzz", meant]), Some(meant), "{name}");
        }
        for (name, meant) in [
            ("tx_bits", "tx_bits_per_second"),
            ("tx_bits_per_sec", "tx_bits_per_second"),
            ("tx_bits_second", "tx_bits_per_second"),
            ("age_secs", "age_seconds"),
            ("quiet", "quiet-or-area"),
            ("host.rto", "host.rto_min"),
        ] {
            assert_eq!(nearest(name, &["area", meant]), Some(meant), "{name}");
        }
        assert_eq!(nearest("of", &["on", "off"]), Some("off"));
        for (name, far) in [("vm7", "a"), ("foo", "uso"), ("status", "sa"), ("", "a"), ("x", "abc")] {
            assert_eq!(nearest(name, &[far]), None, "{name}");
        }
    }

    #[test]
    fn a_swap_of_neighbours_is_one_edit() {
        assert_eq!((edit_distance("dorp", "drop"), edit_distance("", "ab"), edit_distance("ab", "ab")), (1, 2, 0));
    }
}

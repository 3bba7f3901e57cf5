//! Combinations of a virtio network card's options, and their effects in the guest.

use super::{BackendKind, GuestKind};
use offramp_testbed::guest::busybox::NO_INTERRUPTS;
use std::collections::{BTreeMap, BTreeSet};

/// An option of QEMU's `virtio-net-pci`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Factor {
    name: &'static str,
    /// The option's values. The first value is the default of a short run.
    values: &'static [&'static str],
    /// Number of the feature bit that the option sets if it is on (virtio 1.3, 5.1.3 and 6).
    bit: Option<usize>,
    /// The option's line in the output of `ethtool -k`.
    ethtool: Option<&'static str>,
    /// The option without which this option must not be offered (virtio 1.3, 5.1.3.1).
    needs: Option<&'static str>,
}

const ON_OFF: &[&str] = &["on", "off"];

const fn switch(name: &'static str, bit: usize) -> Factor {
    Factor { name, values: ON_OFF, bit: Some(bit), ethtool: None, needs: None }
}

const fn offload(name: &'static str, bit: usize, ethtool: &'static str, needs: Option<&'static str>) -> Factor {
    Factor { name, values: ON_OFF, bit: Some(bit), ethtool: Some(ethtool), needs }
}

const fn choice(name: &'static str, values: &'static [&'static str]) -> Factor {
    Factor { name, values, bit: None, ethtool: None, needs: None }
}

/// All options. Each option follows the option that it needs.
const FACTORS: [Factor; 16] = [
    switch("packed", 34),
    switch("mrg_rxbuf", 15),
    switch("indirect_desc", 28),
    switch("event_idx", 29),
    switch("mq", 22),
    choice("rx_queue_size", &["256", "512", "1024"]),
    choice("tx_queue_size", &["256", "512", "1024"]),
    choice("host_mtu", &["1500", "1280", "9000"]),
    offload("csum", 0, "tx-checksum-ip-generic", None),
    offload("host_tso4", 11, "tx-tcp-segmentation", Some("csum")),
    offload("host_tso6", 12, "tx-tcp6-segmentation", Some("csum")),
    offload("host_ecn", 13, "tx-tcp-ecn-segmentation", Some("host_tso4")),
    // Linux 6.1 always shows rx-checksumming as on, regardless of the negotiation (observed), so only the feature bit
    // is checked.
    switch("guest_csum", 1),
    Factor { name: "guest_tso4", values: ON_OFF, bit: Some(7), ethtool: None, needs: Some("guest_csum") },
    Factor { name: "guest_tso6", values: ON_OFF, bit: Some(8), ethtool: None, needs: Some("guest_csum") },
    Factor { name: "guest_ecn", values: ON_OFF, bit: Some(9), ethtool: None, needs: Some("guest_tso4") },
];
/// Maximum transmit ring size of QEMU's own device. A vhost-user backend can have larger rings.
const QEMU_TX_QUEUE_SIZE_MAX: &str = "256";

/// Fixed options of User Mode Linux, which has one queue pair and rings of a fixed size.
const UML_FIXED: [(&str, &str); 3] = [("mq", "off"), ("rx_queue_size", "256"), ("tx_queue_size", "256")];

/// The four combinations of the short run, each as changes to a combination with all options on. The last two change
/// some options: one with split rings, and one with packed rings.
const SHORT: [&[(&str, &str)]; 4] = [
    &[],
    &[
        ("packed", "off"),
        ("mrg_rxbuf", "off"),
        ("indirect_desc", "off"),
        ("event_idx", "off"),
        ("mq", "off"),
        ("csum", "off"),
        ("guest_csum", "off"),
    ],
    &[("packed", "off"), ("rx_queue_size", "1024"), ("tx_queue_size", "1024"), ("host_mtu", "9000")],
    &[("mrg_rxbuf", "off"), ("event_idx", "off"), ("mq", "off"), ("guest_tso6", "off"), ("host_ecn", "off")],
];

/// A combination: a value for every option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options(BTreeMap<&'static str, &'static str>);

/// Returns the combinations of a full or a short run.
pub fn combinations(full: bool, backend: BackendKind, guest: GuestKind) -> Vec<Options> {
    let chosen = if full { pairwise() } else { SHORT.iter().map(|changes| short(changes)).collect() };
    let mut combinations: Vec<Options> = Vec::new();
    for options in chosen.into_iter().map(|options| options.legal(backend, guest)) {
        if !combinations.contains(&options) {
            combinations.push(options);
        }
    }
    combinations
}

/// Returns a combination with all options on, except for `changes`.
pub fn short(changes: &[(&'static str, &'static str)]) -> Options {
    let mut values: BTreeMap<_, _> = FACTORS.iter().map(|factor| (factor.name, factor.values[0])).collect();
    values.extend(changes.iter().copied());
    Options(values)
}

/// Returns a small set of combinations in which every pair of values of two options occurs. Each combination starts
/// with a pair that no earlier combination contains. Every other option gets the value that covers the most missing
/// pairs.
fn pairwise() -> Vec<Options> {
    let mut open: BTreeSet<Pair> = BTreeSet::new();
    for (a, factor_a) in FACTORS.iter().enumerate() {
        for (b, factor_b) in FACTORS.iter().enumerate().skip(a + 1) {
            let values = |factor: &Factor| 0..factor.values.len();
            open.extend(values(factor_a).flat_map(|x| values(factor_b).map(move |y| ((a, x), (b, y)))));
        }
    }
    let mut combinations = Vec::new();
    while let Some(&(first, second)) = open.first() {
        let mut chosen = BTreeMap::from([first, second]);
        for (index, factor) in FACTORS.iter().enumerate() {
            if !chosen.contains_key(&index) {
                let gain = |value: &usize| met(&chosen, index, *value).filter(|pair| open.contains(pair)).count();
                // Choose the first of the best values, so that the result does not depend on the order of the iterator.
                let best = (0..factor.values.len()).rev().max_by_key(gain).unwrap_or(0);
                chosen.insert(index, best);
            }
        }
        for (&index, &value) in &chosen {
            for pair in met(&chosen, index, value) {
                open.remove(&pair);
            }
        }
        combinations.push(Options(
            chosen.iter().map(|(&index, &value)| (FACTORS[index].name, FACTORS[index].values[value])).collect(),
        ));
    }
    combinations
}

/// Two pairs of an option's index and a value's index, with the smaller option first.
type Pair = ((usize, usize), (usize, usize));

/// Returns the pairs of a value with all chosen values.
fn met(chosen: &BTreeMap<usize, usize>, index: usize, value: usize) -> impl Iterator<Item = Pair> {
    let others = chosen.iter().filter(move |(other, _)| **other != index);
    others.map(move |(&other, &theirs)| {
        let (a, b) = ((index, value), (other, theirs));
        if a < b { (a, b) } else { (b, a) }
    })
}

impl Options {
    /// Switches off options whose needed option is off. Also replaces values that the backend or the guest does not
    /// support by the fixed values of this backend or guest.
    fn legal(mut self, backend: BackendKind, guest: GuestKind) -> Self {
        for factor in FACTORS {
            if factor.needs.is_some_and(|needed| !self.is_on(needed)) {
                self.0.insert(factor.name, "off");
            }
        }
        if backend == BackendKind::QemuTap {
            self.0.insert("tx_queue_size", QEMU_TX_QUEUE_SIZE_MAX);
        }
        if guest == GuestKind::Uml {
            self.0.extend(UML_FIXED);
        }
        self
    }

    fn value(&self, name: &str) -> &'static str {
        self.0.get(name).copied().unwrap_or_default()
    }

    fn is_on(&self, name: &str) -> bool {
        self.value(name) == "on"
    }

    /// Returns the names of the options that are off.
    pub fn off(&self) -> Vec<&'static str> {
        FACTORS.iter().filter(|factor| self.value(factor.name) == "off").map(|factor| factor.name).collect()
    }

    /// Returns the differences from a combination with all options on, for a line of output.
    pub fn name(&self) -> String {
        let off = self.off();
        let sizes = ["rx_queue_size", "tx_queue_size", "host_mtu"].map(|name| format!("{name}={}", self.value(name)));
        let without = if off.is_empty() { "everything on".to_owned() } else { format!("without {}", off.join(" ")) };
        format!("{} {without}", sizes.join(" "))
    }

    /// Returns the card's number of queue pairs: `pairs` with multiqueue, otherwise 1.
    pub fn queue_pairs(&self, pairs: u16) -> u16 {
        if self.is_on("mq") { pairs } else { 1 }
    }

    /// Returns the MTU, in bytes of the IP packet.
    pub fn mtu(&self) -> u16 {
        self.value("host_mtu").parse().unwrap_or(1500)
    }

    /// Formats the options for QEMU's `-device`.
    pub fn device_arguments(&self, pairs: u16, backend: BackendKind) -> String {
        let mut arguments: Vec<_> =
            FACTORS.iter().map(|factor| format!("{}={}", factor.name, self.value(factor.name))).collect();
        let interrupts = match backend {
            // The card needs a vector for each queue, for the configuration, and for the control queue.
            BackendKind::QemuTap => format!("vectors={}", 2 * self.queue_pairs(pairs) + 2),
            BackendKind::Offramp => NO_INTERRUPTS.to_owned(),
        };
        arguments.push(interrupts);
        arguments.push("host_ufo=off,guest_ufo=off".to_owned());
        arguments.join(",")
    }

    /// Checks the negotiated features against the offer. `features` has the format of sysfs: a digit per bit, bit 0
    /// first.
    pub fn check_negotiated(&self, features: &str) -> Vec<String> {
        let bits = features.trim().as_bytes();
        let mut wrong = Vec::new();
        for factor in FACTORS {
            let Some(bit) = factor.bit else { continue };
            let has = bits.get(bit) == Some(&b'1');
            if has != self.is_on(factor.name) {
                wrong.push(format!("feature {} ({bit}) is {}negotiated", factor.name, if has { "" } else { "not " }));
            }
        }
        wrong
    }

    /// Checks the output of `ethtool -k` against the offer.
    pub fn check_features(&self, ethtool: &str) -> Vec<String> {
        let shown = ethtool_features(ethtool);
        let mut wrong = Vec::new();
        let mut check = |name: &str, expected: bool| {
            if shown.get(name) != Some(&expected) {
                wrong.push(format!("ethtool shows {name} {:?}, expected {expected}", shown.get(name)));
            }
        };
        for factor in FACTORS {
            if let Some(name) = factor.ethtool {
                check(name, self.is_on(factor.name));
            }
        }
        check("rx-gro-hw", self.is_on("guest_tso4") || self.is_on("guest_tso6"));
        wrong
    }

    /// Checks the output of `ethtool -g` against the ring sizes.
    pub fn check_rings(&self, ethtool: &str) -> Vec<String> {
        let Some((_, now)) = ethtool.split_once("Current hardware settings:") else {
            return vec![format!("ethtool -g shows no ring sizes: {}", ethtool.trim())];
        };
        let size = |name: &str| now.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let rings = [("RX:", "rx_queue_size"), ("TX:", "tx_queue_size")];
        let wrong = rings.iter().filter(|(line, option)| size(line) != Some(self.value(option)));
        wrong
            .map(|(line, option)| format!("{option} is {}, ethtool shows {:?}", self.value(option), size(line)))
            .collect()
    }

    /// Checks the queues in sysfs against the number of queue pairs.
    pub fn check_queues(&self, names: &str, pairs: u16) -> Vec<String> {
        let count = |kind: &str| names.split_whitespace().filter(|name| name.starts_with(kind)).count();
        // A kernel for one processor lists no receive queues, because RPS needs several processors. Use the number of
        // transmit queues, which equals the number of receive queues.
        let found = Some(count("rx-")).filter(|found| *found > 0).unwrap_or_else(|| count("tx-"));
        let expected = usize::from(self.queue_pairs(pairs));
        if found == expected { Vec::new() } else { vec![format!("{found} queue pairs, expected {expected}")] }
    }

    /// Checks the interface's MTU against the offered MTU.
    pub fn check_mtu(&self, mtu: &str) -> Vec<String> {
        if mtu.trim() == self.value("host_mtu") {
            return Vec::new();
        }
        vec![format!("MTU {}, expected {}", mtu.trim(), self.value("host_mtu"))]
    }
}

/// Parses the output of `ethtool -k`: each line has a name and a state.
fn ethtool_features(text: &str) -> BTreeMap<&str, bool> {
    let state = |state: &str| match state.split_whitespace().next()? {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    };
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.filter_map(|(name, value)| Some((name.trim(), state(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything_on() -> Options {
        short(&[])
    }

    #[test]
    fn every_two_values_of_different_options_meet() {
        let combinations = pairwise();
        for (a, factor_a) in FACTORS.iter().enumerate() {
            for factor_b in FACTORS.iter().skip(a + 1) {
                for (x, y) in factor_a.values.iter().flat_map(|x| factor_b.values.iter().map(move |y| (x, y))) {
                    let meet =
                        |options: &Options| options.value(factor_a.name) == *x && options.value(factor_b.name) == *y;
                    assert!(combinations.iter().any(meet), "{}={x} {}={y}", factor_a.name, factor_b.name);
                }
            }
        }
        assert!(combinations.len() <= 24, "{} combinations", combinations.len());
    }

    #[test]
    fn nothing_is_offered_without_what_it_needs() {
        for options in combinations(true, BackendKind::Offramp, GuestKind::Qemu) {
            assert!(options.is_on("csum") || !options.is_on("host_tso4"));
            assert!(options.is_on("host_tso4") || !options.is_on("host_ecn"));
            assert!(options.is_on("guest_csum") || !(options.is_on("guest_tso6") || options.is_on("guest_ecn")));
        }
    }

    #[test]
    fn the_short_run_has_both_ring_formats_both_mtus_and_one_and_several_queues() {
        let short = combinations(false, BackendKind::Offramp, GuestKind::Qemu);
        assert_eq!(short.len(), SHORT.len());
        for name in ["packed", "mq", "mrg_rxbuf", "event_idx", "csum", "guest_csum"] {
            assert!(
                short.iter().any(|options| options.is_on(name)) && short.iter().any(|options| !options.is_on(name))
            );
        }
        assert!(short.iter().any(|options| options.mtu() == 9000));
    }

    #[test]
    fn a_feature_that_is_missing_or_too_many_is_reported() {
        let digits = |without: Option<usize>| -> String {
            let on = |bit| FACTORS.iter().any(|factor| factor.bit == Some(bit)) && Some(bit) != without;
            (0..64).map(|bit| if on(bit) { '1' } else { '0' }).collect()
        };
        assert!(everything_on().check_negotiated(&digits(None)).is_empty());
        assert_eq!(everything_on().check_negotiated(&digits(Some(34))), ["feature packed (34) is not negotiated"]);
        let split = short(&[("packed", "off")]);
        assert_eq!(split.check_negotiated(&digits(None)), ["feature packed (34) is negotiated"]);
        assert!(!everything_on().check_negotiated("").is_empty());
    }

    #[test]
    fn the_state_of_a_feature_is_read_with_and_without_fixed() {
        let text =
            "Features for eth0:\nrx-checksumming: on [fixed]\ntx-checksumming: on\n\ttx-checksum-ip-generic: off\n";
        let features = ethtool_features(text);
        assert_eq!(features.get("rx-checksumming"), Some(&true));
        assert_eq!(features.get("tx-checksum-ip-generic"), Some(&false));
        assert_eq!(features.len(), 3);
    }

    #[test]
    fn the_current_ring_sizes_count_not_the_largest() {
        let text = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t1024\nTX:\t\t1024\n\
                    Current hardware settings:\nRX:\t\t256\nTX:\t\t256\n";
        assert!(everything_on().check_rings(text).is_empty());
        assert_eq!(short(&[("rx_queue_size", "1024")]).check_rings(text).len(), 1);
    }

    #[test]
    fn queues_and_mtu_are_compared() {
        assert!(everything_on().check_queues("rx-0\nrx-1\ntx-0\ntx-1\n", 2).is_empty());
        assert_eq!(everything_on().check_queues("rx-0\ntx-0\n", 2).len(), 1);
        assert!(everything_on().check_mtu("1500\n").is_empty());
        assert_eq!(everything_on().check_mtu("9000\n").len(), 1);
    }
}

//! The experiments on an existing interface: for each experiment the switched features, the variants and the traffic.

use offramp_ports::sys::link::GSO_ONE_FRAME;
use offramp_testbed::device::{Change, DeviceError};
use offramp_testbed::error::TestbedError;

/// Features for segmentation of TCP by the adapter, over IPv4 and IPv6.
const TSO: &[&str] = &["tx-tcp-segmentation", "tx-tcp6-segmentation"];
/// Feature for segmentation by the host, just above the driver.
const GSO: &[&str] = &["tx-generic-segmentation"];
/// Features for transmit checksums. An adapter supports either the first feature, or the second and third feature.
const TX_CHECKSUM: &[&str] = &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];
/// Drivers of interfaces on top of other interfaces. If LRO is switched off on such an interface, the kernel switches
/// LRO off on all lower interfaces, and never restores LRO (`NETIF_F_UPPER_DISABLES`). The lab changes only the
/// interface named by the user, so the lab does not switch LRO on interfaces with these drivers.
const SPREADING_DRIVERS: &[&str] = &["bonding", "team", "bridge"];
/// The feature that [`SPREADING_DRIVERS`] propagate to lower interfaces.
const LRO: &str = "rx-lro";

/// The traffic while a variant is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    /// TCP to the peer.
    TcpSend,
    /// TCP from the peer.
    TcpReceive,
    /// UDP to the peer, with many datagrams per call (`UDP_SEGMENT`).
    UdpSend,
    /// UDP from the peer, with one datagram per read.
    UdpReceive,
}

impl Traffic {
    fn text(self) -> &'static str {
        match self {
            Self::TcpSend => "TCP to the peer",
            Self::TcpReceive => "TCP from the peer",
            Self::UdpSend => "UDP to the peer, many datagrams with each call",
            Self::UdpReceive => "UDP from the peer, one datagram with each call",
        }
    }

    /// Returns whether this machine sends.
    pub(super) fn sends(self) -> bool {
        matches!(self, Self::TcpSend | Self::UdpSend)
    }
}

/// One variant of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VariantPlan {
    /// Short name: the difference from other variants.
    pub name: &'static str,
    /// Settings that the variant changes.
    pub change: Change,
}

/// The plan of an experiment on the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Short name, as used with `--only`.
    pub name: &'static str,
    /// The question that the experiment answers, in one sentence.
    pub question: &'static str,
    /// Traffic of the experiment.
    pub traffic: Traffic,
    /// Features of the experiment that the interface can switch.
    pub features: Vec<&'static str>,
    /// Variants. The first variant is the base.
    pub variants: Vec<VariantPlan>,
    /// Description of the settings common to all variants.
    pub fixed: String,
    /// Caveats for the reader.
    pub notes: Vec<String>,
}

/// The definition of an experiment, independent of the interface.
struct Entry {
    name: &'static str,
    question: &'static str,
    features: &'static [&'static str],
    traffic: Traffic,
}

macro_rules! entries {
    ($($name:literal, $features:expr, $traffic:ident: $question:literal;)+) => {
        &[$(Entry { name: $name, question: $question, features: $features, traffic: Traffic::$traffic }),+]
    };
}

/// All experiments, in the order of a full run.
const ENTRIES: &[Entry] = entries! {
    "tso", TSO, TcpSend:
        "What is TCP segmentation by the adapter (TSO) worth on this interface?";
    "gso", GSO, TcpSend:
        "What is segmentation by the host (GSO) worth without segmentation by the adapter?";
    "tx-checksum", TX_CHECKSUM, TcpSend:
        "What is transmit checksum offload worth?";
    "sg", &["tx-scatter-gather"], TcpSend:
        "What is scatter-gather by the adapter worth?";
    "rx-checksum", &["rx-checksum"], TcpReceive:
        "What is receive checksum offload worth?";
    "gro", &["rx-gro"], TcpReceive:
        "What is receive coalescing by the host (GRO) worth?";
    "lro", &[LRO], TcpReceive:
        "What is receive coalescing by the adapter (LRO) worth?";
    "gro-hw", &["rx-gro-hw"], TcpReceive:
        "What is receive coalescing by the adapter under GRO's rules worth?";
    "uso", &["tx-udp-segmentation"], UdpSend:
        "What is UDP segmentation by the adapter (USO) worth?";
    "udp-gro", &["rx-udp-gro-forwarding"], UdpReceive:
        "What is GRO of forwarded UDP worth?";
};

/// Returns the names of all experiments, in the order of a full run.
pub fn experiments() -> impl Iterator<Item = &'static str> {
    ENTRIES.iter().map(|entry| entry.name)
}

/// Returns the experiments possible on an interface. `changeable` tells whether a feature can be switched.
/// `has_gso_limit` tells whether the host's segmentation limit can be set. `only` names experiments or features; an
/// empty list selects all experiments.
///
/// # Errors
/// Returns an error if `only` contains an unknown name, or if no experiment is possible.
pub(super) fn plans(
    interface: &str,
    driver: &str,
    changeable: &dyn Fn(&str) -> bool,
    has_gso_limit: bool,
    only: &[String],
) -> Result<Vec<Plan>, TestbedError> {
    if let Some(name) = only.iter().find(|name| !ENTRIES.iter().any(|entry| entry.is_named(name))) {
        let known = experiments().collect::<Vec<_>>().join(", ");
        return Err(TestbedError::UnknownExperiment { name: name.clone(), hint: String::new(), known });
    }
    let asked = || ENTRIES.iter().filter(|entry| only.is_empty() || only.iter().any(|name| entry.is_named(name)));
    let can = |feature: &str| changeable(feature) && !(feature == LRO && SPREADING_DRIVERS.contains(&driver));
    let plans: Vec<Plan> = asked().filter_map(|entry| entry.plan(&can, has_gso_limit)).collect();
    if plans.is_empty() {
        let asked = asked().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
        let (interface, driver) = (interface.to_owned(), driver.to_owned());
        return Err(DeviceError::NothingToChange { interface, driver, asked }.into());
    }
    Ok(plans)
}

impl Entry {
    /// Returns whether `name` is the short name of the experiment, or one of its features.
    fn is_named(&self, name: &str) -> bool {
        self.name == name || self.features.contains(&name)
    }

    /// Builds the plan. `None` if the interface can switch no feature of the experiment.
    fn plan(&self, can: &dyn Fn(&str) -> bool, has_gso_limit: bool) -> Option<Plan> {
        let of = |features: &[&'static str]| features.iter().copied().filter(|f| can(f)).collect::<Vec<_>>();
        let features = of(self.features);
        if features.is_empty() {
            return None;
        }
        let (tso, gso) = (of(TSO), of(GSO));
        let mut notes = Vec::new();
        let (variants, held) = match self.name {
            "tso" => (tso_variants(&tso, &gso, has_gso_limit), "the host's own segmentation off unless named"),
            "gso" => (gso_variants(&tso, &gso, has_gso_limit), "segmentation by the adapter off"),
            "tx-checksum" => (checksum_variants(&features, &tso), "all else as found"),
            _ => {
                (vec![variant("off", &[(&features, false)]), variant("on", &[(&features, true)])], "all else as found")
            }
        };
        if matches!(self.name, "tso" | "gso") {
            notes.push(host_gso_note(has_gso_limit).to_owned());
        }
        let fixed = format!("{}; {held}", self.traffic.text());
        Some(Plan { name: self.name, question: self.question, traffic: self.traffic, features, variants, fixed, notes })
    }
}

/// Returns the note on variant "off", for experiments in which the host could also segment.
fn host_gso_note(has_gso_limit: bool) -> &'static str {
    if has_gso_limit {
        "\"off\" also sets gso_max_segs to 1: TCP builds super-frames despite tx-generic-segmentation off, and only \
         this limit makes the host send single frames."
    } else {
        "The kernel refuses to set gso_max_segs on this interface, and TCP builds super-frames despite \
         tx-generic-segmentation off: \"off\" is a host that segments in software."
    }
}

fn variant(name: &'static str, parts: &[(&[&'static str], bool)]) -> VariantPlan {
    let features = parts.iter().flat_map(|(features, on)| features.iter().map(|feature| (*feature, *on))).collect();
    VariantPlan { name, change: Change { features, gso_segs_max: None } }
}

/// Limits the host to single frames. [`host_gso_note`] explains why switching off the segmentation feature is not
/// enough.
fn without_host_gso(mut variant: VariantPlan, has_gso_limit: bool) -> VariantPlan {
    variant.change.gso_segs_max = has_gso_limit.then_some(GSO_ONE_FRAME);
    variant
}

fn tso_variants(tso: &[&'static str], gso: &[&'static str], has_gso_limit: bool) -> Vec<VariantPlan> {
    vec![
        without_host_gso(variant("off", &[(tso, false), (gso, false)]), has_gso_limit),
        variant("on", &[(tso, true), (gso, false)]),
        variant("off, host GSO", &[(tso, false), (gso, true)]),
    ]
}

fn gso_variants(tso: &[&'static str], gso: &[&'static str], has_gso_limit: bool) -> Vec<VariantPlan> {
    vec![
        without_host_gso(variant("off", &[(tso, false), (gso, false)]), has_gso_limit),
        variant("on", &[(tso, false), (gso, true)]),
    ]
}

/// Returns the variants of the checksum experiment. Without checksum offload, the kernel also disables TCP segmentation
/// offload. The third variant separates the effects of the two offloads.
fn checksum_variants(checksum: &[&'static str], tso: &[&'static str]) -> Vec<VariantPlan> {
    let mut variants = vec![variant("off", &[(checksum, false)]), variant("on", &[(checksum, true)])];
    if !tso.is_empty() {
        variants.push(variant("on, TSO off", &[(checksum, true), (tso, false)]));
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(changeable: &[&str], driver: &str, only: &[&str]) -> Result<Vec<&'static str>, TestbedError> {
        let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
        let plans = plans("eth0", driver, &|feature| changeable.contains(&feature), true, &only)?;
        Ok(plans.iter().map(|plan| plan.name).collect())
    }

    #[test]
    fn only_what_can_be_changed_is_asked() {
        let changeable = ["tx-checksum-ipv4", "tx-checksum-ipv6", "rx-gro", "rx-lro"];
        assert_eq!(names(&changeable, "veth", &[]).unwrap(), ["tx-checksum", "gro", "lro"]);
        assert_eq!(names(&changeable, "veth", &["gro"]).unwrap(), ["gro"]);
        assert_eq!(names(&changeable, "veth", &["tx-checksum-ipv6"]).unwrap(), ["tx-checksum"]);
    }

    #[test]
    fn lro_that_the_kernel_would_take_from_other_interfaces_is_left_alone() {
        assert_eq!(names(&["rx-lro", "rx-gro"], "bonding", &[]).unwrap(), ["gro"]);
    }

    #[test]
    fn what_cannot_be_asked_is_refused_in_one_line() {
        let refused = |changeable: &[&str], only: &[&str]| names(changeable, "igb", only).unwrap_err().to_string();
        assert_eq!(
            refused(&["rx-gro"], &["tos"]),
            "no experiment \"tos\"; there are: tso, gso, tx-checksum, sg, rx-checksum, gro, lro, gro-hw, uso, udp-gro"
        );
        assert_eq!(
            refused(&["rx-gro"], &["tso", "sg"]),
            "none of the requested features (tso, sg) can be changed on interface \"eth0\" (driver igb)"
        );
    }

    #[test]
    fn tso_is_compared_with_a_host_that_sends_one_frame_at_a_time() {
        let can = |feature: &str| feature != "tx-tcp6-segmentation";
        let plans = plans("eth0", "igb", &can, true, &["tso".to_owned()]).unwrap();
        let [plan] = &plans[..] else { panic!("one plan") };
        assert_eq!(plan.features, ["tx-tcp-segmentation"]);
        let change =
            |segs, features: &[(&'static str, bool)]| Change { features: features.to_vec(), gso_segs_max: segs };
        let (tso, gso) = ("tx-tcp-segmentation", "tx-generic-segmentation");
        let changes: Vec<_> = plan.variants.iter().map(|variant| variant.change.clone()).collect();
        assert_eq!(
            changes,
            [
                change(Some(1), &[(tso, false), (gso, false)]),
                change(None, &[(tso, true), (gso, false)]),
                change(None, &[(tso, false), (gso, true)]),
            ]
        );
    }
}

//! The steps of the control-queue tests: commands, each with its expected effects.

use self::Expected::{
    Adapts, Arrives, Carrier, FramesPerInterrupt, LimitLoses, MostOnSecond, Negotiated, OftenInterrupted, OnePair,
    Pairs, Prints, Shown, StatisticsAgree, SuperFrames,
};

/// The guest's address.
pub const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x10];

/// The issuer of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Guest,
    /// The guest issues the command while the daemon is stopped for some seconds.
    GuestOfStopped,
    Host,
    /// The daemon's operator. The command contains the arguments after `offramp set vm0`.
    Operator,
}

/// An expected effect of a command.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// The driver has negotiated the given features.
    Negotiated(&'static [&'static str]),
    /// `offramp show --json` has the given JSON at the given path in the port's `control_queue`.
    Shown(&'static str, &'static str),
    /// The command prints a line with the given words.
    Prints(&'static str),
    /// Frames of many flows arrive on all of the given queue pairs, and on no other pair.
    Pairs(&'static [u16]),
    /// Frames of many flows between the same addresses all arrive on one pair.
    OnePair,
    /// More frames of many flows arrive on the second pair than on the first pair.
    MostOnSecond,
    /// Frames with the given destination arrive (true), or do not arrive (false).
    Arrives(Destination, bool),
    /// TCP segments arrive in super-frames (true), or one by one (false).
    SuperFrames(bool),
    /// The guest gets at least one interrupt per four frames.
    OftenInterrupted,
    /// The guest gets one interrupt per given number of frames.
    FramesPerInterrupt(u64),
    /// Under load, the driver changes its coalescing settings.
    Adapts,
    /// The guest's link is up (true) or down (false).
    Carrier(bool),
    /// The port's statistics equal the driver's own counts.
    StatisticsAgree,
    /// Frames to the guest are lost to the port's rate limit, and the guest reads the number of lost bytes.
    LimitLoses,
}

/// A command with its expected effects.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub by: By,
    pub line: &'static str,
    pub expected: &'static [Expected],
}

const fn guest(line: &'static str, expected: &'static [Expected]) -> Step {
    Step { by: By::Guest, line, expected }
}

const fn guest_of_stopped(line: &'static str, expected: &'static [Expected]) -> Step {
    Step { by: By::GuestOfStopped, line, expected }
}

const fn host(line: &'static str, expected: &'static [Expected]) -> Step {
    Step { by: By::Host, line, expected }
}

const fn operator(line: &'static str, expected: &'static [Expected]) -> Step {
    Step { by: By::Operator, line, expected }
}

/// The destination of a frame: an Ethernet address, and a VLAN if the frame is tagged.
pub type Destination = ([u8; 6], Option<u16>);

/// Destinations: all guests, the test guest, and addresses that the guest receives only on request.
pub const BROADCAST: Destination = ([0xff; 6], None);
pub const GUEST: Destination = (GUEST_MAC, None);
const OTHER: Destination = ([2, 0, 0, 0, 0, 0x55], None);
const GROUP: Destination = ([1, 0, 0x5e, 1, 2, 3], None);
const OTHER_GROUP: Destination = ([1, 0, 0x5e, 1, 2, 4], None);
const IN_VLAN: Destination = (GUEST_MAC, Some(5));

/// The features for the control queue and for the card's configuration. The driver does not accept `CTRL_RX_EXTRA`.
const FEATURES: &[&str] = &[
    "MAC",
    "STATUS",
    "MQ",
    "CTRL_VQ",
    "CTRL_RX",
    "CTRL_VLAN",
    "CTRL_MAC_ADDR",
    "CTRL_GUEST_OFFLOADS",
    "NOTF_COAL",
    "VQ_NOTF_COAL",
    "DEVICE_STATS",
    "RSS",
    "HASH_REPORT",
];

/// The initial receive offloads of a guest in QEMU, as JSON.
const ALL_OFFLOADS: &str = r#"["GUEST_CSUM", "GUEST_TSO4", "GUEST_TSO6", "GUEST_ECN", "GUEST_USO4", "GUEST_USO6"]"#;

/// Hashed packet types, as JSON.
const ALL_KINDS: &str = r#"["IPV4", "TCPV4", "UDPV4", "IPV6", "TCPV6", "UDPV6"]"#;
const ALL_BUT_UDPV4: &str = r#"["IPV4", "TCPV4", "IPV6", "TCPV6", "UDPV6"]"#;

/// Commands to set the Toeplitz key. The first key makes every hash 0. The second is Microsoft's key, with published
/// hash values.
const ZERO_KEY: &str = "ethtool -X eth0 hkey 00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:\
                        00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00";
const KEY: &str = "ethtool -X eth0 hkey 6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:\
                   ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa";

/// Steps that [`STEPS`] and [`USER_MODE_STEPS`] both contain.
const GROUP_LEFT: Step = guest("ip maddress del 01:00:5e:01:02:03 dev eth0", &[Arrives(GROUP, false)]);
const MACVLAN_ADDED: Step = guest(
    "ip link add macvlan0 link eth0 address 02:00:00:00:00:55 type macvlan && ip link set macvlan0 up",
    &[Shown("/filter/unicast_addresses", "1"), Arrives(OTHER, true)],
);
const MACVLAN_DELETED: Step =
    guest("ip link delete macvlan0", &[Shown("/filter/unicast_addresses", "0"), Arrives(OTHER, false)]);

/// All steps of a guest in QEMU, in order of execution.
pub const STEPS: &[Step] = &[
    guest(
        "ip link show dev eth0",
        &[
            Negotiated(FEATURES),
            Shown("/queue_pairs", "2"),
            Shown("/guest_offloads", ALL_OFFLOADS),
            Shown("/coalescing", "[null, null, null, null]"),
            Shown("/refused", "0"),
            Pairs(&[0, 1]),
        ],
    ),
    guest("ethtool -L eth0 combined 1", &[Shown("/queue_pairs", "1"), Pairs(&[0])]),
    guest("ethtool -L eth0 combined 2", &[Shown("/queue_pairs", "2"), Pairs(&[0, 1])]),
    guest("ethtool -X eth0 equal 1", &[Shown("/hash/unclassified", "0"), Pairs(&[0])]),
    guest("ethtool -X eth0 start 1 equal 1", &[Pairs(&[1])]),
    guest("ethtool -X eth0 weight 1 7", &[MostOnSecond]),
    guest("ethtool -X eth0 default", &[Pairs(&[0, 1])]),
    // The driver sends the hashed packet types only while `rxhash` is on.
    guest("ethtool -K eth0 rxhash on", &[Shown("/hash/types", ALL_KINDS), Pairs(&[0, 1])]),
    // Only addresses are hashed, and all flows of this test have the same addresses.
    guest("ethtool -N eth0 rx-flow-hash udp4 sd", &[Shown("/hash/types", ALL_BUT_UDPV4), OnePair]),
    guest("ethtool -N eth0 rx-flow-hash udp4 sdfn", &[Pairs(&[0, 1])]),
    // Without hashed packet types, all packets are received on the pair for unclassified packets.
    guest("ethtool -K eth0 rxhash off", &[Shown("/hash/types", "[]"), Pairs(&[0])]),
    guest("ethtool -K eth0 rxhash on", &[Pairs(&[0, 1])]),
    // With this key, every hash is 0.
    guest(ZERO_KEY, &[Pairs(&[0])]),
    guest(KEY, &[Pairs(&[0, 1])]),
    guest(
        "ethtool -x eth0",
        &[Prints(
            "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa",
        )],
    ),
    guest(
        "ethtool -C eth0 rx-usecs 0 rx-frames 1 tx-frames 1",
        &[Shown("/coalescing/0", r#"{"usecs": 0, "frames": 1}"#), OftenInterrupted],
    ),
    guest(
        "ethtool -C eth0 rx-usecs 1000000 rx-frames 16",
        &[
            Shown("/coalescing/0", r#"{"usecs": 1000000, "frames": 16}"#),
            Shown("/coalescing/2", r#"{"usecs": 1000000, "frames": 16}"#),
            FramesPerInterrupt(16),
        ],
    ),
    guest(
        "ethtool --per-queue eth0 queue_mask 0x2 --coalesce rx-usecs 50 rx-frames 8",
        &[
            Shown("/coalescing/0", r#"{"usecs": 1000000, "frames": 16}"#),
            Shown("/coalescing/2", r#"{"usecs": 50, "frames": 8}"#),
        ],
    ),
    guest(
        "ethtool -C eth0 rx-usecs 0 rx-frames 1",
        &[Shown("/coalescing/2", r#"{"usecs": 0, "frames": 1}"#), OftenInterrupted],
    ),
    guest("ethtool -C eth0 adaptive-rx on", &[Adapts]),
    guest(
        "ethtool -C eth0 adaptive-rx off rx-usecs 0 rx-frames 1",
        &[
            Shown("/coalescing/0", r#"{"usecs": 0, "frames": 1}"#),
            Shown("/coalescing/2", r#"{"usecs": 0, "frames": 1}"#),
        ],
    ),
    guest("ethtool -K eth0 rx-gro-hw off", &[Shown("/guest_offloads", r#"["GUEST_CSUM"]"#), SuperFrames(false)]),
    guest("ethtool -K eth0 rx-gro-hw on", &[Shown("/guest_offloads", ALL_OFFLOADS), SuperFrames(true)]),
    // An XDP program needs frames as on the wire, so the driver turns receive offloads off while the program is
    // attached.
    guest(
        "ip link set dev eth0 xdp obj /pass.o sec xdp",
        &[Shown("/guest_offloads", "[]"), SuperFrames(false), Pairs(&[0, 1])],
    ),
    guest("ip link set dev eth0 xdp off", &[Shown("/guest_offloads", ALL_OFFLOADS), SuperFrames(true)]),
    guest(
        "ip link show dev eth0",
        &[
            Shown("/filter/modes", "[]"),
            Shown("/filter/vlans", "[0]"),
            Arrives(OTHER, false),
            Arrives(GROUP, false),
            Arrives(IN_VLAN, false),
        ],
    ),
    guest(
        "ip link set eth0 promisc on",
        &[Shown("/filter/modes", r#"["promisc"]"#), Arrives(OTHER, true), Arrives(GROUP, true), Arrives(IN_VLAN, true)],
    ),
    guest("ip link set eth0 promisc off", &[Shown("/filter/modes", "[]"), Arrives(OTHER, false)]),
    guest(
        "ip link set eth0 allmulticast on",
        &[Shown("/filter/modes", r#"["allmulti"]"#), Arrives(GROUP, true), Arrives(OTHER, false)],
    ),
    guest("ip link set eth0 allmulticast off", &[Shown("/filter/modes", "[]"), Arrives(GROUP, false)]),
    guest(
        "ip maddress add 01:00:5e:01:02:03 dev eth0",
        &[Shown("/filter/unicast_addresses", "0"), Arrives(GROUP, true), Arrives(OTHER_GROUP, false)],
    ),
    GROUP_LEFT,
    MACVLAN_ADDED,
    MACVLAN_DELETED,
    guest(
        "ip link add eth0.5 link eth0 type vlan id 5 && ip link set eth0.5 up",
        &[Shown("/filter/vlans", "[0, 5]"), Arrives(IN_VLAN, true)],
    ),
    guest("ip link delete eth0.5", &[Shown("/filter/vlans", "[0]"), Arrives(IN_VLAN, false)]),
    guest(
        "ip link set eth0 address 02:00:00:00:00:55",
        &[Shown("/filter/mac", r#""02:00:00:00:00:55""#), Arrives(OTHER, true), Arrives(GUEST, false)],
    ),
    guest(
        "ip link set eth0 address 02:00:00:00:00:10",
        &[Shown("/filter/mac", r#""02:00:00:00:00:10""#), Arrives(OTHER, false)],
    ),
    // The port does not permit this address.
    guest(
        "! ip link set eth0 address 02:00:00:00:00:66",
        &[Shown("/refused", "1"), Shown("/filter/mac", r#""02:00:00:00:00:10""#)],
    ),
    // The first command ends at once, apparently because the driver sends the command from a separate thread. The
    // second command waits for its answer.
    guest_of_stopped(
        "ip link set eth0 promisc on && ethtool -C eth0 rx-usecs 50 rx-frames 8",
        &[
            Shown("/filter/modes", r#"["promisc"]"#),
            Shown("/coalescing/0", r#"{"usecs": 50, "frames": 8}"#),
            Shown("/refused", "1"),
            Arrives(OTHER, true),
        ],
    ),
    guest("ip link set eth0 promisc off", &[Shown("/filter/modes", "[]"), Arrives(OTHER, false)]),
    guest("ethtool -S eth0", &[StatisticsAgree]),
    operator("limit rx_frames_per_second=1 rx_burst_frames=1", &[LimitLoses]),
    operator("limit off", &[Arrives(GUEST, true)]),
    host("ip link set xtask0 down", &[Carrier(false)]),
    host("ip link set xtask0 up", &[Carrier(true)]),
    operator("link off", &[Carrier(false)]),
    operator("link on", &[Carrier(true), Arrives(GUEST, true)]),
];

/// The features negotiated by Linux 6.1 in User Mode Linux.
const USER_MODE_FEATURES: &[&str] =
    &["MAC", "STATUS", "CTRL_VQ", "CTRL_RX", "CTRL_VLAN", "CTRL_MAC_ADDR", "CTRL_GUEST_OFFLOADS", "NOTF_COAL"];

/// The initial receive offloads of Linux 6.1 in User Mode Linux, as JSON.
const USER_MODE_OFFLOADS: &str = r#"["GUEST_CSUM", "GUEST_TSO4", "GUEST_TSO6", "GUEST_ECN"]"#;

/// All steps of a guest in User Mode Linux, in order of execution. Where a command can print a setting, the step also
/// checks the printed setting.
pub const USER_MODE_STEPS: &[Step] = &[
    guest(
        "cat /sys/class/net/eth0/flags",
        &[
            Prints("0x1003"),
            Negotiated(USER_MODE_FEATURES),
            Shown("/guest_offloads", USER_MODE_OFFLOADS),
            Shown("/coalescing", "[null, null]"),
            Shown("/filter/modes", "[]"),
            Shown("/filter/vlans", "[0]"),
            Arrives(OTHER, false),
            Arrives(GROUP, false),
            Arrives(IN_VLAN, false),
        ],
    ),
    // Linux 6.1 refuses `tx-frames 0` while the interface is up, because 0 turns NAPI off for transmission.
    guest(
        "ethtool -C eth0 rx-usecs 0 rx-frames 1 tx-frames 1 && ethtool -c eth0",
        &[Prints("rx-frames: 1"), Shown("/coalescing/0", r#"{"usecs": 0, "frames": 1}"#), OftenInterrupted],
    ),
    guest(
        "ethtool -C eth0 rx-usecs 1000000 rx-frames 16 && ethtool -c eth0",
        &[
            Prints("rx-usecs: 1000000"),
            Prints("rx-frames: 16"),
            Shown("/coalescing/0", r#"{"usecs": 1000000, "frames": 16}"#),
            FramesPerInterrupt(16),
        ],
    ),
    guest(
        "ethtool -C eth0 rx-usecs 50 rx-frames 16 && ethtool -c eth0",
        &[Prints("rx-usecs: 50"), Shown("/coalescing/0", r#"{"usecs": 50, "frames": 16}"#)],
    ),
    // The coalescing settings of the previous step still apply.
    guest(
        "ethtool -K eth0 rx-gro-hw off && ethtool -k eth0",
        &[Prints("rx-gro-hw: off"), Shown("/guest_offloads", r#"["GUEST_CSUM"]"#), SuperFrames(false)],
    ),
    guest(
        "ethtool -K eth0 rx-gro-hw on && ethtool -k eth0",
        &[Prints("rx-gro-hw: on"), Shown("/guest_offloads", USER_MODE_OFFLOADS), SuperFrames(true)],
    ),
    guest(
        "ip link set eth0 promisc on && cat /sys/class/net/eth0/flags",
        &[
            Prints("0x1103"),
            Shown("/filter/modes", r#"["promisc"]"#),
            Arrives(OTHER, true),
            Arrives(GROUP, true),
            Arrives(IN_VLAN, true),
        ],
    ),
    guest(
        "ip link set eth0 promisc off && ip link set eth0 allmulticast on && cat /sys/class/net/eth0/flags",
        &[Prints("0x1203"), Shown("/filter/modes", r#"["allmulti"]"#), Arrives(GROUP, true), Arrives(OTHER, false)],
    ),
    guest(
        "ip link set eth0 allmulticast off && ip maddress add 01:00:5e:01:02:03 dev eth0 && ip maddress show dev eth0",
        &[
            Prints("link 01:00:5e:01:02:03 static"),
            Shown("/filter/modes", "[]"),
            Arrives(GROUP, true),
            Arrives(OTHER_GROUP, false),
        ],
    ),
    GROUP_LEFT,
    MACVLAN_ADDED,
    MACVLAN_DELETED,
    guest(
        "ip link add eth0.5 link eth0 type vlan id 5 && ip link set eth0.5 up && cat /proc/net/vlan/config",
        &[Prints("eth0.5 | 5 | eth0"), Shown("/filter/vlans", "[0, 5]"), Arrives(IN_VLAN, true)],
    ),
    guest("ip link delete eth0.5", &[Shown("/filter/vlans", "[0]"), Arrives(IN_VLAN, false)]),
    guest(
        "ip link set eth0 address 02:00:00:00:00:55 && cat /sys/class/net/eth0/address",
        &[
            Prints("02:00:00:00:00:55"),
            Shown("/filter/mac", r#""02:00:00:00:00:55""#),
            Arrives(OTHER, true),
            Arrives(GUEST, false),
        ],
    ),
    // The port does not permit this address.
    guest(
        "! ip link set eth0 address 02:00:00:00:00:66 && cat /sys/class/net/eth0/address",
        &[
            Prints("02:00:00:00:00:55"),
            Shown("/refused", "1"),
            Shown("/filter/mac", r#""02:00:00:00:00:55""#),
            Arrives(OTHER, true),
        ],
    ),
    operator("link off", &[Carrier(false)]),
    operator("link on", &[Carrier(true), Arrives(OTHER, true)]),
];

//! Compares the types of the control protocol with their documentation, `docs/control.md`.

use super::moderation::KEYS;
use super::*;
use crate::control::{CLIENTS_MAX, CLIENTS_OF_USER_MAX, LINE_TIME_MAX, REQUEST_LEN_MAX};
use RefusalCode::{
    BadAssociation, BadConfiguration, BadRequest, BadVersion, Busy, HostRefused, NotOpened, ReadOnly, UnknownFeature,
    UnknownPort, UnknownSwitch,
};
use offramp_adapter::stats::{Direction, Row};
use offramp_ports::vhost_user::guest_rows;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const DOCUMENT: &str = include_str!("../../../../docs/control.md");

/// Returns a status in which every field is set.
pub fn example() -> Status {
    let direction = DirectionStatus {
        rates: Some(Rates { frames_per_s: 1.0, bits_per_s: 1.0, lost_per_s: 0.0, interrupts_per_s: Some(1.0) }),
        ..(&Direction::default()).into()
    };
    let feature = FeatureStatus {
        name: "tso4".into(),
        ethtool: "tx-tcp-segmentation".into(),
        virtio: "HOST_TSO4".into(),
        ndis: "*LsoV2IPv4".into(),
        allowed: true,
        offered: false,
        negotiated: false,
        in_use: false,
        waits_for: Some(WaitsFor::Prerequisite),
    };
    let lost = direction.lost.clone();
    let queue = QueueStatus {
        index: 0,
        running: true,
        stalled: None,
        thread: 7,
        transmit: direction.clone(),
        receive: direction,
    };
    let port = PortStatus {
        name: "a".into(),
        host: HostStatus::Tap(TapStatus { interface: "t".into(), namespace: None }),
        wire: WireStatus::Cable { port: "b".into() },
        wire_running: true,
        wire_lost: Some(WireLost { transmit: lost.clone(), receive: lost }),
        mtu: 1500,
        wire_mtu: None,
        vlan: Some(10),
        vlans: vec!["100-199".into()],
        rx_usecs: 0,
        moderation: Some(moderation()),
        limit: Some(Limit::default()),
        link: Some(true),
        cpus: vec![1],
        ipsec: Some(associations()),
        features: vec![feature],
        queue_pairs: Some(1),
        queues: vec![queue],
    };
    let guest = PortStatus { host: guest(), wire: WireStatus::Switch { name: "lan".into() }, ..port.clone() };
    Status {
        offramp: "0".into(),
        process: 1,
        uptime_ns: 5,
        sandbox: None,
        ports: vec![port, guest],
        switches: vec![switch()],
    }
}

fn guest() -> HostStatus {
    HostStatus::VhostUser(GuestStatus {
        socket: "/s".into(),
        connected: true,
        virtio_features: vec!["CSUM".into()],
        ring_entries: vec![256, 256],
        memory_bytes: 4096,
        memory_touched_bytes: Some(4096),
        control_queue: Some(Box::new(ControlQueueStatus {
            queue_pairs: 1,
            guest_offloads: vec!["GUEST_CSUM".into()],
            coalescing: vec![Some(CoalescingStatus { usecs: 50, frames: 16 }), None],
            filter: FilterStatus { modes: Some(vec!["allmulti".into()]), ..FilterStatus::default() },
            hash: Some(HashStatus {
                types: vec!["TCPV4".into()],
                key: "6d5a".into(),
                reported: true,
                table: vec![1, 0],
                unclassified: Some(0),
            }),
            refused: 0,
        })),
        last_refusal: Some("x".into()),
        counters: guest_rows().map(|row| (row, 1)).collect(),
    })
}

fn switch() -> SwitchStatus {
    SwitchStatus {
        name: "lan".into(),
        ports: vec!["a".into()],
        mac_entries_max: 4096,
        age_seconds: 300,
        stations_known: Some(1),
        oldest_age_s: Some(7),
        newest_age_s: Some(7),
        stations: Some(vec![StationStatus {
            mac: "02:00:00:00:00:01".into(),
            vlan: Some(10),
            port: "a".into(),
            age_s: Some(7),
        }]),
        floods: FloodStatus { group_frames: 1, unknown_frames: 1, limited_frames: 1 },
        reserved: vec![ReservedStatus { address: "01:80:c2:00:00:0e".into(), forwarded: false, frames: 1 }],
    }
}

fn associations() -> IpsecStatus {
    let association = AssociationStatus {
        direction: "out".into(),
        spi: 0x1000,
        suite: "aes128gcm16".into(),
        mode: "transport".into(),
        source: None,
        destination: None,
        esn: false,
        replay_window: 64,
        state: "alive".into(),
        sequence: 1,
        packets: 1,
        bytes: 40,
        keepalives: 1,
        refused: [("bad_tag".to_owned(), 1)].into(),
    };
    IpsecStatus {
        policies: vec!["out bypass: protocol 58".to_owned()],
        library: "x".into(),
        transmit: "bypass".into(),
        receive: "discard".into(),
        associations: vec![association],
        events: vec!["x".into()],
    }
}

fn moderation() -> Moderation {
    Moderation::from_words(&["area".to_owned()]).unwrap()
}

fn events() -> Vec<EventKind> {
    let (port, switch, thread) = ("a".to_owned(), "s".to_owned(), 7);
    vec![
        EventKind::Connected { port: port.clone() },
        EventKind::Negotiated { port: port.clone(), virtio_features: vec![] },
        EventKind::Disconnected { port: port.clone(), reason: None },
        EventKind::LimitReached { port: port.clone(), direction: LimitDirection::Transmit },
        EventKind::LimitReached { port: port.clone(), direction: LimitDirection::Receive },
        EventKind::Stalled { thread, port: None },
        EventKind::Resumed { thread },
        EventKind::Gone { port: port.clone(), reason: String::new() },
        EventKind::PortAdded { port: port.clone() },
        EventKind::PortRemoved { port },
        EventKind::SwitchAdded { switch: switch.clone() },
        EventKind::SwitchRemoved { switch },
        EventKind::Set { port: "a".to_owned(), uid: Some(0), process: Some(1), settings: Box::default() },
        EventKind::Ended {},
        EventKind::Lost { events: 1 },
    ]
}

fn names(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.push(name.clone());
            names(value, found);
        }),
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

/// Returns a request of each kind.
fn requests() -> [Request; 9] {
    let (features, moderation, limit) = (BTreeMap::new(), Some(moderation()), Some(Limit::default()));
    let link = Some(false);
    let set = Request::Set { version: VERSION, port: "a".into(), features, moderation, limit, link };
    let show = Request::Show { version: VERSION, port: None, summary: true };
    let (port, direction, spi) = ("a".to_owned(), "in".to_owned(), 256);
    let key: KeyText = serde_json::from_str("\"00\"").unwrap();
    let sa: Box<SaKeys> = Box::default();
    let (source, toml, ports, switches) = Default::default();
    let come = Request::Add { version: VERSION, source, toml };
    let go = Request::Remove { version: VERSION, ports, switches };
    let add = Request::SaAdd { version: VERSION, port: port.clone(), sa: sa.clone(), key: key.clone() };
    let del = Request::SaDel { version: VERSION, port: port.clone(), direction: direction.clone(), spi };
    let grace_seconds = Some(1);
    let rekey = Request::SaRekey { version: VERSION, port, direction, spi, to: sa, key, grace_seconds };
    let monitor = Request::Monitor { version: VERSION };
    let capture = Request::Capture { version: VERSION, port: "a".into(), snaplen: 1, buffer_bytes: Some(65_536) };
    [set, show, monitor, capture, come, go, add, del, rekey]
}

#[test]
fn the_document_names_every_field_and_every_word_of_the_protocol() {
    let mut found = Vec::new();
    let answers = [
        Answer::new(Outcome::Status(Box::new(example()))),
        Answer::new(Outcome::Ipsec(Box::new(associations()))),
        Answer::new(Outcome::Changed(Changed {
            port: "a".into(),
            features: example().ports[0].features.clone(),
            moderation: None,
            limit: None,
            link: None,
        })),
        Answer::new(Outcome::Difference(Difference::default())),
        Answer::new(Outcome::Monitoring {}),
        Answer::new(Outcome::Capturing {}),
        Answer::refuse(RefusalCode::Busy, "x"),
    ];
    for answer in &answers {
        names(&serde_json::to_value(answer).unwrap(), &mut found);
    }
    // A request omits the field `features` if it is empty, as in this example.
    found.push("features".to_owned());
    found.extend(KEYS.iter().map(|(key, ..)| (*key).to_owned()));
    found.extend(limit::KEYS.iter().map(|key| key.name.to_owned()));
    for request in requests() {
        let value = serde_json::to_value(request).unwrap();
        found.push(value["request"].as_str().unwrap().to_owned());
        names(&value, &mut found);
    }
    for event in events() {
        let value = serde_json::to_value(Answer::new(Outcome::Event(Event { unix_ms: 1, event }))).unwrap();
        found.extend(["event", "direction"].iter().filter_map(|key| value["event"][key].as_str().map(str::to_owned)));
        names(&value, &mut found);
    }
    let codes = [
        BadAssociation,
        BadConfiguration,
        BadRequest,
        BadVersion,
        Busy,
        HostRefused,
        NotOpened,
        ReadOnly,
        UnknownFeature,
        UnknownPort,
        UnknownSwitch,
    ];
    let waits = [WaitsFor::Host, WaitsFor::Prerequisite, WaitsFor::Negotiation, WaitsFor::NoGuest, WaitsFor::Declined];
    let words = codes.iter().map(|code| serde_json::to_value(code).unwrap());
    let words = words.chain(waits.iter().map(|waits| serde_json::to_value(waits).unwrap()));
    found.extend(words.map(|word| word.as_str().unwrap().to_owned()));
    let missing: Vec<_> = found.iter().filter(|name| !DOCUMENT.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/control.md does not name {missing:?}");
    for limit in [
        REQUEST_LEN_MAX as u64,
        LINE_TIME_MAX.as_secs(),
        CLIENTS_MAX as u64,
        CLIENTS_OF_USER_MAX as u64,
        u64::from(SNAPLEN_MAX),
        u64::from(VERSION),
    ] {
        assert!(DOCUMENT.contains(&format!(" {limit}")), "docs/control.md does not name {limit}");
    }
}

/// Compares a table with the block `name` of a page below `docs/`. Writes the table into the page if `OFFRAMP_BLESS` is
/// set.
pub fn compare_table(page: &str, name: &str, rows: impl Iterator<Item = String>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(&format!("<!-- {name} -->\n")).unwrap();
    let (_, after) = rest.split_once(&format!("<!-- /{name} -->\n")).unwrap();
    let table: String = rows.map(|row| row + "\n").collect();
    let new = format!("{before}<!-- {name} -->\n\n{table}\n<!-- /{name} -->\n{after}");
    if std::env::var_os("OFFRAMP_BLESS").is_some() {
        fs::write(&file, new).unwrap();
    } else {
        assert_eq!(text, new, "OFFRAMP_BLESS=1 writes the table of docs/{page} again");
    }
}

#[test]
fn the_published_schema_is_that_of_the_types() {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<Status>();
    let new = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/show.schema.json");
    if std::env::var_os("OFFRAMP_BLESS").is_some() {
        fs::write(&file, new).unwrap();
    } else {
        assert_eq!(fs::read_to_string(&file).unwrap(), new, "OFFRAMP_BLESS=1 writes docs/show.schema.json again");
    }
}

#[test]
fn a_counter_of_a_table_is_in_the_protocol_and_on_its_page() {
    let sent = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let (status, names) = (serde_json::to_value(example()).unwrap(), |row: &Row| row.name.to_owned());
    let of_guest: Vec<_> = guest_rows().map(names).collect();
    let all = sent(&status["ports"][0]["queues"][0]["receive"]);
    assert!(Direction::ROWS.iter().map(names).all(|name| all.contains(&name)), "{all:?}");
    assert_eq!(BTreeSet::from_iter(sent(&status["ports"][1]["host"]["counters"])), BTreeSet::from_iter(of_guest));
    let table = |rows: Vec<&Row>| {
        let rows = rows.into_iter().map(|row| format!("| `{}` | {} |", row.name, row.help)).collect::<Vec<_>>();
        ["| counter | meaning |", "|---|---|"].map(str::to_owned).into_iter().chain(rows)
    };
    compare_table("control.md", "guest counters", table(guest_rows().collect()));
    compare_table("control.md", "direction counters", table(Direction::ROWS.iter().collect()));
}

#[test]
fn an_answer_reads_back_as_it_was_written() {
    let answer = Answer::new(Outcome::Status(Box::new(example())));
    let text = serde_json::to_string(&answer).unwrap();
    assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer);
}

#[test]
fn answers_of_the_first_daemon_that_had_this_protocol_can_be_read() {
    let recorded = include_str!("tests/first-answers.json");
    let answers: Vec<Answer> = recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [Outcome::Status(status), Outcome::Changed(changed)] = [&answers[0].outcome, &answers[1].outcome] else {
        panic!("a status and a change: {answers:?}")
    };
    let [vm0, b] = &status.ports[..] else { panic!("two ports") };
    let received = &vm0.queues[0].receive;
    assert_eq!((received.counts.get("frames_in"), received.lost["drop"]), (Some(6), 6));
    assert_eq!((received.counts.get("interrupts"), received.counts.get("drop")), (None, None), "not known is not none");
    assert!(vm0.wire_running && b.wire_running, "nothing is said to be gone");
    assert_eq!((&b.moderation, &b.ipsec, &b.limit, &changed.moderation), (&None, &None, &None, &None));
    assert_eq!((b.link, changed.link), (None, None));
}

#[test]
fn the_requests_of_the_document_are_requests() {
    let requests = DOCUMENT.lines().filter(|line| line.starts_with("{\"version\""));
    let requests: Vec<Request> = requests.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(matches!(
        &requests[..],
        [
            Request::Show { .. },
            Request::Monitor { .. },
            Request::Capture { snaplen: 128, .. },
            Request::Set { moderation: None, .. },
            Request::Set { moderation: Some(_), .. },
            Request::Set { moderation: Some(_), .. },
            Request::Set { limit: Some(_), .. },
            Request::Set { limit: Some(_), .. },
            Request::Set { link: Some(false), .. },
            Request::Add { .. },
            Request::Remove { .. },
            Request::SaAdd { .. },
            Request::SaRekey { .. },
            Request::SaDel { .. }
        ]
    ));
}

//! The rows of Microsoft's text on performance in network adapters. Its machines are nowhere disclosed: each row is an
//! ablation, one mechanism switched, on a host whose profile is printed with it.

use super::{Figures, Kind, Row};
use crate::bus::pci::shared::{Master, PACKET_LEN, SHARED_33_32 as SHARED, SharedBus, WRITER};
use crate::bus::pci::{self, PCI_33_32 as PCI33};
use crate::config::Workload;
use crate::profile::Profile;
use crate::rpc::tcp_payloads;
use crate::simulation::{ModelError, Outcome, run};

/// Percentage points by which a ratio may differ.
const RATIO_POINTS: f64 = 3.0;
const LAB: &str = "windows-lab";
const HOST: &str = "a server of one processor at 700 MHz that spends one cycle per bit (profile windows-lab)";
/// Clocks for which masters are run against each other.
const CYCLES: u64 = 1_000_000;
const MB: f64 = 1e6;
const BUS: &str = "PCI at 33 MHz and 32 bits; 20 clocks of overhead for a transaction, fitted to tecCHANNEL's bridge";

/// All rows of the family but M11.
pub(super) fn rows() -> Result<Vec<Row>, ModelError> {
    let lab = Profile::load(LAB)?;
    let plain = both(&lab)?;
    let mut rows = vec![m1(&lab, &plain)?];
    rows.extend(m2(&lab, &plain)?);
    rows.extend([m3(&lab)?, m4(&lab)?, m5(&lab)?, m6(&lab)?, m7()?]);
    rows.extend(m8(&lab)?);
    rows.extend([m9(&lab, &plain)?, m10(&lab)?, m12(), m13(&lab)?, m14(), m15(), m16(), m17(), m18(&lab)?, m19()]);
    rows.extend([m20(&lab, &plain)?, m21(&lab)?]);
    Ok(rows)
}

fn both(profile: &Profile) -> Result<Outcome, ModelError> {
    run(profile, Workload::TtcpBoth)
}

fn send(profile: &Profile) -> Result<Outcome, ModelError> {
    run(profile, Workload::TtcpSend)
}

/// One small call after the other.
fn calls(profile: &Profile) -> Result<Outcome, ModelError> {
    let profile = profile.clone().with("workload.rpc_size", "1KiB").with("workload.rpc_outstanding", "1");
    run(&profile, Workload::NfsRead)
}

/// Time of one call, microseconds.
fn call_us(outcome: &Outcome) -> f64 {
    outcome.seconds * 1e6 / outcome.counts.calls.max(1) as f64
}

/// How much more throughput the second has, percent.
fn gain(before: &Outcome, after: &Outcome) -> f64 {
    100.0 * (after.bytes_per_second / before.bytes_per_second - 1.0)
}

fn with(profile: &Profile, settings: &[(&str, &str)]) -> Profile {
    settings.iter().fold(profile.clone(), |profile, (key, value)| profile.with(key, value))
}

fn percent(part: &str, published: f64, modelled: f64) -> Figures {
    Figures { part: part.to_owned(), published, modelled, unit: "% more throughput" }
}

fn fitted(row: Row) -> Row {
    Row { kind: Kind::Fitted, ..row }
}

fn m1(lab: &Profile, plain: &Outcome) -> Result<Row, ModelError> {
    let offload = both(&with(lab, &[("adapter.checksum", "on")]))?;
    let assumption = format!("{HOST}, both ways at once");
    Ok(fitted(Row::points("M1", percent("", 19.0, gain(plain, &offload)), RATIO_POINTS, &assumption)))
}

fn m2(lab: &Profile, plain: &Outcome) -> Result<Vec<Row>, ModelError> {
    const NO_PATH: &[(&str, &str)] = &[("host.checksum_time", "0ns/byte")];
    const NO_MISS: &[(&str, &str)] = &[("host.checksum_miss_time", "0ns/byte")];
    let (path, cache) = (both(&with(lab, NO_PATH))?, both(&with(lab, NO_MISS))?);
    let assumption =
        format!("{HOST}; the path is three instructions for each 4 bytes, one in a cycle; the rest of M1 is the cache");
    let row = |part, value, outcome| Row {
        kind: Kind::Chosen,
        ..Row::points("M2", percent(part, value, gain(plain, outcome)), RATIO_POINTS, &assumption)
    };
    Ok(vec![row("path", 11.0, &path), row("cache", 8.0, &cache)])
}

/// Functions of the stack, with what switches each off.
const STACK: [(&str, &[(&str, &str)]); 5] = [
    ("checksum", &[("adapter.checksum", "on")]),
    ("TCP and IP receiving", &[("host.tcp_time", "0us")]),
    ("TCP and IP sending", &[("host.segment_time", "0us")]),
    ("acknowledgements", &[("host.ack_time", "0us"), ("host.ack_receive_time", "0us")]),
    ("driver", &[("host.frame_time", "0us"), ("host.completion_time", "0us")]),
];

fn m3(lab: &Profile) -> Result<Row, ModelError> {
    let mut shown = Vec::new();
    let mut is_costliest = true;
    for workload in [Workload::TtcpReceive, Workload::TtcpSend] {
        let plain = run(lab, workload)?;
        let gains = STACK.map(|(_, off)| run(&with(lab, off), workload).map(|outcome| gain(&plain, &outcome)));
        let gains = gains.into_iter().collect::<Result<Vec<_>, _>>()?;
        is_costliest &= gains[1..].iter().all(|gain| *gain < gains[0]);
        let list: Vec<_> = STACK.iter().zip(&gains).map(|((name, _), gain)| format!("{name} {gain:.1}")).collect();
        shown.push(format!("{}: {} %", workload.name(), list.join(", ")));
    }
    let cache = |workload| {
        Ok::<_, ModelError>(gain(
            &run(lab, workload)?,
            &run(&with(lab, &[("host.checksum_miss_time", "0ns/byte")]), workload)?,
        ))
    };
    let (receiving, sending) = (cache(Workload::TtcpReceive)?, cache(Workload::TtcpSend)?);
    let modelled =
        format!("gain without each: {}; of the cache {receiving:.1} receiving, {sending:.1} sending", shown.join("; "));
    let assumption = format!(
        "{HOST}; copying to the process is not counted as a function of the stack; 30 % of the cache lines that the checksum fetches spare the copy the wait"
    );
    Ok(Row::words(
        "M3",
        Kind::Predicted,
        modelled,
        "the checksum first; its cache part larger when sending",
        is_costliest && sending > receiving,
        &assumption,
    ))
}

fn m4(lab: &Profile) -> Result<Row, ModelError> {
    let gain_of = |workload, word: &str| {
        Ok::<_, ModelError>(gain(&run(lab, workload)?, &run(&with(lab, &[("adapter.checksum", word)]), workload)?))
    };
    let receiving = gain_of(Workload::TtcpReceive, "receive")?;
    let sending = gain_of(Workload::TtcpSend, "transmit")?;
    let proxy = gain_of(Workload::TtcpBoth, "on")? - gain_of(Workload::TtcpBoth, "transmit")?;
    let idle = with(lab, &[("workload.rate", "50Mbit/s")]);
    let on = [("adapter.checksum", "on")];
    let idle_gain = gain(&run(&idle, Workload::TtcpReceive)?, &run(&with(&idle, &on), Workload::TtcpReceive)?);
    let (before, after) = (call_us(&calls(lab)?), call_us(&calls(&with(lab, &on))?));
    let modelled = format!(
        "receiving {receiving:+.1} %, sending {sending:+.1} %, on top of sending where both are done {proxy:+.1} %; idle client \
         {idle_gain:+.1} %, a call {before:.1} to {after:.1} us"
    );
    let ok = (receiving - sending).abs() <= RATIO_POINTS && proxy > 0.0 && idle_gain.abs() < 0.5 && after < before;
    Ok(Row::words(
        "M4",
        Kind::Predicted,
        modelled,
        "equal within 3 points; none for the idle client, but a shorter call",
        ok,
        HOST,
    ))
}

fn m5(lab: &Profile) -> Result<Row, ModelError> {
    let (plain, large) = (send(lab)?, send(&with(lab, &[("adapter.lso", "on")]))?);
    let per_frame = |outcome: &Outcome| outcome.counts.bytes as f64 / (outcome.counts.frames_sent as f64);
    let per_send = |outcome: &Outcome| outcome.counts.bytes as f64 / outcome.counts.sends.max(1) as f64;
    let is_conserved = (1..=44).all(|count| tcp_payloads(count * 1460, 1460).len() as u64 == count);
    let modelled = format!(
        "bytes per frame {:.0} and {:.0}, bytes per send {:.0} and {:.0}, without and with",
        per_frame(&plain),
        per_frame(&large),
        per_send(&plain),
        per_send(&large)
    );
    let ok = is_conserved
        && (per_frame(&plain) / per_frame(&large) - 1.0).abs() < 0.01
        && per_send(&large) > 2.0 * per_send(&plain);
    Ok(Row::words(
        "M5",
        Kind::Structural,
        modelled,
        "as many frames on the wire, fewer sends",
        ok,
        "segmented by the adapter's own code",
    ))
}

fn m6(lab: &Profile) -> Result<Row, ModelError> {
    let gains = ["0us", "10us", "20us", "40us"].map(|time| {
        let plain = with(lab, &[("adapter.segment_time", time)]);
        Ok::<_, ModelError>(gain(&send(&plain)?, &send(&with(&plain, &[("adapter.lso", "on")]))?))
    });
    let gains = gains.into_iter().collect::<Result<Vec<_>, _>>()?;
    let shown: Vec<_> = gains.iter().map(|gain| format!("{gain:+.1}")).collect();
    let modelled = format!("{} % with 0, 10, 20, 40 us of the adapter's engine for each frame", shown.join(", "));
    let ok = gains[0] > 1.0 && gains[3].abs() < 1.0;
    Ok(Row::words(
        "M6",
        Kind::Predicted,
        modelled,
        "gains where the host is the limit, none where the adapter is",
        ok,
        HOST,
    ))
}

fn m7() -> Result<Row, ModelError> {
    const MOST: f64 = 9.0;
    let host = Profile::load("windows-business")?;
    let gained = gain(&send(&host)?, &send(&with(&host, &[("adapter.lso", "on")]))?);
    let assumption = "the same server with a third of its time for the network (profile windows-business), sending; an upper bound was published";
    Ok(Row::words(
        "M7",
        Kind::Predicted,
        format!("{gained:+.1} %"),
        "more than 0, at most 9 %",
        gained > 0.0 && gained <= MOST,
        assumption,
    ))
}

fn m8(lab: &Profile) -> Result<Vec<Row>, ModelError> {
    const PUBLISHED: f64 = 30.0;
    let of_share = |share: &str| {
        let host = with(lab, &[("adapter.ipsec", "host"), ("workload.encrypted", share)]);
        Ok::<_, ModelError>(gain(&both(&host)?, &both(&with(&host, &[("adapter.ipsec", "adapter")]))?))
    };
    let whole = of_share("100%")?;
    let miss = format!(
        "{HOST}; 140 cycles per byte for 3DES and SHA-1. Full encryption would gain much more than was published: \
         either few bytes were encrypted, or the adapter's own rate was the new limit, and neither is published"
    );
    let all = Row::points("M8", percent("all bytes encrypted", PUBLISHED, whole), RATIO_POINTS, &miss);
    let shares = ["0.5%", "1%", "2%", "4%"].map(of_share).into_iter().collect::<Result<Vec<_>, _>>()?;
    let rates = ["40Mbit/s", "50Mbit/s", "60Mbit/s"].map(|rate| {
        let host = with(lab, &[("adapter.ipsec", "host"), ("workload.time", "1s")]);
        let adapter = with(&host, &[("adapter.ipsec", "adapter"), ("adapter.crypt_rate", rate)]);
        Ok::<_, ModelError>(gain(&both(&host)?, &both(&adapter)?))
    });
    let rates = rates.into_iter().collect::<Result<Vec<_>, _>>()?;
    let list = |values: &[f64]| values.iter().map(|value| format!("{value:+.0}")).collect::<Vec<_>>().join(", ");
    let holds = |values: &[f64]| {
        values.first().is_some_and(|first| *first < PUBLISHED) && values.last().is_some_and(|last| *last > PUBLISHED)
    };
    let share = Row::words(
        "M8",
        Kind::Shown,
        format!("{} % with 0.5, 1, 2, 4 % of the bytes encrypted", list(&shares)),
        "30 % lies between",
        holds(&shares),
        "the share is not published; no number is chosen for it",
    );
    let rate = Row::words(
        "M8",
        Kind::Shown,
        format!("{} % with an adapter that encrypts 40, 50, 60 Mbit/s, all bytes encrypted", list(&rates)),
        "30 % lies between",
        holds(&rates),
        "the rate is not published; no number is chosen for it",
    );
    Ok(vec![all, share.of_part("explanation: part of the traffic"), rate.of_part("explanation: the adapter's rate")])
}

fn m9(lab: &Profile, plain: &Outcome) -> Result<Row, ModelError> {
    let moderated = both(&with(lab, &[("adapter.moderation", "fixed-gap"), ("adapter.interrupt_rate", "2000")]))?;
    let assumption = format!(
        "{HOST}, both ways at once; 2000 interrupts per second against one for each event; published is \"up to\""
    );
    Ok(fitted(Row::points("M9", percent("", 9.0, gain(plain, &moderated)), RATIO_POINTS, &assumption)))
}

fn m10(lab: &Profile) -> Result<Row, ModelError> {
    let policies: [(&str, &[(&str, &str)]); 4] = [
        ("off", &[]),
        ("8000/s", &[("adapter.moderation", "fixed-gap"), ("adapter.interrupt_rate", "8000")]),
        ("2000/s", &[("adapter.moderation", "fixed-gap"), ("adapter.interrupt_rate", "2000")]),
        ("quiet-or-area", &[("adapter.moderation", "quiet-or-area")]),
    ];
    let mut shown = Vec::new();
    let (mut latencies, mut speeds) = (Vec::new(), Vec::new());
    for (name, settings) in policies {
        let profile = with(lab, settings);
        let (latency, speed) = (call_us(&calls(&profile)?), both(&profile)?.bytes_per_second / MB);
        shown.push(format!("{name}: {latency:.0} us a call, {speed:.1} MB/s"));
        latencies.push(latency);
        speeds.push(speed);
    }
    let ok = latencies[1] > latencies[0] && latencies[2] > latencies[1] && speeds[2] > speeds[0];
    let is_dynamic_better = latencies[3] < latencies[2] / 2.0 && speeds[3] > speeds[0];
    Ok(Row::words(
        "M10",
        Kind::Predicted,
        shown.join("; "),
        "longer gaps: more throughput, longer calls; a dynamic rule has both",
        ok && is_dynamic_better,
        HOST,
    ))
}

fn m12() -> Row {
    let bursts = [64, 128, 256, 512, 1516];
    let share = |burst| 100.0 * PCI33.bytes_per_second(burst) as f64 / PCI33.bytes_per_second_max() as f64;
    let shown: Vec<_> = bursts.iter().map(|&burst| format!("{:.0}", share(burst))).collect();
    let (to, beyond) = (share(256) - share(64), share(1024) - share(256));
    let modelled = format!("{} % of the bus in bursts of 64, 128, 256, 512, 1516 bytes", shown.join(", "));
    let ok = share(256) > 70.0 && to > 1.5 * beyond;
    Row::words("M12", Kind::Predicted, modelled, "the knee near 256 bytes: more gained up to it than beyond", ok, BUS)
}

fn m13(lab: &Profile) -> Result<Row, ModelError> {
    let one = PCI33.bytes_per_second(PACKET_LEN) as f64 / PCI33.bytes_per_second(256) as f64;
    let held = with(lab, &[("link.rate", "100Mbit/s")]);
    let through = with(&held, &[("adapter.cut_through", "256byte")]);
    let (held, through) = (call_us(&calls(&held)?), call_us(&calls(&through)?));
    let modelled = format!(
        "one transaction for a packet brings {:.0} % over bursts of 256 bytes; a call of 1 KiB at 100 Mbit/s takes {held:.1} us if the adapter stores each frame whole before it forwards it, {through:.1} us if not",
        100.0 * (one - 1.0)
    );
    Ok(Row::words(
        "M13",
        Kind::Structural,
        modelled,
        "more throughput; a shorter call without holding back",
        one > 1.0 && through < held,
        BUS,
    ))
}

fn m14() -> Row {
    let [padded, stub] = [true, false].map(|is_padded| PCI33.clocks_of_tail(PACKET_LEN, 32, is_padded));
    let modelled = format!("{PACKET_LEN} bytes: {padded} clocks padded to 32, {stub} with a short transfer behind");
    Row::words("M14", Kind::Structural, modelled, "padded is shorter", padded < stub, BUS)
}

fn moved_mb(master: &Master) -> f64 {
    SHARED.run(&[*master], CYCLES)[0].bytes as f64 * PCI33.clock_hz as f64 / CYCLES as f64 / MB
}

fn m15() -> Row {
    let speeds = [pci::Command::Read, pci::Command::ReadLine, pci::Command::ReadMultiple]
        .map(|command| moved_mb(&Master { command, ..WRITER }));
    let modelled = format!("reading {:.1}, {:.1}, {:.1} MB/s with MR, MRL, MRM", speeds[0], speeds[1], speeds[2]);
    let ok = speeds[0] < speeds[1] && speeds[1] < speeds[2];
    let assumption = format!(
        "{BUS}; the bridge fetches two words, a line of 32 bytes, or up to 4 KiB, 12 clocks after it was asked"
    );
    Row::words("M15", Kind::Structural, modelled, "each more than the one before", ok, &assumption)
}

fn m16() -> Row {
    const FETCH_CYCLES: u64 = 120;
    let slow = SharedBus { fetch_cycles: FETCH_CYCLES, ..SHARED };
    let beside = |retry_cycles| {
        let writer = Master { burst_len: 64, ..WRITER };
        let reader = Master { command: pci::Command::ReadLine, retry_cycles, ..WRITER };
        let counts = slow.run(&[writer, reader], CYCLES);
        let per_read = counts[1].retries as f64 / counts[1].transactions.max(1) as f64;
        (counts[0].bytes as f64, counts[1].bytes as f64, per_read)
    };
    let (hasty, patient) = (beside(0), beside(FETCH_CYCLES));
    let more = |before: f64, after: f64| 100.0 * (after / before - 1.0);
    let modelled = format!(
        "{:.1} retries for each read if it is tried again at once, {:.1} after {FETCH_CYCLES} clocks; the other master then moves \
         {:+.0} %, the reader {:+.0} %",
        hasty.2,
        patient.2,
        more(hasty.0, patient.0),
        more(hasty.1, patient.1)
    );
    let ok = patient.2 < hasty.2 && patient.0 > hasty.0;
    let assumption = "a bridge that needs 120 clocks to fetch; reads of a line beside writes in bursts of 64 bytes";
    Row::words("M16", Kind::Predicted, modelled, "fewer retries, more for the other master", ok, assumption)
}

fn m17() -> Row {
    let beside = |master: Master| {
        let counts = SHARED.run(&[WRITER, master], CYCLES);
        counts[0].bytes + counts[1].bytes
    };
    let waiting = beside(Master { wait_states: 3, ..WRITER });
    let leaving = beside(Master { wait_states: 3, disconnect_len: Some(256), ..WRITER });
    let one = beside(Master { wait_states: 1, ..WRITER });
    let more = |bytes: u64| 100.0 * (bytes as f64 / waiting as f64 - 1.0);
    let modelled = format!(
        "against 3 wait states kept: {:+.0} % on the bus with 1, {:+.0} % if the master disconnects instead",
        more(one),
        more(leaving)
    );
    Row::words(
        "M17",
        Kind::Predicted,
        modelled,
        "both more",
        one > waiting && leaving > waiting,
        "two masters that write packets; the one that waits comes back with 256 bytes at once",
    )
}

fn m18(lab: &Profile) -> Result<Row, ModelError> {
    let posted = send(lab)?;
    let port = send(&with(lab, &[("host.register_time", "1us")]))?;
    let modelled = format!("{:+.1} % throughput with ports", gain(&posted, &port));
    let assumption = format!(
        "{HOST}, sending; a posted write of 0.1 us against a port access of 1 us for which the processor waits"
    );
    Ok(Row::words(
        "M18",
        Kind::Predicted,
        modelled,
        "less",
        port.bytes_per_second < posted.bytes_per_second,
        &assumption,
    ))
}

fn m19() -> Row {
    let beside = |other| SHARED.run(&[WRITER, other], CYCLES)[0].bytes as f64;
    let good = beside(WRITER);
    let bad = beside(Master { burst_len: 32, wait_states: 3, ..WRITER });
    let modelled = format!(
        "a card moves {:+.0} % when the other one has 3 wait states and bursts of 32 bytes",
        100.0 * (bad / good - 1.0)
    );
    let packets = |other: Master| SHARED.run(&[WRITER, other], CYCLES)[1].bytes;
    let all = |other: Master| SHARED.run(&[WRITER, other], CYCLES).iter().map(|counts| counts.bytes).sum::<u64>();
    let ill = Master { burst_len: 32, wait_states: 3, ..WRITER };
    let modelled = format!("{modelled}; both together {:+.0} %", 100.0 * (all(ill) as f64 / all(WRITER) as f64 - 1.0));
    Row::words(
        "M19",
        Kind::Predicted,
        modelled,
        "less for all together",
        all(ill) < all(WRITER) && packets(ill) < packets(WRITER),
        BUS,
    )
}

fn m20(lab: &Profile, plain: &Outcome) -> Result<Row, ModelError> {
    let jumbo =
        with(lab, &[("workload.mss", "8960byte"), ("adapter.buffer", "16KiB"), ("host.read_chunk", "8960byte")]);
    let outcome = both(&jumbo)?;
    let rate = [("workload.rate", "200Mbit/s")];
    let busy = |profile| Ok::<_, ModelError>(run(&with(profile, &rate), Workload::TtcpReceive)?.cpu_percent);
    let (small, large) = (busy(lab)?, busy(&jumbo)?);
    let assumption = format!(
        "{HOST}, both ways at once; at 400 Mbit/s to it the processor is busy {small:.0} % with small frames, {large:.0} % with large ones"
    );
    let row = Row::points("M20", percent("", 20.0, gain(plain, &outcome)), RATIO_POINTS, &assumption);
    Ok(Row { ok: row.ok.map(|ok| ok && large < small), ..row })
}

fn m21(lab: &Profile) -> Result<Row, ModelError> {
    let jumbo = with(lab, &[("workload.mss", "8960byte"), ("workload.rate", "200Mbit/s")]);
    let busy = |buffer| {
        let outcome = run(&with(&jumbo, &[("adapter.buffer", buffer)]), Workload::TtcpReceive)?;
        Ok::<_, ModelError>(outcome.counts.bus_busy[0].as_us() / outcome.counts.frames_arrived.max(1) as f64)
    };
    let (pages, whole) = (busy("512byte")?, busy("16KiB")?);
    let modelled =
        format!("{pages:.2} us of the bus for a frame of 9 kB in buffers of 512 bytes, {whole:.2} us in one");
    Ok(Row::words(
        "M21",
        Kind::Structural,
        modelled,
        "less when aggregated",
        whole < pages,
        "a descriptor of 16 bytes for each buffer, four at once; PCI at 66 MHz and 64 bits",
    ))
}

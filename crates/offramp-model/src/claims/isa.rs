//! The rows of the Ethernet HOWTO: ISA cards with a DP8390 at 10 Mbit/s.

use super::{Figures, Kind, Row};
use crate::config::{Config, Workload};
use crate::profile::Profile;
use crate::rpc::reply_frames;
use crate::simulation::{ModelError, Outcome, run};
use crate::tcp::{Sender, SenderConfig, Variant};
use crate::time::{Span, Time};
use offramp_adapter::port::Arrival;
use offramp_impair::memory::{Fate, Memory, MemoryConfig};

/// The clocks of I7 with what was published, in KiB per second, and whether the row was fitted.
const BUS_SPEEDS: [(&str, f64, Kind); 4] = [
    ("6.7MHz", 740.0, Kind::Fitted),
    ("13.4MHz", 970.0, Kind::Predicted),
    ("20MHz", 1030.0, Kind::Predicted),
    ("26.7MHz", 1075.0, Kind::Fitted),
];
/// Rows of throughput of I7 keep within this, percent.
const I7_PERCENT: f64 = 5.0;
/// Predicted throughput keeps within this, percent.
const THROUGHPUT_PERCENT: f64 = 15.0;
/// A factor of collapse keeps within this factor.
const COLLAPSE_WITHIN: f64 = 2.0;
/// A full frame without FCS, bytes.
const FULL_FRAME_LEN: usize = 1514;
/// Ceiling of TCP payload at 10 Mbit/s with an acknowledgement for every second segment, bytes per second.
const TCP_CEILING: f64 = 1_155_000.0;
const KIB: f64 = 1024.0;

/// All rows of the family.
pub(super) fn rows() -> Result<Vec<Row>, ModelError> {
    let mut rows = vec![i1()?, i2()?, i3()?, i4()?, i5()?, i6()?];
    rows.extend(i7()?);
    rows.extend([i8()?, i9()?, i10()?, i11(), i12()?, i13()?, i14()?, i15()?, i16()?]);
    rows.extend(i17()?);
    rows.extend([i18()?, i19()?, i20()?]);
    Ok(rows)
}

fn ttcp(profile: &Profile) -> Result<Outcome, ModelError> {
    run(profile, Workload::TtcpReceive)
}

fn nfs(profile: &Profile, size: &str) -> Result<Outcome, ModelError> {
    run(&profile.clone().with("workload.rpc_size", size), Workload::NfsRead)
}

/// Full frames that a card of `card_bytes` holds while nobody reads them out.
fn frames_held(card_bytes: usize) -> Result<u64, ModelError> {
    let mut memory = Memory::new(&MemoryConfig::dp8390(card_bytes)?);
    let mut held = 0;
    while memory.arrive(Arrival { at_ns: held, len: FULL_FRAME_LEN }) != Fate::Dropped {
        held += 1;
    }
    Ok(held)
}

fn i1() -> Result<Row, ModelError> {
    let fast = Profile::load("486-wd8003e")?.with("host.cost_scale", "0.1%").with("bus.clock", "1GHz");
    let outcome = nfs(&fast.with("peer.gap", "9.6us"), "8KiB")?;
    let modelled = format!("{} of {} frames lost, read out at once", outcome.lost(), outcome.counts.frames_arrived);
    let ok = outcome.lost() == 0 && outcome.counts.frames_arrived > 0;
    Ok(Row::words(
        "I1",
        Kind::Structural,
        modelled,
        "none lost",
        ok,
        "the host is made so fast that only the wire counts",
    ))
}

fn i2() -> Result<Row, ModelError> {
    let base = Profile::load("486-3c503")?;
    let dropping = ttcp(&base.clone().with("adapter.overflow", "drop"))?.counts;
    let overrunning = ttcp(&base.with("adapter.overflow", "overrun"))?.counts;
    let modelled = format!(
        "drop: {} dropped, {} overrun; overrun: {} dropped, {} overrun",
        dropping.dropped, dropping.overrun, overrunning.dropped, overrunning.overrun
    );
    let ok = dropping.dropped > 0 && dropping.overrun == 0 && overrunning.overrun > 0 && overrunning.dropped == 0;
    Ok(Row::words("I2", Kind::Structural, modelled, "each rule counts its own", ok, "the load of I13"))
}

/// The factor that a window of 32 KiB costs against one of 4 KiB, over what is not known of the sender, sorted.
fn collapses(variants: &[&str]) -> Result<Vec<f64>, ModelError> {
    let base = Profile::load("486-3c503")?.with("workload.time", "60s");
    let mut factors = Vec::new();
    for variant in variants {
        for rto in ["200ms", "500ms", "1s"] {
            for recover in ["1.6ms", "10ms"] {
                let sender = base.clone().with("peer.tcp", variant).with("peer.rto_min", rto);
                let system = sender.with("adapter.recover_time", recover);
                let small = ttcp(&system.clone().with("host.receive_window", "4KiB"))?;
                let large = ttcp(&system)?;
                factors.push(small.bytes_per_second / large.bytes_per_second.max(1.0));
            }
        }
    }
    factors.sort_by(f64::total_cmp);
    Ok(factors)
}

fn i3() -> Result<Row, ModelError> {
    const PUBLISHED: f64 = 5.0;
    let factors = collapses(&["go-back-n"])?;
    let later = collapses(&["tahoe", "reno"])?;
    let (least, median, most) = (factors[0], factors[factors.len() / 2], factors[factors.len() - 1]);
    let modelled = format!("factor {median:.1} (ensemble {least:.1} to {most:.1})");
    let ok = (PUBLISHED / COLLAPSE_WITHIN..=PUBLISHED * COLLAPSE_WITHIN).contains(&median);
    let assumption = format!(
        "median over the sender's shortest timeout (0.2, 0.5, 1 s) and the card's recovery (1.6, 10 ms); a sender without congestion control, as for I13: with Tahoe or Reno the factor is {:.2} to {:.2}. \
         How much of its window the old sender sends again is not published",
        later[0],
        later[later.len() - 1]
    );
    Ok(Row {
        error: Some(100.0 * (median / PUBLISHED - 1.0)),
        ..Row::words("I3", Kind::Predicted, modelled, "within a factor of 2", ok, &assumption)
    })
}

fn i4() -> Result<Row, ModelError> {
    let held = [8, 16, 32, 64].map(|kib| frames_held(kib * 1024));
    let held = held.into_iter().collect::<Result<Vec<_>, _>>()?;
    let modelled = format!("{held:?} full frames in 8, 16, 32, 64 KiB");
    let ok = held.windows(2).all(|pair| pair[0] < pair[1]);
    Ok(Row::words("I4", Kind::Structural, modelled, "grows with the memory", ok, ""))
}

fn i5() -> Result<Row, ModelError> {
    let held = frames_held(8192)?;
    Ok(Row::words("I5", Kind::Structural, format!("{held} full frames"), "3 exactly", held == 3, ""))
}

fn i6() -> Result<Row, ModelError> {
    let fast = ttcp(&Profile::load("486-wd8003ep")?)?;
    let slow = ttcp(&Profile::load("386-wd8003ep")?)?;
    let modelled = format!(
        "486DX-40: {} lost at {:.0} KiB/s; 386SX-16: {} lost at {:.0} KiB/s",
        fast.lost(),
        fast.kib_per_second,
        slow.lost(),
        slow.kib_per_second
    );
    let assumption = "the WD8003EP without wait states at 8 MHz; the 386SX-16 five times slower than the 486DX-40";
    Ok(Row::words("I6", Kind::Predicted, modelled, "none lost", fast.lost() + slow.lost() == 0, assumption))
}

fn i7() -> Result<Vec<Row>, ModelError> {
    let base = Profile::load("486-wd8003ep")?.with("workload.time", "30s");
    let assumption =
        "kB is 1024 bytes, as ttcp prints it; 3 bus cycles per byte, 4/3 of that for the controller's share";
    let row = |(clock, published, kind): (&str, f64, Kind)| {
        let outcome = ttcp(&base.clone().with("bus.clock", clock))?;
        let part = format!("{clock}, processor {:.0} %", outcome.cpu_percent);
        let figures = Figures { part, published, modelled: outcome.kib_per_second, unit: "KiB/s" };
        Ok(Row::figure("I7", kind, figures, I7_PERCENT, assumption))
    };
    BUS_SPEEDS.into_iter().map(row).collect()
}

fn i8() -> Result<Row, ModelError> {
    const PUBLISHED: f64 = 1075.0;
    let fast = Profile::load("486-wd8003ep")?.with("bus.clock", "26.7MHz").with("host.cost_scale", "20%");
    let outcome = ttcp(&fast)?;
    let figures = Figures {
        part: "a host five times as fast".to_owned(),
        published: PUBLISHED,
        modelled: outcome.kib_per_second,
        unit: "KiB/s",
    };
    let assumption = "the sender's gap, which is fitted to the same figure of I7, is the limit";
    let row = Row::figure("I8", Kind::Fitted, figures, THROUGHPUT_PERCENT, assumption);
    let is_below = outcome.bytes_per_second < TCP_CEILING;
    Ok(Row { ok: row.ok.map(|ok| ok && is_below), target: format!("{}, below 1155 kB/s", row.target), ..row })
}

fn i9() -> Result<Row, ModelError> {
    let base = Profile::load("486-wd8003ep")?;
    let warns = |clock| {
        let profile = base.clone().with("bus.clock", clock);
        profile.value("bus.clock") > profile.value("bus.reliable_clock")
    };
    let ok = !warns("8MHz") && !warns("13MHz") && warns("13.4MHz");
    let modelled = "a run above 13 MHz is marked".to_owned();
    Ok(Row::words(
        "I9",
        Kind::Shown,
        modelled,
        "marked above, not below",
        ok,
        "the model does not fail where hardware does",
    ))
}

fn i10() -> Result<Row, ModelError> {
    let base = Profile::load("486-wd8003ep")?.with("workload.rate", "4Mbit/s");
    let outcomes = BUS_SPEEDS.map(|(clock, _, _)| ttcp(&base.clone().with("bus.clock", clock)));
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    let shares: Vec<_> = outcomes.iter().map(|outcome| format!("{:.1}", outcome.cpu_percent)).collect();
    let modelled = format!("{} % of the processor at 488 KiB/s", shares.join(", "));
    let falls = outcomes.windows(2).all(|pair| pair[1].cpu_percent < pair[0].cpu_percent);
    let (first, last) = (&outcomes[0], &outcomes[outcomes.len() - 1]);
    let is_equal = (first.bytes_per_second / last.bytes_per_second - 1.0).abs() < 0.01;
    Ok(Row::words(
        "I10",
        Kind::Predicted,
        modelled,
        "falls with the clock",
        falls && is_equal,
        "a sender held at 4 Mbit/s",
    ))
}

fn i11() -> Row {
    const WINDOW: u64 = 32 * 1024;
    let mut sender = Sender::new(SenderConfig {
        mss: 1460,
        variant: Variant::GoBackN,
        rto_min: Span::us(1_000_000),
        initial_window_segments: 1,
        window: WINDOW,
    });
    let sent: Vec<_> = std::iter::from_fn(|| sender.next(Time::START, 1460)).map(|segment| segment.len).collect();
    let bytes: u64 = sent.iter().sum();
    let modelled = format!("{bytes} bytes in {} frames before any acknowledgement", sent.len());
    Row::words("I11", Kind::Structural, modelled, "the whole window", bytes == WINDOW, "a sender without slow start")
}

fn i12() -> Result<Row, ModelError> {
    let base = Profile::load("486-3c503")?;
    let local = ttcp(&base)?;
    let routed = ttcp(&base.with("link.hop_rate", "1544kbit/s"))?;
    let modelled = format!("{} lost on the local net, {} behind the router", local.lost(), routed.lost());
    let ok = local.lost() > 0 && routed.lost() == 0;
    Ok(Row::words("I12", Kind::Predicted, modelled, "some, and none", ok, "a line of 1.544 Mbit/s behind the router"))
}

fn i13() -> Result<Row, ModelError> {
    let base = Profile::load("486-3c503")?;
    let small = ttcp(&base.clone().with("host.receive_window", "4KiB"))?;
    let large = ttcp(&base)?;
    let modelled = format!(
        "4 KiB: {:.0} KiB/s, {} lost; 32 KiB: {:.0} KiB/s, {} lost",
        small.kib_per_second,
        small.lost(),
        large.kib_per_second,
        large.lost()
    );
    let ok = small.lost() == 0 && large.lost() > 0 && large.bytes_per_second * 2.0 < small.bytes_per_second;
    let assumption =
        "a sender without congestion control; 8 cycles per byte: standard cycles, 4/3 for the controller's share";
    Ok(Row::words("I13", Kind::Predicted, modelled, "none lost at 4 KiB, halved at least at 32 KiB", ok, assumption))
}

fn i14() -> Result<Row, ModelError> {
    let profile = Profile::load("486-3c503")?.with("workload.warmup", "0s");
    let counts = ttcp(&profile)?.counts;
    let held = counts.frames_arrived - counts.frames_received - counts.dropped - counts.overrun;
    let modelled = format!(
        "{} arrived = {} received + {} drop + {} overrun + {held} held",
        counts.frames_arrived, counts.frames_received, counts.dropped, counts.overrun
    );
    let room = frames_held(8192)?;
    // Short frames, of which more would fit, are not sent to the host here.
    Ok(Row::words("I14", Kind::Structural, modelled, "every frame counted once", held <= room, "the load of I13"))
}

fn i15() -> Result<Row, ModelError> {
    let frames = reply_frames(8192)?.len();
    Ok(Row::words(
        "I15",
        Kind::Structural,
        format!("{frames} frames"),
        "6 exactly",
        frames == 6,
        "a reply of NFS version 2",
    ))
}

fn i16() -> Result<Row, ModelError> {
    let time = |system| {
        let config = Config::new(&Profile::load(system)?, Workload::TtcpReceive)?;
        Ok::<_, ModelError>(config.adapter.bus.processor_time(FULL_FRAME_LEN as u64).as_us())
    };
    let (narrow, wide) = (time("486-wd8003e")?, time("486-wd8013")?);
    let modelled = format!("{narrow:.0} us per full frame with 8 bits, {wide:.0} us with 16");
    Ok(Row::words("I16", Kind::Structural, modelled, "more with 8 bits", narrow > wide, "standard cycles on both"))
}

fn i17() -> Result<Vec<Row>, ModelError> {
    const PUBLISHED: f64 = 3.0;
    let base = Profile::load("486-wd8003e")?.with("workload.time", "60s");
    let mut factors = Vec::new();
    let mut lost = [0, 0];
    for timer in ["80ms", "100ms", "200ms", "700ms"] {
        let system = base.clone().with("workload.rpc_timer", timer);
        let (small, large) = (nfs(&system, "2KiB")?, nfs(&system, "4KiB")?);
        lost = [lost[0] + small.lost(), lost[1] + large.lost()];
        factors.push(small.bytes_per_second / large.bytes_per_second.max(1.0));
    }
    let unclumped = nfs(&base.with("workload.rpc_issue", "each"), "4KiB")?;
    factors.sort_by(f64::total_cmp);
    let (least, most) = (factors[0], factors[factors.len() - 1]);
    let median = f64::midpoint(factors[factors.len() / 2 - 1], factors[factors.len() / 2]);
    let threshold = format!("2 KiB: {} lost; 4 KiB: {} lost, in all runs of the ensemble", lost[0], lost[1]);
    let collapse = format!("factor {median:.1} (ensemble {least:.1} to {most:.1})");
    let assumption = format!(
        "median over the RPC timer (80, 100, 200, 700 ms); 4 reads asked for together. If each is asked for as one is \
         answered, {} frames are lost at 4 KiB. None of this is published",
        unclumped.lost()
    );
    let is_within = (PUBLISHED / COLLAPSE_WITHIN..=PUBLISHED * COLLAPSE_WITHIN).contains(&median);
    let holds = lost[0] == 0 && lost[1] > 0;
    let threshold = Row::words("I17", Kind::Predicted, threshold, "none at 2 KiB, some at 4 KiB", holds, &assumption);
    let collapse = Row::words("I17", Kind::Chosen, collapse, "within a factor of 2", is_within, &assumption);
    let error = Some(100.0 * (median / PUBLISHED - 1.0));
    Ok(vec![threshold.of_part("threshold"), Row { error, ..collapse }.of_part("collapse")])
}

fn i18() -> Result<Row, ModelError> {
    let base = Profile::load("486-wd8013")?;
    let [small, middle, large] =
        ["1KiB", "4KiB", "8KiB"].map(|size| nfs(&base, size).map(|outcome| outcome.kib_per_second));
    let (small, middle, large) = (small?, middle?, large?);
    let modelled = format!("{small:.0}, {middle:.0}, {large:.0} KiB/s with 1, 4, 8 KiB");
    let ok = middle > 1.3 * small && large > 1.3 * small;
    Ok(Row::words("I18", Kind::Predicted, modelled, "more than 1.3 times", ok, "4 reads asked for together"))
}

fn i19() -> Result<Row, ModelError> {
    let base = Profile::load("486-wd8003e")?;
    let ill = nfs(&base, "4KiB")?;
    let smaller = nfs(&base, "2KiB")?;
    let faster = nfs(&base.with("bus.clock", "13.4MHz"), "4KiB")?;
    let show = |outcome: &Outcome| format!("{:.0} KiB/s, {} lost", outcome.kib_per_second, outcome.lost());
    let modelled = format!("4 KiB: {}; 2 KiB: {}; 13.4 MHz: {}", show(&ill), show(&smaller), show(&faster));
    let ok = ill.lost() > 0 && smaller.lost() == 0 && faster.lost() == 0;
    Ok(Row::words(
        "I19",
        Kind::Predicted,
        modelled,
        "each cures it alone",
        ok,
        "4 reads asked for together, timer of 700 ms",
    ))
}

fn i20() -> Result<Row, ModelError> {
    let base = Profile::load("486-wd8003ep")?;
    let early = ttcp(&base)?.bytes_per_second;
    let late = ttcp(&base.with("workload.warmup", "11s"))?.bytes_per_second;
    let modelled = format!("seconds 1 to 11: {:.1} KiB/s; 11 to 21: {:.1} KiB/s", early / KIB, late / KIB);
    let ok = (early / late - 1.0).abs() < 0.01;
    Ok(Row::words("I20", Kind::Shown, modelled, "within 1 % of each other", ok, "nothing but memory at both ends"))
}

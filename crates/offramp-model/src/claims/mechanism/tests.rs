use super::*;

fn drawn(name: &str) -> Mechanism {
    let (file, text) = EMBEDDED.iter().find(|(file, _)| *file == format!("charts/{name}.toml")).unwrap();
    Mechanism::draw(text, Path::new(file)).unwrap()
}

fn curve<'a>(mechanism: &'a Mechanism, panel: usize, name: &str) -> &'a [[f64; 2]] {
    let curve = mechanism.panels[panel].curves.iter().find(|curve| curve.name.starts_with(name));
    &curve.unwrap_or_else(|| panic!("{} has no curve {name}", mechanism.name)).points
}

fn at(points: &[[f64; 2]], x: f64) -> f64 {
    points.iter().find(|point| (point[0] - x).abs() < 1e-9).unwrap_or_else(|| panic!("no point at {x}"))[1]
}

#[test]
fn a_faster_bus_is_never_slower_and_the_published_points_lie_on_the_curve() {
    let mechanism = drawn("isa-clock");
    let modelled = curve(&mechanism, 0, "WD8003EP");
    assert!(modelled.windows(2).all(|pair| pair[1][1] >= pair[0][1] * 0.999));
    for [clock, published] in curve(&mechanism, 0, "published") {
        assert!((at(modelled, *clock) / published - 1.0).abs() < 0.05, "{clock}");
    }
    let load = curve(&mechanism, 1, "WD8003EP");
    assert!(load.windows(2).all(|pair| pair[1][1] < pair[0][1]), "{load:?}");
}

#[test]
fn a_window_that_fits_is_never_lost_and_a_large_one_is_by_the_old_sender() {
    let mechanism = drawn("window");
    for panel in &mechanism.panels[1].curves {
        assert!(at(&panel.points, 4.0) < 0.5, "{}", panel.name);
    }
    assert!(at(curve(&mechanism, 1, "3c503, sender"), 32.0) > 0.0);
    assert!(at(curve(&mechanism, 1, "3c503 at 13.4 MHz"), 32.0) < 0.5);
}

#[test]
fn longer_batches_in_the_wrong_order_leave_fewer_segments_under_way() {
    let mechanism = drawn("order");
    let (forward, reversed) = (curve(&mechanism, 0, "in order"), curve(&mechanism, 0, "last frame first"));
    let offloaded = curve(&mechanism, 0, "in order, checksums");
    assert!(at(forward, 1000.0) > 2.0 * at(reversed, 1000.0), "{forward:?} {reversed:?}");
    assert!(at(offloaded, 1000.0) > 5.0 * at(reversed, 1000.0), "{offloaded:?} {reversed:?}");
    assert!(at(reversed, 1000.0) < at(reversed, 4000.0), "{reversed:?}");
    let segments = curve(&mechanism, 1, "last frame first");
    assert!((2.0..=4.0).contains(&at(segments, 1000.0)), "{segments:?}");
}

#[test]
fn moderation_spares_more_under_load_and_its_wait_is_paid_at_every_load() {
    let mechanism = drawn("moderation");
    let spared = |name: &str| {
        let load = curve(&mechanism, 0, name);
        at(load, 32_000.0) - at(load, 1000.0)
    };
    assert!(spared("150 Mbit/s") > spared("10 Mbit/s"), "{mechanism:?}");
    for wait in &mechanism.panels[1].curves {
        assert!(at(&wait.points, 1000.0) > 4.0 * at(&wait.points, 32_000.0), "{wait:?}");
    }
}

#[test]
fn the_knee_of_pci_bursts_is_near_256_bytes() {
    let mechanism = drawn("pci-bursts");
    let points = curve(&mechanism, 0, "20 clocks");
    // Half of the gain from doubling is gone there: below it doubles nearly, above it hardly grows.
    assert!(at(points, 64.0) / at(points, 32.0) > 1.5);
    assert!(at(points, 512.0) / at(points, 256.0) < 1.2);
    assert!(at(points, 1516.0) / at(points, 256.0) < 1.3);
}

#[test]
fn large_sends_spare_processor_time_at_the_limit_of_the_line_and_bring_throughput_below_it() {
    let mechanism = drawn("large-send");
    let of = |panel, name, scale| at(curve(&mechanism, panel, name), scale);
    let (off, on) = (of(0, "segment", 100.0), of(0, "large", 100.0));
    assert!((off - 40.0).abs() < 5.0 && (on - 19.0).abs() < 5.0, "{off} {on}");
    assert!((of(1, "segment", 100.0) / of(1, "large", 100.0) - 1.0).abs() < 0.02);
    assert!(of(1, "large", 400.0) > 1.3 * of(1, "segment", 400.0), "{mechanism:?}");
}

#[test]
fn jumbo_frames_spare_time_for_each_byte_and_bring_throughput_where_the_processor_is_the_limit() {
    let mechanism = drawn("jumbo");
    for cost in &mechanism.panels[1].curves {
        assert!(cost.points.windows(2).all(|pair| pair[1][1] < pair[0][1]), "{cost:?}");
    }
    let gain = |name: &str| at(curve(&mechanism, 0, name), 8948.0) / at(curve(&mechanism, 0, name), 1448.0);
    assert!(gain("receiving, a host half as fast") > 1.15, "{}", gain("receiving, a host half as fast"));
    assert!(gain("sending") < 1.06, "{}", gain("sending"));
}

#[test]
fn pcie_has_less_than_its_bytes_below_256_and_the_measured_ends_lie_on_the_curves() {
    let mechanism = drawn("pcie");
    let (bytes, reading) = (curve(&mechanism, 0, "bytes alone, reading"), curve(&mechanism, 0, "reading"));
    assert!(
        at(reading, 64.0) < 0.7 * at(bytes, 64.0) && (0.94..0.97).contains(&(at(reading, 512.0) / at(bytes, 512.0)))
    );
    for name in ["reading", "writing"] {
        let measured = curve(&mechanism, 0, &format!("{name}, measured"));
        let modelled = mechanism.panels[0].curves.iter().find(|curve| curve.name == name).unwrap();
        for size in [64.0, 512.0] {
            assert!((at(&modelled.points, size) / at(measured, size) - 1.0).abs() < 0.15, "{name} {size}");
        }
    }
    let (small, large) =
        (curve(&mechanism, 1, "64 bytes, pages of 4"), curve(&mechanism, 1, "64 bytes, pages of 2 MiB"));
    assert!(
        at(small, 65_536.0) < 0.5 * at(small, 256.0) && (at(large, 65_536.0) / at(large, 256.0) - 1.0).abs() < 0.01
    );
}

#[test]
fn on_a_shared_bus_who_waits_takes_it_from_the_other_and_who_asks_again_at_once_does_too() {
    let mechanism = drawn("pci-shared");
    let (waiting, leaving) =
        (curve(&mechanism, 0, "both, the second waits"), curve(&mechanism, 0, "both, the second dis"));
    assert!(at(waiting, 8.0) < 0.6 * at(waiting, 0.0) && at(leaving, 8.0) > 2.0 * at(waiting, 8.0), "{mechanism:?}");
    let writing = curve(&mechanism, 1, "the one that writes");
    let retried = mechanism.panels[1].curves.iter().find(|curve| curve.name == "the one that writes").unwrap();
    assert!(at(&retried.points, 120.0) > at(&retried.points, 0.0), "{mechanism:?}");
    assert!(writing.windows(2).all(|pair| (pair[1][1] - pair[0][1]).abs() < 1e-6), "split reads are never tried again");
}

#[test]
fn an_adapter_that_sums_brings_nothing_at_the_limit_of_the_line_and_as_much_at_every_speed_below_it() {
    let mechanism = drawn("checksum");
    for gain in &mechanism.panels[1].curves {
        assert!(at(&gain.points, 12.5).abs() < 1.0, "{gain:?}");
        let slow = [100.0, 200.0, 400.0].map(|scale| at(&gain.points, scale));
        assert!(slow.iter().all(|gain| (10.0..25.0).contains(gain)), "{slow:?}");
    }
}

#[test]
fn what_a_cipher_in_the_adapter_is_worth_grows_with_what_is_encrypted_until_its_rate_is_the_limit() {
    let mechanism = drawn("ipsec");
    let (host, free) = (curve(&mechanism, 0, "the host"), curve(&mechanism, 0, "the adapter encrypts, without"));
    let gain = |share| at(free, share) / at(host, share);
    assert!(gain(0.1) < 1.1 && gain(4.0) > 1.4 && gain(100.0) > 10.0, "{mechanism:?}");
    let slow = curve(&mechanism, 0, "the adapter encrypts 50");
    assert!(at(slow, 100.0) < 0.2 * at(free, 100.0), "{mechanism:?}");
    let by_rate = curve(&mechanism, 1, "the adapter");
    assert!(by_rate.windows(2).all(|pair| pair[1][1] >= 0.99 * pair[0][1]), "{by_rate:?}");
}

#[test]
fn queues_bring_one_connection_nothing_and_many_as_much_as_there_are_processors() {
    let mechanism = drawn("queues");
    let speed = |queues, flows| at(curve(&mechanism, 0, queues), flows);
    for queues in ["2 queues", "4 queues"] {
        assert!(speed(queues, 1.0) < 1.001 * speed("1 queue", 1.0), "{mechanism:?}");
    }
    assert!(speed("2 queues", 32.0) > 1.5 * speed("1 queue", 32.0), "{mechanism:?}");
    assert!(speed("4 queues", 32.0) > 2.5 * speed("1 queue", 32.0), "{mechanism:?}");
    assert!(speed("4 queues", 4.0) < 0.8 * speed("4 queues", 32.0), "as many connections as queues are too few");
    let load = |queues, flows| at(curve(&mechanism, 1, queues), flows);
    assert!((load("4 queues", 1.0) / load("1 queue", 1.0) - 1.0).abs() < 0.001, "{mechanism:?}");
    assert!(load("4 queues", 32.0) < 0.6 * load("1 queue", 32.0), "{mechanism:?}");
}

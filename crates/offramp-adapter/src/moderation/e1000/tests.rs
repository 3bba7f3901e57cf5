//! Tests of the classes and rates, with cases worked out by hand from the rules.

use super::Class::{Bulk, Low, Lowest};
use super::*;

#[test]
fn each_class_follows_from_the_frames_and_bytes_of_the_last_interrupt() {
    // Each case has a class, the numbers of frames and bytes of the last interrupt, the next class, and the reason.
    let cases = [
        (Lowest, 0, 0, Lowest, "nothing came"),
        (Lowest, 1, 8001, Bulk, "a jumbo frame"),
        (Lowest, 1, 8000, Low, "few frames with many bytes"),
        (Lowest, 4, 513, Low, "few frames with many bytes"),
        (Lowest, 4, 512, Lowest, "few frames with few bytes"),
        (Lowest, 5, 7500, Lowest, "five frames are not few"),
        (Low, 0, 0, Low, "nothing came"),
        (Low, 2, 16_002, Bulk, "jumbo frames"),
        (Low, 9, 10_001, Bulk, "many bytes in few frames"),
        (Low, 10, 12_010, Bulk, "full frames"),
        (Low, 10, 12_000, Low, "ten frames of 1200 bytes"),
        (Low, 36, 36_000, Lowest, "many frames that are not full"),
        (Low, 35, 35_000, Low, "35 frames are not many"),
        (Low, 4, 8004, Bulk, "large frames"),
        (Low, 4, 8000, Low, "four frames of 2000 bytes"),
        (Low, 2, 511, Lowest, "lone short frames"),
        (Low, 2, 512, Low, "two frames of 256 bytes"),
        (Low, 3, 180, Low, "three frames are not lone"),
        (Bulk, 0, 0, Bulk, "nothing came"),
        (Bulk, 36, 25_001, Low, "many bytes in many frames"),
        (Bulk, 35, 25_001, Bulk, "many bytes in 35 frames"),
        (Bulk, 100, 25_000, Bulk, "not many bytes"),
        (Bulk, 1, 6000, Bulk, "not few bytes"),
        (Bulk, 1, 5999, Low, "few bytes"),
    ];
    for (class, frames, bytes, after, why) in cases {
        assert_eq!(class.after(frames, bytes, Lowest), after, "{class:?} with {frames} frames of {bytes} bytes: {why}");
    }
}

/// Simulates an interrupt for one lone short frame, for which the driver raises the rate. Returns the rate.
fn lone_frame(e1000: &mut Classes) -> u32 {
    e1000.fired(1, 60);
    e1000.per_second
}

/// Simulates an interrupt for one large batch of full frames, for which the driver lowers the rate. Returns the rate.
fn bulk(e1000: &mut Classes) -> u32 {
    e1000.fired(20, 20 * 1514);
    e1000.per_second
}

#[test]
fn the_rate_falls_at_once_and_rises_by_a_quarter_of_the_aim() {
    let mut e1000 = Classes::new(Lowest);
    assert_eq!(bulk(&mut e1000), 4000);
    // From bulk to low, the target rate is 20,000. From low to lowest, the target rate is 70,000.
    assert_eq!(lone_frame(&mut e1000), 9000);
    let rises: Vec<_> = (0..5).map(|_| lone_frame(&mut e1000)).collect();
    assert_eq!(rises, [26_500, 44_000, 61_500, 70_000, 70_000]);
    assert_eq!(e1000.gap_ns(), 14_285);
}

#[test]
fn the_conservative_mode_never_goes_above_twenty_thousand() {
    let mut e1000 = Classes::new(Low);
    assert_eq!(lone_frame(&mut e1000), 20_000);
    assert_eq!(bulk(&mut e1000), 4000);
    let rises: Vec<_> = (0..5).map(|_| lone_frame(&mut e1000)).collect();
    assert_eq!(rises, [9000, 14_000, 19_000, 20_000, 20_000]);
}

#[test]
fn the_simplified_mode_weighs_both_directions_every_two_seconds() {
    let mut balance = Balance::default();
    let mut after = |now_s: u64, own_bytes, other_bytes| {
        balance.other_direction(other_bytes);
        balance.fired(now_s * NANOSECONDS_PER_SECOND, own_bytes);
        balance.per_second
    };
    assert_eq!(after(0, 1_000_000, 0), IDLE_PER_SECOND, "at the start");
    assert_eq!(after(1, 0, 1_000_000), IDLE_PER_SECOND, "a second is too soon");
    assert_eq!(after(2, 0, 0), 2000, "alike");
    assert_eq!(after(4, 1_000_000, 0), 8000, "one-sided");
    assert_eq!(after(6, 3_000_000, 1_000_000), 5000, "2000 + 6000 · 2/4");
    assert_eq!(after(8, 0, 0), 8000, "idle");
    assert_eq!(after(7, u64::MAX, u64::MAX), 8000, "a clock that goes back");
}

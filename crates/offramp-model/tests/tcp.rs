//! The model of TCP with losses, compared with published laws of TCP throughput.

use offramp_model::tcp::{AckPolicy, Receiver, Segment, Sender, SenderConfig, Variant};
use offramp_model::time::{Span, Time};

const MSS: u64 = 1460;
const ROUND: Span = Span::us(10_000);

/// Returns the mean number of segments per round trip, if every `every`-th segment is lost once.
fn segments_per_round(variant: Variant, round_trip: Span, every: u64) -> f64 {
    const ROUNDS: u64 = 20_000;
    let window = 4000 * MSS;
    let config = SenderConfig { mss: MSS, variant, rto_min: Span::us(1_000_000), initial_window_segments: 2, window };
    let mut sender = Sender::new(config);
    let mut receiver = Receiver::new(AckPolicy { segments_per_ack: 1, mss: MSS, window });
    let mut new_segments = 0u64;
    // The sender receives the acknowledgement of a segment one round trip after the send.
    let mut send = |sender: &mut Sender, now: Time, arriving: &mut Vec<Segment>| {
        while let Some(segment) = sender.next(now, MSS) {
            new_segments += u64::from(!segment.is_retransmission);
            if segment.is_retransmission || !new_segments.is_multiple_of(every) {
                arriving.push(segment);
            }
        }
    };
    let mut arriving: Vec<Segment> = Vec::new();
    for round in 1..=ROUNDS {
        let now = Time::START + round_trip.times(round);
        for segment in std::mem::take(&mut arriving) {
            receiver.receive(segment.start, segment.len);
            receiver.read(u64::MAX);
            let (next, offered) = receiver.ack();
            sender.acknowledge(now, next, offered);
            send(&mut sender, now, &mut arriving);
        }
        if now >= sender.deadline {
            sender.time_out(now);
        }
        send(&mut sender, now, &mut arriving);
    }
    receiver.received() as f64 / MSS as f64 / ROUNDS as f64
}

#[test]
fn reno_with_loss_keeps_the_window_of_its_square_root_law() {
    // Mathis et al. 1997, with one acknowledgement per segment: window = √(1.5 / loss rate) segments. The law ignores
    // the round trips of recovery, which matter less at lower loss rates.
    for (every, least) in [(200u64, 0.65), (800, 0.8), (3200, 0.88), (20_000, 0.94)] {
        let law = (1.5 * every as f64).sqrt();
        for variant in [Variant::Reno, Variant::NewReno] {
            let share = segments_per_round(variant, ROUND, every) / law;
            println!("{variant:?}, one in {every}: {share:.3} of the law");
            assert!((least..1.05).contains(&share), "{variant:?}, one in {every}: {share:.3} of the law");
        }
    }
}

#[test]
fn cubic_is_like_reno_over_short_ways_and_keeps_its_own_law_over_long_ones() {
    let reno = segments_per_round(Variant::NewReno, ROUND, 200);
    let share = segments_per_round(Variant::Cubic, ROUND, 200) / reno;
    assert!((0.9..1.2).contains(&share), "{share:.3} of Reno");
    // RFC 9438 5.1: window = 1.054 × (round-trip time in seconds / loss rate)^(3/4) segments.
    let long = ROUND.times(10);
    let law = 1.054 * (long.as_s() * 20_000.0).powf(0.75);
    let share = segments_per_round(Variant::Cubic, long, 20_000) / law;
    assert!((0.85..1.1).contains(&share), "{share:.3} of the law");
}

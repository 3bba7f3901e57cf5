use super::*;
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use proptest::prelude::*;

const SECOND_NS: u64 = 1_000_000_000;

/// The cost of one frame, or the total of several frames.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    frames: usize,
    bytes: usize,
}

#[test]
fn a_burst_passes_at_once_and_the_rate_from_then_on() {
    let mut bucket = TokenBucket::new(10, 3);
    let passed = |bucket: &mut TokenBucket, now| (0..100).filter(|_| bucket.take(1, now)).count();
    assert_eq!(passed(&mut bucket, 0), 3);
    assert_eq!(passed(&mut bucket, SECOND_NS / 10 - 1), 0);
    assert_eq!(passed(&mut bucket, SECOND_NS / 10), 1);
    assert_eq!(passed(&mut bucket, SECOND_NS * 100), 3, "an idle time saves up one burst, no more");
}

#[test]
fn a_clock_that_jumps_neither_overflows_nor_gives_more_than_a_burst() {
    let mut bucket = TokenBucket::new(u64::MAX, u64::from(u32::MAX));
    assert!(bucket.take(u32::MAX.into(), 5));
    assert!(!bucket.take(1, 0), "back");
    assert!(bucket.take(1, u64::MAX));
    assert!(!bucket.take(u64::MAX, u64::MAX));
}

fn limiter(limit: RateLimit, queues: u16) -> Arc<Limiter> {
    let limiter = Limiter::new(queues);
    limiter.set(limit);
    limiter
}

/// For each of `costs`, one queue sends frames of this cost whenever the limit allows, until `end_ns`. Each queue wakes
/// `late_ns` later than requested. Returns the total cost of the sent frames.
fn saturate(limiter: &Arc<Limiter>, costs: &[Cost], end_ns: u64, late_ns: u64) -> Cost {
    let mut meters: Vec<_> = costs.iter().map(|_| Meter::new(limiter)).collect();
    let mut sent = Cost::default();
    let mut now_ns = 0;
    while now_ns < end_ns {
        for (meter, cost) in meters.iter_mut().zip(costs) {
            meter.take_over(now_ns);
            while meter.is_open(now_ns) {
                meter.spend(cost.frames, cost.bytes);
                sent.frames += cost.frames;
                sent.bytes += cost.bytes;
            }
            assert!(meter.opens_ns().is_some_and(|at| at > now_ns), "a deadline in the past has the thread spin");
        }
        now_ns = meters.iter().filter_map(Meter::opens_ns).min().unwrap() + late_ns;
    }
    sent
}

proptest! {
    /// For any bucket over a time much longer than a burst, the total cost of the sent frames stays within the bounds.
    #[test]
    fn any_rate_is_kept_within_a_burst_and_a_frame_of_each_queue(
        bits_per_second in 10_000_000u64..100_000_000_000,
        frames_per_second in 1_000u64..1_000_000,
        frames in prop::collection::vec((1usize..46, 60usize..1514), 1..5),
        late_ns in 0u64..1_000_000,
    ) {
        let costs: Vec<_> = frames.iter().map(|&(frames, len)| Cost { frames, bytes: frames * len }).collect();
        let bits = Some(bits_per_second);
        let limit = RateLimit { bits_per_second: bits, frames_per_second: Some(frames_per_second), ..RateLimit::default() };
        let sent = saturate(&limiter(limit, costs.len() as u16), &costs, SECOND_NS / 5, late_ns);
        // One frame per queue may exceed the available tokens.
        let one_of_each = costs.iter().fold(Cost::default(), |sum, cost| Cost {
            frames: sum.frames + cost.frames,
            bytes: sum.bytes + cost.bytes,
        });
        let bounds = |rate: u64, spare: usize| {
            let (due, burst, spare) = (rate as f64 / 5.0, (rate / 200 + 1) as f64, spare as f64);
            // Tokens of the last millisecond, and tokens that arrive while a queue wakes late, may remain unused.
            (due - 2.0 * burst - spare, due + burst + spare)
        };
        let (least_bits, most_bits) = bounds(bits_per_second, one_of_each.bytes * 8);
        let (least_frames, most_frames) = bounds(frames_per_second, one_of_each.frames);
        let (sent_bits, sent_frames) = (sent.bytes as f64 * 8.0, sent.frames as f64);
        prop_assert!(sent_bits <= most_bits && sent_frames <= most_frames, "{sent:?}");
        prop_assert!(sent_bits >= least_bits || sent_frames >= least_frames, "{sent:?}");
    }
}

#[test]
fn a_second_of_either_limit_is_exact_within_one_percent_for_one_queue_and_for_sixteen() {
    let small = Cost { frames: 1, bytes: 64 };
    let large = Cost { frames: 45, bytes: 68_130 };
    let bits = |bits_per_second| RateLimit { bits_per_second: Some(bits_per_second), ..RateLimit::default() };
    let frames = RateLimit { frames_per_second: Some(1_000_000), ..RateLimit::default() };
    for (limit, cost, exact) in [
        (frames, small, 1_000_000.0),
        (bits(10_000_000_000), large, 1_250_000_000.0 / 68_130.0 * 45.0),
        (bits(100_000_000), small, 12_500_000.0 / 64.0),
    ] {
        for queues in [1, 16] {
            let sent = saturate(&limiter(limit, queues), &vec![cost; queues.into()], SECOND_NS, 50_000).frames as f64;
            assert!((sent / exact - 1.0).abs() < 0.01, "{limit:?}, {queues} queues: {sent} frames, not {exact}");
        }
    }
}

#[test]
fn a_queue_locks_the_bucket_about_once_in_a_millisecond_however_often_it_is_polled() {
    let limiter = limiter(RateLimit { frames_per_second: Some(1_000_000), ..RateLimit::default() }, 1);
    let mut meter = Meter::new(&limiter);
    let mut refills = 0;
    for now_ns in (0..SECOND_NS / 10).step_by(1000) {
        let had = meter.tokens.frames;
        meter.take_over(now_ns);
        while meter.is_open(now_ns) {
            refills += u32::from(meter.tokens.frames > had);
            meter.spend(meter.tokens.frames as usize, 0);
        }
    }
    assert!((95..110).contains(&refills), "{refills} in 100 ms");
}

#[test]
fn a_changed_limit_holds_from_the_next_batch_on_and_one_that_stays_keeps_its_tokens() {
    let one = RateLimit { frames_per_second: Some(1), ..RateLimit::default() };
    let limiter = limiter(one, 1);
    let mut meter = Meter::new(&limiter);
    assert!(meter.is_open(0), "it has not looked yet");
    meter.take_over(0);
    assert!(meter.is_open(0));
    meter.spend(1, 60);
    assert!(!meter.is_open(0) && meter.opens_ns() == Some(SECOND_NS));
    limiter.set(one);
    meter.take_over(1);
    assert_eq!(meter.opens_ns(), Some(SECOND_NS));
    limiter.set(RateLimit::default());
    assert!(!meter.is_open(2));
    meter.take_over(2);
    assert!(meter.is_open(2) && !meter.is_limited() && meter.opens_ns().is_none());
}

#[test]
fn a_super_frame_has_the_bytes_of_the_frames_that_it_makes() {
    const PAYLOAD_LEN: usize = 4001;
    let transport = |is_tcp: bool| {
        let mut header = vec![0; if is_tcp { 20 } else { 8 }];
        if is_tcp {
            header[12] = 0x50;
        } else {
            header[4..6].copy_from_slice(&(8 + PAYLOAD_LEN as u16).to_be_bytes());
        }
        header
    };
    let kinds = [SegmentationKind::Tcp4, SegmentationKind::Tcp6, SegmentationKind::Udp, SegmentationKind::UdpFragments];
    for (kind, is_v6) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let is_tcp = matches!(kind, SegmentationKind::Tcp4 | SegmentationKind::Tcp6);
        if is_tcp && is_v6 != (kind == SegmentationKind::Tcp6) {
            continue;
        }
        let segment = [transport(is_tcp), vec![0; PAYLOAD_LEN]].concat();
        let (len, protocol) = (segment.len() as u16, if is_tcp { 6 } else { 17 });
        let ip = if is_v6 {
            [&[0x86, 0xdd, 0x60, 0, 0, 0][..], &len.to_be_bytes(), &[protocol, 64], &[0; 32]].concat()
        } else {
            [&[8, 0, 0x45, 0][..], &(20 + len).to_be_bytes(), &[0, 0, 0, 0, 64, protocol], &[0; 10]].concat()
        };
        let mut bytes = [&[0; 12][..], &ip, &segment].concat();
        let checksum = PartialChecksum { start: if is_v6 { 54 } else { 34 }, offset: if is_tcp { 16 } else { 6 } };
        let segmentation = Some(Segmentation::new(kind, 1000));
        let frame = Frame::new(&mut bytes, TxMeta { segmentation, checksum: Some(checksum) });
        let mut plan = Segmenter::new(&frame, &SegmentPolicy::default()).unwrap();
        let (frames, mut len) = (plan.frames_left(), 0);
        while plan.frames_left() > 0 {
            len += plan.next_len();
            plan.skip_next();
        }
        assert!(frames > 4, "{kind:?}");
        assert_eq!(wire_bytes(&frame, frames), len, "{kind:?}, IPv6: {is_v6}");
        assert_eq!(wire_bytes(&frame, 1), frame.bytes().len());
    }
}

#[test]
fn each_frame_of_a_super_frame_costs_its_headers() {
    let mut bytes = vec![0; 54 + 3000];
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[23] = 6;
    bytes[46] = 0x50;
    let segmentation = Some(Segmentation::new(SegmentationKind::Tcp4, 1000));
    let frame = Frame::new(&mut bytes, TxMeta { segmentation, checksum: None });
    let mut meter = Meter::new(&limiter(
        RateLimit { burst_frames: Some(9), frames_per_second: Some(1), ..RateLimit::default() },
        1,
    ));
    meter.take_over(0);
    for (frames, bytes) in [(3, 3000 + 3 * 54), (1, 3054)] {
        let before = (meter.tokens.frames, meter.tokens.bits);
        meter.spend_frame(&frame, frames);
        assert_eq!((before.0 - meter.tokens.frames, before.1 - meter.tokens.bits), (frames as i64, bytes * 8));
    }
}

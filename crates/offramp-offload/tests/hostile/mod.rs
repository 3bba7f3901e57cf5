//! Properties of any bytes: the bodies of the fuzz targets, and of the ordinary tests beside them.

pub mod esp;
pub mod xfrm;

use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, RxCsum};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};

/// Bytes that segmenting may add to a frame: IPv6's fragment header.
const ADDED_MAX: usize = 8;

/// Checks that offsets are ordered and inside the frame.
pub fn layout(bytes: &[u8]) {
    let segmentation = Segmentation { kind: SegmentationKind::Tcp4, size: 1, ecn: false };
    for segmentation in [None, Some(segmentation)] {
        let mut copy = bytes.to_vec();
        let frame = Frame::new(&mut copy, TxMeta { checksum: None, segmentation });
        if let Ok(l) = frame.layout() {
            let offsets = [l.network_start, l.transport_start, l.payload_start, l.packet_end, bytes.len()];
            assert!(offsets.is_sorted(), "{l:?}");
            assert!(frame.addresses().len() <= 32);
        }
    }
}

/// Segments an input: ten bytes of request, then the frame. Every frame has the announced length, and their number does
/// not exceed the announced one.
pub fn segment(bytes: &[u8]) {
    let Some((ask, frame)) = bytes.split_first_chunk::<10>() else { return };
    let word = |at: usize| u16::from_le_bytes([ask[at], ask[at + 1]]);
    let kinds = [SegmentationKind::Tcp4, SegmentationKind::Tcp6, SegmentationKind::Udp, SegmentationKind::UdpFragments];
    let meta = TxMeta {
        checksum: (ask[0] & 1 != 0).then(|| PartialChecksum { start: word(2), offset: word(4) }),
        segmentation: (ask[0] & 2 != 0).then(|| Segmentation {
            kind: kinds[usize::from(ask[1] & 3)],
            size: word(6),
            ecn: ask[0] & 4 != 0,
        }),
    };
    let policy = SegmentPolicy { fragment_id: u32::from(word(8)) };
    let mut copy = frame.to_vec();
    let request = Frame::new(&mut copy, meta);
    let Ok(mut plan) = Segmenter::new(&request, &policy) else { return };
    let mut out = vec![0; frame.len() + ADDED_MAX];
    let mut left = plan.frames_left();
    assert!(left <= frame.len().max(1));
    while left > 0 {
        let len = plan.next_len();
        assert!(len <= out.len());
        assert_eq!(plan.write_next(&request, &mut out), len);
        left -= 1;
        assert_eq!(plan.frames_left(), left);
    }
    assert_eq!(plan.write_next(&request, &mut out), 0);
}

/// Coalesces an input: a byte of settings, then frames after a length of two bytes each. Every frame comes out once, as
/// itself or coalesced, and none is left at the end.
pub fn coalesce(bytes: &[u8]) {
    let Some((&settings, mut rest)) = bytes.split_first() else { return };
    let rx_csum = if settings & 1 != 0 { RxCsum::NeedsCsum } else { RxCsum::DataValid };
    let config = CoalesceConfig { flows_max: usize::from(settings >> 4), rx_csum, ..CoalesceConfig::default() };
    let mut coalescer = Coalescer::new(config);
    let (mut offered, mut given) = (0_u64, 0_u64);
    while let Some((len, behind)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes(*len)).min(behind.len());
        let (frame, behind) = behind.split_at(len);
        rest = behind;
        let mut frame = frame.to_vec();
        let enabled =
            if settings & 2 != 0 { Offloads::from_bits_truncate(offered as u32 * 0x100) } else { Offloads::RX };
        let mut count = |meta: &offramp_offload::meta::RxMeta, _: &[u8]| given += u64::from(meta.segments);
        coalescer.push(Frame::received(&mut frame), enabled, None, offered, &mut count);
        offered += 1;
        assert_eq!(offered, given + coalescer.held() as u64);
    }
    coalescer.flush(&mut |meta: &offramp_offload::meta::RxMeta, _: &[u8]| given += u64::from(meta.segments));
    assert_eq!((offered, coalescer.held()), (given, 0));
}

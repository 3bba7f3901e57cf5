//! Super-frames in tunnels, compared with a slow oracle that adds outer headers to each inner segment.

use super::*;
use crate::layout::{ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, UDP_HEADER_LEN};
use crate::segment::TunnelSegmenter;

const OUTER_ID: u16 = 0xfffe;
const OUTER_UDP: u8 = 17;
const OUTER_GRE: u8 = 47;

/// The headers between the outer IP header and the inner packet.
#[derive(Clone, Copy, Debug)]
struct Tunnel {
    /// Protocol number in the outer IP header, or `None` for the number of the inner protocol.
    protocol: Option<u8>,
    header: &'static [u8],
    has_ethernet: bool,
    tags: &'static [u8],
}

const TUNNELS: [Tunnel; 9] = [
    udp(&[8, 0, 0, 0, 0, 0, 7, 0], true),
    udp(&[8, 0, 0, 0, 0, 0, 7, 0], false),
    udp(&[2, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 1, 9, 9, 9, 9], true),
    udp(&[], false),
    udp(&[0, 4, 0, 0], false),
    Tunnel { protocol: Some(OUTER_GRE), header: &[0x20, 0, 0x65, 0x58, 0, 0, 0, 5], has_ethernet: true, tags: &[] },
    Tunnel { protocol: Some(OUTER_GRE), header: &[0, 0, 8, 0], has_ethernet: false, tags: &[0x88, 0xa8, 0, 9] },
    Tunnel {
        protocol: Some(OUTER_GRE),
        header: &[0xa0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 5],
        has_ethernet: false,
        tags: &[0x81, 0, 0, 9],
    },
    Tunnel { protocol: None, header: &[], has_ethernet: false, tags: &[] },
];

const fn udp(header: &'static [u8], has_ethernet: bool) -> Tunnel {
    Tunnel { protocol: Some(OUTER_UDP), header, has_ethernet, tags: &[] }
}

impl Tunnel {
    /// Returns `frame` in the tunnel. A super-frame has no outer UDP checksum, as with VXLAN over IPv4.
    fn around(self, frame: &[u8], outer6: bool, id: u16, is_super: bool) -> Vec<u8> {
        let is_inner6 = be16(frame, 12) == ETHERTYPE_IPV6;
        let protocol = self.protocol.unwrap_or(if is_inner6 { 41 } else { 4 });
        let inner = if self.has_ethernet { frame } else { &frame[ETHERNET_HEADER_LEN..] };
        let mut body = [self.header, inner].concat();
        if protocol == OUTER_UDP {
            let len = (UDP_HEADER_LEN + body.len()) as u16;
            body = [&[0xc0, 1, 0x12, 0xb5][..], &len.to_be_bytes(), &[0, 0], &body].concat();
        } else if protocol == OUTER_GRE && self.header[0] & 0x80 != 0 {
            let sum = checksum::sum(&body).checksum();
            put16(&mut body, 4, sum);
        }
        let len = body.len() as u16;
        let mut out = [&[6; 12][..], self.tags].concat();
        if outer6 {
            out.extend(ETHERTYPE_IPV6.to_be_bytes());
            out.extend([&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[protocol, 64], &[7; 16], &[9; 16]].concat());
        } else {
            out.extend(ETHERTYPE_IPV4.to_be_bytes());
            let at = out.len();
            out.extend([0x45, 0]);
            out.extend((20 + len).to_be_bytes());
            out.extend(id.to_be_bytes());
            out.extend([0x40, 0, 64, protocol, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2]);
            let sum = checksum::sum(&out[at..]).checksum();
            put16(&mut out, at + 10, sum);
        }
        out.extend(body);
        if protocol == OUTER_UDP && !is_super {
            let partial = Frame::received(&mut out).make_partial().unwrap();
            let end = out.len();
            checksum::complete(&mut out, partial, end).unwrap();
        }
        out
    }

    /// Returns a super-frame in the tunnel, and its request.
    fn super_frame(self, inner: &(Vec<u8>, TxMeta), outer6: bool) -> (Vec<u8>, TxMeta) {
        let frame = self.around(&inner.0, outer6, OUTER_ID, true);
        let moved = frame.len() - inner.0.len();
        let checksum = inner.1.checksum.map(|p| PartialChecksum { start: p.start + moved as u16, ..p });
        (frame, TxMeta { checksum, ..inner.1 })
    }
}

/// A frame and its request.
type Requested = (Vec<u8>, TxMeta);

/// Returns the frames that [`TunnelSegmenter`] makes from a super-frame, each with its request.
fn unwrapped(frame: &[u8], request: TxMeta) -> Result<Option<Vec<Requested>>, Refused> {
    let mut bytes = frame.to_vec();
    let mut frame = Frame::new(&mut bytes, request);
    let Some(mut tunnel) = TunnelSegmenter::new(&mut frame)? else { return Ok(None) };
    let (mut frames, mut out) = (Vec::new(), vec![0xee; 70_000]);
    while let Some((len, request)) = tunnel.write_next(&mut frame, &mut out) {
        frames.push((out[..len].to_vec(), request));
    }
    assert_eq!(tunnel.segments.frames_left(), 0);
    Ok(Some(frames))
}

fn inner_super_frame(is_udp: bool, inner6: bool, payload_len: usize, size: u16) -> (Vec<u8>, TxMeta) {
    let payload = pattern(payload_len);
    if is_udp {
        return udp_super_frame(inner6, &payload, SegmentationKind::Udp, size);
    }
    let (frame, mut request) = tcp_super_frame(inner6, &payload, 0xd9, 0xfff0, 0xffff_f000);
    request.segmentation.as_mut().unwrap().size = size;
    (frame, request)
}

/// Checks a super-frame in a tunnel. The function segments the super-frame with [`TunnelSegmenter`], and then segments
/// the resulting frames. The frames must equal the oracle's frames.
fn assert_segmented_as_by_hand(tunnel: Tunnel, inner: &(Vec<u8>, TxMeta), outer6: bool) {
    let segments = cut(&inner.0, &inner.1, &SegmentPolicy::default());
    let ids = (0..).map(|n: u16| OUTER_ID.wrapping_add(n));
    let expected: Vec<_> = segments.iter().zip(ids).map(|(f, id)| tunnel.around(f, outer6, id, false)).collect();
    let (frame, request) = tunnel.super_frame(inner, outer6);
    let frames = unwrapped(&frame, request).unwrap().expect("a tunnel");
    let got: Vec<_> =
        frames.iter().flat_map(|(frame, request)| cut(frame, request, &SegmentPolicy::default())).collect();
    assert_eq!(got.len(), expected.len());
    for (n, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(got, expected, "frame {n} of {tunnel:?}");
    }
    let is_udp = tunnel.protocol == Some(OUTER_UDP);
    assert_eq!(frames.len() < segments.len(), is_udp && segments.len() > 1, "UDP tunnels stay super-frames");
}

#[test]
fn segments_in_every_tunnel_equal_those_put_into_it_one_by_one() {
    for (n, tunnel) in TUNNELS.into_iter().enumerate() {
        for shape in 0..8 {
            let [outer6, inner6, is_udp] = [1, 2, 4].map(|bit| shape & bit != 0);
            if tunnel.header.get(2..4) == Some(&[8, 0]) && inner6 {
                continue; // The GRE header of this case names IPv4.
            }
            let inner = inner_super_frame(is_udp, inner6, 10_000 + n, 1390);
            assert_segmented_as_by_hand(tunnel, &inner, outer6);
        }
    }
}

#[test]
fn the_largest_super_frame_in_a_tunnel_fits_into_two() {
    let inner = inner_super_frame(false, false, 65_400, 1398);
    let (frame, request) = TUNNELS[0].super_frame(&inner, false);
    let frames = unwrapped(&frame, request).unwrap().unwrap();
    assert_eq!(frames.len(), 2);
    assert!(frames.iter().all(|(frame, _)| frame.len() <= 65_535 + 14));
    assert_segmented_as_by_hand(TUNNELS[0], &inner, false);
}

#[test]
fn a_request_for_the_outermost_packet_has_no_tunnel() {
    let (frame, request) = inner_super_frame(false, false, 5000, 1448);
    assert_eq!(unwrapped(&frame, request), Ok(None));
    assert_eq!(unwrapped(&frame, TxMeta::default()), Ok(None));
}

#[test]
fn a_tunnel_that_is_not_understood_is_refused() {
    let inner = inner_super_frame(false, false, 5000, 1390);
    let sequenced: Tunnel =
        Tunnel { protocol: Some(OUTER_GRE), header: &[0x10, 0, 8, 0, 0, 0, 0, 1], has_ethernet: false, tags: &[] };
    let remote_checksum = udp(&[8, 0x20, 0, 0, 0, 0, 7, 0], true);
    let unknown = udp(&[8; 13], true);
    for tunnel in [sequenced, remote_checksum, unknown] {
        let (frame, request) = tunnel.super_frame(&inner, false);
        assert_eq!(unwrapped(&frame, request), Err(Refused::Tunnel), "{tunnel:?}");
    }
    let (twice, request) = TUNNELS[0].super_frame(&TUNNELS[0].super_frame(&inner, false), false);
    assert_eq!(unwrapped(&twice, request), Err(Refused::Tunnel));
    let (mut frame, request) = TUNNELS[0].super_frame(&inner, false);
    frame[14 + 20 + 8 + 8 + 14 + 10] ^= 1; // Change the inner header's checksum.
    assert_eq!(unwrapped(&frame, request), Err(Refused::Tunnel));
}

proptest! {
    #[test]
    fn segments_in_tunnels_equal_those_put_into_them(
        tunnel in proptest::sample::select(TUNNELS[..6].to_vec()),
        outer6: bool,
        inner6: bool,
        is_udp: bool,
        payload_len in 1usize..20_000,
        size in 200u16..3000,
    ) {
        assert_segmented_as_by_hand(tunnel, &inner_super_frame(is_udp, inner6, payload_len, size), outer6);
    }

    #[test]
    fn no_bytes_and_no_request_stop_the_segmentation_of_a_tunnel(
        tunnel in proptest::sample::select(TUNNELS.to_vec()),
        (outer6, inner6, is_udp) in any::<(bool, bool, bool)>(),
        payload_len in 1usize..4000,
        size: u16,
        len in 0usize..4200,
        start_change in -60i16..60,
        changes in proptest::collection::vec((0usize..160, any::<u8>()), 0..4),
    ) {
        let (mut frame, mut request) = tunnel.super_frame(&inner_super_frame(is_udp, inner6, payload_len, 1000), outer6);
        for (at, byte) in changes {
            let at = at.min(frame.len() - 1);
            frame[at] = byte;
        }
        frame.truncate(len);
        request.segmentation.as_mut().unwrap().size = size;
        let checksum = request.checksum.as_mut().unwrap();
        checksum.start = checksum.start.saturating_add_signed(start_change);
        for (mut frame, request) in unwrapped(&frame, request).ok().flatten().unwrap_or_default() {
            prop_assert!(Segmenter::new(&Frame::new(&mut frame, request), &SegmentPolicy::default()).is_ok());
        }
    }
}

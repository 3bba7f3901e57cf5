//! What must hold whatever the bytes are: the bodies of the fuzz targets, and of the ordinary tests
//! beside them.

use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer, Telling};
use offramp_offload::esp::xfrm::{Owner, XfrmConfig};
use offramp_offload::esp::{Arrival, Mode, OutboundSa, SaConfig, SaTable, SecretKey, Suite, Tunnel, UdpPorts};
use offramp_offload::layout::{FrameLayout, LengthFrom};
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{IdRange, SegmentPolicy, Segmenter};

/// Longest frame that any cut may give: no header or payload is added but IPv6's fragment header.
const FRAME_LEN_MAX: usize = 1 << 17;

/// Offsets are ordered and inside the frame.
pub fn layout(bytes: &[u8]) {
    for from in [LengthFrom::Ip, LengthFrom::Frame] {
        if let Ok(l) = FrameLayout::parse(bytes, from) {
            let offsets = [l.network_start, l.transport_start, l.payload_start, l.packet_end, bytes.len()];
            assert!(offsets.is_sorted(), "{l:?}");
            assert!(l.addresses(bytes).len() <= 32);
        }
    }
}

/// Ten bytes say what is asked for, the rest is the frame. Every frame has the length announced, and
/// no more frames come than were announced.
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
    let id_range = if ask[0] & 8 != 0 { IdRange::Bits15 } else { IdRange::Bits16 };
    let policy = SegmentPolicy { id_range, fragment_id: u32::from(word(8)) };
    let Ok(mut plan) = Segmenter::new(frame, &meta, &policy) else { return };
    let mut out = vec![0; FRAME_LEN_MAX];
    let mut left = plan.frames_left();
    assert!(left <= frame.len().max(1));
    while left > 0 {
        let len = plan.next_len();
        assert!(len <= frame.len() + 8);
        assert_eq!(plan.write_next(frame, &mut out), len);
        left -= 1;
        assert_eq!(plan.frames_left(), left);
    }
    assert_eq!(plan.write_next(frame, &mut out), 0);
}

/// A byte of settings, then frames behind a length of two bytes each. Every frame comes out once, as
/// itself or in a joined one, and nothing is held at the end.
pub fn coalesce(bytes: &[u8]) {
    let Some((&settings, mut rest)) = bytes.split_first() else { return };
    let telling = if settings & 1 != 0 { Telling::PartialSum } else { Telling::Verdict };
    let config = CoalesceConfig { flows_max: usize::from(settings >> 4), telling, ..CoalesceConfig::default() };
    let mut coalescer = Coalescer::new(config);
    let (mut offered, mut given) = (0_u64, 0_u64);
    while let Some((len, behind)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes(*len)).min(behind.len());
        let (frame, behind) = behind.split_at(len);
        rest = behind;
        let mut frame = frame.to_vec();
        let layout = FrameLayout::parse(&frame, LengthFrom::Ip);
        let enabled =
            if settings & 2 != 0 { Offloads::from_bits_truncate(offered as u32 * 0x100) } else { Offloads::RX };
        let mut count = |meta: &offramp_offload::meta::RxMeta, _: &mut [u8]| given += u64::from(meta.segments);
        coalescer.offer(&mut frame, &layout, enabled, None, offered, &mut count);
        offered += 1;
        assert_eq!(offered, given + coalescer.held() as u64);
    }
    coalescer.flush(&mut |meta, _| given += u64::from(meta.segments));
    assert_eq!((offered, coalescer.held()), (given, 0));
}

/// SPIs of the hostile tests' associations: from here on, one for each of [`esp_configs`].
pub const ESP_SPI: u32 = 0x100;
/// Suites that the hostile tests take: one of each way to protect a packet.
const ESP_SUITES: [&str; 6] =
    ["aes128gcm16", "chacha20poly1305-iiv", "aes128gmac", "aes128-sha256", "null-sha1", "3des-sha1"];

/// Associations of several suites in every mode.
pub fn esp_configs() -> Vec<SaConfig> {
    let v4 = Tunnel::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let modes = [(Mode::Transport, None), (Mode::Tunnel(v4), None), (Mode::Transport, Some(UdpPorts::default()))];
    let mut configs = Vec::new();
    for suite in ESP_SUITES.map(|name| Suite::by_name(name).unwrap()) {
        for (mode, udp) in modes {
            let key = |len: usize| SecretKey::new((0..len as u8).map(|n| n * 7 + 1).collect());
            let spi = ESP_SPI + configs.len() as u32;
            let keys = (key(suite.encryption_key_len()), key(suite.integrity_key_len()));
            let config = SaConfig { mode, udp, legacy: true, ..SaConfig::new(spi, suite, keys.0, keys.1) };
            configs.push(SaConfig { esn: configs.len() % 2 == 1, ..config });
        }
    }
    configs
}

/// A byte of settings, then frames behind a length of two bytes each: opened as they are, and, by the
/// settings, sealed first, tampered with at one place and opened then. Every frame is handed on or
/// counted once, and what is handed on lies inside the frame and has a true layout.
pub fn esp(bytes: &[u8]) {
    let Some((&settings, mut rest)) = bytes.split_first() else { return };
    let mut table = SaTable::new();
    let mut configs = esp_configs();
    for config in &configs {
        table.insert(config).unwrap();
    }
    let config = configs.swap_remove(usize::from(settings & 0x7f) % configs.len());
    let mut sender = OutboundSa::new(&config).unwrap();
    let (mut offered, mut opened) = (0_u64, 0_u64);
    while let Some((len, behind)) = rest.split_first_chunk::<2>() {
        let word = usize::from(u16::from_le_bytes(*len));
        let (frame, behind) = behind.split_at(word.min(behind.len()));
        rest = behind;
        let mut frame = frame.to_vec();
        if settings & 0x80 != 0 {
            seal_and_tamper(&mut sender, &mut frame, word);
        }
        let Ok(layout) = FrameLayout::parse(&frame, LengthFrom::Ip) else { continue };
        match Arrival::of(&frame, &layout, Some(4500)) {
            Ok(Arrival::Esp(packet)) => {
                offered += 1;
                if let Ok(clear) = table.open(&mut frame, &layout, &packet) {
                    opened += 1;
                    assert_eq!(FrameLayout::parse(&frame[clear.start..clear.end], LengthFrom::Ip), Ok(clear.layout));
                }
            }
            Ok(_) => {}
            Err(reason) => {
                offered += 1;
                table.count(reason);
            }
        }
    }
    assert_eq!(offered, opened + table.refused().total());
}

/// The sealed frame with one bit changed, or as it is if the place lies outside.
fn seal_and_tamper(sender: &mut OutboundSa, frame: &mut Vec<u8>, place: usize) {
    let Ok(layout) = FrameLayout::parse(frame, LengthFrom::Ip) else { return };
    let Ok(len) = sender.sealed_len(frame, &layout) else { return };
    let mut out = vec![0; len];
    if sender.seal(frame, &layout, &mut out).is_ok() {
        if let Some(byte) = out.get_mut(place / 2) {
            *byte ^= 1 << (place % 8);
        }
        *frame = out;
    }
}

/// A text of `ip xfrm`: whatever it is, it is read or refused in one line that names a line of it, and what
/// is read for an adapter can be installed.
pub fn xfrm(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split('\n').count();
    let read = XfrmConfig::parse(&text);
    for owner in [Owner::Host, Owner::Peer] {
        match read.as_ref().map_err(Clone::clone).and_then(|config| config.associations(owner, true)) {
            Ok(associations) => {
                for association in associations {
                    assert_eq!(association.config.validate(), Ok(()));
                    // A sender may still be refused: only the library sees that a 3DES key is weak.
                    drop(OutboundSa::new(&association.config));
                }
            }
            Err(error) => {
                assert!((1..=lines).contains(&error.line()), "{error}");
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
        }
    }
}

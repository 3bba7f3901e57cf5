//! Tests of the server with arbitrary bytes of a client. The server answers or refuses, and sends only frames of a
//! check.

mod hostile;

use std::fs;
use std::path::Path;

use hostile::OWN;
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns a message: its length, its kind and its body.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 1).to_be_bytes()[..], &[kind], body].concat()
}

/// A vnet header and a frame that a check permits. `change` replaces one byte: its index and its new value.
#[derive(Clone, Debug)]
struct Frame {
    is_v6: bool,
    is_udp: bool,
    is_to_group: bool,
    /// Length of an IPv6 destination options header in units of 8 bytes.
    extension: u8,
    payload_len: usize,
    /// Segment size of the request; 0 means no request.
    size: u16,
    change: Option<(usize, u8)>,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let (protocol, header_len) = if self.is_udp { (17, 8) } else { (6, 20) };
        let transport_len = header_len + self.payload_len;
        let to: [u8; 6] = match (self.is_to_group, self.is_v6) {
            (false, _) => [0x02, 0x6f, 0x66, 0x72, 0x61, 0x6d],
            (true, false) => [1, 0, 0x5e, 0x42, 0, 7],
            (true, true) => [0x33, 0x33, 0x61, 0x6d, 0, 7],
        };
        let mut frame = [to, OWN].concat();
        if self.is_v6 {
            let extension_len = 8 * usize::from(self.extension);
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(((extension_len + transport_len) as u16).to_be_bytes());
            frame.extend([if self.extension > 0 { 60 } else { protocol }, 64]);
            let ours = [0xfd, 0x6f, 0x66, 0x72, 0x61, 0x6d, 0x70, 0, 0, 0, 0, 0, 0, 0];
            let group = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0x6f, 0x66, 0x72, 0x61, 0x6d, 0x70];
            frame.extend(
                [ours, if self.is_to_group { group } else { ours }].map(|net| [&net[..], &[0, 7]].concat()).concat(),
            );
            if self.extension > 0 {
                frame.extend([protocol, self.extension - 1, 1, (extension_len - 4) as u8]);
                frame.resize(frame.len() + extension_len - 4, 0);
            }
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend(((20 + transport_len) as u16).to_be_bytes());
            frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 198, 18, 0, 7]);
            frame.extend(if self.is_to_group { [239, 194, 0, 7] } else { [198, 19, 0, 7] });
        }
        let start = frame.len() as u8;
        frame.extend([0xc0, 0x39, 0, 9]);
        if self.is_udp {
            frame.extend((transport_len as u16).to_be_bytes());
            frame.extend([0; 2]);
        } else {
            frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
        }
        frame.resize(frame.len() + self.payload_len, 0x5a);
        let kind = match (self.size, self.is_udp, self.is_v6) {
            (0, ..) => 0,
            (_, true, _) => 5,
            (_, false, false) => 1,
            (_, false, true) => 4,
        };
        let ([a, b], offset) = (self.size.to_le_bytes(), if self.is_udp { 6 } else { 16 });
        let mut bytes = [&[1, kind, 0, 0, a, b, start, 0, offset, 0, 0, 0][..], &frame].concat();
        if let Some((at, value)) = self.change {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes
    }
}

prop_compose! {
    fn frame()(
        is_v6: bool,
        is_udp: bool,
        is_to_group: bool,
        extension in prop_oneof![Just(0), 0..32u8],
        payload_len in prop_oneof![0..200usize, 0..60_000usize],
        size in prop_oneof![Just(0), 1..200u16, any::<u16>()],
        change in proptest::option::of((0..120usize, any::<u8>())),
    ) -> Frame {
        Frame { is_v6, is_udp, is_to_group, extension, payload_len, size, change }
    }
}

/// Generates messages that are valid or almost valid.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let features = prop_oneof![Just(r#"[["rx-gro",true]]"#), Just(r#"[["loopback",true]]"#), Just("[[")];
    prop_oneof![
        1 => Just(message(1, &2u16.to_be_bytes())),
        1 => features.prop_map(|text| message(2, text.as_bytes())),
        6 => (prop_oneof![Just(3), Just(7), Just(8)], frame()).prop_map(|(kind, frame)| message(kind, &frame.bytes())),
        2 => any::<u32>().prop_map(|usecs| message(4, &usecs.to_be_bytes())),
        1 => (5..7u8).prop_map(|kind| message(kind, &[])),
        1 => (any::<u8>(), any::<Vec<u8>>()).prop_map(|(kind, body)| message(kind, &body)),
    ]
}

proptest! {
    #[test]
    fn messages_of_any_bytes_are_answered_or_refused(said in vec(nearly(), 0..12), noise: Vec<u8>) {
        let hello = message(1, &2u16.to_be_bytes());
        hostile::messages(&[hello, said.concat(), noise].concat());
    }

    #[test]
    fn noise_is_refused(noise: Vec<u8>) {
        hostile::messages(&noise);
    }
}

/// Runs the saved inputs of the fuzzer.
#[test]
fn what_fuzzing_kept_is_answered_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/check_messages");
    let inputs = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let ran = inputs.map(|input| hostile::messages(&fs::read(input.unwrap().path()).unwrap())).count();
    assert!(ran > 0, "{} is empty", corpus.display());
}

//! The serialized state of a device, for a frontend that saves its guest and resumes the guest later (vhost-user,
//! "Migrating back-end state").
//!
//! All numbers are little-endian. The format starts with a head: [`MAGIC`], version, and length of all bytes. The
//! negotiated features, the number of vrings, and 8 bytes per vring follow. The guest's settings follow as commands of
//! its control queue, each preceded by its length. The last field is a hash of all preceding bytes.

const MAGIC: [u8; 8] = *b"offramp\0";
/// The version of the format that this program writes, and the only version that it reads.
const VERSION: u32 = 1;
/// Number of bytes before the vrings: the head, the features and the number of vrings.
const HEAD_LEN: usize = 8 + 4 + 4 + 8 + 4;
const SUM_LEN: usize = 8;
/// The value for a vring without a base.
const NO_BASE: u64 = u64::MAX;
/// Maximum length of a state to read, in bytes. The tables of a filter (64 KiB), all VLANs (32 KiB) and 256 vrings fit.
pub(super) const LEN_MAX: usize = 1 << 18;

/// The state of a stopped device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The negotiated features.
    pub features: u64,
    /// The base of each vring; `None` for a vring that has not run.
    pub bases: Vec<Option<u32>>,
    /// Control queue commands that restore the guest's settings.
    pub commands: Vec<Vec<u8>>,
}

/// The reason for refusing the bytes of a state.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("offramp has not written these bytes")]
    Foreign,
    #[error("version {0} of the format, not {VERSION}; restore it with the offramp that saved it")]
    Version(u32),
    #[error("{len} bytes in place of {expected}")]
    Length { len: usize, expected: usize },
    #[error("the bytes have changed since they were saved")]
    Changed,
}

impl State {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let bases = self.bases.iter().map(|base| base.map_or(NO_BASE, u64::from));
        let body = bases.flat_map(u64::to_le_bytes).collect::<Vec<_>>();
        let commands = self.commands.iter().flat_map(|command| [&word(command.len())[..], command].concat());
        let rest = body.into_iter().chain(commands).collect::<Vec<_>>();
        let len = HEAD_LEN + rest.len() + SUM_LEN;
        let head = [&MAGIC[..], &VERSION.to_le_bytes(), &word(len), &self.features.to_le_bytes()].concat();
        let bytes = [head, word(self.bases.len()).to_vec(), rest].concat();
        let sum = sum(&bytes).to_le_bytes();
        [bytes, sum.to_vec()].concat()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Unusable> {
        if bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes) {
            return Err(Unusable::Length { len: bytes.len(), expected: HEAD_LEN + SUM_LEN });
        }
        let mut rest = bytes.strip_prefix(&MAGIC).ok_or(Unusable::Foreign)?;
        let cut = Unusable::Length { len: bytes.len(), expected: HEAD_LEN + SUM_LEN };
        match take_word(&mut rest) {
            Some(VERSION) => {}
            Some(version) => return Err(Unusable::Version(version)),
            None => return Err(cut),
        }
        let expected = take_word(&mut rest).ok_or(cut)? as usize;
        if bytes.len() != expected {
            return Err(Unusable::Length { len: bytes.len(), expected });
        }
        let (content, found) = bytes.split_last_chunk().ok_or(Unusable::Changed)?;
        if sum(content) != u64::from_le_bytes(*found) {
            return Err(Unusable::Changed);
        }
        // A foreign writer may compute the correct hash, but write wrong lengths.
        Self::parse_content(content.get(MAGIC.len() + 8..).unwrap_or_default()).ok_or(Unusable::Changed)
    }

    fn parse_content(mut rest: &[u8]) -> Option<Self> {
        let features = take_u64(&mut rest)?;
        let vrings = take_word(&mut rest)?;
        let base = |base: u64| if base == NO_BASE { Some(None) } else { u32::try_from(base).ok().map(Some) };
        let bases = (0..vrings).map(|_| base(take_u64(&mut rest)?)).collect::<Option<_>>()?;
        let mut commands = Vec::new();
        while !rest.is_empty() {
            let len = take_word(&mut rest)?;
            commands.push(rest.split_off(..len as usize)?.to_vec());
        }
        Some(Self { features, bases, commands })
    }
}

fn word(number: usize) -> [u8; 4] {
    // The numbers are far below 2^32: see `LEN_MAX`.
    (number as u32).to_le_bytes()
}

fn take_word(bytes: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?))
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.split_off(..8)?.try_into().ok()?))
}

/// Returns the 64-bit FNV-1a hash of bytes. A change of any single byte changes the hash.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> impl Strategy<Value = State> {
        let bases = prop::collection::vec(any::<Option<u32>>(), 0..9);
        let commands = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9);
        (any::<u64>(), bases, commands).prop_map(|(features, bases, commands)| State { features, bases, commands })
    }

    proptest! {
        #[test]
        fn a_state_is_read_as_it_was_written(state in state()) {
            prop_assert_eq!(State::parse(&state.to_bytes()), Ok(state));
        }

        #[test]
        fn a_state_that_was_cut_grown_or_changed_is_refused(
            state in state(), at in any::<prop::sample::Index>(), bits in 1..=u8::MAX,
        ) {
            let bytes = state.to_bytes();
            let at = at.index(bytes.len());
            let cut = State::parse(&bytes[..at]);
            prop_assert!(matches!(cut, Err(Unusable::Length { len, .. }) if len == at), "{cut:?}");
            let grown = State::parse(&[&bytes[..], &[bits]].concat());
            prop_assert_eq!(grown, Err(Unusable::Length { len: bytes.len() + 1, expected: bytes.len() }));
            let mut changed = bytes;
            changed[at] ^= bits;
            prop_assert!(State::parse(&changed).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut content = [&MAGIC[..], &VERSION.to_le_bytes(), &word(bytes.len() + 24), &bytes].concat();
            content.extend(sum(&content).to_le_bytes());
            for bytes in [bytes, content] {
                if let Ok(state) = State::parse(&bytes) {
                    prop_assert_eq!(state.to_bytes(), bytes);
                }
            }
        }
    }

    #[test]
    fn the_bytes_of_other_programs_and_versions_are_refused() {
        assert_eq!(State::parse(b"QEVM\0\0\0\x03 and so on"), Err(Unusable::Foreign));
        let mut later = State::default().to_bytes();
        later[8] = 2;
        assert_eq!(State::parse(&later), Err(Unusable::Version(2)));
    }
}

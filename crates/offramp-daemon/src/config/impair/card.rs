//! Checks `port.memory` and `port.faults`: packet memory and faults modelled on present and past network cards.

use crate::config::check::Check;
use crate::config::place::ConfigError;
use crate::schema::file::{Faults, Key, Memory};
use crate::schema::unit::Amount;
use offramp_impair::fault::{
    BUS_BYTES_PER_SECOND, BusConfig, DELAY_NS, FRAME_NS, ONE_IN, REVERSE_FRAMES, VerdictConfig, WrongVerdict,
};
pub use offramp_impair::fault::{FaultConfig, host, wire};
pub use offramp_impair::memory::MemoryConfig;
use offramp_impair::memory::{
    CARD_BYTES, OverflowPolicy, PAGE_LEN, PAGE_LEN_DP8390, RECEIVE_BYTES, RECEIVE_PAGES, RECEIVE_RING_ENTRIES,
    RECOVER_NS, RECOVER_NS_DP8390, ReceiveMemory, TRANSMIT_BUFFERS,
};
use offramp_offload::layout::ETHERNET_HEADER_LEN;
use std::ops::RangeInclusive;
use toml::Spanned;

#[cfg(test)]
mod tests;

const NANOSECONDS_PER_MICROSECOND: u64 = 1000;
/// The names of the policies for a full memory.
pub const POLICIES: [&str; 3] = ["drop", "overrun", "stop"];
/// The names of the kinds of wrong checksum verdicts.
pub const VERDICTS: [(&str, WrongVerdict); 2] =
    [("good-is-bad", WrongVerdict::GoodIsBad), ("bad-is-good", WrongVerdict::BadIsGood)];
/// Default rate of wrong checksum verdicts: on average, one frame in this number of frames.
pub const VERDICT_ONE_IN_DEFAULT: i64 = 64;

/// Converts the range of an adapter's setting to the range of a key in the file. Every range fits into `i64`.
fn range<T: Copy + TryInto<i64>>(range: &RangeInclusive<T>) -> RangeInclusive<i64> {
    let bound = |bound: T| bound.try_into().unwrap_or(i64::MAX);
    bound(*range.start())..=bound(*range.end())
}

/// Converts a range of nanoseconds to a range of microseconds.
pub fn usecs(range: &RangeInclusive<u64>) -> RangeInclusive<i64> {
    let bound = |ns: u64| ns.div_ceil(NANOSECONDS_PER_MICROSECOND) as i64;
    bound(*range.start())..=bound(*range.end())
}

impl Check<'_> {
    /// Parses an optional number; returns `None` if the key is absent.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    fn given(&self, key: &str, written: &Key<Amount>, range: RangeInclusive<i64>) -> Result<Option<u64>, ConfigError> {
        let number = self.number(key, written, range, 0)?;
        Ok(written.is_some().then_some(number as u64))
    }

    pub(in crate::config) fn memory(
        &self,
        written: Option<&Spanned<Memory>>,
        mtu: usize,
    ) -> Result<MemoryConfig, ConfigError> {
        let Some(spanned) = written else { return Ok(MemoryConfig::default()) };
        let written = spanned.as_ref();
        let given = |key: &str, value: &Key<Amount>, range: RangeInclusive<i64>| {
            self.given(&format!("port.memory.{key}"), value, range).map(|number| number.map(|number| number as usize))
        };
        let wrong = |message: String| self.0.wrong(spanned.span(), message);
        let card = match given("card_bytes", &written.card_bytes, range(&CARD_BYTES))? {
            None => MemoryConfig::default(),
            Some(bytes) => MemoryConfig::dp8390(bytes).map_err(|error| wrong(format!("port.memory: {error}")))?,
        };
        let bytes = given("receive_bytes", &written.receive_bytes, range(&RECEIVE_BYTES))?;
        let pages = given("receive_pages", &written.receive_pages, range(&RECEIVE_PAGES))?;
        let page_len = given("page_bytes", &written.page_bytes, range(&PAGE_LEN))?;
        let receive = match (written.card_bytes.is_some(), bytes, pages) {
            (true, None, None) if page_len.is_none() => card.receive,
            (false, None, None) if page_len.is_none() => ReceiveMemory::Unlimited,
            (false, Some(bytes), None) if page_len.is_none() => ReceiveMemory::Bytes(bytes),
            (false, None, Some(pages)) => ReceiveMemory::Pages { pages, page_len: page_len.unwrap_or(PAGE_LEN_DP8390) },
            _ => {
                let message = "port.memory: write one of card_bytes, receive_bytes and receive_pages; page_bytes \
                               belongs to receive_pages";
                return Err(wrong(message.to_owned()));
            }
        };
        let ring_entries = given("ring_entries", &written.ring_entries, range(&RECEIVE_RING_ENTRIES))?;
        let buffers = given("transmit_buffers", &written.transmit_buffers, range(&TRANSMIT_BUFFERS))?;
        let config = MemoryConfig {
            receive,
            receive_ring_entries: ring_entries,
            transmit_buffers: buffers.or(card.transmit_buffers),
            policy: self.overflow_policy(written, card.policy)?,
        };
        let frame_len = mtu + ETHERNET_HEADER_LEN;
        if config.frames(frame_len) == 0 {
            let message = format!("port.memory has no room for a frame of {frame_len} bytes, which mtu {mtu} asks for");
            return Err(wrong(message));
        }
        Ok(config)
    }

    fn overflow_policy(&self, written: &Memory, card: OverflowPolicy) -> Result<OverflowPolicy, ConfigError> {
        let recover_default = (RECOVER_NS_DP8390 / NANOSECONDS_PER_MICROSECOND) as i64;
        let key = "port.memory.recover_usecs";
        let recover_usecs = self.number(key, &written.recover_usecs, usecs(&RECOVER_NS), recover_default)?;
        let stop = OverflowPolicy::StopAndRecover { recover_ns: recover_usecs as u64 * NANOSECONDS_PER_MICROSECOND };
        let by_card = if matches!(card, OverflowPolicy::StopAndRecover { .. }) { stop } else { card };
        let [drop, overrun, halt] = POLICIES;
        let known = [(drop, OverflowPolicy::Drop), (overrun, OverflowPolicy::Overrun), (halt, stop)];
        let policy = self.one_of("port.memory", "policy", &written.policy, &known)?.unwrap_or(by_card);
        match &written.recover_usecs {
            Some(recover) if policy != stop => {
                let message = "port.memory.recover_usecs belongs to policy = \"stop\"; leave it out here";
                Err(self.0.wrong(recover.span(), message))
            }
            _ => Ok(policy),
        }
    }

    pub(in crate::config) fn faults(
        &self,
        written: Option<&Spanned<Faults>>,
        allowed: Option<&Spanned<bool>>,
    ) -> Result<FaultConfig, ConfigError> {
        let Some(spanned) = written else { return Ok(FaultConfig::default()) };
        if !allowed.is_some_and(|allowed| *allowed.as_ref()) {
            let message = "port.faults makes the adapter worse than it is; if that is meant, write faults = true at \
                           the top of the file";
            return Err(self.0.wrong(spanned.span(), message));
        }
        let written = spanned.as_ref();
        let given = |key: &str, value: &Key<Amount>, range: RangeInclusive<i64>| {
            self.given(&format!("port.faults.{key}"), value, range)
        };
        let one_in = |key: &str, value: &Key<Amount>| {
            given(key, value, range(&ONE_IN)).map(|number| number.map(|number| number as u32))
        };
        let ns = |usecs: Option<u64>| usecs.unwrap_or(0) * NANOSECONDS_PER_MICROSECOND;
        let rate = given("bus_bytes_per_second", &written.bus_bytes_per_second, range(&BUS_BYTES_PER_SECOND))?;
        let frame = given("bus_frame_usecs", &written.bus_frame_usecs, usecs(&FRAME_NS))?;
        let reverse = given("reverse_frames", &written.reverse_frames, range(&REVERSE_FRAMES))?;
        Ok(FaultConfig {
            bus: BusConfig { bytes_per_second: rate, frame_ns: ns(frame) },
            receive_first: written.bus_receive_first.as_ref().is_some_and(|is_first| *is_first.as_ref()),
            loss_one_in: one_in("loss_one_in", &written.loss_one_in)?,
            duplicate_one_in: one_in("duplicate_one_in", &written.duplicate_one_in)?,
            delay_ns: ns(given("delay_usecs", &written.delay_usecs, usecs(&DELAY_NS))?),
            reverse_frames: reverse.map(|frames| frames as usize),
            verdict: self.verdict(written)?,
            seed: given("seed", &written.seed, 0..=i64::MAX)?.unwrap_or(0),
        })
    }

    fn verdict(&self, written: &Faults) -> Result<Option<VerdictConfig>, ConfigError> {
        let key = "port.faults.verdict_one_in";
        let one_in = self.number(key, &written.verdict_one_in, range(&ONE_IN), VERDICT_ONE_IN_DEFAULT)? as u32;
        match (self.one_of("port.faults", "verdict", &written.verdict, &VERDICTS)?, &written.verdict_one_in) {
            (None, Some(one_in)) => {
                let message = format!("{key} belongs to port.faults.verdict; write that too, or leave it out");
                Err(self.0.wrong(one_in.span(), message))
            }
            (wrong, _) => Ok(wrong.map(|wrong| VerdictConfig { wrong, one_in })),
        }
    }
}

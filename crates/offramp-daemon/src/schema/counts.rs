//! Counters by name.

use indexmap::IndexMap;
use offramp_adapter::stats::{Direction, Row};
use offramp_ports::vhost_user::guest_rows;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// Counters by name, in the order of their table. A newer daemon may send further counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counts(IndexMap<Cow<'static, str>, Value>);

impl Counts {
    /// Returns a counter; `None` if an older daemon did not send the counter.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.as_u64()
    }

    /// Returns a counter as [`Counts::get`] does, without a hash look-up if `place` is the counter's
    /// place in its table.
    pub fn get_at(&self, place: usize, name: &str) -> Option<u64> {
        match self.0.get_index(place) {
            Some((found, count)) if found == name => count.as_u64(),
            _ => self.get(name),
        }
    }

    /// Returns the counts above 0 that a terminal shows, each with its text.
    pub fn shown(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let rows = Direction::ROWS.iter().chain(guest_rows());
        rows.filter_map(|row| Some((row.shown?, self.get(row.name).filter(|count| *count > 0)?)))
    }
}

impl FromIterator<(&'static str, u64)> for Counts {
    fn from_iter<I: IntoIterator<Item = (&'static str, u64)>>(counts: I) -> Self {
        Self(counts.into_iter().map(|(name, count)| (name.into(), count.into())).collect())
    }
}

impl FromIterator<(&'static Row, u64)> for Counts {
    fn from_iter<I: IntoIterator<Item = (&'static Row, u64)>>(counts: I) -> Self {
        counts.into_iter().map(|(row, count)| (row.name, count)).collect()
    }
}

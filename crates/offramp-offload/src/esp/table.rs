//! The table of a receiver's associations, with look-up by SPI.

use super::config::SaConfig;
use super::error::{InvalidSa, Refused, RefusedCounts, SaFault};
use super::library::{CipherLibrary, aws_lc};
use super::open::{InboundSa, Opened};
use super::udp::EspPacket;
use crate::frame::Frame;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The associations of a receiver, and the counts of refused packets.
///
/// A receiver chooses its SPIs, so each SPI identifies one association (RFC 4303 2.1). If the association names a
/// destination, the packet must have this destination address.
#[derive(Debug)]
pub struct SaTable {
    library: &'static dyn CipherLibrary,
    by_spi: HashMap<u32, InboundSa>,
    refused: RefusedCounts,
}

impl Default for SaTable {
    fn default() -> Self {
        Self::new()
    }
}

impl SaTable {
    /// Returns a table without associations.
    pub fn new() -> Self {
        Self::with_library(aws_lc())
    }

    /// Does the same as [`SaTable::new`], but new associations use the AEADs of `library`.
    pub fn with_library(library: &'static dyn CipherLibrary) -> Self {
        Self { library, by_spi: HashMap::new(), refused: RefusedCounts::default() }
    }

    /// Adds an association.
    ///
    /// # Errors
    /// Returns an error if the association's description is invalid, or another association has the same SPI. After an
    /// error, the table is unchanged.
    pub fn insert(&mut self, config: &SaConfig) -> Result<(), InvalidSa> {
        match self.by_spi.entry(config.spi) {
            Entry::Occupied(_) => Err(config.invalid(SaFault::DuplicateSpi)),
            Entry::Vacant(place) => {
                place.insert(InboundSa::with_library(config, self.library)?);
                Ok(())
            }
        }
    }

    /// Removes and returns an association. Dropping the returned association wipes the keys.
    pub fn remove(&mut self, spi: u32) -> Option<InboundSa> {
        self.by_spi.remove(&spi)
    }

    /// Returns the association with this SPI.
    pub fn get(&self, spi: u32) -> Option<&InboundSa> {
        self.by_spi.get(&spi)
    }

    /// Returns all associations, in an unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = &InboundSa> {
        self.by_spi.values()
    }

    /// Returns the number of associations.
    pub fn len(&self) -> usize {
        self.by_spi.len()
    }

    /// Returns true if the table has no associations.
    pub fn is_empty(&self) -> bool {
        self.by_spi.is_empty()
    }

    /// Returns the counts of refused packets, by reason.
    pub fn refused(&self) -> &RefusedCounts {
        &self.refused
    }

    /// Counts a packet that was refused before the look-up of the packet's association, such as a fragment in
    /// [`super::Arrival::of`].
    pub fn count(&mut self, reason: Refused) {
        self.refused.count(reason);
    }

    /// Finds the packet's association and opens the frame in place with [`InboundSa::open`].
    ///
    /// # Errors
    /// Returns the reason to refuse the packet, and counts the refusal.
    #[inline]
    pub fn open(&mut self, frame: &mut Frame<'_>, packet: &EspPacket) -> Result<Opened, Refused> {
        let opened = match self.by_spi.get_mut(&packet.spi) {
            Some(sa) if sa.opener().is_addressed(frame) => sa.open(frame, packet),
            _ => Err(Refused::UnknownSpi),
        };
        opened.inspect_err(|&reason| self.refused.count(reason))
    }
}

//! The receiver's associations, by SPI.

use super::config::SaConfig;
use super::error::{InvalidSa, Refused, RefusedCounts, SaFault};
use super::library::{CipherLibrary, aws_lc};
use super::open::{InboundSa, Opened};
use super::udp::EspPacket;
use crate::frame::Frame;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The associations of a receiver, and its counts of refused packets.
///
/// A receiver chooses its SPIs itself, so that one SPI is one association (RFC 4303 2.1); if the association names a
/// destination, the packet must be addressed to it.
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

    /// As [`SaTable::new`]; new associations take the ciphers of `library`, if it has them.
    pub fn with_library(library: &'static dyn CipherLibrary) -> Self {
        Self { library, by_spi: HashMap::new(), refused: RefusedCounts::default() }
    }

    /// Adds an association.
    ///
    /// # Errors
    /// Returns an error if the association's description is invalid, or another association has the same SPI. The table
    /// is then unchanged.
    pub fn insert(&mut self, config: &SaConfig) -> Result<(), InvalidSa> {
        match self.by_spi.entry(config.spi) {
            Entry::Occupied(_) => Err(config.invalid(SaFault::DuplicateSpi)),
            Entry::Vacant(place) => {
                place.insert(InboundSa::with_library(config, self.library)?);
                Ok(())
            }
        }
    }

    /// Removes an association; its keys are wiped when it is dropped.
    pub fn remove(&mut self, spi: u32) -> Option<InboundSa> {
        self.by_spi.remove(&spi)
    }

    /// Returns the association of that SPI.
    pub fn get(&self, spi: u32) -> Option<&InboundSa> {
        self.by_spi.get(&spi)
    }

    /// Returns every association, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &InboundSa> {
        self.by_spi.values()
    }

    /// Returns the number of associations.
    pub fn len(&self) -> usize {
        self.by_spi.len()
    }

    /// Returns true if there are no associations.
    pub fn is_empty(&self) -> bool {
        self.by_spi.is_empty()
    }

    /// Returns the counts of refused packets, by reason.
    pub fn refused(&self) -> &RefusedCounts {
        &self.refused
    }

    /// Counts a packet refused before it came to an association, such as a fragment in [`super::Arrival::of`].
    pub fn count(&mut self, reason: Refused) {
        self.refused.count(reason);
    }

    /// Finds the packet's association and opens the frame in place, as [`InboundSa::open`].
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

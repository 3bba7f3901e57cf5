//! How much memory an adapter has, its layout, and what happens when it is full.

use crate::OutOfRange;
use offramp_adapter::cable::LINE_FRAME_LEN_MIN;
use std::ops::RangeInclusive;

/// A page of the DP8390's receive ring, bytes (National Semiconductor DP8390D data sheet, "Buffer Ring").
pub const PAGE_LEN_DP8390: usize = 256;
/// What the DP8390 stores with each frame, bytes: a header of 4 (status, next page, count) and the FCS.
pub const FRAME_OVERHEAD_LEN_DP8390: usize = 8;
/// Pages of one transmit buffer as the drivers lay out the memory: a full frame of 1514 bytes (Linux
/// `drivers/net/ethernet/8390/8390.h`, `TX_PAGES`).
pub const TRANSMIT_BUFFER_PAGES_DP8390: usize = 6;
/// Transmit buffers of these drivers: one is filled while the other one is sent.
pub const TRANSMIT_BUFFERS_DP8390: usize = 2;
/// How long a DP8390 is stopped when its ring ran over, nanoseconds. The data sheet asks for 1.6 ms; Linux'
/// driver waits at least 10 ms (`lib8390.c`, `ei_rx_overrun`).
pub const RECOVER_NS_DP8390: u64 = 10_000_000;

/// Bytes that may be given: from one frame to more than any card has.
pub const RECEIVE_BYTES: RangeInclusive<usize> = LINE_FRAME_LEN_MIN..=1 << 30;
/// Pages that may be given: one is always free.
pub const RECEIVE_PAGES: RangeInclusive<usize> = 2..=1 << 20;
/// Bytes of a page that may be given.
pub const PAGE_LEN: RangeInclusive<usize> = 64..=65_536;
/// Descriptors of a receive ring that may be given.
pub const RECEIVE_RING_ENTRIES: RangeInclusive<usize> = 1..=1 << 20;
/// Transmit buffers that may be given.
pub const TRANSMIT_BUFFERS: RangeInclusive<usize> = 1..=1 << 16;
/// Times to recover that may be given, nanoseconds.
pub const RECOVER_NS: RangeInclusive<u64> = 1..=10_000_000_000;

/// Memory for frames that the host has not read out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveMemory {
    /// As much as is needed.
    #[default]
    Unlimited,
    /// A number of bytes; a frame takes its length, without FCS, and at least that of the shortest one.
    Bytes(usize),
    /// A ring of pages, as the DP8390 has; a frame takes whole pages, with
    /// [`FRAME_OVERHEAD_LEN_DP8390`]. One page is always free: a full ring would look like an empty one.
    Pages {
        /// Pages, the free one included.
        pages: usize,
        /// Bytes of each.
        page_len: usize,
    },
}

/// What happens to a frame for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// It is lost ([`Loss::Drop`](offramp_adapter::stats::Loss::Drop)).
    #[default]
    Drop,
    /// The oldest frames in the memory that are not being read out are lost for it
    /// ([`Loss::Overrun`](offramp_adapter::stats::Loss::Overrun)). If that makes no room either, it is lost itself.
    Overrun,
    /// It is lost, and the adapter stops: what comes until its driver has started it again is lost too
    /// ([`Loss::Drop`](offramp_adapter::stats::Loss::Drop), which Linux' 8390 drivers count as missed). Frames in the
    /// memory are read out meanwhile.
    StopAndRecover {
        /// From the frame that found no room until frames are taken again, nanoseconds.
        recover_ns: u64,
    },
}

/// The memory of an adapter. By default there is as much as is needed, and nothing is lost in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Memory for frames that the host has not read out.
    pub receive: ReceiveMemory,
    /// Most received frames, whatever their size: the descriptors of a receive ring.
    pub receive_ring_entries: Option<usize>,
    /// Most frames that wait to be sent. The host waits for a free buffer; nothing is lost for it.
    pub transmit_buffers: Option<usize>,
    /// What happens to a frame for which there is no room.
    pub policy: OverflowPolicy,
}

/// Memory of a whole card that may be given, bytes: both transmit buffers, two pages for receiving; and
/// what the controller can address.
pub const CARD_BYTES: RangeInclusive<usize> =
    (TRANSMIT_BUFFERS_DP8390 * TRANSMIT_BUFFER_PAGES_DP8390 + 2) * PAGE_LEN_DP8390..=65_536;

impl MemoryConfig {
    /// A card with a DP8390 and `card_bytes` of memory, as Linux' drivers lay it out: two transmit buffers,
    /// all else a ring of pages, stopped when that runs over. 8 KiB is a WD8003 or 3c503, and leaves 20
    /// pages; 16 KiB is a WD8013, and leaves 52.
    ///
    /// # Errors
    /// When that is no card.
    pub fn dp8390(card_bytes: usize) -> Result<Self, OutOfRange> {
        OutOfRange::check(&CARD_BYTES, card_bytes, |bytes| format!("card of {bytes} bytes is"))
            .map_err(|error| error.noting(": 12 pages of 256 bytes are for transmitting"))?;
        let pages = card_bytes / PAGE_LEN_DP8390 - TRANSMIT_BUFFERS_DP8390 * TRANSMIT_BUFFER_PAGES_DP8390;
        Ok(Self {
            receive: ReceiveMemory::Pages { pages, page_len: PAGE_LEN_DP8390 },
            receive_ring_entries: None,
            transmit_buffers: Some(TRANSMIT_BUFFERS_DP8390),
            policy: OverflowPolicy::StopAndRecover { recover_ns: RECOVER_NS_DP8390 },
        })
    }

    /// Checks what a user may get wrong.
    ///
    /// # Errors
    /// One line that names the setting, its value and its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        match self.receive {
            ReceiveMemory::Unlimited => {}
            ReceiveMemory::Bytes(bytes) => {
                OutOfRange::check(&RECEIVE_BYTES, bytes, |bytes| format!("receive memory of {bytes} bytes is"))?;
            }
            ReceiveMemory::Pages { pages, page_len } => {
                OutOfRange::check(&RECEIVE_PAGES, pages, |pages| format!("receive memory of {pages} pages is"))
                    .map_err(|error| error.noting("; one page always stays free"))?;
                OutOfRange::check(&PAGE_LEN, page_len, |len| format!("pages of {len} bytes are"))?;
            }
        }
        if let Some(entries) = self.receive_ring_entries {
            OutOfRange::check(&RECEIVE_RING_ENTRIES, entries, |n| format!("receive ring of {n} entries is"))?;
        }
        if let Some(buffers) = self.transmit_buffers {
            OutOfRange::check(&TRANSMIT_BUFFERS, buffers, |n| format!("{n} transmit buffers are"))?;
        }
        if let OverflowPolicy::StopAndRecover { recover_ns } = self.policy {
            OutOfRange::check(&RECOVER_NS, recover_ns, |ns| format!("recovering in {ns} ns is"))?;
        }
        Ok(())
    }

    /// Whether there is as much as is needed, in both directions.
    pub fn is_none(&self) -> bool {
        !self.limits_receive() && self.transmit_buffers.is_none()
    }

    /// Whether a received frame may find no room.
    pub fn limits_receive(&self) -> bool {
        self.receive != ReceiveMemory::Unlimited || self.receive_ring_entries.is_some()
    }

    /// How many frames of `len` bytes, without FCS, an empty memory takes.
    pub fn frames(&self, len: usize) -> usize {
        let fit = self.capacity().checked_div(self.units(len)).unwrap_or(usize::MAX);
        fit.min(self.receive_ring_entries.unwrap_or(usize::MAX))
    }

    /// What there is to hold frames, in [`MemoryConfig::unit_len`].
    pub(super) fn capacity(&self) -> usize {
        match self.receive {
            ReceiveMemory::Unlimited => usize::MAX,
            ReceiveMemory::Bytes(bytes) => bytes,
            ReceiveMemory::Pages { pages, .. } => pages.saturating_sub(1),
        }
    }

    /// What a frame of `len` bytes takes, in [`MemoryConfig::unit_len`].
    pub(super) fn units(&self, len: usize) -> usize {
        let len = len.max(LINE_FRAME_LEN_MIN);
        match self.receive {
            ReceiveMemory::Unlimited => 0,
            ReceiveMemory::Bytes(_) => len,
            ReceiveMemory::Pages { page_len, .. } => (len + FRAME_OVERHEAD_LEN_DP8390).div_ceil(page_len.max(1)),
        }
    }

    /// Bytes of the unit that memory is given out in.
    pub(super) fn unit_len(&self) -> usize {
        match self.receive {
            ReceiveMemory::Unlimited | ReceiveMemory::Bytes(_) => 1,
            ReceiveMemory::Pages { page_len, .. } => page_len,
        }
    }
}

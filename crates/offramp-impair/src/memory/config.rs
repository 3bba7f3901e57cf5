//! The configuration of an adapter's memory: its size, its layout, and its overflow policy.

use crate::OutOfRange;
use offramp_adapter::cable::LINE_FRAME_LEN_MIN;
use std::ops::RangeInclusive;

/// Bytes per page of the DP8390's receive ring (National Semiconductor DP8390D data sheet, "Buffer Ring").
pub const PAGE_LEN_DP8390: usize = 256;
/// Bytes stored by the DP8390 in addition to each frame: a 4-byte header (status, next page, count) and the FCS.
pub const FRAME_OVERHEAD_LEN_DP8390: usize = 8;
/// Pages per transmit buffer in the layout of Linux's drivers: a full frame of 1514 bytes (Linux
/// `drivers/net/ethernet/8390/8390.h`, `TX_PAGES`).
pub const TRANSMIT_BUFFER_PAGES_DP8390: usize = 6;
/// Number of transmit buffers in the layout of Linux's drivers: the host fills one buffer while the card sends the
/// other buffer.
pub const TRANSMIT_BUFFERS_DP8390: usize = 2;
/// Time for which a DP8390 stops after an overflow of its ring, in nanoseconds. The data sheet requires 1.6 ms; Linux's
/// driver waits at least 10 ms (`lib8390.c`, `ei_rx_overrun`).
pub const RECOVER_NS_DP8390: u64 = 10_000_000;

/// Valid memory sizes, in bytes: from the length of the shortest frame to more than any card has.
pub const RECEIVE_BYTES: RangeInclusive<usize> = LINE_FRAME_LEN_MIN..=1 << 30;
/// Valid numbers of pages in the receive ring, including the page that is always free.
pub const RECEIVE_PAGES: RangeInclusive<usize> = 2..=1 << 20;
/// Valid page sizes, in bytes.
pub const PAGE_LEN: RangeInclusive<usize> = 64..=65_536;
/// Valid numbers of descriptors in a receive ring.
pub const RECEIVE_RING_ENTRIES: RangeInclusive<usize> = 1..=1 << 20;
/// Valid numbers of transmit buffers.
pub const TRANSMIT_BUFFERS: RangeInclusive<usize> = 1..=1 << 16;
/// Valid recovery times, in nanoseconds.
pub const RECOVER_NS: RangeInclusive<u64> = 1..=10_000_000_000;

/// The memory for received frames until the host has read them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveMemory {
    /// No limit.
    #[default]
    Unlimited,
    /// A number of bytes. A frame takes its length without FCS, but at least the length of the shortest frame.
    Bytes(usize),
    /// A ring of pages, as in the DP8390. A frame and its [`FRAME_OVERHEAD_LEN_DP8390`] take whole pages. One page is
    /// always free, because a full ring would look like an empty ring.
    Pages {
        /// Number of pages, including the page that is always free.
        pages: usize,
        /// Bytes per page.
        page_len: usize,
    },
}

/// The treatment of a received frame that does not fit into the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// The frame is lost ([`Loss::Drop`](offramp_adapter::stats::Loss::Drop)).
    #[default]
    Drop,
    /// The frame displaces the oldest frames in the memory, except a frame being read out
    /// ([`Loss::Overrun`](offramp_adapter::stats::Loss::Overrun)). If the displaced frames leave too little room, the
    /// new frame is lost.
    Overrun,
    /// The frame is lost, and the adapter stops. All further frames are lost until the driver has restarted the adapter
    /// ([`Loss::Drop`](offramp_adapter::stats::Loss::Drop), counted as missed by Linux's 8390 drivers). While the
    /// adapter is stopped, the host still reads frames out of the memory.
    StopAndRecover {
        /// Time from the loss of the frame until frames are accepted again, in nanoseconds.
        recover_ns: u64,
    },
}

/// The memory of an adapter. By default, the memory is unlimited, and no frame is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The memory for received frames, until the host has read out the frames.
    pub receive: ReceiveMemory,
    /// Number of descriptors in the receive ring: the maximum number of received frames in the memory, whatever their
    /// size. `None` if unlimited.
    pub receive_ring_entries: Option<usize>,
    /// Maximum number of frames waiting to be sent; `None` if unlimited. The host waits for a free buffer, so no frame
    /// is lost.
    pub transmit_buffers: Option<usize>,
    /// The treatment of a received frame that does not fit into the memory.
    pub policy: OverflowPolicy,
}

/// Valid memory sizes of a whole card, in bytes: from both transmit buffers and two receive pages up to the
/// controller's address space.
pub const CARD_BYTES: RangeInclusive<usize> =
    (TRANSMIT_BUFFERS_DP8390 * TRANSMIT_BUFFER_PAGES_DP8390 + 2) * PAGE_LEN_DP8390..=65_536;

impl MemoryConfig {
    /// Returns a card with a DP8390 and `card_bytes` of memory in the layout of Linux's drivers. Two transmit buffers
    /// are reserved, and the rest of the memory is a ring of pages. At an overflow, the card stops. A WD8003 or 3c503
    /// has 8 KiB, with 20 pages in the ring. A WD8013 has 16 KiB, with 52 pages in the ring.
    ///
    /// # Errors
    /// Fails if `card_bytes` is outside [`CARD_BYTES`].
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

    /// Checks that every setting is in its range.
    ///
    /// # Errors
    /// Returns a message of one line: the first invalid setting, its value and its range.
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

    /// Returns whether neither direction has a limit.
    pub fn is_none(&self) -> bool {
        !self.limits_receive() && self.transmit_buffers.is_none()
    }

    /// Returns whether a received frame can find the memory full.
    pub fn limits_receive(&self) -> bool {
        self.receive != ReceiveMemory::Unlimited || self.receive_ring_entries.is_some()
    }

    /// Returns the number of frames of `len` bytes, without FCS, that fit into an empty memory.
    pub fn frames(&self, len: usize) -> usize {
        let fit = self.capacity().checked_div(self.units(len)).unwrap_or(usize::MAX);
        fit.min(self.receive_ring_entries.unwrap_or(usize::MAX))
    }

    /// Returns the size of the memory, in units of [`MemoryConfig::unit_len`].
    pub(super) fn capacity(&self) -> usize {
        match self.receive {
            ReceiveMemory::Unlimited => usize::MAX,
            ReceiveMemory::Bytes(bytes) => bytes,
            ReceiveMemory::Pages { pages, .. } => pages.saturating_sub(1),
        }
    }

    /// Returns the size of a frame of `len` bytes, in units of [`MemoryConfig::unit_len`].
    pub(super) fn units(&self, len: usize) -> usize {
        let len = len.max(LINE_FRAME_LEN_MIN);
        match self.receive {
            ReceiveMemory::Unlimited => 0,
            ReceiveMemory::Bytes(_) => len,
            ReceiveMemory::Pages { page_len, .. } => (len + FRAME_OVERHEAD_LEN_DP8390).div_ceil(page_len.max(1)),
        }
    }

    /// Returns the number of bytes per allocation unit.
    pub(super) fn unit_len(&self) -> usize {
        match self.receive {
            ReceiveMemory::Unlimited | ReceiveMemory::Bytes(_) => 1,
            ReceiveMemory::Pages { page_len, .. } => page_len,
        }
    }
}

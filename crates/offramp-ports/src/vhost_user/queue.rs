//! One queue pair of a guest, for one thread: frames out of its transmit ring, frames into its receive ring.
//!
//! A frame that the guest sends is copied into private memory before anything looks at it: whatever the
//! guest changes meanwhile, what was checked is what is sent. Headers and lengths in guest memory are read
//! once.

use super::calls::{Calls, Tally};
use super::counters::QueueCounters;
use super::features;
use super::inflight::Part;
use super::mailbox::Receiver;
use super::memory::{DirtyLog, GuestMemory};
use super::rarp;
use super::ring::{BadRing, Batch, Buffer, Chain, FETCH_MAX, Ring, RingOptions, RingPlace};
use crate::vnet_hdr::{HEADER_LEN, decode_tx, encode_rx};
use crate::worker::HostIo;
use nix::errno::Errno;
use nix::unistd::{read, write};
use offramp_adapter::moderation::{ModerationConfig, Policy};
use offramp_adapter::port::{HostPort, InterruptCounts, Interrupts, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::{RxMeta, SegmentationKind, TxMeta};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

/// Alignment of the private frame, in bytes: one cache line, the widest vector load.
const FRAME_ALIGN: usize = 64;
/// Where `num_buffers` lies in the header (virtio 1.3, 5.1.6).
const NUM_BUFFERS_AT: usize = 10;
/// What an eventfd is written, and how many bytes it is read in.
const EVENT: [u8; 8] = 1u64.to_ne_bytes();
/// The part of its receive ring that a guest has left when it is called whatever the moderation says: while it
/// wakes, frames take the other buffers. Drivers fill a ring again before half of it is used (Linux: when 32 of
/// 256 are), so this binds only when the guest sleeps.
const RECEIVE_GUARD_PART: u16 = 2;
/// The part of its transmit ring that a guest gets back without a call before it is called, if it wants that, whatever
/// the moderation says. A driver stops when its ring is full, and then wants one call for most of it (Linux: three
/// quarters); before it comes back the rest may be sent. A frame may take several descriptors.
const TRANSMIT_GUARD_PART: u16 = 4;

/// Which ring of a pair (virtio 1.3, 5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// `receiveq`: the guest receives.
    Receive,
    /// `transmitq`: the guest transmits.
    Transmit,
}

impl Side {
    /// The side of a vring's index, and its pair.
    pub fn of(vring: usize) -> (Self, usize) {
        (if vring.is_multiple_of(2) { Self::Receive } else { Self::Transmit }, vring / 2)
    }
}

/// What the frontend said of a ring last (`SET_VRING_ENABLE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Switch {
    /// Nothing yet. What the guest sends waits: the driver may have begun while its frontend's message is still
    /// under way, and frames that were emptied out of the ring in between would be lost for nothing.
    #[default]
    Unset,
    On,
    /// What the guest sends is discarded (vhost-user, "Ring states").
    Off,
}

/// What a ring is started with.
#[derive(Debug)]
pub(super) struct Start {
    /// What was negotiated.
    pub features: u64,
    pub place: RingPlace,
    pub base: u32,
    pub kick: Option<OwnedFd>,
    pub is_logged: bool,
    /// Where a packed ring's position outlives this backend, if anywhere.
    pub inflight: Option<Part>,
}

/// One ring and what belongs to it.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "what the frontend says of a ring, each by a message of its own")]
pub(super) struct Vring {
    ring: Option<Ring>,
    place: RingPlace,
    /// Chains that were fetched and wait.
    batch: Batch,
    /// Chains that were put and that the driver does not see yet.
    staged: usize,
    /// The frames in them.
    tally: Tally,
    /// Slots that the driver sees and that no call was decided on.
    undecided: u32,
    /// The ring had no room in this batch. It is not looked at again before the batch ends: each look takes the
    /// index' cache line from the guest, which needs it to make room.
    is_dry: bool,
    kick: Option<OwnedFd>,
    calls: Calls,
    err: Option<OwnedFd>,
    switch: Switch,
    /// The frontend has started the ring and not stopped it: also while its memory is replaced.
    is_in_use: bool,
    is_logged: bool,
}

impl Vring {
    /// Shows the guest what was put, and calls it if it wants that, unless moderation puts it off.
    #[inline]
    fn publish(&mut self, memory: &GuestMemory, log: Option<&DirtyLog>, counters: &QueueCounters) {
        if self.staged == 0 {
            return;
        }
        self.staged = 0;
        let shown = self.tally.take();
        let Some(ring) = &mut self.ring else { return };
        let published = ring.publish(self.undecided);
        // Behind the write: a page that is copied between the two is copied again.
        self.mark(memory, log);
        if self.calls.is_off() {
            if published.wants_call {
                self.calls.call(counters);
            }
        } else if published.wants_call {
            self.undecided = self.undecided.saturating_add(u32::from(published.slots));
            self.calls.put_off(shown);
        } else {
            self.undecided = 0;
            self.calls.leave(shown);
        }
    }

    /// Decides on a call that was put off: the guest gets it if it still wants it.
    #[cold]
    fn decide(&mut self, now_ns: Option<u64>, counters: &QueueCounters) {
        if !self.calls.is_waiting() {
            return;
        }
        let undecided = std::mem::take(&mut self.undecided);
        if self.ring.as_ref().is_some_and(|ring| ring.wants_call(undecided)) {
            self.calls.call_for_waiting(now_ns, counters);
        } else {
            self.calls.forget_waiting();
        }
    }

    /// Changes the moderation. A call that waits and is put off no more is made now.
    fn moderate(&mut self, config: &ModerationConfig, counters: &QueueCounters) {
        if config.policy == Policy::Off {
            self.decide(None, counters);
        }
        self.calls.moderate(config);
    }

    /// Whether the guest has so few receive buffers left that it must not sleep any longer.
    fn is_running_dry(&self) -> bool {
        let size = self.place.size;
        let guard = u16::try_from(self.calls.config().ring_guard_frames).unwrap_or(u16::MAX).min(size);
        let guard = guard.max(size.div_ceil(RECEIVE_GUARD_PART));
        let fetched = u16::try_from(self.batch.waiting().len()).unwrap_or(u16::MAX);
        let wanted = guard.saturating_sub(fetched);
        wanted > 0 && self.ring.as_ref().is_some_and(|ring| !ring.has_ahead(wanted))
    }

    /// Whether the guest was given back so much of its transmit ring that it must not wait any longer.
    fn is_filling_up(&self) -> bool {
        self.calls.since_call() >= u64::from(self.place.size / TRANSMIT_GUARD_PART)
    }

    /// Marks what was written of the ring itself.
    #[inline]
    fn mark(&self, memory: &GuestMemory, log: Option<&DirtyLog>) {
        let (Some(log), Some(ring)) = (log.filter(|_| self.is_logged), &self.ring) else { return };
        for (user, len) in ring.written_extents(&self.place) {
            if let Some((_, guest)) = memory.at_user(user, len) {
                log.mark(guest, len);
            }
        }
    }

    /// Fetches chains; whether any wait now. A ring that makes no sense is stopped, and the frontend told.
    #[inline]
    fn fetch(&mut self, memory: &GuestMemory, counters: &QueueCounters) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        if let Ok(fetched) = ring.fetch(memory, &mut self.batch) {
            if fetched.bad > 0 {
                counters.bad_chains.add(fetched.bad as u64);
            }
            return fetched.chains + fetched.bad > 0;
        }
        self.decide(None, counters);
        counters.broken_rings.add(1);
        if let Some(err) = &self.err {
            // As with calls.
            let _ = write(err, &EVENT);
        }
        self.ring = None;
        self.is_in_use = false;
        self.batch.clear();
        false
    }

    #[inline]
    fn put_used(&mut self, chain: &Chain, written: u32) {
        if let Some(ring) = &mut self.ring {
            ring.put_used(chain, written);
            self.staged += 1;
        }
    }

    /// Empties the kick's counter. A descriptor that is not one is given up: it would never let us sleep.
    fn silence(&mut self) {
        let mut count = EVENT;
        let Some(kick) = &self.kick else { return };
        match read(kick, &mut count) {
            Ok(len) if len == EVENT.len() => {}
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            _ => self.kick = None,
        }
    }
}

/// What a queue works on. Its thread owns it; the frontend's changes come through the mailbox.
#[derive(Debug)]
pub(super) struct QueueState {
    memory: Arc<GuestMemory>,
    log: Option<Arc<DirtyLog>>,
    header_len: usize,
    is_mergeable: bool,
    offloads: Offloads,
    receive: Vring,
    transmit: Vring,
    /// Goes out before what the guest sends next.
    announcement: Option<[u8; rarp::FRAME_LEN]>,
    counters: Arc<QueueCounters>,
}

impl QueueState {
    pub fn new(counters: Arc<QueueCounters>) -> Self {
        Self {
            memory: Arc::default(),
            log: None,
            header_len: HEADER_LEN,
            is_mergeable: false,
            offloads: Offloads::empty(),
            receive: Vring::default(),
            transmit: Vring::default(),
            announcement: None,
            counters,
        }
    }

    /// Stops both rings and forgets what this frontend said.
    pub fn reset(&mut self) {
        for side in [Side::Receive, Side::Transmit] {
            self.stop(side);
            self.set_call(side, None);
            self.set_err(side, None);
            self.forget_enabled(side);
        }
        self.set_log(None);
        self.announce(None);
        self.set_features(0);
        self.set_memory(Arc::default());
    }

    fn vring(&mut self, side: Side) -> &mut Vring {
        match side {
            Side::Receive => &mut self.receive,
            Side::Transmit => &mut self.transmit,
        }
    }

    /// Takes over what was negotiated.
    pub fn set_features(&mut self, negotiated: u64) {
        self.header_len = features::header_len(negotiated);
        self.is_mergeable = negotiated & features::MRG_RXBUF != 0;
        self.offloads = features::offloads(negotiated);
    }

    /// Takes over memory, before any ring is started in it. Rings that run must be started again.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        self.memory = memory;
    }

    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>) {
        self.log = log;
    }

    /// Sends a frame as if the guest had sent it; `None` takes back one that was not sent yet.
    pub fn announce(&mut self, frame: Option<[u8; rarp::FRAME_LEN]>) {
        self.announcement = frame;
    }

    /// Starts a ring in the memory and with the features of now.
    pub fn start(&mut self, side: Side, start: Start) -> Result<(), BadRing> {
        let is_on = |feature: u64| start.features & feature != 0;
        let options = RingOptions {
            event_idx: is_on(features::EVENT_IDX),
            indirect: is_on(features::INDIRECT_DESC),
            writable: side == Side::Receive,
        };
        let is_packed = is_on(features::RING_PACKED);
        let mut ring = Ring::new(&self.memory, is_packed, &start.place, start.base, options, start.inflight)?;
        ring.disarm();
        let vring = self.vring(side);
        vring.batch.clear();
        (vring.staged, vring.undecided) = (0, 0);
        if ring.has_run() && !vring.calls.is_off() {
            // Whoever drove it before may have put off a call.
            vring.undecided = u32::MAX;
            vring.calls.put_off(Tally::default().take());
        }
        vring.ring = Some(ring);
        vring.place = start.place;
        vring.kick = start.kick;
        vring.is_logged = start.is_logged;
        vring.is_in_use = true;
        Ok(())
    }

    /// Stops a ring and says where to go on; `None` when it did not run.
    pub fn stop(&mut self, side: Side) -> Option<u32> {
        self.vring(side).is_in_use = false;
        self.pause(side)
    }

    /// Stops a ring that will be started again at once: it stays in use.
    pub fn pause(&mut self, side: Side) -> Option<u32> {
        let (memory, log, counters) = (Arc::clone(&self.memory), self.log.clone(), Arc::clone(&self.counters));
        let vring = self.vring(side);
        vring.publish(&memory, log.as_deref(), &counters);
        vring.decide(None, &counters);
        let base = vring.ring.take().map(|ring| ring.base(&vring.batch));
        vring.batch.clear();
        vring.kick = None;
        base
    }

    pub fn set_enabled(&mut self, side: Side, is_enabled: bool) {
        self.vring(side).switch = if is_enabled { Switch::On } else { Switch::Off };
    }

    /// Changes when the guest is called, in both directions.
    fn moderate(&mut self, config: &ModerationConfig) {
        self.receive.moderate(config, &self.counters);
        self.transmit.moderate(config, &self.counters);
    }

    /// Forgets whether a ring was enabled: another frontend comes.
    pub fn forget_enabled(&mut self, side: Side) {
        self.vring(side).switch = Switch::Unset;
    }

    pub fn set_logged(&mut self, side: Side, is_logged: bool) {
        self.vring(side).is_logged = is_logged;
    }

    pub fn set_call(&mut self, side: Side, call: Option<OwnedFd>) {
        self.vring(side).calls.set_event(call);
    }

    pub fn set_err(&mut self, side: Side, err: Option<OwnedFd>) {
        self.vring(side).err = err;
    }

    /// Calls the guest where moderation says so now; how many calls were made since the last time.
    #[inline]
    fn call_due(&mut self, now_ns: u64) -> InterruptCounts {
        if !self.receive.calls.is_off() {
            self.call_moderated(now_ns);
        }
        InterruptCounts { receive: self.receive.calls.take_made(), transmit: self.transmit.calls.take_made() }
    }

    fn call_moderated(&mut self, now_ns: u64) {
        let (received, sent) = (self.receive.calls.note(now_ns), self.transmit.calls.note(now_ns));
        self.receive.calls.other_direction(sent.bytes);
        self.transmit.calls.other_direction(received.bytes);
        if self.receive.calls.is_waiting()
            && (self.receive.calls.is_due(now_ns) || (received.frames > 0 && self.receive.is_running_dry()))
        {
            self.receive.decide(Some(now_ns), &self.counters);
        }
        if self.transmit.calls.is_waiting() && (self.transmit.calls.is_due(now_ns) || self.transmit.is_filling_up()) {
            self.transmit.decide(Some(now_ns), &self.counters);
        }
    }

    fn publish(&mut self) {
        self.receive.is_dry = false;
        let log = self.log.as_deref();
        self.receive.publish(&self.memory, log, &self.counters);
        self.transmit.publish(&self.memory, log, &self.counters);
    }

    /// Fetches what the guest sends; whether there is any.
    #[inline]
    fn fetch_transmit(&mut self) -> bool {
        self.transmit.publish(&self.memory, self.log.as_deref(), &self.counters);
        match self.transmit.switch {
            Switch::On => self.transmit.fetch(&self.memory, &self.counters),
            Switch::Unset => false,
            Switch::Off => {
                if self.transmit.fetch(&self.memory, &self.counters) {
                    self.discard_transmit();
                }
                false
            }
        }
    }

    /// A disabled ring of a network device is emptied (vhost-user, "Ring states").
    #[cold]
    fn discard_transmit(&mut self) {
        // As much as the ring holds: what is left would wait for a kick that was made already.
        let mut fetches_left = usize::from(self.transmit.place.size) / FETCH_MAX;
        loop {
            while let Some(chain) = self.transmit.batch.pop() {
                self.transmit.put_used(&chain, 0);
                self.transmit.tally.add(u64::from(chain.len));
                self.counters.discarded.add(1);
            }
            if fetches_left == 0 || !self.transmit.fetch(&self.memory, &self.counters) {
                return;
            }
            fetches_left -= 1;
        }
    }

    /// Copies a frame and its header out of guest memory; the frame's length, `None` when the chain holds
    /// no frame or a longer one than `frame` has room for.
    #[inline]
    fn read_frame(&self, chain: &Chain, header: &mut [u8; HEADER_LEN], frame: &mut [u8]) -> Option<usize> {
        let len = (chain.len as usize).checked_sub(self.header_len).filter(|len| (1..=frame.len()).contains(len))?;
        let buffers = self.transmit.batch.buffers(chain);
        if let ([only], HEADER_LEN) = (buffers, self.header_len) {
            *header = read_header(only)?;
            copy_from_guest(only, HEADER_LEN, &mut frame[..len]);
            return Some(len);
        }
        let header = &mut header[..self.header_len];
        match buffers {
            [only] => {
                copy_from_guest(only, 0, header);
                copy_from_guest(only, header.len(), &mut frame[..len]);
            }
            [first, second] if first.len as usize == header.len() => {
                copy_from_guest(first, 0, header);
                copy_from_guest(second, 0, &mut frame[..len]);
            }
            _ => read_scattered(buffers, header, &mut frame[..len]),
        }
        Some(len)
    }

    /// How many of the waiting receive chains a frame of `len` bytes with its header takes.
    #[inline]
    fn gather(&mut self, len: usize) -> Result<usize, PortError> {
        if self.receive.switch != Switch::On || self.receive.is_dry {
            return Err(PortError::Full);
        }
        let (mut chains, mut room) = (0, 0);
        loop {
            if let Some(chain) = self.receive.batch.waiting().get(chains) {
                if !self.is_mergeable {
                    return self.single(len);
                }
                if chain.len == 0 {
                    // A bad chain cannot be part of a frame, nor can one lie on both its sides.
                    self.return_unused(chains + 1);
                    (chains, room) = (0, 0);
                    continue;
                }
                chains += 1;
                room += chain.len as usize;
                if room >= len {
                    return Ok(chains);
                }
            } else if chains > usize::from(self.receive.place.size) || !self.fetch_receive() {
                self.receive.is_dry = true;
                return Err(PortError::Full);
            }
        }
    }

    /// Gives receive chains back with nothing in them.
    #[cold]
    fn return_unused(&mut self, chains: usize) {
        for _ in 0..chains {
            let Some(chain) = self.receive.batch.pop() else { return };
            self.receive.put_used(&chain, 0);
        }
    }

    fn fetch_receive(&mut self) -> bool {
        self.receive.fetch(&self.memory, &self.counters)
    }

    /// As [`QueueState::gather`] for a driver that takes each frame in one chain (virtio 1.3, 5.1.6.4).
    fn single(&mut self, len: usize) -> Result<usize, PortError> {
        while let Some(chain) = self.receive.batch.waiting().first() {
            match chain.len as usize {
                room if room >= len => return Ok(1),
                // A bad chain: it goes back as it is.
                0 => self.return_unused(1),
                _ => return Err(PortError::Refused(libc::EMSGSIZE)),
            }
        }
        if self.fetch_receive() {
            return self.single(len);
        }
        self.receive.is_dry = true;
        Err(PortError::Full)
    }

    /// Writes a frame into the next `chains` chains, each but the last one completely (virtio 1.3, 5.1.6.4.1).
    #[inline]
    fn write_frame(&mut self, chains: usize, header: &mut [u8; HEADER_LEN], frame: &[u8]) {
        header[NUM_BUFFERS_AT..].copy_from_slice(&(chains as u16).to_le_bytes());
        let log = self.log.as_deref();
        if let Some(chain) = self.receive.batch.waiting().first().copied()
            && let ([only], HEADER_LEN, 1, None) = (self.receive.batch.buffers(&chain), self.header_len, chains, log)
            && write_whole(only, header, frame)
        {
            self.receive.batch.pop();
            return self.receive.put_used(&chain, (HEADER_LEN + frame.len()) as u32);
        }
        let header = &header[..self.header_len];
        let mut at = 0;
        for _ in 0..chains {
            let Some(chain) = self.receive.batch.pop() else { return };
            let start = at;
            for buffer in self.receive.batch.buffers(&chain) {
                let len = write_piece(buffer, header, frame, at);
                if let Some(log) = log {
                    log.mark(buffer.guest, len as u64);
                }
                at += len;
            }
            self.receive.put_used(&chain, (at - start) as u32);
        }
    }
}

/// The offloads that a request needs. That a super-frame carries CWR changes nothing of its cutting.
#[inline]
fn asked_of(meta: &TxMeta) -> Offloads {
    let checksum = if meta.checksum.is_some() { Offloads::TX_CHECKSUM } else { Offloads::empty() };
    let segmentation = meta.segmentation.map_or(Offloads::empty(), |segmentation| match segmentation.kind {
        SegmentationKind::Tcp4 => Offloads::TSO4,
        SegmentationKind::Tcp6 => Offloads::TSO6,
        SegmentationKind::Udp => Offloads::USO,
        SegmentationKind::UdpFragments => Offloads::UFO,
    });
    checksum | segmentation
}

/// Copies bytes out of a buffer. What does not fit was checked by the caller.
#[inline]
fn copy_from_guest(buffer: &Buffer, offset: usize, out: &mut [u8]) {
    let len = out.len().min((buffer.len as usize).saturating_sub(offset));
    // SAFETY: `offset + len` bytes of the buffer are mapped guest memory, and `out` is private. The guest may
    // write meanwhile: then the copy holds some of either, and only the copy is looked at.
    unsafe { ptr::copy_nonoverlapping(buffer.host.as_ptr().add(offset), out.as_mut_ptr(), len) };
}

/// The header at the front of a buffer, if it is all there: a copy of a length that is known is two moves.
#[inline]
fn read_header(buffer: &Buffer) -> Option<[u8; HEADER_LEN]> {
    // SAFETY: as in `copy_from_guest`, for the first bytes of a buffer that has so many.
    (buffer.len as usize >= HEADER_LEN).then(|| unsafe { buffer.host.cast::<[u8; HEADER_LEN]>().read_unaligned() })
}

/// Writes header and frame into one buffer, if they fit.
#[inline]
fn write_whole(buffer: &Buffer, header: &[u8; HEADER_LEN], frame: &[u8]) -> bool {
    let fits = buffer.len as usize >= HEADER_LEN + frame.len();
    if fits {
        // SAFETY: as in `copy_to_guest`, for the first bytes of a buffer that has so many.
        unsafe { buffer.host.cast::<[u8; HEADER_LEN]>().write_unaligned(*header) };
        copy_to_guest(buffer, HEADER_LEN, frame);
    }
    fits
}

/// Copies bytes into a buffer. What does not fit was checked by the caller.
#[inline]
fn copy_to_guest(buffer: &Buffer, offset: usize, bytes: &[u8]) {
    let len = bytes.len().min((buffer.len as usize).saturating_sub(offset));
    // SAFETY: `offset + len` bytes of the buffer are mapped guest memory, which `bytes` is never part of.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.host.as_ptr().add(offset), len) };
}

/// A header and a frame out of buffers of any shape.
fn read_scattered(buffers: &[Buffer], header: &mut [u8], frame: &mut [u8]) {
    let (mut header, mut frame) = (header, frame);
    for buffer in buffers {
        let mut offset = 0;
        for part in [&mut header, &mut frame] {
            let len = part.len().min(buffer.len as usize - offset);
            let (now, later) = std::mem::take(part).split_at_mut(len);
            copy_from_guest(buffer, offset, now);
            *part = later;
            offset += len;
        }
    }
}

/// Fills a buffer with what follows byte `at` of header and frame together; how many bytes that were.
#[inline]
fn write_piece(buffer: &Buffer, header: &[u8], frame: &[u8], at: usize) -> usize {
    let room = buffer.len as usize;
    let of_header = header.get(at..).unwrap_or_default();
    let of_header = &of_header[..of_header.len().min(room)];
    let of_frame = frame.get((at + of_header.len()).saturating_sub(header.len())..).unwrap_or_default();
    let of_frame = &of_frame[..of_frame.len().min(room - of_header.len())];
    copy_to_guest(buffer, 0, of_header);
    copy_to_guest(buffer, of_header.len(), of_frame);
    of_header.len() + of_frame.len()
}

/// One queue pair of a [`VhostUser`](super::VhostUser), for one thread. It works whether or not a guest
/// is there: without one nothing comes, and what is given has no room.
#[derive(Debug)]
pub struct VhostQueue {
    index: usize,
    mailbox: Receiver<QueueState>,
    state: QueueState,
    frame: FrameBuffer<Box<[u8]>>,
    frame_at: usize,
    frame_len_max: usize,
}

impl VhostQueue {
    pub(super) fn new(index: usize, mailbox: Receiver<QueueState>, state: QueueState, frame_len_max: usize) -> Self {
        let buffer = vec![0; FRAME_ALIGN + frame_len_max].into_boxed_slice();
        // The box is never replaced, so its address, and with it the alignment, stays.
        let frame_at = (buffer.as_ptr() as usize).next_multiple_of(FRAME_ALIGN) - buffer.as_ptr() as usize;
        Self { index, mailbox, state, frame: FrameBuffer::new(buffer), frame_at, frame_len_max }
    }

    /// The pair's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether the guest has a receive ring here that it uses.
    pub fn receives(&self) -> bool {
        self.state.receive.switch == Switch::On && self.state.receive.is_in_use
    }

    /// Shows the guest what it was given so far.
    pub(super) fn publish_received(&mut self) {
        let state = &mut self.state;
        state.receive.publish(&state.memory, state.log.as_deref(), &state.counters);
    }

    /// Takes a frame that the guest has not sent; whether there is room for it.
    #[cold]
    fn take_announcement(&mut self) -> bool {
        let frame = self.state.announcement.take().filter(|frame| frame.len() <= self.frame_len_max);
        if let Some(frame) = &frame {
            let place = self.frame_at..self.frame_at + frame.len();
            self.frame.memory_mut()[place.clone()].copy_from_slice(frame);
            self.frame.set(place, TxMeta::default());
        }
        frame.is_some()
    }

    /// Takes the next frame of the batch.
    #[inline]
    fn take_next(&mut self) -> Result<bool, PortError> {
        let Some(chain) = self.state.transmit.batch.pop() else { return Ok(false) };
        let mut header = [0; HEADER_LEN];
        let frame = &mut self.frame.memory_mut()[self.frame_at..self.frame_at + self.frame_len_max];
        let len = self.state.read_frame(&chain, &mut header, frame);
        self.state.transmit.put_used(&chain, 0);
        self.state.transmit.tally.add(u64::from(chain.len));
        let len = len.ok_or(PortError::Refused(libc::EINVAL))?;
        self.frame.set(self.frame_at..self.frame_at + len, self.request(&header)?);
        Ok(true)
    }

    /// What a header asks for.
    #[inline]
    fn request(&self, header: &[u8; HEADER_LEN]) -> Result<TxMeta, PortError> {
        if !self.state.offloads.intersects(Offloads::TX) {
            // Nothing can be asked for. DPDK's vectorized driver leaves such headers as they were in the buffer before.
            return Ok(TxMeta::default());
        }
        let meta = decode_tx(header).map_err(|_| PortError::Refused(libc::EINVAL))?;
        if !self.state.offloads.contains(asked_of(&meta)) {
            // The driver asks for what it did not negotiate (virtio 1.3, 5.1.6.2.1).
            return Err(PortError::Refused(libc::EINVAL));
        }
        Ok(meta)
    }
}

impl HostPort for VhostQueue {
    #[inline]
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        self.frame.clear();
        if self.state.transmit.batch.is_empty() {
            self.mailbox.serve(&mut self.state);
            if self.state.announcement.is_some() {
                return Ok(self.take_announcement());
            }
            if !self.state.fetch_transmit() {
                return Ok(false);
            }
        }
        self.take_next()
    }

    #[inline]
    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    #[inline]
    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        let chains = self.state.gather(self.state.header_len + frame.len())?;
        self.state.write_frame(chains, &mut encode_rx(meta), frame);
        self.state.receive.tally.add(frame.len() as u64);
        if self.state.receive.staged >= FETCH_MAX {
            self.publish_received();
        }
        Ok(())
    }

    fn rx_flush(&mut self, _now_ns: u64) {
        self.state.publish();
        self.mailbox.serve(&mut self.state);
    }

    fn interrupts(&mut self) -> Option<&mut dyn Interrupts> {
        Some(self)
    }

    fn accepts(&self) -> Offloads {
        self.state.offloads
    }

    fn honours_data_valid(&self) -> bool {
        true
    }
}

/// An interrupt is a call: of the receive ring for frames, of the transmit ring for completions.
///
/// Besides the policy a ring's filling asks for one: when less than half of the receive ring's buffers are left, and
/// when a quarter of the transmit ring was given back since the last call. A call that was put off is made at once
/// when its ring is stopped. The cost of a call is what it takes here, measured, and what the guest is taken to
/// spend on it.
impl Interrupts for VhostQueue {
    fn moderate(&mut self, config: &ModerationConfig) {
        self.state.moderate(config);
    }

    #[inline]
    fn send_due(&mut self, now_ns: u64) -> InterruptCounts {
        self.state.call_due(now_ns)
    }

    #[inline]
    fn next_due_ns(&self) -> Option<u64> {
        let QueueState { receive, transmit, .. } = &self.state;
        receive.calls.next_due_ns().into_iter().chain(transmit.calls.next_due_ns()).min()
    }

    fn cost_ns(&self) -> u64 {
        self.state.receive.calls.cost_ns()
    }

    fn wait_max_ns(&self) -> u64 {
        self.state.receive.calls.wait_max_ns()
    }
}

impl Drop for QueueState {
    /// Nobody would make the calls that are put off.
    fn drop(&mut self) {
        self.moderate(&ModerationConfig::default());
    }
}

impl HostIo for VhostQueue {
    fn arm(&mut self) {
        self.state.publish();
        self.mailbox.serve(&mut self.state);
        if let Some(ring) = &mut self.state.transmit.ring {
            ring.arm();
        }
        self.state.transmit.mark(&self.state.memory, self.state.log.as_deref());
    }

    fn disarm(&mut self) {
        if let Some(ring) = &mut self.state.transmit.ring {
            ring.disarm();
        }
        self.state.transmit.mark(&self.state.memory, self.state.log.as_deref());
        self.state.transmit.silence();
        self.mailbox.serve(&mut self.state);
    }

    fn watch<'a>(&'a self, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        watch(self.mailbox.bell());
        if let Some(kick) = &self.state.transmit.kick {
            watch(kick.as_fd());
        }
    }
}

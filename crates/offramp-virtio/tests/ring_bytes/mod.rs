//! Invariants for any ring contents, checked by two fuzz targets and an ordinary test.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use offramp_virtio::memory::{Extent, GuestMemory};
use offramp_virtio::net_header::{HEADER_LEN, NetHeader};
use offramp_virtio::ring::{Buffer, Direction, FETCH_MAX, RingOptions, RingPlace};
use offramp_virtio::vring::{Vring, VringSetup};

/// Length of guest memory in bytes, small enough that a random address often lies inside. Buffers can cross the border
/// of the two regions.
const MEMORY_LEN: u64 = 0xf80;
const BORDER: u64 = 0x440;
/// Number of guard bytes in the file before and after the memory. The guard bytes must not change.
const GUARD_LEN: u64 = 64;
const GUARD: [u8; GUARD_LEN as usize] = [0xa5; GUARD_LEN as usize];
/// Addresses of the transmit ring and the receive ring: descriptors, driver area, device area.
const PARTS: [[u64; 3]; 2] = [[0, 0x100, 0x140], [0x200, 0x300, 0x340]];
/// Maximum ring size, in descriptors, without an overlap of the ring's areas.
const RING_MAX: u16 = 16;
/// Number of polls by the device per input.
const ROUNDS: usize = 4;
/// Maximum length of a frame, in bytes.
const FRAME_LEN_MAX: usize = 4096;
/// Length of the settings before the ring's memory, in bytes.
pub const SETTINGS_LEN: usize = 12;

struct Bench {
    file: File,
    memory: Arc<GuestMemory>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

impl Bench {
    fn new() -> Self {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).expect("a file"));
        file.set_len(MEMORY_LEN + 2 * GUARD_LEN).expect("sizing a file");
        for at in [0, GUARD_LEN + MEMORY_LEN] {
            file.write_all_at(&GUARD, at).expect("writing a guard");
        }
        let extent = |guest, len| Extent { guest, user: guest, len, file_offset: GUARD_LEN + guest };
        let extents = [extent(0, BORDER), extent(BORDER, MEMORY_LEN - BORDER)];
        let table = extents.map(|extent| (extent, file.try_clone().expect("a descriptor")));
        let alarm = Arc::new(EventFd::new().expect("an eventfd"));
        Self { memory: Arc::new(GuestMemory::map(&table, u64::MAX, &alarm).expect("mapping")), file }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, GUARD_LEN + at).expect("writing guest memory");
    }

    fn start(&self, settings: &[u8; SETTINGS_LEN], is_packed: bool, which: usize) -> Vring {
        let size = u16::from(settings[1]) % RING_MAX + 1;
        let size = if is_packed { size } else { size.next_power_of_two() };
        let [low, high] = [4, 6].map(|at| u16::from_le_bytes([settings[at + 4 * which], settings[at + 1 + 4 * which]]));
        let slot = |bits: u16| u32::from(((bits & 0x7fff) % size) | (bits & 0x8000));
        let base = if is_packed { slot(low) | slot(high) << 16 } else { low.into() };
        let [descriptors, driver, device] = PARTS[which];
        let is_on = |bit: u8| settings[0] >> bit & 1 == 1;
        let direction = match which {
            0 if has_commands(settings) => Direction::Control,
            0 => Direction::Transmit,
            _ => Direction::Receive,
        };
        let options = RingOptions { event_idx: is_on(0), indirect: is_on(1), direction };
        let mut vring = Vring::default();
        let place = RingPlace { size, descriptors, driver, device };
        let memory = Arc::clone(&self.memory);
        let setup =
            VringSetup { memory, place, is_packed, options, base, kick: None, is_logged: false, inflight: None };
        vring.start(setup, None).expect("a ring that is right");
        vring
    }
}

/// Runs an input: settings, followed by the bytes of the rings and buffers. Bytes change between two polls by the
/// device.
pub fn ring(bytes: &[u8], is_packed: bool) {
    let Some((settings, contents)) = bytes.split_first_chunk::<SETTINGS_LEN>() else { return };
    BENCH.with_borrow(|bench| {
        let mut memory = [0; MEMORY_LEN as usize];
        let len = contents.len().min(memory.len());
        memory[..len].copy_from_slice(&contents[..len]);
        bench.write(0, &memory);
        let [mut transmit, mut receive] = [0, 1].map(|which| bench.start(settings, is_packed, which));
        let frame = vec![0x5a; 1 + usize::from(settings[2]) * 16];
        for round in 0..ROUNDS {
            if has_commands(settings) {
                answer(&mut transmit);
            } else {
                drain(&mut transmit);
            }
            if settings[3] & 1 == 0 {
                fill(&mut receive, &frame);
            } else {
                fill_in_pieces(&mut receive, &frame);
            }
            for pair in contents.chunks_exact(3).skip(round * 8).take(8) {
                let at = u64::from(u16::from_le_bytes([pair[0], pair[1]])) % MEMORY_LEN;
                bench.write(at, &pair[2..]);
            }
        }
        for vring in [&mut transmit, &mut receive] {
            let size = u32::from(vring.size());
            if let Some(base) = vring.stop().filter(|_| is_packed) {
                assert!(base & 0x7fff < size && base >> 16 & 0x7fff < size, "{base:#x} in a ring of {size}");
            }
        }
        for at in [0, GUARD_LEN + MEMORY_LEN] {
            let mut guard = [0; GUARD_LEN as usize];
            bench.file.read_exact_at(&mut guard, at).expect("reading a guard");
            assert_eq!(guard, GUARD, "bytes outside guest memory were written");
        }
    });
}

/// Fetches chains. Returns `false` if no chain was available or the ring is in an invalid state.
fn fetch(vring: &mut Vring) -> bool {
    let Ok(fetched) = vring.fetch(None) else {
        vring.fail();
        return false;
    };
    assert!(fetched.chains + fetched.bad <= FETCH_MAX);
    fetched.chains + fetched.bad > 0
}

fn publish(vring: &mut Vring) {
    let staged = vring.staged();
    if let Some(published) = vring.publish(None) {
        let slots = usize::from(published.slots);
        assert!((staged..=usize::from(vring.size())).contains(&slots), "{staged} chains in {slots} slots");
    }
    vring.needs_notification();
    vring.enable_notifications(None);
    vring.disable_notifications(None);
}

fn drain(vring: &mut Vring) {
    let (mut header, mut frame) = ([0; HEADER_LEN], [0; FRAME_LEN_MAX]);
    while fetch(vring) {
        while let Some(chain) = vring.pop() {
            let bytes: usize = vring.buffers(&chain).iter().map(Buffer::len).sum();
            assert_eq!(bytes, chain.len());
            let read = vring.read_frame(&chain, HEADER_LEN, &mut header, &mut frame);
            assert_eq!(read, bytes.checked_sub(HEADER_LEN).filter(|len| (1..=FRAME_LEN_MAX).contains(len)));
            vring.add_used(&chain, 0);
        }
    }
    publish(vring);
}

/// Returns whether the driver's ring is a control queue instead of a transmit ring.
fn has_commands(settings: &[u8; SETTINGS_LEN]) -> bool {
    settings[3] >> 1 & 1 == 1
}

/// Answers commands with answers of maximum length.
fn answer(vring: &mut Vring) {
    while fetch(vring) {
        while let Some(chain) = vring.pop() {
            let Some((command, room)) = vring.read_command(&chain, FRAME_LEN_MAX) else {
                vring.add_used(&chain, 0);
                continue;
            };
            assert_eq!(command.len() + room, chain.len());
            vring.answer(&chain, &vec![0x5a; room.min(FRAME_LEN_MAX)], None);
        }
    }
    publish(vring);
}

/// Returns bad chains to the driver: a bad chain that comes first would block all frames.
fn skip_bad(vring: &mut Vring) {
    while vring.waiting().first().is_some_and(|chain| chain.len() == 0) {
        if let Some(chain) = vring.pop() {
            vring.add_used(&chain, 0);
        }
    }
}

/// Returns the number of waiting chains needed for `len` bytes.
fn chains_for(vring: &Vring, len: usize) -> Option<usize> {
    let mut room = 0;
    let good = vring.waiting().iter().take_while(|chain| chain.len() > 0);
    good.map(|chain| {
        room += chain.len();
        room
    })
    .position(|room| room >= len)
    .map(|last| last + 1)
}

fn fill(vring: &mut Vring, frame: &[u8]) {
    fetch(vring);
    skip_bad(vring);
    while let Some(chains) = chains_for(vring, HEADER_LEN + frame.len()) {
        vring.write_frame(chains, HEADER_LEN, NetHeader::default(), frame, None);
        skip_bad(vring);
    }
    publish(vring);
}

/// Writes a frame in two pieces. Keeps nothing of the second piece at first, and repeats it.
fn fill_in_pieces(vring: &mut Vring, frame: &[u8]) {
    const SLOT: usize = 1;
    fetch(vring);
    skip_bad(vring);
    vring.open_frame(SLOT, HEADER_LEN);
    let (first, second) = frame.split_at(frame.len() / 2);
    for (piece, is_kept) in [(first, true), (second, false), (second, true)] {
        let chains = match vring.lacks(SLOT, piece.len()) {
            Some(0) => 0,
            Some(lacking) => match chains_for(vring, lacking) {
                Some(chains) => chains,
                None => break,
            },
            None => break,
        };
        let mut left = piece;
        // Sometimes lend a chain more than needed.
        let spare = usize::from(vring.waiting().get(chains).is_some_and(|chain| chain.len() > 0));
        for (to, len) in vring.lend(SLOT, chains + spare) {
            let (now, later) = left.split_at(len.min(left.len()));
            // SAFETY: `lend` guarantees as many writable bytes of guest memory, without any reference to these bytes.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to, now.len()) };
            left = later;
        }
        vring.fill(SLOT, if is_kept { piece.len() } else { 0 }, None);
    }
    if vring.has_chain(SLOT) {
        vring.commit(SLOT, HEADER_LEN, NetHeader::default(), &[], None);
    }
    publish(vring);
}

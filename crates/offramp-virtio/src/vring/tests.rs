//! Tests with driver and device in two threads, for Miri. Miri simulates writes that the other thread has not seen yet,
//! and reports unordered accesses.

use super::*;
use crate::memory::Extent;
use crate::net_header::HEADER_LEN;
use crate::ring::FETCH_MAX;
use crate::sigbus::Alarm;
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::hint::spin_loop;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Number of chains made available by the driver. When the ring is full, the driver waits for a used chain before it
/// adds the next chain.
const CHAINS: u16 = if cfg!(miri) { 20 } else { 20_000 };
const SIZE: u16 = 4;
const PLACE: RingPlace = RingPlace { size: SIZE, descriptors: 0, driver: 0x100, device: 0x200 };
const BUFFERS_AT: u64 = 0x400;
const BUFFER_LEN: usize = HEADER_LEN + 8;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// The driver's view of the memory.
struct Driver(Arc<GuestMemory>);

impl Driver {
    fn at<T>(&self, at: u64) -> NonNull<T> {
        self.0.at_guest(at, size_of::<T>() as u64).unwrap().cast()
    }

    /// Returns a word used by driver and device at the same time.
    fn word(&self, at: u64) -> &AtomicU16 {
        // SAFETY: the word is aligned and lies in the memory, which lives as long as `self`.
        unsafe { AtomicU16::from_ptr(self.at(at).as_ptr()) }
    }

    /// Writes a value before the device reads it.
    fn write<T>(&self, at: u64, value: T) {
        // SAFETY: the bytes are aligned and lie in the memory, and the driver owns the bytes in this state of the ring.
        unsafe { self.at::<T>(at).write(value) };
    }

    fn fill_buffer(&self, slot: u16, number: u16) -> u64 {
        let at = BUFFERS_AT + 32 * u64::from(slot);
        let mut bytes = [0; BUFFER_LEN];
        bytes[HEADER_LEN..].copy_from_slice(&u64::from(number).to_le_bytes());
        self.write(at, bytes);
        at
    }

    fn split(&self) {
        for number in 0..CHAINS {
            let slot = number % SIZE;
            // The slot is free as soon as the device has used the slot's previous chain.
            while number.wrapping_sub(self.word(PLACE.device + 2).load(Ordering::Acquire)) >= SIZE {
                spin_loop();
            }
            let addr = self.fill_buffer(slot, number);
            self.write(16 * u64::from(slot), (addr, BUFFER_LEN as u32, 0u16, 0u16));
            self.word(PLACE.driver + 4 + 2 * u64::from(slot)).store(slot, Ordering::Relaxed);
            self.word(PLACE.driver + 2).store(number + 1, Ordering::Release);
        }
    }

    fn packed(&self) {
        for number in 0..CHAINS {
            let (slot, lap) = (number % SIZE, number / SIZE);
            let descriptor = 16 * u64::from(slot);
            // SAFETY: the half is aligned and lies in the memory. While the device owns the chain, driver and device
            // access the half only atomically.
            let half = unsafe { AtomicU64::from_ptr(self.at(descriptor + 8).as_ptr()) };
            let used_before = if lap % 2 == 1 { AVAIL | USED } else { 0 };
            while lap > 0 && (half.load(Ordering::Acquire) >> 48) as u16 != used_before {
                spin_loop();
            }
            let addr = self.fill_buffer(slot, number);
            self.write(descriptor, addr);
            let available = if lap.is_multiple_of(2) { AVAIL } else { USED };
            if cfg!(miri) {
                // Store with the size of the device's read under Miri, because Miri reports atomics of two sizes at one
                // place as a race.
                let flags_and_id = u64::from(available) << 48 | u64::from(slot) << 32;
                half.store(flags_and_id | BUFFER_LEN as u64, Ordering::Release);
            } else {
                self.write(descriptor + 8, BUFFER_LEN as u32);
                self.write(descriptor + 12, slot);
                self.word(descriptor + 14).store(available, Ordering::Release);
            }
        }
    }
}

fn device(memory: Arc<GuestMemory>, is_packed: bool) {
    let mut vring = Vring::default();
    let base = if is_packed { 0x8000_8000 } else { 0 };
    let options = RingOptions::default();
    let setup =
        VringSetup { memory, place: PLACE, is_packed, options, base, kick: None, is_logged: false, inflight: None };
    vring.start(setup, None).unwrap();
    let mut expected = 0;
    while expected < CHAINS {
        assert!(vring.fetch(None).unwrap().chains <= FETCH_MAX);
        while let Some(chain) = vring.pop() {
            let (mut header, mut frame) = ([0; HEADER_LEN], [0; 8]);
            assert_eq!(vring.read_frame(&chain, HEADER_LEN, &mut header, &mut frame), Some(8));
            assert_eq!(u64::from_le_bytes(frame), u64::from(expected));
            vring.add_used(&chain, 0);
            expected += 1;
        }
        vring.publish(None);
        spin_loop();
    }
}

#[test]
fn a_driver_in_another_thread_has_each_buffer_back_before_it_writes_there_again() {
    for is_packed in [false, true] {
        let extent = Extent { guest: 0, user: 0, len: 4096, file_offset: 0 };
        let memory = Arc::new(GuestMemory::anonymous(&[extent]));
        let driver = Driver(Arc::clone(&memory));
        std::thread::scope(|scope| {
            scope.spawn(|| if is_packed { driver.packed() } else { driver.split() });
            scope.spawn(|| device(memory, is_packed));
        });
    }
}

#[test]
fn a_log_has_what_a_ring_writes_when_it_is_started() {
    let file = File::from(memfd_create(c"log", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(4096).unwrap();
    let log = DirtyLog::map(&file, 0, 2, &Alarm::new(EventFd::new().unwrap())).unwrap();
    for (is_packed, base) in [(false, 0), (true, 0x8000_8000)] {
        // The region is page 9 of the guest.
        let extent = Extent { guest: 9 * 4096, user: 0, len: 4096, file_offset: 0 };
        let memory = Arc::new(GuestMemory::anonymous(&[extent]));
        let options = RingOptions::default();
        let setup =
            VringSetup { memory, place: PLACE, is_packed, options, base, kick: None, is_logged: true, inflight: None };
        file.write_all_at(&[0; 2], 0).unwrap();
        Vring::default().start(setup, Some(&log)).unwrap();
        let mut marks = [0; 2];
        file.read_exact_at(&mut marks, 0).unwrap();
        assert_eq!(marks, [0, 1 << 1], "packed: {is_packed}");
    }
}

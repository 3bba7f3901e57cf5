//! A device that does one step at a time by reading and writing the guest's files. The device is slow, and simple
//! enough to verify by reading. The device shares no code with the drivers under test.

#![allow(dead_code)] // Each test program uses only a part of this module.

pub mod backend;

use std::fs::File;
use std::os::unix::fs::FileExt;

use offramp_testkit::GuestMemory;
use offramp_testkit::ring::RingAddresses;

/// A region of guest memory, in the view of a backend.
pub struct FileRegion {
    pub guest_addr: u64,
    pub len: u64,
    pub user_addr: u64,
    pub offset: u64,
    pub file: File,
}

/// Guest memory, accessed as files.
pub struct Files(pub Vec<FileRegion>);

impl Files {
    pub fn of(memory: &GuestMemory) -> Self {
        let region = |region: &offramp_testkit::Region| FileRegion {
            guest_addr: region.guest_addr(),
            len: region.len(),
            user_addr: region.user_addr(),
            offset: region.file_offset(),
            file: File::from(region.fd().try_clone_to_owned().expect("another descriptor")),
        };
        Self(memory.regions().iter().map(region).collect())
    }

    /// Converts an address in the frontend's process to a guest address.
    pub fn guest_addr(&self, user_addr: u64) -> u64 {
        let inside = |region: &&FileRegion| (region.user_addr..region.user_addr + region.len).contains(&user_addr);
        let region = self.0.iter().find(inside).expect("a user address in a region");
        region.guest_addr + (user_addr - region.user_addr)
    }

    fn place(&self, addr: u64) -> (&File, u64, u64) {
        let inside = |region: &&FileRegion| (region.guest_addr..region.guest_addr + region.len).contains(&addr);
        let region = self.0.iter().find(inside).unwrap_or_else(|| panic!("the driver named address {addr:#x}"));
        let at = addr - region.guest_addr;
        (&region.file, region.offset + at, region.len - at)
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let (file, at, room) = self.place(addr + done as u64);
            let end = len.min(done + room as usize);
            file.read_exact_at(&mut bytes[done..end], at).expect("reading guest memory");
            done = end;
        }
        bytes
    }

    pub fn write(&self, addr: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (file, at, room) = self.place(addr + done as u64);
            let end = bytes.len().min(done + room as usize);
            file.write_all_at(&bytes[done..end], at).expect("writing guest memory");
            done = end;
        }
    }

    pub fn u16(&self, addr: u64) -> u16 {
        u16::from_le_bytes(self.read(addr, 2).try_into().unwrap())
    }

    pub fn u32(&self, addr: u64) -> u32 {
        u32::from_le_bytes(self.read(addr, 4).try_into().unwrap())
    }

    pub fn u64(&self, addr: u64) -> u64 {
        u64::from_le_bytes(self.read(addr, 8).try_into().unwrap())
    }

    pub fn set_u16(&self, addr: u64, value: u16) {
        self.write(addr, &value.to_le_bytes());
    }
}

/// A buffer of a chain: address, length in bytes, and true if the device writes the buffer.
pub type Piece = (u64, u32, bool);

/// A chain made available by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub id: u16,
    /// Number of the ring's descriptors in the chain.
    pub slots: u16,
    pub pieces: Vec<Piece>,
}

impl Chain {
    pub fn readable(&self, files: &Files) -> Vec<u8> {
        let readable = self.pieces.iter().filter(|piece| !piece.2);
        readable.flat_map(|&(addr, len, _)| files.read(addr, len as usize)).collect()
    }

    pub fn writable_len(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.2).map(|piece| piece.1 as usize).sum()
    }

    pub fn write(&self, files: &Files, mut bytes: &[u8]) {
        for &(addr, len, _) in self.pieces.iter().filter(|piece| piece.2) {
            let (now, later) = bytes.split_at(bytes.len().min(len as usize));
            files.write(addr, now);
            bytes = later;
        }
        assert!(bytes.is_empty(), "the chain is too short");
    }
}

/// The device's side of a ring: addresses, options and progress.
pub struct Device {
    pub addresses: RingAddresses,
    pub size: u16,
    pub packed: bool,
    pub event_idx: bool,
    /// Number of available entries (split) or slots (packed) taken since the start.
    pub taken: u64,
    /// Number of used entries (split) or slots (packed) since the start.
    pub used: u64,
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL: u16 = 0x80;
const USED: u16 = 0x8000;

impl Device {
    pub fn new(addresses: RingAddresses, size: u16, packed: bool, event_idx: bool) -> Self {
        Self { addresses, size, packed, event_idx, taken: 0, used: 0 }
    }

    pub fn pop(&mut self, files: &Files) -> Option<Chain> {
        if self.packed { self.pop_packed(files) } else { self.pop_split(files) }
    }

    fn pop_split(&mut self, files: &Files) -> Option<Chain> {
        if files.u16(self.addresses.driver + 2) == self.taken as u16 {
            return None;
        }
        let head = files.u16(self.addresses.driver + 4 + self.taken % u64::from(self.size) * 2);
        self.taken += 1;
        let mut chain = Chain { id: head, slots: 0, pieces: Vec::new() };
        let mut index = head;
        loop {
            let at = self.addresses.descriptors + u64::from(index) * 16;
            let flags = files.u16(at + 12);
            chain.slots += 1;
            assert!(chain.slots <= self.size && index < self.size, "a broken chain");
            if flags & INDIRECT != 0 {
                chain.pieces.extend(split_table(files, files.u64(at), files.u32(at + 8)));
            } else {
                chain.pieces.push((files.u64(at), files.u32(at + 8), flags & WRITE != 0));
            }
            if flags & NEXT == 0 {
                return Some(chain);
            }
            index = files.u16(at + 14);
        }
    }

    fn lap_is_odd(&self, slots: u64) -> bool {
        slots / u64::from(self.size) % 2 == 1
    }

    fn slot(&self, slots: u64) -> u64 {
        self.addresses.descriptors + slots % u64::from(self.size) * 16
    }

    fn pop_packed(&mut self, files: &Files) -> Option<Chain> {
        // Wrap counters start at 1. So in even laps, an available descriptor has AVAIL set and USED clear.
        let mine = if self.lap_is_odd(self.taken) { USED } else { AVAIL };
        if files.u16(self.slot(self.taken) + 14) & (AVAIL | USED) != mine {
            return None;
        }
        let mut chain = Chain { id: 0, slots: 0, pieces: Vec::new() };
        loop {
            let at = self.slot(self.taken);
            let flags = files.u16(at + 14);
            let mine = if self.lap_is_odd(self.taken) { USED } else { AVAIL };
            assert_eq!(flags & (AVAIL | USED), mine, "a chain that is not available as a whole");
            let (addr, len) = (files.u64(at), files.u32(at + 8));
            chain.id = files.u16(at + 12);
            chain.slots += 1;
            self.taken += 1;
            if flags & INDIRECT != 0 {
                let entry = |at: u64| (files.u64(at), files.u32(at + 8), files.u16(at + 14) & WRITE != 0);
                chain.pieces.extend((0..u64::from(len / 16)).map(|index| entry(addr + index * 16)));
            } else {
                chain.pieces.push((addr, len, flags & WRITE != 0));
            }
            if flags & NEXT == 0 {
                return Some(chain);
            }
        }
    }

    /// Uses chains, and makes the used chains visible in one step.
    pub fn push(&mut self, files: &Files, chains: &[(&Chain, u32)]) {
        if self.packed {
            self.push_packed(files, chains);
            return;
        }
        for (chain, len) in chains {
            let at = self.addresses.device + 4 + self.used % u64::from(self.size) * 8;
            files.write(at, &u32::from(chain.id).to_le_bytes());
            files.write(at + 4, &len.to_le_bytes());
            self.used += 1;
        }
        files.set_u16(self.addresses.device + 2, self.used as u16);
    }

    fn push_packed(&mut self, files: &Files, chains: &[(&Chain, u32)]) {
        let mut flags_to_write = Vec::new();
        for (chain, len) in chains {
            let at = self.slot(self.used);
            files.write(at + 8, &len.to_le_bytes());
            files.set_u16(at + 12, chain.id);
            let written = if *len > 0 { WRITE } else { 0 };
            let lap = if self.lap_is_odd(self.used) { 0 } else { AVAIL | USED };
            flags_to_write.push((at + 14, lap | written));
            self.used += u64::from(chain.slots);
        }
        for (at, flags) in flags_to_write.into_iter().rev() {
            files.set_u16(at, flags);
        }
    }

    /// Uses a batch of chains as with `IN_ORDER`: writes a used entry or used descriptor for the last chain only.
    pub fn push_batch(&mut self, files: &Files, chains: &[Chain], len: u32) {
        let (last, skipped) = chains.split_last().expect("a batch");
        if self.packed {
            let skipped_slots: u16 = skipped.iter().map(|chain| chain.slots).sum();
            self.push_packed(files, &[(last, len)]);
            self.used += u64::from(skipped_slots);
        } else {
            let at = self.addresses.device + 4 + self.used % u64::from(self.size) * 8;
            files.write(at, &u32::from(last.id).to_le_bytes());
            files.write(at + 4, &len.to_le_bytes());
            self.used += chains.len() as u64;
            files.set_u16(self.addresses.device + 2, self.used as u16);
        }
    }

    /// Requests a kick at the next chain (with `event_idx`, only at the position of this chain), or disables kicks.
    pub fn want_kicks(&self, files: &Files, on: bool) {
        match (self.packed, self.event_idx) {
            (false, true) => {
                let next = if on { self.taken as u16 } else { (self.taken as u16).wrapping_sub(1) };
                files.set_u16(self.addresses.device + 4 + u64::from(self.size) * 8, next);
            }
            (false, false) => files.set_u16(self.addresses.device, u16::from(!on)),
            (true, true) if on => {
                let wrap = if self.lap_is_odd(self.taken) { 0 } else { 0x8000 };
                files.set_u16(self.addresses.device, (self.taken % u64::from(self.size)) as u16 | wrap);
                files.set_u16(self.addresses.device + 2, 2);
            }
            (true, _) => files.set_u16(self.addresses.device + 2, u16::from(!on)),
        }
    }

    /// Returns true if the driver requested an interrupt for one of the entries that were used since `used` had the
    /// value `before`.
    pub fn interrupt_wanted(&self, files: &Files, before: u64) -> bool {
        let driver = self.addresses.driver;
        let passed = |event: u64| (before..self.used).contains(&event);
        if self.packed {
            let (off_wrap, flags) = (files.u16(driver), files.u16(driver + 2));
            let named = |slots: u64| {
                let wrap = if self.lap_is_odd(slots) { 0 } else { 0x8000 };
                (slots % u64::from(self.size)) as u16 | wrap == off_wrap
            };
            return flags == 0 || flags == 2 && (before..self.used).any(named);
        }
        if !self.event_idx {
            return files.u16(driver) & 1 == 0;
        }
        let event = files.u16(driver + 4 + u64::from(self.size) * 2);
        // Compute the event's position in the lap of 65536 entries after `before`.
        passed(before + u64::from(event.wrapping_sub(before as u16)))
    }
}

fn split_table(files: &Files, table: u64, len: u32) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut index = 0;
    loop {
        let at = table + u64::from(index) * 16;
        assert!(u32::from(index) * 16 < len, "an entry outside of the table");
        let flags = files.u16(at + 12);
        pieces.push((files.u64(at), files.u32(at + 8), flags & WRITE != 0));
        if flags & NEXT == 0 {
            return pieces;
        }
        index = files.u16(at + 14);
    }
}

//! Tests that a device with rings of arbitrary bytes accesses no bytes outside the guest's memory.

mod ring_bytes;

use std::fs;
use std::path::Path;

/// A pseudo-random number generator (xorshift64*), so that the test needs no further crate. The numbers only have to
/// differ.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Generates nearly valid rings: descriptors point into memory, and indices are close to each other.
fn nearly_a_ring(numbers: &mut Numbers, is_packed: bool) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..ring_bytes::SETTINGS_LEN).map(|_| numbers.next() as u8).collect();
    let base = if is_packed { [0, 0x80, 0, 0x80] } else { [0; 4] };
    bytes[4..].copy_from_slice(&[base, base].concat());
    let mut memory = vec![0u8; 0x400];
    for ring in [0, 0x200] {
        for entry in 0..16 {
            let at = ring + 16 * entry;
            let flags = [0, 0, 1, 1, 4, numbers.next() as u16][numbers.below(6) as usize];
            let flags = flags | if ring == 0 { 0 } else { 2 } | if is_packed { 1 << 7 } else { 0 };
            let near = numbers.below(18) as u16;
            memory[at..at + 8].copy_from_slice(&(numbers.below(0x1000) & !15).to_le_bytes());
            let len = [numbers.below(64), numbers.below(2000), numbers.next()][numbers.below(3) as usize] as u32;
            memory[at + 8..at + 12].copy_from_slice(&len.to_le_bytes());
            let words = if is_packed { [near, flags] } else { [flags, near] };
            memory[at + 12..at + 16].copy_from_slice(&words.map(u16::to_le_bytes).concat());
        }
        let driver = ring + 0x100;
        if !is_packed {
            memory[driver + 2] = numbers.below(18) as u8;
            (0..16).for_each(|entry| memory[driver + 4 + 2 * entry] = numbers.below(17) as u8);
        }
    }
    bytes.extend(memory);
    bytes
}

#[test]
fn rings_of_any_bytes_lead_no_device_out_of_guest_memory() {
    const INPUTS: usize = 3000;
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("seed {seed}");
    let mut numbers = Numbers(seed | 1);
    for number in 0..INPUTS {
        ring_bytes::ring(&nearly_a_ring(&mut numbers, number % 2 == 1), number % 2 == 1);
    }
}

#[test]
fn inputs_that_reached_new_code_once_are_harmless_still() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, is_packed) in [("ring_split", false), ("ring_packed", true)] {
        let files = fs::read_dir(corpus.join(name)).unwrap();
        files.for_each(|file| ring_bytes::ring(&fs::read(file.unwrap().path()).unwrap(), is_packed));
    }
}

//! An XDP program that passes every frame, as an object file for `ip link set … xdp obj`. Generating the file avoids
//! the need for a BPF compiler.

/// The instructions `r0 = XDP_PASS` and `exit` (RFC 9669, section 3).
const PROGRAM: [u64; 2] = [0x2_0000_00b7, 0x95];
/// Names of the sections and of the program.
const NAMES: &[u8; 32] = b"\0xdp\0.symtab\0.strtab\0pass\0\0\0\0\0\0\0";
/// Offset of each name in [`NAMES`].
const XDP: u64 = 1;
const SYMTAB: u64 = 5;
const STRTAB: u64 = 13;
const PASS: u64 = 21;

/// Returns the object file, built from 64-bit words (System V ABI, "Object Files"): header, program, symbols, names,
/// section headers.
pub fn object() -> Vec<u8> {
    const PROGRAM_AT: u64 = 64;
    const SYMBOLS_AT: u64 = 80;
    const NAMES_AT: u64 = 128;
    const SECTIONS_AT: u64 = 160;
    let magic = u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0");
    // The file has type ET_REL for EM_BPF, no segments, and 4 section headers of 64 bytes each. The last section has
    // the names.
    let header = [magic, 0, 1 | 247 << 16 | 1 << 32, 0, 0, SECTIONS_AT, 64 << 32, 64 << 16 | 4 << 32 | 3 << 48];
    // The symbol is a global function in section 1, after the empty first symbol that every table has.
    let symbols = [0, 0, 0, PASS | 0x12 << 32 | 1 << 48, 0, 16];
    // The fields of a section are: name and type, flags, address, offset, length, link and information, alignment,
    // entry length.
    let sections = [
        [0; 8],
        [XDP | 1 << 32, 6, 0, PROGRAM_AT, 16, 0, 8, 0],
        [SYMTAB | 2 << 32, 0, 0, SYMBOLS_AT, 48, 3 | 1 << 32, 8, 24],
        [STRTAB | 3 << 32, 0, 0, NAMES_AT, 32, 0, 1, 0],
    ];
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    [bytes(&header), bytes(&PROGRAM), bytes(&symbols), NAMES.to_vec(), bytes(sections.as_flattened())].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_ports::sys::{NetNs, link};
    use offramp_testbed::packages::{self, IP};
    use offramp_testbed::scratch::Scratch;
    use std::process::Command;

    #[test]
    fn the_kernel_takes_the_program() {
        let (ip, scratch) = (packages::need(IP).unwrap(), Scratch::new().unwrap());
        let file = scratch.file("pass.o");
        std::fs::write(&file, object()).unwrap();
        let ns = NetNs::new().unwrap_or_else(|e| panic!("this test needs a network namespace: {e}; run as root"));
        ns.run(|| {
            link::create_veth("near", "far").unwrap();
            let attach = ["link", "set", "dev", "near", "xdp", "obj", &file, "sec", "xdp"];
            let attached = Command::new(&ip).args(attach).output().unwrap();
            assert!(attached.status.success(), "{attached:?}");
            let shown = Command::new(&ip).args(["link", "show", "dev", "near"]).output().unwrap();
            assert!(String::from_utf8_lossy(&shown.stdout).contains("name pass"), "{shown:?}");
        })
        .unwrap();
    }
}

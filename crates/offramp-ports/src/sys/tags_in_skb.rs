//! Passes a frame's VLAN tag to an interface's driver as metadata of the `sk_buff`, as a VLAN interface does. A packet
//! socket can only write the tag into the frame. A BPF program at the interface's egress moves the tag into the
//! metadata (`BPF_TCX_EGRESS`, since Linux 6.6).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::link;

/// `BPF_PROG_LOAD`.
const LOAD_PROGRAM: libc::c_int = 5;
/// `BPF_LINK_CREATE`.
const CREATE_LINK: libc::c_int = 28;
/// `BPF_PROG_TYPE_SCHED_CLS`.
const TYPE_CLASSIFIER: u32 = 3;
/// `BPF_TCX_EGRESS`.
const AT_EGRESS: u32 = 47;
/// `bpf_skb_vlan_push`.
const PUSH_TAG: i32 = 18;
/// `bpf_skb_vlan_pop`.
const POP_TAG: i32 = 19;
/// `TCX_NEXT`: the kernel continues with the next attached program.
const NEXT: i32 = -1;
/// The program's licence. Any licence is valid: the program calls no function that requires the GPL.
const LICENCE: &std::ffi::CStr = c"Apache-2.0";

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    /// The destination register in the lower four bits, and the source register in the upper four bits.
    registers: u8,
    jump: i16,
    value: i32,
}

/// The part of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    program_type: u32,
    instructions: u32,
    first: u64,
    licence: u64,
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
struct Link {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// The program attached to one interface. The kernel detaches the program when this value is dropped or the process
/// ends.
#[derive(Debug)]
pub struct TagsInSkb {
    _link: OwnedFd,
}

impl TagsInSkb {
    /// Attaches the program to an interface in the calling thread's namespace. The program moves the VLAN tag of each
    /// transmitted frame whose destination address is `destination`.
    ///
    /// # Errors
    /// Returns an error if there is no such interface, or the kernel is older than Linux 6.6 (`EINVAL`). The process
    /// needs `CAP_SYS_ADMIN`, or both `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn attach(interface: &str, destination: [u8; 6]) -> io::Result<Self> {
        let instructions = program(destination);
        let load = Load {
            program_type: TYPE_CLASSIFIER,
            instructions: instructions.len() as u32,
            first: instructions.as_ptr() as u64,
            licence: LICENCE.as_ptr() as u64,
        };
        // SAFETY: the kernel reads the number of instructions given in `load`, and the licence up to its terminating
        // zero. The instructions and the licence live through the call.
        let program = unsafe { bpf(LOAD_PROGRAM, &load) }?;
        let link = Link {
            program: program.as_raw_fd() as u32,
            interface: link::index(interface)?,
            attach_type: AT_EGRESS,
            flags: 0,
        };
        // SAFETY: the structure has no pointers.
        Ok(Self { _link: unsafe { bpf(CREATE_LINK, &link) }? })
    }
}

/// Returns a program for frames with this destination address. The program moves the VLAN tag from the frame into the
/// metadata of the `sk_buff`.
fn program(destination: [u8; 6]) -> [Instruction; 18] {
    const LOAD_WORD: u8 = 0x20;
    const LOAD_HALF: u8 = 0x28;
    const JUMP_IF_NOT: u8 = 0x55;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const SET: u8 = 0xb7;
    const COPY: u8 = 0xbf;
    const END: i16 = 16;
    let first = i32::from_be_bytes(*destination.first_chunk().expect("6 bytes"));
    let last = u16::from_be_bytes(*destination.last_chunk().expect("6 bytes"));
    let of = |code, registers, jump, value| Instruction { code, registers, jump, value };
    let protocol = libc::ETH_P_8021Q as u16;
    [
        of(COPY, 0x16, 0, 0),
        of(LOAD_WORD, 0, 0, 0),
        of(JUMP_IF_NOT, 0, END - 3, first),
        of(LOAD_HALF, 0, 0, 4),
        of(JUMP_IF_NOT, 0, END - 5, last.into()),
        of(LOAD_HALF, 0, 0, 12),
        of(JUMP_IF_NOT, 0, END - 7, protocol.into()),
        of(LOAD_HALF, 0, 0, 14),
        of(COPY, 0x07, 0, 0),
        of(COPY, 0x61, 0, 0),
        of(CALL, 0, 0, POP_TAG),
        of(JUMP_IF_NOT, 0, END - 12, 0),
        of(COPY, 0x61, 0, 0),
        of(SET, 0x02, 0, protocol.to_be().into()),
        of(COPY, 0x73, 0, 0),
        of(CALL, 0, 0, PUSH_TAG),
        of(SET, 0x00, 0, NEXT),
        of(EXIT, 0, 0, 0),
    ]
}

/// Calls bpf(2) with a command that returns a descriptor.
///
/// # Safety
/// The pointers in `attributes` must be valid for the command's reads and writes.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attributes`, which lives through the call. The caller
    // guarantees the pointers in `attributes`.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Packet, PacketConfig};
    use crate::sys::NetNs;
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
    use offramp_adapter::port::HostPort;
    use offramp_offload::meta::RxMeta;

    const DESTINATION: [u8; 6] = [2, 0x81, 0, 0xfe, 0x80, 0xff];

    /// Sends `frame`, and returns its length in bytes as passed to the interface's driver.
    fn sent(near: &mut impl HostPort, frame: &[u8]) -> usize {
        let (family, flags) = (AddressFamily::Packet, SockFlag::SOCK_CLOEXEC);
        let outgoing = socket(family, SockType::Raw, flags, SockProtocol::EthAll).unwrap();
        near.rx_deliver(&RxMeta::default(), frame).unwrap();
        loop {
            let mut bytes = [0; 256];
            let len = recv(outgoing.as_raw_fd(), &mut bytes, MsgFlags::empty()).unwrap();
            // Both interfaces of the veth pair are in this namespace. The first copy of the frame is the transmitted
            // frame, and the second copy is the received frame.
            if bytes.starts_with(&frame[..12]) {
                return len;
            }
        }
    }

    #[test]
    fn the_tag_of_a_frame_to_the_address_is_beside_it_and_no_other() {
        let ns = NetNs::new().unwrap_or_else(|e| panic!("this test needs a network namespace: {e}; run as root"));
        ns.run(|| {
            link::create_veth("near", "far").unwrap();
            for name in ["near", "far"] {
                link::disable_ipv6(name).unwrap();
                link::set_up(name).unwrap();
            }
            let packet = Packet::open(&PacketConfig::new("near")).unwrap();
            let began = std::time::Instant::now();
            while !packet.link().unwrap().has_carrier {
                assert!(began.elapsed().as_secs() < 20, "no carrier");
            }
            let mut near = packet.queue(0).unwrap();
            let to = |destination: [u8; 6]| {
                [&destination[..], &[2; 6], &[0x81, 0, 0xa3, 0xed, 0x88, 0xb5], &[7; 60]].concat()
            };
            let (tagged, other) = (to(DESTINATION), to([2, 0x81, 0, 0xfe, 0x80, 0xfe]));
            assert_eq!(sent(&mut near, &tagged), tagged.len());
            let moves = TagsInSkb::attach("near", DESTINATION).unwrap();
            assert_eq!(sent(&mut near, &tagged), tagged.len() - 4);
            assert_eq!(sent(&mut near, &other), other.len());
            drop(moves);
            assert_eq!(sent(&mut near, &tagged), tagged.len());
        })
        .unwrap();
    }

    #[test]
    fn an_interface_that_is_not_there_is_refused() {
        let error = TagsInSkb::attach("none", DESTINATION).unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
    }
}

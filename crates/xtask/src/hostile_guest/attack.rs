//! The program in the hostile guest. The program detaches the card from its driver, and fills the card's rings with
//! frames and chains.

use super::device::{BUFFERS, Descriptor, Device, TABLES};
use offramp_testbed::failure::{Doing, Result};
use offramp_testbed::frames;
use offramp_testbed::stop;
use std::time::{Duration, Instant};

/// Flags of a descriptor (virtio 1.3, 2.7.5): the chain continues, the device writes, indirect table.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Length of a virtio header, and distance between two buffers, in bytes.
const HEADER_LEN: usize = 12;
const BUFFER: u64 = 0x800;
/// An address outside the guest's memory.
const NOWHERE: u64 = 0xdead_0000_0000;
/// Time for which the guest sends each kind of bad chain.
const KIND_TIME: Duration = Duration::from_millis(50);
/// Time without a returned chain after which the ring counts as stopped, and the card is reset.
const STOPPED_TIME: Duration = Duration::from_millis(200);
/// `EtherType` values, and operations of ARP (RFC 826).
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const BROADCAST: [u8; 6] = [0xff; 6];
/// An address that belongs to no station.
const NOBODY: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// An attack of a hostile guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Attack {
    /// Resets its card, and sends nothing
    Idle,
    /// Computes, and sends nothing
    Busy,
    /// Broadcasts, and frames to unknown addresses and to itself
    Flood,
    /// Frames to the host and to the other guest, within the port's limit: both must handle each frame
    LimitedFlood,
    /// Frames and ARP with the addresses of the other guest and of the host
    Spoof,
    /// Descriptor chains that the specification forbids
    BadChains,
}

/// Attack the backend from inside a guest until SIGTERM.
#[derive(clap::Args)]
pub struct Args {
    /// The attack
    #[arg(value_enum)]
    attack: Attack,
    /// Ethernet address of the host's TAP, in hexadecimal digits
    host: String,
}

/// Ethernet and IPv4 addresses of a guest or of the host.
#[derive(Clone, Copy, Debug)]
pub struct Station {
    pub mac: [u8; 6],
    pub ip: [u8; 4],
}

/// The attacking guest, and the victim.
pub const HOSTILE: Station = Station { mac: [2, 0, 0, 0, 0, 0x11], ip: [198, 18, 0, 3] };
pub const VICTIM: Station = Station { mac: [2, 0, 0, 0, 0, 0x10], ip: [198, 18, 0, 2] };
const HOST_IP: [u8; 4] = [198, 18, 0, 1];

/// Attacks until a signal arrives.
///
/// # Errors
/// Returns an error if the card is not available.
pub fn run(args: &Args) -> Result<()> {
    let mut host = Station { mac: [0; 6], ip: HOST_IP };
    for (byte, digits) in host.mac.iter_mut().zip(args.host.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(&String::from_utf8_lossy(digits), 16).doing("the host's address")?;
    }
    let mut device = Device::open()?;
    match args.attack {
        Attack::Idle => while stop::sleep(KIND_TIME).is_ok() {},
        Attack::Busy => while !stop::requested() {},
        Attack::Flood => send_frames(&mut device, &flood(host))?,
        Attack::LimitedFlood => send_frames(&mut device, &[udp(HOSTILE, host), udp(HOSTILE, VICTIM)])?,
        Attack::Spoof => send_frames(&mut device, &spoofed(host))?,
        Attack::BadChains => send_bad_chains(&mut device)?,
    }
    device.reset()
}

fn send_frames(device: &mut Device, frames: &[Vec<u8>]) -> Result<()> {
    device.start()?;
    let mut descriptors = Vec::new();
    for (address, frame) in (BUFFERS..).step_by(BUFFER as usize).zip(frames) {
        device.write(address, &[&[0; HEADER_LEN][..], frame].concat())?;
        descriptors.push(Descriptor { address, len: (HEADER_LEN + frame.len()) as u32, flags: 0, next: 0 });
    }
    let size = device.size();
    let ring: Vec<_> = descriptors.into_iter().cycle().take(usize::from(size)).collect();
    device.lay_out(&ring, &(0..size).collect::<Vec<_>>())?;
    while !stop::requested() {
        device.send()?;
    }
    Ok(())
}

/// Sends one kind of bad chains after another. If a chain stops the ring, the function resets the device and continues
/// with the next kind.
fn send_bad_chains(device: &mut Device) -> Result<()> {
    device.start()?;
    let rings = bad_rings(device.size());
    for (address, descriptor) in (TABLES..).step_by(16).zip([NESTED, LOOP]) {
        device.write(address, &descriptor.bytes())?;
    }
    let mut last = Instant::now();
    for (descriptors, heads) in rings.iter().cycle() {
        device.lay_out(descriptors, heads)?;
        let end = Instant::now() + KIND_TIME;
        while Instant::now() < end {
            if stop::requested() {
                return Ok(());
            }
            if device.send()? {
                last = Instant::now();
            } else if last.elapsed() > STOPPED_TIME {
                device.start()?;
                last = Instant::now();
            }
        }
    }
    Ok(())
}

/// Content of the indirect tables: a descriptor whose table is itself, and a descriptor whose next descriptor is
/// itself.
const NESTED: Descriptor = Descriptor { address: TABLES, len: 16, flags: INDIRECT, next: 0 };
const LOOP: Descriptor = Descriptor { address: BUFFERS, len: 1, flags: NEXT, next: 0 };

/// Returns a ring for each kind of bad chain: the descriptors, and the heads in the avail ring.
fn bad_rings(size: u16) -> Vec<(Vec<Descriptor>, Vec<u16>)> {
    let ring = |of: &dyn Fn(u16) -> Descriptor| ((0..size).map(of).collect::<Vec<_>>(), (0..size).collect::<Vec<_>>());
    let same = |address, len, flags, next| ring(&|_| Descriptor { address, len, flags, next });
    let chain = |of: &dyn Fn(u16) -> u16| {
        ring(&|index| {
            let next = of(index);
            Descriptor { address: BUFFERS, len: 1, flags: if next < size { NEXT } else { 0 }, next }
        })
    };
    let mut heads = same(BUFFERS, 100, 0, 0);
    heads.1.fill(u16::MAX);
    vec![
        // Loops of one descriptor, and of all descriptors.
        chain(&|index| index),
        chain(&|index| (index + 1) % size),
        // Chains as long as the ring, with one byte in each buffer.
        chain(&|index| index + 1),
        // The next descriptor is outside the ring.
        same(BUFFERS, 100, NEXT, u16::MAX),
        // Buffers outside memory, and buffers that wrap around the end of the address space.
        same(NOWHERE, 100, 0, 0),
        same(u64::MAX - 10, 100, 0, 0),
        same(BUFFERS, u32::MAX, 0, 0),
        // Empty buffers, buffers shorter than a header, and device-writable buffers.
        same(BUFFERS, 0, 0, 0),
        same(BUFFERS, 5, 0, 0),
        same(BUFFERS, 100, WRITE, 0),
        // Indirect tables: nested, in a loop, not a multiple of a descriptor's length, too long, outside memory, and
        // with a next descriptor.
        same(TABLES, 16, INDIRECT, 0),
        same(TABLES + 16, 16, INDIRECT, 0),
        same(TABLES, 17, INDIRECT, 0),
        same(TABLES, u32::MAX - 15, INDIRECT, 0),
        same(NOWHERE, 16, INDIRECT, 0),
        same(TABLES, 16, INDIRECT | NEXT, 0),
        // The avail ring contains an index that is not a descriptor, so the ring stops.
        heads,
    ]
}

fn ethernet(destination: [u8; 6], source: [u8; 6], ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = [&destination[..], &source, &ethertype, payload].concat();
    frame.resize(frame.len().max(frames::FRAME_LEN_MIN), 0);
    frame
}

/// Builds a UDP datagram to the port "discard" (RFC 863), without a UDP checksum.
fn udp(from: Station, to: Station) -> Vec<u8> {
    let mut ip = [&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0], &from.ip[..], &to.ip].concat();
    let checksum = !frames::ones_complement(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = [0x04, 0, 0, 9, 0, 26, 0, 0];
    ethernet(to.mac, from.mac, IPV4, &[&ip[..], &udp, &[0; 18]].concat())
}

fn arp(destination: [u8; 6], source: [u8; 6], operation: u8, sender: Station, target: Station) -> Vec<u8> {
    let fixed = [0, 1, 8, 0, 6, 4, 0, operation];
    ethernet(destination, source, ARP, &[&fixed[..], &sender.mac, &sender.ip, &target.mac, &target.ip].concat())
}

/// Builds frames with the guest's own addresses. The switch forwards only a few of these frames.
fn flood(host: Station) -> Vec<Vec<u8>> {
    vec![
        udp(HOSTILE, Station { mac: NOBODY, ..host }),
        arp(BROADCAST, HOSTILE.mac, REQUEST, HOSTILE, Station { mac: [0; 6], ..host }),
        udp(HOSTILE, HOSTILE),
    ]
}

/// Builds frames with addresses of other stations, none of which may pass the switch.
fn spoofed(host: Station) -> Vec<Vec<u8>> {
    let as_host = Station { mac: HOSTILE.mac, ..host };
    let as_victim = Station { mac: HOSTILE.mac, ..VICTIM };
    vec![
        udp(VICTIM, host),
        udp(host, VICTIM),
        udp(as_victim, host),
        udp(as_host, VICTIM),
        udp(Station { mac: NOBODY, ..HOSTILE }, VICTIM),
        arp(VICTIM.mac, HOSTILE.mac, REPLY, as_host, VICTIM),
        arp(host.mac, HOSTILE.mac, REPLY, as_victim, host),
        arp(BROADCAST, HOSTILE.mac, REQUEST, as_victim, as_victim),
        arp(BROADCAST, VICTIM.mac, REQUEST, VICTIM, VICTIM),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_have_the_checksum_and_the_length_of_their_headers() {
        let frame = udp(HOSTILE, VICTIM);
        assert_eq!((frames::ones_complement(&frame[14..34]), frame.len()), (0xffff, 60));
    }

    #[test]
    fn every_spoofed_frame_has_an_address_of_somebody_else() {
        let host = Station { mac: [2, 0, 0, 0, 0, 1], ip: HOST_IP };
        for frame in spoofed(host) {
            let sender = if frame[12..14] == ARP { 28..32 } else { 26..30 };
            assert!(frame[6..12] != HOSTILE.mac || frame[sender] != HOSTILE.ip);
        }
    }

    #[test]
    fn every_kind_of_bad_chain_fills_the_ring() {
        assert!(bad_rings(8).iter().all(|(descriptors, heads)| descriptors.len() == 8 && heads.len() == 8));
    }
}

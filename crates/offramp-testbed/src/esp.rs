//! An encrypted link between the two hosts. Either the hosts' adapters or a program on each host does ESP.
//!
//! ```text
//!  the adapter does it    TCP/IP ── ofr0 ── adapter, ESP ══ cable ══
//!  the host does it       TCP/IP ── esp0 ── program, ESP ── ofr0 ── adapter ══ cable ══
//! ```
//!
//! The program does ESP in user space. For each packet, the program reads a frame from the kernel, encrypts the frame
//! and writes the encrypted frame to the kernel. For a received packet, the program does these steps in reverse. Each
//! system call moves one packet. The program uses the adapter's functions to encrypt and decrypt, so that only the
//! place of encryption and decryption differs.

use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_adapter::port::{HostPort, PortError};
use offramp_offload::esp::{
    Arrival, CipherLibrary, InboundSa, InvalidSa, Mode, OutboundSa, Refused, SaConfig, SealedSegments, SecretKey,
    Suite, Tunnel,
};
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_offload::segment::SegmentPolicy;
use offramp_ports::ipsec_mb;
use offramp_ports::packet::PacketQueue;
use offramp_ports::tap::TapQueue;
use offramp_ports::worker::{HostIo, Task, Watch};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// Addresses of the tunnel's endpoints, from the range reserved for benchmarks (RFC 2544 C.2.2). No interface has these
/// addresses, so the kernel ignores encrypted packets.
const TUNNEL_ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 0, 1), Ipv4Addr::new(198, 19, 0, 2)];
/// SPI of each host's outbound association.
const SPIS: [u32; 2] = [0x1000, 0x1001];
/// Name of the interface between the host's TCP/IP and the host's ESP program.
pub(crate) const PROGRAM_INTERFACE: &str = "esp0";
/// Maximum number of frames that the program moves in one direction before it polls the other direction.
const PROGRAM_BATCH_FRAMES: usize = 64;
/// Time in nanoseconds until the program retries a packet for which the kernel had no room. The time is the duration of
/// four full frames at 1 Gbit/s.
const PROGRAM_RETRY_NS: u64 = 50_000;
/// Maximum length of an encrypted frame in bytes: a 64-KiB IP packet and its Ethernet header.
const SEALED_LEN_MAX: usize = 65_536 + 14;
/// Length of an IPv4 header without options, in bytes.
const IPV4_HEADER_LEN: usize = 20;

/// The place where packets are encrypted and decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EspBy {
    /// In the adapters.
    Adapter,
    /// In a program on each host.
    Host,
}

/// Returns the cipher library, which is the same for both places of ESP.
pub(crate) fn ciphers() -> &'static dyn CipherLibrary {
    ipsec_mb::preferred().0
}

/// Configuration of an encrypted link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspLink {
    /// The cipher suite.
    pub suite: Suite,
    /// The place where packets are encrypted and decrypted.
    pub by: EspBy,
}

impl EspLink {
    /// Returns the configuration of host `side`'s outbound association, in tunnel mode.
    fn outbound(&self, side: usize) -> SaConfig {
        let key = |len: usize, seed: u8| SecretKey::new(pattern(len, seed));
        let (encryption, integrity) = (self.suite.encryption_key_len(), self.suite.integrity_key_len());
        let tunnel = Tunnel::new(IpAddr::V4(TUNNEL_ENDS[side]), IpAddr::V4(TUNNEL_ENDS[1 - side]));
        let seed = side as u8;
        SaConfig {
            mode: Mode::Tunnel(tunnel),
            legacy: self.suite.is_legacy(),
            ..SaConfig::new(SPIS[side], self.suite, key(encryption, seed), key(integrity, seed + 2))
        }
    }

    /// Returns the configuration of host `side`'s inbound association, equal to the other host's outbound association.
    fn inbound(&self, side: usize) -> SaConfig {
        self.outbound(1 - side)
    }

    /// Returns the associations to add to the adapter of host `side`. The list is empty if a program on the host does
    /// ESP.
    pub(crate) fn adapter_changes(&self, side: usize) -> Vec<SaChange> {
        let add = |direction, config| SaChange::Add { direction, config: Box::new(config) };
        match self.by {
            EspBy::Host => Vec::new(),
            EspBy::Adapter => {
                vec![add(SaDirection::Out, self.outbound(side)), add(SaDirection::In, self.inbound(side))]
            }
        }
    }

    /// Returns the maximum length of an unencrypted packet whose encrypted form fits into `mtu`.
    ///
    /// # Errors
    /// Returns an error if no association can be made with the suite.
    pub(crate) fn clear_mtu(&self, mtu: usize) -> Result<usize, InvalidSa> {
        Ok(OutboundSa::new(&self.outbound(0))?.packet_len_max(mtu, IPV4_HEADER_LEN).unwrap_or(0))
    }
}

/// Returns a key for measurements only. 3DES refuses a key whose 8-byte parts repeat, so the parts of this key differ
/// from each other.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(37).wrapping_add(seed.wrapping_mul(101)) ^ 0x5a).collect()
}

/// A host's program that encrypts and decrypts packets.
pub(crate) struct HostEsp {
    clear: TapQueue,
    line: PacketQueue,
    sealing: OutboundSa,
    opening: InboundSa,
    /// The segments of the kernel's last frame that are not yet encrypted.
    pending: Option<SealedSegments>,
    /// Range in `sealed` of an encrypted frame that waits for room in the kernel.
    unsent: Option<(usize, usize)>,
    sealed: Vec<u8>,
    opened: Vec<u8>,
    lost: Arc<AtomicU64>,
}

impl HostEsp {
    /// Makes the program of host `side`, between the kernel's interface for unencrypted frames (`clear`) and the
    /// adapter's interface (`line`). Packets that cannot be encrypted or decrypted are counted in `lost`.
    ///
    /// # Errors
    /// Returns an error if no association can be made with the suite.
    pub(crate) fn new(
        link: &EspLink,
        side: usize,
        clear: TapQueue,
        line: PacketQueue,
        lost: &Arc<AtomicU64>,
    ) -> Result<Self, InvalidSa> {
        Ok(Self {
            clear,
            line,
            sealing: OutboundSa::with_library(&link.outbound(side), ciphers())?,
            opening: InboundSa::with_library(&link.inbound(side), ciphers())?,
            pending: None,
            unsent: None,
            sealed: vec![0; SEALED_LEN_MAX],
            opened: Vec::with_capacity(SEALED_LEN_MAX),
            lost: Arc::clone(lost),
        })
    }

    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Encrypts frames from the host and sends the encrypted frames to the wire. Returns whether any frame was sent.
    fn seal_batch(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let mut moved = false;
        for _ in 0..PROGRAM_BATCH_FRAMES {
            if self.unsent.is_none() && !self.seal_next(now_ns)? {
                break;
            }
            if !self.send()? {
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Encrypts the next segment of the kernel's frames, for [`HostEsp::send`] to send. Returns `false` if the kernel
    /// has no frame.
    fn seal_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
        loop {
            if let Some(plan) = &mut self.pending {
                match plan.write_next(&mut self.sealing, &self.clear.tx_frame(), &mut self.sealed) {
                    Ok(Some(sealed)) => {
                        self.unsent = Some((sealed.start, sealed.end));
                        return Ok(true);
                    }
                    Ok(None) => self.pending = None,
                    Err(_) => {
                        self.lose();
                        self.pending = None;
                    }
                }
            }
            if !self.take_clear(now_ns)? {
                return Ok(false);
            }
        }
    }

    /// Reads the kernel's next frame. Returns `false` if the kernel has no frame.
    fn take_clear(&mut self, now_ns: u64) -> Result<bool, PortError> {
        if !self.clear.tx_next(now_ns)? {
            return Ok(false);
        }
        let planned = SealedSegments::new(&mut self.clear.tx_frame(), &SegmentPolicy::default(), &self.sealing);
        self.pending = planned.ok();
        if self.pending.is_none() {
            self.lose();
        }
        Ok(true)
    }

    /// Sends the frame at `unsent`. Returns `false` if the kernel has no room for the frame.
    fn send(&mut self) -> Result<bool, PortError> {
        let Some((start, end)) = self.unsent else { return Ok(true) };
        match self.line.rx_deliver(&RxMeta::default(), &self.sealed[start..end]) {
            Ok(()) => {}
            Err(PortError::Full) => return Ok(false),
            Err(PortError::Refused(_)) => self.lose(),
            Err(closed) => return Err(closed),
        }
        self.unsent = None;
        Ok(true)
    }

    /// Decrypts frames from the wire and writes the decrypted frames to the host. Returns whether any frame was read.
    fn open_batch(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let mut moved = false;
        for _ in 0..PROGRAM_BATCH_FRAMES {
            match self.line.tx_next(now_ns) {
                Ok(true) => {}
                Ok(false) => break,
                Err(PortError::Refused(_)) => {
                    self.lose();
                    continue;
                }
                Err(error) => return Err(error),
            }
            moved = true;
            self.opened.clear();
            self.opened.extend_from_slice(self.line.tx_frame().bytes());
            match open(&mut self.opening, &mut self.opened) {
                Ok(Some((start, end))) => self.hand_over(start, end)?,
                Ok(None) => {}
                Err(_) => self.lose(),
            }
        }
        self.clear.rx_flush(now_ns);
        Ok(moved)
    }

    fn hand_over(&mut self, start: usize, end: usize) -> Result<(), PortError> {
        match self.clear.rx_deliver(&RxMeta::default(), &self.opened[start..end]) {
            Err(closed @ PortError::Closed(_)) => return Err(closed),
            Err(_) => self.lose(),
            Ok(()) => {}
        }
        Ok(())
    }
}

/// Decrypts a frame from the wire. Returns the byte range of the decrypted frame, or `None` if the frame is not ESP.
fn open(opening: &mut InboundSa, bytes: &mut [u8]) -> Result<Option<(usize, usize)>, Refused> {
    let mut frame = Frame::received(bytes);
    let Arrival::Esp(packet) = Arrival::of(&frame, None)? else { return Ok(None) };
    let opened = opening.open(&mut frame, &packet)?;
    Ok(Some((opened.start, opened.end)))
}

impl Task for HostEsp {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let has_sealed = self.seal_batch(now_ns)?;
        Ok(self.open_batch(now_ns)? || has_sealed)
    }

    fn arm(&mut self, _waker: &Waker) {
        self.clear.arm();
        self.line.arm();
    }

    fn disarm(&mut self) {
        self.clear.disarm();
        self.line.disarm();
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        self.line.watch(false, &mut |fd| watch.readable(fd));
        if self.unsent.is_some() {
            watch.until(now_ns + PROGRAM_RETRY_NS);
        } else {
            self.clear.watch(false, &mut |fd| watch.readable(fd));
        }
    }
}

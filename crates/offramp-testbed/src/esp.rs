//! An encrypted link between the two hosts: by their adapters, or by a program of each host.
//!
//! ```text
//!  the adapter does it    TCP/IP ── ofr0 ── adapter, ESP ══ cable ══
//!  the host does it       TCP/IP ── esp0 ── program, ESP ── ofr0 ── adapter ══ cable ══
//! ```
//!
//! The program is user-space ESP: it takes a frame from the kernel, seals it and returns it to the kernel, one packet
//! for each system call, and the reverse on receive. It uses the adapter's functions to seal and open, so that only the
//! place of the work differs.

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

/// Ends of the tunnel, from the range reserved for benchmarks (RFC 2544 C.2.2). No interface has them, so that the
/// kernel leaves sealed packets alone.
const TUNNEL_ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 0, 1), Ipv4Addr::new(198, 19, 0, 2)];
/// SPI of each host's sealed packets.
const SPIS: [u32; 2] = [0x1000, 0x1001];
/// Interface of a host's program, if it does ESP.
pub(crate) const PROGRAM_INTERFACE: &str = "esp0";
/// Frames moved by the program one way before it polls the other way.
const PROGRAM_BATCH_FRAMES: usize = 64;
/// Retry time after the kernel had no room for a packet, nanoseconds: the time of four full frames at 1 Gbit/s.
const PROGRAM_RETRY_NS: u64 = 50_000;
/// Longest sealed frame: an IP packet of 64 KiB behind an Ethernet header.
const SEALED_LEN_MAX: usize = 65_536 + 14;
/// Header length of IPv4 without options.
const IPV4_HEADER_LEN: usize = 20;

/// The place of sealing and opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EspBy {
    /// The adapters.
    Adapter,
    /// A program of each host.
    Host,
}

/// The library of ciphers, the same wherever ESP is done.
pub(crate) fn ciphers() -> &'static dyn CipherLibrary {
    ipsec_mb::preferred().0
}

/// An encrypted link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspLink {
    /// The cipher suite.
    pub suite: Suite,
    /// The place of sealing and opening.
    pub by: EspBy,
}

impl EspLink {
    /// Returns the outbound association of host `side`, in a tunnel.
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

    /// Returns the inbound association of host `side`: the other host's outbound one.
    fn inbound(&self, side: usize) -> SaConfig {
        self.outbound(1 - side)
    }

    /// Returns the associations of the adapter of host `side`; none if the host does the work.
    pub(crate) fn adapter_changes(&self, side: usize) -> Vec<SaChange> {
        let add = |direction, config| SaChange::Add { direction, config: Box::new(config) };
        match self.by {
            EspBy::Host => Vec::new(),
            EspBy::Adapter => {
                vec![add(SaDirection::Out, self.outbound(side)), add(SaDirection::In, self.inbound(side))]
            }
        }
    }

    /// Returns the longest clear packet that fits into `mtu` when sealed.
    ///
    /// # Errors
    /// When the suite allows no association.
    pub(crate) fn clear_mtu(&self, mtu: usize) -> Result<usize, InvalidSa> {
        Ok(OutboundSa::new(&self.outbound(0))?.packet_len_max(mtu, IPV4_HEADER_LEN).unwrap_or(0))
    }
}

/// Returns a key for measurements only. No half of it repeats another, which 3DES would refuse.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(37).wrapping_add(seed.wrapping_mul(101)) ^ 0x5a).collect()
}

/// The program of one host that seals and opens.
pub(crate) struct HostEsp {
    clear: TapQueue,
    line: PacketQueue,
    sealing: OutboundSa,
    opening: InboundSa,
    /// The unsealed rest of the last frame from the kernel.
    pending: Option<SealedSegments>,
    /// A sealed frame waiting for room in the kernel.
    unsent: Option<(usize, usize)>,
    sealed: Vec<u8>,
    opened: Vec<u8>,
    lost: Arc<AtomicU64>,
}

impl HostEsp {
    /// Makes the program of host `side`, between its kernel's interface for clear frames and the adapter's. Counts
    /// packets that it cannot seal or open in `lost`.
    ///
    /// # Errors
    /// When the suite allows no association.
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

    /// Moves frames from host to line. Returns whether anything moved.
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

    /// Seals the next frame. Returns whether there was one.
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

    /// Takes the kernel's next frame. Returns whether there was one.
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

    /// Sends the sealed frame. Returns whether the kernel had room for it.
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

    /// Moves frames from line to host. Returns whether anything moved.
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

/// Decrypts a frame of the wire and returns the range of the clear one; `None` if it is not ESP.
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

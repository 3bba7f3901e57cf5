//! An encrypted link between the two hosts: by their adapters, or by a program of each host.
//!
//! ```text
//!  the adapter does it    TCP/IP ── ofr0 ── adapter, ESP ══ cable ══
//!  the host does it       TCP/IP ── esp0 ── program, ESP ── ofr0 ── adapter ══ cable ══
//! ```
//!
//! The program is what user-space ESP is: it takes a frame from the kernel, seals it and gives it to the kernel
//! again, one packet for each system call, and the same the other way. It seals and opens with the functions that
//! the adapter uses, so that only the place of the work differs.

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
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// Ends of the tunnel, of the range that is set aside for measuring (RFC 2544 C.2.2). No interface has them: the
/// kernel is to leave sealed packets alone.
const TUNNEL_ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 0, 1), Ipv4Addr::new(198, 19, 0, 2)];
/// SPI of what each host sends.
const SPIS: [u32; 2] = [0x1000, 0x1001];
/// Interface of a host's program, where it does ESP.
pub(crate) const PROGRAM_INTERFACE: &str = "esp0";
/// Frames that the program moves one way before it looks the other way.
const PROGRAM_BATCH_FRAMES: usize = 64;
/// When the program tries again after the kernel had no room for a packet, nanoseconds: the time of four full frames at
/// 1 Gbit/s.
const PROGRAM_RETRY_NS: u64 = 50_000;
/// Longest sealed frame: an IP packet of 64 KiB behind an Ethernet header.
const SEALED_LEN_MAX: usize = 65_536 + 14;
/// Header length of IPv4 without options.
const IPV4_HEADER_LEN: usize = 20;

/// Who seals and opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// What protects it.
    pub suite: Suite,
    /// Who seals and opens.
    pub by: EspBy,
}

impl EspLink {
    /// What host `side` seals with, in a tunnel.
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

    /// What host `side` opens with: what the other one seals with.
    fn inbound(&self, side: usize) -> SaConfig {
        self.outbound(1 - side)
    }

    /// The associations of the adapter of host `side`; none where the host does the work.
    pub(crate) fn adapter_changes(&self, side: usize) -> Vec<SaChange> {
        let add = |direction, config| SaChange::Add { direction, config: Box::new(config) };
        match self.by {
            EspBy::Host => Vec::new(),
            EspBy::Adapter => {
                vec![add(SaDirection::Out, self.outbound(side)), add(SaDirection::In, self.inbound(side))]
            }
        }
    }

    /// The longest clear packet whose sealed one fits into `mtu`.
    ///
    /// # Errors
    /// When no association can be made of the suite.
    pub(crate) fn clear_mtu(&self, mtu: usize) -> Result<usize, InvalidSa> {
        Ok(OutboundSa::new(&self.outbound(0))?.packet_len_max(mtu, IPV4_HEADER_LEN).unwrap_or(0))
    }
}

/// Bytes of a key that protects nothing but a measurement; no half of it repeats another, which 3DES refuses.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(37).wrapping_add(seed.wrapping_mul(101)) ^ 0x5a).collect()
}

/// The program of one host that seals and opens.
pub(crate) struct HostEsp {
    clear: TapQueue,
    line: PacketQueue,
    sealing: OutboundSa,
    opening: InboundSa,
    /// What is left of the frame that was last taken from the kernel.
    pending: Option<SealedSegments>,
    /// A sealed frame for which the kernel had no room.
    unsent: Option<(usize, usize)>,
    sealed: Vec<u8>,
    opened: Vec<u8>,
    lost: Arc<AtomicU64>,
}

impl HostEsp {
    /// The program of host `side`, between the interface that its kernel sends clear frames to and the adapter's.
    /// Packets that it cannot seal or open are counted in `lost`.
    ///
    /// # Errors
    /// When no association can be made of the suite.
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

    /// Host to line: whether anything moved.
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

    /// Seals the next frame, and whether there was one.
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

    /// Takes what the kernel sends next, and whether there was something.
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

    /// Sends the sealed frame, and whether the kernel had room for it.
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

    /// Line to host: whether anything moved.
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

/// Decrypts a frame of the wire and returns where the clear one lies; `None` for what is not ESP.
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

//! A vhost-user backend with one thread that sends every frame back to its queue pair. The backend has a separate
//! parser.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use offramp_testkit::features;
use offramp_testkit::ring::RingAddresses;

use super::{Chain, Device, FileRegion, Files};

/// Duration of the backend's sleep if no message and no frame is waiting.
const NAP: Duration = Duration::from_micros(50);
/// Length of the header before a frame in bytes.
const VNET_LEN: usize = 12;

/// A deliberate fault of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The backend acknowledges this request with 1.
    Refuse(u32),
    /// The backend closes the connection at this request.
    CloseAt(u32),
    /// The backend never sends an interrupt.
    NoInterrupts,
    /// The backend makes the first buffer of a frame visible before the other buffers.
    Torn,
    /// The backend writes one byte past the last buffer of a frame.
    Overrun,
    /// The backend writes into read-only buffers.
    WritesReadOnly,
}

/// The requests received from the frontend.
pub type Journal = Vec<(u32, Vec<u8>)>;

#[derive(Default)]
struct Vring {
    size: u16,
    base: u32,
    user: Option<[u64; 3]>,
    kick: Option<File>,
    call: Option<File>,
    enabled: bool,
    device: Option<Device>,
}

pub struct Backend {
    stream: UnixStream,
    offered: u64,
    protocol: u64,
    fault: Option<Fault>,
    features: u64,
    files: Files,
    vrings: BTreeMap<u32, Vring>,
    config: Vec<u8>,
    journal: Journal,
    channel: Option<UnixStream>,
}

/// Starts a backend on `stream`. The backend ends when the frontend closes the connection, and returns the received
/// requests.
pub fn spawn(stream: UnixStream, offered: u64, protocol: u64, fault: Option<Fault>) -> JoinHandle<Journal> {
    let backend = Backend {
        stream,
        offered,
        protocol,
        fault,
        features: 0,
        files: Files(Vec::new()),
        vrings: BTreeMap::new(),
        config: (0..24).collect(),
        journal: Vec::new(),
        channel: None,
    };
    std::thread::spawn(move || backend.run())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Backend {
    fn run(mut self) -> Journal {
        loop {
            match self.next_message() {
                Err(()) => return self.journal,
                Ok(Some((request, flags, payload, fds))) => {
                    if self.fault == Some(Fault::CloseAt(request)) {
                        return self.journal;
                    }
                    self.journal.push((request, payload.clone()));
                    self.answer(request, flags, &payload, fds);
                }
                Ok(None) => {}
            }
            if !self.echo_all() {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Returns the next message, if any: request, flags, payload, descriptors.
    #[allow(clippy::type_complexity)]
    fn next_message(&mut self) -> Result<Option<(u32, u32, Vec<u8>, Vec<OwnedFd>)>, ()> {
        let mut head = [0; 12];
        let mut space = nix::cmsg_space!([i32; 16]);
        let mut iov = [IoSliceMut::new(&mut head)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let got = match recvmsg::<()>(self.stream.as_raw_fd(), &mut iov, Some(&mut space), flags) {
            Ok(got) => got,
            Err(nix::errno::Errno::EAGAIN) => return Ok(None),
            Err(_) => return Err(()),
        };
        let mut fds = Vec::new();
        for control in got.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel has just created these descriptors for this call.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        if got.bytes == 0 {
            return Err(());
        }
        let got = got.bytes;
        self.stream.read_exact(&mut head[got..]).map_err(|_| ())?;
        let mut payload = vec![0; word(&head, 8) as usize];
        self.stream.read_exact(&mut payload).map_err(|_| ())?;
        Ok(Some((word(&head, 0), word(&head, 4), payload, fds)))
    }

    fn reply(&self, request: u32, payload: &[u8], fds: &[i32]) {
        let head = [request.to_le_bytes(), 5u32.to_le_bytes(), (payload.len() as u32).to_le_bytes()].concat();
        let bytes = [&head[..], payload].concat();
        let rights = [ControlMessage::ScmRights(fds)];
        let control: &[_] = if fds.is_empty() { &[] } else { &rights };
        sendmsg::<()>(self.stream.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::empty(), None).unwrap();
    }

    fn reply_u64(&self, request: u32, value: u64) {
        self.reply(request, &value.to_le_bytes(), &[]);
    }

    fn answer(&mut self, request: u32, flags: u32, payload: &[u8], mut fds: Vec<OwnedFd>) {
        match request {
            1 => return self.reply_u64(1, self.offered),
            15 => return self.reply_u64(15, self.protocol),
            17 => return self.reply_u64(17, 8),
            36 => return self.reply_u64(36, 32),
            40 => return self.reply_u64(40, 15),
            11 => {
                let mut answer = payload.to_vec();
                let base = self.stop(word(payload, 0));
                answer[4..].copy_from_slice(&base.to_le_bytes());
                return self.reply(11, &answer, &[]);
            }
            24 => {
                let (offset, len) = (word(payload, 0) as usize, word(payload, 4) as usize);
                let mut answer = payload.to_vec();
                answer[12..].copy_from_slice(&self.config[offset..offset + len]);
                return self.reply(24, &answer, &[]);
            }
            31 => {
                let mut answer = payload.to_vec();
                answer[..8].copy_from_slice(&4096u64.to_le_bytes());
                let file = File::open("/dev/zero").unwrap();
                return self.reply(31, &answer, &[file.as_raw_fd()]);
            }
            6 => {
                // Mark page 9 as written.
                File::from(fds.remove(0)).write_all(&[0, 2]).unwrap();
                return self.reply(6, &0u64.to_le_bytes(), &[]);
            }
            2 => self.features = long(payload, 0),
            5 => {
                let regions = word(payload, 0) as usize;
                assert_eq!(fds.len(), regions);
                self.files.0.clear();
                for (at, fd) in fds.into_iter().enumerate() {
                    self.files.0.push(region(&payload[8 + at * 32..], fd));
                }
            }
            37 => self.files.0.push(region(&payload[8..], fds.remove(0))),
            8 => self.vring(payload).size = word(payload, 4) as u16,
            10 => self.vring(payload).base = word(payload, 4),
            9 => self.vring(payload).user = Some([long(payload, 8), long(payload, 16), long(payload, 24)]),
            12 => {
                self.vring(&payload[..4]).kick = fds.pop().map(File::from);
                self.start(word(payload, 0));
            }
            13 => self.vring(&payload[..4]).call = fds.pop().map(File::from),
            18 => self.vring(payload).enabled = word(payload, 4) == 1,
            21 => {
                let mut channel = UnixStream::from(fds.remove(0));
                let message = [2u32.to_le_bytes(), 9u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
                channel.write_all(&message).unwrap();
                self.channel = Some(channel);
            }
            34 => self.vrings.clear(),
            25 => self.config[word(payload, 0) as usize..][..payload.len() - 12].copy_from_slice(&payload[12..]),
            _ => {}
        }
        if flags & 8 != 0 {
            self.reply_u64(request, u64::from(self.fault == Some(Fault::Refuse(request))));
        }
    }

    fn vring(&mut self, payload: &[u8]) -> &mut Vring {
        self.vrings.entry(word(payload, 0) & 0xff).or_default()
    }

    fn start(&mut self, index: u32) {
        let packed = self.features & features::RING_PACKED != 0;
        let event_idx = self.features & features::EVENT_IDX != 0;
        let enabled = self.features & features::PROTOCOL_FEATURES == 0;
        let vring = self.vrings.get_mut(&index).unwrap();
        let [descriptors, used, available] = vring.user.expect("addresses").map(|addr| self.files.guest_addr(addr));
        let addresses = RingAddresses { descriptors, driver: available, device: used };
        let mut device = Device::new(addresses, vring.size, packed, event_idx);
        // In a packed ring, wrap counter 0 means an odd number of completed laps, counted here as one lap.
        let laps = |half: u32| u64::from(half & 0x7fff) + if half & 0x8000 == 0 { u64::from(vring.size) } else { 0 };
        (device.taken, device.used) = match packed {
            true if vring.base >> 16 == 0 => (laps(vring.base), laps(vring.base)),
            true => (laps(vring.base & 0xffff), laps(vring.base >> 16)),
            false => (u64::from(vring.base), u64::from(self.files.u16(used_idx(used)))),
        };
        vring.device = Some(device);
        vring.enabled |= enabled;
    }

    fn stop(&mut self, index: u32) -> u32 {
        let vring = self.vrings.get_mut(&index).expect("a ring");
        let Some(device) = vring.device.take() else { return vring.base };
        let half = |slots: u64| {
            let lap = slots / u64::from(device.size);
            let wrap = if lap & 1 == 0 { 0x8000 } else { 0 };
            (slots % u64::from(device.size)) as u32 | wrap
        };
        if device.packed { half(device.taken) | half(device.used) << 16 } else { u32::from(device.taken as u16) }
    }

    /// Sends back all available frames. Returns true if a frame was available.
    fn echo_all(&mut self) -> bool {
        let pairs = self.vrings.len() as u32 / 2;
        let mut busy = false;
        for pair in 0..pairs {
            let (Some(mut rx), Some(mut tx)) = (self.vrings.remove(&(2 * pair)), self.vrings.remove(&(2 * pair + 1)))
            else {
                continue;
            };
            if rx.enabled && tx.enabled {
                while self.echo_one(&mut rx, &mut tx) {
                    busy = true;
                }
            }
            self.vrings.insert(2 * pair, rx);
            self.vrings.insert(2 * pair + 1, tx);
        }
        busy
    }

    fn echo_one(&self, rx: &mut Vring, tx: &mut Vring) -> bool {
        let (Some(rx_device), Some(tx_device)) = (&mut rx.device, &mut tx.device) else { return false };
        let Some(sent) = tx_device.pop(&self.files) else { return false };
        let frame = sent.readable(&self.files)[VNET_LEN..].to_vec();
        let mut chains = Vec::new();
        let mut room = 0;
        while room < frame.len() + VNET_LEN {
            // The test provided too few buffers, so the frame is lost.
            let Some(chain) = rx_device.pop(&self.files) else { break };
            room += chain.writable_len();
            chains.push(chain);
        }
        let fits = room >= frame.len() + VNET_LEN;
        if fits {
            let before = rx_device.used;
            self.give(rx_device, &chains, &frame);
            self.interrupt(rx, before);
        }
        if self.fault == Some(Fault::WritesReadOnly) {
            self.files.write(sent.pieces[0].0, b"!");
        }
        let tx_device = tx.device.as_mut().unwrap();
        let before = tx_device.used;
        tx_device.push(&self.files, &[(&sent, 0)]);
        self.interrupt(tx, before);
        true
    }

    fn give(&self, device: &mut Device, chains: &[Chain], frame: &[u8]) {
        let mut bytes = vec![0; VNET_LEN];
        bytes[10..12].copy_from_slice(&(chains.len() as u16).to_le_bytes());
        bytes.extend(frame);
        let mut used = Vec::new();
        let mut rest = &bytes[..];
        for chain in chains {
            let (now, later) = rest.split_at(rest.len().min(chain.writable_len()));
            chain.write(&self.files, now);
            used.push((chain, now.len() as u32));
            rest = later;
        }
        if self.fault == Some(Fault::Overrun) {
            let &(addr, len, _) = chains.last().unwrap().pieces.last().unwrap();
            self.files.write(addr + u64::from(len), b"!");
        }
        if self.fault == Some(Fault::Torn) {
            device.push(&self.files, &used[..1]);
            std::thread::sleep(Duration::from_millis(100));
            used.remove(0);
        }
        device.push(&self.files, &used);
    }

    fn interrupt(&self, vring: &mut Vring, before: u64) {
        let wanted = vring.device.as_ref().unwrap().interrupt_wanted(&self.files, before);
        if let Some(call) = &mut vring.call
            && wanted
            && self.fault != Some(Fault::NoInterrupts)
        {
            call.write_all(&1u64.to_ne_bytes()).unwrap();
        }
    }
}

fn used_idx(used: u64) -> u64 {
    used + 2
}

fn region(bytes: &[u8], fd: OwnedFd) -> FileRegion {
    FileRegion {
        guest_addr: long(bytes, 0),
        len: long(bytes, 8),
        user_addr: long(bytes, 16),
        offset: long(bytes, 24),
        file: File::from(fd),
    }
}

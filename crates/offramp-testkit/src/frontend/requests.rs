//! Methods for all requests of a frontend. Each method waits for the backend's answer.
//!
//! The backend acknowledges a request without an answer only if `REPLY_ACK` was negotiated. Without `REPLY_ACK`, the
//! method for a request without an answer returns right after sending.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{DirtyLog, Frontend, Header, Inflight, PeerError, RawMessage, recv_message, request, send_all};
use crate::features::protocol;
use crate::memory::{GuestMemory, Region};
use crate::ring::RingAddresses;

/// Flag next to the index in `SET_VRING_KICK`, `_CALL` and `_ERR`: no descriptor is attached.
pub const NO_FD: u64 = 1 << 8;
/// Flag of `SET_VRING_ADDR`: writes to the used ring are logged (`VHOST_VRING_F_LOG`).
const VRING_LOG: u32 = 1;
/// Length of the fields before the configuration bytes in `GET_CONFIG`, in bytes: offset, size, flags.
const CONFIG_HEAD_LEN: usize = 12;

/// The payload of `SET_VRING_ADDR`. The fields can have any values, valid or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VringAddr {
    /// Index of the virtqueue.
    pub index: u32,
    /// Flags: `VHOST_VRING_F_LOG` to log writes to the used ring.
    pub flags: u32,
    /// User address of the descriptors.
    pub descriptors: u64,
    /// User address of the device area.
    pub used: u64,
    /// User address of the driver area.
    pub available: u64,
    /// Guest address under which writes to the used ring are logged.
    pub log: u64,
}

impl VringAddr {
    /// Returns the payload for a ring in guest memory.
    pub fn new(memory: &GuestMemory, index: u32, ring: RingAddresses) -> Self {
        Self {
            index,
            flags: 0,
            descriptors: memory.user_addr(ring.descriptors),
            used: memory.user_addr(ring.device),
            available: memory.user_addr(ring.driver),
            log: 0,
        }
    }

    /// Returns the same payload with logging: writes to the used ring are logged as writes to guest address `log`.
    #[must_use]
    pub fn with_log(self, log: u64) -> Self {
        Self { flags: VRING_LOG, log, ..self }
    }
}

/// A memory region in the format of `SET_MEM_TABLE` and `ADD_MEM_REG`. The fields can have any values, valid or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemRegion {
    /// First guest-physical address of the region.
    pub guest_addr: u64,
    /// Length of the region in bytes.
    pub len: u64,
    /// Address of the region in the frontend.
    pub user_addr: u64,
    /// Offset of the region in its file.
    pub file_offset: u64,
}

impl MemRegion {
    /// Returns the description that is correct for `region`.
    pub fn new(region: &Region) -> Self {
        Self {
            guest_addr: region.guest_addr(),
            len: region.len(),
            user_addr: region.user_addr(),
            file_offset: region.file_offset(),
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        let fields = [self.guest_addr, self.len, self.user_addr, self.file_offset];
        fields.iter().flat_map(|field| field.to_le_bytes()).collect()
    }
}

/// Functions for requests with an answer, and for requests with only an acknowledgement.
impl Frontend {
    /// Sends a request and waits for the answer to the request.
    ///
    /// # Errors
    /// Returns an error if the backend closes the connection.
    pub fn ask(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<RawMessage, PeerError> {
        let sent = self.send_raw(Header::new(request, payload.len()), payload, fds);
        if !sent {
            return Err(PeerError::Closed { request });
        }
        self.answer_to(request)
    }

    /// Sends a request, and waits for the acknowledgement if acknowledgements were negotiated.
    ///
    /// # Errors
    /// Returns an error if the backend acknowledges with anything but 0, or closes the connection.
    pub fn tell(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), PeerError> {
        let header = Header::new(request, payload.len());
        let header = if self.reply_ack { header.with_need_reply() } else { header };
        if !self.send_raw(header, payload, fds) {
            return Err(PeerError::Closed { request });
        }
        if !self.reply_ack {
            return Ok(());
        }
        match self.answer_to(request)?.u64() {
            0 => Ok(()),
            code => Err(PeerError::Refused { request, code }),
        }
    }

    fn answer_to(&self, request: u32) -> Result<RawMessage, PeerError> {
        let what = format!("the answer to request {request}");
        let answer = recv_message(&self.stream, self.timeout, &what).ok_or(PeerError::Closed { request })?;
        let Header { request: answered, flags, .. } = answer.header;
        assert!(answered == request, "request {request} was answered with the answer to {answered}");
        assert!(flags & 7 == 5, "the flags of {what} are {flags:#x}: they are not version 1 and a reply");
        Ok(answer)
    }

    fn ask_u64(&self, request: u32) -> Result<u64, PeerError> {
        Ok(self.ask(request, &[], &[])?.u64())
    }

    fn tell_u64(&self, request: u32, value: u64) -> Result<(), PeerError> {
        self.tell(request, &value.to_le_bytes(), &[])
    }

    fn tell_vring(&self, request: u32, index: u32, value: u32) -> Result<(), PeerError> {
        self.tell(request, &words(&[index, value]), &[])
    }

    fn tell_mem_reg(&self, request: u32, region: MemRegion, fds: &[BorrowedFd<'_>]) -> Result<(), PeerError> {
        self.tell(request, &[&[0; 8][..], &region.to_bytes()].concat(), fds)
    }

    fn tell_vring_fd(&self, request: u32, index: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), PeerError> {
        let value = u64::from(index) | if fd.is_some() { 0 } else { NO_FD };
        self.tell(request, &value.to_le_bytes(), fd.as_slice())
    }
}

/// Encodes 32-bit numbers for sending.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The requests with their names in the specification ("Front-end message types"). The specification describes the
/// payloads.
#[allow(clippy::missing_errors_doc)] // Each fails if the backend refuses or closes, see `PeerError`.
impl Frontend {
    /// Sends `GET_FEATURES`, and returns the features offered by the backend.
    pub fn get_features(&self) -> Result<u64, PeerError> {
        self.ask_u64(request::GET_FEATURES)
    }

    /// Sends `SET_FEATURES` with the accepted features.
    pub fn set_features(&self, features: u64) -> Result<(), PeerError> {
        self.tell_u64(request::SET_FEATURES, features)
    }

    /// Sends `GET_PROTOCOL_FEATURES`, and returns the offered protocol features.
    pub fn get_protocol_features(&self) -> Result<u64, PeerError> {
        self.ask_u64(request::GET_PROTOCOL_FEATURES)
    }

    /// Sends `SET_PROTOCOL_FEATURES`. If `features` contains `REPLY_ACK`, all later requests are acknowledged.
    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), PeerError> {
        self.reply_ack = false;
        self.tell_u64(request::SET_PROTOCOL_FEATURES, features)?;
        self.reply_ack = features & protocol::REPLY_ACK != 0;
        Ok(())
    }

    /// Sends `SET_OWNER`.
    pub fn set_owner(&self) -> Result<(), PeerError> {
        self.tell(request::SET_OWNER, &[], &[])
    }

    /// Sends `RESET_OWNER`.
    pub fn reset_owner(&self) -> Result<(), PeerError> {
        self.tell(request::RESET_OWNER, &[], &[])
    }

    /// Sends `RESET_DEVICE`.
    pub fn reset_device(&self) -> Result<(), PeerError> {
        self.tell(request::RESET_DEVICE, &[], &[])
    }

    /// Sends `SET_MEM_TABLE` with all regions.
    pub fn set_mem_table(&self, memory: &GuestMemory) -> Result<(), PeerError> {
        self.set_mem_table_with_room(memory, 0)
    }

    /// Sends `SET_MEM_TABLE` with any region descriptions, even wrong ones, and any files.
    pub fn set_mem_regions(&self, regions: &[MemRegion], fds: &[BorrowedFd<'_>]) -> Result<(), PeerError> {
        let mut payload = words(&[regions.len() as u32, 0]);
        payload.extend(regions.iter().flat_map(|region| region.to_bytes()));
        self.tell(request::SET_MEM_TABLE, &payload, fds)
    }

    /// Sends `SET_MEM_TABLE` with all regions, padded with zeros to `room` entries.
    pub fn set_mem_table_with_room(&self, memory: &GuestMemory, room: usize) -> Result<(), PeerError> {
        let regions = memory.regions();
        let fds: Vec<_> = regions.iter().map(Region::fd).collect();
        let mut payload = words(&[regions.len() as u32, 0]);
        payload.extend(regions.iter().flat_map(|region| MemRegion::new(region).to_bytes()));
        payload.resize(payload.len().max(8 + 32 * room), 0);
        self.tell(request::SET_MEM_TABLE, &payload, &fds)
    }

    /// Sends `GET_MAX_MEM_SLOTS`, and returns the number of memory slots.
    pub fn get_max_mem_slots(&self) -> Result<u64, PeerError> {
        self.ask_u64(request::GET_MAX_MEM_SLOTS)
    }

    /// Sends `ADD_MEM_REG`. For a region of [`GuestMemory`], call `add_mem_reg(MemRegion::new(region), region.fd())`.
    pub fn add_mem_reg(&self, region: MemRegion, fd: BorrowedFd<'_>) -> Result<(), PeerError> {
        self.tell_mem_reg(request::ADD_MEM_REG, region, &[fd])
    }

    /// Sends `REM_MEM_REG`.
    pub fn rem_mem_reg(&self, region: MemRegion) -> Result<(), PeerError> {
        self.tell_mem_reg(request::REM_MEM_REG, region, &[])
    }

    /// Sends `SET_LOG_BASE` with the whole log. With `LOG_SHMFD`, this request has an answer.
    pub fn set_log_base(&self, log: &DirtyLog) -> Result<(), PeerError> {
        self.set_log_at(log.len(), 0, log.fd())
    }

    /// Sends `SET_LOG_BASE` with any length and file offset of the log.
    pub fn set_log_at(&self, mmap_size: u64, mmap_offset: u64, fd: BorrowedFd<'_>) -> Result<(), PeerError> {
        let payload = [mmap_size.to_le_bytes(), mmap_offset.to_le_bytes()].concat();
        self.ask(request::SET_LOG_BASE, &payload, &[fd]).map(drop)
    }

    /// Sends `SET_VRING_NUM` with the number of descriptors of the ring.
    pub fn set_vring_num(&self, index: u32, descriptors: u32) -> Result<(), PeerError> {
        self.tell_vring(request::SET_VRING_NUM, index, descriptors)
    }

    /// Sends `SET_VRING_BASE` with the start position (packed: two positions with wrap counters).
    pub fn set_vring_base(&self, index: u32, base: u32) -> Result<(), PeerError> {
        self.tell_vring(request::SET_VRING_BASE, index, base)
    }

    /// Sends `GET_VRING_BASE`, which stops the ring, and returns the backend's position in the ring.
    pub fn get_vring_base(&self, index: u32) -> Result<u32, PeerError> {
        let answer = self.ask(request::GET_VRING_BASE, &words(&[index, 0]), &[])?;
        assert!(answer.u32_at(0) == index, "the base of ring {index} came as that of ring {}", answer.u32_at(0));
        Ok(answer.u32_at(4))
    }

    /// Sends `SET_VRING_ADDR`.
    pub fn set_vring_addr(&self, addr: &VringAddr) -> Result<(), PeerError> {
        let mut payload = words(&[addr.index, addr.flags]);
        for field in [addr.descriptors, addr.used, addr.available, addr.log] {
            payload.extend(field.to_le_bytes());
        }
        self.tell(request::SET_VRING_ADDR, &payload, &[])
    }

    /// Sends `SET_VRING_KICK`. Without a descriptor, the backend polls the available ring.
    pub fn set_vring_kick(&self, index: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), PeerError> {
        self.tell_vring_fd(request::SET_VRING_KICK, index, fd)
    }

    /// Sends `SET_VRING_CALL`. Without a descriptor, the driver polls the used ring.
    pub fn set_vring_call(&self, index: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), PeerError> {
        self.tell_vring_fd(request::SET_VRING_CALL, index, fd)
    }

    /// Sends `SET_VRING_ERR`.
    pub fn set_vring_err(&self, index: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), PeerError> {
        self.tell_vring_fd(request::SET_VRING_ERR, index, fd)
    }

    /// Sends `SET_VRING_ENABLE`.
    pub fn set_vring_enable(&self, index: u32, enable: bool) -> Result<(), PeerError> {
        self.tell_vring(request::SET_VRING_ENABLE, index, enable.into())
    }

    /// Sends `GET_QUEUE_NUM`, and returns the maximum number of queue pairs of the backend (virtio-net).
    pub fn get_queue_num(&self) -> Result<u64, PeerError> {
        self.ask_u64(request::GET_QUEUE_NUM)
    }

    /// Sends `SEND_RARP`, a request to announce the guest to the network after a migration.
    pub fn send_rarp(&self, mac: [u8; 6]) -> Result<(), PeerError> {
        let mut payload = [0; 8];
        payload[..6].copy_from_slice(&mac);
        self.tell(request::SEND_RARP, &payload, &[])
    }

    /// Sends `NET_SET_MTU`.
    pub fn net_set_mtu(&self, mtu: u64) -> Result<(), PeerError> {
        self.tell_u64(request::NET_SET_MTU, mtu)
    }

    /// Sends `GET_CONFIG`, and returns `len` bytes of the device's configuration from byte `offset` on. An answer
    /// without content means that the backend refuses.
    pub fn get_config(&self, offset: u32, len: u32) -> Result<Vec<u8>, PeerError> {
        let mut payload = words(&[offset, len, 0]);
        payload.resize(CONFIG_HEAD_LEN + len as usize, 0);
        let answer = self.ask(request::GET_CONFIG, &payload, &[])?;
        let content = answer.payload.get(CONFIG_HEAD_LEN..).unwrap_or_default();
        if content.is_empty() {
            return Err(PeerError::Refused { request: request::GET_CONFIG, code: 0 });
        }
        assert!(content.len() == len as usize, "{len} bytes of configuration were asked, {} came", content.len());
        Ok(content.to_vec())
    }

    /// Sends `SET_CONFIG`, which changes the configuration from byte `offset` on.
    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> Result<(), PeerError> {
        let mut payload = words(&[offset, bytes.len() as u32, 0]);
        payload.extend(bytes);
        self.tell(request::SET_CONFIG, &payload, &[])
    }

    /// Sends `SET_STATUS` with a value for virtio's device status field (virtio 1.3, 2.1).
    pub fn set_status(&self, status: u8) -> Result<(), PeerError> {
        self.tell_u64(request::SET_STATUS, status.into())
    }

    /// Sends `GET_STATUS`, and returns the value of virtio's device status field.
    pub fn get_status(&self) -> Result<u8, PeerError> {
        Ok(self.ask_u64(request::GET_STATUS)? as u8)
    }

    /// Sends `GET_INFLIGHT_FD`, and returns a new region for `num_queues` queues of `queue_size` descriptors.
    pub fn get_inflight_fd(&self, num_queues: u16, queue_size: u16) -> Result<Inflight, PeerError> {
        let payload = inflight_bytes(0, 0, num_queues, queue_size);
        let mut answer = self.ask(request::GET_INFLIGHT_FD, &payload, &[])?;
        let file = answer.fds.pop().ok_or(PeerError::Refused { request: request::GET_INFLIGHT_FD, code: 0 })?;
        Ok(Inflight {
            mmap_size: answer.u64_at(0),
            mmap_offset: answer.u64_at(8),
            num_queues: answer.u16_at(16),
            queue_size: answer.u16_at(18),
            file,
        })
    }

    /// Sends `SET_INFLIGHT_FD` with the region of an earlier backend.
    pub fn set_inflight_fd(&self, inflight: &Inflight) -> Result<(), PeerError> {
        let Inflight { mmap_size, mmap_offset, num_queues, queue_size, .. } = *inflight;
        let payload = inflight_bytes(mmap_size, mmap_offset, num_queues, queue_size);
        self.tell(request::SET_INFLIGHT_FD, &payload, &[inflight.fd()])
    }

    /// Sends `SET_BACKEND_REQ_FD`, which gives the backend a channel for requests to the frontend.
    pub fn set_backend_req_fd(&mut self) -> Result<(), PeerError> {
        let (ours, theirs) = UnixStream::pair().expect("making the backend's channel");
        self.tell(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        self.backend_channel = Some(ours);
        Ok(())
    }

    /// Returns the backend's next request on the channel for the backend's requests, or `None` if the backend closed
    /// the channel. Panics if no request is received within `timeout`.
    pub fn backend_request(&self, timeout: Duration) -> Option<RawMessage> {
        recv_message(self.channel(), timeout, "a request of its own")
    }

    /// Acknowledges a request of the backend with `code`. 0 means success.
    pub fn acknowledge_backend(&self, asked: &RawMessage, code: u64) -> bool {
        let header = Header { flags: super::VERSION | super::FLAG_REPLY, ..Header::new(asked.header.request, 8) };
        send_all(self.channel(), &[&header.to_bytes()[..], &code.to_le_bytes()].concat(), &[], self.timeout)
    }

    fn channel(&self) -> &UnixStream {
        self.backend_channel.as_ref().expect("a channel that SET_BACKEND_REQ_FD has given to the backend")
    }
}

fn inflight_bytes(mmap_size: u64, mmap_offset: u64, num_queues: u16, queue_size: u16) -> Vec<u8> {
    let mut payload = [mmap_size.to_le_bytes(), mmap_offset.to_le_bytes()].concat();
    payload.extend(num_queues.to_le_bytes());
    payload.extend(queue_size.to_le_bytes());
    payload.resize(24, 0); // The structure ends at a multiple of 8.
    payload
}

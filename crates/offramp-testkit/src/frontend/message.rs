//! Messages of vhost-user as bytes ("Message Specification" in the specification). Numbers have the machine's byte
//! order, here little-endian.

use std::os::fd::OwnedFd;

/// Length of a message's header in bytes.
pub const HEADER_LEN: usize = 12;
/// `flags`: version of the protocol.
pub const VERSION: u32 = 1;
/// `flags`: the message is an answer.
pub const FLAG_REPLY: u32 = 1 << 2;
/// `flags`: the sender requests an acknowledgement.
pub const FLAG_NEED_REPLY: u32 = 1 << 3;

/// The header of a message. The fields can have any values, valid or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Request number from [`request`] or [`backend_request`].
    pub request: u32,
    /// Combination of [`VERSION`], [`FLAG_REPLY`] and [`FLAG_NEED_REPLY`].
    pub flags: u32,
    /// Length of the payload in bytes.
    pub payload_len: u32,
}

impl Header {
    /// Returns the header of a valid request with a payload of `payload_len` bytes.
    pub fn new(request: u32, payload_len: usize) -> Self {
        Self { request, flags: VERSION, payload_len: payload_len as u32 }
    }

    /// Returns the same header with a request for an acknowledgement.
    #[must_use]
    pub fn with_need_reply(self) -> Self {
        Self { flags: self.flags | FLAG_NEED_REPLY, ..self }
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        for (place, word) in bytes.chunks_exact_mut(4).zip([self.request, self.flags, self.payload_len]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses a received header.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { request: word(0), flags: word(4), payload_len: word(8) }
    }
}

/// A received message.
#[derive(Debug)]
pub struct RawMessage {
    /// Header of the message.
    pub header: Header,
    /// Payload, with the length stated in the header.
    pub payload: Vec<u8>,
    /// Received file descriptors.
    pub fds: Vec<OwnedFd>,
}

impl RawMessage {
    /// Returns the 64-bit number at the start of the payload.
    pub fn u64(&self) -> u64 {
        u64::from_le_bytes(self.field(0))
    }

    /// Returns the 32-bit number at byte `at` of the payload.
    pub fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.field(at))
    }

    /// Returns the 64-bit number at byte `at` of the payload.
    pub fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.field(at))
    }

    /// Returns the 16-bit number at byte `at` of the payload.
    pub fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.field(at))
    }

    fn field<const LEN: usize>(&self, at: usize) -> [u8; LEN] {
        let field = self.payload.get(at..at + LEN).and_then(|bytes| bytes.try_into().ok());
        field.unwrap_or_else(|| panic!("the message {:?} has no {LEN} bytes at {at} of its payload", self.header))
    }
}

/// Numbers of the frontend's requests ("Front-end message types").
#[allow(missing_docs)] // The names are from the specification.
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
    pub const SET_DEVICE_STATE_FD: u32 = 42;
    pub const CHECK_DEVICE_STATE: u32 = 43;
}

/// Numbers of the backend's requests, sent on a separate channel ("Back-end message types").
#[allow(missing_docs)] // The names are from the specification.
pub mod backend_request {
    pub const CONFIG_CHANGE_MSG: u32 = 2;
}

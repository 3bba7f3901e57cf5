//! The transfer of a backend's state (vhost-user, "Migrating back-end state").

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::message::request;
use super::{Frontend, PeerError};

/// Direction of a state transfer: from the backend to the frontend (save).
const SAVE: u32 = 0;
/// Direction of a state transfer: from the frontend to the backend (load).
const LOAD: u32 = 1;
/// Mask for the error number in the backend's answer.
const ERROR: u64 = 0xff;
/// Bit in the backend's answer: the answer carries no file descriptor.
const NO_FILE: u64 = 1 << 8;

impl Frontend {
    /// Reads the state of a backend with stopped rings, and checks that the transfer was complete.
    ///
    /// # Errors
    /// Returns an error if the backend refuses the request or closes the connection.
    pub fn save_state(&self) -> Result<Vec<u8>, PeerError> {
        let mut state = Vec::new();
        self.open_state(SAVE)?.read_to_end(&mut state).expect("reading the state");
        self.check_device_state()?;
        Ok(state)
    }

    /// Sends a state to a backend, and checks that the backend accepted the state.
    ///
    /// # Errors
    /// Returns an error if the backend refuses the request or closes the connection.
    pub fn load_state(&self, state: &[u8]) -> Result<(), PeerError> {
        self.open_state(LOAD)?.write_all(state).expect("writing the state");
        self.check_device_state()
    }

    /// Sends `SET_DEVICE_STATE_FD` with a socket, as Cloud Hypervisor does. Returns the frontend's end of the socket
    /// pair, or a file provided by the backend.
    fn open_state(&self, direction: u32) -> Result<File, PeerError> {
        let request = request::SET_DEVICE_STATE_FD;
        let (near, far) = UnixStream::pair().expect("making a channel for the state");
        let payload = [direction.to_le_bytes(), [0; 4]].concat();
        let mut answer = self.ask(request, &payload, &[far.as_fd()])?;
        drop(far);
        match answer.u64() {
            code if code & ERROR != 0 => Err(PeerError::Refused { request, code }),
            code if code & NO_FILE != 0 => Ok(OwnedFd::from(near).into()),
            _ => Ok(answer.fds.pop().expect("the descriptor that the backend announces").into()),
        }
    }

    /// Sends `CHECK_DEVICE_STATE`, and returns an error if the last transfer failed.
    fn check_device_state(&self) -> Result<(), PeerError> {
        let request = request::CHECK_DEVICE_STATE;
        match self.ask(request, &[], &[])?.u64() {
            0 => Ok(()),
            code => Err(PeerError::Refused { request, code }),
        }
    }
}

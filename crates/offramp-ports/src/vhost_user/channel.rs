//! The backend channel, for the backend's requests and the frontend's answers (vhost-user, "Back-end message types").
//! The only request that this backend sends reports a changed configuration.
//!
//! No function here blocks. If a function waited for the frontend while the frontend waits for an answer of the
//! backend, frontend and backend would wait forever. At most one request is unanswered at a time. If the configuration
//! changes before the frontend has answered the last report, the next report follows this answer.

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;
/// Header flags: version 1 with its mask, the flag of a reply, and the flag that requests a reply.
const VERSION: u32 = 0x1;
const VERSION_MASK: u32 = 0x3;
const REPLY: u32 = 0x4;
const NEED_REPLY: u32 = 0x8;
/// Length of a message's header, and of an answer (a header and 64 bits), in bytes.
const HEADER_LEN: usize = 12;
const ANSWER_LEN: usize = HEADER_LEN + 8;

/// The reason for the end of the channel. The connection to the frontend continues.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("the backend channel is not a socket: {0}")]
    NoSocket(io::Error),
    #[error("the backend channel: {0}")]
    Broken(Errno),
    #[error("the frontend closed the backend channel")]
    Closed,
    #[error("the backend channel: {0:02x?} does not answer the last request")]
    NoAnswer([u8; ANSWER_LEN]),
}

/// The backend's end of the channel.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    /// True if the frontend answers requests (`REPLY_ACK`).
    wants_answers: bool,
    is_asked: bool,
    /// True if the configuration has changed and no request has reported the change yet.
    is_due: bool,
    /// The bytes of the frontend's answer that were read so far.
    answer: [u8; ANSWER_LEN],
    answer_len: usize,
}

impl Channel {
    pub(super) fn new(fd: OwnedFd, wants_answers: bool) -> Result<Self, Ended> {
        let stream = UnixStream::from(fd);
        stream.set_nonblocking(true).map_err(Ended::NoSocket)?;
        stream.local_addr().map_err(Ended::NoSocket)?;
        Ok(Self { stream, wants_answers, is_asked: false, is_due: false, answer: [0; ANSWER_LEN], answer_len: 0 })
    }

    /// Reports a changed configuration, at once or after the answer to the last report.
    pub(super) fn report_config_change(&mut self) -> Result<(), Ended> {
        self.is_due = true;
        self.report_if_due()
    }

    fn report_if_due(&mut self) -> Result<(), Ended> {
        if !self.is_due || self.is_asked {
            return Ok(());
        }
        let flags = VERSION | if self.wants_answers { NEED_REPLY } else { 0 };
        let mut message = [0; HEADER_LEN];
        for (at, word) in [CONFIG_CHANGE, flags, 0].into_iter().enumerate() {
            message[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        match send(self.stream.as_raw_fd(), &message, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT) {
            Ok(HEADER_LEN) => {
                self.is_due = false;
                self.is_asked = self.wants_answers;
                Ok(())
            }
            // The frontend has not read the last report. After reading the report, the frontend will read the newest
            // configuration.
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Ok(_) => Err(Ended::Broken(Errno::EMSGSIZE)),
            Err(error) => Err(Ended::Broken(error)),
        }
    }

    /// Reads from the frontend. After a complete answer, returns `Some` with true if the frontend accepted the request.
    pub(super) fn serve(&mut self) -> Result<Option<bool>, Ended> {
        let room = &mut self.answer[self.answer_len..];
        match recv(self.stream.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Err(Ended::Closed),
            Ok(len) => self.answer_len += len,
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(Ended::Broken(error)),
        }
        if self.answer_len < ANSWER_LEN {
            return Ok(None);
        }
        self.answer_len = 0;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|n| self.answer[at + n]));
        let is_answer = word(0) == CONFIG_CHANGE && word(4) & (VERSION_MASK | REPLY) == VERSION | REPLY && word(8) == 8;
        if !is_answer || !self.is_asked {
            return Err(Ended::NoAnswer(self.answer));
        }
        self.is_asked = false;
        let is_done = self.answer[HEADER_LEN..] == [0; ANSWER_LEN - HEADER_LEN];
        self.report_if_due()?;
        Ok(Some(is_done))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

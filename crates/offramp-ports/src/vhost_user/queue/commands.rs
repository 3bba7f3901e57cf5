//! The ring of a control queue: commands of the guest, each answered before the next is read.

use super::state::QueueState;
use offramp_virtio::control::COMMAND_LEN_MAX;
use offramp_virtio::ring::Chain;

/// A command as the guest wrote it.
#[derive(Debug)]
pub(in crate::vhost_user) struct Request {
    chain: Chain,
    pub bytes: Vec<u8>,
    /// Maximum bytes of the answer.
    pub answer_len_max: usize,
}

/// A chain without room for an answer or without a command. It went back as it was.
#[derive(Debug)]
pub(in crate::vhost_user) struct NoCommand;

impl QueueState {
    /// Fetches commands, unless some wait. Returns whether there may be any. If not, the guest kicks for the next.
    fn fetch_commands(&mut self) -> bool {
        let Self { transmit, log, counters, .. } = self;
        let log = log.as_deref();
        if !transmit.state.is_enabled() || !transmit.vring.is_started() {
            return false;
        }
        if !transmit.vring.waiting().is_empty() {
            return true;
        }
        transmit.vring.disable_notifications(log);
        if transmit.fetch(log, counters) {
            return true;
        }
        transmit.vring.enable_notifications(log);
        // A chain may have come before the guest saw the change.
        transmit.fetch(log, counters)
    }

    /// Returns the next command, if any chain has come.
    pub(crate) fn next_command(&mut self) -> Option<Result<Request, NoCommand>> {
        if !self.fetch_commands() {
            return None;
        }
        let chain = self.transmit.vring.pop()?;
        let command = self.transmit.vring.read_command(&chain, COMMAND_LEN_MAX);
        let command = command.filter(|(_, answer_len_max)| *answer_len_max > 0);
        if command.is_none() {
            // A bad one was counted when it was fetched.
            self.counters.bad_chains.add(u64::from(chain.len() > 0));
            self.transmit.add_used(&chain, 0);
            self.publish_transmit();
        }
        Some(command.map(|(bytes, answer_len_max)| Request { chain, bytes, answer_len_max }).ok_or(NoCommand))
    }

    /// Answers a command; the guest sees it at once.
    pub(crate) fn answer(&mut self, request: &Request, answer: &[u8]) {
        self.transmit.vring.answer(&request.chain, answer, self.log.as_deref());
        self.publish_transmit();
    }

    /// Returns whether a ring runs and the frontend has enabled it.
    pub(crate) fn is_live(&self) -> bool {
        self.transmit.state.is_enabled() && self.transmit.vring.is_started()
    }
}

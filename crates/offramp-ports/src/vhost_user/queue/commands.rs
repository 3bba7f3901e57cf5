//! The ring of a control queue. Each command from the guest is answered before the next command is read.

use super::state::QueueState;
use offramp_virtio::control::COMMAND_LEN_MAX;
use offramp_virtio::ring::Chain;

/// A command from the guest, as raw bytes.
#[derive(Debug)]
pub(in crate::vhost_user) struct Request {
    chain: Chain,
    pub bytes: Vec<u8>,
    /// Maximum length of the answer, in bytes.
    pub answer_len_max: usize,
}

/// A chain without a command or without room for an answer. The chain was returned unchanged.
#[derive(Debug)]
pub(in crate::vhost_user) struct NoCommand;

impl QueueState {
    /// Fetches commands if no fetched command remains. Returns false if no command is available; the guest then kicks
    /// for the next command.
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
        // A chain may have become available before the guest noticed the enabled notifications.
        transmit.fetch(log, counters)
    }

    /// Returns the next command, if a chain is available.
    pub(crate) fn next_command(&mut self) -> Option<Result<Request, NoCommand>> {
        if !self.fetch_commands() {
            return None;
        }
        let chain = self.transmit.vring.pop()?;
        let command = self.transmit.vring.read_command(&chain, COMMAND_LEN_MAX);
        let command = command.filter(|(_, answer_len_max)| *answer_len_max > 0);
        if command.is_none() {
            // Count a valid chain without a usable command. A bad chain was already counted by the fetch.
            self.counters.bad_chains.add(u64::from(chain.len() > 0));
            self.transmit.add_used(&chain, 0);
            self.publish_transmit();
        }
        Some(command.map(|(bytes, answer_len_max)| Request { chain, bytes, answer_len_max }).ok_or(NoCommand))
    }

    /// Answers a command, and publishes the answer at once.
    pub(crate) fn answer(&mut self, request: &Request, answer: &[u8]) {
        self.transmit.vring.answer(&request.chain, answer, self.log.as_deref());
        self.publish_transmit();
    }

    /// Returns whether the ring runs and the frontend has enabled the ring.
    pub(crate) fn is_live(&self) -> bool {
        self.transmit.state.is_enabled() && self.transmit.vring.is_started()
    }
}

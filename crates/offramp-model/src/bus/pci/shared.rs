//! Several masters on one PCI bus, simulated transaction by transaction.
//!
//! The arbiter grants the bus to the requesting masters in round-robin order. The owner of the bus keeps the bus until
//! its burst ends, or until its latency timer has expired while another master waits. The first attempt of a read finds
//! no data: the bridge answers with a retry and fetches the data. The master repeats the request after its retry delay.
//! The read command decides the length of the fetch. If the bridge ends a burst, the master needs another transaction
//! for the remaining bytes, and a read also needs another fetch. On a bus with split reads, such as PCI-X, the master
//! does not repeat the request: the bridge sends the data in its own transaction.

use super::{Command, PCI_33_32, Pci};
use serde::Serialize;

/// A master that repeats the same transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Master {
    /// Bus command of the master.
    pub command: Command,
    /// Length of a packet, in bytes.
    pub packet_len: u64,
    /// Maximum length of a transaction, in bytes.
    pub burst_len: u64,
    /// Minimum clocks between the starts of two packets; 0 if the next packet is always ready.
    pub packet_cycles: u64,
    /// Wait states of the master per data phase, in clocks.
    pub wait_states: u64,
    /// Length of a transaction without wait states, in bytes. The master disconnects instead of inserting wait states,
    /// and requests the bus again once this number of bytes is ready. `None` if the master inserts wait states.
    pub disconnect_len: Option<u64>,
    /// Clocks from a retry until the master repeats the request.
    pub retry_cycles: u64,
}

/// A PCI bus with several masters, and the bridge between the bus and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBus {
    /// Timing of the bus.
    pub pci: Pci,
    /// Minimum time for which the owner of the bus can use the bus while other masters wait, in clocks.
    pub latency_timer: u64,
    /// Time from the first attempt of a read until the bridge has the data, in clocks.
    pub fetch_cycles: u64,
    /// Duration of a transaction that ends with a retry, in clocks.
    pub retry_overhead_cycles: u64,
    /// `true` for split reads: the bridge sends the data in its own transaction, and the master does not retry.
    pub is_split: bool,
}

/// [`PCI_33_32`] with a bridge that fetches in 12 clocks, and a latency timer of 64 clocks.
pub const SHARED_33_32: SharedBus =
    SharedBus { pci: PCI_33_32, latency_timer: 64, fetch_cycles: 12, retry_overhead_cycles: 4, is_split: false };

/// Length of a full frame, rounded to whole words, in bytes.
pub const PACKET_LEN: u64 = 1516;

/// A master that writes full frames, one burst each.
pub const WRITER: Master = Master {
    command: Command::Write,
    packet_len: PACKET_LEN,
    burst_len: 4096,
    packet_cycles: 0,
    wait_states: 0,
    disconnect_len: None,
    retry_cycles: 8,
};

/// Counters of a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of bytes moved.
    pub bytes: u64,
    /// Number of completed packets.
    pub packets: u64,
    /// Number of transactions with data.
    pub transactions: u64,
    /// Number of transactions that ended with a retry.
    pub retries: u64,
    /// Number of read requests answered with a split response.
    pub splits: u64,
    /// Clocks during which the master owned the bus.
    pub owned_cycles: u64,
    /// Time from the clock at which a packet is ready until its last byte has been moved, summed over all packets, in
    /// clocks.
    pub packet_cycles: u64,
}

#[derive(Clone, Copy, Debug)]
struct State {
    master: Master,
    /// Clock at which the current packet became ready.
    packet_at: u64,
    left: u64,
    /// Clock of the next request for the bus.
    asks_at: u64,
    /// Clock at which the bridge has fetched the data of the current read.
    fetched_at: Option<u64>,
    counts: Counts,
}

impl State {
    fn new(master: Master) -> Self {
        let (left, counts) = (master.packet_len, Counts::default());
        Self { master, packet_at: 0, left, asks_at: 0, fetched_at: None, counts }
    }

    /// Returns the duration of a data phase in clocks, and the maximum length of the next transaction in bytes.
    fn burst(&self, pci: &Pci) -> (u64, u64) {
        let wanted = self.master.burst_len.min(pci.burst_len(self.master.command)).min(self.left);
        let of_bus = 1 + pci.wait_states;
        match self.master.disconnect_len {
            Some(len) => (of_bus, wanted.min(len)),
            None => (of_bus + self.master.wait_states, wanted),
        }
    }
}

impl SharedBus {
    /// Runs the masters for `cycles` clocks.
    pub fn run(&self, masters: &[Master], cycles: u64) -> Vec<Counts> {
        let mut states: Vec<_> = masters.iter().copied().map(State::new).collect();
        let (mut now, mut last) = (0, 0);
        while now < cycles {
            let Some(at) = next_owner(&states, now, last) else {
                now = states.iter().map(|state| state.asks_at).min().unwrap_or(cycles);
                continue;
            };
            let others_wait = states.iter().enumerate().any(|(other, state)| other != at && state.asks_at <= now);
            now += self.transact(&mut states[at], now, others_wait);
            last = at;
        }
        states.into_iter().map(|state| state.counts).collect()
    }

    /// Runs one transaction, and returns its duration in clocks.
    fn transact(&self, state: &mut State, now: u64, others_wait: bool) -> u64 {
        let is_read = state.master.command != Command::Write;
        if is_read && state.fetched_at.is_none_or(|at| at > now) {
            let fetched_at = *state.fetched_at.get_or_insert(now + self.fetch_cycles);
            let released_at = now + self.retry_overhead_cycles;
            state.counts.owned_cycles += self.retry_overhead_cycles;
            if self.is_split {
                state.counts.splits += 1;
                state.asks_at = released_at.max(fetched_at);
            } else {
                state.counts.retries += 1;
                state.asks_at = released_at + state.master.retry_cycles;
            }
            return self.retry_overhead_cycles;
        }
        let (phase, wanted) = state.burst(&self.pci);
        let phases_max = if others_wait { (self.latency_timer / phase).max(1) } else { u64::MAX };
        let phases = wanted.div_ceil(self.pci.width).min(phases_max);
        let took = self.pci.overhead_cycles + phases * phase;
        let bytes = (phases * self.pci.width).min(wanted);
        state.moved(now + took, bytes, phases);
        state.counts.owned_cycles += took;
        took
    }
}

impl State {
    fn moved(&mut self, now: u64, bytes: u64, phases: u64) {
        self.fetched_at = None;
        self.left -= bytes;
        self.counts.bytes += bytes;
        self.counts.transactions += 1;
        // A master with `disconnect_len` releases the bus while it waits for data. Any other master inserts wait states
        // while it owns the bus.
        let refill = if self.master.disconnect_len.is_some() { phases * self.master.wait_states } else { 0 };
        self.asks_at = now + refill;
        if self.left == 0 {
            self.counts.packets += 1;
            self.counts.packet_cycles += now - self.packet_at;
            self.packet_at = now.max(self.packet_at + self.master.packet_cycles);
            self.asks_at = self.packet_at.max(self.asks_at);
            self.left = self.master.packet_len;
        }
    }
}

/// Returns the index of the next requesting master, in round-robin order after the last owner.
fn next_owner(states: &[State], now: u64, last: usize) -> Option<usize> {
    let count = states.len();
    (1..=count).map(|step| (last + step) % count).find(|&at| states[at].asks_at <= now)
}

#[cfg(test)]
mod tests {
    use super::*;

    use PCI_33_32 as PCI;
    use SHARED_33_32 as BUS;

    const CYCLES: u64 = 1_000_000;

    #[test]
    fn a_master_alone_moves_what_the_arithmetic_of_the_bus_says() {
        for burst_len in [64, 256, 1516] {
            let master = Master { packet_len: burst_len, burst_len, ..WRITER };
            let moved = BUS.run(&[master], CYCLES)[0].bytes;
            let expected = PCI.bytes_per_second(burst_len) * CYCLES / PCI.clock_hz;
            assert!(moved.abs_diff(expected) <= 2 * burst_len, "{burst_len}: {moved} of {expected}");
        }
    }

    #[test]
    fn equal_masters_share_the_bus_equally_and_lose_what_the_latency_timer_cuts() {
        let [first, second] = BUS.run(&[WRITER; 2], CYCLES)[..] else { panic!("two masters") };
        assert!(first.bytes.abs_diff(second.bytes) <= WRITER.packet_len);
        let alone = BUS.run(&[WRITER], CYCLES)[0];
        assert!(first.bytes + second.bytes < alone.bytes);
        let patient = SharedBus { latency_timer: 512, ..BUS };
        let sum: u64 = patient.run(&[WRITER; 2], CYCLES).iter().map(|counts| counts.bytes).sum();
        assert!(sum.abs_diff(alone.bytes) <= WRITER.packet_len, "no burst is interrupted any more");
    }

    #[test]
    fn a_read_is_retried_until_the_bridge_has_fetched() {
        let reader = Master { command: Command::ReadMultiple, packet_len: 512, ..WRITER };
        // Clocks per packet: retry 4, retry delay 8, overhead 20, data 128.
        let counts = BUS.run(&[reader], 160_000)[0];
        assert_eq!((counts.packets, counts.retries), (1000, 1000));
        let hasty = BUS.run(&[Master { retry_cycles: 0, ..reader }], 160_000)[0];
        assert!(hasty.retries > 2 * counts.retries);
    }

    #[test]
    fn a_read_that_is_split_asks_once_and_leaves_the_bus_to_others_meanwhile() {
        let split = SharedBus { is_split: true, fetch_cycles: 120, ..BUS };
        let reader = Master { command: Command::ReadMultiple, packet_len: 512, retry_cycles: 0, ..WRITER };
        // Clocks per packet: 120 from the request until the bridge has the data, overhead 20, data 128.
        let alone = split.run(&[reader], 268_000)[0];
        assert_eq!((alone.packets, alone.splits, alone.retries), (1000, 1000, 0));
        let beside = |bus: SharedBus| bus.run(&[WRITER, reader], CYCLES);
        let (with, without) = (beside(split), beside(SharedBus { is_split: false, ..split }));
        assert!(with[0].bytes > without[0].bytes, "{with:?} {without:?}");
        assert!(without[1].retries > with[1].splits, "{with:?} {without:?}");
    }
}

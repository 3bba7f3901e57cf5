//! Log lines about faults of guests. The counters of `show` hold the details. Each port logs at most one line per ten
//! seconds, so that no guest can fill the log.

use offramp_adapter::stats::Row;
use std::iter::repeat;

/// Minimum time between two log lines of a port, in nanoseconds.
const PAUSE_NS: u64 = 10_000_000_000;

/// The counts of faults already logged for one port's guest.
#[derive(Debug, Default)]
pub struct Report {
    said: Vec<u64>,
    next_ns: u64,
}

impl Report {
    /// Returns the text of a log line about the faults since the last line; `None` without faults, or before a line is
    /// due.
    pub fn next(&mut self, counts: impl IntoIterator<Item = (&'static Row, u64)>, now_ns: u64) -> Option<String> {
        if now_ns < self.next_ns {
            return None;
        }
        let faults: Vec<_> = counts.into_iter().filter_map(|(row, count)| Some((row.logged?, count))).collect();
        let news = faults.iter().zip(self.said.iter().chain(repeat(&0))).filter(|((_, count), said)| count > said);
        let news: Vec<_> = news.map(|((words, count), said)| format!("{} {words}", count - said)).collect();
        if news.is_empty() {
            return None;
        }
        (self.said, self.next_ns) = (faults.into_iter().map(|(_, count)| count).collect(), now_ns + PAUSE_NS);
        Some(news.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_ports::vhost_user::{ChannelCounters, QueueCounters};

    #[test]
    fn a_port_is_in_the_log_once_in_ten_seconds_whatever_its_guest_does() {
        let mut report = Report::default();
        let (channel, queue) = (ChannelCounters::default(), QueueCounters::default());
        channel.connections.add(7);
        channel.messages.add(70);
        queue.calls.add(9);
        queue.discarded.add(1);
        let mut lines = Vec::new();
        for second in 0..100 {
            for look in 0..4 {
                lines.extend(report.next(channel.values().chain(queue.values()), (4 * second + look) * PAUSE_NS / 40));
                if second >= 3 {
                    queue.bad_chains.add(1000);
                }
                if second == 50 {
                    channel.lost_memories.add(1);
                }
            }
        }
        assert_eq!(lines.len(), 10, "{lines:?}");
        assert_eq!(lines[..2], ["1000 bad chains", "40000 bad chains"]);
        assert_eq!(lines.iter().filter(|line| line.starts_with("4 lost memories, ")).count(), 1, "{lines:?}");
    }
}

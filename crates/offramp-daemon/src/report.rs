//! Faults of guests, in the log. The counters of `show` have the details. A line calls for attention, at most once per
//! port in ten seconds, so no guest can fill the log.

use crate::schema::GuestCounters;

/// Time between two lines of a port.
const PAUSE_NS: u64 = 10_000_000_000;

/// The log's state of one port's guest.
#[derive(Debug, Default)]
pub struct Report {
    said: [u64; KINDS.len()],
    next_ns: u64,
}

type Kind = (&'static str, fn(&GuestCounters) -> u64);

/// The counters named in a line.
const KINDS: [Kind; 5] = [
    ("refused frontends", |counters| counters.refused_connections),
    ("refused messages", |counters| counters.bad_messages),
    ("lost memories", |counters| counters.lost_memories),
    ("bad chains", |counters| counters.bad_chains),
    ("broken rings", |counters| counters.broken_rings),
];

impl Report {
    /// Returns the news since the last line, if there is any and a line is due.
    pub fn next(&mut self, counters: &GuestCounters, now_ns: u64) -> Option<String> {
        let counts = KINDS.map(|(_, count)| count(counters));
        if counts == self.said || now_ns < self.next_ns {
            return None;
        }
        let news = KINDS.iter().zip(counts).zip(self.said).filter(|((_, count), said)| count > said);
        let news: Vec<_> = news.map(|(((kind, _), count), said)| format!("{} {kind}", count - said)).collect();
        (self.said, self.next_ns) = (counts, now_ns + PAUSE_NS);
        Some(news.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_in_the_log_once_in_ten_seconds_whatever_its_guest_does() {
        let mut report = Report::default();
        let mut counters = GuestCounters { connections: 7, messages: 70, calls: 9, discarded: 1, ..Default::default() };
        let mut lines = Vec::new();
        for second in 0..100 {
            for look in 0..4 {
                lines.extend(report.next(&counters, (4 * second + look) * PAUSE_NS / 40));
                if second >= 3 {
                    counters.bad_chains += 1000;
                }
                if second == 50 {
                    counters.lost_memories += 1;
                }
            }
        }
        assert_eq!(lines.len(), 10, "{lines:?}");
        assert_eq!(lines[..2], ["1000 bad chains", "40000 bad chains"]);
        assert_eq!(lines.iter().filter(|line| line.starts_with("4 lost memories, ")).count(), 1, "{lines:?}");
    }
}

//! Parsers for the output of `dpdk-testpmd`.

/// Counters of a port since its start, or since the counters were cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Number of packets received.
    pub rx_packets: u64,
    /// Number of packets sent.
    pub tx_packets: u64,
}

impl PortStats {
    /// Parses the last complete answer to `show port stats` for that port.
    pub fn parse(text: &str, port: usize) -> Option<Self> {
        let title = format!("NIC statistics for port {port} ");
        let (_, after) = text.rsplit_once(&title)?;
        let (_, body) = after.split_once('\n')?;
        let (body, _) = body.split_once("####")?;
        Some(Self { rx_packets: number_after(body, "RX-packets:")?, tx_packets: number_after(body, "TX-packets:")? })
    }
}

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The port has a link.
    Up,
    /// The port has no link.
    Down,
}

impl Link {
    /// Parses the answer to `show port info`.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, after) = text.rsplit_once("Link status: ")?;
        let (word, _) = after.split_once('\n')?;
        match word.trim() {
            "up" => Some(Self::Up),
            "down" => Some(Self::Down),
            _ => None,
        }
    }
}

/// Parses the answer to `show fwd stats all` of a testpmd that records cycles. Returns nanoseconds per packet, or
/// `None` if no packet was forwarded.
pub fn busy_ns_per_packet(text: &str) -> Option<f64> {
    let (_, after) = text.rsplit_once("CPU cycles/packet=")?;
    let (line, _) = after.split_once('\n')?;
    let cycles: f64 = line.split_whitespace().next()?.parse().ok()?;
    let (_, clock) = line.rsplit_once(" at ")?;
    let mhz: f64 = clock.split_whitespace().next()?.parse().ok()?;
    (mhz > 0.0).then(|| cycles / mhz * 1e3)
}

/// Parses the integer after `label`.
fn number_after(text: &str, label: &str) -> Option<u64> {
    let (_, after) = text.split_once(label)?;
    after.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(port: usize, rx: u64, tx: u64) -> String {
        format!(
            "testpmd> show port stats {port}\n\n  ######################## NIC statistics for port {port}  ########################\n  \
             RX-packets: {rx}   RX-missed: 0          RX-bytes:  795711488\n  RX-errors: 0\n  RX-nombuf:  0         \n  \
             TX-packets: {tx}          TX-errors: 0          TX-bytes:  0\n\n  Throughput (since last show)\n  \
             Rx-pps:            0          Rx-bps:            0\n  ####"
        )
    }

    #[test]
    fn counters_are_read_of_the_port_that_was_asked_for() {
        let text = stats(1, 12_432_992, 7) + &stats(0, 1, 2);
        assert_eq!(PortStats::parse(&text, 1), Some(PortStats { rx_packets: 12_432_992, tx_packets: 7 }));
        assert_eq!(PortStats::parse(&text, 0), Some(PortStats { rx_packets: 1, tx_packets: 2 }));
        assert_eq!(PortStats::parse(&text, 2), None);
    }

    #[test]
    fn counters_are_not_read_from_half_an_answer() {
        let text = stats(0, 10, 20);
        for end in 0..text.len() {
            assert_eq!(PortStats::parse(&text[..end], 0), None, "{}", &text[..end]);
        }
    }

    #[test]
    fn the_last_answer_counts() {
        let text = stats(0, 1, 1) + &stats(0, 2, 3);
        assert_eq!(PortStats::parse(&text, 0), Some(PortStats { rx_packets: 2, tx_packets: 3 }));
    }

    #[test]
    fn cycles_become_nanoseconds_by_the_clock_that_is_printed() {
        let text = "\n  CPU cycles/packet=558.00 (total cycles=4210211911 / total rxonly packets=12432992) at 2790 MHz Clock\n";
        assert!((busy_ns_per_packet(text).unwrap() - 200.0).abs() < 1e-9);
        assert_eq!(busy_ns_per_packet("CPU cycles/packet=558.00 (total"), None);
        assert_eq!(busy_ns_per_packet("testpmd> "), None);
    }

    #[test]
    fn a_link_is_up_or_down_or_not_yet_said() {
        assert_eq!(Link::parse("Link status: up\nLink speed: 10 Gbps\n"), Some(Link::Up));
        assert_eq!(Link::parse("Link status: down\n"), Some(Link::Down));
        assert_eq!(Link::parse("Link status: do"), None);
    }
}

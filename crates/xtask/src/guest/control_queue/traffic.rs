//! Frames sent to the guest, and the counters of the guest and of its port.

use super::steps::Destination;
use super::{Bench, DATAGRAMS, FRAME_LEN, PATIENCE, STRANGER, VETHS, settled};
use offramp_adapter::port::HostPort;
use offramp_offload::meta::RxMeta;
use offramp_offload::vlan::{CUSTOMER_TAG, TAG_AT};
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_testbed::failure::{Doing, Result, failed, inside};
use offramp_testbed::frames;
use offramp_testbed::guest::busybox::GUEST;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use std::net::UdpSocket;
use std::ops::Range;
use std::time::Duration;

/// Range from which the flows' source ports are drawn at random. The guest chooses a random hash key. Each bit of the
/// hash depends on the parity of some bits of the port, selected by the key. With equidistant ports, 0.5 % of all keys
/// put at least three quarters of the flows on one pair. With random ports, only 0.01 % of all keys do so.
const FLOW_PORTS: Range<u16> = 20_000..60_000;
/// Destination port, on which nobody listens.
const DISCARD: u16 = 9;

impl Bench {
    /// Returns the number of frames received by the guest's driver.
    pub(super) fn received(&mut self) -> Result<u64> {
        const FILE: &str = "/sys/class/net/eth0/statistics/rx_packets";
        self.machine.run(&format!("cat {FILE}"))?.trim().parse().doing(FILE)
    }

    /// Waits until the guest has received `count` frames more than `before`, at most for [`PATIENCE`]. Returns the
    /// number of additional frames.
    pub(super) fn receives(&mut self, before: u64, count: u64) -> Result<u64> {
        settled(PATIENCE, || Ok(self.received()? - before), |more| *more >= count)
    }

    /// Returns the value of the port's statistic `counter` for each receive queue, as the guest reads it with
    /// `ethtool -S`.
    pub(super) fn by_queue(&mut self, counter: &str) -> Result<Vec<u64>> {
        let printed = self.machine.run("ethtool -S eth0")?;
        // The driver does not list unused queues.
        let of_queue = |queue| statistic(&printed, &format!("rx{queue}_hw_{counter}")).unwrap_or_default();
        Ok((0..self.queue_pairs).map(of_queue).collect())
    }

    /// Sends datagrams to the guest, each flow from a separate port, because datagrams of different flows cannot be
    /// coalesced.
    pub(super) fn send(&self, flows: u16, count: u16, pace: Duration) -> Result<()> {
        inside(&self.ns, "sending to the guest", || {
            let sockets = flow_ports(flows).map(|port| UdpSocket::bind((STRANGER, port)));
            let sockets = sockets.collect::<std::io::Result<Vec<_>>>()?;
            for socket in sockets.iter().cycle().take(usize::from(count)) {
                socket.send_to(&[0; 64], (GUEST, DISCARD))?;
                std::thread::sleep(pace);
            }
            Ok::<_, std::io::Error>(())
        })
    }

    /// Sends frames to each destination from the host's interface of the veth pair.
    pub(super) fn send_to(&self, destinations: &[Destination]) -> Result<()> {
        let socket = Packet::open_in(&self.ns, &PacketConfig::new(VETHS[0])).doing("opening a packet socket")?;
        let Some(mut queue) = socket.queue(0) else { return failed("the packet socket has no queue") };
        let mut rng = SmallRng::seed_from_u64(0);
        for (mac, vid) in destinations {
            for port in flow_ports(DATAGRAMS) {
                let mut frame = frames::udp(FRAME_LEN, port, &mut rng);
                frame[..mac.len()].copy_from_slice(mac);
                if let Some(vid) = vid {
                    frame.splice(TAG_AT..TAG_AT, [CUSTOMER_TAG, vid.to_be_bytes()].concat());
                }
                queue.rx_deliver(&RxMeta::default(), &frame).doing("sending a frame")?;
            }
        }
        Ok(())
    }

    /// Returns the number of frames to the guest that were lost for `reason`.
    pub(super) fn lost(&self, reason: &str) -> Result<u64> {
        let port = self.port()?;
        let queues = port["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(queues.iter().filter_map(|queue| queue["receive"]["lost"][reason].as_u64()).sum())
    }

    /// Returns two counters of the port's frames to its guest, from a single answer of the daemon. With two answers, an
    /// earlier frame that arrives between them would change only the second counter.
    pub(super) fn counts(&self, fields: [&str; 2]) -> Result<(u64, u64)> {
        let port = self.port()?;
        let queues = port["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
        let [first, second] = fields.map(|field| {
            let sum = queues.iter().map(|queue| queue["receive"][field].as_u64()).sum::<Option<u64>>();
            sum.map_or_else(|| failed(format!("offramp show has no receive.{field}")), Ok)
        });
        Ok((first?, second?))
    }
}

/// Returns random, different ports for the given number of flows. The ports are the same in each run.
fn flow_ports(flows: u16) -> impl Iterator<Item = u16> {
    let drawn = sample(&mut SmallRng::seed_from_u64(0), FLOW_PORTS.len(), flows.into());
    drawn.into_iter().filter_map(|at| FLOW_PORTS.clone().nth(at))
}

/// Returns the value of a statistic in the output of `ethtool -S`.
fn statistic(printed: &str, name: &str) -> Result<u64> {
    let value = printed.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
    value.map_or_else(|| failed(format!("ethtool -S has no {name}:\n{}", printed.trim())), Ok)
}

#[cfg(test)]
mod tests {
    use super::super::OTHERS_MAX;
    use super::*;

    #[test]
    fn hardly_any_key_of_a_guest_puts_most_flows_on_one_pair() {
        let ports = flow_ports(DATAGRAMS).collect::<Vec<_>>();
        assert_eq!(ports.len(), usize::from(DATAGRAMS));
        let most_on_one = (0..=u16::MAX).filter(|bits| {
            let odd = ports.iter().filter(|port| (*port & bits).count_ones() % 2 == 1).count() as u64;
            odd.min(u64::from(DATAGRAMS) - odd) <= OTHERS_MAX
        });
        let most_on_one = most_on_one.count();
        assert!(most_on_one < 20, "{most_on_one} of 65,536: ports at even steps had 326");
    }

    #[test]
    fn a_statistic_is_found_by_its_whole_name() {
        let printed = "NIC statistics:\n     rx0_packets: 7\n     rx0_hw_packets: 9\n";
        assert_eq!(statistic(printed, "rx0_packets").unwrap(), 7);
        assert_eq!(statistic(printed, "rx0_hw_packets").unwrap(), 9);
        assert!(statistic(printed, "packets").is_err() && statistic(printed, "rx0").is_err());
    }
}

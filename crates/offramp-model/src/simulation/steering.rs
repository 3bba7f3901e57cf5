//! The queue of each connection: receive-side scaling with offramp's own hash and indirection table.
//!
//! The hash is computed over real frames with the addresses [`PEER_ADDRESS`] and [`HOST_ADDRESS`]. The listening end of
//! a connection has the port of `ttcp`, and the connecting end has a random port. The random ports depend on the seed
//! of the run. The random ports come from a separate stream of random numbers, and thus change no other random number
//! of the run.

use super::frame::Content;
use crate::config::{Config, Workload};
use crate::rpc::{Endpoint, first_reply_frame, tcp_frame};
use offramp_offload::frame::Frame;
use offramp_offload::rss::{INDIRECTION_ENTRIES_DEFAULT, IndirectionTable, Toeplitz};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::RangeInclusive;

/// Addresses from the range for benchmarks of network devices (RFC 2544, C.2.2; RFC 6890).
const PEER_ADDRESS: [u8; 4] = [198, 18, 0, 1];
const HOST_ADDRESS: [u8; 4] = [198, 18, 0, 2];
/// The port of a listening `ttcp`.
const TTCP_PORT: u16 = 5001;
/// The port of an NFS server.
const NFS_PORT: u16 = 2049;
/// The port of an NFS client: the highest privileged port.
const NFS_CLIENT_PORT: u16 = 1023;
/// Range of the random ports of connecting ends (RFC 6335 6). A port is chosen at random (RFC 6056 3.3.1).
const EPHEMERAL_PORTS: RangeInclusive<u16> = 49_152..=65_535;
/// The random stream for ports. All other random numbers of a run come from stream 0.
const PORT_STREAM: u64 = 1;
/// The queue for frames without a hash, and for all frames if the adapter has a single queue.
const FIRST: usize = 0;

/// The queue of each connection. The same queue pair serves both directions of a connection.
#[derive(Debug)]
pub(super) struct Steering {
    of_flows: Vec<usize>,
    of_replies: usize,
    /// Index of the first queue of the second adapter; 0 if no frames are forwarded.
    of_forwarded: usize,
    /// Processor of each connection's or call's process, for [`crate::config::Placement::Spread`].
    processes: Vec<usize>,
}

impl Steering {
    /// The queue for UDP sends. Only one process sends datagrams, and this process uses the first queue.
    pub(super) const OF_DATAGRAMS: usize = FIRST;

    /// Assigns queues to connections and to `calls` calls. `directions` has one element per connection: `true` if data
    /// flow to the host.
    pub(super) fn new(config: &Config, directions: &[bool], calls: usize) -> Self {
        let (of_flows, of_replies) = queues(config, directions);
        let each = if calls > 0 { vec![of_replies; calls] } else { of_flows.clone() };
        let processes = spread(&each, config.host.processors as usize);
        let forwards = config.workload.exchange.is_some_and(|of| of.forwards);
        let of_forwarded = if forwards { config.adapter.queues as usize } else { 0 };
        Self { of_flows, of_replies, of_forwarded, processes }
    }

    /// Returns the processor of a connection's or call's process, for [`crate::config::Placement::Spread`].
    pub(super) fn process(&self, connection: usize) -> usize {
        self.processes[connection]
    }

    /// Returns the queue of a connection.
    pub(super) fn of_flow(&self, flow: usize) -> usize {
        self.of_flows[flow]
    }

    /// Returns the queue of all replies. The hash of a fragment covers only the addresses, so all replies have the same
    /// queue.
    pub(super) fn of_replies(&self) -> usize {
        self.of_replies
    }

    /// Returns the queue for a frame.
    pub(super) fn of_frame(&self, content: &Content) -> usize {
        match *content {
            Content::Segment { flow, .. } | Content::Ack { flow, .. } => self.of_flow(flow),
            Content::Request { .. } | Content::Fragment { .. } => self.of_replies,
            Content::Datagram { .. } => Self::OF_DATAGRAMS,
            Content::Message(message) if self.is_forwarded(content) => self.of_forwarded + self.of_flow(message.flow),
            Content::Message(message) => self.of_flow(message.flow),
        }
    }

    /// Returns whether a frame was forwarded by the host.
    pub(super) fn is_forwarded(&self, content: &Content) -> bool {
        self.of_forwarded > 0 && matches!(content, Content::Message(message) if message.is_response)
    }

    /// Returns the number of connections assigned to a queue.
    pub(super) fn flows_of(&self, queue: usize) -> usize {
        let is_of = |&&of: &&usize| of == queue || self.of_forwarded > 0 && of + self.of_forwarded == queue;
        self.of_flows.iter().filter(is_of).count()
    }
}

/// Returns the queue of each connection, and the queue of replies.
fn queues(config: &Config, directions: &[bool]) -> (Vec<usize>, usize) {
    let queues = u16::try_from(config.adapter.queues).unwrap_or(u16::MAX);
    let table = IndirectionTable::new(INDIRECTION_ENTRIES_DEFAULT, queues).ok().filter(|_| queues > 1);
    let Some(table) = table else { return (vec![FIRST; directions.len()], FIRST) };
    let hash = Toeplitz::default();
    let queue = |mut frame: Vec<u8>| {
        hash.hash_frame(&Frame::received(&mut frame)).map_or(FIRST, |hash| usize::from(table.queue(hash)))
    };
    let ends =
        |peer, host| [Endpoint { address: PEER_ADDRESS, port: peer }, Endpoint { address: HOST_ADDRESS, port: host }];
    let of_flow = |(&is_to_host, port): (&bool, u16)| {
        let [peer, host] = if is_to_host { ends(port, TTCP_PORT) } else { ends(TTCP_PORT, port) };
        queue(tcp_frame(peer, host))
    };
    let ports = ephemeral_ports(config.workload.seed, directions.len());
    let of_replies = match config.workload.workload {
        Workload::NfsRead => {
            let [server, client] = ends(NFS_PORT, NFS_CLIENT_PORT);
            first_reply_frame(config.workload.rpc_size as usize, server, client).map_or(FIRST, queue)
        }
        _ => FIRST,
    };
    (directions.iter().zip(ports).map(of_flow).collect(), of_replies)
}

/// Returns the processor of each connection's process, as a load-balancing scheduler would place the processes. Each
/// process is placed on the processor with the fewest connections and processes so far; a tie selects the last
/// processor. A connection counts on the processor of its queue.
fn spread(queues: &[usize], processors: usize) -> Vec<usize> {
    let mut loads = vec![0u64; processors];
    for queue in queues {
        loads[queue % processors] += 1;
    }
    let mut least = || {
        let idlest = (0..processors).rev().min_by_key(|&processor| loads[processor]).unwrap_or(0);
        loads[idlest] += 1;
        idlest
    };
    queues.iter().map(|_| least()).collect()
}

/// Draws `count` distinct ports.
fn ephemeral_ports(seed: u64, count: usize) -> Vec<u16> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(PORT_STREAM);
    let count = count.min(EPHEMERAL_PORTS.len());
    let mut ports = Vec::with_capacity(count);
    while ports.len() < count {
        let port = rng.random_range(EPHEMERAL_PORTS);
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use std::collections::BTreeSet;

    fn steering(workload: Workload, settings: &[(&str, &str)]) -> Steering {
        let base = Profile::load("server-82599").unwrap();
        let profile = settings.iter().fold(base, |profile, (key, value)| profile.with(key, value));
        let config = Config::new(&profile, workload).unwrap();
        Steering::new(&config, &vec![true; config.workload.flows as usize], 0)
    }

    #[test]
    fn many_connections_are_spread_evenly_and_another_seed_spreads_them_otherwise() {
        let settings = |seed| [("adapter.queues", "4"), ("workload.flows", "64"), ("workload.seed", seed)];
        let of = |seed| steering(Workload::TtcpReceive, &settings(seed));
        let [first, again, other] = ["1", "1", "2"].map(|seed| of(seed).of_flows);
        assert_eq!(first, again);
        assert_ne!(first, other);
        for seed in ["1", "2", "3"] {
            let spread = of(seed);
            // 16 connections are expected per queue. Five standard deviations of the binomial distribution are 17.
            assert!((0..4).all(|queue| (1..=33).contains(&spread.flows_of(queue))), "{spread:?}");
            assert_eq!((0..4).map(|queue| spread.flows_of(queue)).sum::<usize>(), 64);
        }
    }

    #[test]
    fn the_hash_of_a_connection_is_the_one_that_ndis_says_of_its_addresses_and_ports() {
        let port = ephemeral_ports(1, 1)[0];
        let mut input = [PEER_ADDRESS, HOST_ADDRESS].concat();
        input.extend(port.to_be_bytes());
        input.extend(TTCP_PORT.to_be_bytes());
        let expected = Toeplitz::default().hash(&input) as usize % 64;
        let spread = steering(Workload::TtcpReceive, &[("adapter.queues", "64")]);
        assert_eq!(spread.of_flow(0), expected);
    }

    #[test]
    fn a_reply_in_fragments_is_hashed_by_addresses_and_one_in_a_frame_with_its_ports() {
        let of =
            |size| steering(Workload::NfsRead, &[("adapter.queues", "64"), ("workload.rpc_size", size)]).of_replies;
        let addresses = Toeplitz::default().hash(&[PEER_ADDRESS, HOST_ADDRESS].concat()) as usize % 64;
        assert_eq!([of("8KiB"), of("4KiB")], [addresses; 2]);
        assert_ne!(of("1KiB"), addresses);
    }

    #[test]
    fn processes_keep_away_from_processors_that_receive_until_all_have_as_much() {
        assert_eq!(spread(&[3], 4), [2]);
        assert_eq!(spread(&[0; 6], 4), [3, 2, 1, 3, 2, 1]);
        assert_eq!(spread(&[0, 1, 2, 3], 4), [3, 2, 1, 0]);
        assert_eq!(spread(&[0, 5, 1], 2), [0, 1, 0]);
        assert_eq!(spread(&[2, 0], 1), [0, 0]);
    }

    #[test]
    fn no_port_is_given_twice() {
        let ports = ephemeral_ports(7, 128);
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 128);
        assert!(ports.iter().all(|port| EPHEMERAL_PORTS.contains(port)));
    }
}

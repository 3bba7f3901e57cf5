//! Receive-side scaling: compares the receive queues of frames with the driver's hash key and indirection table.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_offload::rss::{KEY_LEN, Toeplitz};
use offramp_ports::packet::HEAD_LEN;

use crate::case::{Bytes, Case, Checksum, Load};
use crate::end::Outgoing;
use crate::error::CheckError;
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::packet::{Identity, Way};
use crate::plan::Depth;
use crate::steering::{KINDS, PAYLOAD_LEN};
use crate::verdict::{Blame, Evidence, Finding, Verdict};

pub use crate::steering::{Hashed, Steering};

/// Numbers of flows of each of [`KINDS`] in a quick and in a full check.
const FLOWS_QUICK: usize = 64;
const FLOWS_FULL: usize = 512;
/// Number of frames sent before the captured frames are fetched from the receiver.
const BATCH: usize = 64;
/// Maximum number of attempts to send a frame. A queue filled by other traffic may have dropped a frame that was not
/// received.
const ATTEMPTS_MAX: usize = 6;
/// Length of source port and destination port together, in bytes.
const PORTS_LEN: usize = 4;

/// A flow that consists of one frame.
struct Flow {
    /// Index in [`KINDS`].
    kind: usize,
    case: Case,
    bytes: Vec<u8>,
    /// Addresses and ports, in the order in which the hash reads these fields.
    input: Vec<u8>,
    place: Place,
}

/// The receive queue of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The frame was not received.
    Missing,
    /// The frame was received, but the driver does not record the queue.
    AnyQueue,
    Queue(u16),
}

impl Flow {
    fn new(kind: usize, source: [u8; 6], destination: [u8; 6], random: &mut Bytes) -> Self {
        let (ip, protocol, _) = KINDS[kind];
        let [a, b, c, d] = *random.take(4).first_chunk().expect("as many as were asked for");
        let ports = random.take(PORTS_LEN);
        let word = |high, low| u16::from_be_bytes([high, low]);
        let case = Case::new(ip, protocol, Load::One { len: PAYLOAD_LEN, checksum: Checksum::Complete });
        let addressing = crate::case::Addressing { destination, source, seed: word(a, b).into() };
        let mut bytes =
            case.build(&addressing, Identity { run: word(a, b), case: word(c, d) }).sent.swap_remove(0).bytes;
        let layout = *Frame::received(&mut bytes).layout().expect("a frame of our own");
        bytes[layout.transport_start..][..PORTS_LEN].copy_from_slice(&ports);
        let mut frame = Frame::received(&mut bytes);
        frame.write_checksum();
        let input = [frame.addresses(), &ports].concat();
        Self { kind, case, bytes, input, place: Place::Missing }
    }

    /// Returns the bytes that enter the hash.
    fn hashed(&self, hashed: Hashed) -> &[u8] {
        match hashed {
            Hashed::Addresses => &self.input[..self.input.len() - PORTS_LEN],
            Hashed::AddressesAndPorts | Hashed::Unknown => &self.input,
        }
    }
}

/// The result of the check of receive queues.
pub(crate) struct Judged {
    pub verdict: Verdict,
    pub cases: usize,
    /// Number of frames that were not received on the first attempt.
    pub lost: usize,
}

/// Judges the receiver's queue selection. Only the receiver selects a queue, so the check sends no further frames to
/// find the side at fault.
pub(crate) fn judge(exchange: &mut Exchange<'_>, depth: Depth) -> Result<Judged, CheckError> {
    let nothing = |verdict| Ok(Judged { verdict, cases: 0, lost: 0 });
    let (key, table, hashed) = match exchange.receiver.steering()? {
        Steering::NotOffered => return nothing(Verdict::NotOffered),
        Steering::NotReachable(why) => return nothing(Verdict::NotReachable { why }),
        Steering::ByHash { key, table, hashed } => (key, table, hashed),
    };
    let Some(key) = key.first_chunk::<KEY_LEN>().filter(|_| table.len().is_power_of_two()) else {
        return nothing(Verdict::NotReachable { why: "the hash key or the indirection table is too short".to_owned() });
    };
    let rule = Rule { hash: Toeplitz::new(key), table: &table, hashed };
    let mut flows = flows(exchange, &hashed, depth);
    let lost = match exchange.send_flows(&mut flows)? {
        Ok(lost) => lost,
        Err(errno) => {
            let why =
                format!("the kernel refuses such frames from a packet socket ({})", Errno::from_raw(errno).desc());
            return nothing(Verdict::NotReachable { why });
        }
    };
    let verdict = match rule.first_wrong(&flows) {
        _ if flows.iter().all(|flow| flow.place == Place::AnyQueue) => {
            let why = "the driver does not record the receive queue of a frame".to_owned();
            Verdict::NotReachable { why }
        }
        Some(flow) => Verdict::Wrong(Box::new(rule.finding(flow, &flows))),
        None => Verdict::Right,
    };
    Ok(Judged { verdict, cases: flows.len(), lost })
}

fn flows(exchange: &Exchange<'_>, hashed: &[Hashed; 4], depth: Depth) -> Vec<Flow> {
    let each = if depth == Depth::Quick { FLOWS_QUICK } else { FLOWS_FULL };
    let addressing = exchange.addressing;
    let mut random = Bytes::new(addressing.seed, exchange.run);
    let kinds = (0..KINDS.len()).filter(|kind| hashed[*kind] != Hashed::Unknown);
    kinds
        .flat_map(|kind| std::iter::repeat_n(kind, each))
        .map(|kind| Flow::new(kind, addressing.source, addressing.destination, &mut random))
        .collect()
}

impl Exchange<'_> {
    /// Sends a frame of each flow, and sends missing frames again. Returns the number of frames lost on the first
    /// attempt. The inner error is the error number of the kernel's refusal.
    fn send_flows(&mut self, flows: &mut [Flow]) -> Result<Result<usize, i32>, CheckError> {
        // The first call of `arrival` starts the capture.
        while self.receiver.arrival(Duration::ZERO)?.is_some() {}
        let mut lost = 0;
        for attempt in 0..ATTEMPTS_MAX {
            let mut missing: Vec<&mut Flow> = flows.iter_mut().filter(|flow| flow.place == Place::Missing).collect();
            lost = if attempt == 1 { missing.len() } else { lost };
            for batch in missing.chunks_mut(BATCH) {
                if self.stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return Err(CheckError::Stopped);
                }
                for flow in &*batch {
                    let (bytes, meta) = (flow.bytes.clone(), RxMeta::default());
                    if let Err(errno) = self.sender.send(&Outgoing { way: Way::PacketSocket, bytes, meta })? {
                        return Ok(Err(errno));
                    }
                }
                self.fetch(batch)?;
            }
        }
        self.check_links()?;
        Ok(Ok(lost))
    }

    /// Fetches the captured frames of `flows` until all frames are fetched, or no frame is received within the
    /// patience.
    fn fetch(&mut self, flows: &mut [&mut Flow]) -> Result<(), CheckError> {
        let mut last = Instant::now();
        while flows.iter().any(|flow| flow.place == Place::Missing) && last.elapsed() < self.patience {
            let left = self.patience.saturating_sub(last.elapsed());
            let Some(arrival) = self.receiver.arrival(left)? else { continue };
            if let Some(flow) = flows.iter_mut().find(|flow| flow.bytes[..HEAD_LEN] == arrival.head) {
                flow.place = arrival.queue.map_or(Place::AnyQueue, Place::Queue);
                last = Instant::now();
            }
        }
        Ok(())
    }
}

/// The hash, the indirection table and the hashed fields that select a queue.
struct Rule<'a> {
    hash: Toeplitz,
    table: &'a [u32],
    hashed: [Hashed; 4],
}

impl Rule<'_> {
    fn hash_of(&self, flow: &Flow) -> u32 {
        self.hash.hash(flow.hashed(self.hashed[flow.kind]))
    }

    fn entry(&self, flow: &Flow) -> usize {
        self.hash_of(flow) as usize & (self.table.len() - 1)
    }

    /// Returns whether a flow's frame was received on the queue that the rule selects, or on a queue that the driver
    /// did not record.
    fn is_right(&self, flow: &Flow) -> bool {
        match flow.place {
            Place::Missing => false,
            Place::AnyQueue => true,
            Place::Queue(queue) => u32::from(queue) == self.table[self.entry(flow)],
        }
    }

    fn first_wrong<'a>(&self, flows: &'a [Flow]) -> Option<&'a Flow> {
        flows.iter().find(|flow| !self.is_right(flow))
    }

    fn finding(&self, flow: &Flow, flows: &[Flow]) -> Finding {
        let (hash, entry) = (self.hash_of(flow), self.entry(flow));
        let fault = self.name(flows);
        let got = match flow.place {
            Place::Missing => "not received".to_owned(),
            Place::AnyQueue => "unknown".to_owned(),
            Place::Queue(queue) => queue.to_string(),
        };
        Finding {
            fault,
            what: fault.text(),
            blame: if fault == Fault::FrameMissing { Blame::Path } else { Blame::Receiver },
            case: format!("{}, hash {hash:#010x}, entry {entry} of {}", flow.case, self.table.len()),
            wrong_cases: flows.iter().filter(|flow| !self.is_right(flow)).count(),
            place: "receive queue of a frame".to_owned(),
            expected: self.table[entry].to_string(),
            got,
            evidence: Evidence { sent: vec![flow.bytes.clone()], ..Evidence::default() },
        }
    }

    /// Names the fault. The function tests alternative rules in turn. The first rule under which all observed queues
    /// are right gives the name.
    fn name(&self, flows: &[Flow]) -> Fault {
        let all_right = |rule: &Self| rule.first_wrong(flows).is_none();
        let swapped: Vec<u8> = self.hash.key().chunks(4).flat_map(|word| word.iter().rev().copied()).collect();
        let key = swapped.first_chunk().expect("as long as the key");
        // Each kind of packet is tested separately, because the hashed fields may be right for one kind and wrong for
        // another.
        let fits_other_fields = |kind: usize| {
            let others = [Hashed::Addresses, Hashed::AddressesAndPorts].map(|fields| [fields; 4]);
            let rules = others.map(|hashed| Self { hash: self.hash.clone(), table: self.table, hashed });
            rules.iter().any(|rule| flows.iter().filter(|flow| flow.kind == kind).all(|flow| rule.is_right(flow)))
        };
        let mut by_entry = vec![None; self.table.len()];
        let mut is_of_entry = |flow: &Flow| *by_entry[self.entry(flow)].get_or_insert(flow.place) == flow.place;
        match () {
            () if flows.iter().any(|flow| flow.place == Place::Missing) => Fault::FrameMissing,
            () if flows.iter().all(|flow| flow.place == flows[0].place) => Fault::RssOneQueue,
            () if all_right(&Self { hash: Toeplitz::new(key), ..*self }) => Fault::RssKeyByteOrder,
            () if (0..KINDS.len()).all(fits_other_fields) => Fault::RssFields,
            () if flows.iter().all(&mut is_of_entry) => Fault::RssTable,
            () => Fault::RssHash,
        }
    }
}

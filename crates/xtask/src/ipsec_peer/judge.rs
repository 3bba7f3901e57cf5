//! The counters of the guest and of the adapter, and the expected values.

use super::case::{Case, Extra};
use offramp_adapter::ipsec::SaDirection;
use offramp_adapter::pair::PortControl;
use offramp_adapter::stats::Loss;
use offramp_testbed::failure::{Result, failed};
use offramp_testbed::guest::shell::Machine;
use std::collections::BTreeMap;

/// Minimum number of wire frames per hundred host frames as proof of super-frames: for sent frames, and for frames
/// received from an emulated guest. An emulated guest seldom sends frames close enough together for coalescing. A third
/// of all frames are acknowledgements.
const FRAMES_PER_HUNDRED: [(&str, u64); 2] = [("sent", 150), ("received", 102)];

/// Counters of the adapter with IPsec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterCounts {
    /// Number of sent wire frames, and of sent host frames.
    pub sent: (u64, u64),
    /// Number of received wire frames, and of received host frames.
    pub received: (u64, u64),
    /// Number of packets lost because of IPsec, by loss reason.
    pub lost: BTreeMap<&'static str, u64>,
    /// Number of packets and last sequence number of each association: outbound, then inbound.
    pub associations: [Option<(u64, u64)>; 2],
}

impl AdapterCounts {
    /// Reads the counters of an adapter with one queue pair and one association per direction.
    pub fn of(control: &PortControl) -> Self {
        let mut counts = Self::default();
        for queue in control.queues() {
            let (transmit, receive) = (&queue.transmit, &queue.receive);
            counts.sent = (transmit.frames_out.get(), transmit.host_frames.get());
            counts.received = (receive.frames_out.get(), receive.host_frames.get());
            for &reason in Loss::ALL {
                let lost = transmit.lost(reason) + receive.lost(reason);
                counts.lost.insert(reason.name(), lost);
            }
        }
        for sa in control.ipsec().status() {
            counts.associations[usize::from(sa.direction == SaDirection::In)] = Some((sa.packets, sa.sequence));
        }
        counts
    }

    fn since(&self, before: &Self) -> Self {
        let minus = |now: (u64, u64), then: (u64, u64)| (now.0 - then.0, now.1 - then.1);
        let lost = self.lost.iter().map(|(name, now)| (*name, now - before.lost.get(name).unwrap_or(&0)));
        Self {
            sent: minus(self.sent, before.sent),
            received: minus(self.received, before.received),
            lost: lost.filter(|(_, lost)| *lost > 0).collect(),
            associations: self.associations,
        }
    }
}

/// The counters of the adapter and of the guest.
#[derive(Clone, Debug)]
pub struct Counts {
    adapter: AdapterCounts,
    /// The guest's `/proc/net/xfrm_stat`. Every line counts the packets lost for one reason.
    guest: BTreeMap<String, u64>,
}

impl Counts {
    /// Reads the guest's counters, and returns them with the adapter's counters.
    ///
    /// # Errors
    /// Returns an error if the guest does not answer.
    pub fn read(adapter: AdapterCounts, machine: &mut Machine) -> Result<Self> {
        Ok(Self { adapter, guest: xfrm_stat(&machine.run("cat /proc/net/xfrm_stat")?) })
    }

    /// Returns the counts since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let guest = self.guest.iter().map(|(name, now)| (name.clone(), now - before.guest.get(name).unwrap_or(&0)));
        Self { adapter: self.adapter.since(&before.adapter), guest: guest.filter(|(_, lost)| *lost > 0).collect() }
    }

    /// Checks that all traffic was protected, IPsec lost no packet, and the host had super-frames in both directions.
    ///
    /// # Errors
    /// Returns an error that describes the first failed check.
    pub fn judge(&self, case: &Case) -> Result<()> {
        if !self.guest.is_empty() {
            return failed(format!("the guest's kernel lost packets: {:?}", self.guest));
        }
        if !self.adapter.lost.is_empty() {
            return failed(format!("the adapter lost packets: {:?}", self.adapter.lost));
        }
        let frames = [self.adapter.sent, self.adapter.received];
        for ((way, least), (frames, host_frames)) in FRAMES_PER_HUNDRED.into_iter().zip(frames) {
            if 100 * frames < least * host_frames {
                return failed(format!("expected super-frames, but the host {way} {host_frames} for {frames}"));
            }
        }
        self.judge_associations(case)
    }

    fn judge_associations(&self, case: &Case) -> Result<()> {
        let frames = [self.adapter.sent.0, self.adapter.received.0];
        for (association, frames) in self.adapter.associations.iter().zip(frames) {
            let Some((packets, sequence)) = *association else { return failed("an association is missing") };
            // The frames may include frames without IP, such as ARP, and earlier frames.
            if packets == 0 || packets > frames {
                return failed(format!("{packets} of {frames} packets were protected"));
            }
            let is_beyond = sequence > u64::from(u32::MAX);
            if is_beyond != (case.extra == Extra::Wrap) {
                return failed(format!("the last sequence number is {sequence:#x}"));
            }
        }
        Ok(())
    }
}

/// Parses lines with a name and a number.
fn xfrm_stat(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, number) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipsec_peer::case;

    fn counts(packets: u64, sequence: u64) -> Counts {
        let adapter = AdapterCounts {
            sent: (100, 20),
            received: (100, 20),
            lost: BTreeMap::new(),
            associations: [Some((packets, sequence)); 2],
        };
        Counts { adapter, guest: BTreeMap::new() }
    }

    #[test]
    fn the_guests_counters_are_read() {
        let read = xfrm_stat("XfrmInError             \t0\nXfrmInNoStates          \t12\n");
        assert_eq!(read["XfrmInNoStates"], 12);
        assert_eq!(read.len(), 2);
    }

    #[test]
    fn a_loss_at_either_end_a_clear_frame_and_single_frames_are_told() {
        let case = case::cases(false)[0];
        assert!(counts(100, 90).judge(&case).is_ok());
        assert!(counts(0, 90).judge(&case).is_err());
        assert!(counts(100, 1 << 32).judge(&case).is_err());
        let mut lost = counts(100, 90);
        lost.guest.insert("XfrmInStateProtoError".to_owned(), 1);
        assert!(lost.judge(&case).unwrap_err().to_string().contains("XfrmInStateProtoError"));
        let mut lost = counts(100, 90);
        lost.adapter.lost.insert("bad_tag", 1);
        assert!(lost.judge(&case).unwrap_err().to_string().contains("bad_tag"));
        let mut single = counts(100, 90);
        single.adapter.received = (100, 100);
        assert!(single.judge(&case).unwrap_err().to_string().contains("super-frames"));
    }
}

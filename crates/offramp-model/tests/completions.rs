//! A send keeps its descriptor, and a datagram its share of the socket's buffer, until the host has processed the
//! completion: whoever defers completions pays for it in throughput.

use offramp_model::config::Workload::{self, TtcpSend, UdpSend};
use offramp_model::profile::Profile;
use offramp_model::simulation::{Outcome, run};
use proptest::prelude::*;

/// A host and a bus that are never the limit, and a gap between interrupts.
fn system(descriptors: u64, interrupts_per_second: u64) -> Profile {
    Profile::load("p4-e1000-pcix")
        .unwrap()
        .with("host.cost_scale", "10%")
        .with("adapter.moderation", "fixed-gap")
        .with("adapter.interrupt_rate", &interrupts_per_second.to_string())
        .with("adapter.transmit_descriptors", &descriptors.to_string())
}

fn outcome(profile: &Profile, workload: Workload) -> Outcome {
    run(profile, workload).unwrap()
}

/// Times at which completions were processed: one that was due when counting began comes on top.
fn completions(outcome: &Outcome) -> u64 {
    outcome.counts.interrupts + 1
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sends_are_at_most_a_ring_for_each_time_that_completions_are_processed(
        descriptors in 1u64..64, interrupts in 50u64..4000, write_size in 100u64..20_000,
    ) {
        let profile = system(descriptors, interrupts).with("workload.write_size", &format!("{write_size}byte"));
        let outcome = outcome(&profile, UdpSend);
        prop_assert!(outcome.counts.frames_sent <= descriptors * completions(&outcome), "{:?}", outcome.counts);
    }

    #[test]
    fn large_sends_too_keep_their_descriptors(descriptors in 1u64..8, interrupts in 50u64..4000, lso in any::<bool>()) {
        let profile = system(descriptors, interrupts).with("adapter.lso", if lso { "on" } else { "off" });
        let outcome = outcome(&profile, TtcpSend);
        prop_assert!(outcome.counts.sends_completed <= descriptors * completions(&outcome), "{:?}", outcome.counts);
    }

    #[test]
    fn datagrams_are_at_most_a_socket_buffer_for_each_time_that_completions_are_processed(
        buffer_kib in 2u64..64, interrupts in 50u64..4000,
    ) {
        let profile = system(4096, interrupts)
            .with("workload.write_size", "1KiB")
            .with("host.send_buffer", &format!("{buffer_kib}KiB"));
        let outcome = outcome(&profile, UdpSend);
        let bytes = (buffer_kib << 10) * completions(&outcome);
        prop_assert!(outcome.counts.bytes <= bytes, "{} of {bytes} bytes", outcome.counts.bytes);
    }
}

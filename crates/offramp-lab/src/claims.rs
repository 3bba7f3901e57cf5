//! Published claims that the lab's experiments bear on: what was said, of which machine, in our own words.
//!
//! A claim keeps its number for good. `M`: Microsoft's text on performance in network adapters, of about 2001, whose
//! machines are nowhere disclosed. `H`: segmentation offload in Linux 2.5.33 with Intel's gigabit adapter, linux-kernel
//! mailing list, 2 September 2002. `R`: a report on writing an NDIS driver for a gigabit adapter, of 2011, whose machine
//! is nowhere disclosed. `I`: the performance part of the Linux Ethernet HOWTO.

/// One published claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its number.
    pub id: &'static str,
    /// The machine and the setting that it speaks of.
    pub configuration: &'static str,
    /// What was measured or stated.
    pub metric: &'static str,
    /// The value or the statement.
    pub published: &'static str,
    /// What follows from it, or limits it.
    pub note: &'static str,
}

/// The claim of that number; `None` of a number that no experiment of the lab bears on.
pub fn claim(id: &str) -> Option<&'static Claim> {
    CLAIMS.iter().find(|claim| claim.id == id)
}

/// The claims that the lab's experiments bear on, in the order of their numbers.
pub static CLAIMS: [Claim; 43] = [
    Claim {
        id: "M1",
        configuration: "Windows performance lab, network-intensive load, checksum offload on against off",
        metric: "TCP throughput",
        published: "+19 %",
        note: "The host was bound by its processor, so the gain equals 16 % less processor time for the same work.",
    },
    Claim {
        id: "M2",
        configuration: "the machine of M1",
        metric: "what the gain of M1 is made of",
        published: "11 % from the shorter path, 8 % from the cache",
        note: "Fewer instructions for each byte, and fewer lines pushed out of the cache by reading the payload.",
    },
    Claim {
        id: "M3",
        configuration: "Windows TCP/IP without offload",
        metric: "rank of the checksum among the stack's functions",
        published: "the costliest single function; it churns the cache mostly when sending",
        note: "A ranking, without a figure.",
    },
    Claim {
        id: "M4",
        configuration: "receive checksum offload",
        metric: "throughput, or response time",
        published: "as much as for sending; more on a machine that both serves and asks, such as a proxy",
        note: "A client with time to spare gains response time, not throughput.",
    },
    Claim {
        id: "M5",
        configuration: "large send offload",
        metric: "how it works",
        published: "the stack sees a segment size of up to 64 K; the adapter and its driver cut it",
        note: "The frames on the line stay the same; the host pays its price per packet only once for all of them.",
    },
    Claim {
        id: "M6",
        configuration: "large send offload, test of nothing but the network",
        metric: "throughput",
        published: "little gain where the processor outruns the adapter",
        note: "The adapter must be able to do the extra work, or it becomes the limit.",
    },
    Claim {
        id: "M7",
        configuration: "large send offload, business workload",
        metric: "throughput of the whole system",
        published: "up to +9 %",
        note: "Equals 8 % less processor time for the same work, of which networking is only a part.",
    },
    Claim {
        id: "M8",
        configuration: "IPsec offload with 3DES, tests over an encrypted link",
        metric: "throughput",
        published: "+30 %",
        note: "Equals 23.1 % less processor time for the same work; 3DES takes many cycles for each byte.",
    },
    Claim {
        id: "M9",
        configuration: "interrupt moderation, network-intensive load",
        metric: "throughput",
        published: "up to +9 %",
        note: "Equals 8.3 % less processor time for the same work: interrupts, and the cache that each of them churns.",
    },
    Claim {
        id: "M10",
        configuration: "interrupt moderation tuned for throughput alone",
        metric: "response time",
        published: "gets worse; moderation must be dynamic",
        note: "A lone request waits as long as a stream does, and gains nothing by it.",
    },
    Claim {
        id: "M11",
        configuration: "an adapter without any offload",
        metric: "interrupts",
        published: "one for each frame received, and one for each send completed",
        note: "Each costs time and pushes lines out of the cache.",
    },
    Claim {
        id: "M20",
        configuration: "frames of 9000 bytes against 1514",
        metric: "TCP throughput",
        published: "+20 %, and far less processor time",
        note: "Only a host bound by its processor can gain that: a full line gains 4.4 %, with TCP timestamps 5.2 %.",
    },
    Claim {
        id: "R4",
        configuration: "1 Gbit/s, a forced gap: at most 1000 interrupts per second",
        metric: "speed",
        published: "no effect",
        note: "The rate of interrupts was not what limited it.",
    },
    Claim {
        id: "R6",
        configuration: "the machine of R4, the parameters of interrupt throttling set right",
        metric: "share of the processor in interrupt work, and speed",
        published: "from above 90 % to 60 %, at the same speed",
        note: "Throttling buys processor time; speed comes from elsewhere.",
    },
    Claim {
        id: "H1",
        configuration: "dual Pentium 4, 1 Gbit/s, files sent both ways at once, Linux 2.5.32 against 2.5.33 with TSO",
        metric: "throughput, and share of the processors",
        published: "1500 Mbit/s at 82 % became 1633 Mbit/s at 75 %",
        note: "+9 % of throughput at 0.84 of the processor time for each bit.",
    },
    Claim {
        id: "H2",
        configuration: "the machine of H1, sending only",
        metric: "throughput, and share of the processors",
        published: "940 Mbit/s at 40 % became 940 Mbit/s at 19 %",
        note: "0.475 of the processor time for each bit.",
    },
    Claim {
        id: "H3",
        configuration: "TSO in Linux 2.5.33",
        metric: "how it works",
        published: "64 kB are handed down and cut into frames of 1500 bytes on the card",
        note: "The same as M5.",
    },
    Claim {
        id: "H4",
        configuration: "the machine of H1, sending only",
        metric: "what limits it",
        published: "the line was full without TSO; all the gain is processor time",
        note: "940 Mbit/s is what TCP can carry on a line of 1 Gbit/s.",
    },
    Claim {
        id: "H5",
        configuration: "Linux 2.5.32 against 2.5.33, dual Pentium 4, traffic of the Chariot benchmark",
        metric: "how H1 and H2 were measured",
        published: "two versions of the kernel were compared, not one with a switch",
        note: "What else changed between the two versions is part of the published difference.",
    },
    Claim {
        id: "H6",
        configuration: "TSO in Linux 2.5.33",
        metric: "effect on UDP",
        published: "none: the fragmentation of UDP was not offloaded",
        note: "The switch of TSO must change nothing for UDP.",
    },
    Claim {
        id: "R1",
        configuration: "an NDIS driver for a gigabit adapter, 2011, its first working state",
        metric: "speed of a single connection",
        published: "about 3 MB/s",
        note: "The adapter could do far more: the driver handed frames over in the wrong order (R10).",
    },
    Claim {
        id: "R2",
        configuration: "the machine of R1",
        metric: "speed of several connections together",
        published: "about 12 MB/s at most",
        note: "Each connection had a small window of its own.",
    },
    Claim {
        id: "R8",
        configuration: "an adapter with a fault in its checksum unit, high load",
        metric: "a TCP connection",
        published: "stands still for good; not while Network Monitor captures",
        note: "A wrong verdict hits what is sent again too. A capture goes past it.",
    },
    Claim {
        id: "R9",
        configuration: "the machine of R1",
        metric: "unacknowledged packets of a connection",
        published: "too few",
        note: "The congestion window was at its minimum.",
    },
    Claim {
        id: "R10",
        configuration: "the machine of R1",
        metric: "the cause",
        published: "frames handed over in the wrong order look like loss to TCP",
        note: "Duplicate acknowledgements, needless retransmissions, the window at its minimum, and not one frame \
             lost.",
    },
    Claim {
        id: "R11",
        configuration: "the machine of R1 after a fix of three lines",
        metric: "speed of a single connection",
        published: "above 30 MB/s",
        note: "Ten times that of R1, by the order alone.",
    },
    Claim {
        id: "R12",
        configuration: "the machine of R1",
        metric: "the order against checksum offload",
        published: "10 × against 1.4 ×",
        note: "What is right comes before what is fast.",
    },
    Claim {
        id: "I1",
        configuration: "any 8-bit card on a line of 10 Mbit/s",
        metric: "frames back to back",
        published: "received without trouble",
        note: "The line never outruns the card itself; the host behind it is another matter (I2).",
    },
    Claim {
        id: "I2",
        configuration: "a host that drains its card too slowly",
        metric: "what happens",
        published: "drops (the new frame is lost) or overruns (an old one is)",
        note: "Two rules, and a counter for each.",
    },
    Claim {
        id: "I3",
        configuration: "drops or overruns",
        metric: "throughput",
        published: "falls to a fifth at worst",
        note: "TCP and NFS have to send again, and wait before they do.",
    },
    Claim {
        id: "I4",
        configuration: "more memory on the card",
        metric: "effect",
        published: "longer bursts are taken",
        note: "And frames may wait longer in it.",
    },
    Claim {
        id: "I5",
        configuration: "8 kB of memory on an 8-bit card, 3 kB of it for sending",
        metric: "room for received frames",
        published: "5 kB: three full frames",
        note: "Pages of 256 bytes, six for a full frame, and one that is always free.",
    },
    Claim {
        id: "I6",
        configuration: "a host that drains fast",
        metric: "loss",
        published: "none, even with a small memory",
        note: "The speed of the ISA bus decides, not that of the processor.",
    },
    Claim {
        id: "I11",
        configuration: "the receive window of most hosts",
        metric: "bytes that may come at once",
        published: "32 kB",
        note: "Ten times what a small card holds.",
    },
    Claim {
        id: "I12",
        configuration: "a sender behind a router or a slower hop",
        metric: "loss with the large window",
        published: "none",
        note: "The slower hop paces the frames.",
    },
    Claim {
        id: "I13",
        configuration: "8-bit 3c503 on an ISA bus of 8 MHz at most",
        metric: "receive window",
        published: "about 4 kB is fine; much more drops frames and ruins the speed",
        note: "What is under way must fit into the card.",
    },
    Claim {
        id: "I14",
        configuration: "Linux",
        metric: "where loss in the card shows",
        published: "drop and overrun columns of /proc/net/dev",
        note: "Loss that nobody looks for is taken for a slow network.",
    },
    Claim {
        id: "I15",
        configuration: "NFS with reads of 8 kB",
        metric: "frames of a response",
        published: "six, back to back",
        note: "One lost frame loses all six.",
    },
    Claim {
        id: "I16",
        configuration: "an 8-bit card",
        metric: "bus",
        published: "more clocks for each byte",
        note: "Half the width, and slower cycles.",
    },
    Claim {
        id: "I17",
        configuration: "WD8003E at 8 MHz, an idle machine",
        metric: "size of an NFS read",
        published: "2 kB is sustained; 4 kB falls to a third",
        note: "Responses that do not fit are lost whole, and asked for again after a time-out.",
    },
    Claim {
        id: "I18",
        configuration: "a 16-bit card",
        metric: "NFS reads of 4 or 8 kB against 1 kB",
        published: "a large gain",
        note: "Fewer calls for the same data, where their responses fit.",
    },
    Claim {
        id: "I19",
        configuration: "the card of I17",
        metric: "remedies",
        published: "reads of 1 or 2 kB, or a faster bus",
        note: "Either ends the loss.",
    },
    Claim {
        id: "I20",
        configuration: "any machine of the HOWTO",
        metric: "how to measure",
        published: "ttcp, or a file of more than 1 MB fetched twice and thrown away",
        note: "From memory to memory, in the steady state, without a disk.",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_is_found_by_its_number_and_says_something() {
        for expected in &CLAIMS {
            assert_eq!(claim(expected.id), Some(expected), "numbers are unique");
            let texts = [expected.configuration, expected.metric, expected.published, expected.note];
            assert!(texts.iter().all(|text| !text.is_empty()), "{}", expected.id);
        }
        assert_eq!(claim("M99"), None);
    }

    #[test]
    fn all_claims_of_the_experiments_are_here() {
        let ids = [
            "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9", "M10", "M11", "M20", "R4", "R6", "H1", "H2", "H3",
            "H4", "H5", "H6", "I20", "R1", "R2", "R8", "R9", "R10", "R11", "R12", "I1", "I2", "I3", "I4", "I5", "I6",
            "I11", "I12", "I13", "I14", "I15", "I16", "I17", "I18", "I19",
        ];
        assert!(ids.iter().all(|id| claim(id).is_some()));
        assert_eq!(ids.len(), CLAIMS.len());
    }
}

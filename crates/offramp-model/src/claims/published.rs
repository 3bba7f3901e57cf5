//! What was published, in our own words.

/// A claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its number.
    pub id: &'static str,
    /// What was said.
    pub value: &'static str,
}

/// What a claim says; nothing for a number that there is not.
pub(super) fn of(id: &str) -> &'static str {
    PUBLISHED.iter().find(|published| published.id == id).map_or("", |published| published.value)
}

const fn say(id: &'static str, value: &'static str) -> Published {
    Published { id, value }
}

/// All 60, in the order of their numbers.
pub static PUBLISHED: [Published; 60] = [
    say("M1", "checksum offload, network-intensive load: +19 % throughput"),
    say("M2", "of that, 11 % from the shorter path and 8 % from the cache"),
    say("M3", "without offload the checksum is the costliest function of the stack"),
    say("M4", "receive checksum offload gains as much as transmit; an idle client gains response time"),
    say("M5", "large send: the stack sees segments of up to 64 K, the adapter cuts them"),
    say("M6", "large send gains little where the processor outruns the adapter"),
    say("M7", "large send, business workload: up to +9 %"),
    say("M8", "IPsec offload with 3DES: +30 %"),
    say("M9", "interrupt moderation, network-intensive load: up to +9 %"),
    say("M10", "moderation for throughput alone worsens response time"),
    say("M11", "a plain adapter interrupts for each frame received and each send completed"),
    say("M12", "PCI transfers of 256 bytes or more markedly cut the overhead of the bus"),
    say("M13", "ideally one packet is one PCI transaction, without holding it back"),
    say("M14", "pad to a boundary rather than issue a short transfer"),
    say("M15", "use MR, MRL and MRM as the specification intends"),
    say("M16", "detect prefetch limits, delay retries"),
    say("M17", "at most one or two wait states, else disconnect"),
    say("M18", "registers in memory, not behind ports"),
    say("M19", "one card's bad habits slow all cards of a shared bus"),
    say("M20", "frames of 9000 bytes against 1514: +20 %, and much less processor time"),
    say("M21", "aggregate pages of receive buffers"),
    say("R1", "first working driver, one connection: about 3 MB/s"),
    say("R2", "the same, several connections: about 12 MB/s"),
    say("R3", "the same: 100 % of the processor, more than 90 % in DPCs"),
    say("R4", "at most 1000 interrupts per second: no effect on speed"),
    say("R5", "cacheable receive buffers: speed barely fell"),
    say("R6", "right parameters of interrupt throttling: DPCs at 60 %, speed unchanged"),
    say("R7", "checksum offload: 17 MB/s at 100 % of the processor"),
    say("R8", "a fault in the adapter's checksum verdicts wedges connections under load"),
    say("R9", "too few unacknowledged packets per connection"),
    say("R10", "packets indicated in the wrong order look like loss; the window stays at its minimum"),
    say("R11", "order mended, one connection: more than 30 MB/s"),
    say("R12", "order brings a factor of 10, offload one of 1.4"),
    say("H1", "both ways, without and with TSO: 1500 Mbit/s at 82 % and 1633 Mbit/s at 75 %"),
    say("H2", "sending only: 940 Mbit/s at 40 % and 940 Mbit/s at 19 %"),
    say("H3", "TSO: 64 kB are handed down and cut on the card"),
    say("H4", "sending only, the line is full without TSO too"),
    say("H5", "two kernels were compared on a dual Pentium 4 with Chariot"),
    say("H6", "UDP is not offloaded: TSO changes nothing for it"),
    say("H7", "the support was called toy-level by its author"),
    say("I1", "frames back to back are no problem for an 8-bit card on the side of the wire"),
    say("I2", "a host that reads too slowly loses the new frame (drop) or an old one (overrun)"),
    say("I3", "lost frames cost up to a factor of 5"),
    say("I4", "more memory on the card absorbs longer bursts"),
    say("I5", "8 KiB less 3 kB for transmitting hold three full frames"),
    say("I6", "a host that reads fast loses nothing even with a small memory, a 386SX-16 too"),
    say("I7", "486-40, WD8003EP: 740, 970, 1030, 1075 kB/s at 6.7, 13.4, 20.0, 26.7 MHz"),
    say("I8", "1075 kB/s is hard to beat for any 10 Mbit/s card"),
    say("I9", "ISA is 8 MHz; most systems fail above 13 MHz"),
    say("I10", "a faster ISA bus costs less processor time"),
    say("I11", "a window of 32 kB can be dumped unchecked"),
    say("I12", "only on the local net: behind a slower link nothing is lost"),
    say("I13", "3c503 at 8 MHz: a window of 4 kB is fine, a large one loses drastically"),
    say("I14", "the counters of /proc/net/dev show drops and overruns"),
    say("I15", "an NFS read of 8 kB is about 6 frames back to back"),
    say("I16", "an 8-bit card needs more cycles per byte"),
    say("I17", "WD8003E at 8 MHz: 2 kB NFS reads hold, 4 kB ones are 3 times slower"),
    say("I18", "16-bit card: NFS reads of 4 or 8 kB gain much over 1 kB"),
    say("I19", "smaller NFS reads, or a faster bus, each cure I17"),
    say("I20", "measure from memory to memory, in the steady state"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_sixty_claims_each_once() {
        for (at, claim) in PUBLISHED.iter().enumerate() {
            assert!(PUBLISHED[at + 1..].iter().all(|other| other.id != claim.id), "{}", claim.id);
            assert_eq!(of(claim.id), claim.value);
        }
    }
}

//! Capture filters in the syntax of pcap-filter(7), compiled by tcpdump and run by the kernel on a socket.

use offramp_ports::socket::{FilterInstruction, attach_filter};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

/// A socket pair with the filter attached to socket `far`. A packet sent on socket `near` arrives at `far` only if the
/// filter accepts the packet.
#[derive(Debug)]
pub struct Filter {
    near: UnixDatagram,
    far: UnixDatagram,
}

impl Filter {
    /// Compiles an expression for Ethernet.
    ///
    /// # Errors
    /// Returns an error if tcpdump is missing or rejects the expression.
    pub fn new(expression: &str) -> Result<Self, String> {
        let compiled = Command::new("tcpdump").args(["-ddd", "-y", "EN10MB", "--", expression]).output();
        let compiled = compiled.map_err(|error| format!("tcpdump, which compiles it: {error}; install tcpdump"))?;
        if !compiled.status.success() {
            let why = String::from_utf8_lossy(&compiled.stderr);
            return Err(why.lines().last().unwrap_or("tcpdump does not say why it refuses it").to_owned());
        }
        let program = parse(&String::from_utf8_lossy(&compiled.stdout)).ok_or("tcpdump wrote no program")?;
        Self::of(&program).map_err(|error| format!("the kernel does not take it: {error}"))
    }

    fn of(program: &[FilterInstruction]) -> io::Result<Self> {
        let (near, far) = UnixDatagram::pair()?;
        far.set_nonblocking(true)?;
        attach_filter(&far, program)?;
        Ok(Self { near, far })
    }

    /// Returns whether the filter accepts a packet.
    ///
    /// # Errors
    /// Returns an error if the system refuses the packet.
    pub fn accepts(&self, packet: &[u8]) -> io::Result<bool> {
        self.near.send(packet)?;
        match self.far.recv(&mut [0]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Parses the output of `tcpdump -ddd`: the number of instructions, then one instruction per line.
fn parse(text: &str) -> Option<Vec<FilterInstruction>> {
    let instruction = |line: &str| {
        let mut numbers = line.split(' ');
        let program = (
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
        );
        numbers.next().is_none().then_some(program)
    };
    let program: Vec<_> = text.lines().skip(1).map(instruction).collect::<Option<_>>()?;
    (text.lines().next()?.parse() == Ok(program.len())).then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tcpdump_writes_is_a_program_and_other_text_is_none() {
        assert_eq!(parse("2\n40 0 0 12\n6 0 0 4294967295\n"), Some(vec![(40, 0, 0, 12), (6, 0, 0, u32::MAX)]));
        for wrong in ["", "1\n", "2\n6 0 0 0\n", "1\n6 0 0\n", "1\n6 0 0 0 0\n", "1\n6 256 0 0\n", "x\n"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_packet_is_accepted_or_not_whatever_came_before() {
        // The program is: ldh [12]; jeq #0x806: accept; else reject. A packet too short for the load is also rejected.
        let filter = Filter::of(&[(0x28, 0, 0, 12), (0x15, 0, 1, 0x806), (6, 0, 0, 262_144), (6, 0, 0, 0)]).unwrap();
        let packet = |kind: u16, len| [&[0; 12][..], &kind.to_be_bytes(), &vec![1; len]].concat();
        for len in [46, 0, 70_000] {
            assert!(filter.accepts(&packet(0x806, len)).unwrap());
            assert!(!filter.accepts(&packet(0x800, len)).unwrap());
            assert!(!filter.accepts(&[0; 13]).unwrap());
        }
    }
}

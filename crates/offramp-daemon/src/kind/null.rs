//! A host for benchmarks and tests: it discards all frames, or sends one frame repeatedly.

use super::host::{Host, HostTraits, Means, PortKind, Settings, TaskParts, Watch};
use crate::config::check::Check;
use crate::config::place::ConfigError;
use crate::drain::AnyHost;
use crate::schema::unit::Amount;
use offramp_ports::null::NullPort;
use offramp_ports::worker::Task;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use toml::Spanned;

/// Valid frame lengths of a source, and the default length, in bytes.
pub const FRAME_BYTES: RangeInclusive<i64> = 60..=65_535;
pub const FRAME_BYTES_DEFAULT: i64 = 60;
const BROADCAST: [u8; 6] = [0xff; 6];
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// IEEE's first EtherType for local experiments.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// The keys of `port.host` for this kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    null: Option<Spanned<String>>,
    mac: Option<Spanned<String>>,
    destination: Option<Spanned<String>>,
    frame_bytes: Option<Spanned<Amount>>,
}

/// The configuration of this host: a sink discards all frames, a source sends one frame repeatedly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub traits: HostTraits,
    /// The frame sent by a source; empty for a sink.
    frame: Vec<u8>,
}

impl PortKind for Config {
    type Keys = Keys;
    type Host = NullHost;
    type Status = Status;
    const EXAMPLE: &str = "null = \"sink\"";

    fn check(check: &Check<'_>, keys: &Keys) -> Result<Self, ConfigError> {
        let known = [("sink", false), ("source", true)];
        let is_source = check.one_of("port.host", "null", &keys.null, &known)?.unwrap_or_default();
        let of_source = [keys.destination.as_ref().map(Spanned::span), keys.frame_bytes.as_ref().map(Spanned::span)];
        if let (false, Some(at)) = (is_source, of_source.into_iter().flatten().next()) {
            let message = "port.host.destination and frame_bytes belong to null = \"source\"; leave them out here";
            return Err(check.0.wrong(at, message));
        }
        let mac = check.mac(keys.mac.as_ref())?;
        let to = keys.destination.as_ref().map(|to| check.address_of_host("port.host.destination", to)).transpose()?;
        let len = check.number("port.host.frame_bytes", &keys.frame_bytes, FRAME_BYTES, FRAME_BYTES_DEFAULT)? as usize;
        let mut frame = [&to.unwrap_or(BROADCAST)[..], &mac.unwrap_or(SOURCE), &ETHERTYPE].concat();
        frame.resize(len, 0);
        let traits = HostTraits { mac, ..HostTraits::default() };
        Ok(Self { traits, frame: if is_source { frame } else { Vec::new() } })
    }

    fn open(&self, _: &Settings<'_>, _: Means) -> Result<NullHost, String> {
        Ok(NullHost(self.frame.clone()))
    }

    fn status(NullHost(frame): &NullHost) -> Status {
        Status { frame_bytes: frame.len() }
    }
}

/// A running sink or source, and its frame.
#[derive(Debug)]
pub struct NullHost(Vec<u8>);

impl Host for NullHost {
    fn cable_task(&self, parts: TaskParts<'_>) -> Option<Box<dyn Task>> {
        Some(parts.task(NullPort::new(self.0.clone())))
    }

    fn switch_port(&self, watch: Watch<'_>) -> Option<AnyHost> {
        Some(watch.port(NullPort::new(self.0.clone())))
    }
}

/// The status of a sink or source.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The length of a source's frames, bytes; 0 for a sink.
    pub frame_bytes: usize,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.frame_bytes {
            0 => f.write_str("null, sink"),
            len => write!(f, "null, source of {len} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Daemon;
    use crate::config::Config;
    use std::path::Path;
    use std::thread;
    use std::time::Duration;

    /// Returns a configuration file with a source (port `a`) and a sink (port `b`). `source` and `sink` are further
    /// keys of the hosts. `to_sink` is the wire of the source, and `to_source` is the wire of the sink.
    fn file(source: &str, sink: &str, to_sink: &str, to_source: &str) -> String {
        format!(
            "[[switch]]\nname = \"lan\"\n[[port]]\nname = \"a\"\nhost = {{ null = \"source\", {source} }}\nwire.{to_sink}\n\
             [[port]]\nname = \"b\"\nhost = {{ null = \"sink\"{sink} }}\nwire.{to_source}\n"
        )
    }

    #[test]
    fn frames_of_a_source_reach_a_sink_and_are_counted() {
        let mac = ", mac = \"02:00:00:00:00:02\"";
        for (to_sink, to_source) in [("cable = \"b\"", "cable = \"a\""), ("switch = \"lan\"", "switch = \"lan\"")] {
            let text = file("frame_bytes = 1000, destination = \"02:00:00:00:00:02\"", mac, to_sink, to_source);
            let daemon = Daemon::start(Config::parse(Path::new("x.toml"), &text).unwrap()).unwrap();
            let received = loop {
                let status = daemon.status();
                assert_eq!(status.ports[0].host.to_string(), "null, source of 1000 bytes");
                let received = status.ports[1].queues[0].receive.clone();
                if received.counts.get("frames_out").unwrap() > 1000 {
                    break received;
                }
                thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(
                received.counts.get("bytes_out").unwrap(),
                1000 * received.counts.get("frames_out").unwrap(),
                "{to_sink}"
            );
            assert!(daemon.stop());
            let [sent, received] = [0, 1].map(|port| daemon.status().ports[port].queues[0].clone());
            assert_eq!(
                sent.transmit.counts.get("frames_out").unwrap(),
                received.receive.counts.get("frames_in").unwrap() + received.receive.lost["drop"],
                "{to_sink}"
            );
        }
    }

    #[test]
    fn wrong_keys_are_refused() {
        let refused = |source: &str, sink: &str, text: &str| {
            let file = file(source, sink, "cable = \"b\"", "cable = \"a\"");
            let error = Config::parse(Path::new("x.toml"), &file).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        refused("frame_bytes = 59", "", "x.toml:5: port.host.frame_bytes 59 is out of range; use 60 to 65535");
        refused("destination = \"ff\"", "", "x.toml:5: port.host.destination \"ff\" is no address of one host");
        refused("frame_bytes = 60", ", frame_bytes = 60", "x.toml:9: port.host.destination and frame_bytes belong to");
        refused("namespace = \"n\"", "", "x.toml:5: port.host.namespace belongs to a host with tap");
    }
}

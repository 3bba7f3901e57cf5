//! The traffic of a run.

use serde::Deserialize;
use strum::{EnumMessage, VariantArray};

/// The traffic of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::EnumString, strum::EnumMessage, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Workload {
    #[default]
    /// the peer sends a stream over TCP, and a process of the host reads it
    TtcpReceive,
    /// a process of the host sends a stream over TCP
    #[strum(serialize = "ttcp", to_string = "ttcp-send")]
    TtcpSend,
    /// a stream over TCP in each direction at once
    TtcpBoth,
    /// the host reads files of the peer by NFS over UDP
    NfsRead,
    /// a process of the host sends datagrams over UDP, which the host fragments
    UdpSend,
    /// datagrams come to the host at `workload.request_rate`, and a process reads them
    UdpReceive,
    /// requests and responses over UDP, with the host as server or client
    UdpRr,
    /// requests and responses over TCP, with the host as server or client
    TcpRr,
    /// raw frames at `workload.request_rate`, in one direction or both, which no protocol of the host takes
    Source,
    /// raw frames at `workload.request_rate`, which the host forwards to a second adapter like the first
    Forward,
}

impl Workload {
    /// Returns every workload with each of its names. A workload with two names is listed twice.
    pub fn names() -> impl Iterator<Item = (&'static str, Self)> {
        Self::VARIANTS.iter().flat_map(|of| of.get_serializations().iter().rev().map(|name| (*name, *of)))
    }

    /// Returns a description for display.
    pub fn meaning(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }

    /// Returns whether the workload sends raw frames.
    pub fn is_of_frames(self) -> bool {
        matches!(self, Self::Source | Self::Forward)
    }

    /// Returns whether the traffic has a given rate and no responses. Such traffic cannot be closed-loop.
    pub fn is_one_way(self) -> bool {
        self == Self::UdpReceive || self.is_of_frames()
    }

    /// Returns the name of the workload.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

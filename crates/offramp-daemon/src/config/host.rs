//! `port.host`.

use super::check::{Check, SOCKET_MODE_DEFAULT};
use super::place::ConfigError;
use super::types::{HostConfig, TapHost, VhostUserHost};
use crate::schema::file::Host;
use offramp_ports::tap::QUEUES_MAX;
use offramp_ports::vhost_user::{ControlQueue, MEMORY_BYTES_MAX, Mode, RingFeatures};
use std::ops::RangeInclusive;
use std::path::Path;
use toml::Spanned;

/// Numbers of users; the largest one stands for none (chown(2)).
const UIDS: RangeInclusive<i64> = 0..=u32::MAX as i64 - 1;
/// Directory of named network namespaces (ip-netns(8)).
const NETNS_DIRECTORY: &str = "/run/netns";
/// Smallest and largest virtqueue (virtio 1.3 2.7, 2.8: 32768 entries), and the default.
pub(super) const QUEUE_SIZE: RangeInclusive<i64> = 64..=32_768;
pub(super) const QUEUE_SIZE_DEFAULT: i64 = 1024;
/// Memory of a guest in bytes: from too little to boot anything to the largest mapping of a process.
pub(super) const MEMORY_BYTES: RangeInclusive<i64> = 1 << 20..=1 << 47;

impl Check<'_> {
    pub(super) fn host(&self, written: &Spanned<Host>) -> Result<HostConfig, ConfigError> {
        let host = written.as_ref();
        match (&host.tap, &host.vhost_user) {
            (Some(name), None) => self.tap_host(name, host),
            (None, Some(socket)) => self.vhost_user_host(socket, host),
            _ => {
                let message = "port.host: write either tap = \"INTERFACE\" or vhost_user = \"SOCKET\"";
                Err(self.0.wrong(written.span(), message))
            }
        }
    }

    pub(super) fn tap_host(&self, name: &Spanned<String>, host: &Host) -> Result<HostConfig, ConfigError> {
        self.belongs_not(
            "vhost_user",
            [
                ("mode", host.mode.as_ref().map(Spanned::span)),
                ("control_queue", host.control_queue.as_ref().map(Spanned::span)),
                ("packed", host.packed.as_ref().map(Spanned::span)),
                ("indirect", host.indirect.as_ref().map(Spanned::span)),
                ("event_idx", host.event_idx.as_ref().map(Spanned::span)),
                ("in_order", host.in_order.as_ref().map(Spanned::span)),
                ("mrg_rxbuf", host.mrg_rxbuf.as_ref().map(Spanned::span)),
                ("queue_size_max", host.queue_size_max.as_ref().map(Spanned::span)),
                ("memory_bytes_max", host.memory_bytes_max.as_ref().map(Spanned::span)),
                ("socket_mode", host.socket_mode.as_ref().map(Spanned::span)),
                ("socket_group", host.socket_group.as_ref().map(Spanned::span)),
                ("allowed_uid", host.allowed_uid.as_ref().map(Spanned::span)),
            ],
        )?;
        Ok(HostConfig::Tap(TapHost {
            interface: self.interface("port.host.tap", name)?,
            queue_pairs: self.queue_pairs(host, QUEUES_MAX)?,
            // A name stands for a file of `ip netns`; an absolute path replaces the directory.
            namespace: host.namespace.as_ref().map(|name| Path::new(NETNS_DIRECTORY).join(name.as_ref())),
            mac: self.mac(host.mac.as_ref())?,
        }))
    }

    pub(super) fn vhost_user_host(&self, socket: &Spanned<String>, host: &Host) -> Result<HostConfig, ConfigError> {
        self.belongs_not("tap", [("namespace", host.namespace.as_ref().map(Spanned::span))])?;
        let modes = [("server", Mode::Server), ("client", Mode::Client)];
        let switches = [
            (RingFeatures::PACKED, &host.packed),
            (RingFeatures::INDIRECT, &host.indirect),
            (RingFeatures::EVENT_IDX, &host.event_idx),
            (RingFeatures::IN_ORDER, &host.in_order),
            (RingFeatures::MRG_RXBUF, &host.mrg_rxbuf),
        ];
        let off = switches.into_iter().filter(|(_, key)| key.as_ref().is_some_and(|on| !*on.as_ref()));
        let queue_size_max =
            self.number("port.host.queue_size_max", &host.queue_size_max, QUEUE_SIZE, QUEUE_SIZE_DEFAULT)?;
        let memory_bytes_max =
            self.number("port.host.memory_bytes_max", &host.memory_bytes_max, MEMORY_BYTES, MEMORY_BYTES_MAX as i64)?;
        let mode = self.one_of("port.host", "mode", &host.mode, &modes)?.unwrap_or_default();
        let of_a_server = [host.socket_mode.as_ref().map(Spanned::span), host.socket_group.as_ref().map(Spanned::span)];
        if let (Mode::Client, Some(at)) = (mode, of_a_server.into_iter().flatten().next()) {
            let message =
                "port.host.socket_mode and socket_group belong to mode \"server\": who listens makes the socket";
            return Err(self.0.wrong(at, message));
        }
        let allowed_uid = self.number("port.host.allowed_uid", &host.allowed_uid, UIDS, 0)?;
        let control_queue = self.control_queue(host)?;
        Ok(HostConfig::VhostUser(VhostUserHost {
            socket: self.socket("port.host.vhost_user", socket)?,
            mode,
            socket_mode: self.permissions("port.host.socket_mode", &host.socket_mode, SOCKET_MODE_DEFAULT)?,
            socket_group: host.socket_group.as_ref().map(|group| group.as_ref().clone()),
            allowed_uid: host.allowed_uid.is_some().then_some(allowed_uid as u32),
            queue_pairs: self.queue_pairs(host, control_queue.queue_pairs_max())?,
            mac: self.mac(host.mac.as_ref())?,
            control_queue,
            rings: off.fold(RingFeatures::all(), |rings, (ring, _)| rings - ring),
            queue_size_max: queue_size_max as u16,
            memory_bytes_max: memory_bytes_max as u64,
        }))
    }

    pub(super) fn control_queue(&self, host: &Host) -> Result<ControlQueue, ConfigError> {
        let known =
            [("frontend", ControlQueue::Frontend), ("backend", ControlQueue::Backend), ("none", ControlQueue::None)];
        let chosen = self.one_of("port.host", "control_queue", &host.control_queue, &known)?.unwrap_or_default();
        match &host.queue_pairs {
            Some(pairs) if chosen == ControlQueue::None && *pairs.as_ref() > 1 => {
                let message = "port.host.queue_pairs: a guest without a control queue uses one; write 1";
                Err(self.0.wrong(pairs.span(), message))
            }
            _ => Ok(chosen),
        }
    }

    /// Refuses keys of another kind of host.
    pub(super) fn belongs_not<const N: usize>(
        &self,
        kind: &str,
        keys: [(&str, Option<std::ops::Range<usize>>); N],
    ) -> Result<(), ConfigError> {
        match keys.into_iter().find_map(|(key, at)| Some((key, at?))) {
            None => Ok(()),
            Some((key, at)) => {
                Err(self.0.wrong(at, format!("port.host.{key} belongs to a host with {kind}; leave it out here")))
            }
        }
    }

    pub(super) fn queue_pairs(&self, host: &Host, most: u16) -> Result<u16, ConfigError> {
        Ok(self.number("port.host.queue_pairs", &host.queue_pairs, 1..=i64::from(most), 1)? as u16)
    }

    pub(super) fn mac(&self, written: Option<&Spanned<String>>) -> Result<Option<[u8; 6]>, ConfigError> {
        written.map(|written| self.address_of_host("port.host.mac", written)).transpose()
    }
}

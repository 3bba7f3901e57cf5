//! Which parameters change nothing here, because another one says that what they describe is not there.

use super::Profile;
use super::quantity::Tag;
use crate::config::Workload;

/// Parameters, and the values of another one with which alone they matter.
type Needs = (&'static [&'static str], &'static str, &'static [&'static str]);

const NEEDS: &[Needs] = &[
    (&["bus.width", "bus.overhead", "bus.burst"], "bus.kind", &["pci", "pci-x"]),
    (&["bus.wait_states", "adapter.read_command"], "bus.kind", &["pci"]),
    (&["bus.cache_line"], "bus.kind", &["pci", "pcie"]),
    (&["bus.read_time", "bus.write_time"], "bus.kind", &["pcie"]),
    (&["bus.read_request", "bus.read_latency", "bus.outstanding_reads"], "bus.kind", &["pci-x", "pcie"]),
    (&["bus.lanes", "bus.payload", "bus.completion", "bus.ecrc", "bus.iommu"], "bus.kind", &["pcie"]),
    (&["bus.write_latency", "bus.write_interval", "bus.posted_credit", "bus.credit_latency"], "bus.kind", &["pcie"]),
    (&["bus.iotlb", "bus.page", "bus.window", "bus.walk_time", "bus.walkers"], "bus.iommu", &["on"]),
    (&["bus.clock"], "bus.kind", &["isa", "pci", "pci-x", "pcie"]),
    (&["adapter.transfer_width", "adapter.transfer_cycles", "adapter.contention"], "bus.kind", &["isa"]),
    (&["adapter.recovery_cycles"], "adapter.access", &["port"]),
    (&["adapter.segment_time", "adapter.receive_time", "adapter.cut_through"], "adapter.access", &["master"]),
    (&["adapter.receive_fifo", "adapter.transmit_fifo", "adapter.buffer"], "adapter.access", &["master"]),
    (&["adapter.descriptor", "adapter.descriptor_fetch"], "bus.kind", &["pci", "pci-x", "pcie"]),
    (&["adapter.descriptor_write_back"], "bus.kind", &["pci", "pci-x", "pcie"]),
    (&["adapter.memory", "adapter.overflow"], "adapter.memory_kind", &["dp8390"]),
    (&["adapter.receive_descriptors", "adapter.transmit_descriptors"], "adapter.memory_kind", &["descriptors"]),
    (&["adapter.recover_time"], "adapter.overflow", &["stop-and-recover"]),
    (&["adapter.interrupt_rate"], "adapter.moderation", &["fixed-gap"]),
    (&["adapter.interrupt_wait", "adapter.interrupt_frames"], "adapter.moderation", &["coalescing"]),
    (&["adapter.segment_chunk", "host.chunk_time", "host.page_time"], "adapter.lso", &["on"]),
    (&["adapter.coalesce_segments"], "adapter.coalesce", &["on", "host"]),
    (&["adapter.crypt_rate"], "adapter.ipsec", &["adapter"]),
    (&["host.crypt_time"], "adapter.ipsec", &["host"]),
    (&["workload.encrypted"], "adapter.ipsec", &["host", "adapter"]),
    (&["workload.outstanding"], "workload.arrivals", &["closed"]),
    (&["workload.burst"], "workload.arrivals", &["bursts"]),
    (&["host.order", "host.poll_interval", "host.poll_budget", "host.poll_weight"], "host.receive", &["deferred"]),
    (&["host.defer_hard_irqs", "host.gro_flush_timeout", "host.busy_poll"], "host.receive", &["deferred"]),
    (&["host.poll_time", "host.irq_suspend_timeout"], "host.receive", &["deferred"]),
    (&["host.gro_time"], "adapter.coalesce", &["host"]),
    (&["adapter.transmit_wait", "adapter.transmit_frames"], "adapter.transmit_moderation", &["coalescing"]),
    (&["host.backlog"], "host.receive", &["interrupt"]),
    (&["workload.frame_size"], "workload.frame_mix", &["single"]),
];

/// Parameters of a workload, and the workloads that have them.
const OF_WORKLOADS: &[(&[&str], &[Workload])] = &[
    (&["workload.rpc_size", "workload.rpc_outstanding", "workload.rpc_issue"], &[Workload::NfsRead]),
    (&["workload.rpc_timer"], &[Workload::NfsRead, Workload::UdpRr]),
    (
        &["workload.flows"],
        &[
            Workload::TtcpReceive,
            Workload::TtcpSend,
            Workload::TtcpBoth,
            Workload::UdpReceive,
            Workload::UdpRr,
            Workload::TcpRr,
            Workload::Source,
            Workload::Forward,
        ],
    ),
    (
        &["workload.mss", "workload.tcp_options"],
        &[Workload::TtcpReceive, Workload::TtcpSend, Workload::TtcpBoth, Workload::TcpRr],
    ),
    (
        &["workload.encrypted"],
        &[
            Workload::TtcpReceive,
            Workload::TtcpSend,
            Workload::TtcpBoth,
            Workload::UdpSend,
            Workload::UdpReceive,
            Workload::UdpRr,
            Workload::TcpRr,
        ],
    ),
    (&["workload.request_size", "workload.service"], &[Workload::UdpReceive, Workload::UdpRr, Workload::TcpRr]),
    (
        &["workload.arrivals", "workload.request_rate", "workload.burst"],
        &[Workload::UdpReceive, Workload::UdpRr, Workload::TcpRr, Workload::Source, Workload::Forward],
    ),
    (&["workload.frame_mix", "workload.frame_size", "host.output_queue"], &[Workload::Source, Workload::Forward]),
    (&["workload.direction"], &[Workload::Source]),
    (&["host.route_time", "host.backlog"], &[Workload::Forward]),
    (&["workload.role", "workload.response_size", "workload.outstanding"], &[Workload::UdpRr, Workload::TcpRr]),
    (&["workload.write_size", "host.send_buffer"], &[Workload::TtcpSend, Workload::TtcpBoth, Workload::UdpSend]),
    (&["workload.read_size"], &[Workload::TtcpReceive, Workload::TtcpBoth]),
    (&["workload.rate"], &[Workload::TtcpReceive, Workload::TtcpSend, Workload::TtcpBoth, Workload::UdpSend]),
    (&["host.rpc_time"], &[Workload::NfsRead, Workload::UdpReceive, Workload::UdpRr, Workload::TcpRr]),
    (&["peer.service_time"], &[Workload::NfsRead, Workload::UdpRr, Workload::TcpRr]),
];

/// The parameters of the section `workload` that a workload has.
pub fn parameters_of(workload: Workload) -> Vec<&'static str> {
    let is_other = |name: &str| OF_WORKLOADS.iter().any(|(names, of)| names.contains(&name) && !of.contains(&workload));
    super::schema::names_of("workload").into_iter().filter(|name| !is_other(name)).collect()
}

impl Profile {
    /// What the user has set and changes nothing in a run of this workload, each with the reason.
    pub fn without_effect(&self, workload: Workload) -> Vec<String> {
        let is_set = |name: &&&str| self.quantity(name).tag == Tag::Set;
        let mut found = Vec::new();
        for (names, other, needed) in NEEDS {
            let is = self.word(other);
            if !needed.contains(&is) {
                found
                    .extend(names.iter().filter(is_set).map(|name| format!("{name} has no effect: {other} is {is:?}")));
            }
        }
        for (names, _) in OF_WORKLOADS.iter().filter(|(_, workloads)| !workloads.contains(&workload)) {
            let of = workload.name();
            found.extend(names.iter().filter(is_set).map(|name| format!("{name} has no effect on {of}")));
        }
        found
    }
}

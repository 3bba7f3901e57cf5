//! The sequence of requests that starts a device, in the order of each frontend in [`Dialect`].

use std::os::fd::BorrowedFd;

use super::{Frontend, MemRegion, PeerError, VringAddr};
use crate::features::{self, protocol};
use crate::memory::{GuestMemory, Region};
use crate::ring::RingAddresses;

/// The bits of virtio's device status field that a driver sets (virtio 1.3, 2.1).
pub(crate) mod status {
    pub const ACKNOWLEDGE: u8 = 1;
    pub const DRIVER: u8 = 2;
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
}

/// Number of entries in `virtio_uml`'s region table, unused entries included.
const UML_REGIONS: usize = 2;

/// The frontend whose order of requests a handshake follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// QEMU's vhost-user netdev: negotiates protocol features before `SET_OWNER`, and sends call descriptors twice,
    /// before the features and with the rings.
    #[default]
    Qemu,
    /// DPDK's virtio-user: sends `SET_OWNER` first, call descriptors only before the features, and ring bases without a
    /// used position.
    Dpdk,
    /// Linux' `virtio_uml`: sends `SET_OWNER` first, the memory table before the call descriptors, and the descriptions
    /// of all rings before the first kick descriptor. Every ring base is 0. The memory table has at least two entries.
    UserModeLinux,
    /// Cloud Hypervisor: sends `SET_OWNER` first, and features and memory before the first ring size. All ring sizes
    /// come before the first ring's addresses. Each ring's base follows the ring's addresses, and has 16 bits. No error
    /// descriptors are sent (`setup_vhost_user` of version 53).
    CloudHypervisor,
}

/// The options of a handshake with a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeOptions {
    /// Order of the requests in the handshake.
    pub dialect: Dialect,
    /// Required features: the negotiation panics if the backend does not offer one of these features.
    pub required: u64,
    /// Features that the guest accepts if the backend offers them.
    pub optional: u64,
    /// Protocol features that the frontend accepts if the backend offers them.
    pub protocol: u64,
    /// True if the frontend sends `SET_VRING_ENABLE` for each ring after the start of the ring.
    pub enables: bool,
}

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Features offered by the backend.
    pub offered: u64,
    /// Features in use after the negotiation.
    pub features: u64,
    /// Protocol features offered by the backend.
    pub protocol_offered: u64,
    /// Protocol features in use after the negotiation.
    pub protocol: u64,
    /// Maximum number of queue pairs of the backend, from `GET_QUEUE_NUM`. 1 without the protocol feature `MQ`.
    pub queue_pairs_max: u64,
}

impl Negotiated {
    fn speaks(&self, protocol: u64) -> bool {
        self.protocol & protocol != 0
    }
}

/// The description of a virtqueue for a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vring<'a> {
    pub index: u32,
    pub size: u16,
    pub base: u32,
    pub addresses: RingAddresses,
    pub kick: BorrowedFd<'a>,
    pub call: BorrowedFd<'a>,
    pub err: BorrowedFd<'a>,
}

impl Frontend {
    /// Negotiates features with the backend, before the guest's memory is shared. Panics if a required feature is not
    /// offered.
    ///
    /// # Errors
    /// Returns an error if the backend refuses the request or closes the connection.
    pub fn negotiate(&mut self, options: &HandshakeOptions) -> Result<Negotiated, PeerError> {
        if options.dialect != Dialect::Qemu {
            self.set_owner()?;
        }
        let offered = self.get_features()?;
        let missing = options.required & !offered;
        assert!(missing == 0, "the backend offers {offered:#x}: required and not among them are {missing:#x}");
        let wanted = options.required | options.optional | features::PROTOCOL_FEATURES;
        let mut agreed = Negotiated { offered, features: wanted & offered, queue_pairs_max: 1, ..Default::default() };
        if offered & features::PROTOCOL_FEATURES != 0 {
            self.negotiate_protocol(options.protocol, &mut agreed)?;
        }
        if agreed.speaks(protocol::BACKEND_REQ) {
            self.set_backend_req_fd()?;
        }
        if options.dialect == Dialect::Qemu {
            self.set_owner()?;
            let again = self.get_features()?;
            assert!(again == offered, "the backend offered {offered:#x}, and when asked again {again:#x}");
        }
        Ok(agreed)
    }

    fn negotiate_protocol(&mut self, wanted: u64, agreed: &mut Negotiated) -> Result<(), PeerError> {
        agreed.protocol_offered = self.get_protocol_features()?;
        agreed.protocol = wanted & agreed.protocol_offered;
        self.set_protocol_features(agreed.protocol)?;
        if agreed.speaks(protocol::MQ) {
            agreed.queue_pairs_max = self.get_queue_num()?;
        }
        Ok(())
    }

    /// Shares memory and rings with the backend, and starts the rings.
    pub(crate) fn start(
        &self,
        options: &HandshakeOptions,
        agreed: &Negotiated,
        memory: &GuestMemory,
        vrings: &[Vring<'_>],
    ) -> Result<(), PeerError> {
        let dialect = options.dialect;
        if agreed.speaks(protocol::STATUS) {
            self.set_status(0)?;
            self.set_status(status::ACKNOWLEDGE | status::DRIVER)?;
        }
        if matches!(dialect, Dialect::Qemu | Dialect::Dpdk) {
            vrings.iter().try_for_each(|vring| self.prepare_vring(dialect, vring))?;
        }
        self.set_features(agreed.features)?;
        if agreed.speaks(protocol::STATUS) {
            self.set_status(status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK)?;
        }
        self.share_memory(dialect, agreed, memory)?;
        let enables = options.enables && agreed.features & features::PROTOCOL_FEATURES != 0;
        match dialect {
            Dialect::Qemu | Dialect::Dpdk => self.start_vrings(dialect, memory, vrings, enables)?,
            Dialect::UserModeLinux => self.start_vrings_of_uml(memory, vrings, enables)?,
            Dialect::CloudHypervisor => self.start_vrings_of_cloud_hypervisor(memory, vrings, enables)?,
        }
        if agreed.speaks(protocol::STATUS) {
            let all = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK | status::DRIVER_OK;
            self.set_status(all)?;
        }
        Ok(())
    }

    /// Shares all regions with `SET_MEM_TABLE`, or one by one with `ADD_MEM_REG` if `CONFIGURE_MEM_SLOTS` was
    /// negotiated. The dialect of Cloud Hypervisor always uses `SET_MEM_TABLE`.
    fn share_memory(&self, dialect: Dialect, agreed: &Negotiated, memory: &GuestMemory) -> Result<(), PeerError> {
        if !agreed.speaks(protocol::CONFIGURE_MEM_SLOTS) || dialect == Dialect::CloudHypervisor {
            return match dialect {
                Dialect::Qemu | Dialect::Dpdk | Dialect::CloudHypervisor => self.set_mem_table(memory),
                Dialect::UserModeLinux => self.set_mem_table_with_room(memory, UML_REGIONS),
            };
        }
        let slots = self.get_max_mem_slots()?;
        let regions: &[Region] = memory.regions();
        assert!(regions.len() as u64 <= slots, "the backend takes {slots} regions, the guest has {}", regions.len());
        regions.iter().try_for_each(|region| self.add_mem_reg(MemRegion::new(region), region.fd()))
    }

    /// Sends the requests that precede `SET_VRING_ADDR` for a ring.
    fn prepare_vring(&self, dialect: Dialect, vring: &Vring<'_>) -> Result<(), PeerError> {
        self.set_vring_call(vring.index, Some(vring.call))?;
        match dialect {
            Dialect::Qemu => self.set_vring_err(vring.index, Some(vring.err)),
            Dialect::Dpdk | Dialect::UserModeLinux | Dialect::CloudHypervisor => Ok(()),
        }
    }

    fn start_vrings(
        &self,
        dialect: Dialect,
        memory: &GuestMemory,
        vrings: &[Vring<'_>],
        enables: bool,
    ) -> Result<(), PeerError> {
        vrings.iter().try_for_each(|vring| self.start_vring(dialect, memory, vring))?;
        if enables {
            vrings.iter().try_for_each(|vring| self.set_vring_enable(vring.index, true))?;
        }
        Ok(())
    }

    /// Describes all rings, then sends the kick descriptors. `virtio_uml` supports neither bases nor wrap counters.
    fn start_vrings_of_uml(&self, memory: &GuestMemory, vrings: &[Vring<'_>], enables: bool) -> Result<(), PeerError> {
        for vring in vrings {
            self.set_vring_call(vring.index, Some(vring.call))?;
            self.set_vring_num(vring.index, vring.size.into())?;
            self.set_vring_base(vring.index, 0)?;
            self.set_vring_addr(&VringAddr::new(memory, vring.index, vring.addresses))?;
        }
        for vring in vrings {
            self.set_vring_kick(vring.index, Some(vring.kick))?;
            if enables {
                self.set_vring_enable(vring.index, true)?;
            }
        }
        Ok(())
    }

    fn start_vrings_of_cloud_hypervisor(
        &self,
        memory: &GuestMemory,
        vrings: &[Vring<'_>],
        enables: bool,
    ) -> Result<(), PeerError> {
        vrings.iter().try_for_each(|vring| self.set_vring_num(vring.index, vring.size.into()))?;
        for vring in vrings {
            self.set_vring_addr(&VringAddr::new(memory, vring.index, vring.addresses))?;
            self.set_vring_base(vring.index, vring.base & 0xffff)?;
            self.set_vring_call(vring.index, Some(vring.call))?;
            self.set_vring_kick(vring.index, Some(vring.kick))?;
        }
        let enabled = vrings.iter().filter(|_| enables);
        enabled.into_iter().try_for_each(|vring| self.set_vring_enable(vring.index, true))
    }

    fn start_vring(&self, dialect: Dialect, memory: &GuestMemory, vring: &Vring<'_>) -> Result<(), PeerError> {
        let Vring { index, size, base, .. } = *vring;
        // virtio-user does not support the upper half of a packed ring's base.
        let base = if dialect == Dialect::Dpdk { base & 0xffff } else { base };
        self.set_vring_num(index, size.into())?;
        self.set_vring_base(index, base)?;
        self.set_vring_addr(&VringAddr::new(memory, index, vring.addresses))?;
        self.set_vring_kick(index, Some(vring.kick))?;
        match dialect {
            Dialect::Qemu => self.set_vring_call(index, Some(vring.call)),
            Dialect::Dpdk | Dialect::UserModeLinux | Dialect::CloudHypervisor => Ok(()),
        }
    }
}

//! The handlers of the frontend's messages, one method per message.

use super::{Device, Kick, Refused};
use crate::vhost_user::features::{self, LOG_ALL};
use crate::vhost_user::queue::QueueState;
use nix::sys::memfd::{MFdFlags, memfd_create};
use offramp_virtio::dirty_log::DirtyLog;
use offramp_virtio::inflight;
use offramp_virtio::memory::{Extent, REGIONS_MAX};
use offramp_virtio::ring::{BadRing, RingPlace};
use std::fs::File;
use std::sync::Arc;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, GpuBackend, Result, VhostUserBackendReqHandlerMut};

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.set_status(0)?;
        for vring in 0..self.vrings.len() {
            self.run(vring, QueueState::forget_enabled)?;
            self.vring(vring)?.is_enabled = None;
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        self.shown |= self.offered();
        Ok(features::to_message(self.offered()))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let shown = self.offered() | self.shown;
        let never_offered = features & !features::to_message(shown);
        if never_offered != 0 {
            return Err(Refused::Features(never_offered).into());
        }
        let features = features::from_message(features, shown);
        // Stop every running ring that changes between data ring and control queue.
        let changes = |vring: &usize| self.is_control(*vring) != self.would_be_control(*vring, features);
        let changed = (0..self.vrings.len()).filter(|vring| self.vrings[*vring].is_running && changes(vring));
        for vring in changed.collect::<Vec<_>>() {
            self.finish(vring)?;
        }
        if features & !LOG_ALL != self.features & !LOG_ALL {
            // Changed features mean another driver, whose rings have no loaded base.
            self.vrings.iter_mut().for_each(|setup| setup.loaded = None);
        }
        self.features = features;
        self.declined = self.shown & self.offered() & !features;
        Ok(self.set_every_feature()?)
    }

    fn set_mem_table(
        &mut self,
        _regions: &[VhostUserMemoryRegion],
        _files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        // The session handles this message itself.
        Err(Refused::Unsupported("SET_MEM_TABLE").into())
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let (max, vring) = (self.config.queue_size_max, index as usize);
        let size = u16::try_from(num).ok().filter(|size| (1..=max).contains(size));
        let size = size.ok_or(Refused::Ring { vring, cause: BadRing::Size })?;
        self.vring(vring)?.place.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let vring = index as usize;
        let setup = self.vring(vring)?;
        let place = RingPlace { size: setup.place.size, descriptors: descriptor, driver: available, device: used };
        let is_logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let has_moved = setup.place != place;
        setup.is_logged = is_logged;
        setup.has_place = true;
        if setup.is_running && !has_moved {
            self.run(vring, move |state, side| state.set_logged(side, is_logged))?;
            return Ok(());
        }
        self.stop(vring)?;
        self.vring(vring)?.place = place;
        Ok(self.start(vring)?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let vring = index as usize;
        // With libkrun, this can be the only message about a driver reset. A ring that still runs holds the contents of
        // the old driver, so stop the ring until the next kick. A monitor that resumes a guest has already sent
        // `GET_VRING_BASE`, which stopped the ring.
        if self.vring(vring)?.is_running {
            self.finish(vring)?;
            if self.is_control(vring) {
                self.control.iter_mut().for_each(|control| control.stopped(None));
            }
        }
        let setup = self.vring(vring)?;
        (setup.base, setup.ended_at, setup.stopped_at) = (base, None, None);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let vring = index as usize;
        let base = self.finish(vring)?;
        let base = self.vring(vring)?.ended_at.take().unwrap_or(base);
        Ok(VhostUserVringState::new(index, base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let vring = usize::from(index);
        self.stop(vring)?;
        if self.is_control(vring)
            && let Some(control) = &mut self.control
        {
            control.kick =
                fd.as_ref().map(File::try_clone).transpose().map_err(Refused::Io)?.map(|fd| Arc::new(fd.into()));
        }
        let kick = fd.map(|fd| self.event(fd)).transpose()?;
        self.vring(vring)?.kick = Some(kick.map_or(Kick::Polled, Kick::Event));
        Ok(self.start(vring)?)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let vring = usize::from(index);
        let (call, call_pipe) = fd.map(|fd| self.call(fd)).transpose()?.unzip();
        self.run(vring, move |state, side| state.set_call(side, call))?;
        self.vring(vring)?.call_pipe = call_pipe.flatten();
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let err = fd.map(|fd| self.event(fd)).transpose()?;
        Ok(self.run(usize::from(index), move |state, side| state.set_err(side, err))?)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        use VhostUserProtocolFeatures as Feature;
        let mut offered = Feature::REPLY_ACK
            | Feature::MTU
            | Feature::RARP
            | Feature::INFLIGHT_SHMFD
            | Feature::RESET_DEVICE
            | Feature::CONFIGURE_MEM_SLOTS
            | Feature::STATUS
            | Feature::DEVICE_STATE;
        // Without LOG_SHMFD, a frontend does not migrate the guest.
        offered.set(Feature::LOG_SHMFD, self.offered() & LOG_ALL != 0);
        let is_served = self.control.is_some();
        offered.set(Feature::MQ, self.queues.len() > 1 || is_served);
        // A frontend that assigns the guest's address itself (QEMU) refuses a backend that offers `CONFIG`, and learns
        // the MTU by other means. Without `CONFIG`, the backend channel has no use, because it carries only reports of
        // configuration changes.
        let of_config = Feature::CONFIG | Feature::BACKEND_REQ | Feature::BACKEND_SEND_FD;
        offered.set(of_config, self.config.mac.is_some() || is_served);
        Ok(offered)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let never_offered = features & !self.get_protocol_features()?.bits();
        if never_offered != 0 {
            return Err(Refused::Features(never_offered).into());
        }
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        // Frontends expect the number of vrings if the port serves the control queue, and the number of queue pairs
        // otherwise.
        Ok(if self.control.is_some() { self.vrings.len() } else { self.queues.len() } as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        Ok(self.enable(index as usize, u32::from(enable))?)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let config = self.net_config();
        let (start, len) = (offset as usize, size as usize);
        let bytes = start.checked_add(len).and_then(|end| config.get(start..end));
        bytes.map(<[u8]>::to_vec).ok_or_else(|| Refused::Unsupported("a longer configuration space").into())
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // A driver must not write the configuration of a modern device (virtio 1.3, 5.1.4).
        Err(Refused::Unsupported("SET_CONFIG").into())
    }

    fn set_backend_req_fd(&mut self, _backend: Backend) {}

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(Refused::Unsupported("GPU_SET_SOCKET").into())
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Refused::Unsupported("GET_SHARED_OBJECT").into())
    }

    /// Creates the inflight region. Chains are used in their order of arrival, so no chain is in flight across a
    /// restart. The used index of a split ring is in guest memory. A packed ring stores its position in the inflight
    /// region.
    fn get_inflight_fd(&mut self, inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, entries) = (inflight.num_queues, inflight.queue_size);
        if usize::from(queues) > self.vrings.len() || entries > self.config.queue_size_max {
            return Err(Refused::Inflight.into());
        }
        let len = inflight::region_len(queues, entries);
        let flags = MFdFlags::MFD_CLOEXEC;
        let file = File::from(memfd_create(c"offramp-inflight", flags).map_err(|e| Refused::Io(e.into()))?);
        file.set_len(len).map_err(Refused::Io)?;
        Ok((VhostUserInflight { mmap_size: len, mmap_offset: 0, ..*inflight }, file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *inflight;
        if mmap_size > self.inflight_len_max() {
            return Err(
                Refused::TooLong { what: "inflight region", len: mmap_size, len_max: self.inflight_len_max() }.into()
            );
        }
        let region = inflight::Region::map(&file, mmap_offset, mmap_size, num_queues, queue_size, &self.alarm);
        let replaced = self.inflight.replace(Arc::new(region.map_err(Refused::from)?));
        // A running ring still refers to the former inflight region. Keep a reference here, so that the ring's thread
        // is not the last owner and does not unmap the former region.
        self.replaced_inflight.retain(|region| Arc::strong_count(region) > 1);
        self.replaced_inflight.extend(replaced);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let extent = Extent {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            len: region.memory_size,
            file_offset: region.mmap_offset,
        };
        let memory = self.memory.with(extent, &fd, self.config.memory_bytes_max, &self.alarm).map_err(Refused::from)?;
        self.replace_memory(memory)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self.memory.without(region.guest_phys_addr, region.user_addr, region.memory_size);
        let memory = memory.map_err(Refused::from)?;
        Ok(self.replace_memory(memory)?)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        // The session handles this message itself, because the crate would lose the reason for a refusal.
        Err(Refused::Unsupported("SET_DEVICE_STATE_FD").into())
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Refused::Unsupported("CHECK_DEVICE_STATE").into())
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Refused::Unsupported("GET_SHMEM_CONFIG").into())
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        if log.mmap_size > self.log_len_max() {
            return Err(Refused::TooLong { what: "dirty log", len: log.mmap_size, len_max: self.log_len_max() }.into());
        }
        let log = Arc::new(DirtyLog::map(&file, log.mmap_offset, log.mmap_size, &self.alarm).map_err(Refused::from)?);
        let replaced = self.log.replace(Arc::clone(&log));
        for queue in &self.queues {
            let log = Some(Arc::clone(&log));
            queue.run(move |state| state.set_log(log)).map_err(Refused::from)?;
        }
        self.control.iter_mut().for_each(|control| control.queue.set_log(self.log.clone()));
        // Drop the old log here, like replaced memory: a queue's thread must not unmap the log.
        drop(replaced);
        Ok(())
    }
}

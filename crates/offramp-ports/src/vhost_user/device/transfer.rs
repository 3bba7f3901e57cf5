//! The transfer of the device's state to a frontend that saves its guest, and from a frontend that resumes a guest.

use super::{Device, Refused, Setup};
use crate::vhost_user::control::Control;
use crate::vhost_user::features::LOG_ALL;
use crate::vhost_user::state::{LEN_MAX, State};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{Read, Seek, Write};
use vhost::vhost_user::message::VhostUserProtocolFeatures;

/// Values of `SET_DEVICE_STATE_FD`, with the direction in the low half and the phase in the high half ("Device state
/// transfer parameters"). The only phase is 0: all rings are stopped.
const SAVE: u64 = 0;
const LOAD: u64 = 1;
/// The low half of the base of a new packed ring: index 0, wrap counter 1.
const NEW_PACKED: u16 = 0x8000;

impl Setup {
    /// Returns the base at which the ring starts: the base in the loaded state, unless the frontend starts a new ring.
    /// The frontend's own base can be incomplete: only the next available index (Cloud Hypervisor without a saved
    /// base), or half of a packed ring's base.
    pub(super) fn start_base(&self, is_packed: bool) -> u32 {
        let is_new = if is_packed { self.base as u16 == NEW_PACKED } else { self.base == 0 };
        self.loaded.filter(|_| !is_new).unwrap_or(self.base)
    }
}

impl Device {
    /// Handles `SET_DEVICE_STATE_FD`. Returns a new memfd for the state. Unlike the frontend's descriptor, a memfd
    /// cannot block this thread.
    pub(crate) fn transfer_state(&mut self, parameters: u64) -> Result<File, Refused> {
        if !self.speaks(VhostUserProtocolFeatures::DEVICE_STATE) {
            return Err(Refused::NotNegotiated("DEVICE_STATE"));
        }
        if let Some(vring) = self.vrings.iter().position(|setup| setup.is_running) {
            return Err(Refused::StateOfRunning(vring));
        }
        let mut file = File::from(memfd_create(c"offramp-state", MFdFlags::MFD_CLOEXEC).map_err(std::io::Error::from)?);
        match parameters {
            SAVE => {
                file.write_all(&self.state().to_bytes())?;
                file.rewind()?;
            }
            LOAD => self.incoming_state = Some(file.try_clone()?),
            _ => return Err(Refused::Unsupported("a phase of SET_DEVICE_STATE_FD other than 0")),
        }
        Ok(file)
    }

    /// Handles `CHECK_DEVICE_STATE`: the frontend has read the state, or has written a state for this device to load.
    pub(crate) fn check_state(&mut self) -> Result<(), Refused> {
        let Some(mut file) = self.incoming_state.take() else { return Ok(()) };
        let mut bytes = Vec::new();
        file.rewind()?;
        file.take(LEN_MAX as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > LEN_MAX {
            return Err(Refused::TooLong { what: "device state", len: bytes.len() as u64, len_max: LEN_MAX as u64 });
        }
        self.load(State::parse(&bytes)?)
    }

    fn state(&self) -> State {
        State {
            features: self.features & !LOG_ALL,
            bases: self.vrings.iter().map(|setup| setup.stopped_at.or(setup.loaded)).collect(),
            commands: self.control.as_ref().map(Control::commands).unwrap_or_default(),
        }
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        if let Some(vring) = self.vrings.iter().position(|setup| setup.is_running) {
            return Err(Refused::StateOfRunning(vring));
        }
        let State { features, bases, commands } = state;
        let never_offered = features & !(self.offered() | self.shown);
        if never_offered != 0 {
            return Err(Refused::StateFeatures(never_offered));
        }
        if bases.len() != self.vrings.len() {
            return Err(Refused::StateVrings { state: bases.len(), port: self.vrings.len() });
        }
        self.features = features;
        self.declined = self.offered() & !features;
        self.set_every_feature()?;
        let control_vring = (0..self.vrings.len()).find(|vring| self.is_control(*vring));
        if let Some(control) = &mut self.control {
            let base = control_vring.and_then(|vring| bases[vring]);
            control.load(&commands, base).map_err(Refused::StateSetting)?;
            self.follow_control()?;
        }
        for (setup, base) in self.vrings.iter_mut().zip(bases) {
            setup.loaded = base;
        }
        Ok(())
    }
}

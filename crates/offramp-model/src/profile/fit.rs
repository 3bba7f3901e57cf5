//! Consistency checks between the values of a profile.

use super::schema::{KEYS, Key};
use super::{Profile, ProfileError, key_error};
use crate::config;
use crate::tcp::HEADERS_LEN;

impl Profile {
    fn refuse(&self, name: &str, why: String) -> ProfileError {
        key_error(&self.name, name, why)
    }

    /// Checks that the values are consistent.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let mss = self.value("workload.mss");
        for name in ["host.receive_window", "peer.receive_window", "host.send_buffer"] {
            let window = self.value(name);
            if window < mss {
                let why =
                    format!("a window of {window} bytes is smaller than one segment of {mss} bytes (workload.mss)");
                return Err(self.refuse(name, why));
            }
        }
        let frame_len = mss + self.value("workload.tcp_options") + HEADERS_LEN;
        for name in ["adapter.receive_fifo", "adapter.transmit_fifo"] {
            let fifo = self.value(name);
            if fifo < frame_len {
                let why = format!(
                    "{fifo} bytes are less than one frame of {frame_len} bytes (workload.mss and its headers), and a \
                     FIFO holds whole frames"
                );
                return Err(self.refuse(name, why));
            }
        }
        self.check_bus()?;
        config::link(self).check().map_err(|(name, why)| self.refuse(name, why))?;
        self.check_needs()?;
        self.check_queues()
    }

    /// Checks that the adapter's access fits the kind of bus: port or memory access needs ISA, and a bus master needs
    /// another bus. The function also checks the values allowed for each kind of bus.
    fn check_bus(&self) -> Result<(), ProfileError> {
        let (access, kind) = (self.word("adapter.access"), self.word("bus.kind"));
        if (access == "master") == (kind == "isa") {
            let needed = if access == "master" { "other than \"isa\"" } else { "\"isa\"" };
            return Err(self.refuse("adapter.access", format!("{access:?} needs a bus.kind {needed}; it is {kind:?}")));
        }
        let few = |key: &'static Key| Some((key, key.values.get(kind)?));
        match KEYS.iter().filter_map(few).find(|(key, values)| !values.contains(&self.value(key.name))) {
            Some((key, values)) => {
                let show = |value| key.dimension.show(value);
                let (is, values) = (show(self.value(key.name)), values.iter().map(|&value| show(value)));
                let values: Vec<_> = values.collect();
                let why = format!("there is no {kind} bus of {is}; use one of: {}", values.join(", "));
                Err(self.refuse(key.name, why))
            }
            None => Ok(()),
        }
    }

    /// Checks each parameter whose word requires a certain word of another parameter. Example: a setting that needs a
    /// bus master.
    fn check_needs(&self) -> Result<(), ProfileError> {
        for key in KEYS.iter().filter(|key| !key.needs.is_empty()) {
            let set = self.word(key.name);
            let needs =
                key.needs.get(set).into_iter().flatten().map(|(needed, to_be)| (needed, to_be, self.word(needed)));
            if let Some((needed, to_be, is)) = needs.into_iter().find(|(_, to_be, is)| *to_be != is) {
                let why = format!("{set:?} needs {needed} to be {to_be:?}; it is {is:?}");
                return Err(self.refuse(key.name, why));
            }
        }
        Ok(())
    }

    /// Checks the settings that several queues require. Rejects a conflicting setting, instead of ignoring it.
    fn check_queues(&self) -> Result<(), ProfileError> {
        let queues = self.value("adapter.queues");
        if queues == 1 {
            return Ok(());
        }
        let refuse = |why: String| Err(self.refuse("adapter.queues", why));
        for (name, needed) in [("adapter.access", "master"), ("adapter.memory_kind", "descriptors")] {
            let is = self.word(name);
            if is != needed {
                return refuse(format!("{queues} queues need {name} to be {needed:?}; it is {is:?}"));
            }
        }
        if self.word("host.placement") == "balanced" {
            return refuse(format!(
                "{queues} queues have a processor each for their interrupts; use host.placement \"pinned\" or \"spread\", \
                 not \"balanced\""
            ));
        }
        if self.value("host.poll_interval") > 0 {
            return refuse(format!("{queues} queues need a driver with interrupts; set host.poll_interval to 0us"));
        }
        Ok(())
    }
}

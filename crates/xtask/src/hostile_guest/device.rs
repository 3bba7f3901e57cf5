//! A virtio network card, driven from user space, so that the guest's root can write arbitrary ring contents without a
//! driver.
//!
//! Registers are accessed through the PCI configuration access capability (virtio 1.3, 4.1.4.9), here called the
//! window. Memory is accessed through `/dev/mem`. Configuration space and `/dev/mem` are files, so no mapping is
//! needed.

use offramp_testbed::failure::{Doing, Result, failed};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Physical address of memory that the guest's kernel does not use. A program can write to this memory through
/// `/dev/mem`, while the kernel protects its own memory.
const MEMORY: u64 = 0x1000_0000;
/// Kernel argument that reserves this memory: `memmap=` in `admin-guide/kernel-parameters.txt`.
pub const KERNEL_ARGUMENT: &str = "memmap=4M$0x10000000";
/// Offsets of the areas of a ring, and distance to the next ring: sufficient for 1024 descriptors.
const AVAIL: u64 = 0x8000;
const USED: u64 = 0x1_0000;
const RING: u64 = 0x2_0000;
/// Addresses of the indirect tables and of the frames.
pub const TABLES: u64 = MEMORY + 0x10_0000;
pub const BUFFERS: u64 = MEMORY + 0x20_0000;

/// Registers in PCI configuration space (PCI Local Bus Specification 3.0, 6.1 and 6.7).
const COMMAND: u64 = 0x04;
const COMMAND_MEMORY_MASTER_NO_INTX: u16 = 0x0406;
const CAPABILITIES: u64 = 0x34;
const VENDOR_CAPABILITY: u8 = 0x09;
/// PCI vendor id of virtio devices (virtio 1.3, 4.1.2).
const VENDOR: &str = "0x1af4";
/// Types of capabilities, and offsets of their fields (4.1.4).
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const WINDOW: u8 = 5;
const CAPABILITY_KIND: u64 = 3;
const CAPABILITY_OFFSET: u64 = 8;
const CAPABILITY_LEN: u64 = 12;
const CAPABILITY_DATA: u64 = 16;
/// Offsets in the common configuration (4.1.4.3).
const DRIVER_FEATURE_SELECT: u32 = 8;
const DRIVER_FEATURE: u32 = 12;
const STATUS: u32 = 20;
const QUEUE_SELECT: u32 = 22;
const QUEUE_SIZE: u32 = 24;
const QUEUE_ENABLE: u32 = 28;
const QUEUE_NOTIFY_OFF: u32 = 30;
const QUEUE_ADDRESSES: u32 = 32;
/// Bits of the device status (2.1).
const ACKNOWLEDGE_DRIVER: u32 = 3;
const FEATURES_OK: u32 = 8;
const DRIVER_OK: u32 = 4;
/// Accepted features, by 32-bit word: indirect descriptors, and `VERSION_1`.
const FEATURES: [u32; 2] = [1 << 28, 1];
/// Flag of the avail ring that suppresses interrupts (2.7.6).
const NO_INTERRUPT: u16 = 1;

/// Index of the transmit queue of the first pair.
const TRANSMIT: u32 = 1;

/// A descriptor of a split ring or of an indirect table (2.7.5).
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    pub fn bytes(&self) -> Vec<u8> {
        [&self.address.to_le_bytes()[..], &self.len.to_le_bytes(), &self.flags.to_le_bytes(), &self.next.to_le_bytes()]
            .concat()
    }
}

/// The card, detached from its driver.
#[derive(Debug)]
pub struct Device {
    config: File,
    memory: File,
    window: u64,
    common: u32,
    notify: u32,
    notify_multiplier: u32,
    /// Address for notifications of the transmit queue.
    doorbell: u32,
    size: u16,
    /// Number of chains made available on the transmit queue, and of returned chains. Both numbers wrap around.
    avail: u16,
    used: u16,
}

impl Device {
    /// Detaches the guest's card from its driver, and resets the card.
    ///
    /// # Errors
    /// Returns an error if the guest has no virtio card, or the card has no modern interface.
    pub fn open() -> Result<Self> {
        let path = find()?;
        let unbind = path.join("driver/unbind");
        if unbind.exists() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            fs::write(&unbind, name).doing(unbind.display())?;
        }
        let open = |path: &Path| File::options().read(true).write(true).open(path).doing(path.display());
        let config = open(&path.join("config"))?;
        let memory = open(Path::new("/dev/mem"))?;
        let found = [COMMON, NOTIFY, WINDOW].map(|kind| capability(&config, kind));
        let [Some(common), Some(notify), Some(window)] = found else { return failed("no modern virtio device") };
        let field = |at: u64| read(&config, at, 4).unwrap_or_default();
        let (common, notify, notify_multiplier) =
            (field(common + CAPABILITY_OFFSET), field(notify + CAPABILITY_OFFSET), field(notify + CAPABILITY_DATA));
        config.write_all_at(&COMMAND_MEMORY_MASTER_NO_INTX.to_le_bytes(), COMMAND).doing("PCI command")?;
        let mut device =
            Self { config, memory, window, common, notify, notify_multiplier, doorbell: 0, size: 0, avail: 0, used: 0 };
        device.reset()?;
        Ok(device)
    }

    /// Resets the card, which stops its rings.
    pub fn reset(&mut self) -> Result<()> {
        self.set(STATUS, 1, 0)
    }

    /// Sets up the card with both rings of a pair, which are empty.
    pub fn start(&mut self) -> Result<()> {
        self.reset()?;
        self.set(STATUS, 1, ACKNOWLEDGE_DRIVER)?;
        for (word, features) in (0..).zip(FEATURES) {
            self.set(DRIVER_FEATURE_SELECT, 4, word)?;
            self.set(DRIVER_FEATURE, 4, features)?;
        }
        self.set(STATUS, 1, ACKNOWLEDGE_DRIVER | FEATURES_OK)?;
        if self.get(STATUS, 1)? & FEATURES_OK == 0 {
            return failed("the card refuses the features");
        }
        for queue in 0..=TRANSMIT {
            self.set(QUEUE_SELECT, 2, queue)?;
            let ring = MEMORY + u64::from(queue) * RING;
            for (index, address) in (0..).zip([ring, ring + AVAIL, ring + USED]) {
                self.set(QUEUE_ADDRESSES + 8 * index, 4, address as u32)?;
                self.set(QUEUE_ADDRESSES + 8 * index + 4, 4, (address >> 32) as u32)?;
            }
            let size = self.get(QUEUE_SIZE, 2)?;
            self.size = size as u16;
            self.write(ring + AVAIL, &[NO_INTERRUPT.to_le_bytes(), [0; 2]].concat())?;
            self.write(ring + USED, &[0; 4])?;
            self.doorbell = self.notify + self.get(QUEUE_NOTIFY_OFF, 2)? * self.notify_multiplier;
            self.set(QUEUE_ENABLE, 2, 1)?;
        }
        (self.avail, self.used) = (0, 0);
        self.set(STATUS, 1, ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK)?;
        // From here on, every access to the window is a kick.
        self.select(self.doorbell, 2)
    }

    /// Returns the number of descriptors in the transmit ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Writes descriptors into the transmit ring, starting with the first entry, and writes the heads into its avail
    /// ring.
    pub fn lay_out(&self, descriptors: &[Descriptor], heads: &[u16]) -> Result<()> {
        let ring = MEMORY + u64::from(TRANSMIT) * RING;
        self.write(ring, &descriptors.iter().flat_map(Descriptor::bytes).collect::<Vec<_>>())?;
        self.write(ring + AVAIL + 4, &heads.iter().flat_map(|head| head.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Makes every free entry of the avail ring available, and kicks. Returns whether chains were returned.
    pub fn send(&mut self) -> Result<bool> {
        let ring = MEMORY + u64::from(TRANSMIT) * RING;
        let mut used = [0; 2];
        self.memory.read_exact_at(&mut used, ring + USED + 2).doing("the used ring")?;
        let used = u16::from_le_bytes(used);
        let came_back = used != self.used;
        self.used = used;
        let avail = self.used.wrapping_add(self.size);
        if avail != self.avail {
            self.avail = avail;
            self.write(ring + AVAIL + 2, &avail.to_le_bytes())?;
        }
        self.config.write_all_at(&TRANSMIT.to_le_bytes(), self.window + CAPABILITY_DATA).doing("a kick")?;
        Ok(came_back)
    }

    /// Writes guest memory.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write_all_at(bytes, address).doing(format!("/dev/mem at {address:#x}"))
    }

    fn select(&self, offset: u32, len: u32) -> Result<()> {
        let selected = self.config.write_all_at(&offset.to_le_bytes(), self.window + CAPABILITY_OFFSET);
        selected
            .and_then(|()| self.config.write_all_at(&len.to_le_bytes(), self.window + CAPABILITY_LEN))
            .doing("the window in PCI configuration space")
    }

    /// Writes a register of the common configuration.
    fn set(&self, register: u32, len: u32, value: u32) -> Result<()> {
        self.select(self.common + register, len)?;
        let written = self.config.write_all_at(&value.to_le_bytes(), self.window + CAPABILITY_DATA);
        written.doing(format!("register {register}"))
    }

    /// Reads a register of the common configuration.
    fn get(&self, register: u32, len: u32) -> Result<u32> {
        self.select(self.common + register, len)?;
        let value = read(&self.config, self.window + CAPABILITY_DATA, 4).doing(format!("register {register}"))?;
        Ok(value & (u32::MAX >> (32 - 8 * len)))
    }
}

/// Returns the path of the guest's only virtio device.
fn find() -> Result<PathBuf> {
    const DEVICES: &str = "/sys/bus/pci/devices";
    let paths = fs::read_dir(DEVICES).doing(DEVICES)?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_virtio =
        |path: &PathBuf| fs::read_to_string(path.join("vendor")).is_ok_and(|vendor| vendor.trim() == VENDOR);
    paths.into_iter().find(is_virtio).map_or_else(|| failed("no virtio device"), Ok)
}

/// Returns the offset of the capability of type `kind` in configuration space.
fn capability(config: &File, kind: u8) -> Option<u64> {
    let byte = |at: u64| Some(read(config, at, 1).ok()? as u8);
    let mut at = byte(CAPABILITIES)?;
    while at != 0 {
        let place = u64::from(at);
        if byte(place)? == VENDOR_CAPABILITY && byte(place + CAPABILITY_KIND)? == kind {
            return Some(place);
        }
        at = byte(place + 1)?;
    }
    None
}

/// Reads up to four bytes of configuration space.
fn read(config: &File, at: u64, len: usize) -> std::io::Result<u32> {
    let mut value = [0; 4];
    config.read_exact_at(&mut value[..len], at)?;
    Ok(u32::from_le_bytes(value))
}

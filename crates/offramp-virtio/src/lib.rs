//! The device side of virtio: split and packed rings, guest memory, dirty log, inflight region, network header.
//!
//! The crate is independent of the transport: vhost-user, vfio-user or your own machine provides memory, descriptors
//! and features. The crate performs no offloads, and copies frames with their headers unchanged.
//!
//! | module | what it does |
//! |---|---|
//! | [`vring`] | one virtqueue: fetches chains, reads and writes frames, publishes, notifies |
//! | [`ring`] | descriptions of rings, and reasons to refuse a ring; split and packed layout |
//! | [`memory`] | a guest's memory, mapped from files |
//! | [`control`] | commands of the control queue |
//! | [`dirty_log`] | pages written by the device, for live migration |
//! | [`inflight`] | a packed ring's position, for the next device after this device is killed |
//! | [`notifier`] | notifications to the driver |
//! | [`net_header`] | the header before each frame |
//! | [`features`] | feature bits and their names |
//! | [`sigbus`] | handling of memory removed from its file |
//!
//! Every driver is treated as hostile. Every index, address and length is read once and checked. A bad chain is
//! returned to the driver with length 0, and a ring in an invalid state is stopped. The crate never panics on a
//! driver's input, and never reads or writes outside the guest's memory.
//!
//! # Drive a ring
//! ```text
//! vring.start(setup, log)                            // memory, place, features, kick; kicks are disabled
//! loop {
//!     vring.fetch(log)                               // up to FETCH_MAX chains; Err: vring.fail(), wait for a new start
//!     while let Some(chain) = vring.pop() {
//!         vring.read_frame(&chain, ..)               // transmit: copy the frame out
//!         vring.add_used(&chain, 0)
//!     }                                              // receive: vring.write_frame(..) does all three
//!     if vring.publish(log) says needs_notification {
//!         vring.notify()                             // now; or later, if needs_notification() is still true then
//!     }
//!     if there was nothing to fetch {
//!         vring.enable_notifications(log)
//!         if vring.fetch(log) still finds nothing { sleep on vring.kick() }
//!         vring.disable_notifications(log)
//!     }
//! }
//! vring.stop()                                       // the base for the next start
//! ```
//!
//! # A frame through a packed ring
//! This example runs driver and device in one process. The driver writes a descriptor, and the device reads the frame
//! and returns the chain.
//! ```
//! use nix::sys::{eventfd::EventFd, memfd::{MFdFlags, memfd_create}};
//! use offramp_virtio::memory::{Extent, GuestMemory};
//! use offramp_virtio::net_header::HEADER_LEN;
//! use offramp_virtio::notifier::Events;
//! use offramp_virtio::ring::RingPlace;
//! use offramp_virtio::vring::{Vring, VringSetup};
//! use std::{fs::File, os::unix::fs::FileExt, sync::Arc};
//!
//! // A page of guest memory: the ring at 0, event suppression at 64 and 68, a buffer at 256.
//! let guest = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC)?);
//! guest.set_len(4096)?;
//! let alarm = Arc::new(EventFd::new()?);
//! let extent = Extent { guest: 0, user: 0, len: 4096, file_offset: 0 };
//! let memory = Arc::new(GuestMemory::map(&[(extent, guest.try_clone()?)], 4096, &alarm)?);
//!
//! // The driver transmits: header and frame in one buffer, then its descriptor, flags last.
//! guest.write_all_at(&[0; HEADER_LEN], 256)?;
//! guest.write_all_at(b"a frame", 256 + HEADER_LEN as u64)?;
//! let (addr, len, id, available) = (256_u64, HEADER_LEN as u32 + 7, 3_u16, 1_u16 << 7);
//! guest.write_all_at(&[&addr.to_le_bytes()[..], &len.to_le_bytes(), &id.to_le_bytes()].concat(), 0)?;
//! guest.write_all_at(&available.to_le_bytes(), 14)?;
//!
//! // The device: start the ring, take the frame, give the chain back, notify.
//! let call = EventFd::new()?;
//! let mut vring = Vring::default();
//! vring.set_call(Some(Events::new()?.event(nix::unistd::dup(&call)?)?));
//! let setup = VringSetup {
//!     memory,
//!     place: RingPlace { size: 4, descriptors: 0, driver: 64, device: 68 },
//!     is_packed: true,
//!     options: Default::default(),
//!     base: 0x8000_8000,
//!     kick: None,
//!     is_logged: false,
//!     inflight: None,
//! };
//! vring.start(setup, None)?;
//! assert_eq!(vring.fetch(None)?.chains, 1);
//! let chain = vring.pop().unwrap();
//! let (mut header, mut frame) = ([0; HEADER_LEN], [0; 1514]);
//! let len = vring.read_frame(&chain, HEADER_LEN, &mut header, &mut frame).unwrap();
//! assert_eq!(&frame[..len], b"a frame");
//! vring.add_used(&chain, 0);
//! if vring.publish(None).is_some_and(|published| published.needs_notification) {
//!     vring.notify();
//! }
//!
//! // The driver is notified, and finds its descriptor used.
//! assert_eq!(call.read()?, 1);
//! let mut descriptor = [0; 16];
//! guest.read_exact_at(&mut descriptor, 0)?;
//! assert_eq!(descriptor[12..], [3, 0, 1 << 7, 1 << 7]); // id, then flags: AVAIL | USED
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(target_endian = "big")]
compile_error!("rings of virtio 1 are little-endian, and are read here as they lie in memory");

pub mod control;
pub mod dirty_log;
pub mod features;
pub mod inflight;
mod mapping;
pub mod memory;
pub mod net_header;
pub mod notifier;
pub mod ring;
pub mod sigbus;
pub mod vring;

pub use mapping::MemoryError;
pub use vring::Vring;

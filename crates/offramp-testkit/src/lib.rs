//! Test support: a guest in Rust that owns memory and rings, and can behave correctly or wrongly on purpose. The guest
//! is the peer of a vhost-user network backend.
//!
//! | module       | what                                                                              |
//! |--------------|-----------------------------------------------------------------------------------|
//! | [`memory`]   | guest memory: shared files at chosen guest addresses, with optional holes         |
//! | [`ring`]     | the driver's side of split and packed virtqueues (virtio 1.3, 2.7 and 2.8)        |
//! | [`frontend`] | the frontend's side of vhost-user: handshakes, single requests, raw bytes         |
//! | [`guest`]    | the whole guest: negotiated queues that send and receive frames                   |
//! | [`features`] | feature bits by name                                                              |
//! | [`hugepages`] | huge pages for guest memory, reserved temporarily                               |
//! | [`process`]  | a separate process for a test that counts leftover resources                      |
//! | [`port_suite`] | the test suite for every kind of host port |
//! | [`umem`]     | a host port that lends frames of one memory area in both directions               |
//! | [`vnet`]     | the header before every frame                                                     |
//!
//! The test kit has a separate parser and separate rings, so that it does not repeat a mistake of the backend under
//! test. A fault of the peer, a timeout, or a misuse of the test kit causes a panic that states the expected behaviour.
//!
//! ```no_run
//! use std::time::Duration;
//! use offramp_testkit::{Guest, VnetHeader};
//!
//! let mut guest = Guest::builder().packed().queue_size(256).mergeable(true).connect("backend.sock");
//! guest.rx(0).fill(64, 2048);
//! guest.tx(0).send(&VnetHeader::default(), &[&[0xff; 60]]);
//! guest.tx(0).drain(Duration::from_secs(1));
//! let received = guest.rx(0).recv(Duration::from_secs(1));
//! assert_eq!(received.frame, [0xff; 60]);
//! ```

// A test kit reports faults by panics, so a section `# Panics` at every function would add nothing.
#![allow(clippy::missing_panics_doc)]

pub mod features;
pub mod frontend;
pub mod guest;
pub mod hugepages;
pub mod memory;
pub mod port_suite;
pub mod process;
pub mod ring;
pub mod umem;
pub mod vnet;
mod wait;

pub use frontend::{Dialect, Frontend, PeerError};
pub use guest::{DataPlacement, Guest, GuestBuilder, HeaderPlacement, Received, RxQueue, TxLayout, TxQueue};
pub use hugepages::HugePages;
pub use memory::{GuestMemory, Region, RegionSpec};
pub use ring::{Buffer, PackedDriver, RingOptions, SplitDriver, Used, Virtqueue};
pub use vnet::VnetHeader;

//! The offloads of a network adapter, as pure functions on bytes and metadata.
//!
//! | module | what it does |
//! |---|---|
//! | [`frame`] | a frame's bytes, the host's request and the layout as one value, parsed once |
//! | [`layout`] | start of each header, end of the packet, fragment or whole packet |
//! | [`checksum`] | computes, copies, verifies, completes, updates; AVX-512, AVX2 and portable |
//! | [`segment`] | segments a super-frame into the frames of the wire (TCP, UDP, IP fragments) |
//! | [`coalesce`] | merges verified frames of a flow; segmentation of the result returns the original bytes |
//! | [`esp`] | IPsec: seals and opens ESP in transport and tunnel mode, with anti-replay windows |
//! | [`rss`] | Toeplitz hash and indirection table |
//! | [`meta`] | metadata of a frame, in each direction |
//! | [`caps`] | an adapter's offloads: device ∩ peer ∩ user |
//! | [`names`] | the words for offloads: ethtool's names, groups, the nearest known word |
//! | [`table`] | a hash table of fixed capacity, for flows and addresses |
//! | [`count`] | counts parses and copies, for tests |
//! | [`vlan`] | inserts and removes VLAN tags in place |
//! | [`sync`] | a mutex that ignores poisoning |
//!
//! No function in this crate does I/O, reads a clock, starts a thread or allocates per frame. No input, however
//! hostile, makes a function panic: each function returns the reason for a refused input.

pub mod caps;
pub mod checksum;
pub mod coalesce;
pub mod count;
pub mod esp;
pub mod frame;
pub mod layout;
pub mod meta;
pub mod names;
pub mod rss;
pub mod segment;
pub mod sync;
pub mod table;
pub mod vlan;

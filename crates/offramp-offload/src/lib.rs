//! The work that a network adapter takes over from a host, as pure functions on bytes and metadata.
//!
//! | module | what it does |
//! |---|---|
//! | [`frame`] | bytes, request and layout as one value: the one parse |
//! | [`layout`] | where each header starts, what is padding, what is a fragment |
//! | [`checksum`] | compute, compute while copying, verify, complete, update: AVX-512, AVX2 and portable code |
//! | [`segment`] | segments a super-frame into the frames of the wire (TCP, UDP, IP fragments) |
//! | [`coalesce`] | merges verified frames of a flow such that segmenting them again gives the same bytes |
//! | [`esp`] | IPsec: seals and opens ESP, transport and tunnel, with anti-replay windows |
//! | [`rss`] | Toeplitz hash and indirection table |
//! | [`meta`] | metadata of a frame, in each direction |
//! | [`caps`] | what an adapter offers: device ∩ peer ∩ user |
//! | [`table`] | a hash table that never grows, for flows and addresses |
//! | [`count`] | parses and copies, for tests that count them |
//! | [`vlan`] | VLAN tags, put in and taken out in place |
//! | [`sync`] | a lock that survives a panic elsewhere |
//!
//! Nothing here does I/O, reads a clock, starts a thread or allocates per frame. No input, however hostile, makes a
//! function panic: functions return a reason for what they cannot do.

pub mod caps;
pub mod checksum;
pub mod coalesce;
pub mod count;
pub mod esp;
pub mod frame;
pub mod layout;
pub mod meta;
pub mod rss;
pub mod segment;
pub mod sync;
pub mod table;
pub mod vlan;

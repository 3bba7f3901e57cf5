//! Hosts, guests and interfaces to measure and to check.
//!
//! | module | content |
//! |---|---|
//! | [`rig`] | two hosts in namespaces, a TAP each, two adapters and a cable between them |
//! | [`guest`] | a Linux guest in QEMU or User Mode Linux in place of one host |
//! | [`host`] | the settings of a host: steering, busy polling, sysctls, a capture |
//! | [`esp`] | an encrypted link between the hosts |
//! | [`relay`] | two TAPs joined without an adapter |
//! | [`traffic`] | TCP and UDP between two ends, with the figures of both |
//! | [`cpu`] | processor time, processors kept awake, the distance between two of them |
//! | [`device`] | an interface that exists: its features are switched and put back |
//! | [`error`] | errors, one line each, with a remedy |
//!
//! Start with [`rig::Rig::start`]: it builds both hosts, and dropping the rig leaves nothing behind.

pub mod cpu;
pub mod device;
pub mod error;
pub mod esp;
pub mod guest;
pub mod host;
pub mod relay;
pub mod rig;
pub mod traffic;

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
//! | [`failure`], [`stop`] | a harness' steps: their failures, and an end by a signal |
//! | [`program`], [`daemon`], [`testpmd`], [`strongswan`] | other programs under control |
//! | [`cargo`], [`packages`], [`scratch`] | where those programs come from, and their files |
//! | [`frames`], [`echo`] | frames to send, and a line that sends them back |
//! | [`stats`] | statistics of several samples |
//!
//! Start with [`rig::Rig::start`]: it builds both hosts, and dropping the rig leaves nothing behind.

pub mod cargo;
pub mod cpu;
pub mod daemon;
pub mod device;
pub mod echo;
pub mod error;
pub mod esp;
pub mod failure;
pub mod frames;
pub mod guest;
pub mod host;
pub mod packages;
pub mod program;
pub mod relay;
pub mod rig;
pub mod scratch;
pub mod stats;
pub mod stop;
pub mod strongswan;
pub mod testpmd;
pub mod traffic;

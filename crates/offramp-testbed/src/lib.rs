//! Hosts, guests and interfaces for measurements (`offramp lab`), checks (`offramp check`) and tests.
//!
//! | module | content |
//! |---|---|
//! | [`rig`] | two hosts in network namespaces, each with a TAP and an adapter, joined by a cable |
//! | [`guest`] | a Linux guest in QEMU or User Mode Linux in place of one host |
//! | [`host`] | the settings of a host: steering, busy polling, sysctls, a capture |
//! | [`esp`] | an encrypted link between the hosts |
//! | [`relay`] | two TAPs joined without an adapter |
//! | [`traffic`] | TCP and UDP between two ends, with the figures of both |
//! | [`cpu`] | processor time, threads that keep processors awake, the cache-line latency between processors |
//! | [`device`] | switches features of an existing interface and restores them |
//! | [`error`] | errors of one line each, with a remedy |
//! | [`failure`], [`stop`] | failures of a test harness' steps, and the stop of a harness by a signal |
//! | [`program`], [`daemon`], [`testpmd`], [`strongswan`] | control of other programs |
//! | [`cargo`], [`packages`], [`scratch`] | sources of those programs, and temporary files |
//! | [`frames`], [`echo`] | test frames, and a wire that returns every frame |
//! | [`stats`] | statistics of several samples |
//!
//! Start with [`rig::Rig::start`], which builds both hosts. Dropping the rig removes everything that the rig created.

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

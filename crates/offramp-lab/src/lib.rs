//! Experiments that say what each offload is worth on this machine.

pub mod traffic;
pub mod claims;
pub mod compare;
pub mod model;
pub mod report;
pub mod error;
pub mod plan;
pub mod rig;
pub mod run;
pub mod sample;
pub mod machine;
pub mod device;

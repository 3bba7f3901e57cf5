//! Experiments that say what each offload is worth on this machine.

pub mod calibrate;
pub mod compare;
pub mod cpu;
pub mod device;
pub mod error;
pub mod esp;
pub mod guest;
pub mod host;
pub mod machine;
pub mod metric;
pub mod model;
pub mod plan;
pub mod relay;
pub mod report;
pub mod rig;
pub mod run;
pub mod sample;
mod spread;
pub mod traffic;

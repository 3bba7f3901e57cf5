//! Experiments to measure the worth of each offload on this machine.
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | the experiments: question, variants, bounds |
//! | [`run`] | runs a plan, round by round |
//! | [`sample`] | one measurement on a rig of `offramp-testbed` |
//! | [`device`] | the same on an interface that exists |
//! | [`metric`] | the figures of a sample, with their names and units |
//! | [`compare`] | medians, intervals, verdicts |
//! | [`model`] | the report as data |
//! | [`machine`] | the machine of a run, for the report |
//! | [`report`] | the report as JSON, text and pages |
//! | [`calibrate`] | a profile of this machine for `offramp-model` |

pub mod calibrate;
pub mod compare;
pub mod device;
pub mod machine;
pub mod metric;
pub mod model;
pub mod plan;
pub mod report;
pub mod run;
pub mod sample;

//! Experiments that measure the effect of each offload on this machine.
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | the experiments: question, variants, bounds |
//! | [`run`] | runs the experiments, round by round |
//! | [`sample`] | one measurement on a rig of `offramp-testbed` |
//! | [`device`] | experiments on an existing interface |
//! | [`metric`] | the metrics of a sample, with names and units |
//! | [`compare`] | medians, intervals, verdicts |
//! | [`model`] | the report as data |
//! | [`machine`] | the description of the machine, for the report |
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

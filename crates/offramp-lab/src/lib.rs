//! Experiments that measure the effect of each offload on this machine.
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | the experiments: question, variants, bounds |
//! | [`run`] | runs the experiments, round by round |
//! | [`sample`] | one sample: traffic between two hosts, set up by `offramp-testbed` |
//! | [`device`] | experiments on an existing interface |
//! | [`metric`] | the metrics of a sample, with names and units |
//! | [`compare`] | medians, intervals, verdicts |
//! | [`model`] | the data of a report |
//! | [`machine`] | the description of the machine, for the report |
//! | [`report`] | the report as JSON, as text for a terminal and as HTML pages |
//! | [`calibrate`] | measures this machine as a host for `offramp-model` |

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

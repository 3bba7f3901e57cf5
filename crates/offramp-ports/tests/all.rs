//! The tests of this crate in one program, so that the code for each kind of port is built once. Tests that need a
//! separate process are separate programs.

mod common;
mod examples;
mod flow_order;
mod judge;
mod kernel_gro;
mod kernel_gso;
mod limits;
mod packet;
mod port_suite;
mod switch;
mod sys;
mod tap;
mod vhost_any_bytes;
mod vhost_bytes;
mod vhost_calls;
mod vhost_checklist;
mod vhost_common;
mod vhost_control;
mod vhost_data;
mod vhost_hostile;
mod vhost_known_faults;
mod vhost_lent;
mod vhost_link;
mod vhost_memory;
mod vhost_migration;
mod vhost_reconnect;
mod vhost_socket;
mod vhost_state;
mod vhost_steering;

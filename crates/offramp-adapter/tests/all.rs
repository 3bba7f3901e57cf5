//! All tests of the adapter in one program, so that the code for each host and line is compiled once.

mod interrupts;
mod ipsec;
mod limits;
mod link;
mod moderation;
mod moderation_bounds;
#[path = "../../offramp-offload/tests/support/packet.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod packet;
#[cfg(debug_assertions)]
mod parses;
mod pipeline;
mod port_security;
mod steering;
mod support;
mod switch;
mod switch_properties;
mod trial;
mod vlan;
mod whole;

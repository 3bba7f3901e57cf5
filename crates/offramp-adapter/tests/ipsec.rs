//! IPsec in the adapter, from host to host: sealed packets, refused packets and their counters. No byte and no frame is
//! lost while associations change.

mod bed;
mod keepalive;
mod keys;
mod life;
mod line;
mod on_switch;
mod policy;
mod stream;

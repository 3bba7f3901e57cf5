//! IPsec in the adapter, from host to host: sealed packets, refused packets, and their counters. While associations
//! change, no byte and no frame is lost.

mod bed;
mod keepalive;
mod keys;
mod life;
mod line;
mod on_switch;
mod policy;
mod stream;

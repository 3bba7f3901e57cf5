//! IPsec in the adapter, from host to host: what is sealed, what is refused, what is counted, and that no byte
//! and no frame is lost while associations change.

mod bed;
mod keepalive;
mod keys;
mod life;
mod line;
mod on_switch;
mod policy;
mod stream;

//! Child processes.

pub mod child;
pub mod freeze;
pub mod sockets;
pub mod terminal;
pub mod testbed;

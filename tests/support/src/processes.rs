//! Child processes.

pub mod child;
pub mod freeze;
pub mod terminal;
pub mod testbed;

//! A simulated API server: objects with optimistic concurrency, watches that lag, admission of deletions.

pub(crate) mod admission;
pub(crate) mod server;
pub(crate) mod store;

//! Reads of objects: live, cached for seconds, or from watches.

pub(super) mod annotations;
pub(super) mod api_reader;
pub(super) mod claims;
pub(super) mod namespaces;
pub(super) mod owners;
pub(super) mod secrets;
mod watching;

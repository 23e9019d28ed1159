//! Reads of objects: live, cached for seconds, or from watches.

pub(super) mod annotations;
pub(super) mod api_reader;
mod api_servers;
mod body;
pub(super) mod claims;
mod list_splitter;
pub(super) mod namespace_limits;
mod namespace_watches;
pub(super) mod namespaces;
pub(super) mod nodes;
pub(super) mod owners;
pub(super) mod pages;
pub(super) mod secrets;
pub(super) mod watching;

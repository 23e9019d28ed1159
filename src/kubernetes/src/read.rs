//! Reads of objects: live, cached for seconds, or from watches.

pub(crate) mod annotations;
pub(crate) mod api_reader;
mod api_servers;
mod body;
pub(crate) mod claims;
mod list_splitter;
pub(crate) mod namespace_limits;
mod namespace_watches;
pub(crate) mod namespaces;
pub(crate) mod nodes;
pub(crate) mod owners;
pub(crate) mod pages;
pub(crate) mod secrets;
pub(crate) mod watching;

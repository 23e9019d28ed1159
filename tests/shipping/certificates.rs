//! Serving certificates: self-managed, from files, and shared by replicas.

mod api_server_identity;
mod differing_replicas;
mod expired_files;
mod immutable_secret;
mod lost_key;
pub(crate) mod self_managed;

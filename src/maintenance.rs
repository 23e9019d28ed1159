//! Maintenance of nodes with guarded clusters, with the permissions of the user.
//!
//! Plans are pure functions of what was read ([`drain::plan`], [`drain::placement`]); the other files read.

pub(crate) mod api;
pub(crate) mod drain;
mod eviction;
mod leadership;
pub(crate) mod reporter;

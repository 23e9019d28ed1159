//! Maintenance of guarded clusters by commands: moves of leadership, rolling restarts, and drains.
//!
//! Plans are pure functions of the data that was read ([`health`], [`restart::plan`], [`drain::plan`],
//! [`drain::placement`]); the other files read, write and wait. All calls use the permissions of the user, and every deletion is an eviction, which
//! the API server sends to the guard.

pub(crate) mod api;
pub(crate) mod drain;
pub(crate) mod eviction;
pub(crate) mod health;
pub(crate) mod leadership;
pub(crate) mod reporter;
pub(crate) mod restart;
pub(crate) mod upgrade;

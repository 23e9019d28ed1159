//! `kubectl etcd-guard`: the commands for people, with the permissions of the caller.
//!
//! `cli` has one module for each command. A command reads the API server through `api_server`, the only client of this
//! crate, and the guard's admin port through `guard_client`, whose answers are the types of the crate `api`. What it finds it
//! hands to the part that does the work: `doctor` (checks of an installation), `maintenance` (moves of leadership
//! and restarts) or `conformance` (a test suite that runs in the user's cluster).
//!
//! `inspect` and `inject` need no guard: they apply the rules of the crates `core` and `inject` to a manifest or a live pod.
//!
//! This crate must not know the crates `guard` and `server`: whatever the guard knows, it says over its admin port.

// A closed output would end these macros by a panic.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod api_server;
pub mod cli;
mod conformance;
mod doctor;
mod durations;
mod guard_client;
mod maintenance;
#[cfg(any(test, feature = "fixtures"))]
pub mod outputs;

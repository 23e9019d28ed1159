//! The kubectl plugin: its commands with the guard behind a real kube-apiserver, and those that need no cluster; its completion and
//! its archive.

// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod cli;
mod completion;
mod inject_command;
mod inspect_command;
mod krew;
mod maintenance;

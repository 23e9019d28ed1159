//! The guard behind a real kube-apiserver, registered by the shipped configuration and used with real `kubectl`. The
//! shipped StatefulSet runs on a process node.
//!
//! Each test asserts which verdicts the guard gave, so that a test fails if the guard is not called.

// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod availability;
mod controllers;
mod deletions;
mod observability;

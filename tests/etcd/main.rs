//! Probes and `assess` against real etcd clusters of every supported release line.

// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

/// Declares each test for every release line. `scripts/test` runs the oldest and the newest that are
/// supported, `scripts/prove tests` all.
macro_rules! on_every_version {
    ($($(#[$doc:meta])* async fn $name:ident($version:ident) $body:block)*) => {
        $(
            $(#[$doc])*
            mod $name {
                use super::*;

                async fn run($version: &'static str) $body

                #[tokio::test]
                #[ignore = "ended; scripts/prove tests runs it"]
                async fn on_3_4() { run("3.4").await }
                #[tokio::test]
                async fn on_3_5() { run("3.5").await }
                #[tokio::test]
                #[ignore = "a release line between others; scripts/prove tests runs it"]
                async fn on_3_6() { run("3.6").await }
                #[tokio::test]
                async fn on_3_7() { run("3.7").await }
            }
        )*
    };
}

mod access;
mod backup;
mod cluster;
mod faulty;
mod guarded_cluster;
mod identity;
mod snapshots;
mod untrusted;

//! The probe round and `assess` against real etcd clusters, in every release line that the guard supports.
//!
//! Numbers of edge cases are those of the table in docs/edge-cases.md.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

/// Declares each test once per release line.
macro_rules! on_every_version {
    ($($(#[$doc:meta])* async fn $name:ident($version:ident) $body:block)*) => {
        $(
            $(#[$doc])*
            mod $name {
                use super::*;

                async fn run($version: &'static str) $body

                #[tokio::test]
                async fn on_3_4() { run("3.4").await }
                #[tokio::test]
                async fn on_3_5() { run("3.5").await }
                #[tokio::test]
                async fn on_3_6() { run("3.6").await }
                #[tokio::test]
                async fn on_3_7() { run("3.7").await }
            }
        )*
    };
}

#[path = "etcd/alarms.rs"]
mod alarms;
#[path = "etcd/auth.rs"]
mod auth;
#[path = "etcd/elsewhere.rs"]
mod elsewhere;
#[path = "etcd/faults.rs"]
mod faults;
#[path = "etcd/leadership.rs"]
mod leadership;
#[path = "etcd/leaving.rs"]
mod leaving;
#[path = "etcd/lingering.rs"]
mod lingering;
#[path = "etcd/membership.rs"]
mod membership;
#[path = "etcd/names.rs"]
mod names;
#[path = "etcd/numbers.rs"]
mod numbers;
#[path = "etcd/scene.rs"]
mod scene;
#[path = "etcd/secrets.rs"]
mod secrets;
#[path = "etcd/tls.rs"]
mod tls;
#[path = "etcd/upgrade.rs"]
mod upgrade;
#[path = "etcd/wire.rs"]
mod wire;

#[path = "support/etcd_cluster.rs"]
mod etcd_cluster;

#[allow(dead_code, unreachable_pub, reason = "what the control-plane tests use as well")]
#[path = "support"]
mod support {
    pub mod child;
    pub mod freeze;
    pub mod gate;
    pub mod guard_process;
    pub mod http_client;
    pub mod in_time;
    pub mod review;
    pub mod wait;
    pub mod wire;
}

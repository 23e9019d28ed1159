//! etcd-guard: an admission webhook server that keeps Kubernetes from deleting an etcd leader or breaking an etcd quorum.
//!
//! Kubernetes knows readiness, not raft. Before a pod of an etcd cluster is deleted or evicted, the apiserver asks this
//! server, and this server asks the cluster itself. The rule above all others: what could not be proven safe is denied.
//!
//! The rooms, and the one direction in which they know each other:
//!
//! ```text
//! cli -> certificates -> server -> guard -> etcd, k8s
//!                               -> inject, node, rules -> config, patch, k8s -> json
//! ```
//!
//! - [`certificates`] makes and renews the server's own certificates in the cluster, and registers its webhooks; it knows
//!   of TLS from [`server`] and of Secrets and configurations from [`k8s`], and never of guarding.
//! - [`server`] speaks HTTPS and `AdmissionReview`, and never knows of etcd.
//! - [`guard`] judges deletions of pods; [`guard::assess`] is its pure heart.
//! - [`inject`] changes pods at their creation, [`node`] nodes' status, both by a [`patch`] on untyped JSON; [`rules`]
//!   judges pods' names.
//! - [`config`] is the configuration file.
//! - [`json`] is JSON that is looked at and changed without a copy of it.
//! - [`etcd`] asks members through the v3 API, and never knows of Kubernetes.
//! - [`traces`] is where all of them say what takes how long, for who collects it.
//! - [`k8s`] reads from the apiserver, and holds the parts of its types that this program needs.

pub mod certificates;
pub mod cli;
pub mod config;
pub mod etcd;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod guard;
pub mod inject;
pub mod json;
pub mod k8s;
pub mod node;
mod one_line;
pub mod patch;
pub mod rules;
pub mod server;
pub mod traces;

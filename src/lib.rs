//! etcd-guard: an admission webhook server that prevents Kubernetes from deleting the leader of an etcd cluster or
//! breaking its quorum.
//!
//! Kubernetes knows the readiness of pods, but not the state of Raft. Before the API server deletes or evicts a pod of
//! an etcd cluster, it calls this server, which probes the members of the cluster. The guard denies each request that
//! it cannot prove safe.
//!
//! Dependencies between modules point in one direction:
//!
//! ```text
//! server: cli -> certificates -> server -> guard -> etcd, config, k8s
//!                                       -> inject, nodes, rules -> patch, config, k8s
//! plugin: cli -> conformance -> maintenance -> guard_client -> api_server, api
//!             -> doctor -> registration, guard_client
//!             -> guard (only `inspect`), config, inject, rules
//! ```
//!
//! - [`cli`]: the command lines of the server and of the plugin for people, one module per subcommand.
//! - `conformance`: the conformance suite, which tests the guard in a cluster of the user.
//! - `doctor`: checks of an installation, with the permissions of the user.
//! - `maintenance`: moves of leadership, rolling restarts and drains, with the permissions of the user.
//! - `api_server`: the client of the API server for commands that people run.
//! - `guard_client`: the client of the guard's admin port, for commands that people run.
//! - [`api`]: what the server returns to people, as JSON.
//! - [`registration`]: the webhook configurations that are built into the program.
//! - [`certificates`]: creates and renews the server's certificates in the cluster, and registers its webhooks. It uses
//!   the TLS types of [`server`], and Secrets and webhook configurations from [`k8s`].
//! - [`server`]: HTTPS, `AdmissionReview`, and the admin port. It does not depend on etcd.
//! - [`guard`]: evaluates deletions, evictions and workload operations of etcd pods.
//! - [`inject`], [`nodes`] and [`rules`]: mutate new pods, mutate the status of nodes, and validate the names of pods.
//! - [`config`]: the configuration file.
//! - [`patch`] and [`json`]: JSON patches, and JSON that is read and changed without a copy.
//! - [`etcd`]: the client of etcd's v3 API. It does not depend on Kubernetes.
//! - [`k8s`]: the client of the API server, with the parts of its types that this program needs.
//! - [`traces`]: the export of trace spans. All modules can open spans.
//! - `expiring_cache`: a bounded cache whose entries expire on tokio's clock.
//! - [`mistakes`]: seeded mistakes for the simulation, absent from release builds.
//! - `escape` and `terminal`: escaping of foreign text, and text styles of the terminal.

pub mod api;
mod api_server;
pub mod certificates;
pub mod cli;
pub mod config;
mod conformance;
mod doctor;
mod escape;
pub mod etcd;
mod expiring_cache;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod guard;
mod guard_client;
pub mod inject;
pub mod k8s;
mod maintenance;
pub mod mistakes;
pub mod nodes;
#[cfg(test)]
mod outputs;
pub mod patch;
pub mod registration;
pub mod rules;
pub mod server;
mod terminal;
pub mod traces;

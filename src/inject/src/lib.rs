//! Changes to pods and nodes on their way into the cluster, and the configuration of these changes.
//!
//! The guard protects members that exist. This crate prepares the pods around them, and is useful without any etcd: every
//! installation chooses which of the two it registers.
//!
//! - [`config`]: the configuration file. The section `guard` is a type of the crate `core`.
//! - [`pods`]: lxcfs files, sidecars from templates and tolerations for new pods.
//! - [`nodes`]: the status of nodes that advertise more CPU or memory than they have (over-commit).
//! - [`pod_names`]: words that the names of pods must not contain.
//! - `patch`: the JSON patch that a change results in.
//!
//! An object enters as untyped JSON and leaves as a patch that only adds. The user's values win, a second pass changes nothing, and
//! an internal error never denies a pod: it leaves the pod as it is and warns.
//!
//! This crate must not know admission reviews, the network or the API server: the crate `server` reads and writes.

pub mod config;
pub mod nodes;
mod patch;
pub mod pod_names;
pub mod pods;

//! The rules of etcd-guard, without I/O.
//!
//! Everything that decides whether a pod may go is here: what a pod says about its etcd member, what the members said about
//! their cluster, which voters would remain, and what the denial tells the reader. The crates around this one read and write;
//! this one only computes, so that its tests need neither a cluster nor a runtime.
//!
//! The data flows in this order:
//!
//! 1. [`objects`]: the parts of Kubernetes objects that the rules read, and [`request`], the deletion to decide on.
//! 2. [`discovery`]: from a pod to its etcd member, with address, storage and the sources of its credentials.
//! 3. [`policy`]: from the annotations and the [`config`] to the effective policy.
//! 4. [`etcd`]: what a member answered to a probe. [`snapshot`] is the result of a round of probes.
//! 5. [`membership`]: the list of voters, each with its pod. [`ledger`] holds the deletions approved a moment ago.
//! 6. [`assess`]: from a snapshot, a target and a policy to an assessment with a [`reason`].
//! 7. [`explain`]: from an assessment to the [`verdict`] that a person reads.
//!
//! [`documentation`] knows where the manual explains a reason. [`inspect`] reports what the rules read of one pod. [`escape`] makes foreign texts harmless, and [`mistakes`] are seeded
//! faults that the simulation must find; release builds have none.
//!
//! This crate must not know kube, hyper, etcd-client, a runtime or a clock: times are arguments. Of tokio it uses only the type
//! `Instant`, so that the instants of a simulation are the ones that the rules compare.

pub mod annotations;
pub mod assess;
pub mod cluster_key;
pub mod cluster_state;
pub mod config;
pub mod discovery;
pub mod documentation;
pub mod escape;
pub mod etcd;
pub mod explain;
pub mod handover;
pub mod inspect;
pub mod label_syntax;
pub mod ledger;
pub mod membership;
pub mod mistakes;
pub mod objects;
pub mod opt_in_label;
pub mod policy;
pub mod reason;
pub mod request;
pub mod reservation;
pub mod snapshot;
pub mod spans;
pub mod tally;
pub mod verdict;
pub mod wall_clock;

//! The guard behind a real kube-apiserver: registered by the shipped configuration, asked by real `kubectl`, with the
//! shipped StatefulSet on a process node.
//!
//! Every test asserts what the guard was asked, so that none passes unasked.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "control_plane/apiserver_gone.rs"]
mod apiserver_gone;
#[path = "control_plane/arrivals.rs"]
mod arrivals;
#[path = "control_plane/check.rs"]
mod check;
#[path = "control_plane/check_answer.rs"]
mod check_answer;
#[path = "control_plane/check_intents.rs"]
mod check_intents;
#[path = "control_plane/collection.rs"]
mod collection;
#[path = "control_plane/conformance.rs"]
mod conformance;
#[path = "control_plane/consequences.rs"]
mod consequences;
#[path = "control_plane/cost.rs"]
mod cost;
#[path = "control_plane/dashboard.rs"]
mod dashboard;
#[path = "control_plane/drain.rs"]
mod drain;
#[path = "control_plane/dry_run.rs"]
mod dry_run;
#[path = "control_plane/events.rs"]
mod events;
#[path = "control_plane/eviction.rs"]
mod eviction;
#[path = "control_plane/floor.rs"]
mod floor;
#[path = "control_plane/follower.rs"]
mod follower;
#[path = "control_plane/guard_gone.rs"]
mod guard_gone;
#[path = "control_plane/intents.rs"]
mod intents;
#[path = "control_plane/kubelet.rs"]
mod kubelet;
#[path = "control_plane/leader.rs"]
mod leader;
#[path = "control_plane/left_behind.rs"]
mod left_behind;
#[path = "control_plane/membership.rs"]
mod membership;
#[path = "control_plane/one_at_a_time.rs"]
mod one_at_a_time;
#[path = "control_plane/others.rs"]
mod others;
#[path = "control_plane/pod_gc.rs"]
mod pod_gc;
#[path = "control_plane/policies.rs"]
mod policies;
#[path = "control_plane/preemption.rs"]
mod preemption;
#[path = "control_plane/records.rs"]
mod records;
#[path = "control_plane/refused_later.rs"]
mod refused_later;
#[path = "control_plane/replicas.rs"]
mod replicas;
#[path = "control_plane/requesters.rs"]
mod requesters;
#[path = "control_plane/rollout.rs"]
mod rollout;
#[path = "control_plane/status.rs"]
mod status;
#[path = "control_plane/stop.rs"]
mod stop;
#[path = "control_plane/storm.rs"]
mod storm;
#[path = "control_plane/survey.rs"]
mod survey;
#[path = "control_plane/taints.rs"]
mod taints;
#[path = "control_plane/terminal.rs"]
mod terminal;
#[path = "control_plane/traces.rs"]
mod traces;
#[path = "control_plane/unhealthy.rs"]
mod unhealthy;
#[path = "control_plane/wire.rs"]
mod wire;

#[allow(dead_code, unreachable_pub, reason = "shared with other tests, which use other parts of it")]
#[path = "support"]
mod support {
    pub mod api_client;
    pub mod apiserver_proxy;
    pub mod child;
    pub mod cli;
    pub mod control_plane;
    pub mod foretold;
    pub mod fourth_member;
    pub mod freeze;
    pub mod gate;
    pub mod guard_process;
    pub mod guarded_cluster;
    pub mod http_client;
    pub mod in_time;
    pub mod kubectl;
    pub mod load;
    pub mod member;
    pub mod pods;
    pub mod process_node;
    pub mod prometheus;
    pub mod recorder;
    pub mod review;
    pub mod scheduler;
    pub mod terminal;
    pub mod testbed;
    pub mod trace_receiver;
    pub mod wait;
    pub mod webhook;
    pub mod wire;
}

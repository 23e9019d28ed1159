//! Deletions by controllers, the scheduler and the kubelet, and the operations that cause them.

mod cascades;
mod drain;
mod eviction;
mod guard_priority;
mod held_eviction;
mod node_deletion;
mod owner_kinds;
mod ownership;
mod pod_gc;
mod preemption;
mod reservations;
mod resources;
mod rollout;
mod taints;
mod workload_data;
mod workload_operations;

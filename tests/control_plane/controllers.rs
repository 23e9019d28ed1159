//! Deletions by controllers, the scheduler and the kubelet, and the operations that cause them.

mod cascades;
mod drain;
mod eviction;
mod kubelet;
mod pod_gc;
mod preemption;
mod rollout;
mod taints;
mod workload_operations;

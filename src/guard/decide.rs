//! One evaluation of a request, from the pod or its parent object to the reservation and the verdict.

mod cascade;
mod cluster_cache;
mod context;
pub(in crate::guard) mod effective_policy;
pub(in crate::guard) mod evaluator;
mod events;
mod eviction;
mod inputs;
mod member_evaluator;
mod reservation;
mod transfer;
mod uncertain_storage;
mod workload_operations;

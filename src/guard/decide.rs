//! One evaluation of a request, from the pod or its parent object to the reservation and the verdict.

mod cascade;
mod cluster_cache;
mod context;
pub(in crate::guard) mod effective_policy;
pub(in crate::guard) mod evaluator;
mod events;
mod inputs;
mod member_evaluator;
mod reservation;
mod target;
mod transfer;
mod uncertain_storage;
mod workload_operations;

#[cfg(test)]
pub(in crate::guard) use self::workload_operations::owner_arguments as break_glass_object;

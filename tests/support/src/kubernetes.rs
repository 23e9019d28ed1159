//! A real control plane and its clients.

pub mod api_client;
pub mod api_proxy;
pub mod control_plane;
pub mod kubectl;
pub mod pods;
pub mod review_recorder;
pub mod scheduler;
pub mod webhook;

/// Whether the API server that the variable `KUBERNETES` selects has `MutatingAdmissionPolicy` as `v1`: since 1.36.
pub fn has_mutating_policies() -> bool {
    std::env::var("KUBERNETES").as_deref() != Ok("1.35")
}

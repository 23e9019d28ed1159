//! A real control plane and its clients.

pub mod api_client;
pub mod api_proxy;
pub mod control_plane;
pub mod kubectl;
pub mod pods;
pub mod review_recorder;
pub mod scheduler;
pub mod webhook;

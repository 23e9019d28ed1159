//! Receivers of metrics and traces.

pub mod dashboard_picture;
pub mod prometheus;
pub mod trace_receiver;

//! Receivers of metrics and traces.

pub mod prometheus;
pub mod trace_receiver;

//! Names by which log and trace subscribers distinguish events and spans.

/// The target of every exported span. Log subscribers ignore this target.
pub const SPAN_TARGET: &str = "etcd_guard_spans";

//! Names by which log and trace subscribers distinguish events and spans.

/// The target of every exported span. Log subscribers ignore this target.
pub const SPAN_TARGET: &str = "etcd_guard_spans";

/// The name of events whose log lines may be buffered, and are lost if the process is killed: answers that do not
/// depend on an etcd member. The name itself does not appear in a log line.
pub(crate) const DEFERRABLE_EVENT: &str = "deferrable";

//! Writes of objects: Events, Leases, this program's own Secret and webhook configurations, labels and status of nodes.

pub(super) mod events;
pub(super) mod leases;
pub(super) mod managed_secret;
pub(super) mod node_labels;
pub(super) mod node_status;
pub mod webhooks;

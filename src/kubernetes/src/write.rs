//! Writes of objects: Events, Leases, this program's own Secret and webhook configurations, labels and status of nodes.

pub(crate) mod events;
pub(crate) mod leases;
pub(crate) mod managed_secret;
pub(crate) mod node_labels;
pub(crate) mod node_status;

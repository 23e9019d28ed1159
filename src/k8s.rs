//! What is read from and written to the apiserver, and the parts of Kubernetes' types that this program needs.
//!
//! The types are partial on purpose: a pod with its managed fields is nine kilobytes, of which the guard needs a few
//! hundred bytes; and fields of newer releases pass unseen. This room never knows of etcd.

pub mod admission;
mod annotations;
mod call;
mod claim;
mod claims;
mod events;
#[cfg(test)]
pub(crate) mod fake;
mod lease;
mod lookup;
mod namespaces;
mod node_labels;
mod own_secret;
pub mod pod;
pub mod quantity;
mod secrets;
pub mod webhooks;

pub use annotations::Annotations;
pub use call::{CallError, apiserver_time};
pub use claim::Claim;
pub use claims::Claims;
pub use events::{Events, Telling};
pub use lease::{Leases, Page, WriteError};
pub use lookup::{LookupError, Pods};
pub use namespaces::{NamespaceLabels, Namespaces, Version};
pub use node_labels::NodeLabels;
pub use own_secret::{Content, OwnSecret};
pub use secrets::{Secret, Secrets};

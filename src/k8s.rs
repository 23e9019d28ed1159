//! What is read from the apiserver, and the parts of Kubernetes' types that this program needs.
//!
//! The types are partial on purpose: a pod with its managed fields is nine kilobytes, of which the guard needs a few
//! hundred bytes; and fields of newer releases pass unseen. This room never knows of etcd.

pub mod admission;
mod annotations;
mod claim;
mod claims;
#[cfg(test)]
pub(crate) mod fake;
mod lease;
mod lookup;
mod namespaces;
pub mod pod;
pub mod quantity;
mod secrets;

pub use annotations::Annotations;
pub use claim::Claim;
pub use claims::Claims;
pub use lease::{Leases, Page, WriteError};
pub use lookup::{LookupError, Pods};
pub use namespaces::{NamespaceLabels, Namespaces, Version};
pub use secrets::{Secret, Secrets};

//! Reads from and writes to the Kubernetes API server, and the parts of Kubernetes' types that this program requires.
//!
//! The types are partial by design. A pod with its managed fields has nine kilobytes, of which the guard requires a few
//! hundred bytes. Unknown fields of newer releases are ignored. This module does not depend on etcd.

mod call;
mod error;
#[cfg(test)]
pub(crate) mod fake;
mod objects;
mod read;
mod write;

pub use call::api_server_time;
pub use error::{CallError, LookupError, WriteError};
pub use objects::{
    admission, claim::Claim, pod, pod_references::PodReferences, quantity, stateful_set::StatefulSet,
};
pub use read::{
    annotations::AnnotationCache,
    api_reader::ApiReader,
    claims::ClaimReader,
    namespaces::{ApiServerVersion, NamespaceLabels, NamespaceReader},
    owners::{Owner, OwnerState},
    secrets::{Secret, SecretReader},
};
pub use write::{
    events::{EventRecord, EventRecorder},
    leases::{LeaseRecord, Leases},
    managed_secret::{ManagedSecret, SecretContent},
    node_labels::NodeLabels,
    webhooks,
};

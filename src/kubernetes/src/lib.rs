//! Reads from and writes to the Kubernetes API server, and the parts of Kubernetes' types that this program requires.
//!
//! The types are partial by design. A pod with its managed fields has nine kilobytes, of which the guard requires a few
//! hundred bytes. Unknown fields of newer releases are ignored. This module does not depend on etcd.

pub mod call;
pub mod error;
#[cfg(any(test, feature = "fixtures"))]
pub mod fake;
mod read;
mod write;

pub use call::api_server_time;
#[cfg(any(test, feature = "fixtures"))]
pub use error::error_message;
pub use error::{CallError, LookupError, WriteError};
pub use read::{
    annotations::{AnnotationCache, MoveRequest},
    api_reader::ApiReader,
    claims::ClaimReader,
    namespace_limits::NamespaceLimitsReader,
    namespaces::{NamespaceLabels, NamespaceReader},
    nodes::{NodeEvent, NodeMetadata, NodeReader, NodeState, NodeStateEvent, Taint, watch_nodes},
    owners::{Existence, Owner, OwnerResource},
    secrets::SecretReader,
};
pub use write::{
    events::{EventRecord, EventRecorder},
    leases::{LeaseRecord, Leases},
    managed_secret::{ManagedSecret, SecretContent},
    node_labels::NodeLabels,
    node_status::NodeStatus,
};

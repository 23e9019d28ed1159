//! Reads from and writes to the Kubernetes API server.
//!
//! kube's own types decode whole objects: a pod with its managed fields has nine kilobytes, of which the rules read a few hundred
//! bytes. This crate decodes only the types of `core::objects`, object by object, so that memory depends on the number of guarded
//! objects and not on their size. Unknown fields of newer releases are ignored.
//!
//! - `read`: live reads ([`ApiReader`], [`SecretReader`]), reads that are cached for seconds ([`NamespaceReader`],
//!   [`NamespaceLimitsReader`]), and watches ([`AnnotationCache`], [`ClaimReader`], [`NodeReader`]).
//! - `write`: [`Leases`], events, the managed Secret, labels and status of nodes. A write names the version that was read, and
//!   reports a conflict to its caller.
//! - [`call`]: every call has a timeout, and is never repeated here: whoever requested the deletion repeats it.
//! - [`error`]: only `NotFound` proves that an object is gone. Everything else is "unknown".
//!
//! This crate must not know etcd, verdicts or reservations: the content of a Lease is text for it.

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
    annotations::{Action, ActionRequest, AnnotationCache},
    api_reader::{ApiReader, PodsOfNode},
    claims::ClaimReader,
    namespace_limits::NamespaceLimitsReader,
    namespaces::{NamespaceLabels, NamespaceReader},
    nodes::{NodeEvent, NodeMetadata, NodeReader, NodeState, NodeStateEvent, Taint, watch_nodes},
    owners::{Existence, Owner, OwnerResource},
    secrets::SecretReader,
    watching::watch_restarts,
};
pub use write::{
    events::{EventRecord, EventRecorder},
    leases::{LeaseRecord, Leases},
    managed_secret::{ManagedSecret, SecretContent},
    node_labels::NodeLabels,
    node_status::NodeStatus,
};

//! Reads from and writes to the Kubernetes API server, and the parts of Kubernetes' types that this program requires.
//!
//! The types are partial by design. A pod with its managed fields has nine kilobytes, of which the guard requires a few
//! hundred bytes. Unknown fields of newer releases are ignored. This module does not depend on etcd.

mod call;
mod client;
mod error;
#[cfg(test)]
pub(crate) mod fake;
pub mod label_syntax;
mod objects;
mod opt_in_label;
mod read;
mod write;

pub use call::api_server_time;
pub(crate) use client::client;
#[cfg(test)]
pub(crate) use error::error_message;
pub use error::{CallError, LookupError, WriteError};
pub use objects::{
    admission, annotations as annotation_names,
    api_server_version::ApiServerVersion,
    claim::Claim,
    data_object::{DataKind, DataObject, Secret, SecretName, hide_secret_names, is_subdomain},
    namespace_limits::{
        AmountTexts, LimitRange, LimitRangeItem, LimitRangeSpec, NamespaceLimits, QuotaSpec, ResourceQuota,
    },
    owner_reference::{ControllerWalk, MAX_OWNER_LEVELS},
    pod,
    pod_references::{PUBLISHED_CONFIG_MAPS, PodReferences},
    pod_template::PodTemplate,
    quantity,
    stateful_set::StatefulSet,
};
pub use opt_in_label::{OptInLabel, OptInLabelError};
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
    webhooks,
};

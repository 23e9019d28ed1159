//! Claims of guarded namespaces, from watches of their metadata. Every evaluation checks whether the claim of a member
//! persists, and claims rarely change. Without a current watch the claim is read live.

use std::collections::{BTreeMap, BTreeSet};

use kube::{
    Client,
    core::{Request, params::GetParams},
};
use tokio::sync::watch;

use super::{
    api_reader::ApiReader,
    namespace_watches::{NamespaceWatches, Resource},
    watching::{CALL_LIMITS, WatchedMetadata},
};
use crate::error::LookupError;
use etcd_guard_core::objects::{claim::Claim, heap_size::HeapSize, pod::Metadata};

/// Maximum memory of the metadata of one claim, in bytes. The API server does not limit the names in ownerReferences. A
/// larger claim is read live.
const MAX_CLAIM_BYTES: usize = 4096;

/// Reads claims.
#[derive(Clone)]
pub struct ClaimReader {
    reader: ApiReader,
    watches: NamespaceWatches,
}

// === impl ClaimReader ===

impl ClaimReader {
    /// Watches the claims of the namespaces in `guarded` until the sender of `guarded` is dropped.
    pub fn watch(client: &Client, guarded: watch::Receiver<BTreeSet<String>>) -> Self {
        let resource = Resource {
            group: "/api/v1",
            name: "persistentvolumeclaims",
            kind: "PersistentVolumeClaims",
            reduce,
            limits: &CALL_LIMITS,
        };
        Self {
            reader: ApiReader::new(client.clone()),
            watches: NamespaceWatches::start(client, resource, guarded),
        }
    }

    /// Creates a reader that reads every claim live.
    pub fn without_watches(reader: ApiReader) -> Self {
        Self { reader, watches: NamespaceWatches::default() }
    }

    /// Returns the claim from the watch of its namespace, or `None` without a current watch. The claim is as old as the
    /// delay of watch events. It has no annotations.
    pub fn cached(&self, namespace: &str, name: &str) -> Option<Claim> {
        self.watches.get_current(namespace, name).map(|claim| to_claim(namespace, &claim))
    }

    /// Returns the claims that the watch of the namespace showed last. They have no annotations.
    pub fn last_known(&self, namespace: &str) -> Vec<Claim> {
        self.watches.last_known(namespace).iter().map(|claim| to_claim(namespace, claim)).collect()
    }

    /// Returns the stored claim.
    pub async fn read(&self, namespace: &str, name: &str) -> Result<Claim, LookupError> {
        let subject = format!("PersistentVolumeClaim {namespace}/{name}");
        let claims = Request::new(format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"));
        self.reader.read(subject, claims.get(name, &GetParams::default())).await
    }
}

fn to_claim(namespace: &str, claim: &WatchedMetadata) -> Claim {
    let metadata = Metadata {
        name: claim.name.clone(),
        namespace: namespace.to_owned(),
        uid: claim.uid.clone(),
        owner_references: claim.owner_references.clone(),
        deletion_timestamp: claim.deletion_timestamp.clone(),
        ..Metadata::default()
    };
    Claim { metadata }
}

fn reduce(claim: WatchedMetadata) -> Option<WatchedMetadata> {
    let claim = WatchedMetadata { annotations: BTreeMap::new(), ..claim };
    (claim.heap_size() <= MAX_CLAIM_BYTES).then_some(claim)
}

//! Leases (`coordination.k8s.io/v1`) that several processes annotate with optimistic concurrency: a write
//! succeeds only if the Lease is unchanged since it was read.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use serde::Deserialize;

use crate::{
    error::{LookupError, WriteError, error_message},
    read::pages::{List, objects},
};
use etcd_guard_core::objects::{annotations::deserialize_own, heap_size::heap_size_of_fields};

/// Timeout of one call: a healthy API server responds within milliseconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// The label of the Leases with reservations. Leases without this label are not listed, and therefore never deleted.
const RESERVATIONS_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "etcd-guard");

/// The label of the Leases with owners. It differs from the label of the reservations, whose Leases are deleted when they
/// have been empty for ten minutes.
const OWNERS_LABEL: (&str, &str) = ("etcd-guard.io/record", "owners");

/// The label of the Lease that divides the surveys between the replicas.
const SURVEYS_LABEL: (&str, &str) = ("etcd-guard.io/record", "surveys");

/// Leases of one namespace and one purpose.
#[derive(Clone)]
pub struct Leases {
    client: Client,
    namespace: String,
    label: (&'static str, &'static str),
}

/// The annotations of a Lease and the version of the object that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The Lease's name.
    pub name: String,
    /// The resource version; `None` if the Lease does not exist.
    pub version: Option<String>,
    /// The uid; `None` if the Lease does not exist.
    pub uid: Option<String>,
    /// The annotations of this program.
    pub annotations: BTreeMap<String, String>,
}

/// A Lease in a list, in part.
#[derive(Deserialize)]
struct ListedLease {
    metadata: ListedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedMetadata {
    name: String,
    #[serde(default)]
    resource_version: Option<String>,
    #[serde(default)]
    uid: Option<String>,
    #[serde(default, deserialize_with = "deserialize_own")]
    annotations: BTreeMap<String, String>,
}

heap_size_of_fields! {
    LeaseRecord { name, version, uid, annotations }
}

// === impl Leases ===

impl Leases {
    /// Creates a handle for the Leases with reservations in this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), label: RESERVATIONS_LABEL }
    }

    /// The namespace of the Leases.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns a handle for the Leases with owners in the same namespace.
    pub fn of_owners(&self) -> Self {
        Self { label: OWNERS_LABEL, ..self.clone() }
    }

    /// Returns a handle for the Lease of the surveys in the same namespace.
    pub fn of_surveys(&self) -> Self {
        Self { label: SURVEYS_LABEL, ..self.clone() }
    }

    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns the stored Lease of this name.
    pub async fn read(&self, name: &str) -> Result<LeaseRecord, LookupError> {
        let subject = || format!("Lease {name}");
        match tokio::time::timeout(CALL_TIMEOUT, self.api().get_opt(name)).await {
            Err(_) => Err(LookupError::TimedOut { subject: subject(), limit: CALL_TIMEOUT }),
            Ok(Err(error)) => {
                let (subject, cause) = (subject(), error_message(&error));
                Err(match error {
                    kube::Error::Api(status) if status.code == 403 => {
                        LookupError::Forbidden { subject, cause }
                    }
                    _ => LookupError::Failed { subject, cause },
                })
            }
            Ok(Ok(None)) => Ok(LeaseRecord { name: name.to_owned(), ..LeaseRecord::default() }),
            Ok(Ok(Some(lease))) => Ok(LeaseRecord::from(lease)),
        }
    }

    /// Writes these annotations if the Lease is unchanged since `record` was read. Returns the new record.
    pub async fn write(
        &self,
        record: &LeaseRecord,
        annotations: BTreeMap<String, String>,
    ) -> Result<LeaseRecord, WriteError> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(record.name.clone()),
                labels: Some([self.label].map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                annotations: Some(annotations),
                resource_version: record.version.clone(),
                // Without the uid, the API server would create a Lease that was deleted since the read.
                uid: record.uid.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec::default()),
        };
        let parameters = PostParams::default();
        let call = async {
            match record.version {
                Some(_) => self.api().replace(&record.name, &parameters, &lease).await,
                None => self.api().create(&parameters, &lease).await,
            }
        };
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            // The write may have taken effect: the next read shows it.
            Err(_) => Err(WriteError::TimedOut { name: record.name.clone(), limit: CALL_TIMEOUT }),
            // The Lease was changed or deleted since it was read.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                Err(WriteError::Conflict)
            }
            Ok(Err(error)) => Err(failed(&record.name, &error)),
            Ok(Ok(lease)) => Ok(LeaseRecord::from(lease)),
        }
    }

    /// Returns all Leases of this purpose.
    pub async fn list(&self) -> Result<Vec<LeaseRecord>, LookupError> {
        let list = List {
            client: &self.client,
            subject: "the Leases of etcd-guard",
            timeout: CALL_TIMEOUT,
            selection: ListParams::default().labels(&format!("{}={}", self.label.0, self.label.1)),
        };
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
        let parse = |json: &[u8]| {
            let ListedLease { metadata } = serde_json::from_slice(json)?;
            let ListedMetadata { name, resource_version: version, uid, annotations } = metadata;
            Ok(Some(LeaseRecord { name, version, uid, annotations }))
        };
        Ok(list.read(objects(&path), parse).await?.objects)
    }

    /// Deletes a Lease if it is unchanged since `record` was read.
    pub async fn delete(&self, record: &LeaseRecord) -> Result<(), WriteError> {
        let parameters = DeleteParams::default()
            .preconditions(Preconditions { resource_version: record.version.clone(), uid: None });
        match tokio::time::timeout(CALL_TIMEOUT, self.api().delete(&record.name, &parameters)).await {
            Err(_) => Err(WriteError::TimedOut { name: record.name.clone(), limit: CALL_TIMEOUT }),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                Err(WriteError::Conflict)
            }
            Ok(Err(error)) => Err(failed(&record.name, &error)),
            Ok(Ok(_)) => Ok(()),
        }
    }
}

fn failed(name: &str, error: &kube::Error) -> WriteError {
    let (name, cause) = (name.to_owned(), error_message(error));
    match error {
        kube::Error::Api(status) if status.code == 403 => WriteError::Forbidden { name, cause },
        _ => WriteError::Failed { name, cause },
    }
}

// === impl LeaseRecord ===

impl From<Lease> for LeaseRecord {
    fn from(lease: Lease) -> Self {
        Self {
            name: lease.metadata.name.unwrap_or_default(),
            version: lease.metadata.resource_version,
            uid: lease.metadata.uid,
            annotations: lease.metadata.annotations.unwrap_or_default(),
        }
    }
}

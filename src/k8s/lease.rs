//! Leases (`coordination.k8s.io/v1`) that carry a text which several processes change, each only if it knows the last one.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};

use super::LookupError;

/// Longest that one call may take; see the limit of reads.
const CALL_LIMIT: Duration = Duration::from_secs(3);

/// Marks the Leases of this program, so that it finds them again and touches no other.
const OWN_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "etcd-guard");

/// Leases of one namespace.
#[derive(Clone)]
pub struct Leases {
    api: Api<Lease>,
}

/// What a Lease carried when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The Lease's name.
    pub name: String,
    /// Its resource version; `None` where there is no such Lease yet.
    pub version: Option<String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A write that did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Somebody else wrote since the page was read.
    #[error("the Lease was changed by somebody else")]
    Conflict,
    /// Any other reason.
    #[error("writing Lease {name} failed: {cause}")]
    Failed {
        /// The Lease.
        name: String,
        /// The apiserver's or the connection's own words.
        cause: String,
    },
}

// === impl Leases ===

impl Leases {
    /// Leases of this namespace, with this client's identity.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }

    /// What the Lease of this name carries now.
    pub async fn read(&self, name: &str) -> Result<Page, LookupError> {
        let what = || format!("Lease {name}");
        match tokio::time::timeout(CALL_LIMIT, self.api.get_opt(name)).await {
            Err(_) => Err(LookupError::TimedOut { what: what(), limit: CALL_LIMIT }),
            Ok(Err(error)) => Err(LookupError::Failed { what: what(), cause: words_of(&error) }),
            Ok(Ok(None)) => Ok(Page { name: name.to_owned(), version: None, annotations: BTreeMap::new() }),
            Ok(Ok(Some(lease))) => Ok(Page::of(lease)),
        }
    }

    /// Writes these annotations if nobody wrote since `page` was read, and returns the new page.
    pub async fn write(
        &self,
        page: &Page,
        annotations: BTreeMap<String, String>,
    ) -> Result<Page, WriteError> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(page.name.clone()),
                labels: Some([OWN_LABEL].map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                annotations: Some(annotations),
                resource_version: page.version.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec::default()),
        };
        let parameters = PostParams::default();
        let call = async {
            match page.version {
                Some(_) => self.api.replace(&page.name, &parameters, &lease).await,
                None => self.api.create(&parameters, &lease).await,
            }
        };
        let failed = |cause| WriteError::Failed { name: page.name.clone(), cause };
        match tokio::time::timeout(CALL_LIMIT, call).await {
            // It may have been written all the same: whoever reads next will see.
            Err(_) => Err(failed(format!("no answer within {}", humantime::format_duration(CALL_LIMIT)))),
            // 404: it was deleted since it was read.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                Err(WriteError::Conflict)
            }
            Ok(Err(error)) => Err(failed(words_of(&error))),
            Ok(Ok(lease)) => Ok(Page::of(lease)),
        }
    }

    /// All Leases of this program.
    pub async fn list(&self) -> Result<Vec<Page>, LookupError> {
        let what = || String::from("the Leases of etcd-guard");
        let parameters = ListParams::default().labels(&format!("{}={}", OWN_LABEL.0, OWN_LABEL.1));
        match tokio::time::timeout(CALL_LIMIT, self.api.list(&parameters)).await {
            Err(_) => Err(LookupError::TimedOut { what: what(), limit: CALL_LIMIT }),
            Ok(Err(error)) => Err(LookupError::Failed { what: what(), cause: words_of(&error) }),
            Ok(Ok(list)) => Ok(list.items.into_iter().map(Page::of).collect()),
        }
    }

    /// Deletes a Lease if nobody wrote since `page` was read.
    pub async fn delete(&self, page: &Page) -> Result<(), WriteError> {
        let parameters = DeleteParams::default()
            .preconditions(Preconditions { resource_version: page.version.clone(), uid: None });
        match tokio::time::timeout(CALL_LIMIT, self.api.delete(&page.name, &parameters)).await {
            Err(_) => {
                Err(WriteError::Failed { name: page.name.clone(), cause: String::from("no answer in time") })
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                Err(WriteError::Conflict)
            }
            Ok(Err(error)) => Err(WriteError::Failed { name: page.name.clone(), cause: words_of(&error) }),
            Ok(Ok(_)) => Ok(()),
        }
    }
}

fn words_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => super::lookup::innermost(other),
    }
}

// === impl Page ===

impl Page {
    fn of(lease: Lease) -> Self {
        Self {
            name: lease.metadata.name.unwrap_or_default(),
            version: lease.metadata.resource_version,
            annotations: lease.metadata.annotations.unwrap_or_default(),
        }
    }
}

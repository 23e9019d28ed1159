//! One observation of the cluster: the time, the Secret and the webhook configurations.

use std::sync::Arc;

use kube::Client;
use rustls::crypto::CryptoProvider;
use time::OffsetDateTime;

use crate::{
    certificates::{
        bundle::Bundle,
        certificate_set::CertificateSet,
        registration::{WebhookGroup, shipped_configurations},
        stored_sets::StoredSets,
    },
    k8s::{
        CallError, ManagedSecret, SecretContent, api_server_time,
        webhooks::{Configuration, ConfigurationName, Configurations},
    },
};

/// The Secret that all replicas share.
pub(super) const SECRET: &str = "etcd-guard-certificates";

/// The objects that the reconciler reads and writes.
pub(super) struct Sources {
    client: Client,
    pub(super) secret: ManagedSecret,
    pub(super) configurations: Configurations,
    names: Vec<ConfigurationName>,
    /// Whether this process applies the guard's own configuration if it does not exist.
    registers_guard: bool,
}

/// The result of one observation.
pub(super) struct Observation {
    /// The time of the API server.
    pub(super) now: OffsetDateTime,
    /// The content of the Secret, which a write replaces.
    pub(super) content: SecretContent,
    /// The sets in the Secret; `None` if it holds no usable set.
    pub(super) stored: Option<StoredSets>,
    /// All known configurations that could be read. The value is `None` if the configuration does not exist.
    pub(super) configurations: Vec<(ConfigurationName, Option<Configuration>)>,
    /// The one required configuration; `None` if all are required. See [`Self::is_required`].
    required: Option<ConfigurationName>,
}

// === impl Sources ===

impl Sources {
    pub(super) fn new(client: &Client, namespace: &str, registers_guard: bool) -> Self {
        Self {
            client: client.clone(),
            secret: ManagedSecret::new(client.clone(), namespace, SECRET),
            configurations: Configurations::new(client.clone()),
            names: shipped_configurations(),
            registers_guard,
        }
    }
}

// === impl Observation ===

impl Observation {
    pub(super) async fn read(sources: &Sources, provider: &Arc<CryptoProvider>) -> Result<Self, CallError> {
        let now = api_server_time(&sources.client).await?;
        let content = sources.secret.read().await?;
        let stored = match StoredSets::from_data(&content.data, provider) {
            Ok(stored) => Some(stored),
            Err(error) => {
                if content.exists() {
                    tracing::warn!(%error, secret = SECRET, "the Secret holds no usable certificate");
                }
                None
            }
        };
        let mut configurations = Vec::new();
        for name in &sources.names {
            match sources.configurations.read(name).await {
                Ok(configuration) => configurations.push((name.clone(), configuration)),
                Err(error) if WebhookGroup::Guard.is_named(name) => return Err(error),
                Err(error) => tracing::warn!(%error, configuration = %name, "configuration skipped"),
            }
        }
        let mut guards = configurations.iter().filter(|(name, _)| WebhookGroup::Guard.is_named(name));
        let required = guards.find(|(_, configuration)| configuration.is_some() || sources.registers_guard);
        let required = required.map(|(name, _)| name.clone());
        Ok(Self { now, content, stored, configurations, required })
    }

    /// Whether this configuration must trust a CA before its leaf is served. The guard's own configuration is required:
    /// its `failurePolicy` is `Fail`, so that requests fail without a ready replica. The other configurations get the
    /// same bundle at the same time, but the guard does not wait for them.
    pub(super) fn is_required(&self, name: &ConfigurationName) -> bool {
        self.required.as_ref().is_none_or(|required| required == name)
    }

    fn required(&self) -> impl Iterator<Item = &Configuration> {
        let required = self.configurations.iter().filter(|(name, _)| self.is_required(name));
        required.filter_map(|(_, configuration)| configuration.as_ref())
    }

    /// The sets in the Secret.
    pub(super) fn stored_sets(&self) -> impl Iterator<Item = &CertificateSet> {
        self.stored.iter().flat_map(|stored| [Some(&stored.current), stored.next.as_ref()]).flatten()
    }

    /// Whether all required entries trust the CA of this set.
    pub(super) fn trusts(&self, set: &CertificateSet) -> bool {
        let mut bundles = self.required().flat_map(Configuration::ca_bundles);
        bundles.all(|bundle| Bundle::parse(bundle).covers(set.ca()))
    }

    /// Whether no required configuration exists, so that API servers send no requests.
    pub(super) fn is_unregistered(&self) -> bool {
        self.required().next().is_none()
    }
}

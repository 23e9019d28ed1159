//! One observation of the cluster: the time, the Secret and the webhook configurations.

use std::{collections::BTreeMap, sync::Arc};

use kube::Client;
use rustls::crypto::CryptoProvider;
use time::OffsetDateTime;

use crate::{
    certificates::{bundle::Bundle, certificate_set::CertificateSet, stored_sets::StoredSets},
    webhook_configurations::{Configuration, Configurations},
};
use etcd_guard_cli::registration::{ConfigurationName, WebhookGroup, shipped_configurations};
use etcd_guard_kubernetes::{CallError, ManagedSecret, SecretContent, api_server_time};

/// The names of the Secret. The second one is used while the first one is immutable: a Secret that is created again under
/// the same name does not reach nodes with a pod that mounts it, because the kubelet no longer watches an immutable one.
const SECRETS: [&str; 2] = ["etcd-guard-certificates", "etcd-guard-certificates-2"];

/// The objects that the reconciler reads and writes.
pub(super) struct Sources {
    client: Client,
    secrets: [ManagedSecret; 2],
    pub(super) configurations: Configurations,
    names: Vec<ConfigurationName>,
    /// Whether this process applies the guard's own configuration if it does not exist.
    registers_guard: bool,
}

/// The result of one observation.
pub(super) struct Observation {
    /// The time of the API server.
    pub(super) now: OffsetDateTime,
    /// The Secret that the next write replaces or creates.
    pub(super) target: Target,
    /// The immutable first Secret, if the second one is the target.
    pub(super) immutable: Option<Target>,
    /// The second Secret, after the first one is no longer immutable. Some nodes may still have the old first one.
    pub(super) copy: Option<Target>,
    /// The stored sets; `None` if no Secret holds a usable set.
    pub(super) stored: Option<StoredSets>,
    /// All known configurations that could be read. The value is `None` if the configuration does not exist.
    pub(super) configurations: Vec<(ConfigurationName, Option<Configuration>)>,
    /// The other configurations, with the cause why they could not be read.
    pub(super) unread: BTreeMap<ConfigurationName, String>,
    /// The one required configuration; `None` if all are required. See [`Self::is_required`].
    required: Option<ConfigurationName>,
}

/// A Secret as it was read.
pub(super) struct Target {
    pub(super) secret: ManagedSecret,
    pub(super) content: SecretContent,
}

// === impl Target ===

impl Target {
    async fn read(secret: &ManagedSecret) -> Result<Self, CallError> {
        Ok(Self { secret: secret.clone(), content: secret.read().await? })
    }

    fn stored_sets(&self, provider: &Arc<CryptoProvider>) -> Option<StoredSets> {
        match StoredSets::from_data(&self.content.data, provider) {
            Ok(stored) => Some(stored),
            Err(error) => {
                if self.content.exists() {
                    let secret = self.secret.name();
                    tracing::warn!(%error, secret, "the Secret holds no usable certificate");
                }
                None
            }
        }
    }
}

// === impl Sources ===

impl Sources {
    pub(super) fn new(client: &Client, namespace: &str, registers_guard: bool) -> Self {
        Self {
            client: client.clone(),
            secrets: SECRETS.map(|name| ManagedSecret::new(client.clone(), namespace, name)),
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
        let [first, second] = &sources.secrets;
        let first = Target::read(first).await?;
        let (target, immutable, copy) = if first.content.is_immutable() {
            (Target::read(second).await?, Some(first), None)
        } else {
            let second = Target::read(second).await.ok();
            let is_in_use = |second: &Target| second.content.exists() && !second.content.is_immutable();
            (first, None, second.filter(is_in_use))
        };
        let stored = target.stored_sets(provider);
        let stored = stored.or_else(|| immutable.as_ref().and_then(|first| first.stored_sets(provider)));
        let (mut configurations, mut unread) = (Vec::new(), BTreeMap::new());
        for name in &sources.names {
            match sources.configurations.read(name).await {
                Ok(configuration) => configurations.push((name.clone(), configuration)),
                Err(error) if WebhookGroup::Guard.is_named(name) => return Err(error),
                Err(error) => {
                    unread.insert(name.clone(), error.to_string());
                }
            }
        }
        let mut guards = configurations.iter().filter(|(name, _)| WebhookGroup::Guard.is_named(name));
        let required = guards.find(|(_, configuration)| configuration.is_some() || sources.registers_guard);
        let required = required.map(|(name, _)| name.clone());
        Ok(Self { now, target, immutable, copy, stored, configurations, unread, required })
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
        self.stored.iter().flat_map(StoredSets::iter)
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

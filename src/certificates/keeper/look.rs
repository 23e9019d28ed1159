//! One look at the cluster: the time, the Secret, and the configurations. What follows from it is not known here.

use std::sync::Arc;

use kube::Client;
use rustls::crypto::CryptoProvider;
use time::OffsetDateTime;

use crate::{
    certificates::{Generation, bundle::Bundle, own_configurations, stored::Stored},
    k8s::{
        CallError, Content, OwnSecret, apiserver_time,
        webhooks::{Configuration, ConfigurationName, Configurations},
    },
};

/// The Secret that all replicas share.
pub(super) const SECRET: &str = "etcd-guard-certificates";

/// Where one looks, and what is written there.
pub(super) struct Sources {
    client: Client,
    pub(super) secret: OwnSecret,
    pub(super) configurations: Configurations,
    names: Vec<ConfigurationName>,
}

/// What one look brought.
pub(super) struct Look {
    /// The apiserver's time.
    pub(super) now: OffsetDateTime,
    /// The Secret as it is, for whoever replaces it.
    pub(super) content: Content,
    /// What it holds, if that is of use.
    pub(super) stored: Option<Stored>,
    /// All configurations that are known by name, there or not.
    pub(super) configurations: Vec<(ConfigurationName, Option<Configuration>)>,
}

// === impl Sources ===

impl Sources {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            client: client.clone(),
            secret: OwnSecret::new(client.clone(), namespace, SECRET),
            configurations: Configurations::new(client.clone()),
            names: own_configurations(),
        }
    }
}

// === impl Look ===

impl Look {
    pub(super) async fn take(sources: &Sources, provider: &Arc<CryptoProvider>) -> Result<Self, CallError> {
        let now = apiserver_time(&sources.client).await?;
        let content = sources.secret.read().await?;
        let stored = match Stored::read(&content.data, provider) {
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
            configurations.push((name.clone(), sources.configurations.read(name).await?));
        }
        Ok(Self { now, content, stored, configurations })
    }

    /// The generations of the Secret.
    pub(super) fn generations(&self) -> impl Iterator<Item = &Generation> {
        self.stored.iter().flat_map(|it| [Some(&it.current), it.next.as_ref()]).flatten()
    }

    /// Whether all entries of all configurations trust this generation.
    pub(super) fn trusts(&self, generation: &Generation) -> bool {
        let mut bundles =
            self.configurations.iter().filter_map(|(_, it)| it.as_ref()).flat_map(Configuration::bundles);
        bundles.all(|bundle| Bundle::read(bundle).covers(generation.ca()))
    }

    /// Whether no configuration leads here.
    pub(super) fn nobody_asks(&self) -> bool {
        self.configurations.iter().all(|(_, configuration)| configuration.is_none())
    }
}

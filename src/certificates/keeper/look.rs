//! One look at the cluster: the time, the Secret, and the configurations. What follows from it is not known here.

use std::sync::Arc;

use kube::Client;
use rustls::crypto::CryptoProvider;
use time::OffsetDateTime;

use crate::{
    certificates::{Generation, Part, bundle::Bundle, own_configurations, stored::Stored},
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
    /// Whether the guard's own configuration is applied by this process where it is not.
    registers_guard: bool,
}

/// What one look brought.
pub(super) struct Look {
    /// The apiserver's time.
    pub(super) now: OffsetDateTime,
    /// The Secret as it is, for whoever replaces it.
    pub(super) content: Content,
    /// What it holds, if that is of use.
    pub(super) stored: Option<Stored>,
    /// All configurations that are known by name and could be read, there or not.
    pub(super) configurations: Vec<(ConfigurationName, Option<Configuration>)>,
    /// The one that what is served depends on; `None` if it is each of them.
    decisive: Option<ConfigurationName>,
}

// === impl Sources ===

impl Sources {
    pub(super) fn new(client: &Client, namespace: &str, registers_guard: bool) -> Self {
        Self {
            client: client.clone(),
            secret: OwnSecret::new(client.clone(), namespace, SECRET),
            configurations: Configurations::new(client.clone()),
            names: own_configurations(),
            registers_guard,
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
            match sources.configurations.read(name).await {
                Ok(configuration) => configurations.push((name.clone(), configuration)),
                Err(error) if Part::Guard.is_named(name) => return Err(error),
                Err(error) => tracing::warn!(%error, "this part is left alone"),
            }
        }
        let mut guards = configurations.iter().filter(|(name, _)| Part::Guard.is_named(name));
        let decisive = guards.find(|(_, there)| there.is_some() || sources.registers_guard);
        let decisive = decisive.map(|(name, _)| name.clone());
        Ok(Self { now, content, stored, configurations, decisive })
    }

    /// Whether what is served waits until this configuration trusts it. The guard's own is `Fail`, and calls for it are
    /// lost without a replica that is ready. Those of the other parts are passed by: they get the same bundle at the same
    /// time, and if one cannot get it, the guard does not wait for it.
    pub(super) fn is_decisive(&self, name: &ConfigurationName) -> bool {
        self.decisive.as_ref().is_none_or(|it| it == name)
    }

    fn decisive(&self) -> impl Iterator<Item = &Configuration> {
        let decisive = self.configurations.iter().filter(|(name, _)| self.is_decisive(name));
        decisive.filter_map(|(_, it)| it.as_ref())
    }

    /// The generations of the Secret.
    pub(super) fn generations(&self) -> impl Iterator<Item = &Generation> {
        self.stored.iter().flat_map(|it| [Some(&it.current), it.next.as_ref()]).flatten()
    }

    /// Whether all entries trust this generation.
    pub(super) fn trusts(&self, generation: &Generation) -> bool {
        let mut bundles = self.decisive().flat_map(Configuration::bundles);
        bundles.all(|bundle| Bundle::read(bundle).covers(generation.ca()))
    }

    /// Whether no configuration leads here.
    pub(super) fn nobody_asks(&self) -> bool {
        self.decisive().next().is_none()
    }
}

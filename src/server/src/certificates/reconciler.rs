//! Observes the Secret and the webhook configurations, and carries out the steps of the plan.

mod observation;
mod reporter;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::Client;
use rustls::crypto::CryptoProvider;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use self::{
    observation::{Observation, Sources, Target},
    reporter::Reporter,
};
use super::{
    bundle::Bundle,
    certificate_set::{CertificateSet, CertificateSetError},
    plan::{self, Served, SetState, State, Step, Trust, next_step},
    server_probe::ServerAddress,
    stored_sets::StoredSets,
};
use crate::{Readiness, tls::ServedCertificate, webhook_configurations::Configuration};
use etcd_guard_cli::registration::{ConfigurationName, Registration, WebhookGroup};
use etcd_guard_kubernetes::CallError;

/// Time for all API servers to observe a changed configuration. They watch it and usually need milliseconds.
const PROPAGATION_TIME: Duration = Duration::from_secs(3);

/// Pause after a failed step, and after a conflict with another process. It doubles with each failure up to the maximum,
/// which is short enough for a server that waits for its first certificate.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Bounds of the pause between two observations while nothing changes. Within them it is 1/20 of the lifetime.
const MAX_IDLE_INTERVAL: Duration = Duration::from_secs(10);
const MIN_IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// The settings of self-managed certificates.
#[derive(Clone, Debug)]
pub(crate) struct CertificateSettings {
    /// The namespace of the guard.
    pub namespace: String,
    /// The DNS names and IP addresses of the server.
    pub names: Vec<String>,
    /// The lifetime of a certificate set. It is renewed when a third is left.
    pub lifetime: Duration,
    /// The webhook configurations to apply; `None` if they are applied by other means.
    pub registration: Option<Registration>,
    /// The servers in other processes. They must serve before a configuration is created, because the API server
    /// rejects requests that it cannot send. `None` if the server is part of this process.
    pub server: Option<ServerAddress>,
}

/// Reconciles the Secret and the webhook configurations with the desired certificates.
pub(crate) struct CertificateReconciler {
    sources: Sources,
    settings: CertificateSettings,
    provider: Arc<CryptoProvider>,
    /// The server of this process; `None` if other processes mount the Secret.
    server: Option<ServedCertificate>,
    readiness: Readiness,
    /// The set that the server of this process uses, or that servers receive with the Secret.
    served: Option<CertificateSet>,
    /// The time since which each CA has been in all required entries without interruption, by the PEM of the CA.
    trusted_since: BTreeMap<String, Instant>,
    /// The configurations that this process still has to apply once.
    unregistered: Vec<ConfigurationName>,
    /// The cause why no configuration is created yet: no server answers.
    server_failure: Option<String>,
    reporter: Reporter,
}

/// A required change of a configuration.
struct Change<'a> {
    name: &'a ConfigurationName,
    /// The existing configuration; `None` if it does not exist.
    configuration: Option<&'a Configuration>,
    /// The `caBundle` for all entries.
    bundle: String,
}

/// The result of writing a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Complete,
    /// A further write is required after the next observation.
    Incomplete,
}

/// The reason why a step failed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    CertificateSet(#[from] CertificateSetError),
}

// === impl CertificateReconciler ===

impl CertificateReconciler {
    /// Creates a reconciler for servers that mount the Secret. Requires a runtime, for the task that writes Events.
    pub(crate) fn new(client: &Client, settings: CertificateSettings, provider: Arc<CryptoProvider>) -> Self {
        let registration = settings.registration.as_ref();
        let registers_guard =
            registration.is_some_and(|registration| registration.groups.contains(&WebhookGroup::Guard));
        Self {
            sources: Sources::new(client, &settings.namespace, registers_guard),
            unregistered: settings.registration.iter().flat_map(Registration::names).collect(),
            server_failure: None,
            reporter: Reporter::new(client),
            settings,
            provider,
            server: None,
            readiness: Readiness::default(),
            served: None,
            trusted_since: BTreeMap::new(),
        }
    }

    /// Passes certificates to the server of this process, and reports to `readiness` whether they are trusted.
    pub(crate) fn with_server(self, server: ServedCertificate, readiness: Readiness) -> Self {
        Self { server: Some(server), readiness, ..self }
    }

    /// Reconciles until the server of this process stops, or without an end. A failed step is logged and retried; the
    /// served certificate stays.
    pub(crate) async fn run(mut self) {
        let idle_interval = (self.settings.lifetime / 20).clamp(MIN_IDLE_INTERVAL, MAX_IDLE_INTERVAL);
        let mut retry_interval = RETRY_INTERVAL;
        while !self.readiness.is_stopping() {
            let pause = match self.reconcile().await {
                Err(StepError::Call(error @ CallError::Conflict { .. })) => {
                    tracing::debug!(%error, "conflict with another process");
                    RETRY_INTERVAL
                }
                Err(error) => {
                    self.reporter.report_failure(&error);
                    let pause = retry_interval;
                    retry_interval = (retry_interval * 2).min(MAX_RETRY_INTERVAL);
                    pause
                }
                Ok(step) => {
                    retry_interval = RETRY_INTERVAL;
                    self.reporter.clear_failure();
                    match step {
                        Step::Idle if self.server_failure.is_none() => idle_interval,
                        Step::Idle | Step::AwaitPropagation => MIN_IDLE_INTERVAL,
                        _ => Duration::ZERO,
                    }
                }
            };
            sleep(pause).await;
        }
    }

    /// Observes once and does one step. The configurations that are not required get their bundles before the step, so
    /// that they also trust the set that is served after it.
    async fn reconcile(&mut self) -> Result<Step, StepError> {
        let observation = Observation::read(&self.sources, &self.provider).await?;
        self.record_trust(&observation);
        self.reporter.report_immutable_secret(&observation);
        self.probe_server(&observation).await;
        let step = next_step(&self.state(&observation));
        self.report_readiness(&observation);
        self.publish_optional(&observation).await;
        self.perform(step, &observation).await?;
        self.update_copy(&observation).await?;
        Ok(step)
    }

    /// Records since when each CA is trusted by all required entries.
    fn record_trust(&mut self, observation: &Observation) {
        let known = observation.stored_sets().chain(self.served.as_ref());
        let trusted: Vec<String> =
            known.filter(|set| observation.trusts(set)).map(|set| set.ca().to_owned()).collect();
        self.trusted_since.retain(|ca, _| trusted.contains(ca));
        for ca in trusted {
            self.trusted_since.entry(ca).or_insert_with(Instant::now);
        }
    }

    /// Probes the servers in other processes while a configuration that this process registers does not exist.
    async fn probe_server(&mut self, observation: &Observation) {
        let is_absent = |(name, configuration): &(ConfigurationName, Option<Configuration>)| {
            configuration.is_none() && self.registers(name)
        };
        let failure = match &self.settings.server {
            Some(address) if observation.configurations.iter().any(is_absent) => {
                let probe = match &self.served {
                    Some(set) => address.probe(set, observation.now, &self.provider).await,
                    None => Err(String::from("no certificate is stored yet")),
                };
                probe.err().map(|cause| format!("{address}: {cause}"))
            }
            _ => None,
        };
        if let Some(cause) = failure.as_ref().filter(|_| failure != self.server_failure) {
            tracing::info!(%cause, "the webhooks are registered after a server answers");
        }
        self.server_failure = failure;
    }

    fn state(&self, observation: &Observation) -> State {
        let stored = observation.stored.as_ref().map(|stored| plan::Stored {
            current: stored.current.as_ref().map(|current| self.set_state(current, observation)),
            next: stored.next.as_ref().map(|next| self.set_state(next, observation)),
        });
        let served = match &self.served {
            None => Served::Nothing,
            Some(served) if self.is_valid(served, observation.now) => Served::Valid,
            Some(_) => Served::Invalid,
        };
        let must_publish =
            self.required_changes(observation).any(|change| observation.is_required(change.name));
        State { stored, served, must_publish }
    }

    fn set_state(&self, set: &CertificateSet, observation: &Observation) -> SetState {
        let trust = match self.trusted_since.get(set.ca()) {
            _ if observation.is_unregistered() => Trust::Propagated,
            None => Trust::Missing,
            Some(since) if since.elapsed() < PROPAGATION_TIME => Trust::Propagating,
            Some(_) => Trust::Propagated,
        };
        SetState {
            is_valid: self.is_valid(set, observation.now),
            renewal_due: set.is_renewal_due(observation.now),
            trust,
            is_served: self.served.as_ref() == Some(set),
        }
    }

    fn is_valid(&self, set: &CertificateSet, now: OffsetDateTime) -> bool {
        set.verify(&self.settings.names, now, &self.provider).is_ok()
    }

    /// The configurations whose bundles must change, or that must be applied. A bundle never becomes empty: if all its
    /// certificates have expired and no set is stored, it stays.
    fn required_changes<'a>(&'a self, observation: &'a Observation) -> impl Iterator<Item = Change<'a>> {
        observation.configurations.iter().filter_map(|(name, configuration)| {
            let sets: Vec<&CertificateSet> = observation.stored_sets().chain(self.served.as_ref()).collect();
            let complete = |bundle: Bundle| {
                let bundle = sets.iter().fold(bundle, |bundle, set| bundle.with(set.ca()));
                let bundle = bundle.without_expired(observation.now);
                (!bundle.is_empty()).then(|| bundle.to_base64())
            };
            match configuration {
                // A deleted configuration is applied again if this process registers it.
                None if self.registers(name) && self.server_failure.is_none() => {
                    Some(Change { name, configuration: None, bundle: complete(Bundle::default())? })
                }
                None => None,
                Some(configuration) => {
                    let bundles = configuration.ca_bundles();
                    // All entries get the same bundle, with every CA that any of them trusts already.
                    let union =
                        bundles.iter().fold(Bundle::default(), |all, bundle| all.join(Bundle::parse(bundle)));
                    let bundle = complete(union)?;
                    let is_up_to_date = bundles.iter().all(|existing| *existing == bundle)
                        && !self.unregistered.contains(name);
                    (!is_up_to_date).then_some(Change { name, configuration: Some(configuration), bundle })
                }
            }
        })
    }

    fn registers(&self, name: &ConfigurationName) -> bool {
        self.settings.registration.iter().flat_map(Registration::names).any(|registered| registered == *name)
    }

    fn report_readiness(&self, observation: &Observation) {
        let trusted = self.served.as_ref().is_some_and(|served| {
            self.is_valid(served, observation.now)
                && !observation.is_unregistered()
                && observation.trusts(served)
        });
        self.readiness.set_certificate_trusted(trusted);
    }

    async fn perform(&mut self, step: Step, observation: &Observation) -> Result<(), StepError> {
        match (step, &observation.stored) {
            (Step::AwaitPropagation | Step::Idle, _) => {}
            (Step::Publish, _) => self.publish_required(observation).await?,
            (Step::Serve, Some(StoredSets { current: Some(current), .. })) => self.serve(current),
            (Step::Promote, Some(StoredSets { next: Some(next), .. })) => {
                let promoted = StoredSets { current: Some(next.clone()), next: None };
                self.store(&observation.target, &promoted, "next certificate promoted").await?;
            }
            (Step::Renew, Some(stored)) => {
                let names = self.names_of_all_replicas(stored, observation.now);
                let next = Some(self.generate(&names, observation.now)?);
                let renewed = StoredSets { current: stored.current.clone(), next };
                self.store(&observation.target, &renewed, "next certificate generated").await?;
            }
            (Step::Restore, _) if self.served.is_some() => {
                let restored = StoredSets { current: self.served.clone(), next: None };
                self.store(&observation.target, &restored, "lost Secret restored").await?;
            }
            (Step::Create | Step::Restore | Step::Serve | Step::Promote | Step::Renew, _) => {
                let first = self.generate(&self.settings.names, observation.now)?;
                let sets = StoredSets { current: None, next: Some(first) };
                self.store(&observation.target, &sets, "first certificate generated").await?;
            }
        }
        Ok(())
    }

    /// The names of this replica and those of the stored sets that are not due for renewal. Such names belong to other
    /// replicas, which would renew the certificate in turn if their names were missing.
    fn names_of_all_replicas(&self, stored: &StoredSets, now: OffsetDateTime) -> Vec<String> {
        let mut names = self.settings.names.clone();
        for name in stored.iter().filter(|set| !set.is_renewal_due(now)).flat_map(CertificateSet::names) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn generate(&self, names: &[String], now: OffsetDateTime) -> Result<CertificateSet, CertificateSetError> {
        CertificateSet::generate(names, now, self.settings.lifetime, &self.provider)
    }

    /// Writes the Secret and logs `event`.
    async fn store(&self, target: &Target, sets: &StoredSets, event: &str) -> Result<(), StepError> {
        target.secret.write(&target.content, sets.to_data()).await?;
        tracing::info!(secret = target.secret.name(), "{event}");
        Ok(())
    }

    /// Copies the stored sets to the second Secret, if it is in use.
    async fn update_copy(&self, observation: &Observation) -> Result<(), StepError> {
        let (Some(copy), Some(stored)) = (&observation.copy, &observation.stored) else { return Ok(()) };
        if copy.content.data == stored.to_data() {
            return Ok(());
        }
        self.store(copy, stored, "copy of the certificates updated").await
    }

    fn serve(&mut self, set: &CertificateSet) {
        self.served = Some(set.clone());
        let expiry = set.pair().expiry();
        if let Some(server) = &self.server {
            server.replace(set.pair().clone());
            tracing::info!(expiry, "serving a new certificate");
        } else {
            tracing::info!(expiry, "the certificate is trusted, and servers receive it with the Secret");
        }
    }

    /// Writes the required configurations. A failure is returned.
    async fn publish_required(&mut self, observation: &Observation) -> Result<(), CallError> {
        let mut done = Vec::new();
        let changes = self.required_changes(observation);
        for change in changes.filter(|change| observation.is_required(change.name)) {
            if self.write(&change).await? == Progress::Complete {
                done.push(change.name.clone());
            }
        }
        self.unregistered.retain(|name| !done.contains(name));
        Ok(())
    }

    /// Writes the other configurations. A failure is reported once, and the write is retried after the next observation.
    async fn publish_optional(&mut self, observation: &Observation) {
        let (mut done, mut failures) = (Vec::new(), observation.unread.clone());
        let changes = self.required_changes(observation);
        for change in changes.filter(|change| !observation.is_required(change.name)) {
            match self.write(&change).await {
                Ok(Progress::Complete) => done.push(change.name.clone()),
                Ok(Progress::Incomplete) => {}
                Err(error @ CallError::Conflict { .. }) => {
                    tracing::debug!(%error, "conflict with another replica");
                }
                Err(error) => {
                    failures.insert(change.name.clone(), error.to_string());
                }
            }
        }
        self.reporter.report_configurations(failures);
        self.unregistered.retain(|name| !done.contains(name));
    }

    /// Writes one change. If the change requires two calls, only the first one is made; the next observation shows the
    /// rest.
    async fn write(&self, change: &Change<'_>) -> Result<Progress, CallError> {
        // The configurations may be deleted when this process stops. A later write would create them again.
        if self.readiness.is_stopping() {
            return Ok(Progress::Incomplete);
        }
        let Change { name, configuration, bundle } = change;
        let configurations = &self.sources.configurations;
        let applies = self.unregistered.contains(name) || configuration.is_none();
        let version = configuration.and_then(Configuration::version);
        let registration = self.settings.registration.as_ref().filter(|_| applies);
        if let Some(object) = registration.and_then(|registration| registration.object(name, bundle, version))
        {
            // An entry that is no longer shipped must be removed first. Apply does not own the bundles, so that it
            // would leave an entry with only a name and a bundle, which API servers reject.
            if let Some(rest) = configuration.and_then(|existing| existing.without_obsolete_entries(&object))
            {
                configurations.replace(&rest).await?;
                tracing::info!(configuration = %name, "entries of another release removed");
                return Ok(Progress::Incomplete);
            }
            configurations.apply(name, &object).await?;
            tracing::info!(configuration = %name, "applied");
        } else if let Some(configuration) = configuration {
            configurations.replace(&(*configuration).clone().with_ca_bundle(bundle)).await?;
            tracing::info!(configuration = %name, "caBundle written");
        }
        Ok(Progress::Complete)
    }
}

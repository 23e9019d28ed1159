//! Looks at Secret and configurations, and does what the plan says.

mod look;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::Client;
use rustls::crypto::CryptoProvider;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use self::look::{Look, Sources};
use super::{
    Generation, GenerationError, Part, Registration,
    bundle::Bundle,
    plan::{self, Facts, Served, Standing, Step, Trust, next_step},
    stored::Stored,
};
use crate::{
    k8s::{
        CallError, Content,
        webhooks::{Configuration, ConfigurationName},
    },
    server::{Readiness, tls::Serving},
};

/// How long every apiserver is given to see a changed configuration. They watch, and usually need milliseconds.
const SETTLE: Duration = Duration::from_secs(3);

/// Pause after a step that failed, and after one that another replica was faster with.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How often it is looked, at most and at least.
const LONGEST_REST: Duration = Duration::from_secs(10);
const SHORTEST_REST: Duration = Duration::from_secs(1);

/// What the owner of the server decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The guard's own namespace.
    pub namespace: String,
    /// Names and addresses that the server is reached by.
    pub names: Vec<String>,
    /// How long a generation lives; it is renewed when a third of that is left.
    pub life: Duration,
    /// Whether, and how, the server applies its own configurations.
    pub registration: Option<Registration>,
}

/// Keeps one replica's certificate.
pub struct Keeper {
    sources: Sources,
    settings: Settings,
    provider: Arc<CryptoProvider>,
    serving: Serving,
    readiness: Readiness,
    served: Option<Generation>,
    /// Since when each CA has been seen in all entries that matter without a break.
    trusted_since: BTreeMap<String, Instant>,
    /// Those whose shipped form has not been applied by this process yet.
    unregistered: Vec<ConfigurationName>,
}

/// What is to be written of a configuration.
struct Change<'a> {
    name: &'a ConfigurationName,
    /// As it is; `None` where it is not.
    configuration: Option<&'a Configuration>,
    /// The `caBundle` for all of its entries.
    bundle: String,
}

/// How far a change got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Wholly,
    Partly,
}

/// A step that could not be done.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Generation(#[from] GenerationError),
}

// === impl Keeper ===

impl Keeper {
    /// A keeper that shows what it has through `serving`, and says through `readiness` when that is trusted.
    #[must_use]
    pub fn new(
        client: &Client,
        settings: Settings,
        provider: Arc<CryptoProvider>,
        serving: Serving,
        readiness: Readiness,
    ) -> Self {
        let registers_guard =
            settings.registration.as_ref().is_some_and(|it| it.parts.contains(&Part::Guard));
        Self {
            sources: Sources::new(client, &settings.namespace, registers_guard),
            unregistered: settings.registration.iter().flat_map(Registration::names).collect(),
            settings,
            provider,
            serving,
            readiness,
            served: None,
            trusted_since: BTreeMap::new(),
        }
    }

    /// Keeps house until the server is told to stop. Whatever fails is told and tried again; what is served stays.
    pub async fn keep(mut self) {
        let rest = (self.settings.life / 20).clamp(SHORTEST_REST, LONGEST_REST);
        while !self.readiness.is_stopping() {
            let pause = match self.turn().await {
                Ok(Step::Rest) => rest,
                Ok(Step::Settle) => SHORTEST_REST,
                Ok(_) => Duration::ZERO,
                Err(StepError::Call(error @ CallError::Conflict { .. })) => {
                    tracing::debug!(%error, "another replica was faster");
                    RETRY_PAUSE
                }
                Err(error) => {
                    tracing::warn!(%error, "keeping the certificate failed, the old state stays");
                    RETRY_PAUSE
                }
            };
            sleep(pause).await;
        }
    }

    /// One look and one step. The configurations that are not waited for get their bundles beside it, and before it: what
    /// is served after the step they should know as well.
    async fn turn(&mut self) -> Result<Step, StepError> {
        let look = Look::take(&self.sources, &self.provider).await?;
        self.note_trust(&look);
        let step = next_step(&self.facts(&look));
        self.report_readiness(&look);
        self.publish_others(&look).await;
        self.take(step, look).await?;
        Ok(step)
    }

    /// Remembers since when each CA is trusted by all entries that matter.
    fn note_trust(&mut self, look: &Look) {
        let known = look.generations().chain(self.served.as_ref());
        let trusted: Vec<String> = known.filter(|it| look.trusts(it)).map(|it| it.ca().to_owned()).collect();
        self.trusted_since.retain(|ca, _| trusted.contains(ca));
        for ca in trusted {
            self.trusted_since.entry(ca).or_insert_with(Instant::now);
        }
    }

    fn facts(&self, look: &Look) -> Facts {
        let stored = look.stored.as_ref().map(|stored| plan::Stored {
            current: self.standing(&stored.current, look),
            next: stored.next.as_ref().map(|next| self.standing(next, look)),
        });
        let served = match &self.served {
            None => Served::Nothing,
            Some(served) if self.is_fit(served, look.now) => Served::Fit,
            Some(_) => Served::Unfit,
        };
        let must_publish = self.to_publish(look).any(|change| look.is_decisive(change.name));
        Facts { stored, served, must_publish }
    }

    fn standing(&self, generation: &Generation, look: &Look) -> Standing {
        let trust = match self.trusted_since.get(generation.ca()) {
            _ if look.nobody_asks() => Trust::Settled,
            None => Trust::Lacking,
            Some(since) if since.elapsed() < SETTLE => Trust::Fresh,
            Some(_) => Trust::Settled,
        };
        Standing {
            fit: self.is_fit(generation, look.now),
            due: generation.is_due(look.now),
            trust,
            served: self.served.as_ref() == Some(generation),
        }
    }

    fn is_fit(&self, generation: &Generation, now: OffsetDateTime) -> bool {
        generation.verify(&self.settings.names, now, &self.provider).is_ok()
    }

    /// Configurations whose bundles are not as they should be, or that are to be applied.
    fn to_publish<'a>(&'a self, look: &'a Look) -> impl Iterator<Item = Change<'a>> {
        look.configurations.iter().filter_map(|(name, configuration)| {
            let wanted: Vec<&Generation> = look.generations().chain(self.served.as_ref()).collect();
            let write = |bundle: Bundle| {
                let bundle = wanted.iter().fold(bundle, |bundle, it| bundle.with(it.ca()));
                bundle.without_expired(look.now).write()
            };
            match configuration {
                // Whose configuration was taken away applies it again, if it is to apply it at all.
                None => self.registers(name).then(|| Change {
                    name,
                    configuration: None,
                    bundle: write(Bundle::default()),
                }),
                Some(configuration) => {
                    let bundles = configuration.bundles();
                    // One bundle for all entries: what any of them trusts already stays.
                    let all = bundles.iter().fold(Bundle::default(), |all, it| all.join(Bundle::read(it)));
                    let bundle = write(all);
                    let is_as_wanted =
                        bundles.iter().all(|it| *it == bundle) && !self.unregistered.contains(name);
                    (!is_as_wanted).then_some(Change { name, configuration: Some(configuration), bundle })
                }
            }
        })
    }

    fn registers(&self, name: &ConfigurationName) -> bool {
        self.settings.registration.iter().flat_map(Registration::names).any(|it| it == *name)
    }

    fn report_readiness(&self, look: &Look) {
        let trusted = self.served.as_ref().is_some_and(|served| {
            self.is_fit(served, look.now) && !look.nobody_asks() && look.trusts(served)
        });
        self.readiness.certificate_trusted(trusted);
    }

    async fn take(&mut self, step: Step, look: Look) -> Result<(), StepError> {
        match (step, &look.stored) {
            (Step::Settle | Step::Rest, _) => {}
            (Step::Publish, _) => self.publish(&look).await?,
            (Step::Serve, Some(stored)) => self.serve(&stored.current),
            (Step::Promote, Some(Stored { next: Some(next), .. })) => {
                self.store(&look.content, next.clone(), None, "the next certificate is the current one now")
                    .await?;
            }
            (Step::Renew, Some(stored)) => {
                let next = Some(self.make(&self.names_for_all(stored, look.now), look.now)?);
                self.store(&look.content, stored.current.clone(), next, "a next certificate is made").await?;
            }
            (Step::Restore, _) if self.served.is_some() => {
                if let Some(served) = self.served.clone() {
                    self.store(&look.content, served, None, "the lost Secret is written again").await?;
                }
            }
            (Step::Found | Step::Restore | Step::Serve | Step::Promote | Step::Renew, _) => {
                let first = self.make(&self.settings.names, look.now)?;
                self.store(&look.content, first, None, "a first certificate is made").await?;
            }
        }
        Ok(())
    }

    /// This replica's names, and those of what it finds too early to be renewed: another replica is reached by them, and
    /// would take its turn at renewing if they were left out.
    fn names_for_all(&self, stored: &Stored, now: OffsetDateTime) -> Vec<String> {
        let mut names = self.settings.names.clone();
        let others = [Some(&stored.current), stored.next.as_ref()].into_iter().flatten();
        for name in others.filter(|it| !it.is_due(now)).flat_map(Generation::names) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn make(&self, names: &[String], now: OffsetDateTime) -> Result<Generation, GenerationError> {
        Generation::make(names, now, self.settings.life, &self.provider)
    }

    async fn store(
        &self,
        content: &Content,
        current: Generation,
        next: Option<Generation>,
        what: &str,
    ) -> Result<(), StepError> {
        self.sources.secret.write(content, Stored { current, next }.write()).await?;
        tracing::info!(secret = look::SECRET, "{what}");
        Ok(())
    }

    fn serve(&mut self, generation: &Generation) {
        self.serving.replace(generation.pair().clone());
        self.served = Some(generation.clone());
        tracing::info!(expiry = generation.pair().expiry(), "serving a new certificate");
    }

    /// Writes what the next step depends on.
    async fn publish(&mut self, look: &Look) -> Result<(), CallError> {
        let mut done = Vec::new();
        for change in self.to_publish(look).filter(|it| look.is_decisive(it.name)) {
            if self.write(&change).await? == Written::Wholly {
                done.push(change.name.clone());
            }
        }
        self.unregistered.retain(|name| !done.contains(name));
        Ok(())
    }

    /// Writes the rest. What fails is told, and tried again at the next look.
    async fn publish_others(&mut self, look: &Look) {
        let mut done = Vec::new();
        for change in self.to_publish(look).filter(|it| !look.is_decisive(it.name)) {
            match self.write(&change).await {
                Ok(Written::Wholly) => done.push(change.name.clone()),
                Ok(Written::Partly) => {}
                Err(error @ CallError::Conflict { .. }) => tracing::debug!(%error, "somebody was faster"),
                Err(error) => tracing::warn!(%error, "this part goes without the new bundle"),
            }
        }
        self.unregistered.retain(|name| !done.contains(name));
    }

    /// Does one change, or of a change that takes two calls the first: the next look shows what is left.
    async fn write(&self, change: &Change<'_>) -> Result<Written, CallError> {
        // Whoever stops this process may take the configurations away next, and what is written then would come back.
        if self.readiness.is_stopping() {
            return Ok(Written::Partly);
        }
        let Change { name, configuration, bundle } = change;
        let configurations = &self.sources.configurations;
        let applies = self.unregistered.contains(name) || configuration.is_none();
        let version = configuration.and_then(Configuration::version);
        let registration = self.settings.registration.as_ref().filter(|_| applies);
        if let Some(object) = registration.and_then(|it| it.object(name, bundle, version)) {
            // An entry that is no longer shipped would stay as a stump, since bundles are not written by apply: of its
            // name and its bundle, which no apiserver takes.
            if let Some(rest) = configuration.and_then(|it| it.without_former(&object)) {
                configurations.replace(&rest).await?;
                tracing::info!(configuration = %name, "entries of another release are taken out");
                return Ok(Written::Partly);
            }
            configurations.apply(name, &object).await?;
            tracing::info!(configuration = %name, "applied");
        } else if let Some(configuration) = configuration {
            configurations.replace(&(*configuration).clone().with_bundle(bundle)).await?;
            tracing::info!(configuration = %name, "caBundle written");
        }
        Ok(Written::Wholly)
    }
}

//! Reports of conditions that need an administrator, once each.

use std::collections::BTreeMap;

use kube::Client;

use super::observation::{Observation, Target};
use etcd_guard_cli::registration::ConfigurationName;
use etcd_guard_kubernetes::{EventRecord, EventRecorder};

/// The reason code of the Event on an immutable Secret.
const IMMUTABLE: &str = "CertificateSecretImmutable";

/// Writes warnings and Events, and repeats one only if its text changes.
pub(super) struct Reporter {
    events: EventRecorder,
    /// The error of the last step; `None` if it succeeded.
    failure: Option<String>,
    /// The text about an immutable Secret; `None` if there is none.
    immutability: Option<String>,
    /// The errors of the configurations that could not be read or written in the last cycle.
    configurations: BTreeMap<ConfigurationName, String>,
}

// === impl Reporter ===

impl Reporter {
    /// Starts the task that writes Events. Requires a runtime.
    pub(super) fn new(client: &Client) -> Self {
        Self {
            events: EventRecorder::start(client.clone()),
            failure: None,
            immutability: None,
            configurations: BTreeMap::new(),
        }
    }

    /// Reports a failed step.
    pub(super) fn report_failure(&mut self, error: &dyn std::error::Error) {
        let error = error.to_string();
        if self.failure.as_ref() == Some(&error) {
            tracing::debug!(%error, "certificate step failed again");
        } else {
            tracing::warn!(%error, "certificate step failed, it will be retried");
            self.failure = Some(error);
        }
    }

    /// Records that a step succeeded.
    pub(super) fn clear_failure(&mut self) {
        self.failure = None;
    }

    /// Reports the configurations that could not be read or written in this cycle. A configuration that is absent from
    /// `failures` was read, and needed no write or was written.
    pub(super) fn report_configurations(&mut self, failures: BTreeMap<ConfigurationName, String>) {
        for (configuration, error) in &failures {
            if self.configurations.get(configuration) == Some(error) {
                tracing::debug!(%error, %configuration, "configuration not updated again");
            } else {
                tracing::warn!(%error, %configuration, "configuration not updated, it will be retried");
            }
        }
        self.configurations = failures;
    }

    /// Reports an immutable Secret once, with the remedy.
    pub(super) fn report_immutable_secret(&mut self, observation: &Observation) {
        let Some(Target { secret, content }) = &observation.immutable else {
            self.immutability = None;
            return;
        };
        let (name, other) = (secret.name(), observation.target.secret.name());
        let note = if observation.target.content.is_immutable() {
            format!(
                "Secrets {name} and {other} are immutable, so that no renewed certificate can be stored; delete both, and \
                 see EtcdGuardCertificateEnds in docs/alerts.md"
            )
        } else {
            format!("Secret {name} is immutable, so that renewed certificates are stored in Secret {other}")
        };
        if self.immutability.as_ref() != Some(&note) {
            tracing::warn!(secret = name, "{note}");
            self.events.record(EventRecord {
                object: secret.reference(content),
                stateful_set: None,
                is_warning: true,
                reason: IMMUTABLE,
                action: "Renew",
                note: note.clone(),
                documentation: None,
            });
            self.immutability = Some(note);
        }
    }
}

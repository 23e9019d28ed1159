//! Reads the credentials of clusters from the first Secrets that hold them.
//!
//! A message names each Secret that is missing, unreadable or incomplete. No message contains the content of a Secret.

use std::{collections::HashMap, sync::Arc};

use tokio::time::{Instant, timeout_at};

use crate::{
    etcd::{ClientIdentity, MemberError, ProbeResult, User},
    guard::discovery::{
        credential_sources::{CredentialSources, UserSecret},
        etcd_pod::EtcdPod,
    },
    k8s::{LookupError, Secret, SecretReader},
};

/// Reads the credentials of clusters.
pub(in crate::guard) struct CredentialReader {
    secrets: SecretReader,
}

/// The credentials of one cluster.
#[derive(Clone, Default)]
struct ClusterCredentials {
    ca: Option<Arc<[u8]>>,
    identity: Option<ClientIdentity>,
    user: Option<User>,
    /// One message for each credential that is missing.
    problems: Vec<String>,
}

// === impl CredentialReader ===

impl CredentialReader {
    pub(in crate::guard) fn new(secrets: SecretReader) -> Self {
        Self { secrets }
    }

    /// Adds the credentials to the endpoints of a cluster's pods. A Secret that several pods reference is read once.
    pub(in crate::guard) async fn add_to<P>(
        &self,
        namespace: &str,
        pods: &mut [(P, EtcdPod)],
        deadline: Instant,
    ) {
        let mut known: HashMap<CredentialSources, ClusterCredentials> = HashMap::new();
        for (_, pod) in pods {
            let Some(endpoint) = &mut pod.endpoint else { continue };
            let found = match known.get(&pod.credentials) {
                Some(found) => found.clone(),
                None => {
                    let found = match timeout_at(deadline, self.read(namespace, &pod.credentials)).await {
                        Ok(found) => found,
                        Err(_) => ClusterCredentials {
                            problems: vec![String::from("timed out while reading the Secrets")],
                            ..ClusterCredentials::default()
                        },
                    };
                    known.insert(pod.credentials.clone(), found.clone());
                    found
                }
            };
            if let Some(tls) = &mut endpoint.tls {
                tls.ca = found.ca;
                tls.identity = found.identity;
            }
            endpoint.user = found.user;
            pod.problem = Some(found.problems.join("; ")).filter(|problem| !problem.is_empty());
        }
    }

    /// Removes the pod's Secrets from the cache after a member rejected them.
    pub(in crate::guard) fn invalidate(&self, namespace: &str, pod: &EtcdPod) {
        let tls = pod.credentials.tls.iter().map(|source| &source.secret);
        let user = pod.credentials.user.iter().map(|source| &source.secret);
        tls.chain(user).for_each(|secret| self.secrets.invalidate(namespace, secret));
    }

    async fn read(&self, namespace: &str, sources: &CredentialSources) -> ClusterCredentials {
        let mut found = ClusterCredentials::default();
        if !sources.tls.is_empty() {
            self.read_certificates(namespace, sources, &mut found).await;
        }
        if let Some(source) = &sources.user {
            match self.read_user(namespace, source).await {
                Ok(user) => found.user = Some(user),
                Err(problem) => found.problems.push(problem),
            }
        }
        found
    }

    async fn read_certificates(
        &self,
        namespace: &str,
        sources: &CredentialSources,
        found: &mut ClusterCredentials,
    ) {
        let mut failures = Vec::new();
        for source in &sources.tls {
            let secret = match self.secrets.get(namespace, &source.secret).await {
                Ok(secret) => secret,
                Err(error) => {
                    let is_final =
                        matches!(*error, LookupError::NotFound { .. } | LookupError::Forbidden { .. });
                    failures.push(describe_read_error(namespace, &source.secret, &error));
                    if is_final {
                        continue;
                    }
                    // The API server does not respond, so the next read would fail as well.
                    break;
                }
            };
            let pair = source.pair(&secret).and_then(|(certificate, key)| {
                Some(ClientIdentity { certificate: secret.get(certificate)?, key: secret.get(key)? })
            });
            let is_authority = pair.as_ref().is_some_and(|pair| is_authority(&pair.certificate));
            if is_authority {
                failures.push(format!(
                    "Secret {namespace}/{} contains the key of a CA, which is not used as a client certificate",
                    source.secret
                ));
            }
            let pair = pair.filter(|_| !is_authority);
            let ca = source.ca(&secret).and_then(|key| secret.get(key));
            // A CA in the same Secret as the certificate takes precedence.
            let uses_pair = found.identity.is_none() && pair.is_some();
            if ca.is_some() && (uses_pair || found.ca.is_none()) {
                found.ca.clone_from(&ca);
            }
            if uses_pair {
                found.identity.clone_from(&pair);
            }
            if ca.is_none() && pair.is_none() && !is_authority {
                failures.push(format!(
                    "Secret {namespace}/{} contains neither a certificate nor a CA",
                    source.secret
                ));
            }
            if found.ca.is_some() && (found.identity.is_some() || !sources.requires_certificate) {
                return;
            }
        }
        let missing = match (&found.ca, &found.identity) {
            (None, None) => "found neither a CA nor a client certificate",
            (None, Some(_)) => "found no CA",
            _ => "found no client certificate",
        };
        found.problems.push(format!("{missing}: {}", failures.join(", ")));
    }

    async fn read_user(&self, namespace: &str, source: &UserSecret) -> Result<User, String> {
        let read = self.secrets.get(namespace, &source.secret).await;
        let secret: Secret = read.map_err(|error| describe_read_error(namespace, &source.secret, &error))?;
        match source.password(&secret) {
            Some(password) => Ok(User { name: source.user_name(&secret), password: password.into() }),
            None => Err(format!(
                "Secret {namespace}/{} contains no password ({})",
                source.secret,
                source.key_names()
            )),
        }
    }
}

/// Whether a certificate chain (PEM) begins with the certificate of a CA. The key of a CA can sign certificates of any
/// user, and etcd would authenticate its holder as the user with the name of the CA.
fn is_authority(chain: &[u8]) -> bool {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(chain) else { return false };
    pem.parse_x509().is_ok_and(|certificate| certificate.is_ca())
}

fn describe_read_error(namespace: &str, secret: &str, error: &LookupError) -> String {
    match error {
        LookupError::NotFound { .. } => format!("Secret {namespace}/{secret} does not exist"),
        LookupError::Forbidden { .. } => format!(
            "the guard is not allowed to read Secret {namespace}/{secret}: apply Role etcd-guard-secrets in namespace \
             {namespace}"
        ),
        other => other.to_string(),
    }
}

// === impl EtcdPod ===

impl EtcdPod {
    /// Returns the probe result with the pod's problem added to rejected credentials and failed handshakes.
    pub(in crate::guard) fn with_problem(&self, result: ProbeResult) -> ProbeResult {
        let Some(problem) = &self.problem else { return result };
        let add_problem = |cause| match cause {
            MemberError::CredentialsRejected(text) => {
                MemberError::CredentialsRejected(format!("{text}; {problem}"))
            }
            // A handshake without the required certificate fails, so the missing credential is the cause.
            MemberError::Tls(text) => MemberError::CredentialsRejected(format!("TLS: {text}; {problem}")),
            other => other,
        };
        match result {
            ProbeResult::NoStatus { cause } => ProbeResult::NoStatus { cause: add_problem(cause) },
            ProbeResult::StatusOnly { status, cause } => {
                ProbeResult::StatusOnly { status, cause: add_problem(cause) }
            }
            healthy @ ProbeResult::Healthy { .. } => healthy,
        }
    }
}

#[cfg(test)]
mod tests;

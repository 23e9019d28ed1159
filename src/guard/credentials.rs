//! From the names of Secrets to what a connection needs: the first Secrets that can be read and hold it.
//!
//! What cannot be had is told in words, beside the refusal that it leads to; a content never is.

use std::{collections::HashMap, sync::Arc};

use tokio::time::{Instant, timeout_at};

use super::etcd_pod::{EtcdPod, Login, Wanted};
use crate::{
    etcd::{ClientIdentity, User},
    k8s::{LookupError, Secret, Secrets},
};

/// Where the Role that the guard needs is explained.
const DOCUMENTATION: &str = "docs/tls-and-auth.md";

/// Finds the credentials of clusters.
pub(super) struct Credentials {
    secrets: Secrets,
}

/// What was found for one cluster.
#[derive(Clone, Default)]
struct Found {
    ca: Option<Arc<[u8]>>,
    identity: Option<ClientIdentity>,
    user: Option<User>,
    /// What was not, one sentence each.
    gaps: Vec<String>,
}

// === impl Credentials ===

impl Credentials {
    /// Finds them in these Secrets.
    pub(super) fn new(secrets: Secrets) -> Self {
        Self { secrets }
    }

    /// Completes the endpoints of a cluster's pods. Pods of one StatefulSet name the same Secrets, which are read once.
    pub(super) async fn complete<P>(&self, namespace: &str, pods: &mut [(P, EtcdPod)], deadline: Instant) {
        let mut known: HashMap<Wanted, Found> = HashMap::new();
        for (_, pod) in pods {
            let Some(endpoint) = &mut pod.endpoint else { continue };
            let found = match known.get(&pod.wanted) {
                Some(found) => found.clone(),
                None => {
                    let found = match timeout_at(deadline, self.find(namespace, &pod.wanted)).await {
                        Ok(found) => found,
                        Err(_) => Found {
                            gaps: vec![String::from("reading the Secrets took too long")],
                            ..Found::default()
                        },
                    };
                    known.insert(pod.wanted.clone(), found.clone());
                    found
                }
            };
            if let Some(tls) = &mut endpoint.tls {
                tls.ca = found.ca;
                tls.identity = found.identity;
            }
            endpoint.user = found.user;
            pod.gap = Some(found.gaps.join("; ")).filter(|gap| !gap.is_empty());
        }
    }

    /// Makes the next decision read the Secrets anew: these led to a refusal.
    pub(super) fn forget(&self, namespace: &str, pod: &EtcdPod) {
        let tls = pod.wanted.tls.iter().map(|place| &place.secret);
        let login = pod.wanted.login.iter().map(|login| &login.secret);
        tls.chain(login).for_each(|secret| self.secrets.forget(namespace, secret));
    }

    async fn find(&self, namespace: &str, wanted: &Wanted) -> Found {
        let mut found = Found::default();
        if !wanted.tls.is_empty() {
            self.find_certificates(namespace, wanted, &mut found).await;
        }
        if let Some(login) = &wanted.login {
            match self.find_user(namespace, login).await {
                Ok(user) => found.user = Some(user),
                Err(gap) => found.gaps.push(gap),
            }
        }
        found
    }

    async fn find_certificates(&self, namespace: &str, wanted: &Wanted, found: &mut Found) {
        let mut tried = Vec::new();
        for place in &wanted.tls {
            let secret = match self.secrets.get(namespace, &place.secret).await {
                Ok(secret) => secret,
                Err(error) => {
                    let is_final =
                        matches!(*error, LookupError::NotFound { .. } | LookupError::Forbidden { .. });
                    tried.push(in_words(namespace, &place.secret, &error));
                    if is_final {
                        continue;
                    }
                    // The apiserver is slow or gone: the next Secret would fare no better.
                    break;
                }
            };
            let pair = place.pair(&secret).and_then(|(certificate, key)| {
                Some(ClientIdentity { certificate: secret.get(certificate)?, key: secret.get(key)? })
            });
            let ca = place.ca(&secret).and_then(|key| secret.get(key));
            // The CA that lies beside the certificate is the right one, if there is one.
            let takes_pair = found.identity.is_none() && pair.is_some();
            if ca.is_some() && (takes_pair || found.ca.is_none()) {
                found.ca.clone_from(&ca);
            }
            if takes_pair {
                found.identity.clone_from(&pair);
            }
            if ca.is_none() && pair.is_none() {
                tried.push(format!(
                    "Secret {namespace}/{} holds neither a certificate nor a CA",
                    place.secret
                ));
            }
            if found.ca.is_some() && (found.identity.is_some() || !wanted.certificate) {
                return;
            }
        }
        let missing = match (&found.ca, &found.identity) {
            (None, None) => "no CA and no client certificate were found",
            (None, Some(_)) => "no CA was found",
            _ => "no client certificate was found",
        };
        found.gaps.push(format!("{missing}: {}", tried.join(", ")));
    }

    async fn find_user(&self, namespace: &str, login: &Login) -> Result<User, String> {
        let read = self.secrets.get(namespace, &login.secret).await;
        let secret: Secret = read.map_err(|error| in_words(namespace, &login.secret, &error))?;
        match login.password(&secret) {
            Some(password) => Ok(User { name: login.user(&secret), password: password.into() }),
            None => Err(format!("Secret {namespace}/{} holds no password ({})", login.secret, login.keys())),
        }
    }
}

fn in_words(namespace: &str, secret: &str, error: &LookupError) -> String {
    match error {
        LookupError::NotFound { .. } => format!("Secret {namespace}/{secret} does not exist"),
        LookupError::Forbidden { .. } => format!(
            "the guard may not read Secret {namespace}/{secret}: apply Role etcd-guard-secrets in namespace {namespace} \
             ({DOCUMENTATION})"
        ),
        other => other.to_string(),
    }
}

// === impl EtcdPod ===

impl EtcdPod {
    /// A refusal together with what was missing.
    pub(super) fn with_gap(&self, reply: crate::etcd::Reply) -> crate::etcd::Reply {
        use crate::etcd::{Cause, Reply};
        let Some(gap) = &self.gap else { return reply };
        let add = |cause| match cause {
            Cause::CredentialsRejected(why) => Cause::CredentialsRejected(format!("{why}; {gap}")),
            // Without the right certificates there is no handshake: that is a matter of credentials too.
            Cause::Tls(why) => Cause::CredentialsRejected(format!("TLS: {why}; {gap}")),
            other => other,
        };
        match reply {
            Reply::Silent { cause } => Reply::Silent { cause: add(cause) },
            Reply::Answering { status, cause } => Reply::Answering { status, cause: add(cause) },
            serving @ Reply::Serving { .. } => serving,
        }
    }
}

#[cfg(test)]
mod tests;

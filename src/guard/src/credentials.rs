//! Reads the credentials of clusters from the first Secrets that hold them. A CA can also be in a `ConfigMap`.
//!
//! A message names each object that is missing, unreadable or incomplete. No message contains the content of an object.

#[cfg(any(test, feature = "fixtures"))]
pub(crate) mod authority_check;

use std::collections::BTreeMap;

use tokio::time::{Instant, timeout_at};

use etcd_guard_core::{
    discovery::{
        credential_selection::{CertificateSearch, Credentials, Selection},
        credential_sources::{CredentialSources, DataKey, SELF_SIGNED, UserSecret, config_text},
        etcd_pod::EtcdPod,
    },
    escape::{MAX_ERROR_CHARS, to_bounded_line},
    objects::{
        data_object::{DataObject, Secret},
        pod::Pod,
    },
};
use etcd_guard_kubernetes::{LookupError, SecretReader};

/// The reason why the certificate that a member issues itself is not accepted despite the annotation.
const OWN_BESIDE_CA: &str = "etcd issues its own certificate (--auto-tls), which is not accepted beside members with a certificate of a CA: \
                             set --cert-file, --key-file and --trusted-ca-file";

/// Reads the credentials of clusters.
#[derive(Clone)]
pub(crate) struct CredentialReader {
    secrets: SecretReader,
}

/// The credentials of one cluster, and what is missing.
#[derive(Clone, Default)]
struct ClusterCredentials {
    credentials: Credentials,
    /// One message for each credential that is missing.
    problems: Vec<String>,
    /// Whether one of them is missing because the guard may not read an object.
    lacks_role: bool,
}

/// The objects that provide no certificate, as a bounded text.
#[derive(Default)]
struct ReadFailures {
    /// Objects that the guard may not read. One remedy applies to all of them.
    forbidden: Vec<String>,
    /// One message for each other object.
    others: Vec<String>,
}

// === impl CredentialReader ===

impl CredentialReader {
    pub(crate) fn new(secrets: SecretReader) -> Self {
        Self { secrets }
    }

    /// Adds the credentials to the endpoints of a cluster's pods. A Secret that several pods reference is read once.
    pub(crate) async fn add_to<P>(&self, namespace: &str, pods: &mut [(P, EtcdPod)], deadline: Instant) {
        let mut known: BTreeMap<CredentialSources, ClusterCredentials> = BTreeMap::new();
        for (_, pod) in &mut *pods {
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
            found.credentials.apply_to(endpoint);
            pod.lacks_role = found.lacks_role;
            let problems: Vec<String> = pod.problem.take().into_iter().chain(found.problems).collect();
            let problem = to_bounded_line(&problems.join("; "), MAX_ERROR_CHARS);
            pod.problem = Some(problem).filter(|problem| !problem.is_empty());
        }
        reject_own_certificates(pods);
    }

    /// Removes the pod's Secrets from the cache after a member rejected them.
    pub(crate) fn invalidate(&self, namespace: &str, pod: &EtcdPod) {
        let tls = pod.credentials.tls.iter().map(|source| source.object.clone());
        let user = pod.credentials.user.iter().map(|source| DataObject::secret(&source.secret));
        let file = pod.config_file.iter().map(|file| file.object.clone());
        tls.chain(user).chain(file).for_each(|object| self.secrets.invalidate(namespace, &object));
    }

    /// Reads etcd's configuration file or a script, or returns `None` if an optional file does not exist. The error states
    /// the reason in words.
    pub(crate) async fn config_file(
        &self,
        namespace: &str,
        file: &DataKey,
        is_optional: bool,
        deadline: Instant,
    ) -> Result<Option<String>, String> {
        let named = file.object.describe(namespace);
        match timeout_at(deadline, self.secrets.get(namespace, &file.object)).await {
            Ok(Ok(read)) => config_text(&named, &read, &file.key, is_optional),
            Ok(Err(error)) if is_optional && matches!(*error, LookupError::NotFound { .. }) => Ok(None),
            Ok(Err(error)) => Err(describe_read_error(namespace, &file.object, &error)),
            Err(_) => Err(format!("timed out while reading {named}")),
        }
    }

    /// Reads the scripts of preStop hooks that decide whether a deletion removes the member.
    pub(crate) async fn read_stop_scripts(
        &self,
        namespace: &str,
        pod: &Pod,
        member: &mut EtcdPod,
        deadline: Instant,
    ) {
        while let Some(script) = member.unread_stop_script() {
            let content = self.config_file(namespace, script, false, deadline).await;
            member.record_stop_script(pod, content.map(Option::unwrap_or_default));
        }
    }

    async fn read(&self, namespace: &str, sources: &CredentialSources) -> ClusterCredentials {
        let mut found = ClusterCredentials::default();
        if sources.accepts_self_signed {
            found.credentials.accepts_any_certificate = true;
        } else if sources.is_self_signed {
            found.problems.push(String::from(SELF_SIGNED));
        } else if !sources.tls.is_empty() {
            self.read_certificates(namespace, sources, &mut found).await;
        }
        if let Some(source) = &sources.user {
            self.read_user(namespace, source, &mut found).await;
        }
        found
    }

    async fn read_certificates(
        &self,
        namespace: &str,
        sources: &CredentialSources,
        found: &mut ClusterCredentials,
    ) {
        let mut failures = ReadFailures::default();
        let mut search = CertificateSearch::new(sources);
        for source in &sources.tls {
            if !search.needs(source) {
                continue;
            }
            let content = match self.secrets.get(namespace, &source.object).await {
                Ok(content) => content,
                Err(error) => {
                    let is_final =
                        matches!(*error, LookupError::NotFound { .. } | LookupError::Forbidden { .. });
                    failures.add(namespace, &source.object, &error);
                    if is_final {
                        continue;
                    }
                    // The API server does not respond, so the next read would fail as well.
                    break;
                }
            };
            let selection = Selection::new(source, &content);
            search.add(&selection);
            let failure =
                found.credentials.add(&source.object.describe(namespace), source, &content, &selection);
            failures.others.extend(failure);
        }
        if search.is_complete() {
            return;
        }
        found.problems.push(format!("{}: {}", found.credentials.missing(), failures.describe()));
        found.lacks_role = !failures.forbidden.is_empty();
    }

    async fn read_user(&self, namespace: &str, source: &UserSecret, found: &mut ClusterCredentials) {
        let object = DataObject::secret(&source.secret);
        let secret: Secret = match self.secrets.get(namespace, &object).await {
            Ok(secret) => secret,
            Err(error) => {
                found.lacks_role |= matches!(*error, LookupError::Forbidden { .. });
                found.problems.push(describe_read_error(namespace, &object, &error));
                return;
            }
        };
        let problem = found.credentials.add_user(&object.describe(namespace), source, &secret);
        found.problems.extend(problem);
    }
}

// === impl ReadFailures ===

impl ReadFailures {
    /// Adds a failed read. An object can be a source twice.
    fn add(&mut self, namespace: &str, object: &DataObject, error: &LookupError) {
        let (list, text) = match error {
            LookupError::Forbidden { .. } => (&mut self.forbidden, object.describe(namespace)),
            other => (&mut self.others, describe_read_error(namespace, object, other)),
        };
        if !list.contains(&text) {
            list.push(text);
        }
    }

    fn describe(&self) -> String {
        let forbidden = (!self.forbidden.is_empty()).then(|| describe_forbidden(&self.forbidden.join(", ")));
        forbidden.iter().chain(&self.others).map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Requires a certificate of the CA from each pod of a cluster in which another pod uses TLS with a CA, also if that CA
/// could not be read. A pod that issues its own certificate could otherwise replace a member whose identity the CA proves.
fn reject_own_certificates<P>(pods: &mut [(P, EtcdPod)]) {
    let with_ca = pods.iter().filter_map(|(_, pod)| pod.endpoint.as_ref()?.tls.as_ref());
    let with_ca: Vec<_> = with_ca.filter(|tls| !tls.accepts_any_certificate).collect();
    if with_ca.is_empty() {
        return;
    }
    let ca = with_ca.iter().find_map(|tls| tls.ca.clone());
    for (_, pod) in pods {
        let Some(tls) = pod.endpoint.as_mut().and_then(|endpoint| endpoint.tls.as_mut()) else { continue };
        if tls.accepts_any_certificate {
            tls.accepts_any_certificate = false;
            tls.ca.clone_from(&ca);
            pod.problem.get_or_insert_with(|| String::from(OWN_BESIDE_CA));
        }
    }
}

fn describe_read_error(namespace: &str, object: &DataObject, error: &LookupError) -> String {
    let named = object.describe(namespace);
    match error {
        LookupError::NotFound { .. } => format!("{named} does not exist"),
        LookupError::Forbidden { .. } => describe_forbidden(&named),
        other => other.to_string(),
    }
}

fn describe_forbidden(named: &str) -> String {
    format!(
        "the guard is not allowed to read {named}: apply the Role that kubectl etcd-guard inspect --role prints"
    )
}

#[cfg(test)]
mod tests;

//! Names of the Secrets that can hold the credentials of a member's clients: certificate, CA, user and password.
//!
//! The names come from the pod's specification and its annotations; `credentials` reads the Secrets. The order follows
//! docs/tls-and-auth.md: annotations, then Secrets for clients, then the Secrets of the server itself.

use std::collections::BTreeMap;

use crate::{
    etcd::Endpoint,
    guard::{
        discovery::member_settings::MemberSettings,
        model::annotations::{AUTH_SECRET, CLIENT_TLS_SECRET},
    },
    k8s::{
        Secret,
        pod::{Container, Pod, SecretVolume, Volume, VolumeMount},
    },
};

/// Labels that carry the name of the cluster or of its Helm release.
const NAME_LABELS: [&str; 3] = ["app.kubernetes.io/instance", "release", "app"];

/// Keys of client certificates and of their private keys in Secrets of common tools.
const CLIENT_KEYS: [(&str, &str); 9] = [
    ("tls.crt", "tls.key"),
    ("client.crt", "client.key"),
    ("client.pem", "client-key.pem"),
    ("etcd-client.crt", "etcd-client.key"),
    ("apiserver-etcd-client.crt", "apiserver-etcd-client.key"),
    ("healthcheck-client.crt", "healthcheck-client.key"),
    ("etcd-healthcheck-client.crt", "etcd-healthcheck-client.key"),
    ("cert.pem", "key.pem"),
    ("root.pem", "root-key.pem"),
];

/// Keys of CA certificates in Secrets of common tools.
const CA_KEYS: [&str; 6] = ["ca.crt", "ca.pem", "etcd-ca.crt", "ca-bundle.crt", "bundle.crt", "ca-cert.pem"];

/// Keys of passwords in Secrets of common tools.
const PASSWORD_KEYS: [&str; 3] = ["password", "etcd-root-password", "root-password"];

/// The name of etcd's superuser.
const ROOT: &str = "root";

/// The Secrets that can hold the credentials for a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::guard) struct CredentialSources {
    /// Secrets that can hold a client certificate and the CA, in order of preference; empty without TLS.
    pub tls: Vec<TlsSecret>,
    /// Whether the members require a client certificate, as far as the pod's specification shows it.
    pub requires_certificate: bool,
    /// The Secret with the user and the password.
    pub user: Option<UserSecret>,
}

/// A Secret that can hold certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::guard) struct TlsSecret {
    /// Name of the Secret.
    pub secret: String,
    /// Keys of the files that the member's flags name.
    ca: Option<String>,
    pair: Option<(String, String)>,
}

/// A Secret that holds a password.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::guard) struct UserSecret {
    /// Name of the Secret.
    pub secret: String,
    /// Key of the password, if the pod's specification names it.
    key: Option<String>,
}

/// A Secret that is mounted into a container.
struct MountedSecret<'a> {
    mount: &'a VolumeMount,
    secret: &'a SecretVolume,
}

/// Returns the Secrets that the annotations name, or those that the pod and common conventions suggest.
pub(in crate::guard) fn read(
    pod: &Pod,
    container: &Container,
    settings: &MemberSettings,
    annotations: &BTreeMap<String, String>,
    endpoint: Option<&Endpoint>,
) -> CredentialSources {
    let is_tls = endpoint.is_some_and(|endpoint| endpoint.tls.is_some());
    let tls = match annotations.get(CLIENT_TLS_SECRET) {
        _ if !is_tls => Vec::new(),
        Some(name) => vec![TlsSecret::new(name)],
        None => conventional_secrets(pod, container, settings),
    };
    // etcd requires a client certificate if a CA for client certificates is configured. Without `--cert-file`, the
    // settings can be in a configuration file.
    let verifies_clients =
        settings.get("trusted-ca-file").or_else(|| settings.get("client-cert-auth")).is_some();
    let user = match annotations.get(AUTH_SECRET) {
        Some(name) => Some(UserSecret { secret: name.clone(), key: None }),
        None => root_password(pod, container, settings),
    };
    let requires_certificate = verifies_clients || settings.get("cert-file").is_none();
    CredentialSources { tls, requires_certificate, user }
}

fn conventional_secrets(pod: &Pod, container: &Container, settings: &MemberSettings) -> Vec<TlsSecret> {
    let mut sources: Vec<TlsSecret> = Vec::new();
    let mut add = |source: TlsSecret| {
        if !sources.iter().any(|known| known.secret == source.secret) {
            sources.push(source);
        }
    };
    let mounted = pod.lasting_containers().flat_map(|container| mounted_secrets(pod, container));
    for mounted in mounted.filter(MountedSecret::is_for_clients) {
        add(TlsSecret::new(&mounted.secret.secret_name));
    }
    for name in client_secret_names(pod) {
        add(TlsSecret::new(&name));
    }
    for flag in ["trusted-ca-file", "cert-file"] {
        let Some(file) = settings.get(flag) else { continue };
        for mounted in mounted_secrets(pod, container) {
            let key_for_flag = |flag: &str| settings.get(flag).and_then(|file| mounted.key_for_file(file));
            if mounted.contains(file) {
                add(TlsSecret {
                    secret: mounted.secret.secret_name.clone(),
                    ca: key_for_flag("trusted-ca-file"),
                    pair: key_for_flag("cert-file").zip(key_for_flag("key-file")),
                });
            }
        }
    }
    // If the settings are in a file, that file can name any Secret of the container.
    if settings.get("cert-file").is_none() {
        for mounted in mounted_secrets(pod, container).filter(|mounted| !mounted.name_contains("peer")) {
            add(TlsSecret::new(&mounted.secret.secret_name));
        }
    }
    sources
}

fn mounted_secrets<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = MountedSecret<'a>> {
    container.volume_mounts.iter().flat_map(|mount| {
        let volumes = pod.spec.volumes.iter().filter(|volume| volume.name == mount.name);
        volumes.flat_map(Volume::secrets).map(|secret| MountedSecret { mount, secret })
    })
}

/// Returns the names that charts and operators give to Secrets for clients.
fn client_secret_names(pod: &Pod) -> Vec<String> {
    let base = match pod.controller() {
        Some(owner) => owner.name.as_str(),
        None => pod.metadata.name.rsplit_once('-').map_or(pod.metadata.name.as_str(), |(set, _)| set),
    };
    let mut names: Vec<String> =
        ["client-tls", "client-certs", "root-client-certs"].map(|kind| format!("{base}-{kind}")).into();
    let labels = NAME_LABELS.iter().filter_map(|label| pod.metadata.labels.get(*label));
    names.extend(labels.map(|name| format!("{name}-client-tls")));
    names
}

/// Returns the Secret with the password of etcd's root user, which the container reads from its environment or from a file.
fn root_password(pod: &Pod, container: &Container, settings: &MemberSettings) -> Option<UserSecret> {
    let by_name = container.env.iter().find(|variable| variable.name == "ETCD_ROOT_PASSWORD");
    if let Some(reference) =
        by_name.and_then(|variable| variable.value_from.as_ref()?.secret_key_ref.as_ref())
    {
        return Some(UserSecret { secret: reference.name.clone(), key: Some(reference.key.clone()) });
    }
    let file = settings.get("root-password-file")?;
    mounted_secrets(pod, container).find_map(|mounted| {
        let key = mounted.key_for_file(file)?;
        Some(UserSecret { secret: mounted.secret.secret_name.clone(), key: Some(key) })
    })
}

// === impl MountedSecret ===

impl MountedSecret<'_> {
    fn is_for_clients(&self) -> bool {
        self.name_contains("client") && !self.name_contains("server") && !self.name_contains("peer")
    }

    fn name_contains(&self, word: &str) -> bool {
        self.secret.secret_name.contains(word) || self.mount.name.contains(word)
    }

    fn contains(&self, file: &str) -> bool {
        self.path_in_volume(file).is_some()
    }

    fn key_for_file(&self, file: &str) -> Option<String> {
        self.secret.key_for_path(self.path_in_volume(file)?)
    }

    /// Returns the path of the file inside the volume.
    fn path_in_volume<'a>(&self, file: &'a str) -> Option<&'a str> {
        file.strip_prefix(self.mount.mount_path.trim_end_matches('/'))?.strip_prefix('/')
    }
}

// === impl TlsSecret ===

impl TlsSecret {
    fn new(secret: &str) -> Self {
        Self { secret: secret.to_owned(), ..Self::default() }
    }

    /// Returns the keys of a client certificate and of its private key in `secret`. Keys for clients take precedence
    /// over the keys of the server.
    pub(in crate::guard) fn pair<'a>(&'a self, secret: &Secret) -> Option<(&'a str, &'a str)> {
        let configured = self.pair.iter().map(|(certificate, key)| (certificate.as_str(), key.as_str()));
        let has_pair = |&(certificate, key): &(&str, &str)| {
            secret.get(certificate).is_some() && secret.get(key).is_some()
        };
        CLIENT_KEYS.into_iter().chain(configured).find(has_pair)
    }

    /// Returns the key of the CA in `secret`.
    pub(in crate::guard) fn ca<'a>(&'a self, secret: &Secret) -> Option<&'a str> {
        self.ca.as_deref().into_iter().chain(CA_KEYS).find(|key| secret.get(key).is_some())
    }
}

// === impl UserSecret ===

impl UserSecret {
    /// Returns the user name in `secret`; root if the Secret does not name a user.
    pub(in crate::guard) fn user_name(&self, secret: &Secret) -> String {
        let named =
            if self.key.is_some() { None } else { secret.text("username").or_else(|| secret.text("user")) };
        named.filter(|name| !name.is_empty()).unwrap_or_else(|| ROOT.to_owned())
    }

    /// Returns the password in `secret`.
    pub(in crate::guard) fn password(&self, secret: &Secret) -> Option<String> {
        let configured = self.key.as_deref().into_iter();
        configured
            .chain(PASSWORD_KEYS)
            .find_map(|key| secret.text(key))
            .filter(|password| !password.is_empty())
    }

    /// Returns the keys that can hold the password, for messages.
    pub(in crate::guard) fn key_names(&self) -> String {
        self.key.clone().unwrap_or_else(|| PASSWORD_KEYS.join(", "))
    }
}

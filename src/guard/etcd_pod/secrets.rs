//! Which Secrets may hold what a member asks of its clients: a certificate, the CA of its own, a user and a password.
//!
//! Only names are told here, and from the pod alone; whether such a Secret exists and may be read is found out elsewhere.
//! The order is that of docs/tls-and-auth.md: what a person wrote, then what is made for clients, then what the server
//! itself uses.

use std::collections::BTreeMap;

use super::settings::Settings;
use crate::{
    etcd::Endpoint,
    k8s::{
        Secret,
        pod::{Container, Pod, SecretVolume, Volume, VolumeMount},
    },
};

/// Names the Secret with the client certificate and the CA.
pub(super) const TLS_ANNOTATION: &str = "etcd-guard.io/client-tls-secret";

/// Names the Secret with the user and the password.
pub(super) const AUTH_ANNOTATION: &str = "etcd-guard.io/auth-secret";

/// Labels that carry the name of the cluster or of its release.
const NAME_LABELS: [&str; 3] = ["app.kubernetes.io/instance", "release", "app"];

/// Certificates of clients and their keys, as Secrets name them.
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

/// Certificates of CAs, as Secrets name them.
const CA_KEYS: [&str; 6] = ["ca.crt", "ca.pem", "etcd-ca.crt", "ca-bundle.crt", "bundle.crt", "ca-cert.pem"];

/// Passwords, as Secrets name them.
const PASSWORD_KEYS: [&str; 3] = ["password", "etcd-root-password", "root-password"];

/// etcd's first user, who may do everything.
const ROOT: &str = "root";

/// What may be needed to be answered by a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::guard) struct Wanted {
    /// Where a client certificate and the CA may lie, best first; empty without TLS.
    pub tls: Vec<Place>,
    /// Whether the members ask for a client certificate, as far as the pod tells.
    pub certificate: bool,
    /// Where the user and the password lie, if there are any.
    pub login: Option<Login>,
}

/// A Secret that may hold certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::guard) struct Place {
    /// The Secret's name.
    pub secret: String,
    /// Its keys that the member itself is pointed at.
    ca: Option<String>,
    pair: Option<(String, String)>,
}

/// A Secret that holds a password.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::guard) struct Login {
    /// The Secret's name.
    pub secret: String,
    /// The password's key, where the pod tells it.
    key: Option<String>,
}

/// A place in the file system of a container that a Secret fills.
struct Mounted<'a> {
    mount: &'a VolumeMount,
    secret: &'a SecretVolume,
}

/// What the pod and its annotations say.
pub(super) fn wanted(
    pod: &Pod,
    container: &Container,
    settings: &Settings,
    annotations: &BTreeMap<String, String>,
    endpoint: Option<&Endpoint>,
) -> Wanted {
    let is_tls = endpoint.is_some_and(|endpoint| endpoint.tls.is_some());
    let tls = match annotations.get(TLS_ANNOTATION) {
        _ if !is_tls => Vec::new(),
        Some(name) => vec![Place::named(name)],
        None => conventional(pod, container, settings),
    };
    // etcd asks for a certificate if it has a CA to check it with. What its flags do not tell may be in a file.
    let asks = settings.get("trusted-ca-file").or_else(|| settings.get("client-cert-auth")).is_some();
    let login = match annotations.get(AUTH_ANNOTATION) {
        Some(name) => Some(Login { secret: name.clone(), key: None }),
        None => root_password(pod, container, settings),
    };
    Wanted { tls, certificate: asks || settings.get("cert-file").is_none(), login }
}

fn conventional(pod: &Pod, container: &Container, settings: &Settings) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    let mut add = |place: Place| {
        if !places.iter().any(|known| known.secret == place.secret) {
            places.push(place);
        }
    };
    let all = &pod.spec.containers;
    all.iter().flat_map(|it| mounted(pod, it)).filter(Mounted::is_for_clients).for_each(|it| {
        add(Place::named(&it.secret.secret_name));
    });
    for name in names(pod) {
        add(Place::named(&name));
    }
    for flag in ["trusted-ca-file", "cert-file"] {
        let Some(file) = settings.get(flag) else { continue };
        for it in mounted(pod, container) {
            let key_of = |flag: &str| settings.get(flag).and_then(|file| it.key_of(file));
            if it.holds(file) {
                add(Place {
                    secret: it.secret.secret_name.clone(),
                    ca: key_of("trusted-ca-file"),
                    pair: key_of("cert-file").zip(key_of("key-file")),
                });
            }
        }
    }
    // Where the settings lie in a file, any Secret of the container may be the one that they name.
    if settings.get("cert-file").is_none() {
        let of_clients = mounted(pod, container).filter(|it| !it.says("peer"));
        for it in of_clients {
            add(Place::named(&it.secret.secret_name));
        }
    }
    places
}

fn mounted<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = Mounted<'a>> {
    container.volume_mounts.iter().flat_map(|mount| {
        let volumes = pod.spec.volumes.iter().filter(|volume| volume.name == mount.name);
        volumes.flat_map(Volume::secrets).map(|secret| Mounted { mount, secret })
    })
}

/// Names that charts and operators give to the Secrets of clients.
fn names(pod: &Pod) -> Vec<String> {
    let own = match pod.controller() {
        Some(owner) => owner.name.as_str(),
        None => pod.metadata.name.rsplit_once('-').map_or(pod.metadata.name.as_str(), |(set, _)| set),
    };
    let mut names: Vec<String> =
        ["client-tls", "client-certs", "root-client-certs"].map(|kind| format!("{own}-{kind}")).into();
    let labels = NAME_LABELS.iter().filter_map(|label| pod.metadata.labels.get(*label));
    names.extend(labels.map(|name| format!("{name}-client-tls")));
    names
}

/// The password that a container makes etcd's root user with, from a Secret that its environment names, or from a file
/// that a Secret fills.
fn root_password(pod: &Pod, container: &Container, settings: &Settings) -> Option<Login> {
    let by_name = container.env.iter().find(|variable| variable.name == "ETCD_ROOT_PASSWORD");
    if let Some(reference) = by_name.and_then(|it| it.value_from.as_ref()?.secret_key_ref.as_ref()) {
        return Some(Login { secret: reference.name.clone(), key: Some(reference.key.clone()) });
    }
    let file = settings.get("root-password-file")?;
    mounted(pod, container).find_map(|it| {
        let key = it.key_of(file)?;
        Some(Login { secret: it.secret.secret_name.clone(), key: Some(key) })
    })
}

// === impl Mounted ===

impl Mounted<'_> {
    fn is_for_clients(&self) -> bool {
        self.says("client") && !self.says("server") && !self.says("peer")
    }

    fn says(&self, word: &str) -> bool {
        self.secret.secret_name.contains(word) || self.mount.name.contains(word)
    }

    fn holds(&self, file: &str) -> bool {
        self.path_of(file).is_some()
    }

    fn key_of(&self, file: &str) -> Option<String> {
        self.secret.key_at(self.path_of(file)?)
    }

    /// The file's path in the volume.
    fn path_of<'a>(&self, file: &'a str) -> Option<&'a str> {
        file.strip_prefix(self.mount.mount_path.trim_end_matches('/'))?.strip_prefix('/')
    }
}

// === impl Place ===

impl Place {
    fn named(secret: &str) -> Self {
        Self { secret: secret.to_owned(), ..Self::default() }
    }

    /// The keys of a client's certificate and of its key in this Secret: those made for clients before the server's own.
    pub(in crate::guard) fn pair<'a>(&'a self, secret: &Secret) -> Option<(&'a str, &'a str)> {
        let own = self.pair.iter().map(|(certificate, key)| (certificate.as_str(), key.as_str()));
        let is_there = |&(certificate, key): &(&str, &str)| {
            secret.get(certificate).is_some() && secret.get(key).is_some()
        };
        CLIENT_KEYS.into_iter().chain(own).find(is_there)
    }

    /// The key of the CA in this Secret.
    pub(in crate::guard) fn ca<'a>(&'a self, secret: &Secret) -> Option<&'a str> {
        self.ca.as_deref().into_iter().chain(CA_KEYS).find(|key| secret.get(key).is_some())
    }
}

// === impl Login ===

impl Login {
    /// The user of this Secret: root unless it says otherwise.
    pub(in crate::guard) fn user(&self, secret: &Secret) -> String {
        let named =
            if self.key.is_some() { None } else { secret.text("username").or_else(|| secret.text("user")) };
        named.filter(|name| !name.is_empty()).unwrap_or_else(|| ROOT.to_owned())
    }

    /// The password of this Secret.
    pub(in crate::guard) fn password(&self, secret: &Secret) -> Option<String> {
        let own = self.key.as_deref().into_iter();
        own.chain(PASSWORD_KEYS).find_map(|key| secret.text(key)).filter(|password| !password.is_empty())
    }

    /// The keys that were looked for, for a person.
    pub(in crate::guard) fn keys(&self) -> String {
        self.key.clone().unwrap_or_else(|| PASSWORD_KEYS.join(", "))
    }
}

//! Names of the objects that can hold the credentials of a member's clients: certificate, CA, user and password.
//!
//! The names come from the pod's specification and its annotations; `credentials` reads the objects. The order follows
//! docs/tls-and-auth.md: annotations, then Secrets for clients, then the Secrets of the server itself.

mod annotation;
mod key_names;
mod mounted;
mod tls_source;

use std::collections::BTreeMap;

use self::{
    key_names::names_authority,
    mounted::{MountedObject, mounted_objects},
};
pub use self::{
    mounted::{DataKey, key_for_file},
    tls_source::{TlsSource, UsedPart},
};
use crate::{
    annotations::{ACCEPT_AUTO_TLS, AUTH_SECRET, CLIENT_TLS_SECRET},
    discovery::member_settings::MemberSettings,
    objects::{
        data_object::{DataObject, Secret},
        pod::{Container, Pod},
    },
};

/// Labels that carry the name of the cluster or of its Helm release.
const NAME_LABELS: [&str; 3] = ["app.kubernetes.io/instance", "release", "app"];

/// Keys of passwords in Secrets of common tools.
const PASSWORD_KEYS: [&str; 3] = ["password", "etcd-root-password", "root-password"];

/// The name of etcd's superuser.
const ROOT: &str = "root";

/// Maximum size of a configuration file of etcd. The example of etcd with all settings has 5 KiB.
const MAX_CONFIG_FILE_BYTES: usize = 64 << 10;

/// The reason why a member with a certificate of its own cannot be verified.
pub const SELF_SIGNED: &str = "etcd issues its own certificate (--auto-tls), which no CA verifies: accept it with the annotation \
                           etcd-guard.io/accept-auto-tls=true, or set --cert-file, --key-file and --trusted-ca-file to \
                           certificates of a CA (Bitnami chart: auth.client.useAutoTLS=false and auth.client.existingSecret)";

/// The objects that can hold the credentials for a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CredentialSources {
    /// Objects that can hold a client certificate and the CA, in order of preference; empty without TLS.
    pub tls: Vec<TlsSource>,
    /// Whether the members require a client certificate, as far as the pod's specification shows it.
    pub requires_certificate: bool,
    /// Whether the member issues its own certificate (`--auto-tls`), so that no CA exists.
    pub is_self_signed: bool,
    /// Whether an annotation accepts the certificate that the member issues itself.
    pub accepts_self_signed: bool,
    /// The Secret with the user and the password.
    pub user: Option<UserSecret>,
}

/// A Secret that holds a password.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserSecret {
    /// Name of the Secret.
    pub secret: String,
    /// Key of the password, if the pod's specification names it.
    key: Option<String>,
}

/// Returns the objects that the annotations name, or those that the pod and common conventions suggest. `may_use_tls`
/// states whether the member listens with TLS or may do so.
pub fn read(
    pod: &Pod,
    container: &Container,
    settings: &MemberSettings,
    annotations: &BTreeMap<String, String>,
    may_use_tls: bool,
) -> CredentialSources {
    let is_self_signed = settings.issues_own_certificate();
    let accepts_self_signed =
        is_self_signed && annotations.get(ACCEPT_AUTO_TLS).is_some_and(|value| value == "true");
    let tls = match annotations.get(CLIENT_TLS_SECRET) {
        _ if !may_use_tls || is_self_signed => Vec::new(),
        Some(value) => annotated_sources(value, pod, container, settings),
        None => conventional_sources(pod, container, settings),
    };
    // etcd requires a client certificate if a CA for client certificates is configured. Without `--cert-file`, the
    // settings can be in a configuration file.
    let verifies_clients =
        settings.get("trusted-ca-file").is_some() || settings.is_enabled("client-cert-auth");
    let user = match annotations.get(AUTH_SECRET) {
        Some(name) => Some(UserSecret { secret: name.clone(), key: None }),
        None => root_password(pod, container, settings),
    };
    let requires_certificate = verifies_clients || settings.get("cert-file").is_none();
    CredentialSources { tls, requires_certificate, is_self_signed, accepts_self_signed, user }
}

/// Returns the objects that the annotation names. The keys that the member's flags name apply to them as well, and the CA
/// of the flags is used if these objects contain none.
fn annotated_sources(
    value: &str,
    pod: &Pod,
    container: &Container,
    settings: &MemberSettings,
) -> Vec<TlsSource> {
    let mounted: Vec<MountedObject<'_>> = mounted_objects(pod, container).collect();
    let mut sources = annotation::read(value);
    for source in sources.iter_mut().filter(|source| source.has_usual_keys()) {
        let key_for_flag = |flag: &str| {
            let file = settings.get(flag)?;
            let mut of_source = mounted.iter().filter(|mounted| mounted.object() == source.object);
            let key = of_source.find_map(|mounted| mounted.key_for_file(file));
            key.or_else(|| file.rsplit('/').next().map(str::to_owned))
        };
        source.ca = key_for_flag("trusted-ca-file");
        source.pair = key_for_flag("cert-file").zip(key_for_flag("key-file"));
    }
    let of_flags = ["cert-file", "trusted-ca-file"].into_iter();
    let of_flags = of_flags
        .flat_map(|flag| flag_sources(flag, &mounted, settings))
        .map(|source| source.only_ca().into_fallback());
    let others: Vec<TlsSource> =
        of_flags.filter(|other| sources.iter().all(|source| source.object != other.object)).collect();
    sources.extend(others);
    sources
}

fn conventional_sources(pod: &Pod, container: &Container, settings: &MemberSettings) -> Vec<TlsSource> {
    let mut sources: Vec<TlsSource> = Vec::new();
    let mut add = |source: TlsSource| {
        let is_known =
            |known: &TlsSource| known.object == source.object && (known.part, source.part) != CA_AND_BOTH;
        if !sources.iter().any(is_known) {
            sources.push(source);
        }
    };
    let mounted: Vec<MountedObject<'_>> = mounted_objects(pod, container).collect();
    let by_flag = |flag: &str| flag_sources(flag, &mounted, settings);
    let is_authority = |source: &TlsSource| names_authority(&source.object.name);
    // If the certificate of the server and the CA for clients come from different objects, the CA beside a client certificate
    // may be another one than the CA of the server.
    let (of_server, of_clients) = (by_flag("cert-file"), by_flag("trusted-ca-file"));
    let objects = |sources: &[TlsSource]| -> Vec<DataObject> {
        sources.iter().map(|source| source.object.clone()).collect()
    };
    if !of_clients.is_empty() && objects(&of_server) != objects(&of_clients) {
        by_flag("cert-file").into_iter().map(TlsSource::only_ca).for_each(&mut add);
    }
    let of_pod = pod.lasting_containers().flat_map(|container| mounted_objects(pod, container));
    for mounted in of_pod.filter(|mounted| mounted.is_secret() && mounted.is_for_clients()) {
        let source = TlsSource::new(mounted.object()).showing(mounted.items());
        if !is_authority(&source) {
            add(source);
        }
    }
    for name in client_secret_names(pod) {
        add(TlsSource::new(DataObject::secret(&name)));
    }
    for source in of_clients.into_iter().chain(of_server) {
        add(if is_authority(&source) { source.only_ca() } else { source });
    }
    // If the settings are in a file, that file can name any object of the container.
    if settings.get("cert-file").is_none() {
        let others = mounted.iter().filter(|mounted| !mounted.has_word("peer") && !mounted.is_published());
        for mounted in others {
            let source = TlsSource::new(mounted.object()).showing(mounted.items());
            if is_authority(&source) {
                add(source.only_ca());
            } else if mounted.is_secret() {
                add(source);
            }
        }
    }
    sources
}

/// A source of the CA only, followed by a source of the same object for the certificate.
const CA_AND_BOTH: (UsedPart, UsedPart) = (UsedPart::Ca, UsedPart::CertificateAndCa);

/// Returns the objects that can provide the file of this flag, with the keys that the flags name.
fn flag_sources(flag: &str, mounted: &[MountedObject<'_>], settings: &MemberSettings) -> Vec<TlsSource> {
    let Some(file) = settings.get(flag) else { return Vec::new() };
    let containing = mounted.iter().filter(|mounted| mounted.contains(file));
    let source = |mounted: &MountedObject<'_>| {
        let key_for_flag = |flag: &str| settings.get(flag).and_then(|file| mounted.key_for_file(file));
        let mut source = TlsSource::new(mounted.object()).showing(mounted.items());
        source.ca = key_for_flag("trusted-ca-file");
        source.pair = key_for_flag("cert-file").zip(key_for_flag("key-file"));
        if mounted.is_secret() { source } else { source.only_ca() }
    };
    containing.map(source).collect()
}

/// Returns the names that charts and operators give to Secrets for clients.
fn client_secret_names(pod: &Pod) -> Vec<String> {
    let base = match pod.controller() {
        Some(owner) => owner.name.as_str(),
        None => pod.metadata.name.rsplit_once('-').map_or(pod.metadata.name.as_str(), |(set, _)| set),
    };
    let mut names: Vec<String> = ["client-tls", "client-certs", "root-client-certs", "client"]
        .map(|kind| format!("{base}-{kind}"))
        .into();
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
    let mut secrets = mounted_objects(pod, container).filter(MountedObject::is_secret);
    secrets.find_map(|mounted| {
        let key = mounted.key_for_file(file)?;
        Some(UserSecret { secret: mounted.object().name, key: Some(key) })
    })
}

/// Returns the text of a configuration file in an object of this name, or `None` if an optional file does not exist. The
/// error states the reason in words.
pub fn config_text(
    named: &str,
    content: &Secret,
    key: &str,
    is_optional: bool,
) -> Result<Option<String>, String> {
    match content.text(key) {
        None if is_optional => Ok(None),
        None => Err(format!("{named} contains no {key}")),
        Some(text) if text.len() > MAX_CONFIG_FILE_BYTES => {
            Err(format!("{named} contains more than {} KiB", MAX_CONFIG_FILE_BYTES >> 10))
        }
        Some(text) => Ok(Some(text)),
    }
}

// === impl UserSecret ===

impl UserSecret {
    /// Returns the user name in `secret`; root if the Secret does not name a user.
    pub fn user_name(&self, secret: &Secret) -> String {
        let named =
            if self.key.is_some() { None } else { secret.text("username").or_else(|| secret.text("user")) };
        named.filter(|name| !name.is_empty()).unwrap_or_else(|| ROOT.to_owned())
    }

    /// Returns the password in `secret`.
    pub fn password(&self, secret: &Secret) -> Option<String> {
        secret.text(self.password_key(secret)?).filter(|password| !password.is_empty())
    }

    /// Returns the key of the password in `secret`.
    pub fn password_key<'a>(&'a self, secret: &Secret) -> Option<&'a str> {
        let mut keys = self.key.as_deref().into_iter().chain(PASSWORD_KEYS);
        keys.find(|key| secret.text(key).is_some())
    }

    /// Returns the key that the pod's specification names.
    pub fn named_keys(&self) -> Vec<String> {
        self.key.iter().cloned().collect()
    }

    /// Returns the keys that can hold the password, for messages.
    pub fn key_names(&self) -> String {
        self.key.clone().unwrap_or_else(|| PASSWORD_KEYS.join(", "))
    }
}

#[cfg(test)]
mod tests;

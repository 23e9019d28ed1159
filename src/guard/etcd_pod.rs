//! What a pod says of the etcd member that it runs: whether it runs one, where that listens, and where its data lies.
//!
//! All of it is read from the pod itself, as etcd reads it: flags before environment before defaults. Names and
//! addresses from here only find the member; who it is, it says itself when it is dialled.

mod settings;

use http::Uri;

use self::settings::Settings;
use super::snapshot::Storage;
use crate::{
    etcd::{Endpoint, Tls},
    k8s::pod::{Container, Pod},
};

/// Where etcd listens to clients when nobody says otherwise.
const DEFAULT_CLIENT_PORT: u16 = 2379;

/// A pod that runs an etcd member, in the guard's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EtcdPod {
    /// The container that runs etcd.
    pub container: String,
    /// Where its member listens to clients; `None` while the pod has no address.
    pub endpoint: Option<Endpoint>,
    /// The name that etcd was told to take.
    pub member_name: Option<String>,
    /// What a deletion does to its data.
    pub storage: Storage,
}

/// Reads what a pod says of its member, or `None` for a pod that runs no etcd.
#[must_use]
pub(super) fn read(pod: &Pod) -> Option<EtcdPod> {
    let container = pod.spec.containers.iter().find(|container| runs_etcd(container))?;
    let settings = Settings::read(pod, container);
    Some(EtcdPod {
        container: container.name.clone(),
        endpoint: endpoint(pod, &settings),
        member_name: settings.get("name").map(str::to_owned),
        storage: storage(pod, container, &settings),
    })
}

/// A container runs etcd if its command does, if it has no command and an image of that name, or if its environment
/// configures a member. An image of etcd with another command (`etcdctl snapshot save`) runs none.
fn runs_etcd(container: &Container) -> bool {
    let words = settings::words(container);
    if (0..words.len()).any(|at| starts_etcd(&words, at)) {
        return true;
    }
    let by_environment = container
        .env
        .iter()
        .any(|var| matches!(var.name.as_str(), "ETCD_INITIAL_ADVERTISE_PEER_URLS" | "ETCD_LISTEN_PEER_URLS"));
    by_environment || (container.command.is_empty() && image_name(&container.image) == "etcd")
}

/// Whether the word at this place is etcd's program: not a flag's value, nor a directory of that name.
fn starts_etcd(words: &[String], at: usize) -> bool {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let (this, next) = (word(at), word(at + 1));
    let previous = at.checked_sub(1).map_or("", word);
    if this.starts_with('-') || basename(this) != "etcd" {
        return false;
    }
    let is_value = previous.len() > 2 && previous.starts_with("--") && !previous.contains('=');
    let in_command_place = at == 0 || previous == "exec" || next.starts_with('-');
    !is_value && (this == "etcd" || this.ends_with("bin/etcd") || in_command_place)
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `etcd` of `quay.io/coreos/etcd:v3.6.16@sha256:...`.
fn image_name(image: &str) -> &str {
    let last = basename(image.split('@').next().unwrap_or(image));
    last.split(':').next().unwrap_or(last)
}

/// The address of the living pod, never its DNS name: after a forced deletion the name may still lead to the old,
/// dying process. A certificate is checked against the name that is advertised.
fn endpoint(pod: &Pod, settings: &Settings) -> Option<Endpoint> {
    let ip = Some(pod.status.pod_ip.as_str()).filter(|ip| !ip.is_empty())?;
    let advertised = urls(settings, "advertise-client-urls");
    let own = advertised.iter().find(|url| is_own(pod, url));
    let listened = urls(settings, "listen-client-urls");
    // Without an advertised URL of its own, a member still tells by where it listens which port and scheme to take.
    let url = own.or_else(|| listened.first()).or_else(|| advertised.first());
    let scheme = url.and_then(Uri::scheme_str).unwrap_or("http");
    let port = url.and_then(Uri::port_u16).unwrap_or(DEFAULT_CLIENT_PORT);
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    let tls = (scheme == "https").then(|| Tls {
        server_name: own.or_else(|| advertised.first()).and_then(Uri::host).unwrap_or(ip).to_owned(),
        ca: None,
        identity: None,
    });
    Some(Endpoint { url: format!("{scheme}://{host}:{port}"), tls })
}

fn urls(settings: &Settings, flag: &str) -> Vec<Uri> {
    let list = settings.get(flag).unwrap_or_default();
    list.split(',').filter_map(|url| url.trim().parse().ok()).collect()
}

fn is_own(pod: &Pod, url: &Uri) -> bool {
    url.host().is_some_and(|host| {
        let name = &pod.metadata.name;
        host == name
            || host == pod.status.pod_ip
            || host.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'))
    })
}

/// What holds the data directory decides: a claim or a path of the node outlives the pod; anything else goes with it,
/// the container's own file system too. Where no data directory is named, any lasting volume counts as the one.
fn storage(pod: &Pod, container: &Container, settings: &Settings) -> Storage {
    let lasts = |name: &str| {
        let volume = pod.spec.volumes.iter().find(|volume| volume.name == name);
        volume.is_some_and(|it| it.persistent_volume_claim.is_some() || it.host_path.is_some())
    };
    let mounts = &container.volume_mounts;
    let persistent = match settings.get("data-dir") {
        Some(dir) => mounts
            .iter()
            .filter(|mount| is_below(dir, &mount.mount_path))
            .max_by_key(|mount| mount.mount_path.len())
            .is_some_and(|mount| lasts(&mount.name)),
        None => mounts.iter().any(|mount| lasts(&mount.name)),
    };
    if persistent { Storage::Persistent } else { Storage::Ephemeral }
}

fn is_below(path: &str, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;

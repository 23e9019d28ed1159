//! Host names for processes that resolve the names of Services, as in a cluster with DNS.
//!
//! A process on loopback usually gets addresses instead of names (`translation.rs`). The member list of etcd then
//! contains addresses only. A pod with the annotation [`RESOLVES_NAMES`] keeps the names of its command. Its process
//! runs in a mount namespace of its own, with a hosts file that the process node updates: it contains each Service with
//! the addresses of its pods, and each pod with a hostname and a subdomain.

use std::{
    fmt::Write,
    fs,
    io::{self, Seek, Write as _},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Pod, Service};

use super::{addresses::Addresses, key, translation::etcd_container};

/// The annotation of pods whose process resolves host names. The value is ignored.
pub const RESOLVES_NAMES: &str = "process-node.test/resolves-names";

/// Mounts the hosts file and an empty resolver configuration, so that an unknown name fails at once. The signal for the
/// death of the parent is set again, because a new user namespace clears it.
const ENTER: &str = r#"mount --bind "$1" /etc/hosts &&
{ [ ! -e /etc/resolv.conf ] || mount --bind "$2" /etc/resolv.conf; } &&
shift 2 && exec setpriv --pdeathsig KILL -- "$@""#;

/// The files of one namespace.
#[derive(Clone, Debug)]
pub(super) struct HostsFiles {
    hosts: PathBuf,
    resolver: PathBuf,
}

/// Whether the pod's process resolves host names.
pub(super) fn resolves_names(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(RESOLVES_NAMES))
}

impl HostsFiles {
    /// The files for the pods of a namespace, which need not exist.
    pub(super) fn new(dir: &Path, namespace: &str) -> Self {
        Self {
            hosts: dir.join(format!("hosts-{namespace}")),
            resolver: dir.join(format!("resolver-{namespace}")),
        }
    }

    /// Updates the files in place, because running processes have mounted them.
    pub(super) fn update(&self, content: &str) -> io::Result<()> {
        if fs::read_to_string(&self.hosts).is_ok_and(|known| known == content) {
            return Ok(());
        }
        if let Some(dir) = self.hosts.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(&self.resolver, "")?;
        let mut file = fs::File::options().create(true).truncate(false).write(true).open(&self.hosts)?;
        file.rewind()?;
        // A reader never finds an empty file.
        file.write_all(content.as_bytes())?;
        file.set_len(content.len().try_into().unwrap_or(u64::MAX))
    }

    /// Returns the program and the arguments that run a program with these files. Without root, it runs in a user
    /// namespace, in which it may mount.
    pub(super) fn wrap(&self, program: &Path) -> (PathBuf, Vec<String>) {
        let mut words = Vec::new();
        if !nix::unistd::Uid::effective().is_root() {
            words.extend(["--user", "--map-root-user"].map(String::from));
        }
        words.extend(["--mount", "sh", "-c", ENTER, "sh"].map(String::from));
        words.extend([&self.hosts, &self.resolver].map(|path| path.display().to_string()));
        words.push(program.display().to_string());
        (PathBuf::from("unshare"), words)
    }
}

/// Returns the hosts file for pods of `namespace`. Names without a namespace belong to this namespace.
pub(super) fn content(namespace: &str, pods: &[Pod], services: &[Service], addresses: &Addresses) -> String {
    let mut text = String::from("127.0.0.1 localhost\n");
    let address = |pod: &Pod| {
        let (namespace, name) = key(pod);
        addresses.pod_address(&namespace, &name)
    };
    let mut add = |pod: &Pod, base: &str| {
        let (owner, _) = key(pod);
        let mut names = ["", ".svc", ".svc.cluster.local"].map(|end| format!("{base}.{owner}{end}")).to_vec();
        if owner == namespace {
            names.push(base.to_owned());
        }
        // Writing to a String does not fail.
        let _ = writeln!(text, "{} {}", address(pod), names.join(" "));
    };
    for service in services {
        for pod in endpoints(service, pods) {
            add(pod, service.metadata.name.as_deref().unwrap_or_default());
        }
    }
    for pod in pods.iter().filter(|pod| runs_process(pod)) {
        let spec = pod.spec.as_ref();
        let hostname = spec.and_then(|spec| spec.hostname.as_deref());
        if let (Some(hostname), Some(subdomain)) = (hostname, spec.and_then(|spec| spec.subdomain.as_deref()))
        {
            add(pod, &format!("{hostname}.{subdomain}"));
        }
    }
    text
}

/// Returns the pods behind a Service, ready or not. As in kube-proxy, terminating pods serve only if there are no other
/// pods.
fn endpoints<'a>(service: &Service, pods: &'a [Pod]) -> Vec<&'a Pod> {
    let Some(selector) = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else {
        return Vec::new();
    };
    let matches = |pod: &&Pod| {
        let labels = pod.metadata.labels.as_ref();
        let has = |(name, value)| labels.and_then(|labels| labels.get(name)) == Some(value);
        pod.metadata.namespace == service.metadata.namespace && selector.iter().all(has) && runs_process(pod)
    };
    let (ending, current): (Vec<&Pod>, Vec<&Pod>) =
        pods.iter().filter(matches).partition(|pod| pod.metadata.deletion_timestamp.is_some());
    if current.is_empty() { ending } else { current }
}

fn runs_process(pod: &Pod) -> bool {
    etcd_container(pod).is_some()
}

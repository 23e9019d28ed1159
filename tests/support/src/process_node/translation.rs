//! Translates a container's command to a process of this machine.
//!
//! A pod has an address, a file system and DNS names of its own; a process on loopback does not. Each argument and each
//! variable is translated: pod names become their addresses, "all addresses" becomes the pod's own address, and paths
//! in
//! volumes become the volumes' directories.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::{addresses::Addresses, hosts::resolves_names};

/// The arguments and the environment of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
}

/// The inputs of a translation.
pub(super) struct Translation<'a> {
    pub(super) pod: &'a Pod,
    pub(super) address: Ipv4Addr,
    pub(super) addresses: &'a Addresses,
    /// Directories of the container's volumes, by mount path.
    pub(super) mounts: BTreeMap<String, PathBuf>,
}

/// Returns the container or native sidecar that runs etcd, by its command or, without one, by its image.
pub(super) fn etcd_container(pod: &Pod) -> Option<&Container> {
    let program =
        |path: &str| path.rsplit('/').next().unwrap_or(path).split([':', '@']).next() == Some("etcd");
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten().filter(|container| is_native_sidecar(container));
    spec.containers.iter().chain(sidecars).find(|container| match container.command.as_deref() {
        Some([first, command, ..]) => program(first) && !matches!(command.as_str(), "gateway" | "grpc-proxy"),
        Some([first]) => program(first),
        _ => container.image.as_deref().is_some_and(program),
    })
}

/// Whether an init container runs as long as its pod.
pub(super) fn is_native_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

impl Translation<'_> {
    /// Returns the arguments and the environment of etcd.
    pub(super) fn words(&self, container: &Container) -> CommandLine {
        let environment = self.environment(container.env.as_deref().unwrap_or_default());
        let command = container.command.iter().flatten().skip(1);
        let words = command.chain(container.args.iter().flatten());
        let arguments = words.map(|word| self.translate(&expand(word, &environment))).collect();
        let environment =
            environment.into_iter().map(|(name, value)| (name, self.translate(&value))).collect();
        CommandLine { arguments, environment }
    }

    fn environment(&self, variables: &[EnvVar]) -> BTreeMap<String, String> {
        let mut known = BTreeMap::new();
        for variable in variables {
            let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
            let value = match (&variable.value, field) {
                (Some(value), _) => expand(value, &known),
                (None, Some(field)) => self.field(&field.field_path),
                // Values from a ConfigMap or a Secret are not supported.
                (None, None) => continue,
            };
            known.insert(variable.name.clone(), value);
        }
        known
    }

    /// Returns a field of the pod, as in the downward API.
    fn field(&self, path: &str) -> String {
        let metadata = &self.pod.metadata;
        let value = match path {
            "metadata.name" => metadata.name.clone(),
            "metadata.namespace" => metadata.namespace.clone(),
            "metadata.uid" => metadata.uid.clone(),
            "status.podIP" => Some(self.address.to_string()),
            "spec.nodeName" => self.pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            _ => None,
        };
        value.unwrap_or_default()
    }

    /// Translates each host and path as a whole: `http://etcd-0.etcd.prod.svc:2379` keeps its scheme and its port.
    fn translate(&self, text: &str) -> String {
        let is_host = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        let mut out = String::new();
        let mut rest = self.in_volumes(text);
        while let Some(start) = rest.find(is_host) {
            out.push_str(&rest[..start]);
            let tail = &rest[start..];
            let end = tail.find(|c| !is_host(c)).unwrap_or(tail.len());
            match self.resolve(&tail[..end]) {
                Some(address) => out.push_str(&address.to_string()),
                None => out.push_str(&tail[..end]),
            }
            rest = tail[end..].to_owned();
        }
        out + &rest
    }

    /// Resolves `NAME.SUBDOMAIN`, with or without the namespace and the cluster domain, to a pod of the same set.
    fn resolve(&self, host: &str) -> Option<Ipv4Addr> {
        if matches!(host, "0.0.0.0" | "127.0.0.1" | "localhost") {
            return Some(self.address);
        }
        if resolves_names(self.pod) {
            return None;
        }
        let namespace = self.pod.metadata.namespace.as_deref()?;
        let subdomain = self.pod.spec.as_ref()?.subdomain.as_deref()?;
        let (name, domain) = host.split_once('.')?;
        let domain = domain.strip_prefix(subdomain)?;
        let known = ["", ".", ".svc", ".svc.cluster.local"].iter().any(|end| match *end {
            "" => domain.is_empty(),
            "." => domain.strip_prefix('.') == Some(namespace),
            end => domain.strip_prefix('.').and_then(|rest| rest.strip_prefix(namespace)) == Some(end),
        });
        known.then(|| self.addresses.pod_address(namespace, name))
    }

    /// Translates a path that is a whole argument or the value of a flag.
    fn in_volumes(&self, text: &str) -> String {
        let (flag, path) = match text.split_once('=') {
            Some((flag, path)) if path.starts_with('/') => (Some(flag), path),
            _ => (None, text),
        };
        let inside = self.mounts.iter().find_map(|(mount, directory)| {
            Path::new(path).strip_prefix(mount).ok().map(|rest| directory.join(rest).display().to_string())
        });
        match (flag, inside) {
            (Some(flag), Some(path)) => format!("{flag}={path}"),
            (None, Some(path)) => path,
            (_, None) => text.to_owned(),
        }
    }
}

/// Expands `$(NAME)` as Kubernetes does.
fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
    known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
}

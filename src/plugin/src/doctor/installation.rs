//! The objects of the installation in the API server.

use http::Uri;
use serde_json::Value;

use super::{
    certificate::TrustedBundle,
    reader::{Reader, Right, Unread, elements, text},
    webhooks::GuardedNamespace,
};
use etcd_guard_cli::registration::{ConfigurationName, WebhookGroup, shipped_configurations};
use etcd_guard_core::opt_in_label::OptInLabel;

/// The volume of the servers with their configuration file, as the manifests and the chart name it.
const CONFIG_VOLUME: &str = "config";

/// The namespace of lxcfs, which a policy names.
pub(super) const LXCFS_NAMESPACE: &str = "etcd-guard-lxcfs";

/// The objects of the installation, each read once.
pub(super) struct Installation {
    pub(super) pods: Result<Vec<Value>, Unread>,
    /// All pods of the guard's namespace, also those that keep the certificates; empty if they cannot be read.
    pub(super) namespace_pods: Vec<Value>,
    pub(super) deployments: Result<Vec<Value>, Unread>,
    pub(super) budgets: Result<Vec<Value>, Unread>,
    pub(super) guarded: Result<Vec<GuardedNamespace>, Unread>,
    /// The `DaemonSets` of lxcfs.
    pub(super) lxcfs: Result<Vec<Value>, Unread>,
    /// Whether the cluster has a single node.
    pub(super) has_one_node: bool,
    pub(super) configurations: Vec<(ConfigurationName, Result<Option<Value>, Unread>)>,
}

// === impl Installation ===

impl Installation {
    /// Reads all objects. Each read that fails is a result of its own.
    pub(super) async fn read(
        reader: &Reader,
        namespace: &str,
        selector: &str,
        opt_in_label: &OptInLabel,
    ) -> Self {
        let in_namespace = |resource| Right { verb: "list", resource, namespace: Some(namespace) };
        let selector = encoded(selector);
        let name = encoded(namespace);
        let paths = (
            format!("/api/v1/namespaces/{name}/pods?labelSelector={selector}"),
            format!("/apis/apps/v1/namespaces/{name}/deployments"),
            format!("/apis/policy/v1/namespaces/{name}/poddisruptionbudgets"),
            format!("/api/v1/namespaces?labelSelector={}", encoded(&opt_in_label.to_string())),
            format!("/apis/apps/v1/namespaces/{LXCFS_NAMESPACE}/daemonsets"),
            format!("/api/v1/namespaces/{name}/pods"),
        );
        let namespaces = Right { verb: "list", resource: "namespaces", namespace: None };
        let lxcfs = Right { verb: "list", resource: "daemonsets.apps", namespace: Some(LXCFS_NAMESPACE) };
        let nodes = Right { verb: "list", resource: "nodes", namespace: None };
        let (pods, deployments, budgets, guarded, lxcfs, namespace_pods, nodes) = tokio::join!(
            reader.list(&paths.0, in_namespace("pods")),
            reader.list(&paths.1, in_namespace("deployments.apps")),
            reader.list(&paths.2, in_namespace("poddisruptionbudgets.policy")),
            reader.list(&paths.3, namespaces),
            reader.list(&paths.4, lxcfs),
            reader.list(&paths.5, in_namespace("pods")),
            reader.list("/api/v1/nodes?limit=2", nodes),
        );
        // If the nodes cannot be read, the nodes of the replicas are compared as in a larger cluster.
        let has_one_node = nodes.is_ok_and(|nodes| nodes.len() == 1);
        let guarded = guarded.map(|found| found.iter().filter_map(GuardedNamespace::new).collect());
        let mut configurations = Vec::new();
        for name in shipped_configurations() {
            let (plural, resource) = if name.kind == "MutatingWebhookConfiguration" {
                (
                    "mutatingwebhookconfigurations",
                    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
                )
            } else {
                (
                    "validatingwebhookconfigurations",
                    "validatingwebhookconfigurations.admissionregistration.k8s.io",
                )
            };
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}/{}", name.name);
            let read = reader.get(&path, Right { verb: "get", resource, namespace: None }).await;
            configurations.push((name, read));
        }
        let namespace_pods = namespace_pods.unwrap_or_default();
        Self { pods, namespace_pods, deployments, budgets, guarded, lxcfs, has_one_node, configurations }
    }

    /// Returns the registered configuration of a group.
    pub(super) fn configuration(&self, group: WebhookGroup) -> Option<&Value> {
        let (_, read) = self.configurations.iter().find(|(name, _)| group.is_named(name))?;
        read.as_ref().ok()?.as_ref()
    }

    /// Returns why the configuration of a group could not be read.
    pub(super) fn unread_configuration(&self, group: WebhookGroup) -> Option<&Unread> {
        let (_, read) = self.configurations.iter().find(|(name, _)| group.is_named(name))?;
        read.as_ref().err()
    }

    /// Whether the guard is certainly not installed: everything could be read, and nothing exists.
    pub(super) fn is_absent(&self) -> bool {
        let is_empty = |read: &Result<Vec<Value>, Unread>| read.as_ref().is_ok_and(Vec::is_empty);
        let mut configurations = self.configurations.iter();
        is_empty(&self.pods)
            && is_empty(&self.deployments)
            && configurations.all(|(_, read)| matches!(read, Ok(None)))
    }

    /// Returns the name of the `ConfigMap` that the servers mount with their configuration file.
    pub(super) fn config_map(&self) -> Option<&str> {
        let deployments = self.deployments.as_deref().unwrap_or_default();
        let mut volumes =
            deployments.iter().flat_map(|deployment| elements(deployment, "/spec/template/spec/volumes"));
        volumes.find_map(|volume| {
            text(volume, "/configMap/name").filter(|_| text(volume, "/name") == Some(CONFIG_VOLUME))
        })
    }

    /// Returns the `caBundle` of each registered webhook.
    pub(super) fn bundles(&self) -> Vec<TrustedBundle> {
        let registered = self.configurations.iter().filter_map(|(_, read)| read.as_ref().ok()?.as_ref());
        let entries = registered.flat_map(|configuration| elements(configuration, "/webhooks"));
        entries
            .map(|entry| {
                let field = |pointer: &str| text(entry, pointer).unwrap_or_default().to_owned();
                let service = |name: &str| field(&format!("/clientConfig/service/{name}"));
                let url = text(entry, "/clientConfig/url").and_then(|url| url.parse::<Uri>().ok());
                let server_name = match url.as_ref().and_then(Uri::host) {
                    Some(host) => host.trim_matches(['[', ']']).to_owned(),
                    None => format!("{}.{}.svc", service("name"), service("namespace")),
                };
                TrustedBundle {
                    webhook: field("/name"),
                    bundle: field("/clientConfig/caBundle"),
                    server_name,
                }
            })
            .collect()
    }
}

/// Encodes the value of a query parameter, or one segment of a path.
pub(super) fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

//! A control plane, and guards with the shipped permissions.

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret};
use kube::{Api, Client};
use serde_json::json;

use crate::{kubeconfig_with, kustomize};
use test_support::{guard::self_managed::SelfManagedGuard, kubernetes::control_plane::ControlPlane};

pub(crate) const SECRET: &str = "etcd-guard-certificates";

/// A control plane with the guard's permissions, and two replicas that register themselves.
pub(crate) struct Setup {
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: Client,
    pub(crate) replicas: [SelfManagedGuard; 2],
}

impl Setup {
    pub(crate) async fn start(life: Duration) -> Self {
        let control_plane = ControlPlane::start(&[]);
        let kubeconfig = permit(&control_plane);
        let life = format!("--certificate-life={}s", life.as_secs());
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let url = format!("--register-url=https://{free}");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let launch = |address| SelfManagedGuard::launch(&kubeconfig, address, &[&life, "--register", &url]);
        let replicas = [launch(free), launch(any)];
        for replica in &replicas {
            replica.wait_until_ready().await;
        }
        Self { client: control_plane.client().await, control_plane, replicas }
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "etcd-guard")
    }

    pub(crate) async fn secret(&self, key: &str) -> Option<String> {
        let secret = self.secrets().get_opt(SECRET).await.ok()??;
        String::from_utf8(secret.data?.get(key)?.0.clone()).ok()
    }

    /// Returns the bundle that an API server trusts.
    pub(crate) async fn bundle(&self) -> Option<String> {
        bundle(&self.client).await
    }
}

pub(crate) async fn bundle(client: &Client) -> Option<String> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let entries = api.get_opt("etcd-guard").await.ok()??.webhooks?;
    let bundles: Vec<_> = entries.into_iter().map(|webhook| webhook.client_config.ca_bundle).collect();
    assert!(bundles.windows(2).all(|pair| pair[0] == pair[1]), "all entries have one bundle");
    String::from_utf8(bundles.into_iter().next()??.0).ok()
}

/// Applies the shipped permissions, and returns a kubeconfig with only these.
pub(crate) fn permit(control_plane: &ControlPlane) -> PathBuf {
    let objects = crate::objects(&kustomize("deploy/overlays/register"));
    let is_permission = |kind: &str| ["Namespace", "ServiceAccount"].contains(&kind) || kind.contains("Role");
    let items: Vec<_> =
        objects.iter().filter(|object| is_permission(object["kind"].as_str().unwrap())).collect();
    let file = control_plane.dir.join("permissions.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    let kubectl = control_plane.kubectl();
    kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);
    let token = kubectl.run_checked(&["create", "token", "etcd-guard", "-n", "etcd-guard"]).stdout;
    kubeconfig_with(control_plane, token.trim())
}

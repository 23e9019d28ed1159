//! A control plane, and guards with the shipped permissions.

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret};
use kube::{Api, Client};
use serde_json::json;

use crate::{kubeconfig_with, kustomize};
use test_support::{
    guard::{
        certificate_manager::{CertificateManager, MountedSecret},
        self_managed::SelfManagedGuard,
    },
    kubernetes::control_plane::ControlPlane,
    wait::wait_until,
};

/// The longest time until the webhooks are registered, on a busy machine.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const SECRET: &str = "etcd-guard-certificates";

/// The Secret that replaces an immutable one.
pub(crate) const SECOND_SECRET: &str = "etcd-guard-certificates-2";

/// The account of the webhook servers.
pub(crate) const SERVER: &str = "etcd-guard";

/// The account of the Deployment that keeps the certificates.
pub(crate) const CERTIFICATES: &str = "etcd-guard-certificates";

/// A control plane with the shipped accounts, the certificate manager, and two replicas that mount its Secret.
pub(crate) struct Setup {
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: Client,
    pub(crate) manager: CertificateManager,
    _mounts: [MountedSecret; 2],
    pub(crate) replicas: [SelfManagedGuard; 2],
}

impl Setup {
    pub(crate) async fn start(life: Duration) -> Self {
        let control_plane = ControlPlane::start(&[]);
        apply_permissions(&control_plane, &[]);
        let life = format!("--certificate-life={}s", life.as_secs());
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let url = format!("--register-url=https://{free}");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let account = kubeconfig_of(&control_plane, CERTIFICATES);
        let manager = CertificateManager::launch(&account, &[&life, "--register", &url]);
        let client = control_plane.client().await;
        let folder = |name: &str| control_plane.dir.join("mounts").join(name);
        let mounts = [
            MountedSecret::mount(client.clone(), SECRET, folder(SECRET)).await,
            MountedSecret::mount_optional(client.clone(), SECOND_SECRET, folder(SECOND_SECRET)),
        ];
        let folders = mounts.each_ref().map(MountedSecret::folder);
        let account = kubeconfig_of(&control_plane, SERVER);
        let launch = |address| SelfManagedGuard::launch_with_files(&account, address, &folders);
        let replicas = [launch(free), launch(any)];
        for replica in &replicas {
            replica.wait_until_ready().await;
        }
        let setup = Self { client, control_plane, manager, _mounts: mounts, replicas };
        wait_until("the webhooks are registered", REGISTRATION_TIMEOUT, async || {
            setup.bundle().await.is_some()
        })
        .await;
        setup
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "etcd-guard")
    }

    pub(crate) async fn secret(&self, key: &str) -> Option<String> {
        self.value_of(SECRET, key).await
    }

    /// Returns a value of a Secret.
    pub(crate) async fn value_of(&self, name: &str, key: &str) -> Option<String> {
        let secret = self.secrets().get_opt(name).await.ok()??;
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

/// Applies the shipped permissions for a process that serves and keeps certificates: those of both accounts. Returns a
/// kubeconfig with only these.
pub(crate) fn permit(control_plane: &ControlPlane) -> PathBuf {
    apply_permissions(control_plane, &[SERVER]);
    kubeconfig_of(control_plane, SERVER)
}

/// Applies the shipped permissions. `holders` are further accounts with those of the certificate manager.
pub(crate) fn apply_permissions(control_plane: &ControlPlane, holders: &[&str]) {
    let mut objects = crate::objects(&kustomize("deploy/overlays/register"));
    let is_permission = |kind: &str| ["Namespace", "ServiceAccount"].contains(&kind) || kind.contains("Role");
    objects.retain(|object| is_permission(object["kind"].as_str().unwrap()));
    for subjects in objects.iter_mut().filter_map(|object| object["subjects"].as_array_mut()) {
        if subjects.iter().any(|subject| subject["name"] == CERTIFICATES) {
            let further = holders
                .iter()
                .map(|holder| json!({"kind": "ServiceAccount", "name": holder, "namespace": "etcd-guard"}));
            subjects.extend(further);
        }
    }
    let file = control_plane.dir.join("permissions.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).unwrap();
    control_plane.kubectl().run_checked(&["apply", "-f", &file.to_string_lossy()]);
}

/// Returns a kubeconfig of this account.
pub(crate) fn kubeconfig_of(control_plane: &ControlPlane, account: &str) -> PathBuf {
    let token = control_plane.kubectl().run_checked(&["create", "token", account, "-n", "etcd-guard"]).stdout;
    kubeconfig_with(control_plane, account, token.trim())
}

//! The shipped cluster with mutual TLS, `etcd-manifests/mtls.yaml`, and a guard that may read the client certificate.

use std::{net::Ipv4Addr, path::Path};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
};
use kube::{Api, Client, api::PostParams};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use tempfile::TempDir;

use crate::webhook::PATH;
use test_support::{
    guard::{
        process::GuardProcess,
        review::{dry_run_review, reason},
    },
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    http_client::Connection,
    kubernetes::{
        control_plane::{ControlPlane, SHARED_NODE},
        pods::new_namespace,
    },
    process_node::ProcessNode,
    wait::wait_for,
};

const MANIFEST: &str = "etcd-manifests/mtls.yaml";
const ROLE: &str = "deploy/secrets-role.yaml";

pub(crate) struct MutualTls {
    namespace: String,
    pods: Api<Pod>,
    pub(crate) guard: GuardProcess,
    node: ProcessNode,
    /// Removed last, after all writers have ended.
    files: TempDir,
}

impl MutualTls {
    /// Starts the cluster. [`Self::follower`] waits until its members serve.
    pub(crate) async fn start(control_plane: &'static ControlPlane) -> Self {
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
        let node = control_plane.process_node(&[SHARED_NODE], &namespace, files.path().join("node"));
        let addresses = GuardedCluster::names().map(|name| node.address(&namespace, name));
        make_secrets(&client, &namespace, &addresses, files.path()).await;
        for file in [ROLE, MANIFEST] {
            let file = test_support::project::path(file);
            control_plane.kubectl().run_checked(&["apply", "-n", &namespace, "-f", &file.to_string_lossy()]);
        }
        let guard = GuardProcess::start(&control_plane.guard_kubeconfig(), &files.path().join("guard")).await;
        let pods = Api::namespaced(client, &namespace);
        Self { namespace, pods, guard, node, files }
    }

    /// Returns the pod of a follower, once all members serve.
    pub(crate) async fn follower(&self) -> Pod {
        let mut connection = Connection::tls(self.guard.https(), &self.guard.ca_pem).await.unwrap();
        wait_for("the deletions of two followers with mutual TLS are approved", START_TIMEOUT, async || {
            let mut approved = Vec::new();
            for name in GuardedCluster::names() {
                let pod = self.pods.get_opt(name).await.ok()??;
                // The deletion of a pod that is starting is also approved, and its member can become the leader.
                let response = connection.post(PATH, dry_run_review(&pod)).await.unwrap();
                if reason(&response.body) == "SafeToDelete" {
                    approved.push(pod);
                }
            }
            // The deletion of the leader is denied.
            (approved.len() == 2).then(|| approved.swap_remove(0))
        })
        .await
    }

    /// Returns the URL of each member with the server name in its certificate, in the format of the reference program.
    pub(crate) fn urls(&self) -> Vec<String> {
        let namespace = &self.namespace;
        let url = |name: &&str| {
            format!("https://{}:2379,{name}.etcd.{namespace}.svc", self.node.address(namespace, name))
        };
        GuardedCluster::names().iter().map(url).collect()
    }

    /// Returns the arguments of the reference program for the guard's client certificate.
    pub(crate) fn tls_arguments(&self) -> Vec<String> {
        let file = |name: &str| self.files.path().join(name).display().to_string();
        vec![String::from("--tls"), file("ca.crt"), file("client.crt"), file("client.key")]
    }
}

/// Creates the Secrets that `etcd-manifests/mtls-certs` creates. The server certificate also contains the addresses of
/// the members, which connect to each other by address here.
async fn make_secrets(client: &Client, namespace: &str, addresses: &[Ipv4Addr], files: &Path) {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.distinguished_name.push(DnType::CommonName, format!("etcd of {namespace}"));
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);

    let mut server = CertificateParams::new(vec![
        String::from("localhost"),
        format!("etcd.{namespace}.svc"),
        format!("*.etcd.{namespace}.svc"),
    ])
    .unwrap();
    let all = addresses.iter().chain([&Ipv4Addr::LOCALHOST]);
    server.subject_alt_names.extend(all.map(|address| SanType::IpAddress((*address).into())));
    server.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let mut client_certificate = CertificateParams::new(Vec::new()).unwrap();
    client_certificate.distinguished_name.push(DnType::CommonName, "etcd-guard");
    client_certificate.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];

    std::fs::write(files.join("ca.crt"), &ca_pem).unwrap();
    for (name, parameters) in [("server", server), ("client", client_certificate)] {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &issuer).unwrap().pem();
        let key = key.serialize_pem();
        std::fs::write(files.join(format!("{name}.crt")), &certificate).unwrap();
        std::fs::write(files.join(format!("{name}.key")), &key).unwrap();
        let mut secret = Secret::default();
        secret.metadata.name = Some(format!("etcd-{name}-tls"));
        let data = [("ca.crt", &ca_pem), ("tls.crt", &certificate), ("tls.key", &key)];
        let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.clone().into_bytes())));
        secret.data = Some(data.into());
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }
}

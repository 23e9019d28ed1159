//! The shipped cluster with mutual TLS, `etcd-manifests/mtls.yaml`, and a guard that may read its client's certificate.

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

use crate::{
    allow::PATH,
    support::{
        control_plane::{ControlPlane, SHARED_NODE},
        guard_process::GuardProcess,
        guarded_cluster::{GuardedCluster, START_LIMIT},
        http_client::Connection,
        pods::new_namespace,
        process_node::ProcessNode,
        review::{dry_run_of, verdict},
        wait::some,
    },
};

const MANIFEST: &str = "etcd-manifests/mtls.yaml";
const ROLE: &str = "deploy/secrets-role.yaml";

pub(crate) struct MutualTls {
    namespace: String,
    pods: Api<Pod>,
    pub(crate) guard: GuardProcess,
    node: ProcessNode,
    /// Removed last, when nobody writes there any more.
    files: TempDir,
}

impl MutualTls {
    /// Starts it; whether its members serve is told by [`Self::follower`].
    pub(crate) async fn start(control_plane: &'static ControlPlane) -> Self {
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
        let node = control_plane.process_node(&[SHARED_NODE], &namespace, files.path().join("node"));
        let addresses = GuardedCluster::names().map(|name| node.address(&namespace, name));
        make_secrets(&client, &namespace, &addresses, files.path()).await;
        for file in [ROLE, MANIFEST] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            control_plane.kubectl().must(&["apply", "-n", &namespace, "-f", &file.to_string_lossy()]);
        }
        let guard = GuardProcess::start(&control_plane.guard_kubeconfig(), &files.path().join("guard")).await;
        let pods = Api::namespaced(client, &namespace);
        Self { namespace, pods, guard, node, files }
    }

    /// A member that may go, once all of them serve.
    pub(crate) async fn follower(&self) -> Pod {
        let mut connection = Connection::tls(self.guard.https(), &self.guard.ca_pem).await.unwrap();
        some("two members with mutual TLS may go", START_LIMIT, async || {
            let mut may_go = Vec::new();
            for name in GuardedCluster::names() {
                let pod = self.pods.get_opt(name).await.ok()??;
                if verdict(&connection.post(PATH, dry_run_of(&pod)).await.unwrap().body).0 {
                    may_go.push(pod);
                }
            }
            // The leader may not.
            (may_go.len() == 2).then(|| may_go.swap_remove(0))
        })
        .await
    }

    /// Its members, each with the name in its certificate, as the reference program wants them.
    pub(crate) fn urls(&self) -> Vec<String> {
        let namespace = &self.namespace;
        let url = |name: &&str| {
            format!("https://{}:2379,{name}.etcd.{namespace}.svc", self.node.address(namespace, name))
        };
        GuardedCluster::names().iter().map(url).collect()
    }

    /// Who the guard is to them.
    pub(crate) fn tls_words(&self) -> Vec<String> {
        let file = |name: &str| self.files.path().join(name).display().to_string();
        vec![String::from("--tls"), file("ca.crt"), file("client.crt"), file("client.key")]
    }
}

/// What `etcd-manifests/mtls-certs` makes, with the members' addresses: here they find each other by these.
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
    server.subject_alt_names.extend(all.map(|it| SanType::IpAddress((*it).into())));
    server.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let mut of_client = CertificateParams::new(Vec::new()).unwrap();
    of_client.distinguished_name.push(DnType::CommonName, "etcd-guard");
    of_client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];

    std::fs::write(files.join("ca.crt"), &ca_pem).unwrap();
    for (name, parameters) in [("server", server), ("client", of_client)] {
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

//! Many clusters of three members: pods on a real API server, each cluster in a namespace of its own, and fake members in this
//! process.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{Event, Namespace, PersistentVolume, PersistentVolumeClaim, Pod, Secret},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    etcd::{
        fake_member::{FakeFleet, FakeListed, FakeReplies},
        fleet_certificates::{CLIENT_SECRET, FleetCertificates},
    },
    kubernetes::webhook,
    wait::wait_until,
};

/// Number of members of each cluster.
const MEMBERS: usize = 3;

/// The longest time until a new namespace has its service account.
const ACCOUNT_TIMEOUT: Duration = Duration::from_secs(90);

/// The longest time until the claims of a namespace are bound. One controller binds the claims of all namespaces, with at most 200
/// calls per second.
const BINDING_TIMEOUT: Duration = Duration::from_secs(600);

/// Number of clusters that are created at the same time.
const CONCURRENT: usize = 16;

/// Clusters that run as long as this exists.
pub struct Fleet {
    client: Client,
    members: FakeFleet,
    /// The certificates, if the members require them.
    certificates: Option<FleetCertificates>,
    /// The pods of each cluster; the first one runs the leader.
    pub clusters: Vec<Vec<Pod>>,
}

impl Fleet {
    /// Starts the double of the members, without a cluster. The members use plain HTTP.
    pub async fn start(client: Client) -> Self {
        Self { client, members: FakeFleet::start().await, certificates: None, clusters: Vec::new() }
    }

    /// Starts the double of members that require a client certificate, without a cluster. Also permits the guard to read the
    /// Secret with the client certificate in each namespace.
    pub async fn start_with_tls(client: Client) -> Self {
        grant_secrets(&client).await;
        Self { certificates: Some(FleetCertificates::new()), ..Self::start(client).await }
    }

    /// Creates clusters until there are this many, and waits until their claims are bound.
    ///
    /// The controllers of Kubernetes repeat an Event of each pending claim. With 3,000 such claims, the API server received 67
    /// updates of Events per second.
    pub async fn grow(&mut self, size: usize) {
        let first = self.clusters.len();
        let new: Vec<Vec<Pod>> =
            stream::iter(first..size).map(|number| self.create(number)).buffered(CONCURRENT).collect().await;
        self.clusters.extend(new);
        for number in first..size {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace(number));
            wait_until("the claims are bound", BINDING_TIMEOUT, async || {
                let claims = claims.list(&ListParams::default()).await.expect("claims").items;
                claims.len() == MEMBERS && claims.iter().all(is_bound)
            })
            .await;
        }
    }

    /// Returns the reasons and sources of the Events that programs other than the guard have repeated. Repeated Events use
    /// processor time that is unrelated to the guard.
    pub async fn repeated_events(&self) -> BTreeSet<(String, String)> {
        let events: Api<Event> = Api::all(self.client.clone());
        let events = events.list(&ListParams::default()).await.expect("events").items;
        let is_repeated = |event: &Event| {
            let in_series = event.series.as_ref().and_then(|series| series.count);
            event.count.max(in_series) > Some(1)
        };
        let repeated = events.into_iter().filter(is_repeated).filter_map(|event| {
            let source = event.source.and_then(|source| source.component).or(event.reporting_component)?;
            (source != "etcd-guard").then(|| (event.reason.unwrap_or_default(), source))
        });
        repeated.collect()
    }

    /// Returns the namespace of each cluster.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        (0..self.clusters.len()).map(namespace).collect()
    }

    /// Returns the client URLs of the members of each cluster.
    #[must_use]
    pub fn urls(&self) -> Vec<Vec<String>> {
        (0..self.clusters.len())
            .map(|number| (0..MEMBERS).map(|index| self.client_url(number, index)).collect())
            .collect()
    }

    fn client_url(&self, cluster: usize, index: usize) -> String {
        format!("{}://{}:{}", self.scheme(), address(cluster, index), self.members.port())
    }

    fn scheme(&self) -> &'static str {
        if self.certificates.is_some() { "https" } else { "http" }
    }

    /// Returns etcd's flags for client URLs and the annotations of the pod. With TLS, the member advertises its address,
    /// because the guard expects the advertised host in the certificate.
    fn settings(&self, cluster: usize, index: usize) -> (Vec<String>, Value) {
        let listen = format!("--listen-client-urls={}://0.0.0.0:{}", self.scheme(), self.members.port());
        match &self.certificates {
            Some(_) => (
                vec![listen, format!("--advertise-client-urls={}", self.client_url(cluster, index))],
                json!({"etcd-guard.io/client-tls-secret": CLIENT_SECRET}),
            ),
            None => (vec![listen], json!({})),
        }
    }

    /// Writes the certificate authority, the client certificate and its key to this folder, if the members require them.
    /// Returns their paths.
    #[must_use]
    pub fn client_files(&self, folder: &Path) -> Option<[PathBuf; 3]> {
        self.certificates.as_ref().map(|certificates| certificates.write_client(folder))
    }

    /// Returns the names of the pods of each cluster.
    #[must_use]
    pub fn pod_names(&self) -> Vec<String> {
        (0..MEMBERS).map(pod_name).collect()
    }

    /// Creates the namespace and the pods of a cluster, and its members.
    async fn create(&self, number: usize) -> Vec<Pod> {
        let namespace = namespace(number);
        let labels = json!({webhook::LABEL: webhook::VALUE});
        let object: Namespace =
            serde_json::from_value(json!({"metadata": {"name": namespace, "labels": labels}}))
                .expect("a valid object");
        Api::<Namespace>::all(self.client.clone())
            .create(&PostParams::default(), &object)
            .await
            .expect("a namespace");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let tls = self
            .certificates
            .as_ref()
            .map(|certificates| certificates.acceptor((0..MEMBERS).map(|index| address(number, index))));
        if let Some(certificates) = &self.certificates {
            let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
            secrets.create(&PostParams::default(), &certificates.secret()).await.expect("a Secret");
        }
        let id = |index: usize| u64::try_from(number * MEMBERS + index + 1).expect("64 bits");
        let listed: Vec<FakeListed> = (0..MEMBERS)
            .map(|index| FakeListed {
                id: id(index),
                name: pod_name(index),
                peer_urls: vec![format!("http://{}:2380", address(number, index))],
                client_urls: vec![self.client_url(number, index)],
            })
            .collect();
        let mut created = Vec::new();
        for index in 0..MEMBERS {
            let replies = FakeReplies {
                cluster_id: 0xc000_0000 + id(0),
                member_id: id(index),
                leader: id(0),
                term: 7,
                members: listed.clone(),
            };
            self.members.add(IpAddr::V4(address(number, index)), replies, tls.clone());
            self.create_claim(&claims, &namespace, index).await;
            created
                .push(create_pod(&pods, index, address(number, index), &self.settings(number, index)).await);
        }
        created
    }

    /// Creates the claim of a member's data, which outlives the pod, after the volume to which the controllers bind it. The
    /// controllers examine a claim that precedes its volume again only after up to 15 s.
    async fn create_claim(&self, claims: &Api<PersistentVolumeClaim>, namespace: &str, index: usize) {
        let (name, volume_name) = (claim_name(index), format!("{namespace}-{index}"));
        let (modes, size) = (json!(["ReadWriteOnce"]), json!({"storage": "1Gi"}));
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": volume_name},
            "spec": {
                "accessModes": modes, "capacity": size, "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": "/data"},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name,
                },
            },
        }))
        .expect("a valid object");
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.create(&PostParams::default(), &volume).await.expect("a volume");
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": modes, "resources": {"requests": size}, "storageClassName": "",
                "volumeName": volume_name,
            },
        }))
        .expect("a valid object");
        claims.create(&PostParams::default(), &claim).await.expect("a claim");
    }
}

/// Allows the guard to read the Secrets with client certificates, in all namespaces.
async fn grant_secrets(client: &Client) {
    let name = "etcd-guard-fleet-secrets";
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [CLIENT_SECRET], "verbs": ["get"]}],
    }))
    .expect("a valid object");
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "etcd-guard", "namespace": "etcd-guard"}],
    }))
    .expect("a valid object");
    let (roles, bindings): (Api<ClusterRole>, Api<ClusterRoleBinding>) =
        (Api::all(client.clone()), Api::all(client.clone()));
    roles.create(&PostParams::default(), &role).await.expect("a role");
    bindings.create(&PostParams::default(), &binding).await.expect("a binding");
}

/// Returns whether the controllers have bound the claim to its volume.
fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn claim_name(index: usize) -> String {
    format!("data-etcd-{index}")
}

/// Creates the pod of a member with these flags and annotations.
async fn create_pod(
    pods: &Api<Pod>,
    index: usize,
    address: Ipv4Addr,
    (flags, annotations): &(Vec<String>, Value),
) -> Pod {
    let name = pod_name(index);
    let command =
        [&[String::from("etcd"), format!("--name={name}"), String::from("--data-dir=/data")], &flags[..]];
    let container = json!({
        "name": "etcd", "image": "etcd",
        "command": command.concat(),
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    });
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": "etcd"}, "annotations": annotations},
        "spec": {
            "schedulerName": "no-scheduler",
            "automountServiceAccountToken": false,
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name(index)}}],
        },
    }))
    .expect("a valid object");
    wait_until("the namespace has a service account", ACCOUNT_TIMEOUT, async || {
        match pods.create(&PostParams::default(), &pod).await {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if status.code == 403 => false,
            Err(error) => panic!("{name}: {error}"),
        }
    })
    .await;
    let status: Value = json!({"status": {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "etcd", "ready": true, "restartCount": 0, "image": "etcd", "imageID": "",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }],
    }});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status")
}

/// Returns the namespace of a cluster.
fn namespace(cluster: usize) -> String {
    format!("scale-{cluster}")
}

fn pod_name(index: usize) -> String {
    format!("etcd-{index}")
}

/// Returns the address of a member, from 127.32.0.1 on.
fn address(cluster: usize, index: usize) -> Ipv4Addr {
    let number = u32::try_from(cluster * MEMBERS + index + 1).expect("fewer than 2^32 members");
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 32, 0, 0)) + number)
}

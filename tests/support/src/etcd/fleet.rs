//! Many clusters of three members: pods on a real API server, each cluster in a namespace of its own, and fake members in this
//! process.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    etcd::fake_member::{FakeFleet, FakeListed, FakeReplies},
    kubernetes::webhook,
    wait::wait_until,
};

/// Number of members of each cluster.
const MEMBERS: usize = 3;

/// The longest time until a new namespace has its service account.
const ACCOUNT_TIMEOUT: Duration = Duration::from_secs(90);

/// Number of clusters that are created at the same time.
const CONCURRENT: usize = 16;

/// Clusters that run as long as this exists.
pub struct Fleet {
    client: Client,
    members: FakeFleet,
    /// The pods of each cluster; the first one runs the leader.
    pub clusters: Vec<Vec<Pod>>,
}

impl Fleet {
    /// Starts the double of the members, without a cluster.
    pub async fn start(client: Client) -> Self {
        Self { client, members: FakeFleet::start().await, clusters: Vec::new() }
    }

    /// Creates clusters until there are this many.
    pub async fn grow(&mut self, size: usize) {
        let first = self.clusters.len();
        let new: Vec<Vec<Pod>> =
            stream::iter(first..size).map(|number| self.create(number)).buffered(CONCURRENT).collect().await;
        self.clusters.extend(new);
    }

    /// Returns the namespace of each cluster.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        (0..self.clusters.len()).map(namespace).collect()
    }

    /// Returns the client URLs of the members of each cluster.
    #[must_use]
    pub fn urls(&self) -> Vec<Vec<String>> {
        let port = self.members.port();
        (0..self.clusters.len())
            .map(|number| (0..MEMBERS).map(|index| url(number, index, port)).collect())
            .collect()
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
        let port = self.members.port();
        let id = |index: usize| u64::try_from(number * MEMBERS + index + 1).expect("64 bits");
        let listed: Vec<FakeListed> = (0..MEMBERS)
            .map(|index| FakeListed {
                id: id(index),
                name: pod_name(index),
                peer_urls: vec![url(number, index, 2380)],
                client_urls: vec![url(number, index, port)],
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
            self.members.add(IpAddr::V4(address(number, index)), replies);
            create_claim(&claims, index).await;
            created.push(create_pod(&pods, number, index, port).await);
        }
        created
    }
}

/// Creates the claim of a member's data, which outlives the pod.
async fn create_claim(claims: &Api<PersistentVolumeClaim>, index: usize) {
    let name = claim_name(index);
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))
    .expect("a valid object");
    claims.create(&PostParams::default(), &claim).await.expect("a claim");
    let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    claims.patch_status(&name, &PatchParams::default(), &bound).await.expect("a status");
}

fn claim_name(index: usize) -> String {
    format!("data-etcd-{index}")
}

async fn create_pod(pods: &Api<Pod>, number: usize, index: usize, port: u16) -> Pod {
    let name = pod_name(index);
    let urls = format!("--listen-client-urls=http://0.0.0.0:{port}");
    let container = json!({
        "name": "etcd", "image": "etcd",
        "command": ["etcd", format!("--name={name}"), "--data-dir=/data", urls],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    });
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": "etcd"}},
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
    let address = address(number, index);
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

/// Returns the URL of a member at this port.
fn url(cluster: usize, index: usize, port: u16) -> String {
    format!("http://{}:{port}", address(cluster, index))
}

/// Returns the address of a member, from 127.32.0.1 on.
fn address(cluster: usize, index: usize) -> Ipv4Addr {
    let number = u32::try_from(cluster * MEMBERS + index + 1).expect("fewer than 2^32 members");
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 32, 0, 0)) + number)
}

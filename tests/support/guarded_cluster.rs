//! What most tests begin with: a namespace with the shipped etcd StatefulSet, and a guard of its own that is asked.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::Eviction},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    core::Status,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::{
    control_plane::{ControlPlane, SHARED_NODE},
    guard_process::{CONFIG, GuardProcess, OTLP_ENDPOINT, SURVEY_INTERVAL},
    kubectl::{Kubectl, Said},
    member::Member,
    pods::{create_pod, delete, is_ready, new_namespace, uid},
    process_node::{Order, ProcessNode},
    wait, webhook,
};

/// Three processes and an election take about three seconds, next to compilers many times that.
pub const START_LIMIT: Duration = Duration::from_secs(90);

/// The shipped example that users are told to apply.
const MANIFEST: &str = "etcd-manifests/plain.yaml";

/// A pod that runs no etcd, beside the members.
pub const BYSTANDER: &str = "bystander";

/// A guarded etcd cluster of three, in a namespace of its own.
pub struct GuardedCluster {
    pub namespace: String,
    pub client: Client,
    pub pods: Api<Pod>,
    pub guard: GuardProcess,
    pub node: ProcessNode,
    pub control_plane: &'static ControlPlane,
    /// Removed last, when nobody writes there any more.
    _files: TempDir,
}

/// What a test may want to be otherwise.
pub struct Setup<'a> {
    /// Where the members run, one after the other.
    pub nodes: &'a [&'a str],
    /// The guard's configuration file; none if it is empty.
    pub config: &'a str,
    /// How often the guard surveys; not at all if it is empty.
    pub survey_interval: &'a str,
    /// Whom the guard sends traces to; nobody if it is empty.
    pub otlp_endpoint: &'a str,
    /// The guard's kubeconfig, if it is not the one with the shipped rights.
    pub kubeconfig: Option<PathBuf>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self { nodes: &[SHARED_NODE], config: "", survey_interval: "", otlp_endpoint: "", kubeconfig: None }
    }
}

impl GuardedCluster {
    /// Starts one, and returns when its members serve and the apiserver asks its guard.
    pub async fn start() -> Self {
        Self::start_as(Setup::default()).await
    }

    /// On these nodes, the members one after the other.
    pub async fn start_on(nodes: &[&str]) -> Self {
        Self::start_as(Setup { nodes, ..Setup::default() }).await
    }

    /// The same as a test wants it.
    pub async fn start_as(setup: Setup<'_>) -> Self {
        let Setup { nodes, config, survey_interval, otlp_endpoint, kubeconfig } = setup;
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(MANIFEST);
        control_plane.kubectl().must(&["apply", "-n", &namespace, "-f", &manifest.to_string_lossy()]);
        let files = tempfile::tempdir_in(&control_plane.dir).expect("a directory");
        let node = control_plane.process_node(nodes, &namespace, files.path().join("node"));
        let guard_files = files.path().join("guard");
        std::fs::create_dir_all(&guard_files).expect("a directory for the guard");
        let chosen = [(CONFIG, config), (SURVEY_INTERVAL, survey_interval), (OTLP_ENDPOINT, otlp_endpoint)];
        for (name, content) in chosen {
            if !content.is_empty() {
                std::fs::write(guard_files.join(name), content).expect("what the guard is to be is written");
            }
        }
        let kubeconfig = kubeconfig.unwrap_or_else(|| control_plane.guard_kubeconfig());
        let guard = GuardProcess::start(&kubeconfig, &guard_files).await;
        let pods = Api::namespaced(client.clone(), &namespace);
        let mut cluster = Self { namespace, client, pods, guard, node, control_plane, _files: files };
        cluster.register_webhook(|_| {}).await;
        cluster.wait_until_whole().await;
        cluster
    }

    /// Registers the guard, changed in this way, and returns when the apiserver asks it.
    pub async fn register_webhook(&mut self, change: impl Fn(&mut Value)) {
        webhook::register(&self.client, &self.namespace, &self.guard, change).await;
        create_pod(&self.pods, BYSTANDER).await;
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        let asked_before = self.guard.requests().await;
        wait::until("the apiserver asks the guard", START_LIMIT, async || {
            self.pods.delete(BYSTANDER, &dry_run).await.is_ok() && self.guard.requests().await > asked_before
        })
        .await;
        self.guard.news().await;
    }

    /// From now on what the guard allows happens two seconds later, as long as the listener lasts.
    pub async fn slow_down_deletions(&self) -> TcpListener {
        let listener = webhook::slow_down(&self.client, &self.namespace, &self.guard).await;
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        wait::until("the apiserver asks the slow webhook", START_LIMIT, async || {
            let started = Instant::now();
            self.pods.delete(BYSTANDER, &dry_run).await.is_ok() && started.elapsed() > Duration::from_secs(1)
        })
        .await;
        listener
    }

    /// From now on another webhook refuses all deletions of pods. Returns the name of its configuration.
    pub async fn refuse_deletions(&self) -> String {
        let name = webhook::refuse(&self.client, &self.namespace, &self.guard).await;
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        wait::until("the other webhook refuses", START_LIMIT, async || {
            self.pods.delete(BYSTANDER, &dry_run).await.is_err()
        })
        .await;
        name
    }

    /// The names of the members' pods.
    pub fn names() -> [&'static str; 3] {
        ["etcd-0", "etcd-1", "etcd-2"]
    }

    /// Returns when all members serve, and their pods are ready and not on their way out.
    pub async fn wait_until_whole(&self) {
        for name in Self::names() {
            self.wait_until_back(name, "").await;
        }
    }

    /// Returns when the pod is another than this one, is ready, and its member serves.
    pub async fn wait_until_back(&self, name: &str, uid_before: &str) {
        wait::until(&format!("{name} serves"), START_LIMIT, async || {
            let Ok(Some(pod)) = self.pods.get_opt(name).await else { return false };
            uid(&pod) != uid_before
                && pod.metadata.deletion_timestamp.is_none()
                && is_ready(&pod)
                && self.member(name).serves().await
        })
        .await;
    }

    /// The pod whose member leads, once all members agree on it.
    pub async fn leader(&self) -> String {
        wait::some("a leader", START_LIMIT, async || {
            let mut leader = None;
            for name in Self::names() {
                let status = self.member(name).status().await?;
                if status.leader() == 0 {
                    return None;
                }
                if status.leader() == status.header()?.member_id() {
                    leader = Some(name.to_owned());
                }
            }
            leader
        })
        .await
    }

    /// Makes this pod's member the leader, if it is not.
    pub async fn let_lead(&self, name: &str) {
        let leader = self.leader().await;
        if leader != name {
            let heir = self.member(name).status().await.expect("a member that answers");
            let heir = heir.header().expect("a header").member_id();
            let mut client = self.member(&leader).client().await.expect("a leader that answers");
            client.move_leader(heir).await.expect("a leader that hands over");
        }
        assert_eq!(self.leader().await, name);
    }

    /// The other two.
    pub async fn followers(&self) -> [String; 2] {
        let leader = self.leader().await;
        let followers: Vec<String> =
            Self::names().iter().filter(|it| **it != leader).map(|it| (*it).into()).collect();
        followers.try_into().expect("two of three")
    }

    /// The member of this pod, at its own address.
    pub fn member(&self, name: &str) -> Member {
        Member::at(self.address(name))
    }

    pub fn address(&self, name: &str) -> Ipv4Addr {
        self.node.address(&self.namespace, name)
    }

    pub async fn uid(&self, name: &str) -> String {
        uid(&self.pods.get(name).await.expect("a pod")).to_owned()
    }

    /// Does something to a pod's process.
    pub async fn order(&self, name: &str, order: Order) {
        self.node.order(&self.namespace, name, order).await;
    }

    /// What a user types, with this namespace as the default.
    pub async fn kubectl(&self, arguments: &[&str]) -> Said {
        let namespace = ["-n", &self.namespace];
        self.kubectl_everywhere().run(&[&namespace, arguments].concat()).await
    }

    pub fn kubectl_everywhere(&self) -> Kubectl {
        self.control_plane.kubectl()
    }

    /// Evicts a pod, as autoscalers do. kube's own way leaves out the options.
    pub async fn evict(&self, name: &str, options: Option<DeleteOptions>) -> Result<(), Box<Status>> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let eviction = Eviction { delete_options: options, metadata };
        let parameters = PostParams::default();
        let result: Result<Value, _> =
            self.pods.create_subresource("eviction", name, &parameters, &eviction).await;
        match result {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => Err(status),
            Err(error) => panic!("evicting {name}: {error}"),
        }
    }

    /// Overrules denials on this object for the next ten minutes, as soon as the guard knows.
    pub async fn break_glass(&self, object: &str) {
        let end = Timestamp::now() + SignedDuration::from_mins(10);
        let until = format!("etcd-guard.io/allow-delete-until={end}");
        let why = "etcd-guard.io/allow-delete-reason=it is meant";
        let said = self.kubectl(&["annotate", object, &until, why]).await;
        assert!(said.success, "{said:?}");
    }

    /// Deletes a pod as `kubectl delete pod` does, without waiting for its end.
    pub async fn delete(&self, name: &str) -> Result<(), String> {
        delete(&self.pods, name).await
    }
}

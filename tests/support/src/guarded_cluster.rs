//! The setup of most tests: a namespace with an etcd cluster, by default the shipped StatefulSet, and a guard of its own.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::Pod,
        policy::v1::{Eviction, PodDisruptionBudget},
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::Status,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::{
    etcd::member::Member,
    guard::process::{
        CLUSTER_METRICS, CONFIG, GuardProcess, HANDOVER, OPT_IN_LABEL, OTLP_ENDPOINT, POD_NAME,
        SURVEY_INTERVAL,
    },
    kubernetes::{
        control_plane::{ControlPlane, SHARED_NODE},
        kubectl::{CommandOutput, Kubectl},
        pods::{create_pod, delete, is_ready, new_namespace, uid},
        webhook::{self, HoldingWebhook},
    },
    layout::Layout,
    process_node::{ProcessAction, ProcessNode},
    wait,
};

/// Three processes and an election take about three seconds, on a busy machine many times that.
pub const START_TIMEOUT: Duration = Duration::from_secs(90);

/// The longest time for a transfer of leadership, which takes about 100 ms. Raft aborts it after an election timeout.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// A pod beside the members that does not run etcd.
pub const UNRELATED_POD: &str = "unrelated";

/// A guarded etcd cluster in a namespace of its own, by default with three members in one StatefulSet.
pub struct GuardedCluster {
    /// The namespace, which is also the value of the label of its test.
    pub namespace: String,
    /// The API as the admin.
    pub client: Client,
    /// The pods of the namespace.
    pub pods: Api<Pod>,
    /// The guard of this namespace.
    pub guard: GuardProcess,
    /// The process node of this namespace.
    pub node: ProcessNode,
    /// The control plane, shared with other tests.
    pub control_plane: &'static ControlPlane,
    /// The objects of the cluster.
    pub layout: Layout,
    /// Removed last, after all writers have ended.
    files: TempDir,
}

/// Deviations from the default setup.
pub struct Setup<'a> {
    /// The objects of the cluster.
    pub layout: Layout,
    /// The nodes of the members, in order; the list is repeated as needed.
    pub nodes: &'a [&'a str],
    /// The guard's configuration file; the guard gets no file if this is empty.
    pub config: &'a str,
    /// The survey interval; the guard does not survey if this is empty.
    pub survey_interval: &'a str,
    /// Whether the guard exports metrics with the names of clusters.
    pub cluster_metrics: bool,
    /// The endpoint for traces; the guard sends no traces if this is empty.
    pub otlp_endpoint: &'a str,
    /// The name of the guard's own pod in its namespace; the guard runs in no pod if this is empty.
    pub pod_name: &'a str,
    /// The label of guarded namespaces, `KEY=VALUE`; the guard has its default if this is empty.
    pub opt_in_label: &'a str,
    /// Whether the guard moves leadership before disruptions.
    pub handover: bool,
    /// The guard's kubeconfig, if not the one with the shipped permissions.
    pub kubeconfig: Option<PathBuf>,
    /// Changes the text of the shipped manifest.
    pub change_manifest: fn(&str) -> String,
    /// Whether the members never serve, so that nothing waits for them.
    pub is_broken: bool,
}

/// A configuration with which evictions and programs do not move leadership either.
pub const LEADER_DENY: &str = "apiVersion: etcd-guard.io/v1alpha1\nguard: {defaults: {leader: deny}}\n";

/// Removes the priority class from the shipped manifest.
pub fn without_priority_class(manifest: &str) -> String {
    let class = "      priorityClassName: system-cluster-critical\n";
    assert!(manifest.contains(class), "the shipped manifest has a priority class");
    manifest.replace(class, "")
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            nodes: &[SHARED_NODE],
            config: "",
            survey_interval: "",
            cluster_metrics: false,
            otlp_endpoint: "",
            pod_name: "",
            opt_in_label: "",
            handover: false,
            kubeconfig: None,
            change_manifest: str::to_owned,
            is_broken: false,
        }
    }
}

impl GuardedCluster {
    /// Starts a cluster, and returns when its members serve and the API server calls its guard.
    pub async fn start() -> Self {
        Self::start_as(Setup::default()).await
    }

    /// Starts a cluster whose members run on these nodes, in order.
    pub async fn start_on(nodes: &[&str]) -> Self {
        Self::start_as(Setup { nodes, ..Setup::default() }).await
    }

    /// Starts a cluster with this setup.
    pub async fn start_as(setup: Setup<'_>) -> Self {
        let Setup {
            layout,
            nodes,
            config,
            survey_interval,
            cluster_metrics,
            otlp_endpoint,
            pod_name,
            opt_in_label,
            handover,
            kubeconfig,
            change_manifest,
            is_broken,
        } = setup;
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        let files = tempfile::tempdir_in(&control_plane.dir).expect("a directory");
        layout.apply_changed(&control_plane.kubectl(), &namespace, files.path(), change_manifest);
        let node = control_plane.process_node(nodes, &namespace, files.path().join("node"));
        let guard_files = files.path().join("guard");
        std::fs::create_dir_all(&guard_files).expect("a directory for the guard");
        let chosen = [
            (CONFIG, config),
            (SURVEY_INTERVAL, survey_interval),
            (CLUSTER_METRICS, if cluster_metrics { "500" } else { "" }),
            (OTLP_ENDPOINT, otlp_endpoint),
            (POD_NAME, pod_name),
            (OPT_IN_LABEL, opt_in_label),
        ];
        for (name, content) in chosen {
            if !content.is_empty() {
                std::fs::write(guard_files.join(name), content).expect("the guard's files are written");
            }
        }
        if handover {
            std::fs::write(guard_files.join(HANDOVER), "").expect("the guard's files are written");
        }
        let kubeconfig = kubeconfig.unwrap_or_else(|| control_plane.guard_kubeconfig());
        let guard = GuardProcess::start(&kubeconfig, &guard_files).await;
        let pods = Api::namespaced(client.clone(), &namespace);
        let mut cluster = Self { namespace, client, pods, guard, node, control_plane, layout, files };
        if let Some((key, value)) = opt_in_label.split_once('=') {
            cluster.label_namespace(&[&format!("{}-", webhook::LABEL), opt_in_label]).await;
            let select = |entry: &mut Value| {
                let labels = &mut entry["namespaceSelector"]["matchLabels"];
                labels.as_object_mut().expect("labels").remove(webhook::LABEL);
                labels[key] = serde_json::json!(value);
            };
            cluster.register_webhook(select).await;
        } else {
            cluster.register_webhook(|_| {}).await;
        }
        if !is_broken {
            cluster.wait_until_healthy().await;
        }
        cluster
    }

    /// Registers the guard with a changed configuration, and returns when the API server calls it.
    pub async fn register_webhook(&mut self, change: impl Fn(&mut Value)) {
        webhook::register(&self.client, &self.namespace, &self.guard, change).await;
        create_pod(&self.pods, UNRELATED_POD).await;
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        let calls_before = self.guard.request_count().await;
        wait::wait_until("the API server calls the guard", START_TIMEOUT, async || {
            self.pods.delete(UNRELATED_POD, &dry_run).await.is_ok()
                && self.guard.request_count().await > calls_before
        })
        .await;
        self.guard.new_verdicts().await;
    }

    /// Changes labels of the namespace, each as in `kubectl label`.
    pub async fn label_namespace(&self, labels: &[&str]) {
        let arguments = [&["label", "--overwrite", "namespace", self.namespace.as_str()], labels].concat();
        let output = self.kubectl_everywhere().run(&arguments).await;
        assert!(output.success, "{output:?}");
    }

    /// Adds another webhook that can hold deletions of pods.
    pub async fn add_holder_of_deletions(&self) -> HoldingWebhook {
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        self.add_holder("DELETE", "pods", async || self.pods.delete(UNRELATED_POD, &dry_run).await.is_ok())
            .await
    }

    /// Adds another webhook that can hold evictions.
    pub async fn add_holder_of_evictions(&self) -> HoldingWebhook {
        self.add_holder("CREATE", "pods/eviction", async || self.evict_in_dry_run(UNRELATED_POD).await).await
    }

    async fn add_holder(
        &self,
        operation: &str,
        resource: &str,
        is_approved: impl AsyncFn() -> bool,
    ) -> HoldingWebhook {
        let label = &self.namespace;
        let holder = HoldingWebhook::add(&self.client, label, &self.guard, operation, resource).await;
        wait::wait_until("the API server calls the other webhook", START_TIMEOUT, async || {
            let before = holder.count();
            is_approved().await && holder.count() > before
        })
        .await;
        holder
    }

    /// Adds another webhook that rejects all deletions of pods. Returns the name of its configuration.
    pub async fn reject_deletions(&self) -> String {
        let name = webhook::add_failing_webhook(&self.client, &self.namespace, &self.guard).await;
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        wait::wait_until("the other webhook rejects deletions", START_TIMEOUT, async || {
            self.pods.delete(UNRELATED_POD, &dry_run).await.is_err()
        })
        .await;
        name
    }

    /// Rejects the deletions by the garbage collector in this namespace before the guard reviews them. Returns the name of
    /// the configuration.
    pub async fn hold_collector(&self) -> String {
        let name = webhook::add_collector_block(&self.client, &self.namespace, &self.guard).await;
        let user = format!("--as={}", webhook::COLLECTOR);
        let delete = ["delete", "pod", UNRELATED_POD, "--dry-run=server", &user];
        wait::wait_until("the collector is held back", START_TIMEOUT, async || {
            !self.kubectl(&delete).await.success
        })
        .await;
        name
    }

    /// Returns the names of the members' pods in the default layout.
    pub fn names() -> [&'static str; 3] {
        ["etcd-0", "etcd-1", "etcd-2"]
    }

    /// Returns the names of the members' pods in every layout. If the names are random, these are the pods that exist
    /// and are not terminating.
    pub async fn pod_names(&self) -> Vec<String> {
        if let Some(names) = self.layout.pod_names() {
            return names;
        }
        let pods = self.pods.list(&ListParams::default().labels("app=etcd")).await.expect("the pods");
        let current = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        current.filter_map(|pod| pod.metadata.name).collect()
    }

    /// Waits until all members serve and their pods are ready and not terminating.
    pub async fn wait_until_healthy(&self) {
        let names = wait::wait_for("all pods exist", START_TIMEOUT, async || {
            Some(self.pod_names().await).filter(|names| names.len() == self.layout.members)
        });
        for name in names.await {
            self.wait_until_replaced(&name, "").await;
        }
    }

    /// Waits until each budget of the namespace allows an eviction. Its controller counts ready pods a moment later than their
    /// kubelet reports them.
    pub async fn wait_until_budgets_allow(&self) {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.namespace);
        wait::wait_until("the budgets allow an eviction", START_TIMEOUT, async || {
            let listed = budgets.list(&ListParams::default()).await.expect("the budgets are listed");
            listed
                .items
                .iter()
                .all(|budget| budget.status.as_ref().is_some_and(|status| status.disruptions_allowed > 0))
        })
        .await;
    }

    /// Creates pods without an owner again after they were deleted and are gone.
    pub fn recreate_pods(&self) {
        self.layout.recreate(&self.control_plane.kubectl(), &self.namespace, self.dir());
    }

    /// Returns a folder for files, which is removed with this cluster.
    pub fn dir(&self) -> &Path {
        self.files.path()
    }

    /// Waits until the pod has another uid than this one, is ready and not terminating, and its member serves.
    pub async fn wait_until_replaced(&self, name: &str, uid_before: &str) {
        wait::wait_until(&format!("{name} serves"), START_TIMEOUT, async || {
            let Ok(Some(pod)) = self.pods.get_opt(name).await else { return false };
            uid(&pod) != uid_before
                && pod.metadata.deletion_timestamp.is_none()
                && is_ready(&pod)
                && self.member(name).serves().await
        })
        .await;
    }

    /// Returns the pod of the leader, once all members agree on it.
    pub async fn leader(&self) -> String {
        self.leadership().await.0
    }

    /// Returns the pod of the leader and its term, once all members agree on them.
    pub async fn leadership(&self) -> (String, u64) {
        wait::wait_for("a leader", START_TIMEOUT, async || {
            let (mut leader, mut reports) = (None, Vec::new());
            for name in self.pod_names().await {
                let status = self.member(&name).status().await?;
                if status.leader() == status.header()?.member_id() {
                    leader = Some(name);
                }
                reports.push((status.leader(), status.raft_term()));
            }
            let report = *reports.first()?;
            let is_agreed = report.0 != 0 && reports.iter().all(|other| *other == report);
            leader.filter(|_| is_agreed).map(|leader| (leader, report.1))
        })
        .await
    }

    /// Transfers leadership to the member of this pod, unless it leads already. Repeats the transfer after an election.
    pub async fn make_leader(&self, name: &str) {
        wait::wait_until(&format!("{name} leads"), START_TIMEOUT, async || {
            let leader = self.leader().await;
            if leader == name {
                return true;
            }
            let transferee = self.member(name).status().await.expect("the member answers");
            let transferee = transferee.header().expect("a header").member_id();
            let mut client = self.member(&leader).client().await.expect("the leader answers");
            // If raft aborts the transfer, etcd answers this call only at its deadline.
            let moved = timeout(TRANSFER_TIMEOUT, client.move_leader(transferee)).await;
            if !matches!(moved, Ok(Ok(_))) {
                eprintln!("leadership did not move from {leader} to {name}: {moved:?}");
            }
            false
        })
        .await;
    }

    /// Returns the pods of the two followers.
    pub async fn followers(&self) -> [String; 2] {
        let leader = self.leader().await;
        let followers: Vec<String> =
            self.pod_names().await.into_iter().filter(|name| *name != leader).collect();
        followers.try_into().expect("two of three")
    }

    /// Removes the cluster's reservations, as if they had expired. A change by a running evaluation wins.
    pub async fn expire_reservations(&self) {
        let name = format!("etcd-guard.ns.{}", self.namespace);
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "etcd-guard");
        // Replicas would restore the reservations of a deleted Lease.
        let empty = json!({"metadata": {"annotations": {"etcd-guard.io/reservations": "[]"}}});
        let patch = Patch::Merge(&empty);
        leases.patch(&name, &PatchParams::default(), &patch).await.expect("a Lease with the reservations");
    }

    /// Returns the member of this pod.
    pub fn member(&self, name: &str) -> Member {
        Member::at(self.address(name))
    }

    /// Returns the address of a pod.
    pub fn address(&self, name: &str) -> Ipv4Addr {
        self.node.address(&self.namespace, name)
    }

    /// Returns the uid of a pod.
    pub async fn uid(&self, name: &str) -> String {
        uid(&self.pods.get(name).await.expect("a pod")).to_owned()
    }

    /// Applies an action to the process of a pod.
    pub async fn apply(&self, name: &str, action: ProcessAction) {
        self.node.apply(&self.namespace, name, action).await;
    }

    /// Returns the minor version of Kubernetes.
    pub async fn kubernetes_minor(&self) -> u32 {
        let version = self.kubectl_everywhere().run(&["get", "--raw", "/version"]).await.stdout;
        let version: serde_json::Value = serde_json::from_str(&version).unwrap();
        version["minor"].as_str().unwrap().parse().unwrap()
    }

    /// Runs `kubectl` in this namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> CommandOutput {
        let namespace = ["-n", &self.namespace];
        self.kubectl_everywhere().run(&[&namespace, arguments].concat()).await
    }

    /// `kubectl` without a namespace flag.
    pub fn kubectl_everywhere(&self) -> Kubectl {
        self.control_plane.kubectl()
    }

    /// Evicts a pod with these delete options, as autoscalers do. The method of `kube` does not accept options.
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

    /// Whether an eviction would be accepted.
    pub async fn evict_in_dry_run(&self, name: &str) -> bool {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let eviction = Eviction { delete_options: None, metadata };
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        let result: Result<Value, _> =
            self.pods.create_subresource("eviction", name, &parameters, &eviction).await;
        result.is_ok()
    }

    /// Annotates an object with a break-glass that lasts ten minutes; the guard learns of it by a watch.
    pub async fn break_glass(&self, object: &str) {
        let end = Timestamp::now() + SignedDuration::from_mins(10);
        let until = format!("etcd-guard.io/allow-delete-until={end}");
        let reason = "etcd-guard.io/allow-delete-reason=planned maintenance";
        let output = self.kubectl(&["annotate", object, &until, reason]).await;
        assert!(output.success, "{output:?}");
    }

    /// Deletes a pod as `kubectl delete pod` does, without waiting for its end. The error is the message of the API
    /// server.
    pub async fn delete(&self, name: &str) -> Result<(), String> {
        delete(&self.pods, name).await
    }
}

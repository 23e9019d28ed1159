//! The status of over-committed nodes, which the guard writes itself, and its values while no guard answers.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::{ByteString, api::core::v1::Node};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};

use test_support::{
    guard::process::{CONFIG, GuardProcess, WRITE_NODE_STATUS},
    kubernetes::{api_client, control_plane::ControlPlane, has_mutating_policies},
    project,
    wait::wait_until,
};

const LABEL: &str = "node-restriction.kubernetes.io/over-commit";
const RECORD: &str = "etcd-guard.io/over-commit";

/// The longest time until an effect is visible, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A little longer than the time after which the values of a node without label count as the machine's.
const UNRAISED_PERIOD: Duration = Duration::from_secs(32);

/// The time in which replicas that disagreed would write several times.
const QUIET_PERIOD: Duration = Duration::from_secs(4);

/// A control plane with a node, the shipped permissions, and the folders of two guards.
struct Setup {
    control_plane: ControlPlane,
    nodes: Api<Node>,
}

impl Setup {
    async fn start(flags: &[&str]) -> Self {
        let flags: Vec<&str> = flags.iter().flat_map(|flag| ["--apiserver-flag", flag]).collect();
        let control_plane = ControlPlane::start_with(&[], &flags);
        control_plane.grant_guard_permissions();
        for file in ["rbac.yaml", "policy.yaml"] {
            apply(&control_plane, &format!("deploy/components/over-commit/{file}"));
        }
        let nodes: Api<Node> = Api::all(control_plane.client().await);
        let setup = Self { control_plane, nodes };
        setup.create_node("node").await;
        setup
    }

    async fn create_node(&self, name: &str) {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        self.nodes.create(&PostParams::default(), &node).await.unwrap();
        self.write_as_kubelet(name, ("3920m", "4")).await;
    }

    async fn guard(&self, name: &str) -> GuardProcess {
        let files = self.control_plane.dir.join(name);
        std::fs::create_dir_all(&files).unwrap();
        configure(&files.join(CONFIG), "{}");
        std::fs::write(files.join(WRITE_NODE_STATUS), "").unwrap();
        GuardProcess::start(&self.control_plane.guard_kubeconfig(), &files).await
    }

    /// Registers the guard by the shipped configuration, and waits until the API server calls it.
    async fn register(&self, guard: &GuardProcess) {
        let file = project::path("deploy/components/over-commit/webhook.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let mut configuration: Value = serde_saphyr::from_str(&text).unwrap();
        let bundle = ByteString(guard.ca_pem.clone().into_bytes());
        configuration["webhooks"][0]["clientConfig"] =
            json!({"url": format!("https://{}/mutate", guard.https()), "caBundle": bundle});
        let file = self.control_plane.dir.join("webhook.json");
        std::fs::write(&file, configuration.to_string()).unwrap();
        self.control_plane.kubectl().run_checked(&["apply", "-f", &file.to_string_lossy()]);
        let labels = json!({LABEL: "1"});
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "called", "labels": labels}})).unwrap();
        self.nodes.create(&PostParams::default(), &node).await.unwrap();
        let before = guard.request_count().await;
        wait_until("the API server calls the guard", TIMEOUT, async || {
            let patch = Patch::Merge(json!({"status": {"phase": "Pending"}}));
            self.nodes.patch_status("called", &PatchParams::default(), &patch).await.unwrap();
            guard.request_count().await > before
        })
        .await;
        self.nodes.delete("called", &DeleteParams::default()).await.unwrap();
    }

    /// Writes the machine's values, as a kubelet does that finds others.
    async fn write_as_kubelet(&self, name: &str, cpu: (&str, &str)) {
        let status = json!({
            "allocatable": {"cpu": cpu.0, "memory": "1Gi", "pods": "110"},
            "capacity": {"cpu": cpu.1, "memory": "2Gi", "pods": "110"},
        });
        let patch = Patch::Merge(json!({"status": status}));
        self.nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn label(&self, name: &str, value: Option<&str>) {
        let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: value}}}));
        self.nodes.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn node(&self, name: &str) -> Value {
        serde_json::to_value(self.nodes.get(name).await.unwrap()).unwrap()
    }

    async fn cpu(&self, name: &str) -> (String, String) {
        let node = self.node(name).await;
        let text = |list: &str| node["status"][list]["cpu"].as_str().unwrap().to_owned();
        (text("allocatable"), text("capacity"))
    }

    async fn wait_for_cpu(&self, name: &str, allocatable: &str, capacity: &str) {
        let expected = (allocatable.to_owned(), capacity.to_owned());
        wait_until(&format!("{name} offers {allocatable}"), TIMEOUT, async || {
            self.cpu(name).await == expected
        })
        .await;
    }
}

fn configure(file: &Path, settings: &str) {
    let next = file.with_extension("next");
    std::fs::write(&next, format!("apiVersion: etcd-guard.io/v1alpha1\noverCommit: {settings}\n")).unwrap();
    std::fs::rename(next, file).unwrap();
}

fn apply(control_plane: &ControlPlane, file: &str) {
    let file = project::path(file);
    control_plane.kubectl().run_checked(&["apply", "-n", "etcd-guard", "-f", &file.to_string_lossy()]);
}

async fn writes(guard: &GuardProcess) -> u64 {
    guard.metric("etcd_guard_node_writes_total{result=\"written\"}").await
}

async fn client_at(kubeconfig: &Path) -> Client {
    api_client::client(kubeconfig).await
}

/// Only the guard writes the status after a label, after an outage and after the removal of the label.
#[tokio::test]
async fn guard_raises_and_restores_nodes_without_another_writer() {
    let setup = Setup::start(&[]).await;
    let (mut first, second) = (setup.guard("first").await, setup.guard("second").await);
    setup.register(&first).await;
    tokio::time::sleep(UNRAISED_PERIOD).await;

    setup.label("node", Some("2")).await;
    setup.wait_for_cpu("node", "7840m", "7920m").await;
    let version = async || setup.node("node").await["metadata"]["resourceVersion"].clone();
    let before = version().await;
    tokio::time::sleep(QUIET_PERIOD).await;
    assert_eq!(version().await, before, "the replicas agree");
    assert_eq!(writes(&first).await + writes(&second).await, 1);

    // The replicas reload their files one after the other.
    for (settings, allocatable, capacity) in
        [("{most: 1.5}", "5880m", "5960m"), ("{most: 3}", "7840m", "7920m")]
    {
        for guard in [&first, &second] {
            configure(&guard.config_file(), settings);
        }
        setup.wait_for_cpu("node", allocatable, capacity).await;
    }

    // An outage of all replicas, in which the kubelet writes its own values.
    drop(second);
    first.kill();
    setup.write_as_kubelet("node", ("3920m", "4")).await;
    assert_eq!(setup.cpu("node").await.0, "3920m");
    setup.create_node("labelled").await;
    setup.label("labelled", Some("2")).await;
    first.restart().await;
    setup.wait_for_cpu("node", "7840m", "7920m").await;

    // The guard has not seen this node without its label: it verifies the value at the kubelet.
    setup.wait_for_cpu("labelled", "3919m", "3999m").await;
    assert_eq!(writes(&first).await, 2, "the first write of each node raises it, without a pause");
    wait_until("the webhook raises the value of the kubelet", TIMEOUT, async || {
        setup.write_as_kubelet("labelled", ("3920m", "4")).await;
        setup.cpu("labelled").await.0 == "7840m"
    })
    .await;

    for name in ["node", "labelled"] {
        setup.label(name, None).await;
        setup.wait_for_cpu(name, "3920m", "4").await;
        assert_eq!(setup.node(name).await["metadata"]["annotations"].get(RECORD), None);
    }
}

/// The variable with the number of repetitions of [`prints_time_until_nodes_are_raised`]. Two suffice to test the effect.
const REPETITIONS: &str = "RAISE_REPETITIONS";

/// Returns the time at which a node first offers the raised CPU, observed every few milliseconds.
async fn raised_at(kubeconfig: std::path::PathBuf, name: String) -> Instant {
    let nodes: Api<Node> = Api::all(client_at(&kubeconfig).await);
    let end = Instant::now() + TIMEOUT;
    loop {
        let node = serde_json::to_value(nodes.get(&name).await.unwrap()).unwrap();
        if node["status"]["allocatable"]["cpu"] == "7840m" {
            return Instant::now();
        }
        assert!(Instant::now() < end, "{name} is not raised: {node}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn print_times(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    let (median, longest) = (median.as_millis(), longest.as_millis());
    eprintln!("{what}: {} repetitions, p50 {median} ms, longest {longest} ms", times.len());
}

/// The times are printed, and not asserted: docs/injection.md contains them. In both cases the kubelet has written the
/// machine's values while the API server could not call the guard.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; scripts/prove tests runs it"]
async fn prints_time_until_nodes_are_raised() {
    let repetitions = std::env::var(REPETITIONS).map_or(2, |text| text.parse().unwrap());
    let setup = Setup::start(&[]).await;
    let mut guard = setup.guard("guard").await;
    setup.register(&guard).await;
    let names: Vec<String> = (0..repetitions).map(|number| format!("node-{number}")).collect();
    for name in &names {
        setup.create_node(name).await;
        setup.label(name, Some("2")).await;
        wait_until("the webhook raises the values", TIMEOUT, async || {
            setup.write_as_kubelet(name, ("3920m", "4")).await;
            setup.cpu(name).await.0 == "7840m"
        })
        .await;
    }
    let kubeconfig = setup.control_plane.admin_kubeconfig();
    let observe = |name: &str| tokio::spawn(raised_at(kubeconfig.clone(), name.to_owned()));

    let mut after_start = Vec::new();
    for _ in 0..repetitions {
        guard.kill();
        setup.write_as_kubelet(&names[0], ("3920m", "4")).await;
        assert_eq!(setup.cpu(&names[0]).await.0, "3920m");
        let (observer, start) = (observe(&names[0]), Instant::now());
        guard.restart().await;
        after_start.push(observer.await.unwrap() - start);
    }

    // Without the webhook, only the watch of the guard detects the change.
    setup.control_plane.kubectl().run_checked(&[
        "delete",
        "mutatingwebhookconfiguration",
        "etcd-guard-nodes",
    ]);
    let mut after_change = Vec::new();
    for name in &names {
        let mut start = Instant::now();
        wait_until("the API server stores the machine's values", TIMEOUT, async || {
            // The guard is slower than this read.
            start = Instant::now();
            setup.write_as_kubelet(name, ("3920m", "4")).await;
            setup.cpu(name).await.0 == "3920m"
        })
        .await;
        after_change.push(observe(name).await.unwrap() - start);
    }
    print_times("start of the guard", after_start);
    print_times("change of allocatable", after_change);
}

#[tokio::test]
async fn policy_keeps_raised_values_while_no_guard_answers() {
    if !has_mutating_policies() {
        return;
    }
    let setup = Setup::start(&[]).await;
    let mut guard = setup.guard("guard").await;
    setup.register(&guard).await;
    setup.label("node", Some("2")).await;
    // Until the webhook raises the value that a kubelet reports.
    wait_until("the node is raised", TIMEOUT, async || {
        setup.write_as_kubelet("node", ("3920m", "4")).await;
        setup.cpu("node").await.0 == "7840m"
    })
    .await;
    guard.kill();

    setup.write_as_kubelet("node", ("3920m", "4")).await;
    assert_eq!(setup.cpu("node").await.0, "3920m", "without the policy");
    apply(&setup.control_plane, "deploy/components/over-commit-policy/policy.yaml");
    let raised = (String::from("7840m"), String::from("7920m"));
    // The API server learns of a policy by a watch.
    wait_until("the policy keeps the raised values", TIMEOUT, async || {
        setup.write_as_kubelet("node", ("3920m", "4")).await;
        setup.cpu("node").await == raised
    })
    .await;
    let other = Patch::Merge(json!({"status": {"phase": "Running"}}));
    setup.nodes.patch_status("node", &PatchParams::default(), &other).await.unwrap();
    assert_eq!(setup.cpu("node").await, raised, "another writer");

    setup.write_as_kubelet("node", ("1920m", "2")).await;
    assert_eq!(setup.cpu("node").await.0, "1920m", "a machine of another size");
    setup.write_as_kubelet("node", ("3920m", "4")).await;
    assert_eq!(setup.cpu("node").await, raised);
    setup.create_node("other").await;
    assert_eq!(setup.cpu("other").await.0, "3920m");

    // The policy does not overrule the guard.
    guard.restart().await;
    setup.label("node", Some("3")).await;
    setup.wait_for_cpu("node", "11760m", "11840m").await;
    setup.label("node", None).await;
    setup.wait_for_cpu("node", "3920m", "4").await;
    setup.write_as_kubelet("node", ("3920m", "4")).await;
    assert_eq!(setup.cpu("node").await.0, "3920m");
}

#[tokio::test]
async fn guard_account_writes_only_cpu_memory_and_record() {
    let setup = Setup::start(&[]).await;
    let nodes: Api<Node> = Api::all(client_at(&setup.control_plane.guard_kubeconfig()).await);
    let patch_status = async |patch: &Value| {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let written = nodes.patch_status("node", &params, &Patch::Merge(patch)).await;
        written.map(drop).map_err(|error| error.to_string())
    };
    let address = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    let image = Patch::Merge(json!({"status": {"images": [{"names": ["image"], "sizeBytes": 1}]}}));
    setup.nodes.patch_status("node", &PatchParams::default(), &image).await.unwrap();
    // The API server learns of a policy by a watch.
    wait_until("an address is denied", TIMEOUT, async || {
        patch_status(&address).await.is_err_and(|error| error.contains("the guard writes only the CPU"))
    })
    .await;
    for patch in [
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}),
        json!({"status": {"nodeInfo": {"kubeletVersion": "v1.0.0"}}}),
        json!({"status": {"volumesInUse": ["volume"]}}),
        json!({"status": {"volumesAttached": [{"name": "volume", "devicePath": "path"}]}}),
        json!({"status": {"phase": "Running"}}),
        json!({"status": {"features": {"supplementalGroupsPolicy": true}}}),
        json!({"status": {"runtimeHandlers": [{"name": "runtime"}]}}),
        json!({"status": {"images": [{"names": ["other"], "sizeBytes": 1}]}}),
        json!({"status": {"images": null}}),
        json!({"status": {"allocatable": {"pods": "1000"}}}),
        json!({"status": {"capacity": {"example.com/device": "1"}}}),
        json!({"status": {"capacity": {"cpu": null}}}),
        json!({"metadata": {"labels": {"new": "label"}}}),
        json!({"metadata": {"annotations": {"new": "annotation"}}}),
        json!({"metadata": {"finalizers": ["example.com/new"]}}),
    ] {
        let written = patch_status(&patch).await;
        assert!(
            written.as_ref().is_err_and(|error| error.contains("the guard writes")),
            "{patch}: {written:?}"
        );
    }
    let own = json!({
        "metadata": {"annotations": {RECORD: "{}"}},
        "status": {"allocatable": {"cpu": "5", "memory": "2Gi"}, "capacity": {"cpu": "6", "memory": "3Gi"}},
    });
    patch_status(&own).await.unwrap();
    let plain = nodes.patch("node", &PatchParams::default(), &Patch::Merge(json!({"spec": {}}))).await;
    assert!(plain.unwrap_err().to_string().contains("forbidden"), "RBAC permits only the status");

    // With kustomize, the guard can be installed in another namespace.
    let role = "--clusterrole=etcd-guard-nodes";
    let kubectl = setup.control_plane.kubectl();
    kubectl.run_checked(&["create", "clusterrolebinding", "other", role, "--serviceaccount=ops:etcd-guard"]);
    let mut kubeconfig = Kubeconfig::read_from(setup.control_plane.admin_kubeconfig()).unwrap();
    for auth in kubeconfig.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
        auth.impersonate = Some(String::from("system:serviceaccount:ops:etcd-guard"));
    }
    let file = setup.control_plane.dir.join("other.kubeconfig");
    std::fs::write(&file, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    let nodes: Api<Node> = Api::all(client_at(&file).await);
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    wait_until("the account is permitted", TIMEOUT, async || {
        nodes.patch_status("node", &params, &Patch::Merge(&own)).await.is_ok()
    })
    .await;
    let written = nodes.patch_status("node", &params, &Patch::Merge(&address)).await;
    assert!(written.unwrap_err().to_string().contains("the guard writes only the CPU"));
}

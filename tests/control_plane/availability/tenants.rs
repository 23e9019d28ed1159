//! Approvals in the namespace of one tenant, while members of another namespace are deleted: they neither deny nor delay these
//! deletions.

use std::{
    io::Write,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use test_support::{
    etcd::member::leads,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::{
        pods::{create_pod, delete, new_namespace},
        webhook,
    },
    processes::child::scoped_command,
    wait::{wait_for, wait_until},
};

/// Longest duration of a load: the approvals before it have not expired at its end.
const DURATION: Duration = Duration::from_secs(25);

/// Number of members that are deleted during a load, unless the machine is too slow.
const DELETED: usize = 3;

/// What a denial contains if the ledger is full.
const FULL: &str = "is full";

/// Number of clients of the tenant that delete pods.
const CLIENTS: usize = 4;

/// Length of the names of their pods.
const NAME_LENGTH: usize = 250;

/// The annotation of a Lease that contains its reservations.
const RESERVATIONS: &str = "etcd-guard.io/reservations";

/// Length of reservations in bytes beside which twelve others fill a ledger of 200 KiB.
const NEARLY_FULL: usize = 195 * 1024;

/// Interval between two deletions of pending pods.
const PENDING_INTERVAL: Duration = Duration::from_secs(2);

/// Retries of a deletion while the API server does not respond in time.
const RETRIES: usize = 10;

/// The member outside of Kubernetes.
const OUTSIDE: &str = "outside-0";

/// What a denial contains if a member was late, as on a busy machine. No reservation causes it.
const LATE: [&str; 6] = [
    "no answer within",
    "did not pass within",
    "has no leader",
    "did not respond within",
    "none of its client URLs replies",
    "ElectionInProgress",
];

/// Answers to deletions.
#[derive(Debug, Default)]
struct Answers {
    allowed: usize,
    denied: Vec<String>,
}

impl Answers {
    fn add(&mut self, answer: Result<(), String>) {
        match answer {
            Ok(()) => self.allowed += 1,
            Err(denial) => self.denied.push(denial),
        }
    }
}

/// Creates another guarded namespace that the guard of this test serves.
async fn add_tenant(etcd: &GuardedCluster) -> String {
    let tenant = new_namespace(&etcd.client, true).await;
    let label = format!("{}={}", webhook::TEST_LABEL, etcd.namespace);
    let kubectl = etcd.kubectl_everywhere();
    let output = kubectl.run(&["label", "--overwrite", "namespace", &tenant, &label]).await;
    assert!(output.success, "{output:?}");
    // A new namespace has no service account for a moment.
    create_pod(&Api::namespaced(etcd.client.clone(), &tenant), "first").await;
    tenant
}

/// Creates a pod of an etcd member that no scheduler binds, and deletes it.
async fn delete_pending_pod(pods: &Api<Pod>, name: &str) -> Result<(), String> {
    let container = json!({"name": "etcd", "image": "etcd", "command": ["etcd"]});
    let spec = json!({
        "schedulerName": "no-scheduler", "automountServiceAccountToken": false, "containers": [container],
    });
    let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    // While many tests start, the API server can be too late. The denial then says to retry.
    for _ in 0..RETRIES {
        match delete(pods, name).await {
            Err(denial) if denial.contains("LookupFailed: ") && denial.contains("did not respond within") => {
                sleep(PENDING_INTERVAL).await;
            }
            answer => return answer,
        }
    }
    delete(pods, name).await
}

/// Returns the name of the ledger of a namespace and its reservations.
async fn ledger(etcd: &GuardedCluster, namespace: &str) -> (String, Vec<Value>) {
    let leases: Api<Lease> = Api::namespaced(etcd.client.clone(), "etcd-guard");
    for lease in leases.list(&ListParams::default()).await.unwrap() {
        let text = lease.annotations().get(RESERVATIONS).map_or("[]", String::as_str);
        let reserved: Vec<Value> = serde_json::from_str(text).unwrap();
        if reserved.iter().any(|known| known["namespace"] == namespace) {
            return (lease.name_any(), reserved);
        }
    }
    panic!("no reservation in {namespace}");
}

/// Repeats the only reservation of the tenant, as approvals for other pods within the same minute, until few more fit into the
/// ledger. Returns their number.
async fn fill_ledger(etcd: &GuardedCluster, tenant: &str) -> usize {
    let (lease, mut reserved) = ledger(etcd, tenant).await;
    let [first] = &reserved[..] else { panic!("{reserved:?}") };
    let (first, count) = (first.clone(), NEARLY_FULL / first.to_string().len());
    for number in 1..count {
        let name = format!("earlier-{number}-");
        let mut earlier = first.clone();
        earlier["uid"] = json!(format!("{number:036}"));
        earlier["pod"] = json!(format!("{name:x<NAME_LENGTH$}"));
        reserved.push(earlier);
    }
    let text = serde_json::to_string(&reserved).unwrap();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {RESERVATIONS: text}}}));
    let leases: Api<Lease> = Api::namespaced(etcd.client.clone(), "etcd-guard");
    leases.patch(&lease, &PatchParams::default(), &patch).await.unwrap();
    count
}

/// Deletes followers one after the other, each as soon as its predecessor serves again. Fails at a denial that no late member
/// explains.
async fn delete_followers(etcd: &GuardedCluster, is_running: impl AsyncFn() -> bool) -> Answers {
    let mut answers = Answers::default();
    for ordinal in (0..3).cycle() {
        if answers.allowed >= DELETED || !is_running().await {
            break;
        }
        let name = GuardedCluster::names()[ordinal];
        if etcd.member(name).status().await.is_none_or(|status| leads(&status)) {
            continue;
        }
        let uid = etcd.uid(name).await;
        let answer = etcd.delete(name).await;
        if let Err(denial) = &answer {
            assert!(LATE.iter().any(|text| denial.contains(text)), "{denial}");
        } else {
            etcd.wait_until_replaced(name, &uid).await;
        }
        answers.add(answer);
    }
    answers
}

/// Prints both results. Written to stderr directly, because the test harness captures the output of passing tests.
fn report(load: &str, of_tenant: &Answers, of_other: &Answers) {
    let [tenant, other] = [of_tenant, of_other].map(|Answers { allowed, denied }| {
        let full = denied.iter().filter(|denial| denial.contains(FULL)).count();
        format!(
            "{allowed} deletions allowed, {} denied, {full} of them because a ledger is full",
            denied.len()
        )
    });
    let line = format!("{load}: {tenant}; members of another namespace: {other}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Four clients delete pods of a tenant whose clusters nobody knows, until their ledger is full and beyond.
#[tokio::test]
async fn full_ledger_of_a_tenant_denies_no_deletion_elsewhere() {
    let etcd = GuardedCluster::start().await;
    let tenant = add_tenant(&etcd).await;
    let pods: Api<Pod> = Api::namespaced(etcd.client.clone(), &tenant);
    delete_pending_pod(&pods, &format!("{:x<NAME_LENGTH$}", "first-")).await.unwrap();
    let earlier = fill_ledger(&etcd, &tenant).await;
    let (is_full, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let client = async |number: usize| {
        let mut answers = Answers::default();
        while !is_over.load(Ordering::Relaxed) {
            let name = format!("{number}-{}x", answers.allowed + answers.denied.len());
            // Short names use up the rest of a full ledger.
            let length = if answers.denied.is_empty() { NAME_LENGTH } else { 0 };
            let answer = delete_pending_pod(&pods, &format!("{name:x<length$}")).await;
            if length == 0 && answer.is_err() {
                is_full.store(true, Ordering::Relaxed);
            }
            answers.add(answer);
        }
        answers
    };
    let delete_others = async {
        wait_until("the ledger is full", START_TIMEOUT, async || is_full.load(Ordering::Relaxed)).await;
        let start = Instant::now();
        let answers = delete_followers(&etcd, async || start.elapsed() < DURATION).await;
        is_over.store(true, Ordering::Relaxed);
        answers
    };
    let (clients, of_other) = tokio::join!(join_all((0..CLIENTS).map(client)), delete_others);
    let mut of_tenant = Answers::default();
    for answers in clients {
        of_tenant.allowed += answers.allowed;
        of_tenant.denied.extend(answers.denied);
    }
    let load = format!("approvals without a cluster id, beside {earlier} reservations");
    report(&load, &of_tenant, &of_other);
    let (_, reserved) = ledger(&etcd, &tenant).await;
    assert!(reserved.iter().all(|known| known["cluster"].is_null()));
    assert!(of_tenant.denied.iter().any(|denial| denial.contains(FULL)), "the ledger was not full");
    assert!(of_other.allowed > 1, "{of_other:?}");
}

/// Starts a voter of the cluster that runs in no pod. It ends when it is dropped.
async fn start_outside(etcd: &GuardedCluster) -> Child {
    let address = etcd.address(OUTSIDE);
    let (client_url, peer_url) = (format!("http://{address}:2379"), format!("http://{address}:2380"));
    // etcd requires that all voters have been connected for five seconds.
    let client = etcd.member(&etcd.leader().await).client().await.unwrap();
    wait_for("a new voter", START_TIMEOUT, async || {
        client.clone().member_add([peer_url.as_str()], None).await.ok()
    })
    .await;
    let members = GuardedCluster::names().map(|name| format!("{name}=http://{}:2380", etcd.address(name)));
    let mut program = scoped_command(&etcd.control_plane.etcd);
    program.arg(format!("--name={OUTSIDE}")).arg("--data-dir").arg(etcd.dir().join(OUTSIDE));
    program.args([
        format!("--listen-client-urls={client_url}"),
        format!("--advertise-client-urls={client_url}"),
    ]);
    program.args([
        format!("--listen-peer-urls={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
    ]);
    program.arg(format!("--initial-cluster={},{OUTSIDE}={peer_url}", members.join(",")));
    program.args(["--initial-cluster-state=existing", "--unsafe-no-fsync", "--log-level=error"]);
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let outside = Command::from(program).kill_on_drop(true).spawn().unwrap();
    wait_until("the member outside of Kubernetes serves", START_TIMEOUT, async || {
        etcd.member(OUTSIDE).serves().await
    })
    .await;
    outside
}

/// Nobody knows which cluster a pending pod belongs to, and nothing shows where the member outside of Kubernetes runs.
#[tokio::test]
async fn pending_pods_of_a_tenant_deny_no_deletion_in_a_cluster_with_an_outside_member() {
    let etcd = GuardedCluster::start().await;
    let _outside = start_outside(&etcd).await;
    let tenant = add_tenant(&etcd).await;
    let pods: Api<Pod> = Api::namespaced(etcd.client.clone(), &tenant);
    let start = Instant::now();
    let mut of_tenant = Answers::default();
    of_tenant.add(delete_pending_pod(&pods, "etcd-first").await);
    let is_over = AtomicBool::new(false);
    let is_running = async || start.elapsed() < DURATION;
    let delete_pending_pods = async {
        while !is_over.load(Ordering::Relaxed) {
            sleep(PENDING_INTERVAL).await;
            let name = format!("etcd-{}x", of_tenant.allowed);
            of_tenant.add(delete_pending_pod(&pods, &name).await);
        }
    };
    let delete_others = async {
        let answers = delete_followers(&etcd, is_running).await;
        is_over.store(true, Ordering::Relaxed);
        answers
    };
    let ((), of_other) = tokio::join!(delete_pending_pods, delete_others);
    report("deletions of pending pods", &of_tenant, &of_other);
    assert_eq!(of_tenant.denied, [""; 0]);
    let (_, reserved) = ledger(&etcd, &tenant).await;
    let is_unknown = |known: &Value| known["cluster"].is_null() && known["member"] == "";
    assert!(reserved.iter().all(is_unknown), "{reserved:?}");
    assert!(of_other.allowed > 1, "{of_other:?}");
    let voters = etcd.member("etcd-0").client().await.unwrap().member_list().await.unwrap();
    assert_eq!(voters.members().len(), 4);
}

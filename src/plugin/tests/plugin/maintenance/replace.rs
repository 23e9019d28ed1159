//! `kubectl etcd-guard replace`, with a guard that acts on real members.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{LimitRange, PersistentVolumeClaim},
};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use test_support::{
    etcd::member::Member,
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    layout::Layout,
    process_node::{ProcessAction, RESOLVES_NAMES},
    processes::child::run_to_end,
    wait::wait_until,
};
use tokio::{process::Child, task::JoinHandle, time::sleep};

/// The annotation that keeps the state.
const REPLACE: &str = "etcd-guard.io/replace";

/// The annotation, the finalizer and the scheduling gate.
const REPLACES: &str = "etcd-guard.io/replaces";

async fn start(members: usize) -> GuardedCluster {
    let layout = Layout { members, annotations: vec![(RESOLVES_NAMES, "true")], ..Layout::default() };
    GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await
}

/// Returns the id of each listed member, and whether it is a learner.
async fn listed(etcd: &GuardedCluster, via: &str) -> Vec<(String, bool)> {
    let mut client = etcd.member(via).client().await.unwrap();
    let list = client.member_list().await.unwrap();
    list.members().iter().map(|member| (format!("{:x}", member.id()), member.is_learner())).collect()
}

fn voters(list: &[(String, bool)]) -> usize {
    list.iter().filter(|(_, is_learner)| !is_learner).count()
}

async fn annotate(etcd: &GuardedCluster, annotation: &str) {
    let output = etcd.kubectl(&["annotate", "--overwrite", "statefulset/etcd", annotation]).await;
    assert!(output.success, "{output:?}");
}

async fn has_record(etcd: &GuardedCluster) -> bool {
    etcd.kubectl(&["get", "statefulset", "etcd", "-o", "yaml"]).await.stdout.contains(&format!("{REPLACE}:"))
}

async fn claim(etcd: &GuardedCluster, pod: &str) -> Option<PersistentVolumeClaim> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    claims.get_opt(&format!("data-{pod}")).await.unwrap()
}

/// Reads from these members without pause. A linearizable read proves a quorum of the listed voters.
struct Watchdog {
    ends: Arc<AtomicBool>,
    reads: Arc<AtomicUsize>,
    task: JoinHandle<Vec<String>>,
}

impl Watchdog {
    fn start(etcd: &GuardedCluster, survivors: &[&str]) -> Self {
        let members: Vec<(String, Member)> =
            survivors.iter().map(|name| ((*name).to_owned(), etcd.member(name))).collect();
        let (ends, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (has_ended, count) = (Arc::clone(&ends), Arc::clone(&reads));
        let task = tokio::spawn(async move {
            let mut failures = Vec::new();
            while !has_ended.load(Ordering::Relaxed) {
                for (name, member) in &members {
                    // A move of leadership interrupts reads for a moment.
                    let mut serves = false;
                    for _ in 0..3 {
                        serves = serves || member.serves().await;
                    }
                    if !serves {
                        failures.push(name.clone());
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                }
                sleep(Duration::from_millis(100)).await;
            }
            failures
        });
        Self { ends, reads, task }
    }

    async fn assert_kept(self) {
        self.ends.store(true, Ordering::Relaxed);
        let failures = self.task.await.unwrap();
        assert!(failures.is_empty(), "no quorum, by {failures:?}");
        assert!(self.reads.load(Ordering::Relaxed) > 10);
    }
}

/// Asserts that the pod runs a new voter with the data of the cluster, and that the StatefulSet is as before.
async fn assert_replaced(etcd: &GuardedCluster, pod: &str, old: &str, count: usize) {
    etcd.wait_until_healthy().await;
    let list = listed(etcd, pod).await;
    assert_eq!((list.len(), voters(&list)), (count, count), "{list:?}");
    assert!(list.iter().all(|(id, _)| id != old), "{list:?}");
    let mut client = etcd.member(pod).client().await.unwrap();
    let response = client.get("kept", None).await.unwrap();
    assert_eq!(response.kvs()[0].value(), b"value", "its own copy");
    assert!(!has_record(etcd).await);
    let claim = claim(etcd, pod).await.unwrap();
    assert!(claim.metadata.deletion_timestamp.is_none());
    let template = etcd.kubectl(&["get", "statefulset", "etcd", "-o", "yaml"]).await.stdout;
    assert!(template.contains("--initial-cluster-state=new") && !template.contains("existing"), "{template}");
}

/// Three members with data. `lost` is to be replaced, and the others are watched.
struct Scene {
    etcd: GuardedCluster,
    leader: String,
    lost: String,
    second: String,
    /// The id of the replaced member.
    old: String,
    watchdog: Watchdog,
}

impl Scene {
    async fn start() -> Self {
        let etcd = start(3).await;
        put(&etcd).await;
        let leader = etcd.leader().await;
        let [lost, second] = etcd.followers().await;
        let old = etcd.member(&lost).id().await;
        let watchdog = Watchdog::start(&etcd, &[&leader, &second]);
        Self { etcd, leader, lost, second, old, watchdog }
    }

    /// Runs the command to its end, and asserts that the member was replaced.
    async fn complete(self, arguments: &[&str]) {
        let Self { etcd, lost, old, watchdog, .. } = self;
        let output = cli::run(&etcd, "replace", &[&[lost.as_str()], arguments].concat()).await;
        assert_eq!(output.status, Some(0), "{output:?}");
        watchdog.assert_kept().await;
        assert_replaced(&etcd, &lost, &old, 3).await;
    }
}

async fn put(etcd: &GuardedCluster) {
    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    client.put("kept", "value", None).await.unwrap();
}

#[tokio::test]
async fn replace_plans_and_replaces_a_follower_and_the_leader() {
    let etcd = start(3).await;
    put(&etcd).await;
    let leader = etcd.leader().await;
    let [first, second] = etcd.followers().await;
    let old = etcd.member(&first).id().await;
    let output = cli::run(&etcd, "replace", &[&first]).await;
    assert_eq!(output.status, Some(2), "{output:?}");
    assert!(
        output.stderr.contains("a replacement requires a backup of the last hour, and the"),
        "{output:?}"
    );
    // A request that had no effect begins nothing.
    annotate(&etcd, &format!("{REPLACE}=remove {first} {old}@2026-01-01T00:00:00Z")).await;
    let output = cli::run(&etcd, "replace", &[&first]).await;
    assert!(
        output.stderr.contains("a replacement requires a backup of the last hour, and the"),
        "{output:?}"
    );
    let restart = cli::run(&etcd, "restart", &["statefulset/etcd"]).await;
    assert!(restart.stderr.contains("a member of etcd is being replaced"), "{restart:?}");
    annotate(&etcd, &format!("{REPLACE}-")).await;
    annotate(&etcd, "etcd-guard.io/restart={}").await;
    let output = cli::run(&etcd, "replace", &[&first, "--no-backup"]).await;
    assert!(output.stderr.contains("a restart of its StatefulSet has not ended"), "{output:?}");
    annotate(&etcd, "etcd-guard.io/restart-").await;
    // The namespace has become stricter since the pods were created.
    let limits: Api<LimitRange> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let strict = json!({
        "metadata": {"name": "strict"}, "spec": {"limits": [{"type": "Container", "max": {"memory": "1Mi"}}]},
    });
    limits.create(&PostParams::default(), &serde_json::from_value(strict).unwrap()).await.unwrap();
    wait_until("the limit applies", START_TIMEOUT, async || {
        let container =
            json!({"name": "large", "image": "large", "resources": {"limits": {"memory": "2Mi"}}});
        let pod = json!({"metadata": {"name": "large"}, "spec": {"containers": [container]}});
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        etcd.pods.create(&parameters, &serde_json::from_value(pod).unwrap()).await.is_err()
    })
    .await;
    let output = cli::run(&etcd, "replace", &[&first, "--no-backup"]).await;
    assert!(
        output.stderr.contains("its pod could not be created: ") && !has_record(&etcd).await,
        "{output:?}"
    );
    limits.delete("strict", &DeleteParams::default()).await.unwrap();

    let plan = cli::run(&etcd, "replace", &[&first, "--dry-run"]).await;
    assert_eq!(plan.status, Some(0), "{plan:?}");
    assert!(plan.stdout.contains(&format!("1. member {old} is removed")), "{plan:?}");
    assert!(!has_record(&etcd).await);

    let uid = claim(&etcd, &first).await.unwrap().metadata.uid;
    let watchdog = Watchdog::start(&etcd, &[&leader, &second]);
    let output = cli::run(&etcd, "replace", &[&first, "--no-backup"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    watchdog.assert_kept().await;
    let last = output.stdout.lines().last().unwrap();
    assert!(
        last.contains(&format!(" 6/6 complete: {first} was replaced; the cluster has 3 voters")),
        "{output:?}"
    );
    assert_replaced(&etcd, &first, &old, 3).await;
    assert_ne!(claim(&etcd, &first).await.unwrap().metadata.uid, uid, "a new PVC");

    // Its next pod is one of the controller, and keeps the member.
    let (before, new) = (etcd.uid(&first).await, etcd.member(&first).id().await);
    wait_until("the pod may go", START_TIMEOUT, async || etcd.delete(&first).await.is_ok()).await;
    etcd.wait_until_replaced(&first, &before).await;
    assert_eq!(etcd.member(&first).id().await, new);
    assert!(!etcd.kubectl(&["get", "pod", &first, "-o", "yaml"]).await.stdout.contains(REPLACES));

    let leader = etcd.leader().await;
    let old = etcd.member(&leader).id().await;
    let output = cli::run(&etcd, "replace", &[&leader, "--no-backup"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert!(output.stdout.contains(&format!("leadership moved from {leader} to ")), "{output:?}");
    assert_replaced(&etcd, &leader, &old, 3).await;
}

#[tokio::test]
async fn replace_of_five_while_the_member_is_broken() {
    let etcd = start(5).await;
    put(&etcd).await;
    let leader = etcd.leader().await;
    let mut others = etcd.pod_names().await;
    others.retain(|name| *name != leader);
    let lost = others.pop().unwrap();
    let old = etcd.member(&lost).id().await;
    etcd.apply(&lost, ProcessAction::CrashLoop).await;
    wait_until("the member is down", START_TIMEOUT, async || !etcd.member(&lost).serves().await).await;
    let survivors: Vec<&str> = others.iter().map(String::as_str).chain([leader.as_str()]).collect();
    let watchdog = Watchdog::start(&etcd, &survivors);
    annotate(&etcd, &format!("etcd-guard.io/last-backup=7@{}", Timestamp::now())).await;
    wait_until("the guard knows the backup", START_TIMEOUT, async || {
        let output = cli::run(&etcd, "replace", &[&lost, "--dry-run"]).await;
        output.status == Some(0) && !output.stderr.contains("requires a backup")
    })
    .await;
    let output = cli::run(&etcd, "replace", &[&lost]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    watchdog.assert_kept().await;
    assert_replaced(&etcd, &lost, &old, 5).await;
}

#[tokio::test]
async fn replace_refuses_without_a_quorum_of_the_others() {
    let etcd = start(3).await;
    let leader = etcd.leader().await;
    let [first, second] = etcd.followers().await;
    etcd.apply(&second, ProcessAction::CrashLoop).await;
    wait_until("the member is down", START_TIMEOUT, async || !etcd.member(&second).serves().await).await;
    let output = cli::run(&etcd, "replace", &[&first, "--no-backup"]).await;
    assert_eq!(output.status, Some(2), "{output:?}");
    let numbers =
        format!("without {first}, only 1 of 3 voters are healthy and stay, and 2 are needed: {second} (");
    assert!(output.stderr.contains(&numbers), "{output:?}");
    assert!(!has_record(&etcd).await);
    assert_eq!(voters(&listed(&etcd, &leader).await), 3);
}

fn spawn(etcd: &GuardedCluster, pod: &str) -> Child {
    let mut program = tokio::process::Command::from(cli::program(etcd, "replace", &[pod, "--no-backup"]));
    program.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

/// The process is killed as soon as a step shows its effect. The next one continues.
#[tokio::test]
async fn replace_continues_after_each_step() {
    let scene = Scene::start().await;
    let Scene { etcd, leader, lost, .. } = &scene;
    let before = etcd.uid(lost).await;
    let is_new = async || {
        let pod = etcd.pods.get_opt(lost).await.unwrap()?;
        (pod.metadata.uid.as_ref() != Some(&before)).then_some(pod)
    };
    let is_done = async |step: &str| match step {
        "removed" => listed(etcd, leader).await.len() == 2,
        "PVC deleted" => {
            claim(etcd, lost).await.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
        }
        "pod created" => is_new().await.is_some(),
        "PVC created" => {
            claim(etcd, lost).await.is_some_and(|claim| claim.metadata.deletion_timestamp.is_none())
        }
        "learner added" => listed(etcd, leader).await.len() == 3,
        "learner started" => is_new().await.is_some_and(|pod| {
            pod.spec.is_some_and(|spec| spec.scheduling_gates.is_none_or(|gates| gates.is_empty()))
        }),
        _ => voters(&listed(etcd, leader).await) == 3,
    };
    for step in [
        "removed",
        "PVC deleted",
        "pod created",
        "PVC created",
        "learner added",
        "learner started",
        "promoted",
    ] {
        let mut child = spawn(etcd, lost);
        wait_until(step, START_TIMEOUT, async || is_done(step).await).await;
        child.kill().await.unwrap();
        assert!(etcd.member(leader).serves().await, "after {step}");
    }
    scene.complete(&[]).await;
}

/// The pod of the successor is deleted before the learner has run. The controller creates it from the template, and its etcd starts
/// under the id of the removed member.
#[tokio::test]
async fn replace_continues_after_the_controller_created_the_pod() {
    let scene = Scene::start().await;
    let Scene { etcd, leader, lost, .. } = &scene;
    let before = etcd.uid(lost).await;
    let mut child = spawn(etcd, lost);
    wait_until("the learner is listed", START_TIMEOUT, async || {
        let members = listed(etcd, leader).await;
        members.len() == 3 && voters(&members) == 2
    })
    .await;
    child.kill().await.unwrap();
    let prepared = etcd.uid(lost).await;
    assert_ne!(prepared, before);
    etcd.delete(lost).await.unwrap();
    wait_until("the controller's pod runs", START_TIMEOUT, async || {
        let Ok(Some(pod)) = etcd.pods.get_opt(lost).await else { return false };
        let is_running = pod.status.and_then(|status| status.phase).as_deref() == Some("Running");
        is_running && pod.metadata.uid.as_ref() != Some(&prepared)
    })
    .await;
    assert!(!etcd.kubectl(&["get", "pod", lost, "-o", "yaml"]).await.stdout.contains(REPLACES));
    scene.complete(&[]).await;
}

/// After the removal, somebody begins another replacement by hand. The command does not overwrite it.
#[tokio::test]
async fn replace_stops_for_another_one_and_starts_over() {
    let scene = Scene::start().await;
    let Scene { etcd, leader, lost, second, .. } = &scene;
    let first = tokio::spawn(run_to_end(cli::program(etcd, "replace", &[lost, "--no-backup"])));
    wait_until("the member is removed", START_TIMEOUT, async || listed(etcd, leader).await.len() == 2).await;
    let other = format!("{REPLACE}=remove {second} {}@2026-01-01T00:00:00Z", etcd.member(second).id().await);
    annotate(etcd, &other).await;
    let output = first.await.unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains(&format!("another command replaces {second}; ")), "{errors}");
    assert_eq!(listed(etcd, leader).await.len(), 2);
    let output = cli::run(etcd, "replace", &[lost]).await;
    assert!(output.stderr.contains(&format!("the replacement of {second} has begun")), "{output:?}");
    // Two voters are left: none of them can be replaced.
    let output = cli::run(etcd, "replace", &[second, "--no-backup"]).await;
    assert!(output.stderr.contains("and 2 are needed"), "{output:?}");

    annotate(etcd, &format!("{REPLACE}-")).await;
    let plan = cli::run(etcd, "replace", &[lost, "--no-backup", "--dry-run"]).await;
    assert!(plan.stdout.contains("not listed: only a successor is added"), "{plan:?}");
    scene.complete(&["--no-backup"]).await;
}

/// While the old PVC is being deleted, each attempt of the StatefulSet controller to create the new one fails, and its pause doubles. The
/// command does not wait for the end of that pause.
#[tokio::test]
async fn replace_does_not_wait_for_a_controller_that_pauses() {
    const HOLDS: &str = "test.example.com/holds";
    let scene = Scene::start().await;
    let Scene { etcd, leader, lost, .. } = &scene;
    let name = format!("data-{lost}");
    let change = json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", HOLDS]}});
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    claims.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    let mut child = spawn(etcd, lost);
    wait_until("the member is removed", START_TIMEOUT, async || listed(etcd, leader).await.len() == 2).await;
    // Each change of the StatefulSet lets the controller fail once more: in the end, its pause takes a quarter of an hour.
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let change = async |number: usize| {
        let change = json!({"metadata": {"annotations": {"test": number.to_string()}}});
        sets.patch("etcd", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    };
    let mut changes = 0..;
    wait_until("the learner's pod exists", START_TIMEOUT, async || {
        change(changes.next().unwrap()).await;
        let pod = etcd.pods.get_opt(lost).await.unwrap();
        pod.is_some_and(|pod| pod.metadata.annotations.is_some_and(|all| all.contains_key(REPLACES)))
    })
    .await;
    for number in changes.take(150) {
        change(number).await;
    }
    child.kill().await.unwrap();
    let release = json!({"metadata": {"finalizers": null}});
    claims.patch(&name, &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    scene.complete(&["--timeout", "1m"]).await;
}

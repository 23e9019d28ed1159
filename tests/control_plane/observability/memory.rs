//! The memory of the guard, which the size of objects must not determine.

use std::{collections::BTreeSet, io::Write, ops::Range, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Namespace};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use test_support::{
    guard::process::GuardProcess,
    guarded_cluster::START_TIMEOUT,
    kubernetes::{api_proxy::ApiServerProxy, control_plane::ControlPlane, pods::new_namespace, webhook},
    wait::wait_until,
};

/// The number of StatefulSets, of which 40 MB exceed the limit. They have no replicas, so that they cost their owner nothing.
/// `LARGE_STATEFUL_SETS` selects another number.
const SETS: usize = 160;

/// The bytes of annotations of each object: the API server accepts 256 KiB.
const ANNOTATION_BYTES: usize = 250_000;

/// The number of concurrent writes of the test.
const WRITES: usize = 16;

/// The largest anonymous memory of the guard, in bytes: a debug program adds 80 MB of mapped files. The limit of the
/// shipped container is 128 MiB.
const MAX_MEMORY: u64 = 25_000_000;

/// The time for which the memory is observed after the last write.
const SETTLE_TIME: Duration = Duration::from_secs(4);

/// The interval between two samples of the memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

fn stateful_set(n: usize) -> Value {
    let labels = json!({"app": format!("large-{n}")});
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": format!("large-{n}"),
            "annotations": {"example.com/large": "x".repeat(ANNOTATION_BYTES), "etcd-guard.io/mode": "enforce"},
        },
        "spec": {
            "replicas": 0,
            "serviceName": "large",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "etcd", "image": "etcd"}]},
            },
        },
    })
}

fn number_of_sets() -> usize {
    std::env::var("LARGE_STATEFUL_SETS").map_or(SETS, |number| number.parse().unwrap())
}

async fn create_stateful_sets(sets: &Api<StatefulSet>, numbers: Range<usize>) {
    let create = |n| async move {
        let set = serde_json::from_value(stateful_set(n)).unwrap();
        sets.create(&PostParams::default(), &set).await.unwrap();
    };
    stream::iter(numbers.map(create)).buffer_unordered(WRITES).collect::<Vec<()>>().await;
}

async fn delete_stateful_sets(sets: &Api<StatefulSet>, numbers: Range<usize>) {
    let delete = |n| async move {
        sets.delete(&format!("large-{n}"), &DeleteParams::default()).await.unwrap();
    };
    stream::iter(numbers.map(delete)).buffer_unordered(WRITES).collect::<Vec<()>>().await;
}

/// Runs `action`, and returns the largest memory of the guard until `SETTLE_TIME` after its end.
async fn peak_memory(guard: &GuardProcess, action: impl Future<Output = ()>) -> u64 {
    let mut peak = 0;
    let sample = async {
        loop {
            peak = guard.anonymous_memory().max(peak);
            sleep(SAMPLE_INTERVAL).await;
        }
    };
    let action = async {
        action.await;
        sleep(SETTLE_TIME).await;
    };
    tokio::select! { () = action => {}, () = sample => {} }
    peak
}

fn report(case: &str, guard: &GuardProcess, peak: u64) {
    let (memory, resident) = (guard.anonymous_memory(), guard.resident_memory());
    // Written to stderr directly, because the test harness captures the output of passing tests.
    let line = format!("{case}: {memory} bytes, at most {peak} bytes; {resident} with the program\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// The memory of the guard with large objects that were created before and after its start, in a namespace
/// that is not guarded, and before and after the namespace becomes guarded.
#[tokio::test]
async fn large_annotations_do_not_enlarge_the_guard() {
    test_large_annotations(0).await;
}

/// With more than 32 guarded namespaces, the guard receives the events of all namespaces.
#[tokio::test]
#[ignore = "a control plane of its own with large objects; scripts/prove tests runs it"]
async fn large_annotations_do_not_enlarge_shared_watches() {
    test_large_annotations(33).await;
}

/// Tests with this number of other guarded namespaces.
async fn test_large_annotations(others: usize) {
    // So many bytes of objects can delay the watches of tests that share a control plane.
    let control_plane = ControlPlane::start(&[]);
    control_plane.grant_guard_permissions();
    let client = control_plane.client().await;
    for _ in 0..others {
        new_namespace(&client, true).await;
    }
    let namespace = new_namespace(&client, false).await;
    let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
    let proxy =
        ApiServerProxy::start(&control_plane.guard_kubeconfig(), files.path().join("proxy.kubeconfig")).await;
    let guard = GuardProcess::start(&proxy.kubeconfig, &files.path().join("guard")).await;
    let count = number_of_sets();
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);

    let mut paths = BTreeSet::new();
    wait_until("the watches run", START_TIMEOUT, async || {
        let calls = proxy.take_calls().into_iter();
        paths.extend(calls.filter(|call| call.query.contains("watch=")).map(|call| call.path));
        others == 0 || paths.contains("/apis/apps/v1/statefulsets")
    })
    .await;
    assert!(!paths.iter().any(|path| path.contains("/namespaces/")), "no own watches: {paths:?}");

    let created = peak_memory(&guard, create_stateful_sets(&sets, 0..count)).await;
    report(&format!("{count} StatefulSets created in a namespace that is not guarded"), &guard, created);

    proxy.take_calls();
    let labelled = peak_memory(&guard, async {
        let labels = Patch::Merge(json!({"metadata": {"labels": {webhook::LABEL: webhook::VALUE}}}));
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.patch_metadata(&namespace, &PatchParams::default(), &labels).await.unwrap();
        let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets");
        wait_until("the StatefulSets of the guarded namespace are watched", START_TIMEOUT, async || {
            let calls = proxy.take_calls();
            // With a shared watch, only the list is new.
            calls.iter().any(|call| call.path == path && (others > 0 || call.query.contains("watch=")))
        })
        .await;
    })
    .await;
    report("the namespace becomes guarded", &guard, labelled);

    let watched = peak_memory(&guard, create_stateful_sets(&sets, count..count + count / 4)).await;
    report(&format!("{} more created in the guarded namespace", count / 4), &guard, watched);

    let started = GuardProcess::start(&control_plane.guard_kubeconfig(), &files.path().join("started")).await;
    let listed = peak_memory(&started, async {}).await;
    report("a new guard", &started, listed);

    delete_stateful_sets(&sets, 0..count + count / 4).await;
    let peak = created.max(labelled).max(watched).max(listed);
    assert!(peak < MAX_MEMORY, "{peak} bytes");
}

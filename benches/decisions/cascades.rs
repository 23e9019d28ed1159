//! The deletion of a namespace and what it contains. Each deletion in it is a review of its own.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use test_support::{
    bench_table::{Row, Times, median_and_p99, ms},
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::webhook::{LABEL, TEST_LABEL, VALUE},
    wait::wait_until,
};

/// The number of objects of each kind.
const OBJECTS: usize = 30;

pub(crate) async fn compare(etcd: &GuardedCluster) -> [Row; 2] {
    let (claims, namespace) = delete_all(etcd, "cascade-guarded", true).await;
    let (reference_claims, reference_namespace) = delete_all(etcd, "cascade-unguarded", false).await;
    let row = |quantity: &str, figure, reference_figure| Row {
        quantity: String::from(quantity),
        figure,
        reference: String::from("unguarded"),
        reference_figure,
        bar: None,
    };
    [
        row("deletion of a claim, in a row", median_and_p99(&claims), median_and_p99(&reference_claims)),
        row(&format!("deletion of a namespace with {OBJECTS} pods"), ms(namespace), ms(reference_namespace)),
    ]
}

/// Returns the times of the deletions of claims in a new namespace, one after the other, and of the deletion of the namespace with its
/// pods.
async fn delete_all(etcd: &GuardedCluster, name: &str, guarded: bool) -> (Times, Duration) {
    let mut labels = json!({TEST_LABEL: etcd.namespace});
    if guarded {
        labels[LABEL] = json!(VALUE);
    }
    let (namespaces, create) = (Api::<Namespace>::all(etcd.client.clone()), PostParams::default());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
    namespaces.create(&create, &namespace).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(etcd.client.clone(), name);
    let pods = Api::<Pod>::namespaced(etcd.client.clone(), name);
    let names: Vec<String> = (0..OBJECTS).map(|n| format!("object-{n}")).collect();
    for name in &names {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "none"});
        let claim = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        claims.create(&create, &claim).await.unwrap();
        let spec =
            json!({"automountServiceAccountToken": false, "containers": [{"name": "app", "image": "app"}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        wait_until("a pod is created", START_TIMEOUT, async || pods.create(&create, &pod).await.is_ok())
            .await;
    }
    let mut times = Vec::new();
    for name in &names {
        let started = Instant::now();
        claims.delete(name, &DeleteParams::default()).await.unwrap();
        times.push(started.elapsed());
    }
    let started = Instant::now();
    namespaces.delete(name, &DeleteParams::default()).await.unwrap();
    wait_until("the namespace is gone", START_TIMEOUT, async || {
        namespaces.get_opt(name).await.unwrap().is_none()
    })
    .await;
    (Times::new(times), started.elapsed())
}

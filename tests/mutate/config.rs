//! The configuration file of a running guard.

use std::{path::Path, time::Duration};

use serde_json::json;

use crate::{
    mutated_cluster::{MutatedCluster, pod},
    support::{guard_process::CONFIG, http_client, wait::until},
};

const LIMIT: Duration = Duration::from_secs(60);

async fn reloads(cluster: &MutatedCluster, result: &str) -> u64 {
    let page = http_client::get(cluster.guard.http(), "/metrics").await.unwrap().body;
    let line = format!("etcd_guard_config_reloads_total{{result=\"{result}\"}} ");
    page.lines().find_map(|it| it.strip_prefix(&line)).unwrap().parse().unwrap()
}

/// Whoever looks sees the old file or the new one, never half of it.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, file).unwrap();
}

#[tokio::test]
async fn a_changed_file_counts_at_once_and_a_bad_one_changes_nothing() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let file = cluster.files.join(CONFIG);
    let good = "apiVersion: etcd-guard.io/v1alpha1\nsidecars: {templates: [{name: a, native: false, containers: [{name: a, image: i}]}]}\n";
    replace(&file, good);
    until("the file is read", LIMIT, async || reloads(&cluster, "success").await == 1).await;
    replace(&file, &good[..good.len() - 8]);
    until("the bad file is counted", LIMIT, async || reloads(&cluster, "failure").await == 1).await;
    assert!(cluster.guard.is_ready().await);

    let (stored, _) = cluster.applied(&pod(json!({"etcd-guard.io/inject": "a"}))).await;
    assert!(cluster.guard.news().await.contains(&String::from("CREATE allowed Injected")));
    assert_eq!(stored["spec"]["containers"].as_array().unwrap().len(), 2);
}

#[test]
fn the_shipped_overlay_is_whole() {
    let kubectl = crate::support::testbed::program("kubectl");
    let overlay = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/overlays/mutating");
    let output = std::process::Command::new(kubectl).args(["kustomize", overlay]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "inject.etcd-guard.io",
        "nodes.etcd-guard.io",
        "rules.etcd-guard.io",
        "--config=/etc/etcd-guard/config",
    ] {
        assert!(text.contains(part), "{part}");
    }
}

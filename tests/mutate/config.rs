//! Changes of the configuration file of a running guard.

use std::time::Duration;

use serde_json::json;

use crate::mutated_cluster::{MutatedCluster, pod};
use test_support::{guard::process::CONFIG, http_client, project::plugin_program, wait::wait_until};

/// The file is read every half second, so only a broken guard exceeds this.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

async fn reloads(cluster: &MutatedCluster, result: &str) -> u64 {
    let page = http_client::get(cluster.guard.http(), "/metrics").await.unwrap().body;
    let prefix = format!("etcd_guard_config_reloads_total{{result=\"{result}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn applies_changed_file_and_ignores_invalid_one() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let file = cluster.files.join(CONFIG);
    let good = "apiVersion: etcd-guard.io/v1alpha1\nsidecars: {templates: [{name: a, native: false, containers: [{name: a, image: i}]}]}\n";
    std::fs::write(&file, good).unwrap();
    wait_until("the file is read", RELOAD_TIMEOUT, async || reloads(&cluster, "success").await == 1).await;
    std::fs::write(&file, &good[..good.len() - 8]).unwrap();
    wait_until("the bad file is counted", RELOAD_TIMEOUT, async || reloads(&cluster, "failure").await == 1)
        .await;
    assert!(cluster.guard.is_ready().await);

    let (stored, _) = cluster.applied(&pod(json!({"etcd-guard.io/inject": "a"}))).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("CREATE allowed Injected")));
    assert_eq!(stored["spec"]["containers"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn serves_last_valid_file_after_many_changes() {
    let template = |image: &str| {
        format!(
            "apiVersion: etcd-guard.io/v1alpha1\nsidecars: {{templates: [{{name: a, native: false, containers: [{{name: a, image: {image}}}]}}]}}\n"
        )
    };
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let file = cluster.files.join(CONFIG);
    let requesting = pod(json!({"etcd-guard.io/inject": "a"}));
    std::fs::write(&file, template("start")).unwrap();
    wait_until("the file is read", RELOAD_TIMEOUT, async || reloads(&cluster, "success").await == 1).await;
    for turn in 0..200 {
        let good = template(&format!("turn-{turn}"));
        let text = match turn % 3 {
            0 => &good[..],
            1 => &good[..good.len() - 9],
            _ => "sidecars: [",
        };
        std::fs::write(&file, text).unwrap();
        if turn % 40 == 0 {
            let output = cluster.create(&requesting, &["--dry-run=server", "-o", "json"]).await;
            let shown: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
            assert_eq!(
                shown["spec"]["containers"].as_array().unwrap().len(),
                2,
                "one of the valid files applies"
            );
            assert!(cluster.guard.is_ready().await);
        }
    }
    std::fs::write(&file, template("end")).unwrap();
    let read = async || {
        let output = cluster.create(&requesting, &["--dry-run=server", "-o", "json"]).await;
        output.stdout.contains("\"image\": \"end\"")
    };
    wait_until("the last good one is read", RELOAD_TIMEOUT, read).await;
    let failures = reloads(&cluster, "failure").await;
    std::fs::write(&file, "sidecars: [").unwrap();
    wait_until("the bad one is counted", RELOAD_TIMEOUT, async || {
        reloads(&cluster, "failure").await > failures
    })
    .await;
    assert!(cluster.guard.is_ready().await);
    cluster.guard.new_verdicts().await;
    let (stored, _) = cluster.applied(&requesting).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("CREATE allowed Injected")));
    assert_eq!(stored["spec"]["containers"][1]["image"], "end");
}

#[test]
fn config_check_reports_each_error_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.yaml");
    let text = "apiVersion: etcd-guard.io/v1alpha1\nlxcfs:\n  rot: /x\n  files: [meminfo, memory]\nlifespan: {least: 5, most: 2}\nguard: {\"a\\n\\e[31m\": 1}\n";
    std::fs::write(&file, text).unwrap();
    let check = || {
        let mut plugin = std::process::Command::new(plugin_program());
        plugin.args(["config", "check"]).arg(&file).output().unwrap()
    };
    let bad = check();
    let output = String::from_utf8(bad.stderr).unwrap();
    assert!(!bad.status.success());
    for (line, part) in [
        (3, "lxcfs.rot: unknown field"),
        (4, "lxcfs.files[1]: unknown value"),
        (5, "lifespan.most: "),
        (6, r"guard.a\n\u{1b}[31m: unknown field"),
    ] {
        let expected = format!("{}:{line}: {part}", file.display());
        assert!(output.lines().any(|line| line.starts_with(&expected)), "{expected} in {output}");
    }
    assert!(output.contains("has 4 errors"), "{output}");
    std::fs::write(&file, "apiVersion: etcd-guard.io/v1alpha1\n").unwrap();
    assert!(check().status.success());
}

#[test]
fn shipped_overlay_is_complete() {
    let kubectl = test_support::processes::testbed::program("kubectl");
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

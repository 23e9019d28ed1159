//! The tables of templates that src/inject/src/config/tests/templates.rs reads, on a real API server, and `config check --server`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::mutated_cluster::{MutatedCluster, pod};
use test_support::project::plugin_program;

/// Returns the entries of a table.
pub(crate) fn entries(name: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates").join(name);
    serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Returns a pod with the parts of a template, without the injection.
pub(crate) fn pod_of(entry: &Value) -> Value {
    let template = &entry["template"];
    let mut pod = pod(json!({}));
    pod["metadata"] = json!({
        "name": entry["name"],
        "labels": template["labels"],
        "annotations": template["annotations"],
    });
    let list = |key: &str| template[key].as_array().cloned().unwrap_or_default();
    for list in ["env", "volumeMounts"] {
        pod["spec"]["containers"][0][list] = template["appContainers"][list].clone();
    }
    let mut init_containers = list("initContainers");
    for mut container in list("containers") {
        if template["native"] == false {
            pod["spec"]["containers"].as_array_mut().unwrap().push(container);
        } else {
            container["restartPolicy"] = json!("Always");
            init_containers.push(container);
        }
    }
    pod["spec"]["initContainers"] = json!(init_containers);
    let parts = [
        "volumes",
        "imagePullSecrets",
        "tolerations",
        "affinity",
        "dnsConfig",
        "hostAliases",
        "securityContext",
    ];
    for part in parts {
        pod["spec"][part] = template[part].clone();
    }
    pod
}

/// Creates the pods of a table as a dry run. Returns the names of those that the API server accepts and rejects.
async fn dry_run(cluster: &MutatedCluster, table: &str) -> [BTreeSet<String>; 2] {
    let entries = entries(table);
    let pods: Vec<_> = entries.iter().map(pod_of).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
    let output = cluster.create(&list, &["--dry-run=server", "-o", "name"]).await;
    let accepted: BTreeSet<String> =
        output.stdout.lines().filter_map(|line| line.strip_prefix("pod/")).map(str::to_owned).collect();
    let rejections = output.stderr.lines().filter(|line| line.starts_with("Error from server")).count();
    assert_eq!(accepted.len() + rejections, entries.len(), "{output:?}");
    let names = entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned());
    let rejected = names.filter(|name| !accepted.contains(name)).collect();
    [accepted, rejected]
}

/// Runs `config check --server` for templates.
pub(crate) fn check(cluster: &MutatedCluster, templates: &Value, kubeconfig: &Path) -> Output {
    let file: PathBuf = cluster.files.join("checked.yaml");
    let config = json!({"apiVersion": "etcd-guard.io/v1alpha1", "sidecars": {"templates": templates}});
    std::fs::write(&file, config.to_string()).unwrap();
    let mut plugin = Command::new(plugin_program());
    plugin.args(["config", "check", "--server", "--namespace", &cluster.namespace, "--kubeconfig"]);
    plugin.arg(kubeconfig).arg(&file).output().unwrap()
}

#[tokio::test]
async fn api_server_rejects_each_template_of_the_table() {
    let cluster = MutatedCluster::start("", &[], &[]).await;
    let [accepted, rejected] = dry_run(&cluster, "bad.yaml").await;
    assert_eq!(accepted, BTreeSet::new());
    assert!(rejected.len() >= 90);
    let [accepted, rejected] = dry_run(&cluster, "good.yaml").await;
    assert_eq!(rejected, BTreeSet::new());
    assert!(accepted.len() >= 15);
}

#[tokio::test]
async fn config_check_creates_pods_as_dry_run() {
    let cluster = MutatedCluster::start("", &[], &[]).await;
    let admin = cluster.files.parent().unwrap().join("admin.kubeconfig");
    for entry in entries("good.yaml") {
        let mut template = entry["template"].clone();
        template["name"] = entry["name"].clone();
        let output = check(&cluster, &json!([template]), &admin);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(cluster.get(&["pods"])["items"], json!([]), "a dry run creates nothing");

    // A sleep that exceeds the grace period of the pod is known only with the pod.
    let sleeping = json!({"name": "c", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 600}}}});
    let templates = json!([
        {"name": "fine", "containers": [{"name": "f", "image": "i"}]},
        {"name": "sleeping", "containers": [sleeping]},
    ]);
    let output = check(&cluster, &templates, &admin);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("template sleeping: ") && stderr.contains("lifecycle.preStop.sleep"), "{stderr}");
    assert!(stderr.contains("1 of 2 templates failed") && !stderr.contains("template fine"), "{stderr}");
    let mut plugin = Command::new(plugin_program());
    plugin.args(["config", "check", "-o", "json", "--server", "-n", &cluster.namespace, "--kubeconfig"]);
    let output = plugin.arg(&admin).arg(cluster.files.join("checked.yaml")).output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &document["valid"]), (Some(1), &json!(false)), "{document}");
    let templates = document["server"]["templates"].as_array().unwrap();
    let names: Vec<&Value> =
        templates.iter().filter(|item| !item["error"].is_null()).map(|item| &item["name"]).collect();
    assert_eq!((templates.len(), names), (2, vec![&json!("sleeping")]), "{document}");
}

//! Templates in namespaces that enforce a Pod Security level, and in pods with resources as a whole.

use serde_json::{Value, json};

use crate::{
    mutated_cluster::{MutatedCluster, pod},
    templates::{entries, pod_of},
};

/// A template that only `privileged` admits, one that `baseline` admits, and one that `restricted` admits.
const TEMPLATES: &str = "
sidecars:
  templates:
  - name: host
    match: {podSelector: {matchLabels: {app: web}}}
    volumes: [{name: host, hostPath: {path: /var/log}}]
  - name: plain
    containers: [{name: plain, image: 'plain:1', resources: {requests: {cpu: 500m}}}]
  - name: hardened
    containers:
    - name: hardened
      image: hardened:1
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
";

/// Returns a pod that `restricted` admits. Its settings that containers inherit are those of the pod.
fn restricted_pod() -> Value {
    let mut pod = pod(json!({"etcd-guard.io/inject": "host,plain,hardened"}));
    pod["metadata"]["labels"] = json!({"app": "web"});
    pod["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    pod["spec"]["containers"][0]["securityContext"] =
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    pod
}

/// The names of the injected containers.
fn injected(pod: &Value) -> Vec<&str> {
    let containers = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    containers.filter_map(|container| container["name"].as_str()).collect()
}

#[tokio::test]
async fn restricted_namespace_still_admits_its_pods() {
    let labels = ["pod-security.kubernetes.io/enforce=restricted"];
    let cluster = MutatedCluster::start(TEMPLATES, &labels, &["inject"]).await;
    let (stored, output) = cluster.applied(&restricted_pod()).await;
    assert_eq!(injected(&stored), ["hardened"]);
    for template in ["host", "plain"] {
        let warning = format!("template {template} was not injected: Pod Security restricted forbids ");
        assert!(output.stderr.contains(&warning), "{output:?}");
    }
    // Without a request, only the selector of the template applies.
    let mut selected = restricted_pod();
    selected["metadata"] = json!({"name": "selected", "labels": {"app": "web"}});
    let (stored, output) = cluster.applied(&selected).await;
    assert!(output.stderr.contains("template host was not injected: Pod Security restricted"), "{output:?}");
    assert_eq!(injected(&stored), [""; 0]);
}

#[tokio::test]
async fn configured_default_level_applies_without_label() {
    let config = format!("podSecurityDefault: baseline{TEMPLATES}");
    let cluster = MutatedCluster::start(&config, &[], &["inject"]).await;
    let (stored, output) = cluster.applied(&restricted_pod()).await;
    assert_eq!(injected(&stored), ["hardened", "plain"]);
    assert!(output.stderr.contains("template host was not injected: Pod Security baseline"), "{output:?}");
}

#[tokio::test]
async fn template_does_not_exceed_resources_of_pod() {
    let cluster = MutatedCluster::start(TEMPLATES, &[], &["inject"]).await;
    let mut limited = restricted_pod();
    limited["spec"]["resources"] = json!({"requests": {"cpu": "1"}});
    limited["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "600m"}});
    let (stored, output) = cluster.applied(&limited).await;
    assert_eq!(injected(&stored), ["hardened"]);
    let warning = "template plain was not injected: it exceeds spec.resources of the pod (requests.cpu)";
    assert!(output.stderr.contains(warning), "{output:?}");
    assert_eq!(stored["spec"]["resources"]["requests"], json!({"cpu": "1"}));
}

/// The table that src/inject/src/config/tests/templates.rs reads.
#[tokio::test]
async fn api_server_agrees_with_levels_of_templates() {
    let order = ["privileged", "baseline", "restricted"];
    for enforced in ["baseline", "restricted"] {
        let label = format!("pod-security.kubernetes.io/enforce={enforced}");
        let cluster = MutatedCluster::start("", &[&label], &[]).await;
        let is_admitted = |entry: &Value| {
            let rank = |level: &str| order.iter().position(|known| *known == level);
            rank(entry["level"].as_str().unwrap()) >= rank(enforced)
        };
        let entries = entries("pod_security.yaml");
        let pods: Vec<_> = entries
            .iter()
            .map(|entry| {
                let mut pod = pod_of(entry);
                pod["spec"]["containers"][0]["securityContext"] = json!({
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"},
                });
                pod
            })
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
        let output = cluster.create(&list, &["--dry-run=server", "-o", "name"]).await;
        let admitted: Vec<_> = output.stdout.lines().filter_map(|line| line.strip_prefix("pod/")).collect();
        let expected: Vec<_> = entries
            .iter()
            .filter(|entry| is_admitted(entry))
            .map(|entry| entry["name"].as_str().unwrap())
            .collect();
        assert_eq!(admitted, expected, "{enforced}");
    }
}

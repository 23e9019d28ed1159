//! Every manifest passes the real apiserver's strict validation: no unknown field, none twice, all of them valid.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::{
    helm_template, identity, kustomize, objects, path_of, stdout,
    support::{child::mortal, control_plane::ControlPlane, wait::until},
};

/// Longest that the apiserver may take to know a kind.
const DEFINED: Duration = Duration::from_secs(60);

/// Holds what the guard's own forbids.
const LXCFS_NAMESPACE: &str = "etcd-guard-lxcfs";

/// Kinds of others, by the definitions of releases that are pinned by checksum: the module, its folder here, the
/// folder of the definitions in it, their group, and the kinds that we use.
const FOREIGN: [(&str, &str, &str, &str, [&str; 2]); 2] = [
    (
        "github.com/cert-manager/cert-manager",
        "cert-manager",
        "deploy/crds",
        "cert-manager.io",
        ["certificates", "issuers"],
    ),
    (
        "github.com/prometheus-operator/prometheus-operator",
        "prometheus-operator",
        "example/prometheus-operator-crd",
        "monitoring.coreos.com",
        ["podmonitors", "prometheusrules"],
    ),
];

/// Makes the apiserver know the kinds of others.
async fn define_foreign_kinds(control_plane: &ControlPlane) {
    for (module, room, folder, group, kinds) in FOREIGN {
        let mut download = mortal("go");
        download.args(["mod", "download", "-json", module]);
        download.current_dir(path_of("scripts/testbed.d/programs").join(room));
        let module: Value = serde_json::from_str(&stdout(&mut download)).unwrap();
        define(control_plane, &format!("{}/{folder}", module["Dir"].as_str().unwrap()), group, kinds).await;
    }
}

async fn define(control_plane: &ControlPlane, folder: &str, group: &str, kinds: [&str; 2]) {
    let kubectl = control_plane.kubectl();
    for kind in kinds {
        let file = format!("{folder}/{group}_{kind}.yaml");
        // Server-side: the definitions are too large for an annotation.
        kubectl.must(&["apply", "--server-side", "-f", &file]);
        // `kubectl wait` fails where there are no conditions yet.
        let established = r#"jsonpath={.status.conditions[?(@.type=="Established")].status}"#;
        let definition = format!("crd/{kind}.{group}");
        until("the definition is established", DEFINED, async || {
            kubectl.run(&["get", &definition, "-o", established]).await.stdout == "True"
        })
        .await;
    }
}

/// Applies as a dry run; the namespaces are there already.
fn assert_accepted(control_plane: &ControlPlane, what: &str, namespace: &str, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let file = control_plane.dir.join("strict.json");
    fs::write(&file, list.to_string()).unwrap();
    let kubectl = control_plane.kubectl();
    let file = file.to_string_lossy();
    let said =
        kubectl.must(&["apply", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", &file]);
    assert!(!said.stderr.contains("Warning"), "{what}: {}", said.stderr);
}

#[tokio::test]
async fn everything_that_is_shipped_passes_strict_validation() {
    let control_plane = ControlPlane::start(&[]);
    for (namespace, level) in
        [("etcd-guard", "restricted"), ("prod", "restricted"), (LXCFS_NAMESPACE, "privileged")]
    {
        control_plane.kubectl().must(&["create", "namespace", namespace]);
        let label = &format!("pod-security.kubernetes.io/warn={level}");
        control_plane.kubectl().must(&["label", "namespace", namespace, label]);
    }
    define_foreign_kinds(&control_plane).await;
    for folder in [
        "deploy/base",
        "deploy/overlays/self-managed",
        "deploy/overlays/minikube",
        "deploy/overlays/audit-only",
        "deploy/overlays/register",
        "deploy/overlays/cert-manager",
        "deploy/overlays/mutating",
        "deploy/overlays/nodes",
        "deploy/overlays/lxcfs",
        "tests/data/kustomizations/with-monitoring",
        "tests/data/kustomizations/with-client-ca",
        "tests/data/kustomizations/self-managed-with-client-ca",
    ] {
        let mut all = objects(&kustomize(folder));
        // It is there, and its applied form lacks what kubectl would have noted in it.
        all.retain(|it| it["kind"] != "Namespace");
        let is_lxcfs = |it: &Value| it["metadata"]["namespace"] == LXCFS_NAMESPACE;
        let (lxcfs, all): (Vec<_>, Vec<_>) = all.into_iter().partition(is_lxcfs);
        if !lxcfs.is_empty() {
            assert_accepted(&control_plane, folder, LXCFS_NAMESPACE, &lxcfs);
        }
        assert_accepted(&control_plane, folder, "etcd-guard", &all);
        assert_configured(&control_plane, &all);
    }
    for mode in ["files", "self-managed", "cert-manager"] {
        let all = objects(&helm_template(&[&format!("--set=certificates.mode={mode}")]));
        assert_accepted(&control_plane, mode, "etcd-guard", &all);
    }
    let role = objects(&fs::read_to_string(path_of("deploy/secrets-role.yaml")).unwrap());
    assert_accepted(&control_plane, "secrets-role.yaml", "prod", &role);
    let mut examples: Vec<_> =
        fs::read_dir(path_of("etcd-manifests")).unwrap().map(|it| it.unwrap().path()).collect();
    examples.retain(|it| it.extension().is_some_and(|it| it == "yaml"));
    examples.sort();
    assert!(examples.len() > 1, "{examples:?}");
    for example in examples {
        let all = objects(&fs::read_to_string(&example).unwrap());
        let name = example.display().to_string();
        assert_accepted(&control_plane, &name, "prod", &all);
        if !name.ends_with("mtls-cert-manager.yaml") {
            assert_advised(&name, &all);
        }
    }
}

/// The configuration files are ones that the guard takes.
fn assert_configured(control_plane: &ControlPlane, objects: &[Value]) {
    for map in objects.iter().filter(|it| it["kind"] == "ConfigMap") {
        let file = control_plane.dir.join("config.yaml");
        fs::write(&file, map["data"]["config.yaml"].as_str().unwrap()).unwrap();
        stdout(mortal(env!("CARGO_BIN_EXE_etcd-guard")).args(["config", "check"]).arg(&file));
    }
}

/// What etcd's own documentation and this project advise for every member's pod.
fn assert_advised(name: &str, objects: &[Value]) {
    let sets: Vec<_> = objects.iter().filter(|it| it["kind"] == "StatefulSet").collect();
    assert!(!sets.is_empty(), "{name} has a StatefulSet");
    assert!(objects.iter().any(|it| it["kind"] == "PodDisruptionBudget"), "{name} has a budget");
    for set in sets {
        let pod = &set["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let of = format!("{name}: {}", identity(set));
        assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() >= 10, "{of}: a grace period");
        assert!(pod["affinity"]["podAntiAffinity"].is_object(), "{of}: anti-affinity");
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert!(container[probe].is_object(), "{of}: {probe}");
        }
        assert!(set["spec"]["volumeClaimTemplates"].is_array(), "{of}: lasting volumes");
        let retention = &set["spec"]["persistentVolumeClaimRetentionPolicy"];
        assert_eq!(retention, &json!({"whenDeleted": "Retain", "whenScaled": "Retain"}), "{of}");
        assert_eq!(set["spec"]["podManagementPolicy"], "Parallel", "{of}");
    }
}

//! Every manifest passes the strict validation of a real API server, which rejects unknown and duplicate fields.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::{helm_template, identity, kustomize, objects, project_path, stdout};
use test_support::{
    kubernetes::{control_plane::ControlPlane, has_mutating_policies},
    processes::child::scoped_command,
    project::plugin_program,
    wait::wait_until,
};

/// The longest time until the API server knows a kind.
const DEFINITION_TIMEOUT: Duration = Duration::from_secs(60);

/// Its pods need permissions that the guard's namespace forbids.
const LXCFS_NAMESPACE: &str = "etcd-guard-lxcfs";

/// Custom resources of other projects, from releases that are pinned by checksum: the module, its folder here, the
/// folder of its definitions, the API group, and the used kinds.
const FOREIGN: [(&str, &str, &str, &str, &[&str]); 2] = [
    (
        "github.com/cert-manager/cert-manager",
        "cert-manager",
        "deploy/crds",
        "cert-manager.io",
        &["certificates", "issuers"],
    ),
    (
        "github.com/prometheus-operator/prometheus-operator",
        "prometheus-operator",
        "example/prometheus-operator-crd",
        "monitoring.coreos.com",
        &["podmonitors", "prometheusrules", "servicemonitors"],
    ),
];

/// The namespace of servers with the network of their nodes, which the level `restricted` forbids.
const HOST_NAMESPACE: &str = "host-network";

/// Values that exclude each other or need another namespace, with the namespace of the release.
const CHART_VARIANTS: [(&[&str], &str); 5] = [
    (&["--set=register=true"], "etcd-guard"),
    (&["--set=register=true,optInLabel.key=example.com/etcd,optInLabel.value=guarded"], "etcd-guard"),
    (&[r#"--set-json=ownerKinds=[{"group":"example.com","resource":"etcdclusters"}]"#], "etcd-guard"),
    (&["--set=hostNetwork=true", "--namespace=host-network"], HOST_NAMESPACE),
    (
        &[
            "--set=parts.nodes=true,parts.nodesPolicy=true",
            "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
        ],
        "etcd-guard",
    ),
];

/// Values of the chart that add objects and fields. With the network of a node, the pods would not be restricted.
const EVERY_VALUE: [&str; 5] = [
    "--set=parts.inject=true,parts.nodes=true,parts.rules=true,parts.nodeDeletions=true,parts.lxcfs=true",
    "--set=monitoring.enabled=true,monitoring.serviceMonitor.enabled=true,monitoring.dashboard.enabled=true",
    "--set=image.digest=sha256:1111111111111111111111111111111111111111111111111111111111111111",
    "--set=defaultMode=audit,logLevel=debug,podLabels.a=b,podAnnotations.a=b,serviceAccount.annotations.a=b,nodeSelector.a=b",
    r#"--set-json=imagePullSecrets=[{"name":"a"}],tolerations=[{"operator":"Exists"}],extraEnv=[{"name":"A","value":"b"}]"#,
];

/// Defines the custom resources of other projects.
async fn define_foreign_kinds(control_plane: &ControlPlane) {
    for (module, program, folder, group, kinds) in FOREIGN {
        let mut download = scoped_command("go");
        download.args(["mod", "download", "-json", module]);
        download.current_dir(project_path("scripts/lib/programs").join(program));
        let module: Value = serde_json::from_str(&stdout(&mut download)).unwrap();
        define(control_plane, &format!("{}/{folder}", module["Dir"].as_str().unwrap()), group, kinds).await;
    }
}

async fn define(control_plane: &ControlPlane, folder: &str, group: &str, kinds: &[&str]) {
    let kubectl = control_plane.kubectl();
    for kind in kinds {
        let file = format!("{folder}/{group}_{kind}.yaml");
        // Server-side: the definitions are too large for an annotation.
        kubectl.run_checked(&["apply", "--server-side", "-f", &file]);
        // `kubectl wait` fails while there are no conditions.
        let established = r#"jsonpath={.status.conditions[?(@.type=="Established")].status}"#;
        let definition = format!("crd/{kind}.{group}");
        wait_until("the definition is established", DEFINITION_TIMEOUT, async || {
            kubectl.run(&["get", &definition, "-o", established]).await.stdout == "True"
        })
        .await;
    }
}

/// Applies the objects as a dry run; their namespaces exist.
fn assert_accepted(control_plane: &ControlPlane, description: &str, namespace: &str, objects: &[Value]) {
    let is_known = |object: &&Value| {
        has_mutating_policies()
            || !object["kind"].as_str().is_some_and(|kind| kind.starts_with("MutatingAdmissionPolicy"))
    };
    let objects: Vec<_> = objects.iter().filter(is_known).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let file = control_plane.dir.join("strict.json");
    fs::write(&file, list.to_string()).unwrap();
    let kubectl = control_plane.kubectl();
    let file = file.to_string_lossy();
    let output = kubectl.run_checked(&[
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-n",
        namespace,
        "-f",
        &file,
    ]);
    assert!(!output.stderr.contains("Warning"), "{description}: {}", output.stderr);
}

/// Returns the folders of all kustomizations of the project.
fn kustomizations() -> Vec<String> {
    let mut folders = vec![String::from("deploy/base")];
    for parent in ["deploy/overlays", "tests/data/kustomizations"] {
        for entry in fs::read_dir(project_path(parent)).unwrap() {
            folders.push(format!("{parent}/{}", entry.unwrap().file_name().to_str().unwrap()));
        }
    }
    folders.sort();
    assert!(folders.len() > 15, "{folders:?}");
    folders
}

#[tokio::test]
async fn all_manifests_pass_strict_validation() {
    let control_plane = ControlPlane::start(&[]);
    for (namespace, level) in [
        ("etcd-guard", "restricted"),
        ("prod", "restricted"),
        (LXCFS_NAMESPACE, "privileged"),
        (HOST_NAMESPACE, "privileged"),
    ] {
        control_plane.kubectl().run_checked(&["create", "namespace", namespace]);
        let label = &format!("pod-security.kubernetes.io/warn={level}");
        control_plane.kubectl().run_checked(&["label", "namespace", namespace, label]);
    }
    define_foreign_kinds(&control_plane).await;
    for folder in &kustomizations() {
        let mut all = objects(&kustomize(folder));
        // The namespace exists, without the annotation that kubectl would have added.
        all.retain(|object| object["kind"] != "Namespace");
        let is_lxcfs = |object: &Value| object["metadata"]["namespace"] == LXCFS_NAMESPACE;
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
    for (flags, namespace) in CHART_VARIANTS {
        let mut all = objects(&helm_template(flags));
        all.retain(|object| object["kind"] != "Namespace");
        assert_accepted(&control_plane, &format!("{flags:?}"), namespace, &all);
    }
    let all = objects(&helm_template(&EVERY_VALUE));
    let (lxcfs, all): (Vec<_>, Vec<_>) = all
        .into_iter()
        .filter(|object| object["kind"] != "Namespace")
        .partition(|object| object["metadata"]["namespace"] == LXCFS_NAMESPACE);
    assert_accepted(&control_plane, "chart", LXCFS_NAMESPACE, &lxcfs);
    assert_accepted(&control_plane, "chart", "etcd-guard", &all);
    let role = objects(&fs::read_to_string(project_path("deploy/secrets-role.yaml")).unwrap());
    assert_accepted(&control_plane, "secrets-role.yaml", "prod", &role);
    let role = objects(&fs::read_to_string(project_path("deploy/owners-role.yaml")).unwrap());
    assert_accepted(&control_plane, "owners-role.yaml", "default", &role);
    let mut examples: Vec<_> =
        fs::read_dir(project_path("etcd-manifests")).unwrap().map(|entry| entry.unwrap().path()).collect();
    examples.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    examples.sort();
    assert!(examples.len() > 1, "{examples:?}");
    for example in examples {
        let all = objects(&fs::read_to_string(&example).unwrap());
        let name = example.display().to_string();
        assert_accepted(&control_plane, &name, "prod", &all);
        if !name.ends_with("mtls-cert-manager.yaml") {
            assert_recommended(&name, &all);
        }
    }
}

/// Asserts that the guard accepts the configuration files.
fn assert_configured(control_plane: &ControlPlane, objects: &[Value]) {
    for map in objects.iter().filter(|object| object["kind"] == "ConfigMap") {
        let file = control_plane.dir.join("config.yaml");
        fs::write(&file, map["data"]["config.yaml"].as_str().unwrap()).unwrap();
        stdout(scoped_command(plugin_program()).args(["config", "check"]).arg(&file));
    }
}

/// Asserts properties that etcd's documentation and this project recommend for the pods of members.
fn assert_recommended(name: &str, objects: &[Value]) {
    let sets: Vec<_> = objects.iter().filter(|object| object["kind"] == "StatefulSet").collect();
    assert!(!sets.is_empty(), "{name} has a StatefulSet");
    assert!(objects.iter().any(|object| object["kind"] == "PodDisruptionBudget"), "{name} has a budget");
    for set in sets {
        let pod = &set["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let place = format!("{name}: {}", identity(set));
        assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() >= 10, "{place}: a grace period");
        // The guard's class: a lower priority can keep the guard from being scheduled.
        assert_eq!(pod["priorityClassName"], "system-cluster-critical", "{place}");
        assert!(pod["affinity"]["podAntiAffinity"].is_object(), "{place}: anti-affinity");
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert!(container[probe].is_object(), "{place}: {probe}");
        }
        assert!(set["spec"]["volumeClaimTemplates"].is_array(), "{place}: persistent volumes");
        let retention = &set["spec"]["persistentVolumeClaimRetentionPolicy"];
        assert_eq!(retention, &json!({"whenDeleted": "Retain", "whenScaled": "Retain"}), "{place}");
        assert_eq!(set["spec"]["podManagementPolicy"], "Parallel", "{place}");
    }
}

//! `kubectl etcd-guard doctor` on a correct installation, and after one part of it was broken.

use std::{collections::BTreeMap, path::Path, process::Stdio};

use k8s_openapi::{
    ByteString,
    api::core::v1::Pod,
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
    config::{AuthInfo, Kubeconfig},
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use time::OffsetDateTime;

use test_support::{
    guard::process::{GuardProcess, POD_NAME},
    guarded_cluster::START_TIMEOUT,
    kubernetes::{control_plane::ControlPlane, pods::create_pod_with},
    layout::Layout,
    process_node::ProcessNode,
    processes::child::{run_to_end, scoped_command},
    project,
    wait::{wait_for, wait_until},
};

const NODE: &str = "worker";
const GUARD: &str = "etcd-guard";
const MEMBERS: &str = "prod";

/// The shipped installation, with a process as the server of the webhooks.
struct Installation {
    control_plane: ControlPlane,
    client: Client,
    guard: GuardProcess,
    _node: ProcessNode,
}

/// The lines that are not `ok`, by check, and the exit status.
type Result = (BTreeMap<String, String>, Option<i32>);

impl Installation {
    async fn start() -> Self {
        let control_plane = ControlPlane::start(&[NODE]);
        control_plane.grant_guard_permissions();
        let client = control_plane.client().await;
        apply_shipped(&control_plane);
        let pods: Api<Pod> = Api::namespaced(client.clone(), GUARD);
        let replicas = wait_for("the Deployment creates its pods", START_TIMEOUT, async || {
            let names = pods.list(&ListParams::default()).await.ok()?.items.into_iter();
            let names: Vec<String> = names.filter_map(|pod| pod.metadata.name).collect();
            (names.len() == 2).then_some(names)
        })
        .await;
        let ready =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        for name in &replicas {
            pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&ready)).await.unwrap();
        }
        let files = control_plane.dir.join("guard");
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join(POD_NAME), &replicas[0]).unwrap();
        let kubectl = control_plane.kubectl();
        kubectl.run_checked(&["create", "namespace", MEMBERS]);
        kubectl.run_checked(&["label", "namespace", MEMBERS, "etcd-guard.io/guard=enabled"]);
        Layout::default().apply(&kubectl, MEMBERS, &control_plane.dir);
        let node = control_plane.process_node(&[NODE], MEMBERS, control_plane.dir.join("node"));
        let guard = GuardProcess::start(&control_plane.guard_kubeconfig(), &files).await;
        let installation = Self { control_plane, client, guard, _node: node };
        installation.register(&installation.guard.ca_pem);
        installation
    }

    /// Registers the shipped webhooks with this CA.
    fn register(&self, ca_pem: &str) {
        for (manifest, path) in [("webhooks", "validate"), ("uid-webhook", "mutate")] {
            let text =
                std::fs::read_to_string(project::path(&format!("deploy/base/{manifest}.yaml"))).unwrap();
            let mut configuration: Value = serde_saphyr::from_str(&text).unwrap();
            let url = format!("https://{}/{path}", self.guard.https());
            let bundle = ByteString(ca_pem.as_bytes().to_vec());
            for entry in configuration["webhooks"].as_array_mut().unwrap() {
                entry["clientConfig"] = json!({"url": url, "caBundle": bundle});
            }
            let file = self.control_plane.dir.join(format!("{manifest}.json"));
            std::fs::write(&file, configuration.to_string()).unwrap();
            self.control_plane.kubectl().run_checked(&["apply", "-f", &file.to_string_lossy()]);
        }
    }

    /// Runs `doctor` with the admin's kubeconfig. Returns the exit status and the JSON document.
    async fn doctor(&self) -> (Option<i32>, Value) {
        self.doctor_with(&self.control_plane.admin_kubeconfig()).await
    }

    async fn doctor_with(&self, kubeconfig: &Path) -> (Option<i32>, Value) {
        let (status, stdout) = self.run(kubeconfig, &["-o", "json"]).await;
        (status, serde_json::from_str(&stdout).unwrap_or_default())
    }

    async fn run(&self, kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, String) {
        let mut program = scoped_command(project::plugin_program());
        program.arg("doctor").args(arguments).arg("--kubeconfig").arg(kubeconfig).stdin(Stdio::null());
        program.args(["--guard", &format!("http://{}", self.guard.http())]);
        let output = run_to_end(program).await;
        eprintln!("doctor: {}", String::from_utf8_lossy(&output.stderr));
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until `doctor` returns this result. The API server learns of changes by watches.
    async fn wait_for(&self, case: &str, expected: &[(&str, &str)], exit: i32) {
        let expected: Result = (
            expected.iter().map(|(check, state)| ((*check).to_owned(), (*state).to_owned())).collect(),
            Some(exit),
        );
        let mut last = Value::Null;
        wait_until(case, START_TIMEOUT, async || {
            let (status, report) = self.doctor().await;
            let found = (deviations(&report), status);
            if found != expected && report != last {
                eprintln!("{case}: {report:#}");
            }
            last = report;
            found == expected
        })
        .await;
    }

    async fn wait_until_green(&self) {
        self.wait_for("all lines are ok", &[], 0).await;
    }

    fn kubectl(&self, arguments: &[&str]) {
        self.control_plane.kubectl().run_checked(arguments);
    }
}

/// Applies the shipped objects of the guard's namespace, without its webhooks.
fn apply_shipped(control_plane: &ControlPlane) {
    let folder = project::path("deploy/base");
    let yaml = control_plane.kubectl().run_checked(&["kustomize", &folder.to_string_lossy()]).stdout;
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
    objects.retain(|object| {
        let kind = object["kind"].as_str().unwrap();
        kind != "ValidatingWebhookConfiguration" && kind != "NetworkPolicy"
    });
    let file = control_plane.dir.join("shipped.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(&file, list.to_string()).unwrap();
    control_plane.kubectl().run_checked(&["apply", "-n", GUARD, "-f", &file.to_string_lossy()]);
}

/// Returns the checks whose lines are not `ok`. Each has a remedy.
fn deviations(report: &Value) -> BTreeMap<String, String> {
    let lines = report["checks"].as_array().into_iter().flatten();
    lines
        .filter(|line| {
            let is_ok = line["state"] == "ok";
            assert_eq!(line["remedy"].is_null(), is_ok, "{line}");
            !is_ok
        })
        .map(|line| (line["check"].as_str().unwrap().to_owned(), line["state"].as_str().unwrap().to_owned()))
        .collect()
}

/// Writes a certificate that expired two days ago, and its key. Returns the CA.
fn write_expired_certificate(files: &Path) -> String {
    let days_ago = |days: i64| {
        let seconds = (Timestamp::now() - SignedDuration::from_hours(24 * days)).as_second();
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    };
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.distinguished_name.push(DnType::CommonName, "another CA of a test");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![String::from("127.0.0.1")]).unwrap();
    (leaf.not_before, leaf.not_after) = (days_ago(90), days_ago(2));
    let certificate = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    std::fs::write(files.join("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(files.join("tls.key"), key.serialize_pem()).unwrap();
    ca_pem
}

#[tokio::test]
async fn doctor_is_green_until_one_part_is_broken() {
    let mut installation = Installation::start().await;
    installation.wait_until_green().await;
    let (_, report) = installation.doctor().await;
    let checks: Vec<&str> =
        report["checks"].as_array().unwrap().iter().map(|line| line["check"].as_str().unwrap()).collect();
    let all = [
        "api-server",
        "clock",
        "webhooks",
        // The configuration that adds the uid to evictions.
        "webhooks",
        "ca-bundle",
        "certificate",
        "permissions",
        "network",
        "replicas",
        "versions",
        "disruption-budget",
        "clusters",
        "traps",
        "etcd-versions",
        "recognition",
        "priority",
    ];
    assert_eq!(checks, all);
    let admin = installation.control_plane.admin_kubeconfig();
    let (status, table) = installation.run(&admin, &[]).await;
    assert!(status == Some(0) && table.ends_with("ok: 16, warnings: 0, failures: 0\n"), "{table}");
    eprintln!("{table}");

    // The dry run of the network check reached the guard.
    installation.guard.new_verdicts().await;
    installation.doctor().await;
    let verdicts = installation.guard.new_verdicts().await;
    assert_eq!(verdicts, ["CREATE allowed PodGone"]);

    let webhooks = "validatingwebhookconfiguration/etcd-guard";
    installation.kubectl(&["delete", webhooks]);
    let expected = [("network", "warning"), ("webhooks", "failure")];
    installation.wait_for("the webhooks are missing", &expected, 1).await;
    installation.register(&installation.guard.ca_pem);
    installation.wait_until_green().await;

    let files = installation.control_plane.dir.join("guard");
    let valid = ["tls.crt", "tls.key"].map(|name| (name, std::fs::read(files.join(name)).unwrap()));
    let other = installation.control_plane.dir.join("other");
    std::fs::create_dir_all(&other).unwrap();
    installation.register(&write_expired_certificate(&other));
    let expected = [("ca-bundle", "failure"), ("network", "failure")];
    installation.wait_for("the bundle is another CA", &expected, 1).await;

    let ca = write_expired_certificate(&files);
    installation.register(&ca);
    let expected = [("ca-bundle", "failure"), ("certificate", "failure"), ("network", "failure")];
    installation.wait_for("the certificate has expired", &expected, 1).await;
    for (name, content) in valid {
        std::fs::write(files.join(name), content).unwrap();
    }
    installation.register(&installation.guard.ca_pem);
    installation.wait_until_green().await;

    let last = r#"[{"op": "remove", "path": "/rules/10"}]"#;
    installation.kubectl(&["patch", "clusterrole", GUARD, "--type=json", "-p", last]);
    installation.wait_for("the role lacks a rule", &[("permissions", "failure")], 1).await;
    installation.control_plane.grant_guard_permissions();
    installation.wait_until_green().await;

    let pods: Api<Pod> = Api::namespaced(installation.client.clone(), MEMBERS);
    let client = json!({"name": "app", "image": "app", "args": ["--etcd-servers=http://etcd:2379"]});
    create_pod_with(&pods, "web", json!({"containers": [client]})).await;
    installation.wait_for("a pod has a lower priority", &[("priority", "warning")], 0).await;
    let (_, report) = installation.doctor().await;
    assert!(report.to_string().contains("namespace prod: 1 pod that mentions etcd"), "{report:#}");

    // Without permissions, each check that requires one is a warning.
    let token = installation.control_plane.kubectl();
    let token = token.run_checked(&["create", "token", "default", "-n", "default"]).stdout;
    let mut kubeconfig = Kubeconfig::read_from(&admin).unwrap();
    for user in &mut kubeconfig.auth_infos {
        let token = Some(token.trim().to_owned().into());
        user.auth_info = Some(AuthInfo { token, ..AuthInfo::default() });
    }
    let user = installation.control_plane.dir.join("user.kubeconfig");
    std::fs::write(&user, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    let (status, report) = installation.doctor_with(&user).await;
    let found = deviations(&report);
    assert_eq!(status, Some(0), "{report:#}");
    for check in ["webhooks", "certificate", "permissions", "network", "replicas", "disruption-budget"] {
        assert_eq!(found.get(check).map(String::as_str), Some("warning"), "{check}: {report:#}");
    }
    assert!(report.to_string().contains("auth can-i create subjectaccessreviews"), "{report:#}");

    installation.guard.kill();
    let (status, report) = installation.doctor().await;
    let found = deviations(&report);
    assert_eq!((status, found.get("network").map(String::as_str)), (Some(1), Some("failure")), "{report:#}");

    for cluster in &mut kubeconfig.clusters {
        let cluster = cluster.cluster.as_mut().unwrap();
        cluster.server = Some(String::from("https://127.0.0.1:1"));
    }
    std::fs::write(&user, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    assert_eq!(installation.run(&user, &[]).await, (Some(2), String::new()));
}

/// Runs `doctor` with the admin's kubeconfig. Returns the lines that are not `ok`, the exit status, and the report.
async fn doctor_of(control_plane: &ControlPlane, arguments: &[&str]) -> (Result, Value) {
    let mut program = scoped_command(project::plugin_program());
    program.args(["doctor", "-o", "json"]).args(arguments).stdin(Stdio::null());
    program.arg("--kubeconfig").arg(control_plane.admin_kubeconfig());
    let output = run_to_end(program).await;
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    ((deviations(&report), output.status.code()), report)
}

#[track_caller]
fn assert_deviations((found, report): (Result, Value), expected: &[(&str, &str)], exit: i32) -> Value {
    let expected = expected.iter().map(|(check, state)| ((*check).to_owned(), (*state).to_owned()));
    assert_eq!(found, (expected.collect(), Some(exit)), "{report:#}");
    report
}

#[tokio::test]
async fn cluster_is_checked_before_and_after_an_installation() {
    let control_plane = ControlPlane::start_with(&[], &["--controllers", "resourcequota-controller"]);
    let kubectl = control_plane.kubectl();
    let missing = doctor_of(&control_plane, &[]).await;
    let report = assert_deviations(missing, &[("installation", "failure")], 1);
    assert!(report.to_string().contains("kubectl etcd-guard doctor --kubeconfig "), "{report:#}");
    assert!(report.to_string().contains(" --pre"), "{report:#}");

    let before = doctor_of(&control_plane, &["--pre"]).await;
    assert_deviations(before, &[("etcd", "warning")], 0);
    kubectl.run_checked(&["create", "namespace", MEMBERS]);
    Layout::default().apply(&kubectl, MEMBERS, &control_plane.dir);
    let before = doctor_of(&control_plane, &["--pre"]).await;
    let report = assert_deviations(before, &[], 0);
    assert!(report.to_string().contains("recognized as etcd: prod/etcd; "), "{report:#}");
    let webhooks = kubectl.run_checked(&["get", "validatingwebhookconfigurations", "-o", "name"]);
    assert_eq!(webhooks.stdout, "", "a dry run creates nothing");

    // What would stop the installation, or surprise afterwards.
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "other"},
        "webhooks": [{
            "name": "other.example.com", "clientConfig": {"url": "https://127.0.0.1:1"}, "failurePolicy": "Ignore",
            "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["DELETE"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
        }],
    });
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": GUARD},
        "spec": {"hard": {"limits.cpu": "10"}},
    });
    kubectl.run_checked(&["create", "namespace", GUARD]);
    for object in [&webhook, &quota] {
        let file = control_plane.dir.join("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);
    }
    kubectl.run_checked(&["delete", "-n", MEMBERS, "poddisruptionbudgets", "--all"]);
    wait_until("the quota is counted", START_TIMEOUT, async || {
        doctor_of(&control_plane, &["--pre"]).await.1.to_string().contains("must specify limits.cpu")
    })
    .await;
    let found = doctor_of(&control_plane, &["--pre"]).await;
    let expected = [("pods", "failure"), ("other-webhooks", "warning"), ("etcd-budgets", "warning")];
    let report = assert_deviations(found, &expected, 1);
    assert!(
        report.to_string().contains("ValidatingWebhookConfiguration other (other.example.com)"),
        "{report:#}"
    );
    kubectl.run_checked(&["delete", "-n", GUARD, "resourcequota/team"]);
    kubectl.run_checked(&["delete", "validatingwebhookconfiguration/other"]);
    Layout::default().apply(&kubectl, MEMBERS, &control_plane.dir);

    // A user without rights.
    let found = doctor_of(&control_plane, &["--pre", "--as", "alice"]).await;
    let ((found, status), report) = found;
    assert_eq!(status, Some(1), "{report:#}");
    assert_eq!(found["permissions"], "failure", "{report:#}");
    for check in ["installation", "admission", "pods", "other-webhooks", "etcd"] {
        assert_eq!(found[check], "warning", "{check}: {report:#}");
    }
    assert!(report.to_string().contains("permissions.html#permissions-of-users"), "{report:#}");

    kubectl.run_checked(&["apply", "-k", &project::path("deploy/overlays/self-managed").to_string_lossy()]);
    let mut last = Value::Null;
    wait_until("the installation is all that is reported", START_TIMEOUT, async || {
        let (found, report) = doctor_of(&control_plane, &["--pre"]).await;
        let expected = BTreeMap::from([(String::from("installation"), String::from("warning"))]);
        if report != last {
            eprintln!("{report:#}");
        }
        last = report;
        found == (expected, Some(0))
    })
    .await;
}

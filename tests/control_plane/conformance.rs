//! `etcd-guard conformance` against a real apiserver, as a user runs it: what it finds, and that it leaves nothing behind.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Namespace,
};
use kube::{Api, Client, api::PostParams};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    child::mortal,
    cli::Printed,
    control_plane::{ControlPlane, SHARED_NODE},
    guard_process::GuardProcess,
    wait::until,
    webhook,
};

/// Longest until the program ends; by itself it takes half a minute.
const LIMIT: Duration = Duration::from_secs(600);

/// A guard that is asked about one namespace, which need not be there yet.
struct Scene {
    namespace: &'static str,
    client: Client,
    guard: GuardProcess,
    files: TempDir,
}

impl Scene {
    async fn set(namespace: &'static str) -> Self {
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
        let guard = GuardProcess::start(&control_plane.guard_kubeconfig(), &files.path().join("guard")).await;
        Self { namespace, client, guard, files }
    }

    async fn register(&self) {
        let named = json!({"matchLabels": {"kubernetes.io/metadata.name": self.namespace, webhook::LABEL: "enabled"}});
        let select = |webhook: &mut Value| webhook["namespaceSelector"] = named.clone();
        webhook::register(&self.client, self.namespace, &self.guard, select).await;
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = mortal(env!("CARGO_BIN_EXE_etcd-guard"));
        command.args(["conformance", "-n", self.namespace, "--wait=3m"]).args(arguments);
        command.arg("--kubeconfig").arg(ControlPlane::shared().admin_kubeconfig());
        command.args(["--guard", &format!("http://{}", self.guard.http())]);
        command.stdin(Stdio::null());
        command
    }

    async fn run(&self, arguments: &[&str]) -> Printed {
        let program = tokio::process::Command::from(self.command(arguments)).kill_on_drop(true).output();
        let output = tokio::time::timeout(LIMIT, program).await.expect("it ends").unwrap();
        Printed {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Refuses what nobody should: deletions of StatefulSets by the user.
    async fn refuse(&self) {
        let name = self.namespace;
        let policy = json!({"metadata": {"name": name}, "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{
                    "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["statefulsets"],
                }],
            },
            "matchConditions": [{"name": "user", "expression": "request.userInfo.username == 'admin'"}],
            "validations": [{"expression": "false", "message": "not on a Sunday"}],
        }});
        let binding =
            json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
        let policies = Api::<ValidatingAdmissionPolicy>::all(self.client.clone());
        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(self.client.clone());
        policies.create(&PostParams::default(), &serde_json::from_value(policy).unwrap()).await.unwrap();
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    }

    async fn is_left(&self) -> bool {
        Api::<Namespace>::all(self.client.clone()).get_opt(self.namespace).await.unwrap().is_some()
    }
}

#[tokio::test]
async fn all_that_the_guard_promises_is_found_true_and_nothing_is_left_of_it() {
    let scene = Scene::set("conformance-whole").await;
    let node = scene.files.path().join("node");
    let _node = ControlPlane::shared().process_node(&[SHARED_NODE], scene.namespace, node);
    scene.register().await;
    let printed = scene.run(&["--yes", "-o", "json"]).await;
    assert_eq!(printed.status, Some(0), "{printed:?}");
    let report: Value = serde_json::from_str(&printed.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() > 18, "{rows:#?}");
    assert!(rows.iter().all(|row| row["result"] == "passed"), "{rows:#?}");
    assert!(!scene.is_left().await);
    // It was the guard that answered, to all these.
    let asked = scene.guard.counted().await;
    for told in [
        "DELETE allowed NotEtcd",
        "DELETE denied LeaderProtected",
        "CREATE denied LeaderProtected",
        "DELETE allowed SafeToDelete",
        "CREATE allowed SafeToDelete",
        "DELETE denied IntentProtected",
        "UPDATE denied IntentProtected",
        "DELETE allowed LeaderTransferred",
        "DELETE allowed BreakGlass",
    ] {
        assert!(asked.get(told).is_some_and(|count| *count > 0), "{told}: {asked:#?}");
    }
}

#[tokio::test]
async fn what_is_not_answered_as_it_should_be_is_shown_and_is_the_exit_status() {
    let scene = Scene::set("conformance-refused").await;
    let node = scene.files.path().join("node");
    let _node = ControlPlane::shared().process_node(&[SHARED_NODE], scene.namespace, node);
    scene.register().await;
    scene.refuse().await;
    let printed = scene.run(&["--yes", "-o", "json"]).await;
    assert_eq!(printed.status, Some(1), "{printed:?}");
    let report: Value = serde_json::from_str(&printed.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let failed: Vec<&Value> = rows.iter().filter(|row| row["result"] != "passed").collect();
    let requests: Vec<&Value> = failed.iter().map(|row| &row["request"]).collect();
    let refused = [
        "delete the StatefulSet, dry run",
        "delete it with --cascade=orphan, dry run",
        "delete the StatefulSet under a break-glass",
    ]
    .map(Value::from);
    assert_eq!(requests, refused.iter().collect::<Vec<_>>(), "{rows:#?}");
    for row in failed {
        assert_eq!(row["result"], "failed");
        assert!(row["answered"].as_str().unwrap().starts_with("refused, and not by the guard"), "{row}");
        assert!(row["message"].as_str().unwrap().contains("not on a Sunday"), "{row}");
    }
    assert!(!scene.is_left().await);
}

#[tokio::test]
async fn nothing_is_tried_where_no_webhook_asks_the_guard_and_the_next_command_is_told() {
    let scene = Scene::set("conformance-unasked").await;
    let printed = scene.run(&["--yes"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("the guard is not in force: "), "{printed:?}");
    assert!(printed.stderr.contains("docs/install.md"), "{printed:?}");
    assert!(!scene.is_left().await);
}

#[tokio::test]
async fn nothing_is_made_without_a_yes_and_a_namespace_that_is_there_is_left_alone() {
    let scene = Scene::set("conformance-asked").await;
    let printed = scene.run(&[]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("give --yes") && !scene.is_left().await, "{printed:?}");

    let said = ControlPlane::shared().kubectl().must(&["create", "namespace", scene.namespace]);
    assert!(said.success);
    let printed = scene.run(&["--yes"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("already exists"), "{printed:?}");
    assert!(scene.is_left().await, "what is not its own stays");
}

/// No node runs its pods, so that it waits for them.
#[tokio::test]
async fn a_user_who_interrupts_it_finds_nothing_left() {
    let scene = Scene::set("conformance-stopped").await;
    scene.register().await;
    let mut program = scene.command(&["--yes"]);
    let mut child = program.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| said.send(line)));
    let mut told = Vec::new();
    while let Some(line) = tokio::time::timeout(LIMIT, heard.recv()).await.expect("it goes on") {
        if line.contains("an etcd cluster starts") {
            until("its cluster is made", LIMIT, async || {
                let path = scene.namespace;
                ControlPlane::shared()
                    .kubectl()
                    .run(&["-n", path, "get", "statefulset", "etcd"])
                    .await
                    .success
            })
            .await;
            kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        }
        told.push(line);
    }
    assert_eq!(child.wait().unwrap().code(), Some(2), "{told:?}");
    assert!(told.iter().any(|it| it.contains("stopped before the end")), "{told:?}");
    assert!(!scene.is_left().await, "{told:?}");
}

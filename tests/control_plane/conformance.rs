//! `etcd-guard conformance` against a real apiserver, as a user runs it: what it finds, and that it leaves nothing behind.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    pin::pin,
    process::{Child, Command, Stdio},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Namespace,
};
use kube::{
    Api, Client,
    api::{PostParams, WatchEvent, WatchParams},
    config::Kubeconfig,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::support::{
    child::mortal,
    cli::Printed,
    control_plane::{ControlPlane, SHARED_NODE},
    guard_process::GuardProcess,
    process_node::ProcessNode,
    wait::until,
    webhook,
};

/// Longest until the program ends; by itself it takes a minute or two.
const LIMIT: Duration = Duration::from_secs(600);

/// All that is tried, in its order.
const ROWS: [&str; 31] = [
    "delete a pod that runs no etcd",
    "delete the leader, dry run",
    "delete the leader",
    "delete the leader by force",
    "evict the leader, dry run",
    "evict the leader, as a drain does",
    "delete a follower, dry run",
    "delete a follower",
    "delete the other follower at once",
    "the deleted follower",
    "evict the other follower later",
    "delete both followers at the same instant",
    "evict a follower against its budget",
    "delete the other follower then, dry run",
    "delete the first follower then",
    "delete the collection of pods",
    "delete the only member",
    "delete the only member, on an emptyDir",
    "delete the only member, which a preStop hook removes",
    "delete the leader in audit mode, dry run",
    "delete the StatefulSet with --cascade=orphan, dry run",
    "delete the StatefulSet, dry run",
    "delete a member's claim, dry run",
    "delete the namespace, dry run",
    "scale to two replicas, dry run",
    "scale to one replica, dry run",
    "delete the leader under `leader: transfer`",
    "rollout by the StatefulSet controller",
    "delete the leader in the end, dry run",
    "delete the StatefulSet under a break-glass",
    "garbage collection of its pods",
];

/// Those of them that rest on the webhook for intents.
const OF_INTENTS: [&str; 8] = [
    "delete the StatefulSet with --cascade=orphan, dry run",
    "delete the StatefulSet, dry run",
    "delete a member's claim, dry run",
    "delete the namespace, dry run",
    "scale to two replicas, dry run",
    "scale to one replica, dry run",
    "delete the StatefulSet under a break-glass",
    "garbage collection of its pods",
];

/// Those that evict, or rest on an eviction.
const OF_EVICTIONS: [&str; 6] = [
    "evict the leader, dry run",
    "evict the leader, as a drain does",
    "evict the other follower later",
    "evict a follower against its budget",
    "delete the other follower then, dry run",
    "delete the first follower then",
];

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

    /// With a node that runs the pods of that namespace.
    async fn with_node(namespace: &'static str) -> (Self, ProcessNode) {
        let scene = Self::set(namespace).await;
        let node = scene.files.path().join("node");
        (scene, ControlPlane::shared().process_node(&[SHARED_NODE], namespace, node))
    }

    async fn register(&self) {
        self.register_but("none").await;
    }

    /// All webhooks but one, which selects nothing.
    async fn register_but(&self, left_out: &str) {
        let named = json!({"matchLabels": {"kubernetes.io/metadata.name": self.namespace, webhook::LABEL: "enabled"}});
        let select = |webhook: &mut Value| {
            webhook["namespaceSelector"] = named.clone();
            if webhook["name"] == left_out {
                webhook["namespaceSelector"]["matchLabels"]["nobody"] = json!("here");
            }
        };
        webhook::register(&self.client, self.namespace, &self.guard, select).await;
    }

    /// From now on nobody is asked.
    async fn unregister(&self) {
        let name = format!("etcd-guard-{}", self.namespace);
        let said =
            ControlPlane::shared().kubectl().run(&["delete", "validatingwebhookconfiguration", &name]).await;
        assert!(said.success, "{said:?}");
    }

    /// A kubeconfig of a user who has these rights and no others: `verb,verb resource.group`.
    async fn user(&self, rights: &[&str]) -> PathBuf {
        let (name, kubectl) = (self.namespace, ControlPlane::shared().kubectl());
        for (n, right) in rights.iter().enumerate() {
            let (verbs, resources) = right.split_once(' ').unwrap();
            let role = format!("{name}-{n}");
            let made = kubectl
                .run(&["create", "clusterrole", &role, "--verb", verbs, "--resource", resources])
                .await;
            assert!(made.success, "{made:?}");
            let user = format!("--user={name}");
            let role = format!("--clusterrole={role}");
            let bound =
                kubectl.run(&["create", "clusterrolebinding", &format!("{name}-{n}"), &role, &user]).await;
            assert!(bound.success, "{bound:?}");
        }
        let mut kubeconfig = Kubeconfig::read_from(ControlPlane::shared().admin_kubeconfig()).unwrap();
        for user in &mut kubeconfig.auth_infos {
            user.auth_info.as_mut().unwrap().impersonate = Some(name.to_owned());
        }
        let path = self.files.path().join("user.kubeconfig");
        fs::write(&path, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(&ControlPlane::shared().admin_kubeconfig(), arguments)
    }

    /// As somebody runs it.
    fn command_of(&self, kubeconfig: &Path, arguments: &[&str]) -> Command {
        let mut command = mortal(env!("CARGO_BIN_EXE_etcd-guard"));
        command.args(["conformance", "-n", self.namespace, "--wait=3m"]).args(arguments);
        command.arg("--kubeconfig").arg(kubeconfig);
        command.args(["--guard", &format!("http://{}", self.guard.http())]);
        command.stdin(Stdio::null());
        command
    }

    async fn run(&self, arguments: &[&str]) -> Printed {
        Self::end_of(self.command(arguments)).await
    }

    async fn end_of(command: Command) -> Printed {
        let program = tokio::process::Command::from(command).kill_on_drop(true).output();
        let output = tokio::time::timeout(LIMIT, program).await.expect("it ends").unwrap();
        Printed {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Refuses what nobody should: deletions by the user of what is of this group and resource.
    async fn refuse(&self, group: &str, resource: &str) {
        let name = self.namespace;
        let policy = json!({"metadata": {"name": name}, "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{
                    "apiGroups": [group], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": [resource],
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

/// A run that is watched while it goes on.
struct Watched {
    child: Child,
    heard: UnboundedReceiver<String>,
    told: Vec<String>,
}

impl Watched {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (said, heard) = unbounded_channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| said.send(line)));
        Self { child, heard, told: Vec::new() }
    }

    /// The next line of what it does; none after its last.
    async fn line(&mut self) -> Option<String> {
        let line = tokio::time::timeout(LIMIT, self.heard.recv()).await.expect("it goes on");
        self.told.extend(line.clone());
        line
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    fn goes_on(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it told in all, after its last line.
    fn end(self) -> Printed {
        let output = self.child.wait_with_output().unwrap();
        Printed {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: self.told.join("\n"),
        }
    }
}

/// The rows of a report in JSON.
fn rows_of(report: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(report).unwrap();
    report["rows"].as_array().unwrap().clone()
}

fn requests<'a>(rows: impl IntoIterator<Item = &'a Value>) -> Vec<&'a str> {
    rows.into_iter().map(|row| row["request"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn all_that_the_guard_promises_is_found_true_and_nothing_is_left_of_it() {
    let (scene, _node) = Scene::with_node("conformance-whole").await;
    scene.register().await;
    let printed = scene.run(&["--yes", "-o", "json"]).await;
    assert_eq!(printed.status, Some(0), "{printed:?}");
    let rows = rows_of(&printed.stdout);
    assert_eq!(requests(&rows), ROWS, "{rows:#?}");
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
        "DELETE allowed OwnerDeleted",
        "DELETE denied SingleMember",
        "DELETE denied PermanentLoss",
        "DELETE audited LeaderProtected",
        "UPDATE allowed IntentHarmless",
    ] {
        assert!(asked.get(told).is_some_and(|count| *count > 0), "{told}: {asked:#?}");
    }
}

#[tokio::test]
async fn what_is_not_answered_as_it_should_be_is_shown_and_is_the_exit_status() {
    let (scene, _node) = Scene::with_node("conformance-refused").await;
    scene.register().await;
    scene.refuse("apps", "statefulsets").await;
    let printed = scene.run(&["--yes", "-o", "json"]).await;
    assert_eq!(printed.status, Some(1), "{printed:?}");
    let rows = rows_of(&printed.stdout);
    let failed: Vec<&Value> = rows.iter().filter(|row| row["result"] != "passed").collect();
    let refused = [
        "delete the StatefulSet with --cascade=orphan, dry run",
        "delete the StatefulSet, dry run",
        "delete the StatefulSet under a break-glass",
        "garbage collection of its pods",
    ];
    assert_eq!(requests(failed.iter().copied()), refused, "{rows:#?}");
    let (last, failed) = failed.split_last().unwrap();
    assert_eq!(last["result"], "skipped", "{last}");
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

#[tokio::test]
async fn a_guard_that_cannot_be_asked_is_told_of_before_anything_is_made() {
    let mut scene = Scene::set("conformance-unreached").await;
    scene.register().await;
    scene.guard.kill();
    let printed = scene.run(&["--yes"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(
        printed.stderr.contains("asking the guard, before anything is made: connecting to "),
        "{printed:?}"
    );
    assert!(!printed.stderr.contains("deleting namespace"), "{printed:?}");
    assert!(!scene.is_left().await);
}

/// Who pipes it into `head`, say, and has the terminal closed.
#[tokio::test]
async fn nothing_is_left_where_nobody_reads_the_report() {
    let scene = Scene::set("conformance-unread").await;
    let only = WatchParams::default()
        .disable_bookmarks()
        .fields("metadata.name=conformance-unread")
        .timeout(LIMIT.as_secs().try_into().unwrap());
    let namespaces = Api::<Namespace>::all(scene.client.clone());
    let mut changes = pin!(namespaces.watch(&only, "0").await.unwrap());
    let mut program = scene.command(&["--yes", "-o", "json"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    // What is written there fails, and not for want of a reader.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut child = program.stdout(writer).stderr(full).spawn().unwrap();
    until("it ends", LIMIT, async || child.try_wait().unwrap().is_some()).await;
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let made = tokio::time::timeout(LIMIT, changes.next()).await.expect("it was made").unwrap();
    assert!(matches!(made, Ok(WatchEvent::Added(_))), "{made:?}");
    assert!(!scene.is_left().await);
}

#[tokio::test]
async fn what_rests_on_the_webhook_for_intents_or_on_a_missing_right_is_skipped_with_the_reason() {
    let (scene, _node) = Scene::with_node("conformance-partly").await;
    scene.register_but("intent.guard.etcd-guard.io").await;
    let user = scene
        .user(&[
            "* namespaces,services,pods,persistentvolumeclaims",
            "* statefulsets.apps",
            "* statefulsets.apps/scale",
            "* poddisruptionbudgets.policy",
            "list validatingwebhookconfigurations.admissionregistration.k8s.io",
        ])
        .await;
    let printed = Scene::end_of(scene.command_of(&user, &["--yes", "-o", "json"])).await;
    assert_eq!(printed.status, Some(0), "{printed:?}");
    let rows = rows_of(&printed.stdout);
    assert_eq!(requests(&rows), ROWS, "{rows:#?}");
    for row in &rows {
        let request = row["request"].as_str().unwrap();
        let why_not = row["answered"].as_str().unwrap();
        if OF_INTENTS.contains(&request) {
            assert!(why_not.contains("webhook intent.guard.etcd-guard.io does not select"), "{row}");
        } else if OF_EVICTIONS.contains(&request) {
            assert!(why_not.contains("cannot create resource \"pods/eviction\""), "{row}");
        } else {
            assert_eq!(row["result"], "passed", "{row}");
            continue;
        }
        assert_eq!(row["result"], "skipped", "{row}");
    }
    assert!(!scene.is_left().await);
}

#[tokio::test]
async fn who_may_make_a_namespace_and_not_delete_it_is_told_before_anything_is_made() {
    let scene = Scene::set("conformance-rights").await;
    let user = scene
        .user(&[
            "create,get,patch namespaces",
            "* services,pods",
            "* statefulsets.apps",
            "list validatingwebhookconfigurations.admissionregistration.k8s.io",
        ])
        .await;
    let printed = Scene::end_of(scene.command_of(&user, &["--yes"])).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(
        printed.stderr.contains("you may not delete namespaces, create poddisruptionbudgets:"),
        "{printed:?}"
    );
    assert!(!printed.stderr.contains("deleting namespace"), "{printed:?}");
    assert!(!scene.is_left().await);
}

/// From then on every yes is the apiserver's own, as if somebody said yes to everything.
#[tokio::test]
async fn a_guard_that_is_not_asked_any_more_is_found_out_and_is_the_exit_status() {
    let (scene, _node) = Scene::with_node("conformance-forgotten").await;
    scene.register().await;
    let mut run = Watched::start(scene.command(&["--yes", "-o", "json"]));
    while let Some(line) = run.line().await {
        if line.starts_with("delete a pod that runs no etcd: ") {
            scene.unregister().await;
        }
    }
    let printed = run.end();
    assert_eq!(printed.status, Some(1), "{printed:?}");
    let rows = rows_of(&printed.stdout);
    assert_eq!(requests(&rows), ROWS, "{rows:#?}");
    // The apiserver hears of it a moment later.
    let soon = &ROWS[1..3];
    let of = |result: &str| {
        let mut requests = requests(rows.iter().filter(|row| row["result"] == result));
        requests.retain(|it| !soon.contains(it));
        requests
    };
    // Before, and by Kubernetes alone.
    let unharmed =
        ["delete a pod that runs no etcd", "the deleted follower", "rollout by the StatefulSet controller"];
    assert_eq!(of("passed"), unharmed, "{rows:#?}");
    assert_eq!(of("skipped"), OF_INTENTS, "{rows:#?}");
    let is_of = |request: &str| rows.iter().find(|row| row["request"] == request).unwrap();
    let both = is_of("delete both followers at the same instant");
    let answered = both["answered"].as_str().unwrap();
    assert!(answered.contains(" and ") && answered.ends_with(" went"), "{both}");
    for unasked in ["delete a follower, dry run", "delete a follower", "evict the other follower later"] {
        let row = is_of(unasked);
        let answered = row["answered"].as_str().unwrap();
        assert!(answered.starts_with("allowed, but the guard "), "{row}");
    }
    assert!(!scene.is_left().await);
}

/// No node runs its pods, so that it waits for them.
#[tokio::test]
async fn a_user_whose_terminal_goes_finds_nothing_left() {
    let scene = Scene::set("conformance-stopped").await;
    scene.register().await;
    let mut run = Watched::start(scene.command(&["--yes"]));
    while let Some(line) = run.line().await {
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
            run.send(Signal::SIGHUP);
        }
        if line.contains("deleting namespace") {
            // Shell and kernel may both tell of it.
            run.send(Signal::SIGHUP);
        }
    }
    let printed = run.end();
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("stopped before the end"), "{printed:?}");
    assert!(!scene.is_left().await, "{printed:?}");
}

/// No node runs its pods, so that it waits for them.
#[tokio::test]
async fn a_namespace_that_cannot_be_deleted_at_first_is_deleted_later() {
    let scene = Scene::set("conformance-kept").await;
    scene.register().await;
    scene.refuse("", "namespaces").await;
    let mut run = Watched::start(scene.command(&["--yes"]));
    let kubectl = ControlPlane::shared().kubectl();
    while let Some(line) = run.line().await {
        if line.contains("an etcd cluster starts") {
            until("its deletion is refused", LIMIT, async || {
                let said = kubectl.run(&["delete", "namespace", scene.namespace, "--dry-run=server"]).await;
                said.stderr.contains("not on a Sunday")
            })
            .await;
            run.send(Signal::SIGINT);
        }
        if line.contains("deleting namespace") {
            // Long enough for several refusals.
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert!(scene.is_left().await && run.goes_on(), "{:?}", run.told);
            let said = kubectl.run(&["delete", "validatingadmissionpolicybinding", scene.namespace]).await;
            assert!(said.success, "{said:?}");
        }
    }
    let printed = run.end();
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(!scene.is_left().await, "{printed:?}");
}

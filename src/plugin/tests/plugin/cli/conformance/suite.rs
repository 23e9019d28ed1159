//! The conformance suite as a process, with a guard and a namespace of its own.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Namespace,
};
use kube::{Api, Client, api::PostParams, config::Kubeconfig};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::TIMEOUT;
use test_support::{
    guard::{cli::CliOutput, process::GuardProcess},
    kubernetes::{
        control_plane::{ControlPlane, SHARED_NODE},
        webhook,
    },
    process_node::ProcessNode,
    processes::child::scoped_command,
    project::plugin_program,
};

/// A guard for one namespace, which need not exist.
pub(crate) struct Suite {
    pub(crate) namespace: &'static str,
    pub(crate) client: Client,
    pub(crate) guard: GuardProcess,
    pub(crate) files: TempDir,
}

impl Suite {
    pub(crate) async fn new(namespace: &'static str) -> Self {
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
        let guard = GuardProcess::start(&control_plane.guard_kubeconfig(), &files.path().join("guard")).await;
        Self { namespace, client, guard, files }
    }

    /// Starts a guard, and a node that runs the pods of the namespace.
    pub(crate) async fn with_node(namespace: &'static str) -> (Self, ProcessNode) {
        let suite = Self::new(namespace).await;
        let node = suite.files.path().join("node");
        (suite, ControlPlane::shared().process_node(&[SHARED_NODE], namespace, node))
    }

    pub(crate) async fn register(&self) {
        self.register_except("none").await;
    }

    /// Registers all webhooks; this one does not select the namespace.
    pub(crate) async fn register_except(&self, excluded: &str) {
        let named = json!({"matchLabels": {"kubernetes.io/metadata.name": self.namespace, webhook::LABEL: "enabled"}});
        let select = |webhook: &mut Value| {
            webhook["namespaceSelector"] = named.clone();
            if webhook["name"] == excluded {
                webhook["namespaceSelector"]["matchLabels"]["excluded"] = json!("true");
            }
        };
        webhook::register(&self.client, self.namespace, &self.guard, select).await;
    }

    /// Removes the webhooks.
    pub(crate) async fn unregister(&self) {
        let name = format!("etcd-guard-{}", self.namespace);
        let output =
            ControlPlane::shared().kubectl().run(&["delete", "validatingwebhookconfiguration", &name]).await;
        assert!(output.success, "{output:?}");
    }

    /// Creates a user with only these permissions, `verb,verb resource.group`, and returns a kubeconfig.
    pub(crate) async fn user(&self, permissions: &[&str]) -> PathBuf {
        let (name, kubectl) = (self.namespace, ControlPlane::shared().kubectl());
        for (n, permission) in permissions.iter().enumerate() {
            let (verbs, resources) = permission.split_once(' ').unwrap();
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

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_with(&ControlPlane::shared().admin_kubeconfig(), arguments)
    }

    /// Returns the command with this kubeconfig.
    pub(crate) fn command_with(&self, kubeconfig: &Path, arguments: &[&str]) -> Command {
        let mut command = scoped_command(plugin_program());
        command.args(["conformance", "-n", self.namespace, "--wait=3m"]).args(arguments);
        command.arg("--kubeconfig").arg(kubeconfig);
        command.args(["--guard", &format!("http://{}", self.guard.http())]);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> CliOutput {
        Self::run_to_end(self.command(arguments)).await
    }

    pub(crate) async fn run_to_end(command: Command) -> CliOutput {
        let program = tokio::process::Command::from(command).kill_on_drop(true).output();
        let output = tokio::time::timeout(TIMEOUT, program).await.expect("the program ends").unwrap();
        CliOutput {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Adds a policy that denies the admin's deletions of this resource, which no guard does.
    pub(crate) async fn deny_deletions(&self, group: &str, resource: &str) {
        let name = self.namespace;
        let policy = json!({"metadata": {"name": name}, "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{
                    "apiGroups": [group], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": [resource],
                }],
            },
            "matchConditions": [{"name": "user", "expression": "request.userInfo.username == 'admin'"}],
            "validations": [{"expression": "false", "message": "denied by the test"}],
        }});
        let binding =
            json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
        let policies = Api::<ValidatingAdmissionPolicy>::all(self.client.clone());
        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(self.client.clone());
        policies.create(&PostParams::default(), &serde_json::from_value(policy).unwrap()).await.unwrap();
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    }

    pub(crate) async fn namespace_exists(&self) -> bool {
        Api::<Namespace>::all(self.client.clone()).get_opt(self.namespace).await.unwrap().is_some()
    }
}

/// A running program whose progress is read line by line.
pub(crate) struct RunningSuite {
    child: Child,
    receiver: UnboundedReceiver<String>,
    pub(crate) lines_read: Vec<String>,
}

impl RunningSuite {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (output, receiver) = unbounded_channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| output.send(line)));
        Self { child, receiver, lines_read: Vec::new() }
    }

    /// Returns the next line of progress, or `None` after the last one.
    pub(crate) async fn next_line(&mut self) -> Option<String> {
        let line = tokio::time::timeout(TIMEOUT, self.receiver.recv()).await.expect("the program continues");
        self.lines_read.extend(line.clone());
        line
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end of the program, and returns its whole output.
    pub(crate) fn end(self) -> CliOutput {
        let output = self.child.wait_with_output().unwrap();
        CliOutput {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: self.lines_read.join("\n"),
        }
    }
}

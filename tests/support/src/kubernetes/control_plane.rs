//! A real control plane for all tests of a process: etcd, kube-apiserver, kube-controller-manager.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::Duration,
};

use kube::{
    Client,
    config::{AuthInfo, Kubeconfig},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    kubernetes::{api_client, kubectl::Kubectl},
    process_node::{Addresses, NodeIdentity, ProcessNode, Settings},
    processes::{
        child::prioritized_command,
        freeze::freeze,
        testbed::{self, Testbed},
    },
    project, protocol_trace,
    wait::wait_until,
};

/// The longest time until a killed program is dead, or is restarted, on a busy machine.
const EXIT_TIMEOUT: Duration = Duration::from_secs(90);

/// The pause before a program that ended is restarted.
const START_PAUSE: Duration = Duration::from_millis(200);

/// The node of most tests. Several tests share its name, each in a namespace of its own.
pub const SHARED_NODE: &str = "worker";

/// Nodes for tests that cordon and drain.
pub const DRAINED_NODES: [&str; 3] = ["drained-0", "drained-1", "drained-2"];

/// A node for the test that drains all members at once.
pub const SINGLE_NODE: &str = "lone";

/// A node for the test that runs `check` before it drains.
pub const CHECKED_NODE: &str = "checked";

/// A node for the test that drains by deletion.
pub const DELETED_NODE: &str = "deleted";

/// Nodes for tests that taint.
pub const TAINTED_NODES: [&str; 3] = ["tainted-0", "tainted-1", "tainted-2"];

/// Nodes for tests with pods that use up the capacity.
pub const FULL_NODES: [&str; 3] = ["full-0", "full-1", "full-2"];

/// A node that a test deletes.
pub const VANISHING_NODE: &str = "vanishing";

/// A node with two of three members, which a test tries to delete.
pub const NEEDED_NODE: &str = "needed";

/// Nodes with one of three members each, of which a test deletes the first.
pub const REMOVED_NODES: [&str; 2] = ["removed-0", "removed-1"];

/// Nodes for the preview of a drain of members of two clusters.
pub const PREVIEWED_NODES: [&str; 3] = ["previewed-0", "previewed-1", "previewed-2"];

/// A node for previews of members that cannot leave.
pub const PREVIEWED_NODE: &str = "previewed";

/// A node for tests in which a member cannot return.
pub const CLOSED_NODE: &str = "closed";

/// A node whose only member does not answer.
pub const SILENT_NODE: &str = "silent";

/// The controller that evicts from tainted nodes, in addition to the default ones.
const CONTROLLERS: &str = "taint-eviction-controller";

/// A running control plane.
pub struct ControlPlane {
    /// The folder of its files. It is removed together with the control plane, including files of tests.
    pub dir: PathBuf,
    /// Loopback addresses for pods.
    pub addresses: Arc<Addresses>,
    /// The etcd program for pods.
    pub etcd: PathBuf,
    /// The URL of the etcd member with the objects of the API server.
    pub store_url: String,
    kubectl: PathBuf,
    /// Programs that are restarted whenever they end.
    restarted: Mutex<BTreeSet<String>>,
    _testbed: Testbed,
}

impl ControlPlane {
    /// Returns the control plane that all tests of this process share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ControlPlane> = OnceLock::new();
        SHARED.get_or_init(|| {
            let single = [
                SHARED_NODE,
                SINGLE_NODE,
                CHECKED_NODE,
                DELETED_NODE,
                VANISHING_NODE,
                NEEDED_NODE,
                CLOSED_NODE,
                PREVIEWED_NODE,
                SILENT_NODE,
            ];
            let nodes =
                [&single[..], &DRAINED_NODES, &TAINTED_NODES, &FULL_NODES, &REMOVED_NODES, &PREVIEWED_NODES]
                    .concat();
            let mut arguments = vec!["--controllers", CONTROLLERS];
            if protocol_trace::folder().is_some() {
                // A test reads the history of the objects from etcd.
                arguments.extend(["--apiserver-flag", "--storage-media-type=application/json"]);
            }
            let control_plane = Self::start_with(&nodes, &arguments);
            control_plane.grant_guard_permissions();
            control_plane
        })
    }

    /// Starts a control plane for one test, which may break it.
    pub fn start(nodes: &[&str]) -> Self {
        Self::start_with(nodes, &[])
    }

    /// Starts a control plane with further arguments for `scripts/testbed control-plane`.
    pub fn start_with(nodes: &[&str], further: &[&str]) -> Self {
        let nodes = nodes.iter().flat_map(|node| ["--node", node]);
        let arguments = nodes.chain(further.iter().copied()).map(str::to_owned);
        let testbed = testbed::control_plane(&arguments.collect::<Vec<_>>());
        Self {
            dir: testbed.path("TESTBED_DIR").to_owned(),
            addresses: Addresses::new(testbed.get("TESTBED_NET")),
            etcd: testbed::program("etcd-3.6"),
            store_url: format!("http://{}.1:2379", testbed.get("TESTBED_NET")),
            kubectl: testbed.path("KUBECTL").to_owned(),
            restarted: Mutex::default(),
            _testbed: testbed,
        }
    }

    /// Returns the kubeconfig of a user with all permissions.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// Returns `kubectl` with the admin's kubeconfig.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubectl, &self.admin_kubeconfig(), &self.dir.join("kubectl-cache"))
    }

    /// Returns a client for the admin. Each test needs its own, because a client works only in the runtime that creates
    /// it.
    pub async fn client(&self) -> Client {
        api_client::client(&self.admin_kubeconfig()).await
    }

    /// Returns the identity of a kubelet.
    fn node(&self, name: &str) -> NodeIdentity {
        NodeIdentity { name: name.to_owned(), kubeconfig: self.dir.join(format!("{name}.kubeconfig")) }
    }

    /// Starts a process node with these names for the pods of one namespace. It stores its files in `dir`.
    pub fn process_node(&self, names: &[&str], namespace: &str, dir: PathBuf) -> ProcessNode {
        ProcessNode::start(Settings {
            admin_kubeconfig: self.admin_kubeconfig(),
            nodes: names.iter().map(|name| self.node(name)).collect(),
            namespaces: vec![namespace.to_owned()],
            addresses: self.addresses.clone(),
            dir,
            etcd: self.etcd.clone(),
            // Data need not survive a power failure.
            etcd_flags: vec![String::from("--unsafe-no-fsync")],
            alone: true,
        })
    }

    /// Stops a program: its connections stay open, and it does not respond.
    pub async fn freeze(&self, program: &str) {
        freeze(self.pid(program)).await;
    }

    /// Resumes a program.
    pub fn thaw(&self, program: &str) {
        kill(self.pid(program), Signal::SIGCONT).expect("the program runs");
    }

    /// Kills a program. From then on it is restarted whenever it ends, as a kubelet does on a node; the first restart
    /// may find its port still in use. Returns when the process has been replaced, which may be before it serves.
    pub async fn kill(&self, program: &str) {
        let pid = self.pid(program);
        kill(pid, Signal::SIGKILL).expect("the program runs");
        wait_until(&format!("{program} is dead"), EXIT_TIMEOUT, async || is_dead(pid)).await;
        if self.restarted.lock().expect("the lock is not poisoned").insert(program.to_owned()) {
            let run = self.dir.join(format!("{program}.run"));
            // The program ends with the thread that spawns it, and must outlive the test that shares this control
            // plane.
            thread::spawn(move || restart_forever(&run));
        }
        let is_new = async || self.try_pid(program).is_some_and(|current| current != pid);
        wait_until(&format!("{program} is restarted"), EXIT_TIMEOUT, is_new).await;
    }

    /// Sends a signal to a program, for instance to stop it for a while.
    pub fn signal(&self, program: &str, signal: Signal) {
        kill(self.pid(program), signal).expect("the program runs");
    }

    fn pid(&self, program: &str) -> Pid {
        self.try_pid(program).expect("a pid file")
    }

    fn try_pid(&self, program: &str) -> Option<Pid> {
        let file = self.dir.join(format!("{program}.pid"));
        Some(Pid::from_raw(fs::read_to_string(file).ok()?.trim().parse().ok()?))
    }

    /// Returns the guard's kubeconfig, which has only the shipped permissions.
    pub fn guard_kubeconfig(&self) -> PathBuf {
        self.dir.join("etcd-guard.kubeconfig")
    }

    /// Applies the shipped service account and roles, and writes the guard's kubeconfig.
    pub fn grant_guard_permissions(&self) {
        let kubectl = self.kubectl();
        for file in ["deploy/base/namespace.yaml", "deploy/base/rbac.yaml"] {
            let file = project::path(file);
            kubectl.run_checked(&["apply", "--namespace=etcd-guard", "-f", &file.to_string_lossy()]);
        }
        let token = kubectl.run_checked(&["create", "token", "etcd-guard", "--namespace=etcd-guard"]).stdout;
        let mut kubeconfig = Kubeconfig::read_from(self.admin_kubeconfig()).expect("the admin's kubeconfig");
        for user in &mut kubeconfig.auth_infos {
            let token = Some(token.trim().to_owned().into());
            user.auth_info = Some(AuthInfo { token, ..AuthInfo::default() });
        }
        let text = serde_json::to_string(&kubeconfig).expect("a kubeconfig as JSON, which is YAML");
        fs::write(self.guard_kubeconfig(), text).expect("the guard's kubeconfig is written");
    }
}

impl ControlPlane {
    /// Applies the shipped role for handovers before disruptions.
    pub fn grant_handover_permissions(&self) {
        let file = project::path("deploy/components/handover/rbac.yaml");
        self.kubectl().run_checked(&["apply", "-f", &file.to_string_lossy()]);
    }
}

/// Restarts a program whenever it ends, as long as its files exist.
fn restart_forever(run: &Path) {
    while run.exists() {
        let mut command = prioritized_command(run);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut program = command.spawn().expect("setpriv starts");
        program.wait().expect("the child is waited for");
        thread::sleep(START_PAUSE);
    }
}

/// Whether a process has ended, including processes that their parent has not waited for.
fn is_dead(pid: Pid) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The state follows the name, which is in parentheses.
    status.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

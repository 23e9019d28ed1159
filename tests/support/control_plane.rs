//! One real control plane for all tests of a process: etcd, kube-apiserver, kube-controller-manager.

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

use super::{
    api_client,
    child::mortal,
    freeze::freeze,
    kubectl::Kubectl,
    process_node::{Addresses, NodeIdentity, ProcessNode, Settings},
    testbed::{self, Testbed},
    wait::until,
};

/// Longest that a killed program may take to be gone, or to be started again, next to compilers.
const DEATH_LIMIT: Duration = Duration::from_secs(90);

/// Pause before a program that ended is started again.
const START_PAUSE: Duration = Duration::from_millis(200);

/// Where the pods of most tests run; several tests share its name, each in a namespace of its own.
pub const SHARED_NODE: &str = "worker";

/// Nodes of their own for tests that cordon and drain.
pub const DRAINED_NODES: [&str; 3] = ["drained-0", "drained-1", "drained-2"];

/// A node of its own for a test that drains all members at once.
pub const LONE_NODE: &str = "lone";

/// A node of its own for a test that asks before it drains.
pub const CHECKED_NODE: &str = "checked";

/// A node of its own for a test that drains by deletion.
pub const DELETED_NODE: &str = "deleted";

/// Nodes of their own for tests that taint.
pub const TAINTED_NODES: [&str; 3] = ["tainted-0", "tainted-1", "tainted-2"];

/// Nodes of their own for tests whose pods leave no room for the members.
pub const CROWDED_NODES: [&str; 3] = ["crowded-0", "crowded-1", "crowded-2"];

/// A node that a test takes away.
pub const VANISHING_NODE: &str = "vanishing";

/// Beside those of every control plane: the one that evicts from tainted nodes.
const CONTROLLERS: &str = "taint-eviction-controller";

/// A running control plane.
pub struct ControlPlane {
    /// Its files; they go with it, so that what tests put here goes with it as well.
    pub dir: PathBuf,
    /// Loopback addresses for pods.
    pub addresses: Arc<Addresses>,
    /// The program that pods run.
    pub etcd: PathBuf,
    kubectl: PathBuf,
    /// Programs that are started again whenever they end.
    kept: Mutex<BTreeSet<String>>,
    _testbed: Testbed,
}

impl ControlPlane {
    /// The one that all tests of this process share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ControlPlane> = OnceLock::new();
        SHARED.get_or_init(|| {
            let lone = [SHARED_NODE, LONE_NODE, CHECKED_NODE, DELETED_NODE, VANISHING_NODE];
            let nodes = [&lone[..], &DRAINED_NODES, &TAINTED_NODES, &CROWDED_NODES].concat();
            let control_plane = Self::start_with(&nodes, &["--controllers", CONTROLLERS]);
            control_plane.let_the_guard_read();
            control_plane
        })
    }

    /// One that a test may do anything to.
    pub fn start(nodes: &[&str]) -> Self {
        Self::start_with(nodes, &[])
    }

    /// The same, with further arguments for `scripts/testbed control-plane`.
    pub fn start_with(nodes: &[&str], further: &[&str]) -> Self {
        let nodes = nodes.iter().flat_map(|node| ["--node", node]);
        let arguments = nodes.chain(further.iter().copied()).map(str::to_owned);
        let testbed = testbed::control_plane(&arguments.collect::<Vec<_>>());
        Self {
            dir: testbed.path("TESTBED_DIR").to_owned(),
            addresses: Addresses::on(testbed.get("TESTBED_NET")),
            etcd: testbed::program("etcd-3.6"),
            kubectl: testbed.path("KUBECTL").to_owned(),
            kept: Mutex::default(),
            _testbed: testbed,
        }
    }

    /// The kubeconfig of a user who may do anything.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// What a user types.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubectl, &self.admin_kubeconfig(), &self.dir.join("kubectl-cache"))
    }

    /// The API as that user; each test has a client of its own, because a client belongs to a test's runtime.
    pub async fn client(&self) -> Client {
        api_client::client(&self.admin_kubeconfig()).await
    }

    /// What proves a kubelet's identity.
    fn node(&self, name: &str) -> NodeIdentity {
        NodeIdentity { name: name.to_owned(), kubeconfig: self.dir.join(format!("{name}.kubeconfig")) }
    }

    /// A process node of these names for one namespace's pods. It keeps its files in `dir`.
    pub fn process_node(&self, names: &[&str], namespace: &str, dir: PathBuf) -> ProcessNode {
        ProcessNode::start(Settings {
            admin_kubeconfig: self.admin_kubeconfig(),
            nodes: names.iter().map(|name| self.node(name)).collect(),
            namespaces: vec![namespace.to_owned()],
            addresses: self.addresses.clone(),
            dir,
            etcd: self.etcd.clone(),
            // No test outlives a power cut.
            etcd_flags: vec![String::from("--unsafe-no-fsync")],
            alone: true,
        })
    }

    /// Stops one of its programs: connections stay open, nothing is answered.
    pub async fn freeze(&self, program: &str) {
        freeze(self.pid(program)).await;
    }

    /// Lets it go on.
    pub fn thaw(&self, program: &str) {
        kill(self.pid(program), Signal::SIGCONT).expect("a program that runs");
    }

    /// Kills one of its programs. From then on it is started again whenever it ends, as a kubelet does with what runs on a
    /// node of its own: the first to follow may find its port in use still. Returns before it serves.
    pub async fn kill(&self, program: &str) {
        let pid = self.pid(program);
        kill(pid, Signal::SIGKILL).expect("a program that runs");
        until(&format!("{program} is dead"), DEATH_LIMIT, async || is_dead(pid)).await;
        if self.kept.lock().expect("nobody panics here").insert(program.to_owned()) {
            let run = self.dir.join(format!("{program}.run"));
            // What runs dies with the thread that spawns it, and must outlive the test that shares this control plane.
            thread::spawn(move || keep(&run));
        }
        let is_new = async || self.try_pid(program).is_some_and(|it| it != pid);
        until(&format!("{program} is started again"), DEATH_LIMIT, is_new).await;
    }

    fn pid(&self, program: &str) -> Pid {
        self.try_pid(program).expect("a pid file")
    }

    fn try_pid(&self, program: &str) -> Option<Pid> {
        let file = self.dir.join(format!("{program}.pid"));
        Some(Pid::from_raw(fs::read_to_string(file).ok()?.trim().parse().ok()?))
    }

    /// The guard's own kubeconfig, with no more rights than the shipped ones.
    pub fn guard_kubeconfig(&self) -> PathBuf {
        self.dir.join("etcd-guard.kubeconfig")
    }

    /// Applies the shipped service account and roles, and writes a kubeconfig that has no others.
    fn let_the_guard_read(&self) {
        let kubectl = self.kubectl();
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/base");
        for file in ["namespace.yaml", "rbac.yaml"] {
            let file = base.join(file);
            kubectl.must(&["apply", "--namespace=etcd-guard", "-f", &file.to_string_lossy()]);
        }
        let token = kubectl.must(&["create", "token", "etcd-guard", "--namespace=etcd-guard"]).stdout;
        let mut kubeconfig = Kubeconfig::read_from(self.admin_kubeconfig()).expect("the admin's kubeconfig");
        for user in &mut kubeconfig.auth_infos {
            let token = Some(token.trim().to_owned().into());
            user.auth_info = Some(AuthInfo { token, ..AuthInfo::default() });
        }
        let text = serde_json::to_string(&kubeconfig).expect("a kubeconfig as JSON, which is YAML");
        fs::write(self.guard_kubeconfig(), text).expect("the guard's kubeconfig is written");
    }
}

/// Starts a program again and again, as long as its files are there.
fn keep(run: &Path) {
    while run.exists() {
        let mut command = mortal(run);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut program = command.spawn().expect("setpriv starts");
        program.wait().expect("a child that can be waited for");
        thread::sleep(START_PAUSE);
    }
}

/// Whether a process is gone, or only waits for its parent to hear of its end.
fn is_dead(pid: Pid) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The state follows the name, which stands in brackets.
    status.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

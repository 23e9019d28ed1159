//! A real etcd cluster on loopback whose members a test can kill, freeze and start again.
//!
//! `scripts/testbed etcd --layout` writes each member's files; the processes belong to the test.

use std::{
    io::Read,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use etcd_guard::{
    etcd::{self, Cause, ClientIdentity, Connections, Endpoint, Reply, Tls, User},
    guard::snapshot::{MemberPod, Snapshot, Storage},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::support::freeze::freeze;

/// A first election takes about a second, on a busy machine several.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);

/// Networks for clusters of this process: two clusters at a time must not share addresses.
static NEXT_NETWORK: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Cluster {
    members: Vec<Member>,
    tls: Option<ClientTls>,
    dir: TempDir,
    /// Whom the guard logs in as.
    pub(crate) user: Option<User>,
    /// Whether root and the guest were made.
    has_users: bool,
    /// Whether the members ask for a user.
    has_auth: bool,
}

/// The password of all users of a test.
pub(crate) const PASSWORD: &str = "correct horse";

/// A user who may read and write nothing.
pub(crate) const GUEST: &str = "guest";

struct Member {
    address: String,
    process: Option<Child>,
    /// Whether the pod of this member would be reported as running.
    running: bool,
}

struct ClientTls {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// What a cluster is made of.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) version: &'static str,
    pub(crate) members: usize,
    /// Members with files that do not start with the cluster.
    pub(crate) spare: usize,
    pub(crate) tls: bool,
}

impl Cluster {
    /// Three members of this version, once they have a leader.
    pub(crate) async fn of_three(version: &'static str) -> Self {
        Self::start(Layout { version, members: 3, spare: 0, tls: false }).await
    }

    /// One member.
    pub(crate) async fn of_one(version: &'static str) -> Self {
        Self::start(Layout { version, members: 1, spare: 0, tls: false }).await
    }

    pub(crate) async fn start(layout: Layout) -> Self {
        Self::start_named(layout, |n| format!("etcd-{n}")).await
    }

    /// With these names of the members that begin; the spare ones know them by it.
    pub(crate) async fn start_named(layout: Layout, name: impl Fn(usize) -> String) -> Self {
        let dir = tempfile::Builder::new().prefix("etcd-guard-test-").tempdir().unwrap();
        // Below the networks that scripts/testbed derives from process ids by itself.
        let number = NEXT_NETWORK.fetch_add(1, Ordering::Relaxed);
        let network = format!("127.{}.{}", 128 + std::process::id() % 100, number % 250);
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/testbed"));
        command.args(["etcd", "--layout", "--version", layout.version, "--net", &network]);
        command.args(["--members", &layout.members.to_string(), "--spare", &layout.spare.to_string()]);
        command.arg("--dir").arg(dir.path()).stdin(Stdio::null());
        if layout.tls {
            command.arg("--tls");
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tls = layout.tls.then(|| {
            let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
            ClientTls { ca: read("ca.crt"), certificate: read("client.crt"), key: read("client.key") }
        });
        let members = (0..layout.members + layout.spare)
            .map(|n| Member { address: format!("{network}.{}", 10 + n), process: None, running: false })
            .collect();
        let mut cluster = Self { members, tls, dir, user: None, has_users: false, has_auth: false };
        let names: Vec<String> = (0..layout.members).map(name).collect();
        let first: Vec<(usize, &str)> = names.iter().map(String::as_str).enumerate().collect();
        for n in 0..layout.members + layout.spare {
            let own = names.get(n).cloned().unwrap_or_else(|| format!("etcd-{n}"));
            cluster.rename(n, &own, &first);
        }
        for n in 0..layout.members {
            cluster.restart(n);
        }
        for n in 0..layout.members {
            cluster.wait_until_serving(n).await;
        }
        cluster
    }

    /// Starts a member's process, as the kubelet would.
    pub(crate) fn restart(&mut self, n: usize) {
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(self.folder(n).join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(
                std::fs::File::options().append(true).create(true).open(self.folder(n).join("log")).unwrap(),
            )
            .spawn()
            .unwrap();
        self.members[n].process = Some(process);
        self.members[n].running = true;
    }

    /// Gives a member that does not run another name, and calls others by other names in its list of the cluster. etcd
    /// knows them by their peer URLs.
    pub(crate) fn rename(&self, n: usize, name: &str, others: &[(usize, &str)]) {
        let run = self.folder(n).join("run");
        let mut script = std::fs::read_to_string(&run).unwrap();
        for (member, name) in others.iter().chain([&(n, name)]) {
            let url = self.peer_url(*member);
            let old = known_as(&script, &url).unwrap_or_else(|| panic!("no member at {url}:\n{script}"));
            script = script.replace(&format!("{old}={url}"), &format!("{name}={url}"));
        }
        let (before, rest) = script.split_once("--name=").unwrap();
        let (_, after) = rest.split_once(' ').unwrap();
        std::fs::write(run, format!("{before}--name={name} {after}")).unwrap();
    }

    /// Adds a spare voter to the list; it does not start by that. etcd refuses for the first five seconds of a cluster.
    pub(crate) async fn add(&self, client: &mut Client, n: usize) {
        let give_up = Instant::now() + START_LIMIT;
        while let Err(error) = client.member_add([self.peer_url(n)], None).await {
            assert!(error.to_string().contains("unhealthy cluster"), "member add: {error}");
            assert!(Instant::now() < give_up, "member add: still refused: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends a member's process at once, and leaves it ended.
    pub(crate) fn kill(&mut self, n: usize) {
        self.members[n].running = false;
        if let Some(mut process) = self.members[n].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops a member's process without ending it: it accepts connections and never answers.
    pub(crate) async fn freeze(&self, n: usize) {
        freeze(self.pid(n)).await;
    }

    pub(crate) fn thaw(&self, n: usize) {
        kill(self.pid(n), Signal::SIGCONT).unwrap();
    }

    fn pid(&self, n: usize) -> Pid {
        let process = self.members[n].process.as_ref().unwrap();
        Pid::from_raw(i32::try_from(process.id()).unwrap())
    }

    pub(crate) async fn wait_until_serving(&self, n: usize) {
        let connections = Connections::new();
        let give_up = Instant::now() + START_LIMIT;
        loop {
            let replies = etcd::probe(&connections, &[self.endpoint(n)], soon()).await;
            match &replies[0] {
                Reply::Serving { .. } | Reply::Answering { cause: Cause::Learner, .. } => return,
                _ if Instant::now() < give_up => tokio::time::sleep(Duration::from_millis(50)).await,
                reply => panic!("etcd-{n} does not serve: {reply:?}\n{}", self.log(n)),
            }
        }
    }

    fn log(&self, n: usize) -> String {
        let mut text = String::new();
        let _ = std::fs::File::open(self.folder(n).join("log")).unwrap().read_to_string(&mut text);
        text
    }

    fn folder(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("etcd-{n}"))
    }

    pub(crate) fn peer_url(&self, n: usize) -> String {
        format!("{}://{}:2380", self.scheme(), self.members[n].address)
    }

    pub(crate) fn address(&self, n: usize) -> &str {
        &self.members[n].address
    }

    /// Of a cluster with TLS: the CA, and a client's certificate and key.
    pub(crate) fn client_files(&self) -> (&[u8], &[u8], &[u8]) {
        let tls = self.tls.as_ref().unwrap();
        (&tls.ca, &tls.certificate, &tls.key)
    }

    /// Of a cluster with TLS: this member's certificate and key.
    pub(crate) fn server_files(&self, n: usize) -> (Vec<u8>, Vec<u8>) {
        let read = |name: &str| std::fs::read(self.folder(n).join(name)).unwrap();
        (read("server.crt"), read("server.key"))
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Where the guard would dial this member.
    pub(crate) fn endpoint(&self, n: usize) -> Endpoint {
        let address = &self.members[n].address;
        Endpoint {
            url: format!("{}://{address}:2379", self.scheme()),
            tls: self.tls.as_ref().map(|tls| Tls {
                server_name: address.clone(),
                ca: Some(tls.ca.clone().into()),
                identity: Some(ClientIdentity {
                    certificate: tls.certificate.clone().into(),
                    key: tls.key.clone().into(),
                }),
            }),
            user: self.user.clone(),
        }
    }

    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        (0..self.members.len()).map(|n| self.endpoint(n)).collect()
    }

    /// A client of one member, to change the cluster with.
    pub(crate) async fn client(&self, n: usize) -> Client {
        let mut options = ConnectOptions::new();
        if let Some(tls) = &self.tls {
            let identity = Identity::from_pem(&tls.certificate, &tls.key);
            let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca)).identity(identity);
            options = options.with_tls(tls);
        }
        if self.has_auth {
            options = options.with_user("root", PASSWORD);
        }
        Client::connect([self.endpoint(n).url], Some(options)).await.unwrap()
    }

    /// Makes root and a guest, both with the same password, and asks for users from now on.
    pub(crate) async fn switch_auth_on(&mut self) {
        let mut client = self.client(0).await;
        if !self.has_users {
            for name in ["root", GUEST] {
                client.user_add(name, PASSWORD, None).await.unwrap();
            }
            client.role_add("root").await.unwrap();
            client.user_grant_role("root", "root").await.unwrap();
        }
        client.auth_enable().await.unwrap();
        (self.has_users, self.has_auth) = (true, true);
    }

    /// Asks for no users any more; the users stay.
    pub(crate) async fn switch_auth_off(&mut self) {
        self.client(0).await.auth_disable().await.unwrap();
        self.has_auth = false;
    }

    /// The guard logs in as this user from now on.
    pub(crate) fn log_in_as(&mut self, name: &str, password: &str) {
        self.user = Some(User { name: name.to_owned(), password: password.into() });
    }

    /// The program of another release from now on, as after an upgrade of its pod.
    pub(crate) fn upgrade(&self, n: usize, version: &str) {
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/testbed"))
            .args(["programs", &format!("etcd-{version}")])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let program = text.lines().find_map(|line| line.strip_prefix(&format!("etcd-{version}="))).unwrap();
        let run = self.folder(n).join("run");
        let script = std::fs::read_to_string(&run).unwrap();
        let script: Vec<String> = script
            .lines()
            .map(|line| match line.strip_prefix("exec ").and_then(|it| it.split_once(' ')) {
                Some((_, flags)) => format!("exec {program} {flags}"),
                None => line.to_owned(),
            })
            .collect();
        std::fs::write(run, script.join("\n")).unwrap();
    }

    /// A look at the cluster as the guard would take it of the pods `etcd-0`, `etcd-1`, and so on.
    pub(crate) async fn look(&self, connections: &Connections) -> Snapshot {
        let replies = etcd::probe(connections, &self.endpoints(), soon()).await;
        let pods = self.members.iter().zip(replies).enumerate().map(|(n, (member, reply))| MemberPod {
            name: format!("etcd-{n}"),
            uid: format!("uid-{n}"),
            container: String::from("etcd"),
            ip: member.address.clone(),
            member_name: None,
            terminating: false,
            reserved: false,
            running: member.running,
            storage: Storage::Persistent,
            reply,
        });
        Snapshot {
            cluster: String::from("test/etcd"),
            namespace: String::from("test"),
            taken_at: tokio::time::Instant::now(),
            pods: pods.collect(),
            elsewhere: Vec::new(),
        }
    }

    /// A look in which all members serve: on a busy machine one of them, or its login, may be late for a while.
    pub(crate) async fn look_at_all(&self, connections: &Connections) -> Snapshot {
        let give_up = Instant::now() + START_LIMIT;
        loop {
            let snapshot = self.look(connections).await;
            if snapshot.pods.iter().all(|pod| matches!(pod.reply, Reply::Serving { .. })) {
                return snapshot;
            }
            assert!(Instant::now() < give_up, "not all members serve: {:?}", snapshot.pods);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Which member leads, once one does.
    pub(crate) async fn leader(&self) -> usize {
        let connections = Connections::new();
        let give_up = Instant::now() + START_LIMIT;
        loop {
            let replies = etcd::probe(&connections, &self.endpoints(), soon()).await;
            let leads = |reply: &Reply| match reply {
                Reply::Serving { status, .. } => status.leader == Some(status.member_id),
                _ => false,
            };
            if let Some(leader) = replies.iter().position(leads) {
                return leader;
            }
            assert!(Instant::now() < give_up, "no leader: {replies:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Some members that do not lead.
    pub(crate) async fn followers(&self) -> Vec<usize> {
        let leader = self.leader().await;
        (0..self.members.len()).filter(|n| *n != leader && self.members[*n].running).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for n in 0..self.members.len() {
            self.kill(n);
        }
    }
}

/// The name by which a member's script knows the member at this URL.
fn known_as(script: &str, peer_url: &str) -> Option<String> {
    let end = format!("={peer_url}");
    // The URL follows flags as well, and the names of the list follow `=` or the comma of a list, which is escaped.
    let names = script.match_indices(&end).filter_map(|(at, _)| script[..at].rsplit(['=', ',', ' ']).next());
    names.into_iter().find(|name| !name.starts_with("--")).map(str::to_owned)
}

/// A deadline that no member's own limit reaches.
pub(crate) fn soon() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(5)
}

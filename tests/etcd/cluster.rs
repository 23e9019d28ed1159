//! A real etcd cluster on loopback. Tests can kill, freeze and restart its members.
//!
//! `scripts/testbed etcd --layout` writes the files of each member; the processes belong to the test.

use std::{
    io::Read,
    net::Ipv4Addr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use etcd_guard_core::etcd::{
    endpoint::{ClientIdentity, Endpoint, Tls, User},
    error::MemberError,
    probe_result::ProbeResult,
};
use etcd_guard_etcd as etcd;
use etcd_guard_etcd::Connections;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::snapshots::probe_deadline;
use test_support::{etcd::peer_links::PeerLinks, processes::freeze::freeze};

/// The longest time until members serve. A first election takes about a second, and half a minute on a machine with two
/// slow cores that runs the members of several tests.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(180);

/// The number of the next network: clusters that exist at the same time must not share addresses.
static NEXT_NETWORK: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Cluster {
    pub(super) members: Vec<Member>,
    /// The number of members in the initial cluster.
    pub(super) initial: usize,
    tls: Option<ClientTls>,
    dir: TempDir,
    /// The user that the guard logs in as.
    pub(crate) user: Option<User>,
    /// Whether the members issue their own certificates for clients (`--auto-tls`).
    has_own_certificates: bool,
    /// Whether root and the guest exist.
    has_users: bool,
    /// Whether the members require authentication.
    has_auth: bool,
}

/// The password of all users.
pub(crate) const PASSWORD: &str = "correct horse";

/// A user without any permissions.
pub(crate) const GUEST: &str = "guest";

pub(super) struct Member {
    pub(super) address: String,
    process: Option<Child>,
    /// Whether the status of the member's pod would be "running".
    pub(super) running: bool,
    /// Whether the member must answer: it runs, is not frozen, and was not removed from the cluster.
    pub(super) must_answer: AtomicBool,
}

struct ClientTls {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// The parameters of a cluster.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) version: &'static str,
    pub(crate) members: usize,
    /// The number of members with files that do not start with the cluster.
    pub(crate) spare: usize,
    pub(crate) tls: bool,
}

impl Cluster {
    /// Starts a cluster with three members of this version, and waits until it has a leader.
    pub(crate) async fn three_members(version: &'static str) -> Self {
        Self::start(Layout { version, members: 3, spare: 0, tls: false }).await
    }

    /// Starts a cluster with one member.
    pub(crate) async fn single_member(version: &'static str) -> Self {
        Self::start(Layout { version, members: 1, spare: 0, tls: false }).await
    }

    pub(crate) async fn start(layout: Layout) -> Self {
        Self::start_named(layout, |n| format!("etcd-{n}")).await
    }

    /// Starts a cluster whose members reach each other through links that the test can cut.
    pub(crate) async fn start_linked(layout: Layout) -> (Self, PeerLinks) {
        let mut cluster = Self::prepare(layout, |n| format!("etcd-{n}"));
        let addresses: Vec<Ipv4Addr> =
            cluster.members.iter().map(|member| member.address.parse().unwrap()).collect();
        let links = PeerLinks::start(&addresses).await;
        for n in 0..cluster.members.len() {
            let run = cluster.folder(n).join("run");
            let advertised = format!(":{}", PeerLinks::PORT);
            let script = std::fs::read_to_string(&run).unwrap().replace(":2380", &advertised);
            let listens =
                |port: &str| format!("--listen-peer-urls=http://{}{port}", cluster.members[n].address);
            let script = script.replace(&listens(&advertised), &listens(":2380"));
            std::fs::write(run, script).unwrap();
        }
        cluster.start_members(layout.members).await;
        (cluster, links)
    }

    /// Starts three members that issue their own certificates for clients.
    pub(crate) async fn start_with_own_certificates(version: &'static str) -> Self {
        let layout = Layout { version, members: 3, spare: 0, tls: false };
        let mut cluster = Self::prepare(layout, |n| format!("etcd-{n}"));
        cluster.has_own_certificates = true;
        for n in 0..layout.members {
            let run = cluster.folder(n).join("run");
            let script = std::fs::read_to_string(&run).unwrap();
            let script = script.replace("-client-urls=http:", "-client-urls=https:");
            std::fs::write(run, script.replace("--name=", "--auto-tls --name=")).unwrap();
        }
        cluster.start_members(layout.members).await;
        cluster
    }

    /// Starts a cluster whose initial members have these names; the spare members use the same names for them.
    pub(crate) async fn start_named(layout: Layout, name: impl Fn(usize) -> String) -> Self {
        let mut cluster = Self::prepare(layout, name);
        cluster.start_members(layout.members).await;
        cluster
    }

    async fn start_members(&mut self, count: usize) {
        for n in 0..count {
            self.restart(n);
        }
        for n in 0..count {
            self.wait_until_serving(n).await;
        }
    }

    /// Writes the files of a cluster.
    fn prepare(layout: Layout, name: impl Fn(usize) -> String) -> Self {
        let dir = tempfile::Builder::new().prefix("etcd-guard-test-").tempdir().unwrap();
        // Below the networks that scripts/testbed derives from process ids.
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
            .map(|n| Member {
                address: format!("{network}.{}", 10 + n),
                process: None,
                running: false,
                must_answer: AtomicBool::new(false),
            })
            .collect();
        let initial = layout.members;
        let cluster = Self {
            members,
            initial,
            tls,
            dir,
            user: None,
            has_own_certificates: false,
            has_users: false,
            has_auth: false,
        };
        let names: Vec<String> = (0..layout.members).map(name).collect();
        let first: Vec<(usize, &str)> = names.iter().map(String::as_str).enumerate().collect();
        for n in 0..layout.members + layout.spare {
            let own = names.get(n).cloned().unwrap_or_else(|| format!("etcd-{n}"));
            cluster.rename(n, &own, &first);
        }
        cluster
    }

    /// Starts the process of a member, as the kubelet would.
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
        self.set_must_answer(n, true);
    }

    /// Renames a stopped member, and changes the names of other members in its `--initial-cluster` list. etcd
    /// identifies them by their peer URLs.
    pub(crate) fn rename(&self, n: usize, name: &str, others: &[(usize, &str)]) {
        let run = self.folder(n).join("run");
        let mut script = std::fs::read_to_string(&run).unwrap();
        for (member, name) in others.iter().chain([&(n, name)]) {
            let url = self.peer_url(*member);
            let old = listed_name(&script, &url).unwrap_or_else(|| panic!("no member at {url}:\n{script}"));
            script = script.replace(&format!("{old}={url}"), &format!("{name}={url}"));
        }
        let (before, rest) = script.split_once("--name=").unwrap();
        let (_, after) = rest.split_once(' ').unwrap();
        std::fs::write(run, format!("{before}--name={name} {after}")).unwrap();
    }

    /// Sets the scheme at which a stopped member of a cluster with TLS serves clients, and which it advertises.
    pub(crate) fn set_client_scheme(&self, n: usize, scheme: &str) {
        let run = self.folder(n).join("run");
        let script = std::fs::read_to_string(&run).unwrap();
        let address = format!("://{}:2379", self.members[n].address);
        let script =
            script.replace(&format!("https{address}"), &address).replace(&format!("http{address}"), &address);
        std::fs::write(run, script.replace(&address, &format!("{scheme}{address}"))).unwrap();
    }

    /// Adds a spare voter to the member list without starting it. etcd refuses during the first five seconds of a
    /// cluster.
    pub(crate) async fn add(&self, client: &mut Client, n: usize) {
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(error) = client.member_add([self.peer_url(n)], None).await {
            assert!(error.to_string().contains("unhealthy cluster"), "member add: {error}");
            assert!(Instant::now() < deadline, "member add: still refused: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Kills the process of a member.
    pub(crate) fn kill(&mut self, n: usize) {
        self.members[n].running = false;
        self.set_must_answer(n, false);
        if let Some(mut process) = self.members[n].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops the process of a member: it accepts connections and never responds.
    pub(crate) async fn freeze(&self, n: usize) {
        self.set_must_answer(n, false);
        freeze(self.pid(n)).await;
    }

    pub(crate) fn thaw(&self, n: usize) {
        kill(self.pid(n), Signal::SIGCONT).unwrap();
        self.set_must_answer(n, true);
    }

    /// Sets whether snapshots are repeated if this member is late.
    pub(crate) fn set_must_answer(&self, n: usize, must_answer: bool) {
        self.members[n].must_answer.store(must_answer, Ordering::Relaxed);
    }

    fn pid(&self, n: usize) -> Pid {
        let process = self.members[n].process.as_ref().unwrap();
        Pid::from_raw(i32::try_from(process.id()).unwrap())
    }

    pub(crate) async fn wait_until_serving(&self, n: usize) {
        let connections = Connections::new();
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let results = etcd::probe(&connections, &[self.endpoint(n)], probe_deadline()).await;
            match &results[0] {
                ProbeResult::Healthy { .. } | ProbeResult::StatusOnly { cause: MemberError::Learner, .. } => {
                    return;
                }
                _ if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                result => panic!("etcd-{n} does not serve: {result:?}\n{}", self.log(n)),
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

    /// Returns the folder with the data of a member.
    pub(crate) fn data(&self, n: usize) -> PathBuf {
        self.folder(n).join("data")
    }

    pub(crate) fn peer_url(&self, n: usize) -> String {
        format!("{}://{}:2380", self.scheme(), self.members[n].address)
    }

    pub(crate) fn address(&self, n: usize) -> &str {
        &self.members[n].address
    }

    /// Returns the CA, and the certificate and the key of a client, of a cluster with TLS.
    pub(crate) fn client_files(&self) -> (&[u8], &[u8], &[u8]) {
        let tls = self.tls.as_ref().unwrap();
        (&tls.ca, &tls.certificate, &tls.key)
    }

    /// Returns the certificate and the key of a member of a cluster with TLS.
    pub(crate) fn server_files(&self, n: usize) -> (Vec<u8>, Vec<u8>) {
        let read = |name: &str| std::fs::read(self.folder(n).join(name)).unwrap();
        (read("server.crt"), read("server.key"))
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Returns the endpoint at which the guard connects to this member.
    pub(crate) fn endpoint(&self, n: usize) -> Endpoint {
        let address = &self.members[n].address;
        if self.has_own_certificates {
            let accepting =
                Tls { server_name: address.clone(), ca: None, accepts_any_certificate: true, identity: None };
            let url = format!("https://{address}:2379");
            return Endpoint { url, other_urls: Vec::new(), tls: Some(accepting), user: None };
        }
        Endpoint {
            url: format!("{}://{address}:2379", self.scheme()),
            other_urls: Vec::new(),
            tls: self.tls.as_ref().map(|tls| Tls {
                accepts_any_certificate: false,
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

    /// Returns an admin client of one member.
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

    /// Creates root and a guest with the same password, and enables authentication.
    pub(crate) async fn enable_auth(&mut self) {
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

    /// Disables authentication; the users remain.
    pub(crate) async fn disable_auth(&mut self) {
        self.client(0).await.auth_disable().await.unwrap();
        self.has_auth = false;
    }

    /// Sets the user that the guard logs in as.
    pub(crate) fn log_in_as(&mut self, name: &str, password: &str) {
        self.user = Some(User { name: name.to_owned(), password: password.into() });
    }

    /// Replaces the program of a member by another release, as an upgrade of its pod does.
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
            .map(|line| match line.strip_prefix("exec ").and_then(|command| command.split_once(' ')) {
                Some((_, flags)) => format!("exec {program} {flags}"),
                None => line.to_owned(),
            })
            .collect();
        std::fs::write(run, script.join("\n")).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for n in 0..self.members.len() {
            self.kill(n);
        }
    }
}

/// Returns the name that a member's script uses for the member with this peer URL.
fn listed_name(script: &str, peer_url: &str) -> Option<String> {
    let end = format!("={peer_url}");
    // The URL also follows flags. Names in the list follow `=` or an escaped comma.
    let names = script.match_indices(&end).filter_map(|(at, _)| script[..at].rsplit(['=', ',', ' ']).next());
    names.into_iter().find(|name| !name.starts_with("--")).map(str::to_owned)
}

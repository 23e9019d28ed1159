//! `kubectl etcd-guard backup`, from real members. The process node has no kubelet that forwards ports: `tests/docs_node` uses one.

use std::{net::Ipv4Addr, path::Path, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::{
    etcd::member::CLIENT_PORT,
    guard::cli::{self, CliOutput},
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    processes::testbed,
    wait::{wait_for, wait_until},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// The content of large values.
const FILL: u8 = 0xAB;

const VALUE_BYTES: usize = 1 << 20;

const LARGE_VALUES: usize = 8;

/// The port of a proxy.
const PROXY_PORT: u16 = 12379;

/// What a proxy does with the answers of a member after some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Cut,
    Corrupt,
    /// Nothing is passed on.
    Stall,
}

/// A proxy before the client port of a member, until it is stopped.
struct Proxy(JoinSet<()>);

impl Proxy {
    async fn start(address: Ipv4Addr, fault: Fault) -> Self {
        // A connection of the proxy before may still end.
        let listener = wait_for("the port of the proxy is free", START_TIMEOUT, async || {
            TcpListener::bind((address, PROXY_PORT)).await.ok()
        })
        .await;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(forward(client, address, fault));
            }
        });
        Self(tasks)
    }

    async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

/// Passes everything to the member, and its answers until one of them has parts of large values.
async fn forward(client: TcpStream, address: Ipv4Addr, fault: Fault) {
    let Ok(member) = TcpStream::connect((address, CLIENT_PORT)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_member, mut to_member) = member.into_split();
    let requests = async { tokio::io::copy(&mut from_client, &mut to_member).await.map(drop) };
    let answers = async {
        let mut buffer = vec![0; 64 << 10];
        let mut passed = 0;
        loop {
            let count = from_member.read(&mut buffer).await?;
            if count == 0 {
                return std::io::Result::Ok(());
            }
            passed += count;
            let piece = &mut buffer[..count];
            let within = piece.windows(64).position(|window| window.iter().all(|byte| *byte == FILL));
            match within.filter(|_| passed > VALUE_BYTES) {
                Some(_) if fault == Fault::Cut => return Ok(()),
                Some(_) if fault == Fault::Stall => std::future::pending().await,
                Some(place) => piece[place + 32] ^= 1,
                None => {}
            }
            to_client.write_all(piece).await?;
        }
    };
    tokio::select! {
        _ = requests => {}
        _ = answers => {}
    }
}

/// Writes large values and 100 small ones. Returns the number of keys.
async fn fill(etcd: &GuardedCluster) -> usize {
    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    for number in 0..LARGE_VALUES {
        client.put(format!("large/{number}"), vec![FILL; VALUE_BYTES], None).await.unwrap();
    }
    for number in 0..100 {
        client.put(format!("small/{number}"), "value", None).await.unwrap();
    }
    LARGE_VALUES + 100
}

async fn backup(etcd: &GuardedCluster, to: &Path, arguments: &[&str]) -> CliOutput {
    let to = to.to_str().unwrap();
    cli::run(etcd, "backup", &[&["statefulset/etcd", to, "--direct"], arguments].concat()).await
}

/// Returns the names in a folder.
fn names(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the last line of the output as JSON.
fn last(output: &CliOutput) -> Value {
    assert_eq!(output.status, Some(0), "{output:?}");
    serde_json::from_str(output.stdout.lines().last().unwrap()).unwrap()
}

/// Returns what the tool of etcd says about a backup, whose hash it verifies.
fn examine(file: &str) -> Value {
    let output = Command::new(testbed::program("etcdutl-3.6"))
        .args(["snapshot", "status", file, "-w", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Restores a backup as etcd's tool does, which verifies its hash.
fn restore(file: &str, folder: &TempDir) {
    let output = Command::new(testbed::program("etcdutl-3.6"))
        .args(["snapshot", "restore", file, "--data-dir"])
        .arg(folder.path().join("restored"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn backup_has_every_key_and_is_recorded() {
    let etcd = GuardedCluster::start().await;
    let keys = fill(&etcd).await;
    let folder = tempfile::tempdir().unwrap();
    let planned = backup(&etcd, folder.path(), &["--dry-run"]).await;
    let leader = etcd.leader().await;
    assert_eq!((planned.status, names(&folder).len()), (Some(0), 0), "{planned:?}");
    assert!(planned.stdout.contains(": follower, 0 entries behind, etcd 3.6."), "{planned:?}");

    let saved = last(&backup(&etcd, folder.path(), &["-o", "json"]).await);
    let file = saved["to"].as_str().unwrap();
    assert_ne!(saved["pod"], leader.as_str(), "{saved}");
    assert_eq!(names(&folder).len(), 1, "{saved}");
    let prefix = format!("{}/{}_etcd_{}_", folder.path().display(), etcd.namespace, saved["revision"]);
    assert!(file.starts_with(&prefix) && file.ends_with("Z.db"), "{saved}");
    let status = examine(file);
    // The first revision is 1, and each key has one more.
    assert_eq!((&status["revision"], &saved["revision"]), (&json!(keys + 1), &json!(keys + 1)), "{status}");
    assert_eq!(std::fs::metadata(file).unwrap().len(), saved["bytes"].as_u64().unwrap());
    let sum = Command::new("sha256sum").arg(file).output().unwrap().stdout;
    assert!(String::from_utf8(sum).unwrap().starts_with(saved["sha256"].as_str().unwrap()), "{saved}");
    restore(file, &folder);

    let again = backup(&etcd, Path::new(file), &[]).await;
    assert!(
        again.status == Some(2) && again.stderr.contains(" exists; to overwrite it: --force"),
        "{again:?}"
    );
    let again = backup(&etcd, Path::new(file), &["--force"]).await;
    assert!(again.stdout.contains("complete: ") && again.stdout.contains(file), "{again:?}");
    let kept = last(&backup(&etcd, folder.path(), &["--keep", "1", "-o", "json"]).await);
    let mut left = names(&folder);
    left.retain(|name| name != "restored");
    assert_eq!(left, [Path::new(kept["to"].as_str().unwrap()).file_name().unwrap().to_str().unwrap()]);

    wait_until("the status shows the backup", START_TIMEOUT, async || {
        let status = cli::run(&etcd, "status", &[]).await;
        let line = format!("last backup less than a minute ago, revision {}", kept["revision"]);
        status.stdout.contains(&line)
    })
    .await;
}

#[tokio::test]
async fn damaged_transfer_leaves_no_file() {
    let etcd = GuardedCluster::start().await;
    fill(&etcd).await;
    let annotation = format!("etcd-guard.io/endpoints=http://:{PROXY_PORT}");
    assert!(etcd.kubectl(&["annotate", "statefulset/etcd", &annotation]).await.success);
    let folder = tempfile::tempdir().unwrap();
    let follower = etcd.followers().await[0].clone();
    let cases = [
        (Fault::Cut, "1h", "no backup of "),
        (Fault::Corrupt, "1h", "the data was changed on its way"),
        (Fault::Stall, "3s", "it is not complete after 3s; --timeout allows more"),
    ];
    for (fault, limit, cause) in cases {
        let proxy = Proxy::start(etcd.address(&follower), fault).await;
        let output = backup(&etcd, folder.path(), &["--from", &follower, "--timeout", limit]).await;
        assert_eq!(output.status, Some(2), "{fault:?}: {output:?}");
        assert!(
            output.stderr.contains("no backup of ") && output.stderr.contains(cause),
            "{fault:?}: {output:?}"
        );
        assert!(output.stderr.contains(" MiB were received from "), "{fault:?}: {output:?}");
        assert!(names(&folder).is_empty(), "{fault:?}: {:?}", names(&folder));
        proxy.stop().await;
    }
}

#[tokio::test]
async fn lost_quorum_is_refused_unless_a_member_is_chosen() {
    let etcd = GuardedCluster::start().await;
    let keys = fill(&etcd).await;
    let [first, second] = etcd.followers().await;
    for pod in [&etcd.leader().await, &first] {
        etcd.apply(pod, ProcessAction::Pause).await;
    }
    let folder = tempfile::tempdir().unwrap();
    wait_until("the backup is refused", START_TIMEOUT, async || {
        let output = backup(&etcd, folder.path(), &[]).await;
        let text = "no member is known to have all writes. To save the most advanced one: --from ";
        output.status == Some(2) && output.stderr.contains(&format!("{text}{second}"))
    })
    .await;
    let output = backup(&etcd, folder.path(), &["--from", &second, "-o", "json"]).await;
    assert!(output.stdout.contains("the last writes may be missing"), "{output:?}");
    assert_eq!(examine(last(&output)["to"].as_str().unwrap())["revision"], keys + 1);
}

#[tokio::test]
async fn users_need_the_role_root_and_callers_their_secret() {
    let etcd = GuardedCluster::start().await;
    let mut client = etcd.member("etcd-0").client().await.unwrap();
    client.put("key", "value", None).await.unwrap();
    for user in ["root", "guest"] {
        client.user_add(user, "secret", None).await.unwrap();
    }
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();
    for user in ["root", "guest"] {
        let name = format!("--from-literal=username={user}");
        let create = ["create", "secret", "generic", user, &name, "--from-literal=password=secret"];
        assert!(etcd.kubectl(&create).await.success);
    }
    let folder = tempfile::tempdir().unwrap();
    let run = async |secret: &str, arguments: &[&str]| {
        let annotation = format!("etcd-guard.io/auth-secret={secret}");
        let annotate = ["annotate", "--overwrite", "statefulset/etcd", &annotation];
        assert!(etcd.kubectl(&annotate).await.success);
        backup(&etcd, folder.path(), &[&["--from", "etcd-0"], arguments].concat()).await
    };
    let refused = run("guest", &[]).await;
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("rejects user guest: "), "{refused:?}");
    assert!(refused.stderr.contains("etcd requires a user with the role root"), "{refused:?}");
    assert!(names(&folder).is_empty(), "{refused:?}");

    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get"]}]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "saver"}, "rules": rules});
    let file = etcd.dir().join("role.json");
    std::fs::write(&file, role.to_string()).unwrap();
    assert!(etcd.kubectl(&["apply", "-f", file.to_str().unwrap()]).await.success);
    let bind = ["create", "rolebinding", "saver", "--role=saver", "--user=saver"];
    assert!(etcd.kubectl(&bind).await.success);
    let text = format!("you are not allowed to get secrets root in namespace {}", etcd.namespace);
    wait_until("the Role applies", START_TIMEOUT, async || {
        let refused = run("root", &["--as", "saver"]).await;
        assert_eq!(refused.status, Some(2), "{refused:?}");
        refused.stderr.contains(&text)
    })
    .await;

    let saved = last(&run("root", &["-o", "json"]).await);
    assert_eq!(examine(saved["to"].as_str().unwrap())["revision"], saved["revision"]);
}

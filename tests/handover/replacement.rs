//! Steps of the replacement of a member, as annotations, with real members.

use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, Member, TlsOptions, UserAddOptions};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::PostParams};
use serde_json::json;
use test_support::{
    etcd::grpc_proxy::GrpcProxy,
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    layout::Layout,
    process_node::{ProcessAction, RESOLVES_NAMES},
    processes::child::run_to_end,
    project,
    wait::wait_until,
};
use tokio::time::sleep;

use crate::cluster::{Turn, annotate, notes, request, start_replica, wait_for_note};

const SET: &str = "StatefulSet/etcd";

/// The port of the proxies, each at the address of its member.
const PROXY_PORT: u16 = 12379;

const SERVICE: &str = "/etcdserverpb.Cluster";

async fn start(members: usize) -> GuardedCluster {
    let layout = Layout { members, annotations: vec![(RESOLVES_NAMES, "true")], ..Layout::default() };
    GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await
}

/// Returns the member list by the leader.
async fn listed(etcd: &GuardedCluster, via: &str) -> Vec<Member> {
    let mut client = etcd.member(via).client().await.unwrap();
    client.member_list().await.unwrap().members().to_vec()
}

fn voters(list: &[Member]) -> usize {
    list.iter().filter(|member| !member.is_learner()).count()
}

async fn ask(etcd: &GuardedCluster, step: &str, pod: &str, old: &str) -> String {
    let value = request(&format!("{step} {pod} {old}"));
    annotate(etcd, "statefulset/etcd", &format!("etcd-guard.io/replace={value}")).await;
    value
}

async fn wait_for_answer(etcd: &GuardedCluster, reason: &str, value: &str) -> String {
    wait_for_note(etcd, SET, reason, &format!("replace {value}: ")).await
}

#[tokio::test]
async fn refuses_the_leader_and_a_second_lost_member() {
    let _turn = Turn::start().await;
    let etcd = start(3).await;
    let leader = etcd.leader().await;
    let [first, second] = etcd.followers().await;
    let (leads, old) = (etcd.member(&leader).id().await, etcd.member(&first).id().await);
    let value = ask(&etcd, "remove", &leader, &leads).await;
    let note = wait_for_answer(&etcd, "ReplacementFailed", &value).await;
    assert!(note.ends_with(&format!(": {leader} leads: move leadership first")), "{note}");

    let value = ask(&etcd, "remove", &second, &old).await;
    let note = wait_for_answer(&etcd, "ReplacementFailed", &value).await;
    assert!(note.ends_with(&format!(" ({first}) is not that of {second}")), "{note}");

    etcd.apply(&second, ProcessAction::CrashLoop).await;
    let value = ask(&etcd, "remove", &first, &old).await;
    let note = wait_for_answer(&etcd, "ReplacementFailed", &value).await;
    let numbers = "1 of 3 voters are healthy and stay, and 2 are needed: ";
    assert!(note.contains(&format!("without {first}, {numbers}{second} is not healthy")), "{note}");
    assert_eq!(voters(&listed(&etcd, &leader).await), 3);
}

#[tokio::test]
async fn five_members_spare_one_while_another_is_down() {
    let _turn = Turn::start().await;
    let etcd = start(5).await;
    let leader = etcd.leader().await;
    let mut others = etcd.pod_names().await;
    others.retain(|name| *name != leader);
    let old = etcd.member(&others[0]).id().await;
    etcd.apply(&others[1], ProcessAction::CrashLoop).await;
    wait_until("the member is down", START_TIMEOUT, async || !etcd.member(&others[1]).serves().await).await;
    let value = ask(&etcd, "remove", &others[0], &old).await;
    wait_for_answer(&etcd, "MemberRemoved", &value).await;
    assert_eq!(voters(&listed(&etcd, &leader).await), 4);
    // A repeated step is complete at once.
    let value = ask(&etcd, "remove", &others[0], &old).await;
    wait_for_answer(&etcd, "MemberRemoved", &value).await;
    let value = ask(&etcd, "add", &others[0], &old).await;
    wait_for_answer(&etcd, "LearnerAdded", &value).await;
    let list = listed(&etcd, &leader).await;
    assert_eq!((list.len(), voters(&list)), (5, 4));

    // Of four voters, three are healthy: none can be spared.
    let next = etcd.member(&others[2]).id().await;
    let value = ask(&etcd, "remove", &others[2], &next).await;
    let note = wait_for_answer(&etcd, "ReplacementFailed", &value).await;
    assert!(note.contains(", 2 of 4 voters are healthy and stay, and 3 are needed: "), "{note}");
    assert_eq!(voters(&listed(&etcd, &leader).await), 4);
}

/// Lets the guard reach every member through a proxy.
async fn behind_proxies(etcd: &GuardedCluster) -> GrpcProxy {
    let names = etcd.pod_names().await;
    let addresses: Vec<_> = names.iter().map(|name| etcd.address(name)).collect();
    let proxy = GrpcProxy::start(&addresses, PROXY_PORT).await;
    annotate(etcd, "statefulset/etcd", &format!("etcd-guard.io/endpoints=http://:{PROXY_PORT}")).await;
    proxy
}

#[tokio::test]
async fn no_other_member_may_go_while_one_is_removed() {
    let _turn = Turn::start().await;
    let etcd = start(3).await;
    let proxy = behind_proxies(&etcd).await;
    let other_replica = start_replica(&etcd, 1, true).await;
    let [first, second] = etcd.followers().await;
    let old = etcd.member(&first).id().await;
    // etcd removes a member only five seconds after its peers connected: each refusal would be one more call.
    sleep(Duration::from_secs(7)).await;
    let is_removal = |method: &str| method == format!("{SERVICE}/MemberRemove");
    let held = proxy.hold(move |call| is_removal(&call.method));
    let value = ask(&etcd, "remove", &first, &old).await;
    wait_until("etcd is asked", START_TIMEOUT, async || held.has_waiting_calls()).await;
    let output = etcd.kubectl(&["delete", "pod", &second, "--dry-run=server"]).await;
    assert!(!output.success && output.stderr.contains(&first), "{first} is leaving: {output:?}");
    // Another replica that did not see the entry would ask by now.
    sleep(Duration::from_secs(3)).await;
    held.release();
    wait_for_answer(&etcd, "MemberRemoved", &value).await;
    // Two voters are left.
    let output = etcd.kubectl(&["delete", "pod", &second, "--dry-run=server"]).await;
    assert!(!output.success, "{output:?}");
    // The removed member may go.
    wait_until("the removed member may go", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "pod", &first, "--dry-run=server"]).await.success
    })
    .await;
    sleep(Duration::from_secs(12)).await;
    assert_eq!(notes(&etcd, SET, "MemberRemoved").await.len(), 1, "one replica answers");
    let removals = proxy.take_calls().into_iter().filter(|call| is_removal(&call.method)).count();
    assert_eq!(removals, 1, "one replica acts");
    drop(other_replica);
}

/// The acting replica is killed while etcd is asked for a step. Then it starts again, for the next step.
#[tokio::test]
async fn another_replica_continues_each_step() {
    let _turn = Turn::start().await;
    let mut etcd = start(3).await;
    let proxy = behind_proxies(&etcd).await;
    let leader = etcd.leader().await;
    let [first, _] = etcd.followers().await;
    let old = etcd.member(&first).id().await;
    for (number, (step, method, reason)) in [
        ("remove", "MemberRemove", "MemberRemoved"),
        ("add", "MemberAdd", "LearnerAdded"),
        ("promote", "MemberPromote", "LearnerPromoted"),
    ]
    .into_iter()
    .enumerate()
    {
        let held = proxy.hold(move |call| call.method == format!("{SERVICE}/{method}"));
        // The plugin starts the learner, and asks for its promotion.
        let plugin = (step == "promote").then(|| {
            let mut program = cli::program(&etcd, "replace", &[&first]);
            program.args(["--timeout", "3m"]);
            tokio::spawn(run_to_end(program))
        });
        let value = if plugin.is_none() { ask(&etcd, step, &first, &old).await } else { String::new() };
        wait_until(&format!("etcd is asked: {step}"), START_TIMEOUT, async || held.has_waiting_calls()).await;
        let other_replica = start_replica(&etcd, number + 1, true).await;
        etcd.guard.kill();
        held.release();
        wait_for_note(&etcd, SET, reason, &format!("replace {step} {first} {old}@")).await;
        if plugin.is_none() {
            assert_eq!(notes(&etcd, SET, reason).await.len(), 1, "{value}: one replica answers");
        }
        drop(other_replica);
        etcd.guard.restart().await;
        assert!(etcd.member(&leader).serves().await, "the listed voters keep their quorum");
        if let Some(plugin) = plugin {
            let output = plugin.await.unwrap();
            assert!(output.status.success(), "{output:?}");
        }
    }
    let list = listed(&etcd, &leader).await;
    assert_eq!((list.len(), voters(&list)), (3, 3));
    assert!(list.iter().all(|member| format!("{:x}", member.id()) != old), "{list:?}");
    etcd.wait_until_healthy().await;
}

/// Mutual TLS between members and with clients.
const TLS_FLAGS: [&str; 8] = [
    "--cert-file=/tls/tls.crt",
    "--key-file=/tls/tls.key",
    "--trusted-ca-file=/tls/ca.crt",
    "--client-cert-auth",
    "--peer-cert-file=/tls/tls.crt",
    "--peer-key-file=/tls/tls.key",
    "--peer-trusted-ca-file=/tls/ca.crt",
    "--peer-client-cert-auth",
];

/// Lets the members of the shipped manifest use TLS.
fn with_tls(manifest: &str) -> String {
    let flags = TLS_FLAGS.map(|flag| format!("        - {flag}\n")).concat();
    let (state, mount, claims) = (
        "        - --initial-cluster-state=new\n",
        "        - {name: data, mountPath: /var/lib/etcd}\n",
        "  # The default, set explicitly",
    );
    let manifest =
        manifest.replace("http://", "https://").replace("https://0.0.0.0:2381", "http://0.0.0.0:2381");
    assert!([state, mount, claims].iter().all(|text| manifest.contains(text)), "the manifest has changed");
    manifest
        .replace(state, &format!("{state}{flags}"))
        .replace(mount, &format!("{mount}        - {{name: tls, mountPath: /tls}}\n"))
        .replace(
            claims,
            &format!(
                "      volumes:\n      - {{name: tls, secret: {{secretName: etcd-server-tls}}}}\n{claims}"
            ),
        )
}

/// The certificate authority of a test.
struct Authority {
    ca: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        Self { ca: rcgen::CertifiedIssuer::self_signed(parameters, key).unwrap() }
    }

    /// Returns a certificate with this common name for servers with these names, and its key.
    fn issue(&self, name: &str, hosts: &[String]) -> (String, String) {
        let mut parameters = rcgen::CertificateParams::new(hosts).unwrap();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.ca).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Creates a Secret with such a certificate.
    async fn store(&self, etcd: &GuardedCluster, secret: &str, (certificate, key): (String, String)) {
        let secret = serde_json::from_value(json!({
            "metadata": {"name": secret},
            "stringData": {"ca.crt": self.ca.pem(), "tls.crt": certificate, "tls.key": key},
        }));
        let secrets: Api<Secret> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
        secrets.create(&PostParams::default(), &secret.unwrap()).await.unwrap();
    }

    /// Connects to a member as this user.
    async fn client(
        &self,
        etcd: &GuardedCluster,
        pod: &str,
        user: &str,
    ) -> Result<Client, etcd_client::Error> {
        let (certificate, key) = self.issue(user, &[]);
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(self.ca.pem()))
            .identity(Identity::from_pem(certificate, key))
            .domain_name(format!("{pod}.etcd.{}.svc", etcd.namespace));
        let limit = Duration::from_secs(5);
        let options = ConnectOptions::new().with_tls(tls).with_timeout(limit).with_connect_timeout(limit);
        Client::connect([format!("https://{}:2379", etcd.address(pod))], Some(options)).await
    }
}

/// The guard uses the user of its certificate, which needs the role `root`.
#[tokio::test]
async fn replaces_a_member_with_mutual_tls_and_users() {
    let _turn = Turn::start().await;
    let layout = Layout { annotations: vec![(RESOLVES_NAMES, "true")], ..Layout::default() };
    let setup = Setup { layout, change_manifest: with_tls, is_broken: true, ..Setup::default() };
    let etcd = GuardedCluster::start_as(setup).await;
    let (authority, namespace) = (Authority::new(), &etcd.namespace);
    // The members connect to each other from this address.
    let hosts =
        [String::from("127.0.0.1"), format!("*.etcd.{namespace}.svc"), format!("etcd.{namespace}.svc")];
    authority.store(&etcd, "etcd-server-tls", authority.issue("etcd", &hosts)).await;
    authority.store(&etcd, "etcd-client-tls", authority.issue("etcd-guard", &[])).await;
    let role = project::path("deploy/secrets-role.yaml");
    assert!(etcd.kubectl(&["apply", "-f", role.to_str().unwrap()]).await.success);
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/client-tls-secret=etcd-client-tls").await;
    let serves = async |pod: &str| {
        let Ok(mut client) = authority.client(&etcd, pod, "root").await else { return false };
        client.get("kept", None).await.is_ok()
    };
    for pod in GuardedCluster::names() {
        wait_until(&format!("{pod} serves"), START_TIMEOUT, async || serves(pod).await).await;
    }
    let mut client = authority.client(&etcd, "etcd-0", "root").await.unwrap();
    client.put("kept", "value", None).await.unwrap();
    for user in ["root", "etcd-guard"] {
        client.user_add(user, "", Some(UserAddOptions::new().with_no_pwd())).await.unwrap();
        client.user_grant_role(user, "root").await.unwrap();
    }
    client.auth_enable().await.unwrap();
    let mut stranger = authority.client(&etcd, "etcd-0", "stranger").await.unwrap();
    assert!(stranger.get("kept", None).await.is_err(), "etcd asks for a user");

    let list = client.member_list().await.unwrap();
    let old = list.members().iter().find(|member| member.name() == "etcd-1").unwrap().id();
    let mut program = cli::program(&etcd, "replace", &["etcd-1", "--no-backup", "--timeout", "3m"]);
    program.stdin(std::process::Stdio::null());
    let output = run_to_end(program).await;
    assert!(output.status.success(), "{output:?}");
    let list = client.member_list().await.unwrap().members().to_vec();
    assert_eq!((list.len(), voters(&list)), (3, 3), "{list:?}");
    assert!(list.iter().all(|member| member.id() != old), "{list:?}");
    let mut client = authority.client(&etcd, "etcd-1", "root").await.unwrap();
    assert_eq!(client.get("kept", None).await.unwrap().kvs()[0].value(), b"value", "its own copy");
}

//! What members with TLS and users hear from the whole program, written down between the two: logins, questions, and
//! transfers of leadership. `tests/control_plane/wire.rs` has the same of plain members behind a real apiserver.

use std::{collections::BTreeSet, net::Ipv4Addr};

use prost::Message;
use serde_json::{Value, json};

use crate::{
    etcd_cluster::{Cluster, Layout, PASSWORD, START_LIMIT},
    scene::{Scene, pod, secret},
    support::{
        wait::until,
        wire::{Behind, BehindTls, Call, Login, Range, Wire},
    },
};

/// Where the proxies listen, each at its member's address.
const PORT: u16 = 12379;

const LOGIN: &str = "/etcdserverpb.Auth/Authenticate";
const RANGE: &str = "/etcdserverpb.KV/Range";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";
const MOVE: &str = "/etcdserverpb.Maintenance/MoveLeader";

async fn wire_before(cluster: &Cluster) -> Wire {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (ca, certificate, key) = cluster.client_files();
    let members = (0..3).map(|n| {
        let (server, server_key) = cluster.server_files(n);
        let tls = BehindTls::new(ca, (&server, &server_key), (certificate, key));
        Behind { address: address(cluster, n), tls: Some(Box::new(tls)) }
    });
    Wire::before_all(members, PORT).await
}

fn address(cluster: &Cluster, n: usize) -> Ipv4Addr {
    cluster.address(n).parse().unwrap()
}

/// What was heard, if it is no more than this.
fn heard(wire: &Wire, at_most: &[&str]) -> Vec<Call> {
    let calls = wire.news();
    for call in &calls {
        assert!(at_most.contains(&call.method.as_str()), "{} at {}", call.method, call.member);
        match call.method.as_str() {
            RANGE => {
                let range = Range::decode(call.message.as_slice()).unwrap();
                assert!(!range.serializable && range.key == b"health", "{range:?}");
            }
            LOGIN => assert_eq!(Login::decode(call.message.as_slice()).unwrap().name, "root"),
            _ => {}
        }
    }
    calls
}

fn methods(calls: &[Call]) -> BTreeSet<&str> {
    calls.iter().map(|call| call.method.as_str()).collect()
}

/// Asks until this is the answer: on a busy machine a login may be late for a while.
async fn until_answered(reason: &str, ask: impl AsyncFn() -> (String, String)) {
    until(reason, START_LIMIT, async || ask().await.0 == reason).await;
}

on_every_version! {
    async fn members_with_tls_and_users_hear_logins_questions_and_transfers(version) {
        let mut cluster = Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await;
        cluster.switch_auth_on().await;
        let leader = cluster.leader().await;
        let wire = wire_before(&cluster).await;
        let annotated = |n, policy: &str| {
            let mut pod = pod(&cluster, n);
            pod["metadata"]["annotations"] = json!({
                "etcd-guard.io/endpoints": format!("https://:{PORT}"),
                "etcd-guard.io/auth-secret": "etcd-guard-user",
                "etcd-guard.io/leader": policy,
            });
            pod
        };
        let pods: Vec<Value> = (0..3).map(|n| annotated(n, "deny")).collect();
        let scene = Scene::before(&pods).await;
        let (ca, certificate, key) = cluster.client_files();
        let tls = secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)]);
        scene.objects.put("/api/v1/namespaces/prod/secrets/etcd-client-tls", 200, tls);
        let user = secret(&[("username", b"root"), ("password", PASSWORD.as_bytes())]);
        scene.objects.put("/api/v1/namespaces/prod/secrets/etcd-guard-user", 200, user);

        let questions = [LOGIN, RANGE, STATUS, MEMBERS];
        until_answered("LeaderProtected", async || scene.delete(&pods[leader]).await).await;
        let calls = heard(&wire, &questions);
        assert_eq!(methods(&calls), questions.into(), "a no");
        let asked: BTreeSet<_> = calls.iter().map(|call| call.member).collect();
        assert_eq!(asked, (0..3).map(|n| address(&cluster, n)).collect(), "every member is asked");

        let movable = annotated(leader, "transfer");
        until_answered("LeaderTransferred", async || scene.ask(&movable).await).await;
        heard(&wire, &questions);
        // A transfer whose end came too late was one all the same: then the pod's member leads no more.
        until("the leader may go", START_LIMIT, async || {
            ["LeaderTransferred", "SafeToDelete"].contains(&scene.delete(&movable).await.0.as_str())
        })
        .await;
        let calls = heard(&wire, &[&questions[..], &[MOVE]].concat());
        let moves: BTreeSet<_> = calls.iter().filter(|it| it.method == MOVE).map(|it| it.member).collect();
        assert_eq!(moves, [address(&cluster, leader)].into(), "at the leader");

        until_answered("SafeToDelete", async || scene.delete(&pods[leader]).await).await;
        let calls = heard(&wire, &questions);
        assert!(methods(&calls).is_superset(&[RANGE, STATUS, MEMBERS].into()), "a yes: {:?}", methods(&calls));
    }
}

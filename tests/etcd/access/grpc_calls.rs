//! The gRPC calls that members with TLS and users receive from the whole program: logins, reads, status, member lists
//! and transfers of leadership. `tests/control_plane/observability/grpc_calls.rs` tests the same for plain members
//! behind a real API server.

use std::{collections::BTreeSet, net::Ipv4Addr};

use prost::Message;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Layout, PASSWORD, START_TIMEOUT},
    guarded_cluster::{GuardedPods, pod, secret},
};
use test_support::{
    etcd::grpc_proxy::{AuthenticateRequest, Call, GrpcProxy, ProxiedMember, ProxyTls, RangeRequest},
    wait::wait_until,
};

/// The port of the proxies, each at the address of its member.
const PORT: u16 = 12379;

const LOGIN: &str = "/etcdserverpb.Auth/Authenticate";
/// Reads over HTTP that show whether a member votes, of releases whose lists may be wrong.
const WITNESSES: [&str; 2] = ["/debug/vars", "/metrics"];

const RANGE: &str = "/etcdserverpb.KV/Range";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";
const MOVE: &str = "/etcdserverpb.Maintenance/MoveLeader";

async fn start_proxy(cluster: &Cluster) -> GrpcProxy {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (ca, certificate, key) = cluster.client_files();
    let members = (0..3).map(|n| {
        let (server, server_key) = cluster.server_files(n);
        let tls = ProxyTls::new(ca, (&server, &server_key), (certificate, key));
        ProxiedMember { address: address(cluster, n), tls: Some(Box::new(tls)) }
    });
    GrpcProxy::start_all(members, PORT).await
}

fn address(cluster: &Cluster, n: usize) -> Ipv4Addr {
    cluster.address(n).parse().unwrap()
}

/// Returns the recorded calls, and asserts that they use only these methods.
fn allowed_calls(proxy: &GrpcProxy, at_most: &[&str]) -> Vec<Call> {
    let mut calls = proxy.take_calls();
    calls.retain(|call| !WITNESSES.contains(&call.method.as_str()));
    for call in &calls {
        assert!(at_most.contains(&call.method.as_str()), "{} at {}", call.method, call.member);
        match call.method.as_str() {
            RANGE => {
                let range = RangeRequest::decode(call.message.as_slice()).unwrap();
                assert!(!range.serializable && range.key == b"health", "{range:?}");
            }
            LOGIN => assert_eq!(AuthenticateRequest::decode(call.message.as_slice()).unwrap().name, "root"),
            _ => {}
        }
    }
    calls
}

fn methods(calls: &[Call]) -> BTreeSet<&str> {
    calls.iter().map(|call| call.method.as_str()).collect()
}

/// Repeats a request until the reason matches: on a busy machine a login may be late for a while.
async fn wait_for_reason(reason: &str, request: impl AsyncFn() -> (String, String)) {
    wait_until(reason, START_TIMEOUT, async || request().await.0 == reason).await;
}

on_every_version! {
    async fn members_receive_only_logins_reads_and_transfers(version) {
        let mut cluster = Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await;
        cluster.enable_auth().await;
        let leader = cluster.leader().await;
        let proxy = start_proxy(&cluster).await;
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
        let guarded = GuardedPods::start(&pods).await;
        let (ca, certificate, key) = cluster.client_files();
        let tls = secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)]);
        guarded.objects.put("/api/v1/namespaces/prod/secrets/etcd-client-tls", 200, tls);
        let user = secret(&[("username", b"root"), ("password", PASSWORD.as_bytes())]);
        guarded.objects.put("/api/v1/namespaces/prod/secrets/etcd-guard-user", 200, user);

        let read_only = [LOGIN, RANGE, STATUS, MEMBERS];
        wait_for_reason("LeaderProtected", async || guarded.delete(&pods[leader]).await).await;
        let calls = allowed_calls(&proxy, &read_only);
        assert_eq!(methods(&calls), read_only.into(), "calls for a denial");
        let probed: BTreeSet<_> = calls.iter().map(|call| call.member).collect();
        assert_eq!(probed, (0..3).map(|n| address(&cluster, n)).collect(), "every member is probed");

        let movable = annotated(leader, "transfer");
        // The policy of the live pod decides, not that of the copy in the review.
        let mut live = pods.clone();
        live[leader] = movable.clone();
        guarded.objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": live}));
        wait_for_reason("LeaderTransferred", async || guarded.dry_run(&movable).await).await;
        allowed_calls(&proxy, &read_only);
        // A transfer that finishes after its timeout takes effect, too. The member then no longer leads.
        wait_until("the deletion of the former leader is approved", START_TIMEOUT, async || {
            ["LeaderTransferred", "SafeToDelete"].contains(&guarded.delete(&movable).await.0.as_str())
        })
        .await;
        let calls = allowed_calls(&proxy, &[&read_only[..], &[MOVE]].concat());
        let moves: BTreeSet<_> = calls.iter().filter(|call| call.method == MOVE).map(|call| call.member).collect();
        assert_eq!(moves, [address(&cluster, leader)].into(), "at the leader");

        wait_for_reason("SafeToDelete", async || guarded.delete(&pods[leader]).await).await;
        let calls = allowed_calls(&proxy, &read_only);
        assert!(methods(&calls).is_superset(&[RANGE, STATUS, MEMBERS].into()), "calls for an approval: {:?}", methods(&calls));
    }
}

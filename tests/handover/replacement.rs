//! Steps of the replacement of a member, as annotations, with real members.

use std::time::Duration;

use etcd_client::Member;
use test_support::{
    etcd::grpc_proxy::GrpcProxy,
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    layout::Layout,
    process_node::{ProcessAction, RESOLVES_NAMES},
    processes::child::run_to_end,
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
    assert!(note.ends_with(&format!(" runs in {first}")), "{note}");

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

//! Member lists that do not agree with raft.

use std::time::{Duration, Instant};

use etcd_client::{Client, MemberAddOptions, PutOptions};
use etcd_guard_core::{
    assess::assess,
    config::policies::LeaderPolicy,
    etcd::{
        member::{MemberId, Suffrage},
        probe_result::ProbeResult,
    },
    mistakes::Mistake,
    policy::Policy,
    reason::Reason,
    snapshot::Snapshot,
};
use etcd_guard_etcd::Connections;

use crate::{
    cluster::{Cluster, Layout, START_TIMEOUT},
    snapshots::leader_of,
};

/// The last release of its line that forgets at an update of a member that it is a learner.
const AFFECTED: &str = "3.6.11";

/// The member that is listed wrongly.
const WRONG: usize = 2;

/// The time for a write. etcd gives up after 7 s.
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// etcd issue 21694: two voters, and a learner that an update of its own peer URL lists as a voter. By the list, two of three voters
/// remain without the second voter.
async fn learner_listed_as_voter(version: &'static str, tls: bool) {
    let mut cluster = Cluster::start(Layout { version, members: 2, spare: 1, tls }).await;
    let learner = add_learner(&cluster).await;
    cluster.restart(WRONG);
    cluster.wait_until_serving(WRONG).await;
    let connections = Connections::new();
    let reason = |snapshot: &Snapshot, n: usize, leader: LeaderPolicy| {
        let policy = Policy { leader, ..Policy::default() };
        let assessment = assess(snapshot, &snapshot.pods[n], &policy);
        (assessment.reason, assessment.wants_transfer(&policy))
    };
    let before = cluster.settled_snapshot(&connections).await;
    for n in [0, 1] {
        assert_eq!(reason(&before, n, LeaderPolicy::Transfer), (Reason::QuorumAtRisk, false));
    }
    let url = cluster.peer_url(WRONG);
    cluster.client(0).await.member_update(learner.0, [url]).await.unwrap();
    let after = cluster.healthy_snapshot(&connections).await;
    let ProbeResult::Healthy { status, members } = &after.pods[WRONG].reply else { panic!("{after:?}") };
    assert!(!status.is_learner && members.iter().all(|member| !member.is_learner), "the list forgot it");
    assert_eq!(status.suffrage, Some(Suffrage::Learner));
    for n in 0..3 {
        for policy in [LeaderPolicy::Deny, LeaderPolicy::Transfer] {
            assert_eq!(reason(&after, n, policy), (Reason::MemberListWrong, false), "etcd-{n}");
        }
    }
    // The members whose voters are proven.
    let leader = leader_of(&after).unwrap();
    assert_eq!(after.pods[leader].reply.status().unwrap().suffrage, Some(Suffrage::Voter));
    let second = 1 - leader;
    believing(|| {
        assert_eq!(reason(&after, second, LeaderPolicy::Deny), (Reason::SafeToDelete, false));
        assert_eq!(reason(&after, leader, LeaderPolicy::Transfer), (Reason::LeaderProtected, true));
    });
    cluster.kill(second);
    assert!(!writes(&cluster.client(leader).await).await, "two of the three listed voters run");
}

#[tokio::test]
async fn learner_listed_as_voter_on_3_6() {
    Box::pin(learner_listed_as_voter(AFFECTED, false)).await;
}

#[tokio::test]
async fn learner_listed_as_voter_on_3_6_with_tls() {
    Box::pin(learner_listed_as_voter(AFFECTED, true)).await;
}

#[tokio::test]
async fn learner_listed_as_voter_on_3_4() {
    Box::pin(learner_listed_as_voter("3.4", false)).await;
}

/// A corrected release is not asked, and keeps the learner in its list.
#[tokio::test]
async fn corrected_release_lists_updated_learner() {
    let mut cluster = Cluster::start(Layout { version: "3.6", members: 2, spare: 1, tls: false }).await;
    let learner = add_learner(&cluster).await;
    cluster.restart(WRONG);
    cluster.wait_until_serving(WRONG).await;
    let url = cluster.peer_url(WRONG);
    cluster.client(0).await.member_update(learner.0, [url]).await.unwrap();
    let snapshot = cluster.settled_snapshot(&Connections::new()).await;
    assert!(snapshot.statuses().all(|status| status.suffrage.is_none()));
    assert_eq!(assess(&snapshot, &snapshot.pods[1], &Policy::default()).reason, Reason::QuorumAtRisk);
    assert_eq!(assess(&snapshot, &snapshot.pods[WRONG], &Policy::default()).reason, Reason::NotAVoter);
}

/// etcd issue 19557: three voters, one of which is listed as a learner. The stores of the stopped members are edited, because no
/// release of the tests has the defect.
#[tokio::test]
async fn voter_listed_as_learner() {
    let mut cluster = Cluster::three_members(AFFECTED).await;
    // etcd writes its store every 100 ms.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for n in 0..3 {
        cluster.kill(n);
    }
    for n in 0..3 {
        list_as_learner(&cluster, n);
    }
    for n in 0..3 {
        cluster.restart(n);
    }
    for n in 0..3 {
        cluster.wait_until_serving(n).await;
    }
    let connections = Connections::new();
    let mut snapshot = cluster.settled_snapshot(&connections).await;
    if let Some(leader) = leader_of(&snapshot)
        && snapshot.pods[WRONG].reply.status().unwrap().suffrage.is_none()
    {
        // It started after the election, and votes in the next one.
        let other = snapshot.pods[1 - leader].reply.status().unwrap().member_id;
        cluster.client(leader).await.move_leader(other.0).await.unwrap();
        snapshot = cluster.settled_snapshot(&connections).await;
    }
    let wrong = snapshot.pods[WRONG].reply.status().unwrap();
    assert!(wrong.is_learner);
    assert_eq!(wrong.suffrage, Some(Suffrage::Voter));
    for n in 0..3 {
        let assessment = assess(&snapshot, &snapshot.pods[n], &Policy::default());
        assert_eq!(assessment.reason, Reason::MemberListWrong, "etcd-{n}: {assessment:?}");
    }
    // Without the second witness, the contradiction is the read that passes with one of two listed voters.
    let leader = wrong.leader;
    let down = usize::from(leader == snapshot.pods[0].reply.status().map(|status| status.member_id));
    cluster.kill(down);
    let mut blind = cluster.settled_snapshot(&connections).await;
    for pod in &mut blind.pods {
        if let ProbeResult::Healthy { status, .. } | ProbeResult::StatusOnly { status, .. } = &mut pod.reply {
            status.suffrage = None;
        }
    }
    let other = 1 - down;
    let reason = assess(&blind, &blind.pods[WRONG], &Policy::default()).reason;
    let leads = |id: MemberId| blind.pods[other].reply.status().unwrap().leader == Some(id);
    let expected = if leads(wrong.member_id) { Reason::MemberListWrong } else { Reason::QuorumAtRisk };
    assert_eq!(reason, expected);
    let by_the_list = if leads(wrong.member_id) { Reason::ElectionInProgress } else { Reason::NotAVoter };
    believing(|| {
        assert_eq!(assess(&blind, &blind.pods[WRONG], &Policy::default()).reason, by_the_list);
    });
    let client = cluster.client(other).await;
    assert!(writes(&client).await, "two of the three voters of raft run");
    cluster.kill(WRONG);
    assert!(!writes(&client).await);
}

/// Checks what an evaluation would decide that believes the list.
fn believing(check: impl FnOnce()) {
    Mistake::activate(Some(Mistake::BelieveMemberList));
    check();
    Mistake::activate(None);
}

/// Edits the store of a stopped member. etcd reads the members of its list from it, and raft's voters from its log. The length of
/// the entry does not change, and the member publishes its client URLs again when it starts.
fn list_as_learner(cluster: &Cluster, n: usize) {
    let file = cluster.data(n).join("member/snap/db");
    let mut store = std::fs::read(&file).unwrap();
    let urls = format!("\"peerURLs\":[\"{}\"],", cluster.peer_url(WRONG));
    let client_urls = b"\"clientURLs\":[";
    let find = |text: &[u8], part: &[u8]| text.windows(part.len()).position(|window| window == part);
    let mut at = 0;
    let mut edited = 0;
    while let Some(found) = find(&store[at..], urls.as_bytes()) {
        let start = at + found + urls.len();
        at = start;
        let entry = &store[start..];
        let length = find(entry, b"}").unwrap();
        let Some(name) = find(&entry[..length], client_urls) else { continue };
        let mut changed = b"\"isLearner\":true,".to_vec();
        changed.extend_from_slice(&entry[..name - 1]);
        assert!(changed.len() <= length);
        changed.resize(length, b' ');
        store[start..start + length].copy_from_slice(&changed);
        edited += 1;
    }
    assert!(edited > 0, "the store has no entry with {urls}");
    std::fs::write(file, store).unwrap();
}

/// Adds the spare member as a learner. etcd refuses during the first five seconds of a cluster.
async fn add_learner(cluster: &Cluster) -> MemberId {
    let mut client = cluster.client(0).await;
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let options = MemberAddOptions::new().with_is_learner();
        match client.member_add([cluster.peer_url(WRONG)], Some(options)).await {
            Ok(response) => return MemberId(response.member().unwrap().id()),
            Err(error) => assert!(Instant::now() < deadline, "member add: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether a write passes.
async fn writes(client: &Client) -> bool {
    let mut client = client.clone();
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let put = client.put("key", "value", None::<PutOptions>);
        match tokio::time::timeout(WRITE_TIMEOUT, put).await {
            Ok(Ok(_)) => return true,
            Err(_) => return false,
            // An election.
            Ok(Err(error)) => assert!(Instant::now() < deadline, "put: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

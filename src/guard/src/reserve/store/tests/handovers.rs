//! Handovers in the ledgers.

use super::*;
use etcd_guard_core::{
    handover::{HandoverState, REVIEW},
    ledger::HANDOVER_TTL,
};

fn handover(signal: &str) -> Handover {
    Handover {
        signal: signal.to_owned(),
        cluster: OURS.to_string(),
        uid: String::from("b"),
        pod: String::from("etcd-1"),
        term: 7,
        ended: false,
        at: Timestamp::now().to_string(),
    }
}

async fn first(replica: &ReservationStore) -> Ledger {
    read(replica).await.into_first().unwrap()
}

#[tokio::test(start_paused = true)]
async fn handover_protects_transferee_and_reserves_nothing() {
    let api_server = ApiServer::default();
    let (one, two) = (api_server.replica(), api_server.replica());
    let mut ledger = first(&one).await;
    let mut outdated = first(&two).await;
    one.add_handover(&mut ledger, handover("cordon/n")).await.unwrap();
    let late = two.add_handover(&mut outdated, handover("cordon/n")).await;
    assert!(matches!(late, Err(ReserveError::StartAgain)), "one replica acts");

    let ledger = first(&two).await;
    assert!(ledger.has_signal(OURS, "cordon/n") && ledger.active().is_empty());
    let protects = async |replica: &ReservationStore, uid: &str| {
        read(replica).await.is_transferee(uid, Timestamp::now())
    };
    let state = async |replica: &ReservationStore| first(replica).await.handover_state(OURS, "cordon/n");
    assert!(protects(&two, "b").await && !protects(&two, "a").await);
    assert_eq!(state(&two).await, Some(HandoverState::InProgress(HANDOVER_TTL)));
    tokio::time::advance(HANDOVER_TTL).await;
    assert!(!protects(&two, "b").await, "the lifetime ends on the clock of the replica");
    assert_eq!(
        state(&two).await,
        Some(HandoverState::Expired { term: 7 }),
        "the replica may have ended before the transfer"
    );
    let mut ledger = first(&two).await;
    let known = ledger.handovers.first().cloned().unwrap();
    two.add_handover(&mut ledger, Handover { ended: true, ..known }).await.unwrap();
    assert_eq!(state(&one).await, Some(HandoverState::Ended));
    assert!(!protects(&two, "b").await, "the end of a handover starts no other lifetime");
}

/// A replica that starts, or whose ledger was removed, has not seen the beginning of the handover.
#[tokio::test(start_paused = true)]
async fn outdated_handover_protects_no_pod_at_a_new_replica() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    let mut ledger = first(&replica).await;
    replica.add_handover(&mut ledger, handover("cordon/n")).await.unwrap();
    let protects = async |seconds| {
        let time = Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
        read(&api_server.replica()).await.is_transferee("b", time)
    };
    assert!(protects(50).await, "the clocks of two machines can differ");
    assert!(!protects(65).await);
}

/// The pod is about to lead: its evaluation must see that.
#[tokio::test]
async fn new_handover_starts_the_evaluation_again() {
    let api_server = ApiServer::default();
    let (one, two) = (api_server.replica(), api_server.replica());
    let (mut ledger, mut late) = (first(&one).await, read(&two).await);
    one.add_handover(&mut ledger, handover("cordon/n")).await.unwrap();
    let facts = of_cluster(OURS, &["a", "b", "c"]);
    assert_eq!(two.reserve(&mut late, &[named("b")], &facts).await, Err(ReserveError::StartAgain));
    assert!(first(&two).await.active().is_empty());
}

#[tokio::test]
async fn reservations_and_handovers_survive_each_other() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    reserve(&replica, "a").await.unwrap();
    let mut ledger = first(&replica).await;
    replica.add_handover(&mut ledger, handover("cordon/n")).await.unwrap();
    reserve(&replica, "c").await.unwrap();
    let ledger = first(&replica).await;
    assert_eq!(uids(ledger.active()), ["a", "c"]);
    assert!(ledger.has_signal(OURS, "cordon/n"));

    let (mut ledgers, _) = replica.list().await.unwrap();
    assert_eq!(ledgers[0].signals().collect::<Vec<_>>(), ["cordon/n"]);
    replica.remove_handovers(&mut ledgers[0], |signal| signal == "cordon/n").await.unwrap();
    let ledger = first(&replica).await;
    assert!(!ledger.has_signal(OURS, "cordon/n"));
    assert_eq!(uids(ledger.active()), ["a", "c"]);
}

/// A forged review can cause a move: the replicas together make one per cluster in ten seconds.
#[tokio::test(start_paused = true)]
async fn move_for_a_deletion_delays_the_next_one_of_its_cluster() {
    let api_server = ApiServer::default();
    let (one, two) = (api_server.replica(), api_server.replica());
    let moved = Handover { ended: true, ..handover(REVIEW) };
    let pause = async |replica: &ReservationStore, cluster: ClusterId, seconds| {
        let time = Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
        read(replica).await.pause_between_moves(cluster, time)
    };
    let mut concurrent = read(&two).await;
    let facts = Facts { handover: Some(&moved), ..of_cluster(OURS, &["a", "b", "c"]) };
    let mut ledgers = read(&one).await;
    one.reserve(&mut ledgers, &[named("a")], &facts).await.unwrap();
    let late = two.reserve(&mut concurrent, &[named("other")], &facts).await;
    assert_eq!(late, Err(ReserveError::StartAgain), "it has not counted the move");
    assert_eq!(pause(&two, OURS, 0).await, Some(HANDOVER_TTL));
    assert_eq!(pause(&two, OTHER, 0).await, None);
    assert!(!read(&two).await.is_transferee("b", Timestamp::now()), "the second snapshot decides");

    one.withdraw(&mut ledgers, "a").await;
    assert!(first(&two).await.active().is_empty());
    tokio::time::advance(HANDOVER_TTL / 2).await;
    assert_eq!(pause(&two, OURS, 5).await, Some(HANDOVER_TTL / 2), "a move that failed counts as well");
    tokio::time::advance(HANDOVER_TTL / 2).await;
    assert_eq!(pause(&two, OURS, 10).await, None);
    assert_eq!(pause(&api_server.replica(), OURS, 65).await, None, "a new replica");
}

/// Annotations can request moves without end: leadership moves for one of them in ten seconds.
#[tokio::test(start_paused = true)]
async fn requested_move_delays_the_next_request_of_its_cluster() {
    let api_server = ApiServer::default();
    let (one, two) = (api_server.replica(), api_server.replica());
    let pause = async |replica: &ReservationStore, cluster: ClusterId, seconds| {
        let time = Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
        first(replica).await.pause_between_requests(cluster, time)
    };
    for other in [handover("cordon/n"), Handover { uid: String::new(), ..handover("request/answered") }] {
        let mut ledger = first(&one).await;
        one.add_handover(&mut ledger, other).await.unwrap();
    }
    assert_eq!(pause(&two, OURS, 0).await, None, "no requested move");
    let mut ledger = first(&one).await;
    one.add_handover(&mut ledger, Handover { ended: true, ..handover("request/a") }).await.unwrap();
    assert_eq!(pause(&two, OURS, 0).await, Some(HANDOVER_TTL));
    assert_eq!(pause(&two, OTHER, 0).await, None);
    tokio::time::advance(HANDOVER_TTL).await;
    assert_eq!(pause(&two, OURS, 10).await, None);
}

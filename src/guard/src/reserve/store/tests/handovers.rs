//! Handovers in the shared records.

use super::*;
use etcd_guard_core::{handover::HandoverState, ledger::HANDOVER_TTL};

fn handover(signal: &str) -> Handover {
    Handover {
        signal: signal.to_owned(),
        uid: String::from("b"),
        pod: String::from("etcd-1"),
        term: 7,
        ended: false,
        at: Timestamp::now().to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn handover_protects_transferee_and_reserves_nothing() {
    let api_server = ApiServer::default();
    let (one, two) = (api_server.replica(), api_server.replica());
    let mut record = read_known(&one).await;
    let mut outdated = read_known(&two).await;
    one.add_handover(&mut record, [String::from("prod/etcd")], handover("cordon/n")).await.unwrap();
    let late = two.add_handover(&mut outdated, [String::from("prod/etcd")], handover("cordon/n")).await;
    assert!(matches!(late, Err(WriteError::Conflict)), "one replica acts");

    let record = read_known(&two).await;
    assert!(record.has_signal("cordon/n") && record.active().is_empty());
    let protects = async |replica: &ReservationStore, uid: &str| {
        replica.read(Some(OURS)).await.unwrap().is_transferee(uid, Timestamp::now())
    };
    let state = async |replica: &ReservationStore| read_known(replica).await.handover_state("cordon/n");
    assert!(protects(&two, "b").await && !protects(&two, "a").await);
    assert_eq!(state(&two).await, Some(HandoverState::InProgress(HANDOVER_TTL)));
    tokio::time::advance(HANDOVER_TTL).await;
    assert!(!protects(&two, "b").await, "the lifetime ends on the clock of the replica");
    assert_eq!(
        state(&two).await,
        Some(HandoverState::Expired { term: 7 }),
        "the replica may have ended before the transfer"
    );
    let mut record = read_known(&two).await;
    let known = record.handovers.first().cloned().unwrap();
    two.add_handover(&mut record, [], Handover { ended: true, ..known }).await.unwrap();
    assert_eq!(state(&one).await, Some(HandoverState::Ended));
    assert!(!protects(&two, "b").await, "the end of a handover starts no other lifetime");
}

/// A replica that starts, or whose ledger was removed, has not seen the beginning of the handover.
#[tokio::test(start_paused = true)]
async fn outdated_handover_protects_no_pod_at_a_new_replica() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    let mut record = read_known(&replica).await;
    replica.add_handover(&mut record, [String::from("prod/etcd")], handover("cordon/n")).await.unwrap();
    let protects = async |seconds| {
        let time = Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
        api_server.replica().read(Some(OURS)).await.unwrap().is_transferee("b", time)
    };
    assert!(protects(50).await, "the clocks of two machines can differ");
    assert!(!protects(65).await);
}

#[tokio::test]
async fn reservations_and_handovers_survive_each_other() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    reserve(&replica, "a").await.unwrap();
    let mut record = read_known(&replica).await;
    replica.add_handover(&mut record, [String::from("prod/etcd")], handover("cordon/n")).await.unwrap();
    reserve(&replica, "c").await.unwrap();
    let record = read_known(&replica).await;
    assert_eq!(uids(&record.active()), ["a", "c"]);
    assert!(record.has_signal("cordon/n"));

    let mut records = replica.read_all().await.unwrap();
    let withdrawn = [String::from("cordon/n")];
    for record in records.with_signals(&withdrawn) {
        replica.remove_handovers(record, |signal| signal == "cordon/n").await.unwrap();
    }
    let record = read_known(&replica).await;
    assert!(!record.has_signal("cordon/n"));
    assert_eq!(uids(&record.active()), ["a", "c"]);
}

/// A replica of an earlier release reads and writes only the reservations.
#[tokio::test]
async fn earlier_release_drops_handovers_but_no_reservation() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    reserve(&replica, "a").await.unwrap();
    let mut record = read_known(&replica).await;
    replica.add_handover(&mut record, [String::from("prod/etcd")], handover("cordon/n")).await.unwrap();
    let name = lease_name(OURS);
    let text = api_server.annotation(&name, RESERVATIONS_ANNOTATION);
    let read_by_earlier: Vec<Reservation> = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert_eq!(uids(&read_by_earlier), ["a"], "a transferee is not a reserved pod");
    api_server.write(&name, json!({RESERVATIONS_ANNOTATION: text}));
    let record = read_known(&replica).await;
    assert_eq!(uids(&record.active()), ["a"]);
    assert!(!record.has_signal("cordon/n"));
}

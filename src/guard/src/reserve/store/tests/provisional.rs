//! The provisional record, and the records that evaluations read alone.

use super::*;

/// Edge case 172.
#[tokio::test]
async fn approval_without_cluster_id_is_reserved_for_all_evaluations() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let mut record = read_unknown(&one).await;
    one.add(&mut record, String::from("prod/ea"), reservation("a"), &[]).await.unwrap();
    let read = || async { other.read(Some(OURS)).await.unwrap() };
    assert_eq!(uids(&read().await.active()), ["a"], "the cluster has no other record");
    let mut record = other.select(read().await, OURS).unwrap().unwrap();
    other.add(&mut record, String::from("prod/eb"), reservation("b"), &live_pods(&["a", "b"])).await.unwrap();
    assert_eq!(uids(&read().await.active()), ["a", "b"], "the new record has all reservations");
}

/// Reads all records, and returns the one for an approval without the cluster id.
async fn read_unknown(replica: &ReservationStore) -> Record {
    replica.select_provisional(replica.read(None).await.unwrap()).unwrap().unwrap()
}

async fn add(replica: &ReservationStore, record: &mut Record, cluster: &str, uid: &str) -> bool {
    match replica.add(record, cluster.to_owned(), reservation(uid), &live_pods(&["a", "b"])).await {
        Ok(()) => true,
        Err(WriteError::Conflict) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Edge case 174.
#[tokio::test]
async fn provisional_and_new_record_of_a_cluster_conflict() {
    for is_provisional_first in [true, false] {
        let api_server = ApiServer::default();
        let (one, other) = (api_server.replica(), api_server.replica());
        let (mut provisional, mut new) = (read_unknown(&one).await, read_known(&other).await);
        if is_provisional_first {
            assert!(add(&one, &mut provisional, "prod/etcd", "a").await);
            assert!(!add(&other, &mut new, "prod/etcd", "b").await, "the provisional record is new");
            assert_eq!(uids(&other.read_active().await.unwrap()), ["a"], "the reservation is withdrawn");
        } else {
            assert!(add(&other, &mut new, "prod/etcd", "b").await);
            assert!(!add(&one, &mut provisional, "prod/etcd", "a").await, "the record of the cluster is new");
            assert_eq!(uids(&one.read_active().await.unwrap()), ["b"], "the reservation is withdrawn");
        }
        // Both evaluations restart, and find each other.
        let (mut one_record, mut other_record) = (read_unknown(&one).await, read_known(&other).await);
        assert!(add(&one, &mut one_record, "prod/etcd", "a").await);
        assert!(!add(&other, &mut other_record, "prod/etcd", "b").await, "both write the same record");
        assert!(add(&other, &mut read_known(&other).await, "prod/etcd", "b").await);
        let active = api_server.replica().read(Some(OURS)).await.unwrap().active();
        let reserved: BTreeSet<&str> = uids(&active).into_iter().collect();
        assert_eq!(reserved, BTreeSet::from(["a", "b"]));
    }
}

/// A decision without the cluster id does not depend on reservations.
#[tokio::test]
async fn evaluations_count_provisional_reservations_of_all_owners() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let (mut first, mut second) = (read_unknown(&one).await, read_unknown(&other).await);
    assert!(add(&one, &mut first, "prod/ea", "a").await);
    assert!(
        add(&other, &mut second, "prod/eb", "b").await,
        "it is added to the record that the other replica wrote"
    );
    let active = read_known(&other).await.active();
    assert_eq!(uids(&active).into_iter().collect::<BTreeSet<&str>>(), BTreeSet::from(["a", "b"]));
}

/// Edge case 177. The periodic deletion of stale records can remove the record of an evaluation in progress.
#[tokio::test]
async fn evaluation_does_not_create_a_deleted_record_again() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    complete_record(&other).await;
    let mut early = read_known(&other).await;
    api_server.leases.lock().unwrap().remove(&lease_name(OURS));
    assert!(add(&one, &mut read_unknown(&one).await, "team/etcd", "a").await);
    assert!(!add(&other, &mut early, "prod/etcd", "b").await, "it would be complete without the reservation");
    assert_eq!(uids(&other.read(Some(OURS)).await.unwrap().active()), ["a"]);
}

/// Writes a record of our cluster that evaluations read alone, and that does not contain the name of another owner.
async fn complete_record(replica: &ReservationStore) {
    for _ in 0..2 {
        assert!(add(replica, &mut read_known(replica).await, "prod/etcd", "old").await);
    }
    assert!(matches!(replica.read(Some(OURS)).await.unwrap(), Records::Known(OURS, _)), "it is complete");
}

/// Edge case 176.
#[tokio::test]
async fn evaluations_of_a_complete_record_find_later_provisional_reservations() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    complete_record(&other).await;
    let mut early = read_known(&other).await;
    assert!(add(&one, &mut read_unknown(&one).await, "team/etcd", "a").await);

    assert!(!add(&other, &mut early, "prod/etcd", "b").await, "its read is older than the reservation");
    let read = other.read(Some(OURS)).await.unwrap();
    assert_eq!(uids(&read.active()), ["old", "a"]);
    assert!(add(&other, &mut other.select(read, OURS).unwrap().unwrap(), "prod/etcd", "b").await);
    let late = api_server.replica().read(Some(OURS)).await.unwrap();
    assert!(matches!(late, Records::Known(OURS, _)), "the record is complete again");
    let active = late.active();
    let reserved: BTreeSet<&str> = uids(&active).into_iter().collect();
    assert_eq!(reserved, BTreeSet::from(["old", "a", "b"]));
}

/// Edge case 176.
#[tokio::test]
async fn provisional_reservation_conflicts_with_a_later_reservation_of_each_record() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    complete_record(&other).await;
    let mut provisional = read_unknown(&one).await;
    assert!(add(&other, &mut read_known(&other).await, "prod/etcd", "b").await);
    let elsewhere = Reservation { namespace: String::from("team"), ..reservation("a") };
    let conflict = one.add(&mut provisional, String::from("team/etcd"), elsewhere, &[]).await.unwrap_err();
    assert!(matches!(conflict, WriteError::Conflict), "{conflict}");
    assert_eq!(uids(&other.read(None).await.unwrap().active()), ["old", "b"], "it is withdrawn");
}

/// Edge case 176.
#[tokio::test]
async fn provisional_reservation_is_withdrawn_if_another_record_changes_at_the_same_time() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    complete_record(&other).await;
    let mut provisional = read_unknown(&one).await;
    // After the replica has compared the records, and before it changes them.
    let change = |reservations: &[Reservation]| {
        let reservations = serde_json::to_string(reservations).unwrap();
        let annotations = json!({RESERVATIONS_ANNOTATION: reservations, COMPLETE_ANNOTATION: "true"});
        *api_server.changes_after_list.lock().unwrap() = Some((lease_name(OURS), annotations));
    };
    change(&[reservation("b")]);
    assert!(!add(&one, &mut provisional, "team/etcd", "a").await);
    assert_eq!(uids(&other.read(None).await.unwrap().active()), ["b"], "it is withdrawn");

    let mut provisional = read_unknown(&one).await;
    change(&[reservation("b")]);
    assert!(add(&one, &mut provisional, "team/etcd", "a").await, "a change without a new reservation");
    assert_eq!(uids(&other.read(Some(OURS)).await.unwrap().active()), ["b", "a"]);
}

/// Edge case 176. Owners of the pods can have names that an earlier cluster had.
#[tokio::test]
async fn provisional_reservation_is_not_stored_in_the_record_of_an_earlier_cluster() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    complete_record(&other).await;
    assert!(add(&one, &mut read_unknown(&one).await, "prod/etcd", "a").await);
    let restored = other.read(Some(OTHER)).await.unwrap();
    let restored = other.select(restored, OTHER).unwrap().unwrap();
    assert_eq!(uids(&restored.active()), ["a"]);
}

/// The replica that creates the record of a cluster can end before it has read the provisional one again.
#[tokio::test]
async fn incomplete_record_is_read_with_the_provisional_one() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    assert!(add(&one, &mut read_unknown(&one).await, "prod/etcd", "a").await);
    let created = serde_json::to_string(&[reservation("b")]).unwrap();
    api_server.write("etcd-guard.c1", json!({RESERVATIONS_ANNOTATION: created}));
    assert_eq!(uids(&other.read(Some(OURS)).await.unwrap().active()), ["b", "a"]);
    assert!(add(&other, &mut read_known(&other).await, "prod/etcd", "b").await);
    let late = api_server.replica();
    assert!(matches!(late.read(Some(OURS)).await.unwrap(), Records::Known(OURS, _)), "it is complete");
    assert_eq!(uids(&late.read(Some(OURS)).await.unwrap().active()), ["a", "b"]);
}

/// Edge case 174. A first evaluation has read only the provisional record, and creates the record of the cluster.
#[tokio::test]
async fn provisional_reservation_during_a_first_evaluation_conflicts() {
    for is_before_create in [true, false] {
        let api_server = ApiServer::default();
        let (one, other) = (api_server.replica(), api_server.replica());
        let mut provisional = read_unknown(&one).await;
        let Records::Provisional(read) = other.read_provisional().await.unwrap() else { panic!() };
        assert_eq!(read.active(), []);
        if is_before_create {
            assert!(add(&one, &mut provisional, "prod/etcd", "a").await);
        }
        let mut new = other.new_record(read, OURS).await.unwrap().expect("the cluster has no record");
        let is_stored = add(&other, &mut new, "prod/etcd", "b").await;
        assert_eq!(is_stored, !is_before_create, "the provisional reservation is new");
        if !is_before_create {
            assert!(!add(&one, &mut provisional, "prod/etcd", "a").await, "the record of the cluster is new");
        }
        let expected = if is_before_create { "a" } else { "b" };
        assert_eq!(uids(&one.read_active().await.unwrap()), [expected], "the other one is withdrawn");
    }
}

#[tokio::test]
async fn first_evaluation_counts_earlier_provisional_reservations() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    assert!(add(&one, &mut read_unknown(&one).await, "prod/etcd", "a").await);
    let read = other.read_provisional().await.unwrap();
    assert_eq!(uids(&read.active()), ["a"]);
    let Records::Provisional(read) = read else { panic!() };
    let mut new = other.new_record(read, OURS).await.unwrap().expect("the cluster has no record");
    assert!(add(&other, &mut new, "prod/etcd", "b").await);
    assert_eq!(uids(&other.read(Some(OURS)).await.unwrap().active()), ["a", "b"]);
}

/// The reservations of an existing record can have ended between the probe round and its first read.
#[tokio::test]
async fn record_that_exists_is_read_before_the_probe_round() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let Records::Provisional(read) = other.read_provisional().await.unwrap() else { panic!() };
    reserve(&one, "a").await.unwrap();
    assert!(other.new_record(read, OURS).await.unwrap().is_none());
    let provisional = other.read_provisional().await.unwrap();
    assert!(other.select(provisional, OURS).unwrap().is_none(), "the record was not read");
    let provisional = other.read_provisional().await.unwrap();
    assert!(other.select_provisional(provisional).unwrap().is_none(), "nor the others");
}

/// The writer of a provisional reservation changes the record of the cluster after the provisional one. If the evaluation read the
/// provisional record first, it could miss the reservation and write the changed record.
#[tokio::test]
async fn provisional_reservation_between_two_reads_causes_a_conflict() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    reserve(&replica, "old").await.unwrap();
    let old = api_server.annotation("etcd-guard.c1", RESERVATIONS_ANNOTATION);
    let new = serde_json::to_string(&[reservation("a")]).unwrap();
    *api_server.changes_after_get.lock().unwrap() = vec![
        (PROVISIONAL_NAME.to_owned(), json!({RESERVATIONS_ANNOTATION: new})),
        (
            lease_name(OURS),
            json!({RESERVATIONS_ANNOTATION: old, INVALIDATED_ANNOTATION: "etcd-guard.unknown 1"}),
        ),
    ];
    let mut record = read_known(&replica).await;
    assert_eq!(uids(&record.active()), ["old", "a"]);
    assert!(!add(&replica, &mut record, "prod/etcd", "b").await, "the record has changed");
}

/// Another replica can write the provisional record between a reservation and its withdrawal.
#[tokio::test]
async fn withdrawal_removes_only_the_own_reservation() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    complete_record(&other).await;
    assert!(add(&one, &mut read_unknown(&one).await, "team/a", "c").await);
    assert!(add(&one, &mut read_unknown(&one).await, "team/etcd", "a").await);
    let mut provisional = read_unknown(&one).await;
    assert!(add(&other, &mut read_known(&other).await, "prod/etcd", "b").await);
    *api_server.changes_after_list.lock().unwrap() = Some((PROVISIONAL_NAME.to_owned(), Value::Null));
    assert!(!add(&one, &mut provisional, "team/etcd", "d").await, "the record of the cluster is new");
    let stored = read_unknown(&one).await;
    assert_eq!(uids(&stored.active()), ["a", "c"], "d is withdrawn");
}

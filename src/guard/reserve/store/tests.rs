//! Content of the shared records, and the reservations that are active.

mod handovers;

use std::collections::{BTreeMap, BTreeSet};

use prometheus_client::encoding::text::encode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::guard::reserve::ledger::RESERVATION_TTL;
use crate::k8s::fake;

/// Leases by name, each with its resource version.
type Stored = Arc<Mutex<BTreeMap<String, u32>>>;

/// Returns the Leases of an API server. After a Lease `new` exists, another client writes to `late` after each list.
fn leases(stored: &Stored) -> Leases {
    const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases";
    let stored = Arc::clone(stored);
    let client = fake::api_server_with(move |call, body| {
        let mut stored = stored.lock().unwrap();
        let name = call.uri.path().strip_prefix(PATH).unwrap().trim_start_matches('/');
        match (call.method.as_str(), name) {
            ("GET", "") => {
                assert!(call.uri.query().unwrap().contains("labelSelector="), "{}", call.uri);
                let lease = |(name, version): (&String, &u32)| {
                    let version = version.to_string();
                    // An annotation that another cluster's provisional reservation changed is no use of the record.
                    let annotations = match name.as_str() {
                        "marked" => json!({INVALIDATED_ANNOTATION: version}),
                        _ => json!({RESERVATIONS_ANNOTATION: version}),
                    };
                    json!({"metadata": {"name": name, "resourceVersion": version, "annotations": annotations}})
                };
                let items: Vec<_> = stored.iter().map(lease).collect();
                if stored.contains_key("new") {
                    stored.entry(String::from("late")).and_modify(|version| *version += 1);
                }
                (200, json!({"metadata": {}, "items": items}))
            }
            ("DELETE", name) => {
                let version = &body["preconditions"]["resourceVersion"];
                if !version.is_null() && *version != json!(stored[name].to_string()) {
                    return (409, fake::status_failure(409, "the object has been modified"));
                }
                stored.remove(name);
                (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
            }
            (method, _) => panic!("{method} {}", call.uri),
        }
    });
    Leases::new(client, "etcd-guard")
}

#[tokio::test(start_paused = true)]
async fn deletes_only_records_that_did_not_change() {
    let leases_named = |names: &[&str]| -> BTreeMap<String, u32> {
        names.iter().map(|name| ((*name).to_owned(), 1)).collect()
    };
    let stored: Stored = Arc::new(Mutex::new(leases_named(&["dead", "live", "late", "marked"])));
    let names = || stored.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    let reservations = ReservationStore::new(leases(&stored), WallClock::default());
    let mut clearing = std::pin::pin!(reservations.delete_stale_records());
    let margin = Duration::from_secs(1);

    timeout(STALE_RECORD_INTERVAL + margin, &mut clearing).await.unwrap_err();
    assert_eq!(names(), ["dead", "late", "live", "marked"], "a record at its first read may be new");
    for changed in ["live", "marked"] {
        *stored.lock().unwrap().get_mut(changed).unwrap() += 1;
    }
    stored.lock().unwrap().insert(String::from("new"), 1);

    timeout(STALE_RECORD_INTERVAL, &mut clearing).await.unwrap_err();
    assert_eq!(names(), ["late", "live", "new"]);

    timeout(STALE_RECORD_INTERVAL, &mut clearing).await.unwrap_err();
    assert_eq!(names(), ["late"]);
}

fn reservation(uid: &str) -> Reservation {
    Reservation {
        uid: uid.to_owned(),
        namespace: String::from("prod"),
        pod: String::from("etcd-0"),
        member: String::new(),
        at: String::new(),
        by: String::new(),
        of_node: false,
    }
}

#[tokio::test(start_paused = true)]
async fn gauge_counts_active_reservations_of_all_records() {
    let ledgers = Ledgers(ExpiringCache::new(MAX_LEDGERS, Lifetime::SinceUse(CLUSTER_TTL)));
    let mut registry = Registry::with_prefix("etcd_guard");
    registry.register_collector(Box::new(ledgers.clone()));
    let shown = || {
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        let line = page.lines().find(|line| line.starts_with("etcd_guard_reservations ")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(shown(), "0");
    let observe = |name: &str, record: &[Reservation]| {
        let ledger = ledgers.0.get_or_default(name).0;
        lock(&ledger).observe(record, Instant::now());
    };
    observe("a", &[reservation("1"), reservation("2")]);
    observe("b", &[reservation("3")]);
    assert_eq!(shown(), "3");
    observe("a", &[reservation("2")]);
    assert_eq!(shown(), "2");
    tokio::time::advance(RESERVATION_TTL).await;
    assert_eq!(shown(), "0");
}

/// The Leases of an API server, which several replicas can share.
#[derive(Clone, Default)]
struct ApiServer {
    /// Version and annotations by name.
    leases: Arc<Mutex<BTreeMap<String, (u32, Value)>>>,
    /// Another client writes these annotations to the Lease of this name once, after the next list.
    changes_after_list: Arc<Mutex<Option<(String, Value)>>>,
}

impl ApiServer {
    /// Returns the store of a replica that uses these Leases.
    fn replica(&self) -> ReservationStore {
        const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases";
        let (stored, changed) = (Arc::clone(&self.leases), Arc::clone(&self.changes_after_list));
        let client = fake::api_server_with(move |call, body| {
            let mut stored = stored.lock().unwrap();
            let lease = |name: &str, (version, annotations): &(u32, Value)| json!({"metadata": {"name": name, "uid": name, "resourceVersion": version.to_string(), "annotations": annotations}});
            let name = call.uri.path().strip_prefix(PATH).unwrap().trim_start_matches('/');
            let present = stored.get(name).cloned();
            let annotations = body["metadata"]["annotations"].clone();
            match (call.method.as_str(), present) {
                ("GET", _) if name.is_empty() => {
                    let items: Vec<_> = stored.iter().map(|(name, stored)| lease(name, stored)).collect();
                    if let Some((name, annotations)) = changed.lock().unwrap().take() {
                        let version = stored[&name].0 + 1;
                        stored.insert(name, (version, annotations));
                    }
                    (200, json!({"metadata": {}, "items": items}))
                }
                ("GET", Some(present)) => (200, lease(name, &present)),
                ("POST", _) => {
                    let name = body["metadata"]["name"].as_str().unwrap();
                    if stored.contains_key(name) {
                        return (409, fake::status_failure(409, "already exists"));
                    }
                    stored.insert(name.to_owned(), (1, annotations));
                    (201, lease(name, &stored[name]))
                }
                // The API server creates a Lease by an update without a uid.
                ("PUT", None) if body["metadata"]["uid"].is_null() => {
                    stored.insert(name.to_owned(), (1, annotations));
                    (201, lease(name, &stored[name]))
                }
                ("PUT", None) => (409, fake::status_failure(409, "the uid differs")),
                ("PUT", Some((version, _))) => {
                    if body["metadata"]["resourceVersion"].as_str() != Some(&*version.to_string()) {
                        return (409, fake::status_failure(409, "the object has been modified"));
                    }
                    stored.insert(name.to_owned(), (version + 1, annotations));
                    (200, lease(name, &stored[name]))
                }
                _ => {
                    let mut nothing = fake::status_failure(404, "not found");
                    nothing["reason"] = json!("NotFound");
                    (404, nothing)
                }
            }
        });
        ReservationStore::new(Leases::new(client, "etcd-guard"), WallClock::default())
    }

    fn write(&self, name: &str, annotations: Value) {
        self.leases.lock().unwrap().insert(name.to_owned(), (1, annotations));
    }

    fn annotation(&self, name: &str, key: &str) -> Value {
        self.leases.lock().unwrap()[name].1[key].clone()
    }
}

const OURS: ClusterId = ClusterId(0xc1);
const OTHER: ClusterId = ClusterId(0xc2);

fn live_pods<'a>(uids: &[&'a str]) -> Vec<LivePod<'a>> {
    uids.iter().map(|uid| LivePod { name: "etcd-0", uid }).collect()
}

fn uids(reservations: &[Reservation]) -> Vec<&str> {
    reservations.iter().map(|reservation| reservation.uid.as_str()).collect()
}

/// Reads the record of the known cluster.
async fn read_known(replica: &ReservationStore) -> Record {
    let records = replica.read(Some(OURS)).await.unwrap();
    replica.select(records, OURS).unwrap().expect("the record that was read")
}

async fn reserve(replica: &ReservationStore, uid: &str) -> Result<(), WriteError> {
    let mut record = read_known(replica).await;
    replica.add(&mut record, String::from("prod/etcd"), reservation(uid), &live_pods(&[uid])).await
}

#[tokio::test]
async fn other_replicas_read_a_reservation() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    assert_eq!(one.read(Some(OURS)).await.unwrap().active(), []);
    reserve(&one, "a").await.unwrap();
    assert_eq!(uids(&other.read(Some(OURS)).await.unwrap().active()), ["a"]);
    assert_eq!(uids(&other.read(None).await.unwrap().active()), ["a"]);
    assert_eq!(uids(&other.read_active().await.unwrap()), ["a"]);
    let records = other.read(Some(OTHER)).await.unwrap();
    assert_eq!(other.select(records, OTHER).unwrap().unwrap().active(), [], "a record per cluster");
    assert_eq!(api_server.annotation("etcd-guard.c1", CLUSTER_ANNOTATION), "prod/etcd");
}

#[tokio::test]
async fn second_write_of_the_same_version_conflicts() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    for (first, second) in [("a", "b"), ("c", "d")] {
        let (mut early, mut late) = (read_known(&one).await, read_known(&other).await);
        let cluster = || String::from("prod/etcd");
        one.add(&mut early, cluster(), reservation(first), &[]).await.unwrap();
        let conflict = other.add(&mut late, cluster(), reservation(second), &[]).await.unwrap_err();
        assert!(matches!(conflict, WriteError::Conflict), "{conflict}");
    }
    assert_eq!(uids(&other.read_active().await.unwrap()), ["a", "c"]);
}

#[tokio::test]
async fn cancels_only_the_reservation_of_the_pod() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    reserve(&replica, "a").await.unwrap();
    let mut record = read_known(&replica).await;
    let new = reservation("b");
    replica.add(&mut record, String::from("prod/etcd"), new, &live_pods(&["a", "b"])).await.unwrap();
    assert_eq!(uids(&record.active()), ["a", "b"]);
    replica.cancel(&mut record, "prod", "b", &live_pods(&["a", "b"])).await.unwrap();
    assert_eq!(uids(&record.active()), ["a"]);
    assert_eq!(uids(&replica.read_active().await.unwrap()), ["a"]);
    assert_eq!(api_server.annotation("etcd-guard.c1", CLUSTER_ANNOTATION), "prod/etcd", "the owner remains");
}

/// Edge case 43.
#[tokio::test(start_paused = true)]
async fn reservation_expires_by_the_clock_of_each_replica() {
    let api_server = ApiServer::default();
    let (one, late) = (api_server.replica(), api_server.replica());
    reserve(&one, "a").await.unwrap();
    tokio::time::advance(RESERVATION_TTL).await;
    assert_eq!(one.read_active().await.unwrap(), []);
    assert_eq!(one.read(Some(OURS)).await.unwrap().active(), []);
    assert_eq!(uids(&late.read_active().await.unwrap()), ["a"], "its first read starts the lifetime");
    // Both reads expire: of one record, and of all records.
    for known in [Some(OURS), None] {
        let replica = api_server.replica();
        let records = replica.read(known).await.unwrap();
        drop(replica.select(records, OURS).unwrap());
        tokio::time::advance(RESERVATION_TTL).await;
        assert_eq!(replica.read(Some(OURS)).await.unwrap().active(), [], "{known:?}");
    }
}

/// A ledger that is dropped starts the lifetimes of its reservations again, so that they would never expire.
#[tokio::test(start_paused = true)]
async fn reservations_of_thousands_of_clusters_expire() {
    const CLUSTERS: u64 = 5000;
    let api_server = ApiServer::default();
    for id in 0..CLUSTERS {
        let reservations = serde_json::to_string(&[reservation(&id.to_string())]).unwrap();
        api_server.write(&lease_name(ClusterId(id)), json!({RESERVATIONS_ANNOTATION: reservations}));
    }
    let replica = api_server.replica();
    let active = async || replica.read_active().await.unwrap().len();
    assert_eq!(u64::try_from(active().await), Ok(CLUSTERS));
    tokio::time::advance(RESERVATION_TTL / 2).await;
    assert_eq!(u64::try_from(active().await), Ok(CLUSTERS));
    tokio::time::advance(RESERVATION_TTL / 2).await;
    assert_eq!(active().await, 0);
}

#[tokio::test]
async fn finds_record_by_cluster_id() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    // Only the second write completes the record, which evaluations read alone from then on.
    for _ in 0..2 {
        reserve(&replica, "a").await.unwrap();
    }
    let all = || async { replica.read(None).await.unwrap() };
    let ours = replica.select(all().await, OURS).unwrap().unwrap();
    assert_eq!(uids(&ours.active()), ["a"]);
    let mut new = replica.select(all().await, OTHER).unwrap().expect("a cluster without a record gets one");
    assert_eq!(new.active(), []);
    replica.add(&mut new, String::from("prod/other"), reservation("b"), &[]).await.unwrap();
    let created = replica.select(replica.read(Some(OTHER)).await.unwrap(), OTHER).unwrap().unwrap();
    assert_eq!(uids(&created.active()), ["b"]);
    let provisional = replica.select_provisional(all().await, "prod/etcd").unwrap().unwrap();
    assert_eq!(provisional.active(), [], "the records of clusters are not selected by names");
    let known = || async { replica.read(Some(OURS)).await.unwrap() };
    assert!(replica.select(known().await, OTHER).unwrap().is_none(), "the record was not read");
    assert!(replica.select_provisional(known().await, "prod/etcd").unwrap().is_none(), "nor the others");
}

/// Edge case 172.
#[tokio::test]
async fn approval_without_cluster_id_is_reserved_for_all_evaluations() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let mut record = read_by_name(&one, "prod/ea").await;
    one.add(&mut record, String::from("prod/ea"), reservation("a"), &[]).await.unwrap();
    let read = || async { other.read(Some(OURS)).await.unwrap() };
    assert_eq!(uids(&read().await.active()), ["a"], "the cluster has no other record");
    let mut record = other.select(read().await, OURS).unwrap().unwrap();
    other.add(&mut record, String::from("prod/eb"), reservation("b"), &live_pods(&["a", "b"])).await.unwrap();
    assert_eq!(uids(&read().await.active()), ["a", "b"], "the new record has all reservations");
}

/// Reads all records, and returns the one for an approval without the cluster id.
async fn read_by_name(replica: &ReservationStore, cluster: &str) -> Record {
    replica.select_provisional(replica.read(None).await.unwrap(), cluster).unwrap().unwrap()
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
        let (mut provisional, mut new) = (read_by_name(&one, "prod/etcd").await, read_known(&other).await);
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
        let (mut one_record, mut other_record) =
            (read_by_name(&one, "prod/etcd").await, read_known(&other).await);
        assert!(add(&one, &mut one_record, "prod/etcd", "a").await);
        assert!(!add(&other, &mut other_record, "prod/etcd", "b").await, "both write the same record");
        assert!(add(&other, &mut read_known(&other).await, "prod/etcd", "b").await);
        let active = api_server.replica().read(Some(OURS)).await.unwrap().active();
        let reserved: BTreeSet<&str> = uids(&active).into_iter().collect();
        assert_eq!(reserved, BTreeSet::from(["a", "b"]));
    }
}

/// Both pods are stopped, so that neither approval depends on the other one.
#[tokio::test]
async fn evaluations_count_provisional_reservations_of_all_owners() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let (mut first, mut second) =
        (read_by_name(&one, "prod/ea").await, read_by_name(&other, "prod/eb").await);
    assert!(add(&one, &mut first, "prod/ea", "a").await);
    assert!(add(&other, &mut second, "prod/eb", "b").await);
    let active = read_known(&other).await.active();
    assert_eq!(uids(&active).into_iter().collect::<BTreeSet<&str>>(), BTreeSet::from(["a", "b"]));
}

/// The periodic deletion of stale records can remove the record of an evaluation in progress.
#[tokio::test]
async fn evaluation_does_not_create_a_deleted_record_again() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    complete_record(&other).await;
    let mut early = read_known(&other).await;
    api_server.leases.lock().unwrap().remove(&lease_name(OURS));
    assert!(add(&one, &mut read_by_name(&one, "team/etcd").await, "team/etcd", "a").await);
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
    assert!(add(&one, &mut read_by_name(&one, "team/etcd").await, "team/etcd", "a").await);

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
    let mut provisional = read_by_name(&one, "team/etcd").await;
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
    let mut provisional = read_by_name(&one, "team/etcd").await;
    // After the replica has compared the records, and before it changes them.
    let change = |reservations: &[Reservation]| {
        let reservations = serde_json::to_string(reservations).unwrap();
        let annotations = json!({RESERVATIONS_ANNOTATION: reservations, COMPLETE_ANNOTATION: "true"});
        *api_server.changes_after_list.lock().unwrap() = Some((lease_name(OURS), annotations));
    };
    change(&[reservation("b")]);
    assert!(!add(&one, &mut provisional, "team/etcd", "a").await);
    assert_eq!(uids(&other.read(None).await.unwrap().active()), ["b"], "it is withdrawn");

    let mut provisional = read_by_name(&one, "team/etcd").await;
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
    assert!(add(&one, &mut read_by_name(&one, "prod/etcd").await, "prod/etcd", "a").await);
    let restored = other.read(Some(OTHER)).await.unwrap();
    let restored = other.select(restored, OTHER).unwrap().unwrap();
    assert_eq!(uids(&restored.active()), ["a"]);
}

/// The replica that creates the record of a cluster can end before it has read the provisional ones again.
#[tokio::test]
async fn incomplete_record_is_read_with_provisional_ones() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    assert!(add(&one, &mut read_by_name(&one, "prod/etcd").await, "prod/etcd", "a").await);
    let created = serde_json::to_string(&[reservation("b")]).unwrap();
    api_server.write("etcd-guard.c1", json!({RESERVATIONS_ANNOTATION: created}));
    assert_eq!(uids(&other.read(Some(OURS)).await.unwrap().active()), ["b", "a"]);
    assert!(add(&other, &mut read_known(&other).await, "prod/etcd", "b").await);
    let late = api_server.replica();
    assert!(matches!(late.read(Some(OURS)).await.unwrap(), Records::Known(OURS, _)), "it is complete");
    assert_eq!(uids(&late.read(Some(OURS)).await.unwrap().active()), ["a", "b"]);
}

#[tokio::test]
async fn invalid_record_affects_only_its_own_cluster() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    api_server.write("etcd-guard.c2", json!({RESERVATIONS_ANNOTATION: "not JSON"}));
    reserve(&replica, "a").await.unwrap();
    let assert_names_lease = |error: LookupError| {
        let text = error.to_string();
        assert!(text.contains("Lease etcd-guard.c2") && text.contains("delete the Lease"), "{text}");
    };
    let all = || async { replica.read(None).await.unwrap() };
    assert_eq!(uids(&all().await.active()), ["a"]);
    assert_eq!(uids(&replica.select(all().await, OURS).unwrap().unwrap().active()), ["a"]);
    assert_names_lease(replica.select(all().await, OTHER).err().unwrap());
    assert_names_lease(replica.read(Some(OTHER)).await.err().unwrap());
    assert_names_lease(replica.read_active().await.unwrap_err());
    assert_names_lease(replica.select_provisional(all().await, "prod/etcd").err().unwrap());
    let provisional = provisional_name("prod/etcd");
    api_server.write(&provisional, json!({RESERVATIONS_ANNOTATION: "not JSON"}));
    let error = replica.select(all().await, OURS).err().unwrap().to_string();
    assert!(
        error.contains(&format!("Lease {provisional}")),
        "it can contain a reservation of each cluster: {error}"
    );
}

#[tokio::test]
async fn records_can_be_newer_than_a_list_without_reserved_pod() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    reserve(&replica, "a").await.unwrap();
    for known in [Some(OURS), None] {
        let records = api_server.replica().read(known).await.unwrap();
        assert!(records.may_be_newer_than("prod", &[]));
        records.observe_pods("other", &[]);
        records.observe_pods("prod", &live_pods(&["a"]));
        assert!(records.may_be_newer_than("prod", &[]), "the reservation is active");
        assert!(
            !records.may_be_newer_than("prod", &live_pods(&["a"]))
                && !records.may_be_newer_than("other", &[])
        );
    }
    let records = replica.read(Some(OURS)).await.unwrap();
    records.observe_pods("prod", &live_pods(&["b"]));
    assert!(!records.may_be_newer_than("prod", &live_pods(&["b"])), "the pod is gone");
}

#[tokio::test(start_paused = true)]
async fn gauges_show_number_and_age_of_reservations() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    let mut registry = Registry::with_prefix("etcd_guard");
    replica.register(&mut registry);
    let shown = || {
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        let is_told = |line: &&str| !line.starts_with('#');
        page.lines().filter(is_told).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(shown(), ["etcd_guard_reservations 0", "etcd_guard_longest_reservation_seconds 0.0"]);
    reserve(&replica, "a").await.unwrap();
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(shown(), ["etcd_guard_reservations 1", "etcd_guard_longest_reservation_seconds 20.0"]);
}

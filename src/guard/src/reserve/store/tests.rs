//! Content of the shared records, and the reservations that are active.

mod handovers;
mod provisional;

use std::collections::{BTreeMap, BTreeSet};

use prometheus_client::encoding::text::encode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{provisional::INVALIDATED_ANNOTATION, record::PROVISIONAL_NAME, *};
use etcd_guard_core::ledger::RESERVATION_TTL;
use etcd_guard_kubernetes::fake;

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
    /// Another client writes these annotations to the Lease of this name once, after the next list. `null`: the same annotations.
    changes_after_list: Arc<Mutex<Option<(String, Value)>>>,
    /// Another client writes these annotations to the Leases of these names once, after the next read of a single Lease.
    changes_after_get: Arc<Mutex<Vec<(String, Value)>>>,
    /// Method and Lease of each call.
    calls: Arc<Mutex<Vec<String>>>,
}

impl ApiServer {
    /// Returns the store of a replica that uses these Leases.
    fn replica(&self) -> ReservationStore {
        const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases";
        let (stored, changed) = (Arc::clone(&self.leases), Arc::clone(&self.changes_after_list));
        let (calls, changed_after_get) = (Arc::clone(&self.calls), Arc::clone(&self.changes_after_get));
        let client = fake::api_server_with(move |call, body| {
            let mut stored = stored.lock().unwrap();
            let lease = |name: &str, (version, annotations): &(u32, Value)| json!({"metadata": {"name": name, "uid": name, "resourceVersion": version.to_string(), "annotations": annotations}});
            let name = call.uri.path().strip_prefix(PATH).unwrap().trim_start_matches('/');
            calls.lock().unwrap().push(format!("{} {name}", call.method));
            let present = stored.get(name).cloned();
            if call.method == "GET" && !name.is_empty() {
                for (name, annotations) in changed_after_get.lock().unwrap().drain(..) {
                    let version = stored.get(&name).map_or(1, |(version, _)| version + 1);
                    stored.insert(name, (version, annotations));
                }
            }
            let annotations = body["metadata"]["annotations"].clone();
            match (call.method.as_str(), present) {
                ("GET", _) if name.is_empty() => {
                    let items: Vec<_> = stored.iter().map(|(name, stored)| lease(name, stored)).collect();
                    if let Some((name, annotations)) = changed.lock().unwrap().take() {
                        let (version, known) = stored[&name].clone();
                        let annotations = if annotations.is_null() { known } else { annotations };
                        stored.insert(name, (version + 1, annotations));
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

/// The reason for the size of [`MAX_LEDGERS`]: with more records than ledgers, each list starts the lifetimes of some
/// reservations again.
#[tokio::test(start_paused = true)]
async fn reservations_beyond_the_limit_of_ledgers_do_not_expire() {
    // moka evicts entries in batches of 64.
    const LIMIT: u64 = 100;
    const CLUSTERS: u64 = 10 * LIMIT;
    let api_server = ApiServer::default();
    for id in 0..CLUSTERS {
        let reservations = serde_json::to_string(&[reservation(&id.to_string())]).unwrap();
        api_server.write(&lease_name(ClusterId(id)), json!({RESERVATIONS_ANNOTATION: reservations}));
    }
    let mut replica = api_server.replica();
    replica.ledgers = Ledgers(ExpiringCache::new(LIMIT, Lifetime::SinceUse(CLUSTER_TTL)));
    for _ in 0..5 {
        let active = u64::try_from(replica.read_active().await.unwrap().len()).unwrap();
        assert!(active > CLUSTERS / 2, "{active} of {CLUSTERS}");
        tokio::time::advance(RESERVATION_TTL).await;
    }
    // Fewer records than the limit expire.
    for id in LIMIT / 2..CLUSTERS {
        api_server.leases.lock().unwrap().remove(&lease_name(ClusterId(id)));
    }
    replica.read_active().await.unwrap();
    tokio::time::advance(RESERVATION_TTL).await;
    assert_eq!(replica.read_active().await.unwrap(), []);
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
    let provisional = replica.select_provisional(all().await).unwrap().unwrap();
    assert_eq!(provisional.active(), [], "the records of clusters are other records");
    let known = || async { replica.read(Some(OURS)).await.unwrap() };
    assert!(replica.select(known().await, OTHER).unwrap().is_none(), "the record was not read");
    assert!(replica.select_provisional(known().await).unwrap().is_none(), "nor the others");
}

/// The number of calls does not depend on the number of clusters with a record.
#[tokio::test]
async fn evaluations_list_records_only_without_a_cluster_id() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    let calls = || std::mem::take(&mut *api_server.calls.lock().unwrap());
    let Records::Provisional(provisional) = replica.read_provisional().await.unwrap() else { panic!() };
    let mut new = replica.new_record(provisional, OURS).await.unwrap().expect("the cluster has no record");
    assert_eq!(calls(), ["GET etcd-guard.unknown", "GET etcd-guard.c1"]);
    replica.add(&mut new, String::from("prod/etcd"), reservation("a"), &[]).await.unwrap();
    assert_eq!(calls(), ["POST ", "GET etcd-guard.unknown"]);
    reserve(&replica, "b").await.unwrap();
    assert_eq!(calls(), ["GET etcd-guard.c1", "GET etcd-guard.unknown", "PUT etcd-guard.c1"]);
    reserve(&replica, "c").await.unwrap();
    assert_eq!(calls(), ["GET etcd-guard.c1", "PUT etcd-guard.c1"]);
    replica.read(None).await.unwrap();
    assert_eq!(calls(), ["GET "]);
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
    assert_names_lease(replica.select_provisional(all().await).err().unwrap());
    api_server.write(PROVISIONAL_NAME, json!({RESERVATIONS_ANNOTATION: "not JSON"}));
    for error in [
        replica.select(all().await, OURS).err().unwrap(),
        replica.read_provisional().await.err().unwrap(),
        api_server.replica().read(Some(OURS)).await.err().unwrap(),
    ] {
        let error = error.to_string();
        assert!(
            error.contains(&format!("Lease {PROVISIONAL_NAME}")),
            "it can contain a reservation of each cluster: {error}"
        );
    }
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

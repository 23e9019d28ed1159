//! What stands in the shared records, and what of it counts.

use std::collections::BTreeMap;

use prometheus_client::encoding::text::encode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{super::ledger::RESERVATION_LIFE, *};
use crate::k8s::fake;

/// Leases by name, each with its resource version.
type Stored = Arc<Mutex<BTreeMap<String, u32>>>;

/// An apiserver with these Leases. Once there is one called `new`, somebody writes to `late` right
/// after each list.
fn leases(stored: &Stored) -> Leases {
    const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases";
    let stored = Arc::clone(stored);
    let client = fake::served_by(move |call, body| {
        let mut stored = stored.lock().unwrap();
        let name = call.uri.path().strip_prefix(PATH).unwrap().trim_start_matches('/');
        match (call.method.as_str(), name) {
            ("GET", "") => {
                assert!(call.uri.query().unwrap().contains("labelSelector="), "{}", call.uri);
                let lease = |(name, version): (&String, &u32)| json!({"metadata": {"name": name, "resourceVersion": version.to_string()}});
                let items: Vec<_> = stored.iter().map(lease).collect();
                if stored.contains_key("new") {
                    stored.entry(String::from("late")).and_modify(|version| *version += 1);
                }
                (200, json!({"metadata": {}, "items": items}))
            }
            ("DELETE", name) => {
                let version = &body["preconditions"]["resourceVersion"];
                if !version.is_null() && *version != json!(stored[name].to_string()) {
                    return (409, fake::failure(409, "the object has been modified"));
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
async fn a_record_that_does_not_change_for_long_is_cleared_away_and_no_other() {
    let of = |names: &[&str]| -> BTreeMap<String, u32> {
        names.iter().map(|name| ((*name).to_owned(), 1)).collect()
    };
    let stored: Stored = Arc::new(Mutex::new(of(&["dead", "living", "late"])));
    let names = || stored.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    let reservations = Reservations::new(leases(&stored));
    let mut clearing = std::pin::pin!(reservations.clear_away());
    let a_moment = Duration::from_secs(1);

    timeout(UNCHANGED_FOR + a_moment, &mut clearing).await.unwrap_err();
    assert_eq!(names(), ["dead", "late", "living"], "what is seen for the first time may be new");
    *stored.lock().unwrap().get_mut("living").unwrap() += 1;
    stored.lock().unwrap().insert(String::from("new"), 1);

    timeout(UNCHANGED_FOR, &mut clearing).await.unwrap_err();
    assert_eq!(names(), ["late", "living", "new"]);

    timeout(UNCHANGED_FOR, &mut clearing).await.unwrap_err();
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
    }
}

#[tokio::test(start_paused = true)]
async fn the_gauge_counts_what_lives_in_all_records_and_forgets_what_has_expired() {
    let ledgers = Ledgers(Cache::builder().build());
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
        let ledger = ledgers.0.get_with(name.to_owned(), Arc::default);
        lock(&ledger).observe(record, Instant::now());
    };
    observe("a", &[reservation("1"), reservation("2")]);
    observe("b", &[reservation("3")]);
    assert_eq!(shown(), "3");
    observe("a", &[reservation("2")]);
    assert_eq!(shown(), "2");
    tokio::time::advance(RESERVATION_LIFE).await;
    assert_eq!(shown(), "0");
}

/// The Leases of an apiserver, which several replicas may share: by name, the version and the annotations.
#[derive(Clone, Default)]
struct Apiserver(Arc<Mutex<BTreeMap<String, (u32, Value)>>>);

impl Apiserver {
    /// A replica of the guard that writes here.
    fn replica(&self) -> Reservations {
        const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases";
        let stored = Arc::clone(&self.0);
        let client = fake::served_by(move |call, body| {
            let mut stored = stored.lock().unwrap();
            let lease = |name: &str, (version, annotations): &(u32, Value)| json!({"metadata": {"name": name, "resourceVersion": version.to_string(), "annotations": annotations}});
            let name = call.uri.path().strip_prefix(PATH).unwrap().trim_start_matches('/');
            let present = stored.get(name).cloned();
            let annotations = body["metadata"]["annotations"].clone();
            match (call.method.as_str(), present) {
                ("GET", _) if name.is_empty() => {
                    let items: Vec<_> = stored.iter().map(|(name, it)| lease(name, it)).collect();
                    (200, json!({"metadata": {}, "items": items}))
                }
                ("GET", Some(present)) => (200, lease(name, &present)),
                ("POST", _) => {
                    let name = body["metadata"]["name"].as_str().unwrap();
                    if stored.contains_key(name) {
                        return (409, fake::failure(409, "already exists"));
                    }
                    stored.insert(name.to_owned(), (1, annotations));
                    (201, lease(name, &stored[name]))
                }
                ("PUT", Some((version, _))) => {
                    if body["metadata"]["resourceVersion"].as_str() != Some(&*version.to_string()) {
                        return (409, fake::failure(409, "the object has been modified"));
                    }
                    stored.insert(name.to_owned(), (version + 1, annotations));
                    (200, lease(name, &stored[name]))
                }
                _ => {
                    let mut nothing = fake::failure(404, "not found");
                    nothing["reason"] = json!("NotFound");
                    (404, nothing)
                }
            }
        });
        Reservations::new(Leases::new(client, "etcd-guard"))
    }

    fn write(&self, name: &str, annotations: Value) {
        self.0.lock().unwrap().insert(name.to_owned(), (1, annotations));
    }

    fn annotation(&self, name: &str, key: &str) -> Value {
        self.0.lock().unwrap()[name].1[key].clone()
    }
}

const OURS: ClusterId = ClusterId(0xc1);
const OTHER: ClusterId = ClusterId(0xc2);

fn living<'a>(uids: &[&'a str]) -> Vec<Living<'a>> {
    uids.iter().map(|uid| Living { name: "etcd-0", uid }).collect()
}

fn uids(reservations: &[Reservation]) -> Vec<&str> {
    reservations.iter().map(|it| it.uid.as_str()).collect()
}

/// What a replica reads of our cluster, which it knows.
async fn ours(replica: &Reservations) -> Record {
    let records = replica.read(Some(OURS)).await.unwrap();
    replica.pick(records, OURS).unwrap().expect("the record that was read")
}

async fn reserve(replica: &Reservations, uid: &str) -> Result<(), WriteError> {
    let mut record = ours(replica).await;
    replica.add(&mut record, String::from("prod/etcd"), reservation(uid), &living(&[uid])).await
}

#[tokio::test]
async fn what_one_replica_reserves_every_other_one_reads() {
    let apiserver = Apiserver::default();
    let (one, other) = (apiserver.replica(), apiserver.replica());
    assert_eq!(one.read(Some(OURS)).await.unwrap().live(), []);
    reserve(&one, "a").await.unwrap();
    assert_eq!(uids(&other.read(Some(OURS)).await.unwrap().live()), ["a"]);
    assert_eq!(uids(&other.read(None).await.unwrap().live()), ["a"]);
    assert_eq!(uids(&other.read_all().await.unwrap()), ["a"]);
    assert_eq!(other.read(Some(OTHER)).await.unwrap().live(), []);
    assert_eq!(apiserver.annotation("etcd-guard.c1", CLUSTER), "prod/etcd");
}

#[tokio::test]
async fn of_two_replicas_that_read_the_same_record_one_writes_and_the_other_starts_over() {
    let apiserver = Apiserver::default();
    let (one, other) = (apiserver.replica(), apiserver.replica());
    for (first, second) in [("a", "b"), ("c", "d")] {
        let (mut early, mut late) = (ours(&one).await, ours(&other).await);
        let cluster = || String::from("prod/etcd");
        one.add(&mut early, cluster(), reservation(first), &[]).await.unwrap();
        let conflict = other.add(&mut late, cluster(), reservation(second), &[]).await.unwrap_err();
        assert!(matches!(conflict, WriteError::Conflict), "{conflict}");
    }
    assert_eq!(uids(&other.read_all().await.unwrap()), ["a", "c"]);
}

#[tokio::test]
async fn what_was_just_written_may_be_taken_back_and_nothing_else_with_it() {
    let apiserver = Apiserver::default();
    let replica = apiserver.replica();
    reserve(&replica, "a").await.unwrap();
    let mut record = ours(&replica).await;
    let new = reservation("b");
    replica.add(&mut record, String::from("prod/etcd"), new, &living(&["a", "b"])).await.unwrap();
    assert_eq!(uids(&record.live()), ["a", "b"]);
    replica.take_back(&mut record, "prod", "b", &living(&["a", "b"])).await.unwrap();
    assert_eq!(uids(&record.live()), ["a"]);
    assert_eq!(uids(&replica.read_all().await.unwrap()), ["a"]);
    assert_eq!(apiserver.annotation("etcd-guard.c1", CLUSTER), "prod/etcd", "it is still told whose it is");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_nobody_carried_out_is_over_for_each_replica_by_its_own_clock() {
    let apiserver = Apiserver::default();
    let (one, late) = (apiserver.replica(), apiserver.replica());
    reserve(&one, "a").await.unwrap();
    tokio::time::advance(RESERVATION_LIFE).await;
    assert_eq!(one.read_all().await.unwrap(), []);
    assert_eq!(one.read(Some(OURS)).await.unwrap().live(), []);
    assert_eq!(uids(&late.read_all().await.unwrap()), ["a"], "it sees it for the first time");
    // Whether one cluster's record was asked for or all of them were.
    for known in [Some(OURS), None] {
        let replica = apiserver.replica();
        let records = replica.read(known).await.unwrap();
        drop(replica.pick(records, OURS).unwrap());
        tokio::time::advance(RESERVATION_LIFE).await;
        assert_eq!(replica.read(Some(OURS)).await.unwrap().live(), [], "{known:?}");
    }
}

#[tokio::test]
async fn a_record_is_found_by_its_cluster_or_by_the_name_of_its_owner() {
    let apiserver = Apiserver::default();
    let replica = apiserver.replica();
    reserve(&replica, "a").await.unwrap();
    let all = || async { replica.read(None).await.unwrap() };
    let ours = replica.pick(all().await, OURS).unwrap().unwrap();
    assert_eq!(uids(&ours.live()), ["a"]);
    let mut new = replica.pick(all().await, OTHER).unwrap().expect("a cluster without a record gets one");
    assert_eq!(new.live(), []);
    replica.add(&mut new, String::from("prod/other"), reservation("b"), &[]).await.unwrap();
    assert_eq!(uids(&replica.read(Some(OTHER)).await.unwrap().live()), ["b"]);
    let named = replica.pick_by_name(all().await, "prod/etcd").unwrap();
    assert_eq!(uids(&named.live()), ["a"]);
    assert!(replica.pick_by_name(all().await, "prod/third").is_none());
    let known = || async { replica.read(Some(OURS)).await.unwrap() };
    assert!(replica.pick(known().await, OTHER).unwrap().is_none(), "it was not read");
    assert_eq!(uids(&replica.pick_by_name(known().await, "prod/etcd").unwrap().live()), ["a"]);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_told_by_its_name_and_costs_no_other_cluster() {
    let apiserver = Apiserver::default();
    let replica = apiserver.replica();
    apiserver.write("etcd-guard.c2", json!({ANNOTATION: "not JSON"}));
    reserve(&replica, "a").await.unwrap();
    let told = |error: LookupError| {
        let text = error.to_string();
        assert!(text.contains("Lease etcd-guard.c2") && text.contains("delete that Lease"), "{text}");
    };
    let all = || async { replica.read(None).await.unwrap() };
    assert_eq!(uids(&all().await.live()), ["a"]);
    assert_eq!(uids(&replica.pick(all().await, OURS).unwrap().unwrap().live()), ["a"]);
    told(replica.pick(all().await, OTHER).err().unwrap());
    told(replica.read(Some(OTHER)).await.err().unwrap());
    told(replica.read_all().await.unwrap_err());
}

#[tokio::test]
async fn records_outdate_a_list_without_a_reserved_pod_until_that_is_known_to_be_gone() {
    let apiserver = Apiserver::default();
    let replica = apiserver.replica();
    reserve(&replica, "a").await.unwrap();
    for known in [Some(OURS), None] {
        let records = apiserver.replica().read(known).await.unwrap();
        assert!(records.outdate("prod", &[]));
        records.note_living("other", &[]);
        records.note_living("prod", &living(&["a"]));
        assert!(records.outdate("prod", &[]), "it lives");
        assert!(!records.outdate("prod", &living(&["a"])) && !records.outdate("other", &[]));
    }
    let records = replica.read(Some(OURS)).await.unwrap();
    records.note_living("prod", &living(&["b"]));
    assert!(!records.outdate("prod", &living(&["b"])), "it is gone");
}

#[tokio::test(start_paused = true)]
async fn the_gauges_tell_how_many_are_reserved_and_for_how_long() {
    let apiserver = Apiserver::default();
    let replica = apiserver.replica();
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

//! Reads and writes of ledgers by several replicas.

mod handovers;

use std::collections::BTreeMap;

use prometheus_client::encoding::text::encode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
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
                    let annotations = json!({RESERVATIONS_ANNOTATION: version});
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
async fn deletes_only_ledgers_that_did_not_change() {
    let leases_named = |names: &[&str]| -> BTreeMap<String, u32> {
        names.iter().map(|name| ((*name).to_owned(), 1)).collect()
    };
    let stored: Stored = Arc::new(Mutex::new(leases_named(&["dead", "live", "late"])));
    let names = || stored.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    let reservations = ReservationStore::new(leases(&stored), WallClock::default());
    let mut clearing = std::pin::pin!(reservations.delete_stale_ledgers());
    let margin = Duration::from_secs(1);

    timeout(STALE_INTERVAL + margin, &mut clearing).await.unwrap_err();
    assert_eq!(names(), ["dead", "late", "live"], "a Lease at its first read may be new");
    *stored.lock().unwrap().get_mut("live").unwrap() += 1;
    stored.lock().unwrap().insert(String::from("new"), 1);

    timeout(STALE_INTERVAL, &mut clearing).await.unwrap_err();
    assert_eq!(names(), ["late", "live", "new"]);

    timeout(STALE_INTERVAL, &mut clearing).await.unwrap_err();
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
        cluster: None,
        by_name: false,
        image_id: None,
    }
}

#[tokio::test(start_paused = true)]
async fn gauge_counts_active_reservations_of_all_ledgers() {
    let sightings = AllSightings(ExpiringCache::new(MAX_LEDGERS, Lifetime::SinceUse(CLUSTER_TTL)));
    let mut registry = Registry::with_prefix("etcd_guard");
    registry.register_collector(Box::new(sightings.clone()));
    let shown = || {
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        let line = page.lines().find(|line| line.starts_with("etcd_guard_reservations ")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(shown(), "0");
    let observe = |name: &str, read: &[Reservation]| {
        let known = sightings.0.get_or_default(name).0;
        lock(&known).observe(Some("uid"), read.to_vec(), Instant::now());
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
    /// Number of deleted Leases, which is part of each uid.
    created: Arc<Mutex<u32>>,
    /// Method and Lease of each call.
    calls: Arc<Mutex<Vec<String>>>,
}

impl ApiServer {
    /// Returns the store of a replica that uses these Leases.
    fn replica(&self) -> ReservationStore {
        const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases";
        let (stored, calls, created) =
            (Arc::clone(&self.leases), Arc::clone(&self.calls), Arc::clone(&self.created));
        let client = fake::api_server_with(move |call, body| {
            let mut stored = stored.lock().unwrap();
            let lease = |name: &str, (version, annotations): &(u32, Value)| json!({"metadata": {"name": name, "uid": format!("{name}-{}", created.lock().unwrap()), "resourceVersion": version.to_string(), "annotations": annotations}});
            let name = call.uri.path().strip_prefix(PATH).unwrap().trim_start_matches('/');
            calls.lock().unwrap().push(format!("{} {name}", call.method));
            let present = stored.get(name).cloned();
            let annotations = body["metadata"]["annotations"].clone();
            match (call.method.as_str(), present) {
                ("GET", _) if name.is_empty() => {
                    let items: Vec<_> = stored.iter().map(|(name, stored)| lease(name, stored)).collect();
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

    fn delete(&self, name: &str) {
        self.leases.lock().unwrap().remove(name).unwrap();
        *self.created.lock().unwrap() += 1;
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

const OURS: ClusterId = ClusterId(0xc1);
const OTHER: ClusterId = ClusterId(0xc2);
const LEASE: &str = "etcd-guard.ns.prod";

fn live_pod(uid: &str) -> LivePod<'_> {
    LivePod { namespace: "prod", name: "etcd-0", uid, serves: false, image_id: "" }
}

/// Returns a reservation of a pod with a name of its own.
fn named(pod: &str) -> Reservation {
    Reservation { pod: pod.to_owned(), ..reservation(pod) }
}

fn uids(reservations: &[Reservation]) -> Vec<&str> {
    reservations.iter().map(|reservation| reservation.uid.as_str()).collect()
}

async fn read(replica: &ReservationStore) -> Ledgers {
    replica.read_namespace("prod").await.unwrap()
}

async fn active(replica: &ReservationStore) -> Vec<String> {
    uids(&read(replica).await.active()).into_iter().map(str::to_owned).collect()
}

async fn reserve(replica: &ReservationStore, uid: &str) -> Result<(), ReserveError> {
    replica.reserve(&mut read(replica).await, &[named(uid)], &Facts::default()).await
}

fn of_cluster<'a>(cluster: ClusterId, voters: &'a [&'a str]) -> Facts<'a> {
    Facts { cluster: Some(cluster), voters: Some(voters), ..Facts::default() }
}

#[tokio::test]
async fn other_replicas_read_a_reservation() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    assert_eq!(read(&one).await.active(), []);
    one.reserve(&mut read(&one).await, &[named("a")], &of_cluster(OURS, &["a"])).await.unwrap();
    assert_eq!(active(&other).await, ["a"]);
    let ledgers = other.read_namespace("team").await.unwrap();
    assert_eq!(ledgers.active(), [], "a ledger per namespace");
    let stored = api_server.annotation(LEASE, RESERVATIONS_ANNOTATION);
    assert!(stored.as_str().unwrap().contains(r#""cluster":"c1""#), "{stored}");
}

/// Two evaluations of one cluster, or of unknown clusters.
#[tokio::test]
async fn concurrent_approval_starts_the_evaluation_again() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let (unknown, ours) = (Facts::default(), of_cluster(OURS, &["a", "b", "c"]));
    for facts in [ours, unknown] {
        api_server.leases.lock().unwrap().clear();
        let (mut early, mut late) = (read(&one).await, read(&other).await);
        one.reserve(&mut early, &[named("a")], &facts).await.unwrap();
        let conflict = other.reserve(&mut late, &[named("b")], &facts).await;
        assert_eq!(conflict, Err(ReserveError::StartAgain));
    }
    // The id does not matter: a cluster can be restored under another one.
    let (mut early, mut late) = (read(&one).await, read(&other).await);
    one.reserve(&mut early, &[named("c")], &unknown).await.unwrap();
    let restored = of_cluster(OTHER, &["a", "b", "c"]);
    assert_eq!(other.reserve(&mut late, &[named("b")], &restored).await, Err(ReserveError::StartAgain));
}

#[tokio::test]
async fn approval_of_another_cluster_repeats_only_the_write() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let (mut early, mut late) = (read(&one).await, read(&other).await);
    one.reserve(&mut early, &[named("a")], &of_cluster(OURS, &["a"])).await.unwrap();
    api_server.calls();
    other.reserve(&mut late, &[named("x")], &of_cluster(OTHER, &["x"])).await.unwrap();
    let (get, post, put) = (format!("GET {LEASE}"), String::from("POST "), format!("PUT {LEASE}"));
    assert_eq!(api_server.calls(), [post, get, put]);
    assert_eq!(active(&one).await, ["a", "x"], "the repeated write keeps the other reservation");
}

#[tokio::test]
async fn cluster_over_two_namespaces_writes_both_ledgers_or_none() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let names = || ["prod", "team"].map(|name| LedgerName::Namespace(name.to_owned())).into();
    let facts = of_cluster(OURS, &["a"]);
    let mut both = one.read(names()).await.unwrap();
    let mut late = one.read(names()).await.unwrap();
    one.reserve(&mut both, &[named("a")], &facts).await.unwrap();
    assert_eq!(uids(&other.read_namespace("team").await.unwrap().active()), ["a"]);
    one.withdraw(&mut both, "a").await;
    assert_eq!(active(&other).await, Vec::<String>::new());

    // Another evaluation writes only the second ledger.
    drop(late);
    late = one.read(names()).await.unwrap();
    let mut team = other.read_namespace("team").await.unwrap();
    other.reserve(&mut team, &[named("t")], &Facts::default()).await.unwrap();
    assert_eq!(one.reserve(&mut late, &[named("b")], &facts).await, Err(ReserveError::StartAgain));
    assert_eq!(active(&other).await, Vec::<String>::new(), "the first ledger was withdrawn");
}

/// The first approval of the pod rests on the ledger of its namespace; its deletion can still arrive.
#[tokio::test]
async fn withdrawal_restores_the_earlier_reservation_of_the_pod() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let names = || ["prod", "team"].map(|name| LedgerName::Namespace(name.to_owned())).into();
    let facts = of_cluster(OURS, &["a"]);
    reserve(&one, "a").await.unwrap();
    let earlier = read(&other).await.active();
    let mut late = one.read(names()).await.unwrap();
    let mut team = other.read_namespace("team").await.unwrap();
    other.reserve(&mut team, &[named("t")], &Facts::default()).await.unwrap();
    let all = [named("a"), named("b")];
    assert_eq!(one.reserve(&mut late, &all, &facts).await, Err(ReserveError::StartAgain));
    assert_eq!(read(&other).await.active(), earlier);

    // A transfer of leadership that fails.
    let mut both = one.read(names()).await.unwrap();
    one.reserve(&mut both, &[named("a")], &facts).await.unwrap();
    one.withdraw(&mut both, "a").await;
    assert_eq!(read(&other).await.active(), earlier);
    assert_eq!(uids(&other.read_namespace("team").await.unwrap().active()), ["t"]);
}

/// Each of the two reservations was written to the first ledger when the second one conflicts.
#[tokio::test]
async fn withdrawal_concerns_all_reservations_of_a_ledger() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let names = ["prod", "team"].map(|name| LedgerName::Namespace(name.to_owned())).into();
    let mut late = one.read(names).await.unwrap();
    let mut team = other.read_namespace("team").await.unwrap();
    other.reserve(&mut team, &[named("x")], &Facts::default()).await.unwrap();
    let new = [named("a"), Reservation { namespace: String::from("team"), ..named("t") }];
    let result = one.reserve(&mut late, &new, &Facts::default()).await;
    assert_eq!(result, Err(ReserveError::StartAgain));
    assert_eq!(active(&other).await, Vec::<String>::new());
}

/// A cluster over two namespaces reserves its pods in this ledger, too.
#[tokio::test]
async fn pod_of_the_same_name_in_another_namespace_repeats_only_the_write() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    let (mut early, mut late) = (read(&one).await, read(&other).await);
    let elsewhere =
        Reservation { uid: String::from("elsewhere"), namespace: String::from("team"), ..named("b") };
    one.reserve(&mut early, &[elsewhere], &Facts::default()).await.unwrap();
    other.reserve(&mut late, &[named("a")], &of_cluster(OURS, &["a", "b"])).await.unwrap();
    assert_eq!(active(&one).await, ["a", "elsewhere"]);
}

#[test]
fn ledgers_have_names_of_their_own() {
    assert_eq!(LedgerName::Namespace(String::from("prod")).lease(), LEASE);
    assert_eq!(LedgerName::Cluster(OURS).lease(), "etcd-guard.cluster.c1");
}

#[tokio::test(start_paused = true)]
async fn reservation_expires_by_the_clock_of_each_replica() {
    let api_server = ApiServer::default();
    let (one, late) = (api_server.replica(), api_server.replica());
    reserve(&one, "a").await.unwrap();
    let started = read(&one).await;
    tokio::time::advance(RESERVATION_TTL).await;
    assert_eq!(uids(&started.active()), ["a"], "it counts until the end of the evaluation");
    assert_eq!(active(&one).await, Vec::<String>::new());
    assert_eq!(active(&late).await, ["a"], "its first read starts the lifetime");
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_restored_by_a_replica_that_knows_it() {
    let api_server = ApiServer::default();
    let (one, other) = (api_server.replica(), api_server.replica());
    reserve(&one, "a").await.unwrap();
    api_server.delete(LEASE);
    assert_eq!(active(&one).await, ["a"]);
    reserve(&other, "b").await.unwrap();
    for _ in 0..2 {
        assert_eq!(active(&one).await, ["a", "b"], "the new Lease has another uid");
    }
    reserve(&one, "c").await.unwrap();
    assert_eq!(active(&api_server.replica()).await, ["a", "b", "c"]);
    tokio::time::advance(RESERVATION_TTL).await;
    api_server.delete(LEASE);
    assert_eq!(active(&one).await, Vec::<String>::new());
}

#[tokio::test]
async fn full_ledger_stops_only_its_namespace() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    let many: Vec<Reservation> = (0..3000).map(|n| named(&format!("pod-{n}"))).collect();
    let full = replica.reserve(&mut read(&replica).await, &many, &Facts::default()).await;
    let Err(ReserveError::Unavailable(cause)) = full else { panic!("{full:?}") };
    assert!(matches!(cause.fault, LedgerFault::Full { reservations: 3000, .. }), "{cause}");
    let mut team = replica.read_namespace("team").await.unwrap();
    replica.reserve(&mut team, &[named("a")], &Facts::default()).await.unwrap();
}

#[tokio::test]
async fn invalid_ledger_stops_only_its_namespace() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    api_server.write("etcd-guard.ns.team", json!({RESERVATIONS_ANNOTATION: "not JSON"}));
    reserve(&replica, "a").await.unwrap();
    let error = replica.read_namespace("team").await.err().unwrap().to_string();
    assert!(error.contains("somebody edited the reservation Lease etcd-guard/etcd-guard.ns.team"), "{error}");
    let (active, invalid) = replica.list_active().await.unwrap();
    assert_eq!(uids(&active), ["a"]);
    assert_eq!(invalid.len(), 1);
}

#[tokio::test]
async fn approval_reads_and_writes_one_lease() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    for write in ["POST ", "PUT etcd-guard.ns.prod", "PUT etcd-guard.ns.prod"] {
        reserve(&replica, "a").await.unwrap();
        assert_eq!(api_server.calls(), ["GET etcd-guard.ns.prod", write]);
    }
}

#[tokio::test]
async fn ledger_can_be_newer_than_a_list_without_reserved_pod() {
    let api_server = ApiServer::default();
    let replica = api_server.replica();
    reserve(&replica, "a").await.unwrap();
    let ledgers = read(&api_server.replica()).await;
    let is_newer =
        |namespace: &str, pods: &[LivePod<'_>]| ledgers.may_be_newer_than(namespace, pods, |_| true);
    assert!(is_newer("prod", &[]) && is_newer("prod", &[live_pod("b")]));
    assert!(!is_newer("prod", &[live_pod("a")]) && !is_newer("other", &[]));
    assert!(!ledgers.may_be_newer_than("prod", &[], |_| false));
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

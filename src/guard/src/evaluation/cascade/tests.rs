//! Requests of the garbage collector, with owners and records of a fake API server.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::{deadline::Deadline, services::Services};
use etcd_guard_core::request::Operation;
use etcd_guard_kubernetes::fake;

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// A StatefulSet of this uid, or none, and the record of owners.
#[derive(Clone, Default)]
struct Cluster {
    set: Arc<Mutex<Option<Value>>>,
    lease: Arc<Mutex<Option<Value>>>,
}

impl Cluster {
    fn client(&self) -> kube::Client {
        let Self { set, lease } = self.clone();
        fake::api_server_with(move |call, body| {
            let not_found = || {
                let mut failure = fake::status_failure(404, "not found");
                failure["reason"] = json!("NotFound");
                (404, failure)
            };
            let mut lease = lease.lock().unwrap();
            match (call.method.as_str(), call.uri.path()) {
                ("GET", "/apis/apps/v1/namespaces/prod/statefulsets/etcd") => {
                    set.lock().unwrap().clone().map_or_else(not_found, |set| (200, json!({"metadata": set})))
                }
                ("GET", "/api/v1/namespaces/prod/persistentvolumeclaims/data-etcd-0") => {
                    let claim = owned_by("set").metadata.owner_references;
                    let owners = claim.iter().map(|owner| {
                        json!({"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid})
                    });
                    let owners: Vec<Value> = owners.collect();
                    (
                        200,
                        json!({"metadata": {"name": "data-etcd-0", "uid": "claim", "ownerReferences": owners}}),
                    )
                }
                ("GET", "/apis/custom.io/v1") => (403, fake::status_failure(403, "forbidden")),
                ("GET", path) if path.ends_with("/etcd-guard-owners.prod") => {
                    lease.clone().map_or_else(not_found, |lease| (200, lease))
                }
                ("POST" | "PUT", path) if path.contains("/leases") => {
                    *lease = Some(body.clone());
                    (200, body.clone())
                }
                _ => not_found(),
            }
        })
    }

    fn services(&self) -> Services {
        Services::of_client(&self.client())
    }

    fn set(&self, set: Value) {
        *self.set.lock().unwrap() = Some(set);
    }

    fn delete_set(&self) {
        *self.set.lock().unwrap() = None;
    }
}

fn pod(owners: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "etcd-0", "uid": "pod", "ownerReferences": owners}}))
        .unwrap()
}

fn owned_by(uid: &str) -> Pod {
    pod(
        &json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": uid, "controller": true}]),
    )
}

fn request(user: &str) -> Request {
    Request {
        operation: Operation::Delete,
        namespace: String::from("prod"),
        name: String::from("etcd-0"),
        pod: None,
        uid: None,
        dry_run: false,
        grace_period_seconds: None,
        selector: std::collections::BTreeMap::new(),
        owner: None,
        user: user.to_owned(),
    }
}

async fn cascade(services: &Services, pod: &Pod) -> Cascade {
    of_pod(&Evaluation::new(services, &request(COLLECTOR), Deadline::from_timeout(None)), pod).await
}

async fn record(services: &Services, change: impl Fn(&mut OwnershipRecord)) {
    let stored = services.ownership.read("prod").await.unwrap();
    let mut record = stored.record.clone();
    change(&mut record);
    services.ownership.write(&stored, &record).await.unwrap();
}

#[tokio::test]
async fn absence_of_owner_alone_proves_nothing() {
    let services = Cluster::default().services();
    let Cascade::Unproven(missing) = cascade(&services, &owned_by("set")).await else { panic!("believed") };
    let mut denial = Verdict::new(Reason::LeaderProtected, "etcd-0 leads").with_remedy("Move leadership");
    missing.explain(&request(COLLECTOR), &WallClock::default(), &mut denial);
    let command = "kubectl -n prod patch pod etcd-0 --type=json -p '[{\"op\":\"test\",\
                   \"path\":\"/metadata/ownerReferences/0/uid\",\"value\":\"set\"},\
                   {\"op\":\"remove\",\"path\":\"/metadata/ownerReferences/0\"}]'";
    assert!(denial.message.starts_with("etcd-0 leads; the garbage collector requests"), "{}", denial.line());
    assert!(
        denial.line().contains("its owner StatefulSet etcd (uid set) does not exist"),
        "{}",
        denial.line()
    );
    assert!(denial.line().contains(command), "{}", denial.line());
    assert!(
        denial.line().contains("-n prod pod etcd-0 etcd-guard.io/allow-delete-until="),
        "{}",
        denial.line()
    );
    assert!(!denial.line().contains("Move leadership"), "{}", denial.line());
}

/// The collector retries a denied deletion after up to 1,000 s. The record contains no time, so that only a change of
/// the record ends its effect.
#[tokio::test(start_paused = true)]
async fn recorded_pair_proves_cascade_after_any_time() {
    let cluster = Cluster::default();
    let services = cluster.services();
    let key = owned_by("set").metadata.owner_references[0].key();
    record(&services, |record| assert!(record.insert("pod", &key))).await;
    for _ in 0..3 {
        tokio::time::sleep(std::time::Duration::from_secs(1000)).await;
        // All replicas were restarted: nothing is known but the Lease.
        let services = cluster.services();
        assert!(matches!(cascade(&services, &owned_by("set")).await, Cascade::Proven(_)));
        assert!(matches!(cascade(&services, &owned_by("other")).await, Cascade::Unproven(_)), "another uid");
    }
    let mut restored = owned_by("set");
    restored.metadata.uid = String::from("restored");
    assert!(matches!(cascade(&services, &restored).await, Cascade::Unproven(_)), "a pod with another uid");
}

#[tokio::test]
async fn accepted_deletion_of_owner_proves_cascade() {
    let services = Cluster::default().services();
    let key = owned_by("set").metadata.owner_references[0].key();
    services.ownership.accept("prod", &key).await.unwrap();
    assert!(matches!(cascade(&services, &owned_by("set")).await, Cascade::Proven(_)));
}

#[tokio::test]
async fn terminating_owner_proves_cascade_without_record() {
    let cluster = Cluster::default();
    let services = cluster.services();
    let times = json!({"name": "etcd", "uid": "set", "deletionTimestamp": "2026-01-31T12:00:00Z"});
    cluster.set(times);
    assert!(matches!(cascade(&services, &owned_by("set")).await, Cascade::Proven(_)));
    assert!(matches!(cascade(&services, &owned_by("other")).await, Cascade::Unproven(_)), "another uid");
    cluster.delete_set();
    assert!(matches!(cascade(&services, &owned_by("set")).await, Cascade::Unproven(_)));
}

#[tokio::test]
async fn living_owner_proves_that_there_is_no_cascade() {
    let cluster = Cluster::default();
    let services = cluster.services();
    cluster.set(json!({"name": "etcd", "uid": "set"}));
    let key = owned_by("set").metadata.owner_references[0].key();
    record(&services, |record| assert!(record.insert("pod", &key))).await;
    assert!(matches!(cascade(&services, &owned_by("set")).await, Cascade::No));
    let admin = request("admin");
    let evaluation = Evaluation::new(&services, &admin, Deadline::from_timeout(None));
    let other_user = of_pod(&evaluation, &owned_by("other")).await;
    assert!(matches!(other_user, Cascade::No));
}

#[tokio::test]
async fn unreadable_owner_proves_nothing_and_is_named() {
    let services = Cluster::default().services();
    let owners = json!([{"apiVersion": "custom.io/v1", "kind": "Etcd\n", "name": "main", "uid": "custom"}]);
    let Cascade::Unproven(missing) = cascade(&services, &pod(&owners)).await else { panic!("believed") };
    let mut denial = Verdict::new(Reason::QuorumAtRisk, "too few voters");
    missing.explain(&request(COLLECTOR), &WallClock::default(), &mut denial);
    assert!(
        denial.line().contains(
            "its owner Etcd? main (uid custom) is absent, and the guard cannot confirm this: reading"
        ),
        "{}",
        denial.line()
    );
    assert!(denial.line().contains("is forbidden"), "{}", denial.line());
    assert!(denial.line().contains("kubectl -n prod patch pod etcd-0 "), "{}", denial.line());
}

/// Returns what the collector's request for the claim `data-etcd-0` follows from.
async fn claim_cascade(services: &Services) -> (Request, Cascade) {
    let operation = WorkloadOperation::DeleteClaim;
    let request = Request {
        operation: Operation::Workload(operation),
        name: String::from("data-etcd-0"),
        ..request(COLLECTOR)
    };
    let evaluation = Evaluation::new(services, &request, Deadline::from_timeout(None));
    let cascade = of_operation(&evaluation, operation).await;
    (request, cascade)
}

/// The claim of a restored StatefulSet. Its owner never existed.
#[tokio::test]
async fn denial_for_a_claim_names_its_break_glass() {
    let services = Cluster::default().services();
    let (request, Cascade::Unproven(missing)) = claim_cascade(&services).await else { panic!("believed") };
    let mut denial = Verdict::new(Reason::IntentProtected, "the claim holds data").with_remedy("Keep it");
    missing.explain(&request, &WallClock::default(), &mut denial);
    let message = denial.line();
    for text in [
        "the claim holds data; the garbage collector requests",
        "kubectl -n prod patch persistentvolumeclaim data-etcd-0 --type=json -p ",
        "kubectl annotate --overwrite -n prod persistentvolumeclaim data-etcd-0 etcd-guard.io/allow-delete-until=",
    ] {
        assert!(message.contains(text), "{message}");
    }
    let key = owned_by("set").metadata.owner_references[0].key();
    record(&services, |record| assert!(record.insert("claim", &key))).await;
    assert!(matches!(claim_cascade(&services).await.1, Cascade::Proven(_)));
}

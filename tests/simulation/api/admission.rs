//! Admission and execution of deletions: the API server calls one replica of the guard, and acts on its verdict.

use std::time::Duration;

use etcd_guard_core::{objects::admission::AdmissionRequest, request::Request, verdict::Verdict};
use etcd_guard_guard::Deadline;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    server::pod_key,
    store::{Key, key},
};
use crate::{
    operator::{node_key, uid_of},
    oracle::{Approval, DryRun, Operation},
    replicas::Replicas,
    scenario::NAMESPACE,
    world::{Sim, World},
};

/// `timeoutSeconds` of the webhooks.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time of a request, after which the API server cancels it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(34);

/// Result of a request to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The API server executed the request.
    Done,
    Denied(&'static str),
    /// The object does not exist.
    NotFound,
    /// The webhook did not respond, or the request was cancelled.
    Failed,
}

/// How a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    Delete { grace_seconds: u64 },
    Evict,
}

/// The request in the report.
fn describe(review: &Value) -> &'static str {
    match (review["resource"]["resource"].as_str(), review["operation"].as_str(), &review["subResource"]) {
        (Some("nodes"), ..) => "delete node",
        (Some("namespaces"), ..) => "delete namespace (dry run)",
        (Some("persistentvolumeclaims"), ..) => "delete claim (dry run)",
        (Some("services"), ..) => "delete Service (dry run)",
        (Some("pods"), _, Value::Null) => "delete pod",
        (Some("pods"), ..) => "evict pod",
        (_, Some("UPDATE"), _) => "scale down",
        _ => "delete StatefulSet",
    }
}

/// A client of the API server, whose requests the guard evaluates.
#[derive(Clone)]
pub(crate) struct ApiServer {
    pub(crate) sim: Sim,
    pub(crate) replicas: Replicas,
    /// The replica that receives the reviews; `None` for a random one.
    pub(crate) through: Option<usize>,
}

// === impl ApiServer ===

impl ApiServer {
    /// Deletes or evicts a pod.
    pub(crate) async fn delete_pod(&self, user: &str, name: &str, deletion: Deletion) -> Outcome {
        if deletion == Deletion::Evict && self.sim.world().scenario.evicts_by_name {
            return self.evict(user, name).await;
        }
        let object_key = pod_key(NAMESPACE, name);
        let started = Instant::now();
        let Some(mut pod) = self.sim.world().store.get(&object_key).cloned() else {
            return Outcome::NotFound;
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        loop {
            if let Some(outcome) = self.review_pod(user, name, &pod, deletion).await {
                return outcome;
            }
            let remaining = REQUEST_TIMEOUT.saturating_sub(started.elapsed());
            let is_late = self.wait_for_other_webhooks(&format!("{user} {name}"), remaining).await;
            let mut world = self.sim.world();
            world.advance();
            let stored = world.store.get(&object_key).filter(|pod| pod["metadata"]["uid"] == uid.as_str());
            let Some(stored) = stored.filter(|_| !is_late) else {
                world.oracle.abort(&uid);
                return Outcome::Failed;
            };
            let is_changed = stored["metadata"]["resourceVersion"] != pod["metadata"]["resourceVersion"];
            if !is_changed || deletion == Deletion::Evict {
                execute_deletion(&mut world, user, &pod, deletion);
                return Outcome::Done;
            }
            // The API server validates a deletion again if the pod has changed since the review.
            pod = stored.clone();
            world.oracle.abort(&uid);
        }
    }

    /// Evicts a pod. If neither the client nor the guard has added a uid to the eviction, the API server removes whatever pod has
    /// the name after all webhooks have answered, without another review.
    async fn evict(&self, user: &str, name: &str) -> Outcome {
        let (started, call) = (Instant::now(), format!("{user} {name}"));
        let (is_registered, replica) = {
            let mut world = self.sim.world();
            let replicas = world.scenario.replicas;
            (world.chance(&call, 50), world.index(&call, replicas))
        };
        let mut uid = None;
        if is_registered && let Some(guard) = self.replicas.get(replica) {
            let deadline = Deadline::from_timeout(Some(WEBHOOK_TIMEOUT));
            uid = guard.uid_for_eviction(NAMESPACE, name, deadline).await;
        }
        let preconditions = uid.as_ref().map(|uid| json!({"uid": uid}));
        let review = json!({
            "uid": "review", "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "eviction",
            "name": name, "namespace": NAMESPACE, "operation": "CREATE", "userInfo": {"username": user},
            "object": {
                "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": {"preconditions": preconditions},
            },
        });
        let object_key = pod_key(NAMESPACE, name);
        let member = self.sim.world().cluster.index_of(name).unwrap();
        let reviewed = uid_of(&self.sim.world(), name);
        // The pod can have been replaced since the uid was added.
        let reviewed = reviewed.filter(|reviewed| uid.as_ref().is_none_or(|uid| uid == reviewed));
        let targets: Vec<_> = reviewed.iter().map(|reviewed| (member, reviewed.clone())).collect();
        if let Some(outcome) = self.admit(user, &review, &targets).await {
            return outcome;
        }
        let pending = uid.is_none().then(|| self.sim.world().oracle.await_eviction(member));
        let is_late =
            self.wait_for_other_webhooks(&call, REQUEST_TIMEOUT.saturating_sub(started.elapsed())).await;
        let mut world = self.sim.world();
        world.advance();
        let pod = world.store.get(&object_key).cloned();
        let pod = pod
            .filter(|pod| !is_late && uid.as_ref().is_none_or(|uid| pod["metadata"]["uid"] == uid.as_str()));
        let evicted = pod.as_ref().and_then(|pod| pod["metadata"]["uid"].as_str()).map(str::to_owned);
        if reviewed != evicted
            && let Some(reviewed) = &reviewed
        {
            world.oracle.abort(reviewed);
        }
        if let Some(pending) = pending {
            let World { oracle, cluster, .. } = &mut *world;
            oracle.end_eviction(cluster, pending, evicted.filter(|uid| reviewed.as_ref() != Some(uid)));
        }
        let Some(pod) = pod else { return Outcome::Failed };
        execute_deletion(&mut world, user, &pod, Deletion::Evict);
        *world.faults.injected.entry("eviction by name").or_default() += u32::from(uid.is_none());
        Outcome::Done
    }

    /// Lets the guard evaluate the deletion of a pod. Returns `None` after an approval.
    async fn review_pod(&self, user: &str, name: &str, pod: &Value, deletion: Deletion) -> Option<Outcome> {
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let resource = json!({"group": "", "version": "v1", "resource": "pods"});
        let review = match deletion {
            Deletion::Delete { grace_seconds } => json!({
                "uid": "review", "resource": resource, "name": name, "namespace": NAMESPACE,
                "operation": "DELETE", "userInfo": {"username": user}, "oldObject": pod,
                "options": {"kind": "DeleteOptions", "gracePeriodSeconds": grace_seconds},
            }),
            Deletion::Evict => json!({
                "uid": "review", "resource": resource, "subResource": "eviction", "name": name,
                "namespace": NAMESPACE, "operation": "CREATE", "userInfo": {"username": user},
                // The mutating webhook has added the uid.
                "object": {
                    "kind": "Eviction", "metadata": {"name": name},
                    "deleteOptions": {"preconditions": {"uid": uid}},
                },
            }),
        };
        let member = self.sim.world().cluster.index_of(name);
        let targets: Vec<(usize, String)> = member.map(|member| (member, uid)).into_iter().collect();
        self.admit(user, &review, &targets).await
    }

    /// Deletes a node, on which these members run. Their pods remain until the garbage collector of pods finds that the node
    /// does not exist.
    pub(crate) async fn delete_node(&self, user: &str, node: &str, targets: &[(usize, String)]) -> Outcome {
        let object_key = node_key(node);
        let Some(object) = self.sim.world().store.get(&object_key).cloned() else { return Outcome::NotFound };
        let review = json!({
            "uid": "review", "resource": {"group": "", "version": "v1", "resource": "nodes"}, "name": node,
            "operation": "DELETE", "userInfo": {"username": user}, "oldObject": object,
            "options": {"kind": "DeleteOptions"},
        });
        if let Some(outcome) = self.admit(user, &review, targets).await {
            return outcome;
        }
        let is_late = self.wait_for_other_webhooks(&format!("{user} {node}"), REQUEST_TIMEOUT).await;
        let mut world = self.sim.world();
        world.advance();
        let is_executed = !is_late && world.store.remove(&object_key, None).is_ok();
        for (_, uid) in targets {
            if is_executed {
                world.oracle.execute(uid);
            } else {
                world.oracle.abort(uid);
            }
        }
        if !is_executed {
            return Outcome::Failed;
        }
        world.note(&format!("api: {user} deleted node {node}"));
        *world.faults.injected.entry("deleted node").or_default() += 1;
        Outcome::Done
    }

    /// Requests the deletion of an object in a dry run. The object remains. `of` describes the same object for the oracle.
    pub(crate) async fn dry_run_deletion(&self, user: &str, object: &Key, of: &DryRun) {
        let (resource, namespace, name) = object;
        let (request, requested_at, mut stored) = {
            let mut world = self.sim.world();
            world.advance();
            let stored = world.store.get(object).cloned().unwrap_or_else(|| json!({"metadata": {}}));
            (world.new_request(), Instant::now(), stored)
        };
        stored["metadata"]["name"] = json!(name);
        let review = json!({
            "uid": "review", "resource": {"group": "", "version": "v1", "resource": resource}, "name": name,
            "namespace": if resource == "namespaces" { name } else { namespace },
            "operation": "DELETE", "userInfo": {"username": user}, "oldObject": stored, "dryRun": true,
            "options": {"kind": "DeleteOptions", "dryRun": ["All"]},
        });
        let verdict = self.call_guard(request, &review).await;
        let mut world = self.sim.world();
        world.advance();
        let Some(verdict) = verdict else {
            world.note(&format!("api: no verdict for {user} on {resource} {name}"));
            return;
        };
        let reason = verdict.reason.as_str();
        world.oracle.count(describe(&review), reason);
        world.note(&format!("api: dry run, DELETE {resource} {name} by {user}: {}", verdict.text()));
        if verdict.allows() {
            let World { oracle, cluster, .. } = &mut *world;
            oracle.check_dry_run(cluster, &format!("{reason} approved {resource} {name}"), of, requested_at);
        }
    }

    /// Requests a change of a StatefulSet: its deletion, or a new number of replicas. `targets` are the members of the pods
    /// that are deleted if the request is approved. Only some runs execute approved deletions. The deletion of
    /// each pod of a scale-down has a review of its own.
    pub(crate) async fn change_set(
        &self,
        user: &str,
        name: &str,
        replicas: Option<u64>,
        targets: &[(usize, String)],
    ) -> Outcome {
        let object_key: Key = key("statefulsets", NAMESPACE, name);
        let Some(set) = self.sim.world().store.get(&object_key).cloned() else { return Outcome::NotFound };
        let resource = json!({"group": "apps", "version": "v1", "resource": "statefulsets"});
        let mut review = json!({
            "uid": "review", "resource": resource, "name": name, "namespace": NAMESPACE,
            "operation": "DELETE", "userInfo": {"username": user}, "oldObject": set,
        });
        if let Some(replicas) = replicas {
            let mut changed = set;
            changed["spec"]["replicas"] = json!(replicas);
            review["operation"] = json!("UPDATE");
            review["object"] = changed;
        }
        let is_executable = replicas.is_none() && self.sim.world().scenario.deletes_sets;
        let mut in_foreground = false;
        if is_executable {
            in_foreground = self.sim.world().chance(user, 30);
            let policy = if in_foreground { "Foreground" } else { "Background" };
            review["options"] = json!({"kind": "DeleteOptions", "propagationPolicy": policy});
        }
        let uid = review["oldObject"]["metadata"]["uid"].clone();
        // A set that was scaled to this number before loses no further pod by this request.
        let present = review["oldObject"]["spec"]["replicas"].as_u64();
        let targets = if replicas.is_some() && replicas >= present { &[] } else { targets };
        if let Some(outcome) = self.admit(user, &review, targets).await {
            return outcome;
        }
        if let Some(replicas) = replicas {
            return self.scale_set(user, &object_key, &uid, replicas).await;
        }
        let outcome = if is_executable {
            self.delete_set(user, &object_key, &uid, in_foreground).await
        } else {
            Outcome::Done
        };
        let mut world = self.sim.world();
        for (_, uid) in targets {
            if is_executable && outcome == Outcome::Done {
                world.oracle.execute(uid);
            } else {
                world.oracle.abort(uid);
            }
        }
        outcome
    }

    /// Changes the number of replicas after the approval.
    async fn scale_set(&self, user: &str, set: &Key, uid: &Value, replicas: u64) -> Outcome {
        let is_late = self.wait_for_other_webhooks(&format!("{user} {}", set.2), REQUEST_TIMEOUT).await;
        let mut world = self.sim.world();
        world.advance();
        if is_late || world.store.get(set).is_none_or(|stored| stored["metadata"]["uid"] != *uid) {
            return Outcome::Failed;
        }
        world.note(&format!("api: {user} scaled StatefulSet {} to {replicas}", set.2));
        *world.faults.injected.entry("scale-down").or_default() += 1;
        world.store.update(set, |object| object["spec"]["replicas"] = json!(replicas));
        Outcome::Done
    }

    /// Deletes a StatefulSet after its approval. In the foreground, it remains until its pods are deleted.
    async fn delete_set(&self, user: &str, set: &Key, uid: &Value, in_foreground: bool) -> Outcome {
        let is_late = self.wait_for_other_webhooks(&format!("{user} {}", set.2), REQUEST_TIMEOUT).await;
        let mut world = self.sim.world();
        world.advance();
        if is_late || world.store.get(set).is_none_or(|stored| stored["metadata"]["uid"] != *uid) {
            return Outcome::Failed;
        }
        let mode = if in_foreground { "foreground" } else { "background" };
        world.note(&format!("api: {user} deleted StatefulSet {} {uid} in the {mode}", set.2));
        *world.faults.injected.entry("deleted StatefulSet").or_default() += 1;
        if in_foreground {
            let at = world.started.elapsed().as_secs();
            world.store.update(set, |object| {
                object["metadata"]["deletionTimestamp"] =
                    json!(format!("2027-01-15T08:{:02}:{:02}Z", at / 60 % 60, at % 60));
                object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
            });
        } else {
            world.store.remove(set, None).unwrap();
        }
        Outcome::Done
    }

    /// Calls the guard. Returns `None` after an approval, and the outcome of the request otherwise.
    async fn admit(&self, user: &str, review: &Value, targets: &[(usize, String)]) -> Option<Outcome> {
        let requested_at = {
            let mut world = self.sim.world();
            world.advance();
            Instant::now()
        };
        let (request, last_created) = {
            let mut world = self.sim.world();
            (world.new_request(), world.store.last_created())
        };
        let verdict = self.call_guard(request, review).await;
        let mut world = self.sim.world();
        world.advance();
        let name = review["name"].as_str().unwrap();
        let Some(verdict) = verdict else {
            world.note(&format!("api: no verdict for {user} on {name}"));
            return Some(Outcome::Failed);
        };
        let reason = verdict.reason.as_str();
        let operation = review["operation"].as_str().unwrap();
        world.oracle.count(describe(review), reason);
        world.note(&format!("api: {operation} {name} by {user}: {}", verdict.text()));
        if !verdict.allows() {
            return Some(Outcome::Denied(reason));
        }
        if review["resource"]["resource"] == "nodes" && could_not_evaluate(&world, &verdict, targets) {
            // The guard approves the deletion of a node that it cannot evaluate. Such approvals are not executed.
            return Some(Outcome::Failed);
        }
        // The pod can have been replaced since the request. The API server then rejects the deletion.
        let exists =
            |uid: &str| world.store.list("pods", Some(NAMESPACE)).any(|pod| pod["metadata"]["uid"] == uid);
        let targets: Vec<(usize, String)> = targets.iter().filter(|(_, uid)| exists(uid)).cloned().collect();
        let targets = targets.as_slice();
        let World { oracle, cluster, approvals, started, .. } = &mut *world;
        let old = &review["oldObject"]["metadata"];
        let (owner, operation) = match (review["resource"]["resource"].as_str(), operation) {
            (Some("statefulsets"), "UPDATE") => (&old["uid"], Operation::ScaleDown),
            (Some("statefulsets"), _) => (&old["uid"], Operation::DeleteOwner),
            _ => (&old["ownerReferences"][0]["uid"], Operation::Delete),
        };
        let (owner, started) = (owner.as_str(), *started);
        let is_reserved = !verdict.warnings.iter().any(|warning| warning.contains("could not be reserved"));
        let approval =
            Approval { targets, reason, is_reserved, owner, operation, requested_at, last_created, started };
        let millis = u64::try_from(started.elapsed().as_millis()).unwrap();
        if review["resource"]["resource"] == "pods" {
            approvals.extend(targets.iter().map(|(_, uid)| (millis, uid.clone())));
        }
        oracle.check(cluster, &approval);
        None
    }

    /// Sends a review to a random replica. Returns `None` if the response does not arrive in time.
    async fn call_guard(&self, number: u64, review: &Value) -> Option<Verdict> {
        let call = &format!("request {number}");
        let (guard, loses_response, replica, generation, delay) = {
            let mut world = self.sim.world();
            let replicas = world.scenario.replicas;
            let replica = self.through.unwrap_or_else(|| world.index(call, replicas));
            let lost = world.faults.lost_responses;
            let loses_response = world.chance(call, u64::from(lost));
            let slow = world.faults.slow_calls;
            let delay = if world.chance(call, u64::from(slow)) { 1_000..=12_000 } else { 1..=4 };
            (self.replicas.get(replica), loses_response, replica, world.scenario.generations[replica], delay)
        };
        let called_at = Instant::now();
        self.sim.pause(call, delay).await;
        // Connections to a replica that does not run are refused.
        let guard = guard?;
        let remaining = WEBHOOK_TIMEOUT.saturating_sub(called_at.elapsed());
        let text = review.to_string();
        let request: AdmissionRequest<'_> = serde_json::from_str(&text).unwrap();
        let request = Request::from_admission(&request).unwrap();
        let deadline = Deadline::from_timeout(Some(WEBHOOK_TIMEOUT));
        let verdict = timeout(remaining, guard.evaluate(&request, deadline)).await;
        self.sim.receive(number).await;
        let has_crashed = self.sim.world().scenario.generations[replica] != generation;
        verdict.ok().filter(|_| !loses_response && !has_crashed)
    }

    /// Waits for the other admission webhooks of a request, for which this time remains. Returns whether the request is cancelled
    /// meanwhile.
    async fn wait_for_other_webhooks(&self, call: &str, remaining: Duration) -> bool {
        let (delay, is_cancelled) = {
            let mut world = self.sim.world();
            let is_slow = world.chance(call, 25);
            let delay = if is_slow { 1_000..=28_000 } else { 1..=40 };
            (world.time(call, delay), world.chance(call, 5))
        };
        self.sim.sleep(delay.min(remaining)).await;
        is_cancelled || delay >= remaining
    }
}

/// Whether the guard approved the deletion of a node without an evaluation, or possibly because it could not reach a member on
/// the node.
fn could_not_evaluate(world: &World, verdict: &Verdict, targets: &[(usize, String)]) -> bool {
    let is_hidden =
        |member: usize| world.faults.unreachable.iter().any(|(_, unreachable)| *unreachable == member);
    verdict.text().contains("could not be evaluated") || targets.iter().any(|(member, _)| is_hidden(*member))
}

/// Executes the approved deletion of a pod.
fn execute_deletion(world: &mut World, user: &str, pod: &Value, deletion: Deletion) {
    let metadata = &pod["metadata"];
    let (name, uid) = (metadata["name"].as_str().unwrap(), metadata["uid"].as_str().unwrap());
    let object_key = pod_key(NAMESPACE, name);
    let grace = match deletion {
        Deletion::Delete { grace_seconds } => grace_seconds,
        Deletion::Evict => 30,
    };
    world.oracle.execute(uid);
    world.note(&format!("api: {user} deleted {name} {uid} with a grace of {grace} s"));
    if grace == 0 {
        world.store.remove(&object_key, None).unwrap();
        return;
    }
    let at = world.started.elapsed().as_secs();
    world.store.update(&object_key, |pod| {
        if pod["metadata"]["deletionTimestamp"].is_null() {
            pod["metadata"]["deletionTimestamp"] =
                json!(format!("2027-01-15T08:{:02}:{:02}Z", at / 60 % 60, at % 60));
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        }
    });
}

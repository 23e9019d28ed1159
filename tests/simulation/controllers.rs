//! The StatefulSet controller and the garbage collector.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    api::{
        admission::{ApiServer, Deletion},
        server::pod_key,
        store::key,
    },
    operator::is_schedulable,
    scenario::{NAMESPACE, pod_object},
};

const SET_CONTROLLER: &str = "system:serviceaccount:kube-system:statefulset-controller";
const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// Creates all missing pods. Deletes superfluous pods after a scale-down, and pods of an old revision, one at a time.
pub(crate) async fn run_set_controller(api: ApiServer) {
    loop {
        api.sim.pause("set controller", 500..=1_500).await;
        let sets = api.sim.world().scenario.sets.clone();
        for (set, pods) in sets {
            let deleted = update_set(&api, set, pods);
            if let Some(pod) = deleted {
                api.delete_pod(SET_CONTROLLER, &pod, Deletion::Delete { grace_seconds: 30 }).await;
            }
        }
    }
}

/// Creates the missing pods of a set. `pods` is the number of replicas when the set is not scaled down. Returns the pod that a
/// scale-down or the rollout deletes next.
fn update_set(api: &ApiServer, set: &str, pods: usize) -> Option<String> {
    let mut world = api.sim.world();
    let object = world.store.get(&key("statefulsets", NAMESPACE, set))?.clone();
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let (uid, revision) = (object["metadata"]["uid"].as_str()?, object["spec"]["revision"].as_u64()?);
    let replicas = usize::try_from(object["spec"]["replicas"].as_u64()?).ok()?;
    let names: Vec<String> = (0..replicas).map(|pod| format!("{set}-{pod}")).collect();
    let mut are_ready = true;
    let superfluous = (replicas..pods).rev().map(|pod| format!("{set}-{pod}"));
    let superfluous = superfluous.filter_map(|name| {
        let pod = world.store.get(&pod_key(NAMESPACE, &name))?;
        Some((name, pod["metadata"]["deletionTimestamp"].is_null()))
    });
    let superfluous = superfluous.collect::<Vec<_>>().into_iter().next();
    let mut outdated = None;
    let (mut ready, mut updated) = (0, 0);
    for name in &names {
        let Some(pod) = world.store.get(&pod_key(NAMESPACE, name)) else {
            are_ready = false;
            if !is_schedulable(&world, name) {
                continue;
            }
            let pod = pod_object(set, uid, name, revision);
            let pod = world.store.create(pod_key(NAMESPACE, name), pod).unwrap();
            world.note(&format!(
                "set controller: created {name} {}",
                pod["metadata"]["uid"].as_str().unwrap()
            ));
            continue;
        };
        let is_ready = pod["status"]["containerStatuses"][0]["ready"] == true
            && pod["metadata"]["deletionTimestamp"].is_null();
        are_ready &= is_ready;
        ready += usize::from(is_ready);
        let is_owned = pod["metadata"]["ownerReferences"][0]["uid"] == uid;
        let label = &pod["metadata"]["labels"]["controller-revision-hash"];
        let is_updated = *label == format!("revision-{revision}").as_str();
        updated += usize::from(is_updated);
        if is_owned && !is_updated {
            outdated = Some(name.clone());
        }
    }
    let has_handovers = world.scenario.has_handovers;
    world.store.update(&key("statefulsets", NAMESPACE, set), |object| {
        object["status"] = json!({"readyReplicas": ready});
        if has_handovers {
            let latest = format!("revision-{revision}");
            let current =
                if updated == replicas { latest.clone() } else { String::from("revision-of-others") };
            object["status"]["updateRevision"] = json!(latest);
            object["status"]["currentRevision"] = json!(current);
        }
    });
    let deleted = match superfluous {
        // The next pod is deleted when this one is gone.
        Some((name, is_living)) => is_living.then_some(name),
        None => outdated,
    };
    deleted.filter(|_| are_ready)
}

/// Deletes pods whose owners do not exist or are being deleted in the foreground, all at once. Removes each owner that is being
/// deleted in the foreground and has no pods left.
pub(crate) async fn run_garbage_collector(api: ApiServer) {
    loop {
        api.sim.pause("garbage collector", 1_000..=6_000).await;
        remove_sets_without_pods(&api);
        let orphans: Vec<String> = {
            let world = api.sim.world();
            let sets: Vec<&Value> = world.store.list("statefulsets", Some(NAMESPACE)).collect();
            let has_owner = |pod: &&Value| {
                let owner = &pod["metadata"]["ownerReferences"][0]["uid"];
                let is_owner = |set: &&&Value| set["metadata"]["uid"] == *owner;
                sets.iter().find(is_owner).is_some_and(|set| set["metadata"]["deletionTimestamp"].is_null())
            };
            let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
            let pods = world.store.list("pods", Some(NAMESPACE)).filter(|pod| !has_owner(pod));
            pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).map(name).collect()
        };
        for orphan in orphans {
            let api = api.clone();
            let sim = api.sim.clone();
            sim.spawn("deletion of the garbage collector", async move {
                api.delete_pod(GARBAGE_COLLECTOR, &orphan, Deletion::Delete { grace_seconds: 30 }).await;
            });
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn remove_sets_without_pods(api: &ApiServer) {
    let mut world = api.sim.world();
    let is_deleted = |set: &&Value| !set["metadata"]["deletionTimestamp"].is_null();
    let deleted: Vec<Value> =
        world.store.list("statefulsets", Some(NAMESPACE)).filter(is_deleted).cloned().collect();
    for set in deleted {
        let (name, uid) = (set["metadata"]["name"].as_str().unwrap(), &set["metadata"]["uid"]);
        let is_owned = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == *uid;
        if !world.store.list("pods", Some(NAMESPACE)).any(is_owned) {
            world.store.remove(&key("statefulsets", NAMESPACE, name), None).unwrap();
            world.note(&format!("garbage collector: removed StatefulSet {name}"));
        }
    }
}

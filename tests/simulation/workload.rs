//! The requests of people, drains and rollouts.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    api::{
        admission::{ApiServer, Deletion, Outcome},
        server::pod_key,
        store::key,
    },
    scenario::NAMESPACE,
    world::{Sim, World},
};

/// The longest time of a drain.
const DRAIN_TIME: Duration = Duration::from_secs(40);

/// Issues requests until this instant.
pub(crate) async fn run(api: ApiServer, person: usize, end: Instant) {
    let user = format!("person-{person}");
    while Instant::now() < end {
        api.sim.pause(&user, 200..=6_000).await;
        let (kind, pods) = {
            let mut world = api.sim.world();
            (world.number(&user, 0..=19), world.scenario.pod_names())
        };
        let pod = random_pod(&api, &user, &pods);
        match kind {
            0..=7 => drop(api.delete_pod(&user, &pod, Deletion::Delete { grace_seconds: 30 }).await),
            8 => drop(api.delete_pod(&user, &pod, Deletion::Delete { grace_seconds: 0 }).await),
            9..=11 => drop(api.delete_pod(&user, &pod, Deletion::Evict).await),
            12..=14 => drain(&api, &pod).await,
            15..=17 => delete_together(&api, &user, &pods).await,
            18 if !api.sim.world().scenario.deletes_sets => roll_out(&api),
            _ => change_set(&api, &user).await,
        }
    }
}

fn random_pod(api: &ApiServer, user: &str, pods: &[String]) -> String {
    let mut world = api.sim.world();
    let index = world.index(user, pods.len());
    pods[index].clone()
}

/// Evicts a pod and retries, as `kubectl drain` does.
pub(crate) async fn drain(api: &ApiServer, pod: &str) {
    let end = Instant::now() + DRAIN_TIME;
    while Instant::now() < end {
        match api.delete_pod("drain", pod, Deletion::Evict).await {
            Outcome::Done | Outcome::NotFound => return,
            Outcome::Denied(_) | Outcome::Failed => sleep(Duration::from_secs(5)).await,
        }
    }
}

/// Deletes several pods at the same time, as a loop of `kubectl delete` or several people do.
async fn delete_together(api: &ApiServer, user: &str, pods: &[String]) {
    let calls = pods.iter().map(|pod| async move {
        api.sim.pause(&format!("{user} {pod}"), 0..=300).await;
        let deletion = Deletion::Delete { grace_seconds: 30 };
        api.delete_pod(user, pod, deletion).await;
    });
    futures::future::join_all(calls).await;
}

/// Changes the template of each set.
fn roll_out(api: &ApiServer) {
    let mut world = api.sim.world();
    world.note("person: rollout");
    for (set, _) in world.scenario.sets.clone() {
        world.store.update(&key("statefulsets", NAMESPACE, set), |object| {
            object["spec"]["revision"] = (object["spec"]["revision"].as_u64().unwrap() + 1).into();
        });
    }
}

/// The time for which a break-glass annotation applies: longer than the difference of the clocks of the replicas.
const BREAK_GLASS_MINUTES: u64 = 8;

/// The longest time until the pods of a StatefulSet that is deleted in the foreground are gone.
const CASCADE_TIME: Duration = Duration::from_secs(300);

/// Requests the deletion of a set, or a scale-down, after which the set is scaled up again. In runs with cascades, all requests
/// are deletions, most of them with break-glass, and a set that was deleted is created again.
async fn change_set(api: &ApiServer, user: &str) {
    let (set, set_uid, replicas, targets) = {
        let mut world = api.sim.world();
        let sets = world.scenario.sets.len();
        let index = world.index(user, sets);
        let (set, pods) = world.scenario.sets[index];
        let deletes_sets = world.scenario.deletes_sets;
        let remaining = world.index(user, pods);
        let replicas = (world.chance(user, 50) && !deletes_sets).then_some(remaining);
        if deletes_sets && world.chance(user, 70) {
            break_glass(&mut world, set);
        }
        let pod = |pod: usize| {
            let name = format!("{set}-{pod}");
            let uid = world.store.get(&pod_key(NAMESPACE, &name))?["metadata"]["uid"].as_str()?.to_owned();
            Some((world.cluster.index_of(&name)?, uid))
        };
        let stored = world.store.get(&key("statefulsets", NAMESPACE, set));
        let set_uid = stored.map(|stored| stored["metadata"]["uid"].clone()).unwrap_or_default();
        let deleted = replicas.unwrap_or_default()..pods;
        (set, set_uid, replicas, deleted.filter_map(pod).collect::<Vec<_>>())
    };
    let requested = replicas.map(|replicas| u64::try_from(replicas).unwrap());
    let outcome = api.change_set(user, set, requested, &targets).await;
    if outcome == Outcome::Done && replicas.is_some() {
        api.sim.pause(user, 10_000..=40_000).await;
        scale_up(&api.sim, set);
        return;
    }
    if outcome == Outcome::Done && replicas.is_none() && api.sim.world().scenario.deletes_sets {
        api.sim.pause(user, 1_000..=30_000).await;
        create_again(api, set, &set_uid).await;
    }
}

/// Restores the number of replicas of a set.
fn scale_up(sim: &Sim, set: &'static str) {
    let mut world = sim.world();
    let replicas = world.scenario.set_object(set)["spec"]["replicas"].clone();
    world.note(&format!("person: scaled StatefulSet {set} up to {replicas}"));
    world.store.update(&key("statefulsets", NAMESPACE, set), |object| object["spec"]["replicas"] = replicas);
}

/// Permits the deletion of a set for the next minutes.
fn break_glass(world: &mut World, set: &str) {
    let until = world.started.elapsed().as_secs() / 60 + BREAK_GLASS_MINUTES;
    world.store.update(&key("statefulsets", NAMESPACE, set), |object| {
        object["metadata"]["annotations"] = json!({
            "etcd-guard.io/allow-delete-until": format!("2027-01-15T08:{until:02}:00Z"),
            "etcd-guard.io/allow-delete-reason": "simulation",
        });
    });
}

/// Creates the deleted set with this uid again, when its name is free. Another person may have created it already.
async fn create_again(api: &ApiServer, set: &str, uid: &Value) {
    let object_key = key("statefulsets", NAMESPACE, set);
    let started = Instant::now();
    let exists = || {
        let world = api.sim.world();
        world.store.get(&object_key).is_some_and(|stored| stored["metadata"]["uid"] == *uid)
    };
    while exists() {
        if started.elapsed() > CASCADE_TIME {
            let text = format!("the cascade of StatefulSet {set} did not end within {CASCADE_TIME:?}");
            api.sim.world().oracle.violations.push(text);
            return;
        }
        api.sim.sleep(Duration::from_secs(1)).await;
    }
    let mut world = api.sim.world();
    let object = world.scenario.set_object(set);
    if world.store.create(object_key, object).is_err() {
        return;
    }
    world.note(&format!("person: created StatefulSet {set} again"));
}

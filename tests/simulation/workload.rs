//! The requests of people, drains and rollouts.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    api::{
        admission::{ApiServer, Deletion, Outcome},
        server::pod_key,
        store::key,
    },
    scenario::NAMESPACE,
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
            18 => roll_out(&api),
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

/// Requests the deletion of a set, or a scale-down to no pods.
async fn change_set(api: &ApiServer, user: &str) {
    let (set, replicas, targets) = {
        let mut world = api.sim.world();
        let sets = world.scenario.sets.len();
        let index = world.index(user, sets);
        let (set, pods) = world.scenario.sets[index];
        let replicas = world.chance(user, 50).then_some(0);
        let pod = |pod: usize| {
            let name = format!("{set}-{pod}");
            let uid = world.store.get(&pod_key(NAMESPACE, &name))?["metadata"]["uid"].as_str()?.to_owned();
            Some((world.cluster.index_of(&name)?, uid))
        };
        (set, replicas, (0..pods).filter_map(pod).collect::<Vec<_>>())
    };
    api.change_set(user, set, replicas, &targets).await;
}

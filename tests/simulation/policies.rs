//! A person who changes the annotations with policies, and the policies that were in force.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    api::{
        server::pod_key,
        store::{Key, key},
    },
    scenario::NAMESPACE,
    world::{Sim, World},
};

/// The name of the random numbers.
const POLICIES: &str = "policies";

/// The annotation that permits the deletion of the only voter.
const SINGLE_MEMBER: &str = "etcd-guard.io/single-member";

/// The annotation with the least number of voters.
const MIN_VOTERS: &str = "etcd-guard.io/min-voters";

/// The time before a request from which the guard can still use a policy that was changed. It exceeds the sum of the longest delay of
/// watch events (8 s) and an outage of the API server (4 s), and leaves 8 s for the reconnection of the watch.
const DELAY: Duration = Duration::from_secs(20);

/// The values of two policies since the start of the run.
#[derive(Default)]
pub(crate) struct Policies(Vec<Change>);

/// The values after a change.
struct Change {
    at: Instant,
    /// Whether the namespace and the StatefulSet permit the deletion of the only voter; `None` without a valid annotation. The
    /// StatefulSet takes precedence.
    namespace_permits: Option<bool>,
    set_permits: Option<bool>,
    /// The least number of voters that the namespace requires.
    min_voters: usize,
}

// === impl Policies ===

impl Policies {
    /// Whether an evaluation that began at this instant can use a permission to delete the only voter. The watches of the namespace
    /// and of the StatefulSet can have different delays.
    pub(crate) fn permitted_single_member_since(&self, began_at: Instant) -> bool {
        let uses = |value: fn(&Change) -> Option<bool>, expected: Option<bool>| {
            self.usable(began_at).any(|change| value(change) == expected)
        };
        let by_namespace =
            uses(|change| change.set_permits, None) && uses(|change| change.namespace_permits, Some(true));
        by_namespace || uses(|change| change.set_permits, Some(true))
    }

    /// Returns the least number of voters that an evaluation that began at this instant requires, at least.
    pub(crate) fn min_voters_since(&self, began_at: Instant) -> usize {
        let starts_later = self.0.first().is_none_or(|change| change.at + DELAY >= began_at);
        let least = self.usable(began_at).map(|change| change.min_voters).min();
        least.filter(|_| !starts_later).unwrap_or_default()
    }

    /// Returns the values that an evaluation that began at this instant can use.
    fn usable(&self, began_at: Instant) -> impl Iterator<Item = &Change> {
        let next = self.0.iter().skip(1).map(|next| Some(next.at)).chain([None]);
        let changes = self.0.iter().zip(next);
        changes
            .filter(move |(_, end)| end.is_none_or(|end| end + DELAY >= began_at))
            .map(|(change, _)| change)
    }
}

/// Until this instant, changes annotations with policies on the namespace, the StatefulSets and pods. Some values are invalid.
pub(crate) async fn change(sim: Sim, end: Instant) {
    record(&mut sim.world());
    loop {
        sim.pause(POLICIES, 2_000..=30_000).await;
        if Instant::now() >= end {
            return;
        }
        let mut world = sim.world();
        let voters = world.cluster.voters().count();
        let mut any = |values: &[&str]| String::from(values[world.index(POLICIES, values.len())]);
        // A new pod has no annotations. The policies that the oracle follows are therefore set on other objects.
        let (resources, annotation, value): (&[&str], _, _) =
            match any(&["leader", "single", "voters"]).as_str() {
                "leader" => {
                    let value = any(&["allow", "transfer", "deny", "maybe"]);
                    (&["namespaces", "statefulsets", "pods"], "etcd-guard.io/leader", value)
                }
                "single" => (&["namespaces", "statefulsets"], SINGLE_MEMBER, any(&["allow", "deny", "yes"])),
                _ => {
                    let number = world.index(POLICIES, voters + 2);
                    (&["namespaces"], MIN_VOTERS, number.to_string())
                }
            };
        let mut objects = annotated_objects(&world);
        objects.retain(|(resource, ..)| resources.contains(&resource.as_str()));
        let object = objects[world.index(POLICIES, objects.len())].clone();
        annotate(&mut world, &object, annotation, &value);
    }
}

/// Sets an annotation.
fn annotate(world: &mut World, object: &Key, annotation: &str, value: &str) {
    world.note(&format!("person: {} {} has {annotation}={value}", object.0, object.2));
    world.store.update(object, |object| object["metadata"]["annotations"][annotation] = value.into());
    record(world);
}

/// Records the values of the policies.
fn record(world: &mut World) {
    let annotation = |object: &Key, name: &str| {
        let stored = world.store.get(object)?;
        stored["metadata"]["annotations"][name].as_str().map(str::to_owned)
    };
    let permits = |object: &Key| match annotation(object, SINGLE_MEMBER)?.as_str() {
        "allow" => Some(true),
        "deny" => Some(false),
        _ => None,
    };
    let namespace_permits = permits(&namespace());
    // Only a cluster of one StatefulSet can have one voter.
    let set_permits = permits(&key("statefulsets", NAMESPACE, world.scenario.sets[0].0));
    let min_voters = annotation(&namespace(), MIN_VOTERS).map_or(0, |value| value.parse().unwrap());
    world.oracle.policies.0.push(Change { at: Instant::now(), namespace_permits, set_permits, min_voters });
}

/// Permits the deletion of the only voter.
pub(crate) fn permit_single_member(world: &mut World) {
    annotate(world, &namespace(), SINGLE_MEMBER, "allow");
}

/// Removes the annotations of all objects: those with policies, and those that permit deletions.
pub(crate) fn remove_annotations(world: &mut World) {
    for object in annotated_objects(world) {
        if world.store.get(&object).is_some_and(|stored| stored["metadata"]["annotations"].is_object()) {
            world.store.update(&object, |object| {
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("annotations");
                }
            });
        }
    }
    record(world);
}

fn namespace() -> Key {
    key("namespaces", "", NAMESPACE)
}

/// Returns the existing objects whose annotations apply to the pods of the cluster.
fn annotated_objects(world: &World) -> Vec<Key> {
    let sets = world.scenario.sets.iter().map(|(set, _)| key("statefulsets", NAMESPACE, set));
    let pods = world.scenario.pod_names().into_iter().map(|pod| pod_key(NAMESPACE, &pod));
    let objects = std::iter::once(namespace()).chain(sets).chain(pods);
    objects.filter(|object| world.store.get(object).is_some()).collect()
}

//! The objects of the tested cluster, and the faults that depend on the owners of its pods.

use std::{fmt, str::FromStr, sync::atomic::Ordering, time::Duration};

use fastrand::Rng;
use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Pod},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use nix::sys::signal::Signal;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    environment::{Environment, HEALTHY_TIMEOUT},
    stress::{StressTest, Subject},
    x_pdb,
};
use test_support::{
    layout::{Layout, Topology},
    wait::wait_until,
};

/// The program that contains the garbage collector.
const COLLECTOR: &str = "kube-controller-manager";

/// The grace period of a deletion by default, in seconds. A preStop hook that lasts longer is cut off, so that only
/// deletions with a longer grace period are slow.
const GRACE: u64 = 2;

/// The time that remains for etcd after the preStop hook of a slow termination, in seconds.
const STOP_TIME: u64 = 30;

/// The pause between two searches for missing pods without an owner.
const RECREATE_PAUSE: Duration = Duration::from_millis(200);

/// How long a dangling owner remains, in milliseconds. The garbage collector repeats a denied request ten times in the
/// first five seconds.
const DANGLING: std::ops::Range<u64> = 2000..5000;

/// The relation between the members and the owners of their pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owners(pub(crate) Topology);

impl Owners {
    const ALL: [(&'static str, Topology); 4] = [
        ("one-set", Topology::OneSet),
        ("set-per-member", Topology::SetPerMember),
        ("bare-pods", Topology::BarePods),
        ("two-sets", Topology::TwoSets),
    ];

    /// Whether pods have a preStop hook. The pods of the shipped manifest remain as they are.
    fn has_hook(self) -> bool {
        self.0 != Topology::OneSet
    }
}

impl fmt::Display for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, topology)| *topology == self.0).map(|(name, _)| *name);
        f.write_str(name.unwrap_or("other owners"))
    }
}

impl FromStr for Owners {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, topology)| Self(*topology)).ok_or_else(|| format!("unknown owners: {text}"))
    }
}

impl StressTest {
    fn layout(&self) -> Layout {
        Layout {
            topology: self.owners.0,
            members: self.members,
            annotations: vec![("etcd-guard.io/leader", "transfer")],
            ..Layout::default()
        }
    }

    /// Returns the names of the pods. Names with an ordinal keep their address when they are created again.
    pub(crate) fn pod_names(&self) -> Vec<String> {
        let names = self.layout().pod_names().expect("pods with fixed names");
        names.iter().map(|name| with_ordinal(name)).collect()
    }

    /// Returns the objects of the cluster, whose pods can terminate slowly.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let mut objects = self.layout().objects();
        // Denials of the budget after an approval leave unused reservations, which
        // control_plane/deletions/later_refusal.rs tests.
        let has_budget = matches!(self.subject, Subject::Pdb | Subject::XPdb);
        objects.retain(|object| object["kind"] != "PodDisruptionBudget" || has_budget);
        for object in &mut objects {
            if object["kind"] == "PodDisruptionBudget" && self.subject == Subject::XPdb {
                *object = x_pdb::budget(object);
            }
            let spec = match object["kind"].as_str() {
                Some("StatefulSet") => &mut object["spec"]["template"]["spec"],
                Some("Pod") => {
                    let name = with_ordinal(object["metadata"]["name"].as_str().unwrap_or_default());
                    object["metadata"]["name"] = json!(name);
                    &mut object["spec"]
                }
                // The default policy is safer without a guard: unready pods may not be evicted while other pods are
                // unready.
                Some("PodDisruptionBudget") => {
                    object["spec"].as_object_mut().unwrap().remove("unhealthyPodEvictionPolicy");
                    continue;
                }
                _ => continue,
            };
            if self.owners.has_hook() {
                let hook = format!("sleep {}", self.slow.as_secs());
                spec["terminationGracePeriodSeconds"] = json!(GRACE);
                spec["containers"][0]["lifecycle"] =
                    json!({"preStop": {"exec": {"command": ["sh", "-c", hook]}}});
            }
        }
        objects
    }

    /// The grace period of a slow termination in seconds, if pods have a hook.
    pub(crate) fn slow_grace(&self) -> Option<u32> {
        let seconds = self.slow.as_secs() + STOP_TIME;
        self.owners.has_hook().then(|| u32::try_from(seconds).expect("a short hook"))
    }
}

/// Returns `ea-0` for the pod `ea-pod`.
fn with_ordinal(name: &str) -> String {
    name.strip_suffix("-pod").map_or_else(|| name.to_owned(), |member| format!("{member}-0"))
}

impl Environment {
    /// Creates missing pods without an owner and missing StatefulSets, as an operator does, until the future is dropped.
    pub(crate) async fn recreate_objects(&self) {
        let bare: Vec<Pod> = self.objects_of_kind("Pod");
        let sets: Vec<StatefulSet> = self.objects_of_kind("StatefulSet");
        loop {
            create_missing(&self.pods, &bare).await;
            create_missing(&Api::namespaced(self.client.clone(), &self.namespace), &sets).await;
            sleep(RECREATE_PAUSE).await;
        }
    }

    fn objects_of_kind<K: DeserializeOwned>(&self, kind: &str) -> Vec<K> {
        let objects = self.objects.iter().filter(|object| object["kind"] == kind);
        objects.map(|object| serde_json::from_value(object.clone()).expect("an object")).collect()
    }

    /// Replaces the owner of a pod or a StatefulSet by one that never existed, as a restore does, and removes the
    /// reference after some seconds. The garbage collector requests the deletion of the object. Returns whether the
    /// reference was stored.
    pub(crate) async fn dangle(&self, rng: &mut Rng) -> bool {
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        if self.has_sets() && rng.bool() {
            let Ok(list) = sets.list(&ListParams::default()).await else { return false };
            let Some(set) = rng.choice(&list.items) else { return false };
            return dangle_object(&sets, &set.name_any(), set.uid().as_deref(), rng).await;
        }
        let present = self.oracle.present().await;
        let Some(name) = rng.choice(&present) else { return false };
        let Ok(Some(pod)) = self.pods.get_opt(name).await else { return false };
        pod.metadata.deletion_timestamp.is_none()
            && dangle_object(&self.pods, name, pod.uid().as_deref(), rng).await
    }

    /// Deletes the StatefulSet of one member under break-glass, while the garbage collector does not run. The member serves
    /// until [`Self::resume_collector`], longer than a reservation lives.
    pub(crate) async fn delete_set_slowly(&self, test: &StressTest, rng: &mut Rng) {
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let member = rng.choice(&self.oracle.names).expect("members");
        let (name, _) = member.rsplit_once('-').expect("a pod of a StatefulSet");
        let set = sets.get(name).await.expect("the StatefulSet exists");
        self.oracle.permit_deletion(name).await;
        self.control_plane.signal(COLLECTOR, Signal::SIGSTOP);
        let until = Timestamp::now() + SignedDuration::from_mins(10);
        let annotations = json!({
            "etcd-guard.io/allow-delete-until": until.to_string(),
            "etcd-guard.io/allow-delete-reason": "a cascade in the stress test",
        });
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        sets.patch(name, &PatchParams::default(), &patch).await.expect("the StatefulSet is annotated");
        let uid = set.uid();
        wait_until("the StatefulSet is deleted", HEALTHY_TIMEOUT, async || {
            // A StatefulSet of another uid replaces the deleted one.
            let preconditions = Preconditions { uid: uid.clone(), resource_version: None };
            let parameters = DeleteParams::background().preconditions(preconditions);
            let _ = sets.delete(name, &parameters).await;
            sets.get_opt(name).await.is_ok_and(|current| current.and_then(|set| set.uid()) != uid)
        })
        .await;
        self.oracle.forbid_deletion(name).await;
        self.calm_down(test.slow).await;
    }

    /// Lets the garbage collector run again after the time of a slow cascade, if one is in progress.
    pub(crate) async fn resume_collector(&self, test: &StressTest, is_stopped: bool) {
        if is_stopped {
            sleep(test.slow).await;
            self.control_plane.signal(COLLECTOR, Signal::SIGCONT);
            self.slow_cascades.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn has_sets(&self) -> bool {
        self.objects.iter().any(|object| object["kind"] == "StatefulSet")
    }
}

/// Creates the objects that do not exist. The API server may be down.
async fn create_missing<K>(api: &Api<K>, objects: &[K])
where
    K: kube::Resource + Clone + fmt::Debug + DeserializeOwned + Serialize,
{
    for object in objects {
        if matches!(api.get_opt(&object.name_any()).await, Ok(None)) {
            let _ = api.create(&PostParams::default(), object).await;
        }
    }
}

async fn dangle_object<K>(api: &Api<K>, name: &str, uid: Option<&str>, rng: &mut Rng) -> bool
where
    K: kube::Resource + Clone + fmt::Debug + DeserializeOwned + Serialize,
{
    let patch = |owners: Value| Patch::Merge(json!({"metadata": {"uid": uid, "ownerReferences": owners}}));
    let owner = json!([{
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "restored",
        "uid": format!("00000000-0000-4000-8000-{:012x}", rng.u64(..1 << 48)),
        "controller": true,
    }]);
    let parameters = PatchParams::default();
    if api.patch(name, &parameters, &patch(owner)).await.is_err() {
        return false;
    }
    sleep(Duration::from_millis(rng.u64(DANGLING))).await;
    // The object may have been deleted. A StatefulSet adopts pods without an owner. The API server may be restarting.
    while let Err(error) = api.patch(name, &parameters, &patch(json!([]))).await {
        if matches!(&error, kube::Error::Api(status) if matches!(status.code, 404 | 409 | 422)) {
            break;
        }
        sleep(RECREATE_PAUSE).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_grace_periods_are_slow() {
        let owners = "set-per-member".parse().unwrap();
        let test = StressTest { owners, slow: Duration::from_secs(75), ..crate::SHORT };
        let objects = test.objects();
        let set = objects.iter().find(|object| object["kind"] == "StatefulSet").unwrap();
        let spec = &set["spec"]["template"]["spec"];
        assert_eq!(spec["terminationGracePeriodSeconds"], 2);
        assert_eq!(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][2], "sleep 75");
        assert_eq!(test.slow_grace(), Some(105));
        assert_eq!(crate::SHORT.slow_grace(), None);
    }

    #[test]
    fn bare_pods_keep_their_addresses() {
        let test = StressTest { owners: "bare-pods".parse().unwrap(), ..crate::SHORT };
        assert_eq!(test.pod_names(), ["ea-0", "eb-0", "ec-0"]);
    }
}

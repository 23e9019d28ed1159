//! The member pod cache: names of the pods that run all voters of a cluster, which the next evaluation reads directly.
//!
//! A consistent list of pods waits until the API server's watch cache has caught up with etcd, which takes up to 100 ms
//! after a write to any other resource. A read of a single pod by its name is served from etcd itself. If the last
//! snapshot has a pod for every voter, of any owner, the next evaluation reads these pods by name, and lists the namespace
//! only if it requires further pods (decision 39).
//!
//! The cache also contains the addresses of the cluster's pods whose members replied. The next evaluation connects to them during its
//! reads.

use std::sync::Arc;

use futures::future::try_join_all;

use crate::observe::namespace_pods::NamespacePods;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::{
    cluster_key::{CLUSTER_TTL, ClusterKey, MAX_CLUSTERS},
    discovery::etcd_pod::EtcdPod,
    etcd::{endpoint::Endpoint, error::MemberError, member::ClusterId},
    membership::Membership,
    objects::pod::Pod,
    snapshot::{MemberPod, Snapshot},
};
use etcd_guard_kubernetes::{ApiReader, LookupError};

/// Maximum number of pods that are read one by one. etcd recommends at most seven members.
const MAX_PODS: usize = 9;

/// Maximum number of clusters with stored addresses. An entry can hold the certificates and the key of a cluster, of several KiB.
const MAX_CLUSTERS_WITH_ADDRESSES: u64 = 1024;

/// The names of each cluster's member pods, and the addresses of its members.
pub(crate) struct MemberPodCache {
    names: ExpiringCache<ClusterKey, MemberPodNames>,
    /// The addresses of the cluster's pods whose members replied in the last snapshot, without those that require a login. No
    /// verdict depends on them.
    endpoints: ExpiringCache<ClusterKey, Arc<[Endpoint]>>,
}

/// The names of a cluster's etcd pods, which together run every voter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberPodNames {
    /// Each name with the key of its owner.
    pods: Arc<[(String, ClusterKey)]>,
    pub(crate) cluster: ClusterId,
}

// === impl MemberPodCache ===

impl MemberPodCache {
    /// Creates an empty cache.
    pub(crate) fn new() -> Self {
        let lifetime = Lifetime::SinceInsertion(CLUSTER_TTL);
        Self {
            names: ExpiringCache::new(MAX_CLUSTERS, lifetime),
            endpoints: ExpiringCache::new(MAX_CLUSTERS_WITH_ADDRESSES, lifetime),
        }
    }

    /// Returns the names of the cluster's member pods.
    pub(crate) fn get(&self, cluster_key: &ClusterKey) -> Option<MemberPodNames> {
        self.names.get(cluster_key)
    }

    /// Returns the addresses of the cluster's pods whose members replied in the last snapshot.
    pub(crate) fn endpoints(&self, cluster_key: &ClusterKey) -> Option<Arc<[Endpoint]>> {
        self.endpoints.get(cluster_key)
    }

    /// Stores the addresses, and stores or removes the names, after a snapshot of these pods. Returns false if the pods were read by name and an
    /// evaluation requires further pods.
    pub(crate) fn update(&self, cluster_key: &ClusterKey, snapshot: &Snapshot, pods: &NamespacePods) -> bool {
        let replied = pods.endpoints_of_replies(snapshot).filter(|endpoint| endpoint.can_connect_early());
        self.endpoints.insert(cluster_key.clone(), replied.take(MAX_PODS).cloned().collect());
        match (MemberPodNames::from_snapshot(snapshot, pods), pods.read_as) {
            (Some(names), None) => {
                self.names.insert(cluster_key.clone(), names);
                true
            }
            // The id that was assumed when the reservations were read.
            (Some(names), Some(id)) if names.cluster == id => true,
            (_, read_as) => {
                self.names.invalidate(cluster_key);
                read_as.is_none()
            }
        }
    }
}

// === impl MemberPodNames ===

impl MemberPodNames {
    /// Returns the names of the cluster's pods, or `None` unless every listed voter runs in one of them. Then no other
    /// pod of the namespace can change the number of voters. The successor of a terminating pod that does not reply may
    /// have another name, and a list of the pods can admit credentials for a pod of another owner.
    fn from_snapshot(snapshot: &Snapshot, pods: &NamespacePods) -> Option<Self> {
        let membership = Membership::new(snapshot).ok()?;
        let others = pods.other_pods.iter().filter(|(pod, _)| {
            snapshot.pod(&pod.metadata.name).is_some_and(|other| other.uid == pod.metadata.uid)
        });
        let all: Vec<&Pod> = pods.pods.iter().chain(others).map(|(pod, _)| pod).collect();
        let is_known = |pod: &MemberPod| {
            let is_rejected = matches!(pod.reply.cause(), Some(MemberError::CredentialsRejected(_)));
            (!pod.terminating || pod.reply.status().is_some())
                && (pod.owner.has_target || !is_rejected)
                && all.iter().any(|known| known.metadata.name == pod.name)
        };
        membership.voters().next()?;
        let cluster = snapshot.cluster_id()?;
        let is_complete =
            all.len() <= MAX_PODS && membership.voters().all(|voter| voter.pod.is_some_and(is_known));
        let key = |pod: &Pod| ClusterKey::from_pod(&pods.namespace, pod);
        let names = all.iter().map(|pod| (pod.metadata.name.clone(), key(pod)));
        is_complete.then(|| Self { pods: names.collect(), cluster })
    }

    /// Returns whether the cache contains a pod with this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.pods.iter().any(|(known, _)| known == name)
    }

    /// Whether these pods, which were read by the names in the cache, still run etcd for the same owners.
    pub(crate) fn are_current(&self, pods: &NamespacePods) -> bool {
        let is_known = |(pod, _): &&(Pod, EtcdPod)| {
            let is_same = |(name, key): &(String, ClusterKey)| {
                *name == pod.metadata.name && key.contains(&pods.namespace, pod)
            };
            self.pods.iter().any(is_same)
        };
        pods.pods.iter().chain(&pods.other_pods).filter(is_known).count() == self.pods.len()
    }

    /// Reads each pod by its name. Returns `None` if a pod does not exist or cannot be read: a list may still succeed.
    pub(super) async fn read(
        &self,
        pods: &ApiReader,
        namespace: &str,
    ) -> Result<Option<Vec<Pod>>, LookupError> {
        match try_join_all(self.pods.iter().map(|(name, _)| pods.get_pod(namespace, name))).await {
            Ok(pods) => Ok(Some(pods)),
            // A list would probably time out as well.
            Err(error @ LookupError::TimedOut { .. }) => Err(error),
            Err(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use etcd_guard_core::{
        etcd::{endpoint::User, probe_result::ProbeResult},
        snapshot::fixture::cluster,
    };
    use etcd_guard_kubernetes::fake::{api_server, status_failure};

    fn pod(n: usize) -> Value {
        json!({
            "metadata": {
                "name": format!("etcd-{n}"), "namespace": "prod", "uid": format!("uid-{n}"),
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "etcd",
                    "controller": true}],
            },
            "spec": {"containers": [{"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"}]},
            "status": {"phase": "Running"},
        })
    }

    /// The pods `etcd-0` to `etcd-N` of one StatefulSet.
    fn pods(size: usize) -> NamespacePods {
        let pods: Vec<Pod> = (0..size).map(|n| serde_json::from_value(pod(n)).unwrap()).collect();
        NamespacePods::new(&ClusterKey::from_pod("prod", &pods[0]), pods)
    }

    fn strings(names: &MemberPodNames) -> Vec<&str> {
        names.pods.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Applies `change` to the member list that each member returns.
    fn with_lists(
        mut snapshot: Snapshot,
        change: impl Fn(&mut Vec<etcd_guard_core::etcd::member::ListedMember>),
    ) -> Snapshot {
        for pod in &mut snapshot.pods {
            if let ProbeResult::Healthy { members, .. } = &mut pod.reply {
                change(members);
            }
        }
        snapshot
    }

    #[test]
    fn stores_pods_that_run_all_voters() {
        let names = MemberPodNames::from_snapshot(&cluster(3), &pods(3)).unwrap();
        assert_eq!(strings(&names), ["etcd-0", "etcd-1", "etcd-2"]);
    }

    /// The voter is matched to its pod by its peer URL.
    #[test]
    fn stores_the_pod_of_a_crashed_voter() {
        assert!(MemberPodNames::from_snapshot(&cluster(3).crash(1), &pods(3)).is_some());
    }

    #[test]
    fn rejects_voters_without_a_known_pod() {
        let complete = cluster(3);
        let mut seen = complete.clone();
        seen.pods.pop();
        assert_eq!(MemberPodNames::from_snapshot(&seen, &pods(2)), None);
        assert_eq!(MemberPodNames::from_snapshot(&complete, &pods(2)), None);
    }

    #[test]
    fn stores_voters_of_other_owners_with_their_owners() {
        let owner = |n: usize, owner: &str| -> Pod {
            let mut pod = pod(n);
            pod["metadata"]["ownerReferences"][0]["uid"] = json!(owner);
            serde_json::from_value(pod).unwrap()
        };
        let pods = vec![owner(0, "etcd"), owner(1, "b"), owner(2, "c"), owner(3, "unrelated")];
        let read = |pods: &[Pod]| NamespacePods::new(&ClusterKey::from_pod("prod", &pods[0]), pods.to_vec());
        let names = MemberPodNames::from_snapshot(&cluster(3), &read(&pods)).unwrap();
        assert_eq!(strings(&names), ["etcd-0", "etcd-1", "etcd-2"]);
        assert!(names.are_current(&read(&pods[..3])));
        assert!(!names.are_current(&read(&pods[..2])), "a pod is missing");
        assert!(
            !names.are_current(&read(&[owner(0, "etcd"), owner(1, "c"), owner(2, "c")])),
            "another owner"
        );
    }

    #[test]
    fn pods_that_no_longer_run_etcd_are_not_current() {
        let key = ClusterKey::from_pod("prod", &serde_json::from_value(pod(0)).unwrap());
        let names = MemberPodNames::from_snapshot(&cluster(1), &pods(1)).unwrap();
        let is_current = |pod: Value| {
            names.are_current(&NamespacePods::new(&key, vec![serde_json::from_value(pod).unwrap()]))
        };
        assert!(is_current(pod(0)));
        let mut finished = pod(0);
        finished["status"]["phase"] = json!("Failed");
        assert!(!is_current(finished));
        let mut other = pod(0);
        other["spec"]["containers"][0]["image"] = json!("nginx");
        assert!(!is_current(other));
    }

    #[test]
    fn rejects_terminating_pods_without_a_reply() {
        let terminating = cluster(3).change(1, |pod| pod.terminating = true);
        assert!(MemberPodNames::from_snapshot(&terminating, &pods(3)).is_some());
        assert_eq!(MemberPodNames::from_snapshot(&terminating.silence(1), &pods(3)), None);
    }

    #[test]
    fn rejects_voters_that_never_started_but_not_learners() {
        let added = |is_learner: bool| {
            with_lists(cluster(3), |members| {
                let mut new = members[2].clone();
                new.id.0 += 1;
                (new.name, new.peer_urls) =
                    (String::new(), vec![String::from("http://etcd-3.etcd.prod.svc:2380")]);
                new.is_learner = is_learner;
                members.push(new);
            })
        };
        assert_eq!(MemberPodNames::from_snapshot(&added(false), &pods(3)), None);
        assert!(MemberPodNames::from_snapshot(&added(true), &pods(3)).is_some());
    }

    #[test]
    fn rejects_silent_clusters_and_ambiguous_members() {
        assert_eq!(
            MemberPodNames::from_snapshot(&cluster(3).silence(0).silence(1).silence(2), &pods(3)),
            None
        );
        let mut twice = cluster(3);
        twice.pods[1].reply = twice.pods[0].reply.clone();
        assert_eq!(MemberPodNames::from_snapshot(&twice, &pods(3)), None);
    }

    #[test]
    fn rejects_more_pods_than_are_read_by_name() {
        assert!(MemberPodNames::from_snapshot(&cluster(MAX_PODS), &pods(MAX_PODS)).is_some());
        assert_eq!(MemberPodNames::from_snapshot(&cluster(MAX_PODS + 1), &pods(MAX_PODS + 1)), None);
    }

    #[test]
    fn stores_the_addresses_of_members_that_replied() {
        let pods_at = |first: usize, size: usize| {
            let pods = (0..size).map(|n| {
                let mut pod = pod(n);
                pod["status"]["podIP"] = json!(format!("10.0.0.{}", first + n));
                serde_json::from_value(pod).unwrap()
            });
            let pods: Vec<Pod> = pods.collect();
            NamespacePods::new(&ClusterKey::from_pod("prod", &pods[0]), pods)
        };
        let with_addresses = |first: usize| pods_at(first, 3);
        let key = ClusterKey::from_pod("prod", &serde_json::from_value(pod(0)).unwrap());
        let cache = MemberPodCache::new();
        let urls =
            || cache.endpoints(&key).unwrap().iter().map(|known| known.url.clone()).collect::<Vec<_>>();
        assert_eq!(cache.endpoints(&key), None);
        cache.update(&key, &cluster(3).crash(1), &with_addresses(1));
        assert_eq!(urls(), ["http://10.0.0.1:2379", "http://10.0.0.3:2379"]);
        let mut by_name = with_addresses(4);
        by_name.read_as = Some(ClusterId(0xc1));
        assert!(cache.update(&key, &cluster(3), &by_name));
        assert_eq!(urls(), ["http://10.0.0.4:2379", "http://10.0.0.5:2379", "http://10.0.0.6:2379"]);
        let mut with_login = with_addresses(1);
        let endpoint = with_login.pods[1].1.endpoint.as_mut().unwrap();
        endpoint.user = Some(User { name: String::from("guard"), password: Arc::from("secret") });
        cache.update(&key, &cluster(3), &with_login);
        assert_eq!(urls(), ["http://10.0.0.1:2379", "http://10.0.0.3:2379"]);
        cache.update(&key, &cluster(MAX_PODS + 1), &pods_at(1, MAX_PODS + 1));
        assert_eq!(urls().len(), MAX_PODS);
    }

    #[test]
    fn pods_of_a_cluster_with_another_id_are_listed_again() {
        let key = ClusterKey::from_pod("prod", &serde_json::from_value(pod(0)).unwrap());
        let cache = MemberPodCache::new();
        assert!(cache.update(&key, &cluster(3), &pods(3)));
        let by_name = |id: u64| NamespacePods { read_as: Some(ClusterId(id)), ..pods(3) };
        assert!(cache.update(&key, &cluster(3), &by_name(0xc1)));
        assert!(!cache.update(&key, &cluster(3), &by_name(0xc2)));
        assert_eq!(cache.get(&key), None);
    }

    #[tokio::test]
    async fn reads_all_pods_by_name_or_returns_none() {
        let path = |n: usize| format!("/api/v1/namespaces/prod/pods/etcd-{n}");
        let (first, second) = (path(0), path(1));
        let names = MemberPodNames::from_snapshot(&cluster(2), &pods(2)).unwrap();
        let all = ApiReader::new(api_server([(&first, 200, pod(0)), (&second, 200, pod(1))]));
        let read = names.read(&all, "prod").await.unwrap().unwrap();
        assert_eq!(read.iter().map(|pod| pod.metadata.name.as_str()).collect::<Vec<_>>(), strings(&names));
        let one_gone = ApiReader::new(api_server([(&first, 200, pod(0))]));
        assert!(names.read(&one_gone, "prod").await.unwrap().is_none());
        let forbidden = status_failure(403, "no");
        let forbidden = ApiReader::new(api_server([(&first, 200, pod(0)), (&second, 403, forbidden)]));
        assert!(names.read(&forbidden, "prod").await.unwrap().is_none());
    }
}

//! The circumstances of one run, which its seed determines.

use etcd_guard_core::config::policies::{LeaderPolicy, Policies};
use serde_json::{Value, json};

use crate::{
    api::store::{Store, key},
    operator::node_key,
    raft::Cluster,
};

/// The guarded namespace.
pub(crate) const NAMESPACE: &str = "prod";

/// The headless Service in the DNS names of the pods.
pub(crate) const SERVICE: &str = "etcd";

/// The circumstances of one run.
pub(crate) struct Scenario {
    pub(crate) replicas: usize,
    /// The StatefulSets, each with its number of pods.
    pub(crate) sets: Vec<(&'static str, usize)>,
    pub(crate) learners: usize,
    /// Whether the guard moves leadership before it approves the deletion of a leader.
    pub(crate) transfers: bool,
    /// Whether the pods were restored with references to an owner that never existed.
    pub(crate) has_dangling_owners: bool,
    pub(crate) pre_vote: bool,
    pub(crate) confirms_stale_reads: bool,
    /// Whether a crashed member is deleted at the beginning, through a replica that reaches no member, beside a deletion
    /// through another replica. Both replicas know no cluster id.
    pub(crate) races_for_records: bool,
    /// Whether members are removed and added again.
    pub(crate) replaces_members: bool,
    /// Whether the guard moves leadership off nodes that are cordoned, and during rollouts.
    pub(crate) has_handovers: bool,
    /// Whether approved deletions of a StatefulSet are executed: the garbage collector deletes its pods, and the StatefulSet is
    /// created again later.
    pub(crate) deletes_sets: bool,
    /// Whether nodes are deleted, and their pods are removed afterwards.
    pub(crate) deletes_nodes: bool,
    /// Whether a person requests dry runs of the deletion of the namespace, of claims and of the Service. The StatefulSets then have
    /// a template, so that the guard finds the claims of pods that do not exist.
    pub(crate) has_dry_runs: bool,
    /// Whether the member lists are wrong about the last member until the faults end: a learner is listed as a voter, or a voter
    /// as a learner.
    pub(crate) has_wrong_lists: bool,
    /// Whether a person changes the annotations with policies. At the end, they are removed.
    pub(crate) changes_policies: bool,
    /// Whether half of the evictions contain no uid, because the webhook that adds it is not registered. The API server
    /// evicts whatever pod has the name after the review.
    pub(crate) evicts_by_name: bool,
    /// Seconds with requests and faults.
    pub(crate) seconds: u64,
    /// Number of starts of each replica.
    pub(crate) generations: Vec<u64>,
}

// === impl Scenario ===

impl Scenario {
    /// Returns the circumstances of a seed. `replaces_members`, `has_handovers`, `deletes_sets`, `deletes_nodes`, `has_dry_runs`,
    /// `changes_policies`, `evicts_by_name` and, for cascades and a single voter, the sets depend on the number of the seed, so that the runs of other
    /// seeds do not change.
    pub(crate) fn new(rng: &mut fastrand::Rng, seed: u64) -> Self {
        let (sets, learners): (Vec<(&'static str, usize)>, usize) = match rng.u32(0..10) {
            0..=3 => (vec![("etcd", 3)], 0),
            4..=5 => (vec![("etcd-a", 2), ("etcd-b", 1)], 0),
            6 => (vec![("etcd", 4)], 1),
            7 => (vec![("etcd-a", 3), ("etcd-b", 2)], 0),
            8 => (vec![("etcd", 5)], 0),
            _ => (vec![("etcd", 7)], 0),
        };
        // With several StatefulSets, the quorum can survive the deletion of one, so that the guard can approve it.
        let (sets, learners) = match seed % 10 {
            4 => (vec![("etcd-a", 1), ("etcd-b", 1), ("etcd-c", 1)], 0),
            8 => (vec![("etcd-a", 1), ("etcd-b", 2), ("etcd-c", 2)], 0),
            6 if seed % 20 == 6 => (vec![("etcd", 5)], 1),
            6 => (vec![("etcd", 3)], 0),
            _ if seed % 20 == 19 => (vec![("etcd", 1)], 0),
            _ => (sets, learners),
        };
        // All replicas of this process share the limits of concurrent lists and watches, which two of them do not reach. With
        // more, the order of their calls would matter, which is random.
        let replicas = 2;
        let voters = sets.iter().map(|(_, pods)| pods).sum::<usize>() - learners;
        let races_for_records = voters == 3 && rng.u32(0..3) == 0;
        let is_old = rng.u32(0..3) == 0;
        let (replaces_members, has_handovers) = (seed % 5 == 2, seed.is_multiple_of(5));
        let (deletes_sets, deletes_nodes) = (matches!(seed % 10, 4 | 8), seed % 10 == 5);
        Self {
            replicas,
            sets,
            learners,
            transfers: rng.bool() || has_handovers,
            has_dangling_owners: rng.u32(0..5) == 0,
            pre_vote: !is_old,
            confirms_stale_reads: rng.u32(0..2) == 0,
            races_for_records,
            replaces_members,
            has_handovers,
            deletes_sets,
            deletes_nodes,
            // Seed 7 is the only one of the first ten that finds `Mistake::IgnoreForeignTerminating`, and has none.
            has_dry_runs: seed % 10 == 3 || seed % 20 == 17,
            has_wrong_lists: seed % 10 == 6,
            changes_policies: matches!(seed % 20, 11 | 19),
            evicts_by_name: matches!(seed % 10, 1 | 9),
            seconds: 150,
            generations: vec![0; replicas],
        }
    }

    /// Returns the circumstances of a seed, with the random numbers with which a run begins.
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self::new(&mut fastrand::Rng::with_seed(seed), seed)
    }

    /// Whether the comparison with the model of the reservation protocol covers all operations of the run: no change of the
    /// membership, no executed deletion of an owner or a node, one record, no deletion of the only voter,
    /// true member lists, and no eviction by name.
    pub(crate) fn is_modelled(&self) -> bool {
        !self.replaces_members
            && !self.deletes_sets
            && !self.deletes_nodes
            && !self.races_for_records
            && !self.has_wrong_lists
            && !self.evicts_by_name
            && !self.has_single_voter()
    }

    /// Whether the cluster has one voter, whose deletion only a policy can permit.
    pub(crate) fn has_single_voter(&self) -> bool {
        self.sets == [("etcd", 1)]
    }

    /// A cluster of one set without faults, for the comparison of the simulated raft with real clusters.
    pub(crate) fn of_raft(members: usize, learners: usize) -> Self {
        Self {
            replicas: 1,
            sets: vec![("etcd", members)],
            learners,
            transfers: false,
            has_dangling_owners: false,
            pre_vote: true,
            confirms_stale_reads: false,
            races_for_records: false,
            replaces_members: false,
            has_handovers: false,
            deletes_sets: false,
            deletes_nodes: false,
            has_dry_runs: false,
            has_wrong_lists: false,
            changes_policies: false,
            evicts_by_name: false,
            seconds: 0,
            generations: vec![0],
        }
    }

    /// One line for the report of a failure.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} replicas, sets {:?}, {} learners, transfer {}, dangling owners {}, pre-vote {}, stale reads {}, race for \
             records {}, replaced members {}, handovers {}, cascades {}, \
             deleted nodes {}, dry runs {}, wrong lists {}, changed policies {}, evictions by name {}",
            self.replicas,
            self.sets,
            self.learners,
            self.transfers,
            self.has_dangling_owners,
            self.pre_vote,
            self.confirms_stale_reads,
            self.races_for_records,
            self.replaces_members,
            self.has_handovers,
            self.deletes_sets,
            self.deletes_nodes,
            self.has_dry_runs,
            self.has_wrong_lists,
            self.changes_policies,
            self.evicts_by_name
        )
    }

    /// The names of all pods.
    pub(crate) fn pod_names(&self) -> Vec<String> {
        self.sets.iter().flat_map(|(set, pods)| (0..*pods).map(move |pod| format!("{set}-{pod}"))).collect()
    }

    pub(crate) fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new(&self.pod_names(), self.learners, tokio::time::Instant::now());
        cluster.pre_vote = self.pre_vote;
        cluster.confirms_stale_reads = self.confirms_stale_reads;
        if self.has_wrong_lists {
            cluster.version = "3.6.11";
            if let Some(last) = cluster.members.last_mut() {
                last.is_listed_as_learner = Some(!last.is_learner);
            }
        }
        cluster
    }

    /// A new StatefulSet.
    pub(crate) fn set_object(&self, name: &str) -> Value {
        let pods = self.sets.iter().find(|(set, _)| *set == name).map_or(0, |(_, pods)| *pods);
        let mut set =
            json!({"metadata": {"generation": 1}, "spec": {"replicas": pods, "revision": 0}, "status": {}});
        if self.has_dry_runs {
            let pod = pod_object(name, "", name, 0);
            set["spec"]["template"] =
                json!({"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]});
            set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}}]);
        }
        set
    }

    /// The configuration of the guard.
    pub(crate) fn config(&self) -> Policies {
        let mut config = Policies::default();
        config.defaults.leader = self.transfers.then_some(LeaderPolicy::Transfer);
        config
    }

    /// The objects at the start: the namespace, the StatefulSets, and the claims; with dangling owners also the pods.
    pub(crate) fn store(&self) -> Store {
        let mut store = Store::default();
        let namespace = json!({"metadata": {"labels": {"etcd-guard.io/guard": "enabled"}}});
        store.create(key("namespaces", "", NAMESPACE), namespace).unwrap();
        for (set, pods) in &self.sets {
            store.create(key("statefulsets", NAMESPACE, set), self.set_object(set)).unwrap();
            for pod in 0..*pods {
                let claim = json!({"metadata": {}, "status": {"phase": "Bound"}});
                let name = format!("data-{set}-{pod}");
                store.create(key("persistentvolumeclaims", NAMESPACE, &name), claim).unwrap();
                if self.has_handovers {
                    let node = node_key(&node_name(&format!("{set}-{pod}")));
                    store.create(node, json!({"metadata": {}, "spec": {}, "status": {}})).unwrap();
                }
                if self.has_dangling_owners {
                    let name = format!("{set}-{pod}");
                    store
                        .create(key("pods", NAMESPACE, &name), pod_object(set, "uid-gone", &name, 0))
                        .unwrap();
                }
            }
        }
        store
    }
}

/// Returns the node of a pod. Each pod has a node of its own, on which its volume is.
pub(crate) fn node_name(pod: &str) -> String {
    format!("node-{pod}")
}

/// Returns a new pod of a StatefulSet.
pub(crate) fn pod_object(set: &str, set_uid: &str, name: &str, revision: u64) -> Value {
    json!({
        "metadata": {
            "labels": {"app": "etcd", "controller-revision-hash": format!("revision-{revision}")},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": set, "uid": set_uid, "controller": true,
            }],
        },
        "spec": {
            "nodeName": node_name(name),
            "containers": [{
                "name": "etcd", "image": "quay.io/coreos/etcd:v3.5.17",
                "command": [
                    "etcd", format!("--name={name}"), "--data-dir=/data",
                    "--listen-client-urls=http://0.0.0.0:2379",
                    format!("--initial-advertise-peer-urls=http://{name}.{SERVICE}.{NAMESPACE}.svc:2380"),
                ],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}}],
        },
        "status": {"phase": "Pending"},
    })
}

//! Chains of owners on a fake API server.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::*;
use crate::policy::resolver::PolicyResolver;
use etcd_guard_core::{
    config::policies::Policies,
    opt_in_label::OptInLabel,
    policy::{LeaderPolicy, Mode},
    wall_clock::WallClock,
};
use etcd_guard_kubernetes::fake;

const LEADER: &str = "etcd-guard.io/leader";

const CONFIG: &str = "\
defaults: {leader: transfer, mode: audit}
ownerKinds:
- {group: example.com, version: v1, resource: etcdclusters, kind: EtcdCluster}
- {group: example.com, version: v1, resource: etcdmembers, kind: EtcdMember}
";

/// Objects by path, with their status, and the paths that were read.
#[derive(Clone, Default)]
struct Server {
    objects: BTreeMap<String, (u16, Value)>,
    calls: Arc<Mutex<Vec<String>>>,
}

fn reference(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": format!("uid-{name}"), "controller": true})
}

fn pod(owner: &Value) -> Pod {
    let pod =
        json!({"metadata": {"name": "ea-1", "namespace": "prod", "uid": "pod", "ownerReferences": [owner]}});
    serde_json::from_value(pod).unwrap()
}

impl Server {
    /// Adds an object with this owner and this policy for leaders.
    fn with(mut self, resource: &str, name: &str, owner: Option<Value>, leader: &str) -> Self {
        let (group, resource) = resource.rsplit_once('/').unwrap();
        let path = format!("/apis/{group}/namespaces/prod/{resource}/{name}");
        let owners: Vec<Value> = owner.into_iter().collect();
        let object = json!({"metadata": {
            "name": name, "uid": format!("uid-{name}"), "ownerReferences": owners, "annotations": {LEADER: leader},
        }});
        self.objects.insert(path, (200, object));
        self
    }

    fn forbid(mut self, path: &str) -> Self {
        self.objects.insert(path.to_owned(), (403, fake::status_failure(403, "no rights")));
        self
    }

    fn reader(&self) -> OwnerReader {
        let Self { objects, calls } = self.clone();
        let client = fake::api_server_with(move |call, _| {
            let path = call.uri.path();
            if path.starts_with("/apis/") && !path.ends_with("/statefulsets") {
                calls.lock().unwrap().push(path.to_owned());
            }
            objects.get(path).cloned().unwrap_or_else(|| (404, fake::status_failure(404, "not found")))
        });
        let config = serde_saphyr::from_str::<Policies>(CONFIG).unwrap();
        let annotations = AnnotationCache::watch(&client, OptInLabel::default());
        OwnerReader::new(annotations, ApiReader::new(client), tokio::sync::watch::channel(Arc::new(config)).1)
    }

    fn policies(&self) -> PolicyResolver {
        let reader = self.reader();
        PolicyResolver::new(reader.annotations.clone(), reader.config.clone(), reader, WallClock::default())
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

fn deadline() -> Deadline {
    Deadline::from_timeout(None)
}

/// Two members of one custom cluster resource, and a Deployment.
fn server() -> Server {
    let cluster = || reference("example.com/v1beta1", "EtcdCluster", "main");
    Server::default()
        .with("apps/v1/replicasets", "ea-7d", Some(reference("apps/v1", "Deployment", "ea")), "transfer")
        .with("apps/v1/deployments", "ea", Some(reference("other.com/v1", "Application", "x")), "deny")
        .with("example.com/v1/etcdmembers", "m1", Some(cluster()), "")
        .with("example.com/v1/etcdmembers", "m2", Some(cluster()), "")
        .with("example.com/v1/etcdclusters", "main", None, "deny")
}

#[tokio::test]
async fn nearest_owner_with_an_annotation_wins() {
    let server = server();
    let policies = server.policies();
    let of_replica_set = pod(&reference("apps/v1", "ReplicaSet", "ea-7d"));
    let resolved = policies.resolve_for_pod("prod", &of_replica_set, deadline()).await;
    assert_eq!(resolved.policy.leader, LeaderPolicy::Transfer, "the ReplicaSet, not the Deployment");
    assert_eq!(resolved.settings[0].from, "ReplicaSet ea-7d");
    assert_eq!((resolved.warnings.len(), server.calls()), (0, 2), "an owner of an unlisted kind is not read");

    let of_member = pod(&reference("example.com/v1", "EtcdMember", "m1"));
    let resolved = policies.resolve_for_pod("prod", &of_member, deadline()).await;
    assert_eq!(resolved.settings[0].from, "EtcdCluster main");
    assert_eq!(resolved.policy.leader, LeaderPolicy::Deny);
}

#[tokio::test]
async fn several_pods_cost_one_read_per_owner() {
    let server = server();
    let reader = server.reader();
    let mut reads = reader.reads("prod", Kinds::Configured, deadline());
    for name in ["m1", "m1", "m2"] {
        let chain = reads.chain_of_pod(&pod(&reference("example.com/v1", "EtcdMember", name))).await;
        assert_eq!(chain.len(), 2);
    }
    assert_eq!(server.calls(), 3, "two members and their cluster");
}

#[tokio::test]
async fn unlisted_or_absent_owners_have_no_policy() {
    let server = server();
    let policies = server.policies();
    let unlisted = pod(&reference("other.com/v1", "InstanceSet", "x"));
    let resolved = policies.resolve_for_pod("prod", &unlisted, deadline()).await;
    assert_eq!((resolved.policy.leader, resolved.warnings.len()), (LeaderPolicy::Transfer, 0));
    assert_eq!(server.calls(), 0);
    // Another Deployment of the same name.
    let mut dangling = reference("apps/v1", "Deployment", "ea");
    dangling["uid"] = json!("another");
    let resolved = policies.resolve_for_pod("prod", &pod(&dangling), deadline()).await;
    assert_eq!((resolved.policy.leader, resolved.warnings.len()), (LeaderPolicy::Transfer, 0));
}

/// The owner may be stricter than the namespace and the defaults.
#[tokio::test]
async fn unreadable_owner_counts_as_the_strictest() {
    let server = server().forbid("/apis/example.com/v1/namespaces/prod/etcdmembers/m1");
    let policies = server.policies();
    let mut of_member = pod(&reference("example.com/v1", "EtcdMember", "m1"));
    let resolved = policies.resolve_for_pod("prod", &of_member, deadline()).await;
    assert_eq!((resolved.policy.leader, resolved.policy.mode), (LeaderPolicy::Deny, Mode::Enforce));
    assert!(resolved.has_unreadable_owner);
    let [warning] = &resolved.warnings[..] else { panic!("{:?}", resolved.warnings) };
    assert!(
        warning.contains("EtcdMember m1 are unknown") && warning.contains("owners-role.yaml"),
        "{warning}"
    );
    // The annotations of the pod itself take precedence.
    of_member.metadata.annotations.insert(String::from(LEADER), String::from("transfer"));
    let resolved = policies.resolve_for_pod("prod", &of_member, deadline()).await;
    assert_eq!(resolved.policy.leader, LeaderPolicy::Transfer);
}

#[tokio::test]
async fn copies_are_resolved_without_reads() {
    let server = server();
    let copy = pod(&reference("apps/v1", "ReplicaSet", "ea-7d"));
    let resolved = server.policies().resolve_for_copy("prod", &copy);
    assert!(resolved.has_unreadable_owner);
    assert_eq!((resolved.policy.leader, server.calls()), (LeaderPolicy::Deny, 0));
    let without_owner = serde_json::from_value(json!({"metadata": {"name": "etcd-0"}})).unwrap();
    assert!(!server.policies().resolve_for_copy("prod", &without_owner).has_unreadable_owner);
}

#[tokio::test]
async fn finds_members_of_every_level() {
    let server = server();
    let reader = server.reader();
    let config = Arc::clone(&reader.config.borrow());
    let kind = |group, kind| config.owner_kind(group, kind).unwrap();
    let of_replica_set = pod(&reference("apps/v1", "ReplicaSet", "ea-7d"));
    let of_member = pod(&reference("example.com/v1", "EtcdMember", "m1"));
    let owners = async |pod: &Pod, uid: &str, kind| {
        let mut reads = reader.reads("prod", Kinds::Configured, deadline());
        reads.owners_up_to(pod, uid, kind).await.unwrap()
    };
    let (deployment, cluster) = (kind("apps", "Deployment"), kind("example.com", "EtcdCluster"));
    assert_eq!(owners(&of_replica_set, "uid-ea", deployment).await.unwrap(), ["uid-ea-7d", "uid-ea"]);
    assert_eq!(owners(&of_replica_set, "uid-eb", deployment).await, None);
    assert_eq!(owners(&of_member, "uid-main", cluster).await.unwrap(), ["uid-m1", "uid-main"]);
    let calls = server.calls();
    assert_eq!(owners(&of_member, "uid-ea", deployment).await, None);
    assert_eq!(server.calls(), calls, "a Deployment owns pods through ReplicaSets only");
    // The garbage collector follows references of owners that are no controllers as well.
    let mut referring = pod(&reference("example.com/v1", "EtcdCluster", "main"));
    referring.metadata.owner_references[0].controller = None;
    assert_eq!(owners(&referring, "uid-main", cluster).await.unwrap(), ["uid-main"]);
}

#[tokio::test]
async fn unreadable_owner_hides_no_member() {
    let reader = server().forbid("/apis/example.com/v1/namespaces/prod/etcdmembers/m1").reader();
    let config = Arc::clone(&reader.config.borrow());
    let cluster = config.owner_kind("example.com", "EtcdCluster").unwrap();
    let of_member = pod(&reference("example.com/v1", "EtcdMember", "m1"));
    let mut reads = reader.reads("prod", Kinds::Configured, deadline());
    assert!(reads.owners_up_to(&of_member, "uid-main", cluster).await.is_err());
}

//! The objects of an etcd cluster on the process node: who owns its pods, which names its URLs contain, and how its pods
//! end.
//!
//! ```ignore
//! let layout = Layout { topology: Topology::SetPerMember, pre_stop: Duration::from_secs(120), ..Layout::default() };
//! layout.apply(&kubectl, namespace, dir);        // without `GuardedCluster`
//! let setup = Setup { layout, ..Setup::default() };
//! let cluster = GuardedCluster::start_as(setup).await;
//! ```
//!
//! Except in [`Topology::OneSet`], the peer URLs contain host names, also in etcd's member list, and the client URLs
//! contain the address of the pod. All pods have the label `app=etcd`, and the label `member` with the name of the member
//! ([`Topology::TwoSets`]: of the set).

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{kubernetes::kubectl::Kubectl, process_node::RESOLVES_NAMES, project};

/// The shipped example for users.
const MANIFEST: &str = "etcd-manifests/plain.yaml";

/// The grace period of pods without a slow termination.
const GRACE: Duration = Duration::from_secs(30);

/// The time after the preStop hook in which etcd stops.
const STOP_TIME: Duration = Duration::from_secs(30);

/// The relation between the members and the owners of their pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// The shipped StatefulSet `etcd` with the pods `etcd-0`, `etcd-1` and so on.
    #[default]
    OneSet,
    /// One StatefulSet and one Service `ea`, `eb`, ... per member; the pods are `ea-0`, `eb-0`, ..., the peer URLs
    /// `http://ea:2380`, ...
    SetPerMember,
    /// One Deployment and one Service `ea`, `eb`, ... per member, with the strategy `Recreate`; peer URLs as above. The
    /// names of the pods are random.
    DeploymentPerMember,
    /// Pods `ea-pod`, `eb-pod`, ... without an owner, with the hostnames `ea`, `eb`, ... and the peer URLs
    /// `http://ea.etcd:2380`, ... A deleted pod returns after [`Layout::recreate`].
    BarePods,
    /// Two StatefulSets `ea` and `eb`, which share the members; the pods are `ea-0`, `ea-1`, `eb-0`, the peer URLs
    /// `http://ea-0.ea:2380`, ...
    TwoSets,
}

/// An etcd cluster that is not started yet.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The owners of the pods.
    pub topology: Topology,
    /// The number of members, at most nine.
    pub members: usize,
    /// The duration of the preStop hook, during which a terminating member still serves. The grace period is 30 s
    /// longer. There is no hook if this is zero.
    pub pre_stop: Duration,
    /// Annotations of the pods.
    pub annotations: Vec<(&'static str, &'static str)>,
}

impl Default for Layout {
    fn default() -> Self {
        Self { topology: Topology::OneSet, members: 3, pre_stop: Duration::ZERO, annotations: Vec::new() }
    }
}

impl Layout {
    /// A cluster with this relation between members and owners, and with the other defaults.
    pub fn new(topology: Topology) -> Self {
        Self { topology, ..Self::default() }
    }

    /// Returns the names of the pods, or `None` if they are random.
    pub fn pod_names(&self) -> Option<Vec<String>> {
        let members = 0..self.members;
        match self.topology {
            Topology::OneSet => Some(members.map(|n| format!("etcd-{n}")).collect()),
            Topology::SetPerMember => Some(members.map(|n| format!("{}-0", self.member(n))).collect()),
            Topology::DeploymentPerMember => None,
            Topology::BarePods => Some(members.map(|n| format!("{}-pod", self.member(n))).collect()),
            Topology::TwoSets => Some(members.map(|n| self.member(n)).collect()),
        }
    }

    /// Creates or updates the objects in a namespace. A file with the objects remains in `dir`.
    pub fn apply(&self, kubectl: &Kubectl, namespace: &str, dir: &Path) {
        self.apply_changed(kubectl, namespace, dir, str::to_owned);
    }

    /// Creates the objects as [`Self::apply`] does, after a change of the shipped example ([`Topology::OneSet`]).
    pub fn apply_changed(
        &self,
        kubectl: &Kubectl,
        namespace: &str,
        dir: &Path,
        change: impl Fn(&str) -> String,
    ) {
        let objects = match self.topology {
            Topology::OneSet => self.shipped_objects(change),
            _ => self.objects(),
        };
        self.apply_objects(kubectl, namespace, dir, &objects);
    }

    /// Creates pods without an owner again after they were deleted. The pods that exist remain unchanged.
    pub fn recreate(&self, kubectl: &Kubectl, namespace: &str, dir: &Path) {
        let objects: Vec<Value> =
            self.objects().into_iter().filter(|object| object["kind"] == "Pod").collect();
        self.apply_objects(kubectl, namespace, dir, &objects);
    }

    fn apply_objects(&self, kubectl: &Kubectl, namespace: &str, dir: &Path, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = dir.join(format!("{:?}.json", self.topology));
        std::fs::write(&file, list.to_string()).expect("the objects are written");
        kubectl.run_checked(&["apply", "-n", namespace, "-f", &file.to_string_lossy()]);
    }

    /// Returns the objects, without their namespace.
    pub fn objects(&self) -> Vec<Value> {
        match self.topology {
            Topology::OneSet => self.shipped_objects(str::to_owned),
            Topology::SetPerMember => self
                .per_member(|n, member| vec![service(member, &member_label(member)), self.set(n, member, 1)]),
            Topology::DeploymentPerMember => self.per_member(|n, member| {
                let mut template = self.pod_template(n, member);
                template["spec"]["volumes"] = claim_volume(member);
                let deployment = json!({
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "metadata": {"name": member, "labels": {"app": "etcd"}},
                    "spec": {
                        "strategy": {"type": "Recreate"},
                        "selector": {"matchLabels": member_label(member)},
                        "template": template,
                    },
                });
                vec![service(member, &member_label(member)), claim(member), deployment]
            }),
            Topology::BarePods => {
                let mut objects = vec![service("etcd", &json!({"app": "etcd"}))];
                objects.extend(self.per_member(|n, member| {
                    let mut pod = self.pod_template(n, member);
                    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
                    pod["metadata"]["name"] = json!(format!("{member}-pod"));
                    (pod["spec"]["hostname"], pod["spec"]["subdomain"]) = (json!(member), json!("etcd"));
                    pod["spec"]["volumes"] = claim_volume(member);
                    vec![claim(member), pod]
                }));
                objects
            }
            Topology::TwoSets => {
                let first = self.first_set();
                let sets = [("ea", 0, first), ("eb", first, self.members - first)];
                sets.iter()
                    .flat_map(|(set, n, replicas)| {
                        [service(set, &member_label(set)), self.set(*n, set, *replicas)]
                    })
                    .collect()
            }
        }
    }

    /// Removes the labels of a pod that its StatefulSet or `ReplicaSet` selects. The controller releases the pod, which
    /// continues to run without an owner.
    pub async fn release(&self, pods: &Api<Pod>, name: &str) {
        let labels = match self.topology {
            Topology::OneSet => json!({"app": null, "released": name}),
            _ => json!({"member": null, "released": name}),
        };
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        pods.patch(name, &PatchParams::default(), &patch).await.expect("the labels are accepted");
        crate::wait::wait_until("the pod has no owner", crate::guarded_cluster::START_TIMEOUT, async || {
            pods.get(name)
                .await
                .is_ok_and(|pod| pod.metadata.owner_references.is_none_or(|owners| owners.is_empty()))
        })
        .await;
    }

    /// The number of members in the first of two sets.
    fn first_set(&self) -> usize {
        self.members.div_ceil(2)
    }

    /// The name of a member.
    fn member(&self, n: usize) -> String {
        let letter = |n: usize| char::from(b'a' + u8::try_from(n).expect("at most nine members"));
        match (self.topology, n.checked_sub(self.first_set())) {
            (Topology::OneSet, _) => format!("etcd-{n}"),
            (Topology::TwoSets, None) => format!("ea-{n}"),
            (Topology::TwoSets, Some(n)) => format!("eb-{n}"),
            _ => format!("e{}", letter(n)),
        }
    }

    fn peer_url(&self, n: usize) -> String {
        let member = self.member(n);
        match (self.topology, member.split_once('-')) {
            (Topology::TwoSets, Some((set, _))) => format!("http://{member}.{set}:2380"),
            (Topology::BarePods, _) => format!("http://{member}.etcd:2380"),
            _ => format!("http://{member}:2380"),
        }
    }

    fn per_member(&self, objects: impl Fn(usize, &str) -> Vec<Value>) -> Vec<Value> {
        (0..self.members).flat_map(|n| objects(n, &self.member(n))).collect()
    }

    /// Returns a StatefulSet whose first pod runs member `n`.
    fn set(&self, n: usize, name: &str, replicas: usize) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name, "labels": {"app": "etcd"}},
            "spec": {
                "serviceName": name,
                "replicas": replicas,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": member_label(name)},
                "template": self.pod_template(n, name),
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim_spec()}],
            },
        })
    }

    /// Returns metadata and specification of the pods of an owner.
    fn pod_template(&self, n: usize, owner: &str) -> Value {
        let cluster: Vec<String> =
            (0..self.members).map(|n| format!("{}={}", self.member(n), self.peer_url(n))).collect();
        // The two sets have several members per template.
        let (name, peer_url) = match self.topology {
            Topology::TwoSets => (String::from("$(POD_NAME)"), format!("http://$(POD_NAME).{owner}:2380")),
            _ => (self.member(n), self.peer_url(n)),
        };
        let mut annotations = json!({RESOLVES_NAMES: "true"});
        for (name, value) in &self.annotations {
            annotations[name] = json!(value);
        }
        let mut template = json!({
            "metadata": {"labels": {"app": "etcd", "member": owner}, "annotations": annotations},
            "spec": {
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "etcd",
                    "image": "quay.io/coreos/etcd:v3.6.16",
                    "command": [
                        "/usr/local/bin/etcd",
                        format!("--name={name}"),
                        "--data-dir=/var/lib/etcd/data",
                        "--listen-client-urls=http://0.0.0.0:2379",
                        "--advertise-client-urls=http://$(POD_IP):2379",
                        "--listen-peer-urls=http://0.0.0.0:2380",
                        format!("--initial-advertise-peer-urls={peer_url}"),
                        "--listen-metrics-urls=http://0.0.0.0:2381",
                        format!("--initial-cluster={}", cluster.join(",")),
                        "--initial-cluster-state=new",
                        // Clusters with the same URLs and the same token have the same id.
                        "--initial-cluster-token=$(NAMESPACE)-etcd",
                    ],
                    "env": [
                        {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    ],
                    "ports": [
                        {"name": "client", "containerPort": 2379},
                        {"name": "peer", "containerPort": 2380},
                        {"name": "metrics", "containerPort": 2381},
                    ],
                    "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}],
                }],
            },
        });
        self.set_termination(&mut template);
        template
    }

    /// Sets the preStop hook and the grace period of a pod template.
    fn set_termination(&self, template: &mut Value) {
        let (seconds, grace) = (self.pre_stop.as_secs(), self.pre_stop + STOP_TIME);
        let spec = &mut template["spec"];
        spec["terminationGracePeriodSeconds"] = json!(GRACE.as_secs());
        if seconds > 0 {
            spec["terminationGracePeriodSeconds"] = json!(grace.as_secs());
            spec["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": seconds}}});
        }
    }

    /// Returns the shipped objects with this number of members, the annotations, and the preStop hook.
    fn shipped_objects(&self, change: impl Fn(&str) -> String) -> Vec<Value> {
        let text = std::fs::read_to_string(project::path(MANIFEST)).expect(MANIFEST);
        let member = |n: usize| format!("etcd-{n}=http://etcd-{n}.etcd.$(NAMESPACE).svc:2380");
        let list = |count: usize| (0..count).map(member).collect::<Vec<_>>().join(",");
        assert!(text.contains(&list(3)) && text.contains("replicas: 3"), "{MANIFEST} has changed");
        let text = change(&text).replace(&list(3), &list(self.members));
        let text = text.replace("replicas: 3", &format!("replicas: {}", self.members));
        let mut objects: Vec<Value> = text
            .split("\n---\n")
            .map(|document| serde_saphyr::from_str(document).expect("an object in YAML"))
            .collect();
        for set in objects.iter_mut().filter(|object| object["kind"] == "StatefulSet") {
            let template = &mut set["spec"]["template"];
            self.set_termination(template);
            for (name, value) in &self.annotations {
                template["metadata"]["annotations"][name] = json!(value);
            }
        }
        objects
    }
}

fn member_label(member: &str) -> Value {
    json!({"member": member})
}

/// Returns a headless Service. Members resolve each other before they are ready.
fn service(name: &str, selector: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": "etcd"}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": selector,
            "ports": [{"name": "client", "port": 2379}, {"name": "peer", "port": 2380}],
        },
    })
}

fn claim(member: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": format!("data-{member}")},
        "spec": claim_spec(),
    })
}

fn claim_spec() -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
}

fn claim_volume(member: &str) -> Value {
    json!([{"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{member}")}}])
}

//! Objects in files: pods, objects with a pod template, and the objects that describe them.

use std::{collections::BTreeMap, fmt, str::FromStr};

use anyhow::{Context, anyhow, bail};
use k8s_openapi::ByteString;
use serde::de::DeserializeOwned;
use serde_json::Value;

use etcd_guard_core::{
    config::document::{in_words, yaml_error},
    inspect::{
        AnnotatedObject, InspectedObject, Relation,
        access::{ObjectContent, ObjectState},
    },
    objects::{
        data_object::{DataKind, DataObject, Secret, is_subdomain},
        owner_reference::OwnerReference,
        pod::{Metadata, Pod},
        stateful_set::StatefulSet,
    },
    opt_in_label::OptInLabel,
};

/// The most pods of one StatefulSet that are searched for a name.
const MAX_PODS: usize = 1_000;

/// End of the name of a pod that is not known before the pod exists.
const UNKNOWN_SUFFIX: &str = "xxxxx";

/// A kind of objects with a pod or a pod template.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) kind: &'static str,
    /// The plural name, the short names, and the path of the API group.
    plural: &'static str,
    short: &'static [&'static str],
    root: &'static str,
    /// The place of the pod template.
    template: &'static str,
    /// The kind of the controller of the pods.
    controller: &'static str,
}

const WORKLOADS: [Workload; 8] = [
    Workload { kind: "Pod", plural: "pods", short: &["po"], root: "/api/v1", template: "", controller: "" },
    Workload {
        kind: "StatefulSet",
        plural: "statefulsets",
        short: &["sts", "statefulset.apps"],
        root: "/apis/apps/v1",
        template: "/spec/template",
        controller: "StatefulSet",
    },
    Workload {
        kind: "Deployment",
        plural: "deployments",
        short: &["deploy", "deployment.apps"],
        root: "/apis/apps/v1",
        template: "/spec/template",
        controller: "ReplicaSet",
    },
    Workload {
        kind: "ReplicaSet",
        plural: "replicasets",
        short: &["rs", "replicaset.apps"],
        root: "/apis/apps/v1",
        template: "/spec/template",
        controller: "ReplicaSet",
    },
    Workload {
        kind: "DaemonSet",
        plural: "daemonsets",
        short: &["ds", "daemonset.apps"],
        root: "/apis/apps/v1",
        template: "/spec/template",
        controller: "DaemonSet",
    },
    Workload {
        kind: "Job",
        plural: "jobs",
        short: &["job.batch"],
        root: "/apis/batch/v1",
        template: "/spec/template",
        controller: "Job",
    },
    Workload {
        kind: "CronJob",
        plural: "cronjobs",
        short: &["cj", "cronjob.batch"],
        root: "/apis/batch/v1",
        template: "/spec/jobTemplate/spec/template",
        controller: "Job",
    },
    Workload {
        kind: "ReplicationController",
        plural: "replicationcontrollers",
        short: &["rc"],
        root: "/api/v1",
        template: "/spec/template",
        controller: "ReplicationController",
    },
];

/// The kinds with a pod template whose annotations choose policies without an entry in the configuration, besides
/// StatefulSets.
const OWNERS_WITH_POLICIES: [&str; 2] = ["Deployment", "ReplicaSet"];

/// The object to inspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InspectionTarget {
    pub(super) workload: &'static Workload,
    pub(super) name: String,
}

/// An object that was read, with its pod.
pub(super) struct ReadObject {
    pub(super) inspected: InspectedObject,
    /// The controller of the object.
    pub(super) controller: Option<OwnerReference>,
    /// The argument that selects the object.
    pub(super) target: String,
}

/// The objects of a file.
pub(super) struct Manifest {
    objects: Vec<Value>,
}

// === impl InspectionTarget ===

impl fmt::Display for InspectionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.workload.kind.to_lowercase(), self.name)
    }
}

impl InspectionTarget {
    fn is_pod(&self) -> bool {
        self.workload.kind == "Pod"
    }

    /// Returns the path of the object at the API server.
    pub(super) fn path(&self, namespace: &str) -> String {
        let Workload { root, plural, .. } = self.workload;
        format!("{root}/namespaces/{namespace}/{plural}/{}", self.name)
    }
}

impl FromStr for InspectionTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
        let is_named = |workload: &&Workload| {
            workload.kind.eq_ignore_ascii_case(kind)
                || workload.plural == kind
                || workload.short.contains(&kind)
        };
        let Some(workload) = WORKLOADS.iter().find(is_named) else {
            let kinds: Vec<String> = WORKLOADS.iter().map(|workload| workload.kind.to_lowercase()).collect();
            return Err(format!("unknown type {kind:?}; use {}", kinds.join(", ")));
        };
        if name.is_empty() {
            return Err(String::from("the name is missing"));
        }
        // The name is a part of a path.
        if !is_subdomain(name) {
            return Err(format!("{name:?} is not the name of a {}", workload.kind));
        }
        Ok(Self { workload, name: name.to_owned() })
    }
}

// === impl Manifest ===

impl Manifest {
    /// Parses the documents of a file. A `List`, as `kubectl get -o yaml` prints it, stands for its items.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(text).map_err(|error| anyhow!(yaml_error(&error)))?;
        let mut objects = Vec::new();
        for document in documents {
            match document {
                Value::Null => {}
                Value::Object(mut fields) => match fields.remove("items") {
                    Some(Value::Array(items)) => objects.extend(items),
                    _ => objects.push(Value::Object(fields)),
                },
                _ => bail!("a document is not an object"),
            }
        }
        Ok(Self { objects })
    }

    /// Returns the pods and the objects with a pod template, or only the target. `namespace` replaces the namespace of all
    /// objects, and `default` a missing one.
    pub(super) fn objects(
        &self,
        target: Option<&InspectionTarget>,
        namespace: Option<&str>,
        default: &str,
    ) -> anyhow::Result<Vec<ReadObject>> {
        let mut found = Vec::new();
        for object in &self.objects {
            let Some(workload) = workload_of(object) else { continue };
            let name = text(object, "/metadata/name");
            let pod = match target {
                Some(target) if target.workload == workload && target.name == name => None,
                // A pod of a StatefulSet, which the file describes as well.
                Some(target) if target.is_pod() && pod_names(workload, object).contains(&target.name) => {
                    Some(target.name.as_str())
                }
                Some(_) => continue,
                None => None,
            };
            let own = Some(text(object, "/metadata/namespace")).filter(|namespace| !namespace.is_empty());
            let namespace = namespace.or(own).unwrap_or(default);
            let mut read = inspected_object(workload, object, namespace, pod)
                .with_context(|| format!("{} {name}", workload.kind).trim_end().to_owned())?;
            if let Some(metadata) = self.namespace(namespace) {
                let owners = &mut read.inspected.owners;
                owners.insert(0, annotated("namespace", Relation::Namespace, metadata));
            }
            found.push(read);
        }
        Ok(found)
    }

    /// Returns the arguments that select an object of the file.
    pub(super) fn targets(&self) -> Vec<String> {
        let workloads = self.objects.iter().filter_map(|object| Some((workload_of(object)?, object)));
        let target = |(workload, object): (&Workload, &Value)| {
            let pods = pod_names(workload, object);
            let pods = match pods.as_slice() {
                [] => String::new(),
                [pod] => format!(" ({pod})"),
                [first, .., last] => format!(" ({first} to {last})"),
            };
            format!("{}/{}{pods}", workload.kind.to_lowercase(), text(object, "/metadata/name"))
        };
        workloads.map(target).collect()
    }

    /// Whether the file labels this namespace for the guard; `None` if the file does not contain the namespace.
    pub(super) fn is_guarded(&self, namespace: &str, label: &OptInLabel) -> Option<bool> {
        Some(label.matches(&self.namespace(namespace)?.labels))
    }

    /// Returns the content of the Secrets and `ConfigMaps` that the file contains for this namespace. All others are
    /// unknown.
    pub(super) fn states(&self, namespace: &str) -> BTreeMap<DataObject, ObjectState> {
        let mut states = BTreeMap::new();
        for object in &self.objects {
            let kind = match text(object, "/kind") {
                "Secret" => DataKind::Secret,
                "ConfigMap" => DataKind::ConfigMap,
                _ => continue,
            };
            let own = text(object, "/metadata/namespace");
            if !own.is_empty() && own != namespace {
                continue;
            }
            let name = text(object, "/metadata/name").to_owned();
            let content = Some(ObjectContent::Found(data(kind, object)));
            states.insert(DataObject { kind, name }, ObjectState { content, ..ObjectState::default() });
        }
        states
    }

    fn namespace(&self, name: &str) -> Option<Metadata> {
        let is_namespace =
            |object: &&Value| text(object, "/kind") == "Namespace" && text(object, "/metadata/name") == name;
        metadata(self.objects.iter().find(is_namespace)?).ok()
    }
}

/// Returns the names of the pods that an object of a file describes, as far as they are known before the pods exist.
fn pod_names(workload: &Workload, object: &Value) -> Vec<String> {
    if workload.kind != "StatefulSet" {
        return Vec::new();
    }
    let Ok(set) = parse::<StatefulSet>(object) else { return Vec::new() };
    let ordinals = (set.first_ordinal()..).take(usize::try_from(set.replicas()).unwrap_or_default());
    ordinals.take(MAX_PODS).map(|ordinal| format!("{}-{ordinal}", set.metadata.name)).collect()
}

/// Returns the pod of an object, and its own annotations if the pod inherits them. `pod` selects one pod of a StatefulSet.
pub(super) fn inspected_object(
    workload: &Workload,
    object: &Value,
    namespace: &str,
    pod_name: Option<&str>,
) -> anyhow::Result<ReadObject> {
    let metadata = metadata(object)?;
    let controller = OwnerReference::controller_of(&metadata.owner_references).cloned();
    let mut owners = Vec::new();
    let pod = match workload.kind {
        "Pod" => {
            let mut pod: Pod = parse(object)?;
            namespace.clone_into(&mut pod.metadata.namespace);
            pod
        }
        "StatefulSet" => {
            let set: StatefulSet = parse(object)?;
            let ordinal = pod_name.and_then(|name| set.ordinal_of_pod(name));
            let pod = ordinal.map_or_else(|| set.template(namespace), |ordinal| set.pod(namespace, ordinal));
            owners.push(annotated("StatefulSet", Relation::StatefulSet, metadata.clone()));
            pod
        }
        _ => {
            let template = object.pointer(workload.template).context("the pod template is missing")?;
            let mut pod: Pod = parse(template)?;
            namespace.clone_into(&mut pod.metadata.namespace);
            pod.metadata.name = format!("{}-{UNKNOWN_SUFFIX}", metadata.name);
            if OWNERS_WITH_POLICIES.contains(&workload.kind) {
                owners.push(annotated(workload.kind, Relation::Owner, metadata.clone()));
            }
            pod.metadata.owner_references = vec![OwnerReference {
                api_version: workload.root.trim_start_matches("/apis/").to_owned(),
                kind: workload.controller.to_owned(),
                name: metadata.name.clone(),
                controller: Some(true),
                ..OwnerReference::default()
            }];
            pod
        }
    };
    let name = pod_name.unwrap_or(&metadata.name);
    let (kind, target) = match workload.kind {
        kind if kind != "Pod" && pod_name.is_none() => (kind, format!("{}/{name}", kind.to_lowercase())),
        _ => ("pod", name.to_owned()),
    };
    let inspected = InspectedObject { object: format!("{kind} {namespace}/{name}"), pod, owners };
    Ok(ReadObject { inspected, controller, target })
}

/// Returns an object with the annotations that the guard reads.
pub(super) fn annotated(kind: &str, relation: Relation, metadata: Metadata) -> AnnotatedObject {
    let object = format!("{kind} {}", metadata.name);
    AnnotatedObject { object, relation, annotations: Ok(metadata.annotations) }
}

/// Returns the data of a Secret or of a `ConfigMap`. Binary values are omitted: certificates and settings are texts.
fn data(kind: DataKind, object: &Value) -> Secret {
    let entries = |field: &str| object.get(field).and_then(Value::as_object).into_iter().flatten();
    let is_secret = kind == DataKind::Secret;
    let decoded = |value: &Value| {
        if !is_secret {
            return value.as_str().map(str::to_owned);
        }
        let ByteString(content) = serde_json::from_value(value.clone()).ok()?;
        String::from_utf8(content).ok()
    };
    let data = entries("data").filter_map(|(key, value)| Some((key.clone(), decoded(value)?)));
    let texts = entries("stringData").filter(|_| is_secret);
    data.chain(texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))).collect()
}

/// Returns the metadata of an object.
pub(super) fn metadata(object: &Value) -> anyhow::Result<Metadata> {
    parse(object.get("metadata").context("the metadata is missing")?)
}

fn workload_of(object: &Value) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.kind == text(object, "/kind"))
}

fn text<'a>(object: &'a Value, place: &str) -> &'a str {
    object.pointer(place).and_then(Value::as_str).unwrap_or_default()
}

/// Deserializes a part of an object. The error has the path of the invalid field.
fn parse<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| anyhow::anyhow!("{}: {}", error.path(), in_words(&error.inner().to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_without_type_is_a_pod() {
        let target = |text: &str| text.parse::<InspectionTarget>().map(|target| target.path("prod"));
        assert_eq!(target("etcd-0").as_deref(), Ok("/api/v1/namespaces/prod/pods/etcd-0"));
        assert_eq!(target("sts/etcd").as_deref(), Ok("/apis/apps/v1/namespaces/prod/statefulsets/etcd"));
        assert_eq!(target("CronJob/defrag").as_deref(), Ok("/apis/batch/v1/namespaces/prod/cronjobs/defrag"));
        assert!(
            target("secret/x").unwrap_err().starts_with("unknown type \"secret\"; use pod, statefulset, ")
        );
        assert_eq!(target("pod/").unwrap_err(), "the name is missing");
    }

    #[test]
    fn reads_pods_of_templates_and_lists() {
        let template = "{spec: {containers: [{name: etcd, image: etcd}]}}";
        let text = format!(
            "---\n# nothing\n---\napiVersion: v1\nkind: Service\nmetadata: {{name: etcd}}\n---\n\
             kind: Namespace\nmetadata: {{name: prod, labels: {{etcd-guard.io/guard: enabled}}}}\n---\n\
             kind: List\nitems:\n\
             - kind: StatefulSet\n  metadata: {{name: etcd, namespace: prod}}\n  spec: {{serviceName: peers, template: {template}}}\n\
             - kind: CronJob\n  metadata: {{name: defrag}}\n  spec: {{jobTemplate: {{spec: {{template: {template}}}}}}}\n"
        );
        let manifest = Manifest::parse(&text).unwrap();
        let all = manifest.objects(None, None, "default").unwrap();
        let read: Vec<_> = all
            .iter()
            .map(|read| &read.inspected)
            .map(|object| (object.object.as_str(), object.pod.metadata.name.as_str(), object.owners.len()))
            .collect();
        assert_eq!(
            read,
            [("StatefulSet prod/etcd", "etcd-0", 2), ("CronJob default/defrag", "defrag-xxxxx", 0)]
        );
        assert_eq!(all[0].inspected.pod.spec.subdomain, "peers");
        assert_eq!(all[1].inspected.pod.controller().unwrap().kind, "Job");
        assert_eq!(all[0].target, "statefulset/etcd");
        let label = OptInLabel::default();
        assert_eq!(
            (manifest.is_guarded("prod", &label), manifest.is_guarded("default", &label)),
            (Some(true), None)
        );
        let target: InspectionTarget = "etcd-0".parse().unwrap();
        let pod = manifest.objects(Some(&target), None, "default").unwrap();
        assert_eq!((pod[0].inspected.object.as_str(), pod[0].target.as_str()), ("pod prod/etcd-0", "etcd-0"));
        let absent: InspectionTarget = "etcd-1".parse().unwrap();
        assert!(manifest.objects(Some(&absent), None, "default").unwrap().is_empty(), "it has one replica");
        assert_eq!(manifest.targets(), ["statefulset/etcd (etcd-0)", "cronjob/defrag"]);
        let target = "cronjob/defrag".parse().unwrap();
        let one = manifest.objects(Some(&target), Some("other"), "default").unwrap();
        assert_eq!(one[0].inspected.object, "CronJob other/defrag");
        assert_eq!(one.len(), 1);
    }

    #[test]
    fn reads_data_of_the_same_namespace() {
        let text = "kind: ConfigMap\nmetadata: {name: settings}\ndata: {a: text}\n---\n\
                    kind: Secret\nmetadata: {name: tls, namespace: prod}\ndata: {b: dGV4dA==}\nstringData: {c: text}\n---\n\
                    kind: Secret\nmetadata: {name: tls, namespace: other}\ndata: {d: dGV4dA==}\n";
        let states = Manifest::parse(text).unwrap().states("prod");
        let read: Vec<String> = states.iter().map(|state| format!("{state:?}")).collect();
        assert_eq!(states.len(), 2, "{read:?}");
        for state in states.values() {
            let Some(ObjectContent::Found(content)) = &state.content else { panic!("{read:?}") };
            assert!(content.keys().all(|key| content.text(key).as_deref() == Some("text")), "{read:?}");
        }
        assert!(read[0].contains("\"b\"") && read[0].contains("\"c\""), "{read:?}");
        assert!(!read.concat().contains("\"text\""), "{read:?}");
    }

    #[test]
    fn errors_name_the_invalid_field() {
        let error = |text: &str| {
            let objects = Manifest::parse(text).and_then(|manifest| manifest.objects(None, None, "default"));
            format!("{:#}", objects.err().unwrap())
        };
        let invalid = "kind: Pod\nmetadata: {name: etcd-0}\nspec: {containers: [{name: etcd, image: 7}]}";
        assert!(error(invalid).starts_with("Pod etcd-0: spec.containers[0].image: "), "{}", error(invalid));
        let negative = "kind: StatefulSet\nmetadata: {name: etcd}\nspec: {replicas: -1}";
        assert_eq!(
            error(negative),
            "StatefulSet etcd: spec.replicas: invalid value: integer `-1`, expected a whole number, 0 or more"
        );
        assert_eq!(error("kind: Job\nmetadata: {name: x}"), "Job x: the pod template is missing");
        assert_eq!(error("text"), "a document is not an object");
    }
}

//! The StatefulSets whose templates run etcd, as the guard would recognize their pods.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::doctor::{
    reader::{Reader, Right, Unread, text},
    report::{Finding, Line, State},
};
use etcd_guard_core::{
    config::policies::Policies,
    escape::to_shell_word,
    inspect::{AnnotatedObject, InspectedObject, Relation, inspect},
    objects::stateful_set::StatefulSet,
    opt_in_label::OptInLabel,
};

/// The namespace of the control plane, which is never guarded.
const CONTROL_PLANE: &str = "kube-system";

/// The StatefulSets with etcd.
pub(super) struct EtcdSets(Result<Vec<EtcdSet>, Unread>);

/// A StatefulSet with etcd.
pub(super) struct EtcdSet {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) replicas: u32,
    /// The labels of its pods.
    pub(super) labels: BTreeMap<String, String>,
    /// Whether its namespace has the label of guarded namespaces.
    is_guarded: bool,
    /// Whether its namespace is never guarded.
    is_excluded: bool,
    /// Whether the guard needs a Role to read credentials.
    needs_role: bool,
}

// === impl EtcdSets ===

impl EtcdSets {
    /// Reads the StatefulSets of all namespaces. `namespaces` are the Namespaces, as far as they could be read.
    pub(super) async fn read(
        reader: &Reader,
        namespaces: &Result<Vec<Value>, Unread>,
        guard_namespace: &str,
        label: &OptInLabel,
    ) -> Self {
        let namespaces = match namespaces {
            Ok(namespaces) => namespaces,
            Err(unread) => return Self(Err(unread.clone())),
        };
        let right = Right { verb: "list", resource: "statefulsets.apps", namespace: None };
        let sets = match reader.list("/apis/apps/v1/statefulsets", right).await {
            Ok(sets) => sets,
            Err(unread) => return Self(Err(unread)),
        };
        let found = sets.into_iter().filter_map(|set| {
            let namespace = text(&set, "/metadata/namespace")?.to_owned();
            let object =
                namespaces.iter().find(|object| text(object, "/metadata/name") == Some(&namespace))?;
            let set: StatefulSet = serde_json::from_value(set).ok()?;
            let mut found = EtcdSet::recognize(&set, &namespace, &strings(object, "annotations"))?;
            found.is_guarded = label.matches(&strings(object, "labels"));
            found.is_excluded = namespace == CONTROL_PLANE || namespace == guard_namespace;
            Some(found)
        });
        Self(Ok(found.collect()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &EtcdSet> {
        self.0.iter().flatten()
    }

    /// Returns the line about the namespaces to label.
    pub(super) fn line(&self, reader: &Reader, label: &OptInLabel) -> Line {
        let sets = match &self.0 {
            Ok(sets) => sets,
            Err(unread) => return Line::not_checked("etcd", unread),
        };
        let Some(first) = sets.iter().find(|set| !set.is_excluded).or(sets.first()) else {
            let text = "no StatefulSet is recognized as etcd: the guard would protect nothing";
            let remedy =
                format!("look at a pod of your etcd: {} -n NAMESPACE POD", reader.command("inspect"));
            return Line::warning("etcd", text, remedy);
        };
        let mut findings: Vec<Finding> = Vec::new();
        for set in sets.iter().filter(|set| set.is_excluded) {
            findings
                .push((State::Warning, format!("{} is in a namespace that is never guarded", set.path())));
        }
        // Whoever labels a namespace has granted the Role before.
        let mut needing =
            sets.iter().filter(|set| set.needs_role && !set.is_guarded && !set.is_excluded).peekable();
        let subject = needing.peek().copied().unwrap_or(first);
        findings.extend(needing.map(|set| {
            let text =
                format!("{} needs credentials, which the guard may not read without a Role", set.path());
            (State::Warning, text)
        }));
        let names = sets.iter().map(|set| {
            let state = if set.is_guarded { " (labeled)" } else { "" };
            format!("{}{state}", set.path())
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let end = if findings.is_empty() { "" } else { "; " };
        let message = format!(
            "recognized as etcd: {names}; guarded as soon as their namespaces have the label {label}{end}"
        );
        let [namespace, name] = [&subject.namespace, &subject.name].map(|word| to_shell_word(word));
        let remedy = format!("{} -n {namespace} statefulset/{name}", reader.command("inspect"));
        Line::from_findings("etcd", &message, "", &findings, remedy)
    }
}

// === impl EtcdSet ===

impl EtcdSet {
    /// Returns the StatefulSet if the guard would recognize its pods, with these annotations of its namespace.
    fn recognize(set: &StatefulSet, namespace: &str, annotations: &BTreeMap<String, String>) -> Option<Self> {
        let pod = set.template(namespace);
        let (name, labels) = (set.metadata.name.clone(), pod.metadata.labels.clone());
        let annotated = |object: &str, relation, annotations: &BTreeMap<String, String>| AnnotatedObject {
            object: object.to_owned(),
            relation,
            annotations: Ok(annotations.clone()),
        };
        let owners = vec![
            annotated("namespace", Relation::Namespace, annotations),
            annotated(&name, Relation::StatefulSet, &set.metadata.annotations),
        ];
        let inspection = inspect(
            &InspectedObject { object: name.clone(), pod, owners },
            &Policies::default(),
            Timestamp::now(),
        );
        inspection.recognized.then(|| Self {
            namespace: namespace.to_owned(),
            name,
            replicas: set.replicas(),
            labels: labels.into_iter().collect(),
            is_guarded: false,
            is_excluded: false,
            needs_role: inspection.credentials.iter().any(|credential| credential.needed),
        })
    }

    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Returns the labels or the annotations of an object.
fn strings(object: &Value, field: &str) -> BTreeMap<String, String> {
    let values = object.pointer(&format!("/metadata/{field}")).cloned().unwrap_or_default();
    serde_json::from_value(values).unwrap_or_default()
}

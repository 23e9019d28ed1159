//! The annotation that records a restart, and the writes that begin and end it.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::{health::PodState, now};

/// The annotation of a restart in progress.
pub(crate) const RESTART: &str = "etcd-guard.io/restart";

/// The strategy of a StatefulSet that names none.
pub(crate) const DEFAULT_STRATEGY: &str = "RollingUpdate";

/// A restart in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// The start of the restart (RFC 3339), by the clock of the user.
    pub(crate) started_at: String,
    /// The update strategy of the StatefulSet before the restart. `None` if the restart only evicts pods, because another
    /// controller manages the StatefulSet: the pods then carry the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) strategy: Option<Value>,
    /// The uids of the pods before the restart. A pod with another uid has been restarted.
    pub(crate) pods: BTreeMap<String, String>,
    /// The change of the image, if the restart is an upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<ImageChange>,
}

/// The image of a container before and after an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageChange {
    pub(crate) container: String,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// The end of a restart that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Restoration {
    /// The original strategy applies again.
    Strategy,
    /// The original strategy and the original image apply again: no pod had been restarted.
    StrategyAndImage,
    /// The strategy remains `OnDelete`: under `RollingUpdate` the StatefulSet controller would replace the remaining pods,
    /// from the highest ordinal down, although a member is missing. A restart that only evicts pods has nothing to restore,
    /// and can be continued.
    Remains,
}

// === impl Record ===

impl Record {
    /// Returns the record of a new restart that only evicts pods.
    pub(crate) fn of_evictions(pods: &[PodState]) -> Self {
        let pods = pods.iter().map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
        Self { started_at: now(), strategy: None, pods, image: None }
    }

    /// Returns the record of a new restart that changes the StatefulSet.
    pub(crate) fn new(
        set: &StatefulSet,
        pods: &[PodState],
        image: Option<ImageChange>,
    ) -> anyhow::Result<Self> {
        let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.clone()).unwrap_or_default();
        Ok(Self { strategy: Some(serde_json::to_value(strategy)?), image, ..Self::of_evictions(pods) })
    }

    /// Reads the record that the StatefulSet carries, or else one of its pods.
    pub(crate) fn find(set: &StatefulSet, pods: &[PodState]) -> anyhow::Result<Option<Self>> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let of_pod = |pod: &PodState| {
            let record = serde_json::from_str(pod.record.as_ref()?).with_context(|| {
                let name = &pod.name;
                format!(
                    "the annotation {RESTART} of pod {name} is invalid; remove it: kubectl -n {namespace} annotate pod {name} \
                     {RESTART}-"
                )
            });
            Some(record)
        };
        match Self::read(set)? {
            Some(record) => Ok(Some(record)),
            None => pods.iter().find_map(of_pod).transpose(),
        }
    }

    /// Reads the record of a StatefulSet.
    pub(crate) fn read(set: &StatefulSet) -> anyhow::Result<Option<Self>> {
        let annotations = set.metadata.annotations.as_ref();
        let Some(text) = annotations.and_then(|annotations| annotations.get(RESTART)) else {
            return Ok(None);
        };
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        serde_json::from_str(text).map(Some).with_context(|| {
            format!(
                "the annotation {RESTART} is invalid, so that the update strategy before the restart is unknown. Set the \
                 strategy, then remove the annotation: kubectl -n {namespace} annotate statefulset {name} {RESTART}-"
            )
        })
    }

    /// Whether the restart leaves the StatefulSet as it is.
    pub(crate) const fn only_evicts(&self) -> bool {
        self.strategy.is_none()
    }

    /// Returns the type of the original strategy.
    pub(crate) fn strategy_type(&self) -> &str {
        let kind = self.strategy.as_ref().and_then(|strategy| strategy.get("type"));
        kind.and_then(Value::as_str).unwrap_or(DEFAULT_STRATEGY)
    }

    /// Whether the pod was created after the start of the restart, from the current template. Below a partition, the controller
    /// creates pods from an earlier template.
    pub(crate) fn is_restarted(&self, pod: &PodState, update_revision: &str) -> bool {
        let is_current = self.only_evicts() || pod.revision == update_revision;
        self.pods.get(&pod.name) != Some(&pod.uid) && is_current
    }

    /// Returns the patch that begins or resumes the restart. It fails if the StatefulSet has changed since it was read.
    pub(crate) fn begin(&self, set: &StatefulSet) -> anyhow::Result<Value> {
        let patch = json!({
            "metadata": {
                "resourceVersion": set.metadata.resource_version,
                "annotations": {RESTART: serde_json::to_string(self)?},
            },
            "spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}},
        });
        Ok(match &self.image {
            Some(ImageChange { container, to, .. }) => with_image(patch, container, to),
            None => patch,
        })
    }

    /// Returns the patch that ends the restart.
    pub(crate) fn end(&self, restoration: &Restoration) -> Option<Value> {
        let patch = json!({
            "metadata": {"annotations": {RESTART: null}},
            "spec": {"updateStrategy": self.strategy},
        });
        match (restoration, &self.image) {
            (Restoration::Remains, _) => None,
            (Restoration::StrategyAndImage, Some(ImageChange { container, from, .. })) => {
                Some(with_image(patch, container, from))
            }
            (Restoration::Strategy | Restoration::StrategyAndImage, _) => Some(patch),
        }
    }

    /// Returns how an incomplete restart ends, for these pods. Evicted pods may be absent.
    pub(crate) fn restoration(&self, pods: &[PodState], update_revision: &str) -> Restoration {
        let is_untouched = |(name, uid): (&String, &String)| {
            pods.iter().any(|pod| pod.name == *name && pod.uid == *uid && !pod.is_terminating)
        };
        if self.only_evicts() {
            return Restoration::Remains;
        }
        let starts_controller = self.strategy_type() != "OnDelete";
        if self.pods.iter().all(is_untouched) {
            Restoration::StrategyAndImage
        } else if !starts_controller || pods.iter().all(|pod| pod.revision == update_revision) {
            Restoration::Strategy
        } else {
            Restoration::Remains
        }
    }
}

/// Adds the image of a container to a patch.
fn with_image(mut patch: Value, container: &str, image: &str) -> Value {
    if let Some(spec) = patch.get_mut("spec").and_then(Value::as_object_mut) {
        let template = json!({"spec": {"containers": [{"name": container, "image": image}]}});
        spec.insert(String::from("template"), template);
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::health::tests::pod;

    fn set() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"namespace": "prod", "name": "etcd", "resourceVersion": "7"},
            "spec": {
                "selector": {}, "serviceName": "etcd", "template": {},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            },
        }))
        .unwrap()
    }

    fn pods() -> [PodState; 2] {
        [pod("etcd-0"), pod("etcd-1")]
    }

    fn image() -> ImageChange {
        ImageChange {
            container: String::from("etcd"),
            from: String::from("etcd:1"),
            to: String::from("etcd:2"),
        }
    }

    #[test]
    fn record_survives_the_annotation() {
        let mut set = set();
        assert_eq!(Record::read(&set).unwrap(), None);
        let record = Record::new(&set, &pods(), Some(image())).unwrap();
        let patch = record.begin(&set).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["updateStrategy"], json!({"type": "OnDelete", "rollingUpdate": null}));
        assert_eq!(patch["spec"]["template"]["spec"]["containers"][0]["image"], "etcd:2");
        let text = patch["metadata"]["annotations"][RESTART].as_str().unwrap().to_owned();
        set.metadata.annotations = Some([(RESTART.to_owned(), text)].into());
        assert_eq!(Record::read(&set).unwrap(), Some(record));
        set.metadata.annotations = Some([(RESTART.to_owned(), String::from("{"))].into());
        assert!(
            Record::read(&set).unwrap_err().to_string().contains("kubectl -n prod annotate statefulset etcd")
        );
    }

    #[test]
    fn end_restores_the_recorded_strategy() {
        let record = Record::new(&set(), &pods(), Some(image())).unwrap();
        let patch = record.end(&Restoration::Strategy).unwrap();
        assert_eq!(
            patch["spec"]["updateStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
        );
        assert!(patch["metadata"]["annotations"][RESTART].is_null());
        assert!(patch["spec"].get("template").is_none());
        let patch = record.end(&Restoration::StrategyAndImage).unwrap();
        assert_eq!(patch["spec"]["template"]["spec"]["containers"][0]["image"], "etcd:1");
        assert_eq!(record.end(&Restoration::Remains), None);
    }

    #[test]
    fn pod_is_restarted_with_new_uid_and_current_revision() {
        let record = Record::new(&set(), &pods(), None).unwrap();
        let replaced = PodState { uid: String::from("new"), ..pod("etcd-1") };
        assert!(!record.is_restarted(&pod("etcd-1"), "a"));
        assert!(record.is_restarted(&replaced, "a"));
        assert!(!record.is_restarted(&replaced, "b"));
    }

    #[test]
    fn strategy_remains_if_the_controller_would_replace_pods() {
        let record = Record::new(&set(), &pods(), None).unwrap();
        let replaced = PodState { uid: String::from("new"), revision: String::from("b"), ..pod("etcd-1") };
        let terminating = PodState { is_terminating: true, ..pod("etcd-1") };
        assert_eq!(record.restoration(&pods(), "b"), Restoration::StrategyAndImage);
        assert_eq!(record.restoration(&[pod("etcd-0"), replaced.clone()], "b"), Restoration::Remains);
        assert_eq!(record.restoration(&[pod("etcd-0"), terminating], "b"), Restoration::Remains);
        assert_eq!(record.restoration(&[replaced], "b"), Restoration::Strategy);
        // Without a change of the template, all pods have the current revision.
        assert_eq!(record.restoration(&[pod("etcd-0")], "a"), Restoration::Strategy);
        let on_delete = Record { strategy: Some(json!({"type": "OnDelete"})), ..record };
        assert_eq!(on_delete.restoration(&[pod("etcd-0")], "b"), Restoration::Strategy);
    }
}

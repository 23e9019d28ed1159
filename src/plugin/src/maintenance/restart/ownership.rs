//! Detects other managers of a StatefulSet, which would reverse the changes of a restart.

use k8s_openapi::{api::apps::v1::StatefulSet, apimachinery::pkg::apis::meta::v1::ObjectMeta};

/// Labels and annotations of GitOps controllers.
const GITOPS_MARKS: [(&str, &str); 8] = [
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("helm.toolkit.fluxcd.io/name", "Flux"),
    ("configsync.gke.io/resource-id", "Config Sync"),
    ("configmanagement.gke.io/managed", "Config Sync"),
    ("objectset.rio.cattle.io/id", "Rancher Fleet"),
    ("kapp.k14s.io/app", "kapp"),
];

/// Prefix of the field managers of Argo CD. By default, Argo CD sets only the label `app.kubernetes.io/instance`, which other tools
/// set as well.
const ARGO_CD_FIELD_MANAGER: &str = "argocd-";

/// The label of a tool that applied an object. The tool changes the object only when a user runs the tool.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Another manager of a StatefulSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    /// A controller, which reverses changes at any time.
    Controller(String),
    /// A tool, which reverses changes at its next run.
    Tool(String),
}

/// Returns the other managers of the StatefulSet.
pub(crate) fn managers(set: &StatefulSet) -> Vec<Manager> {
    let ObjectMeta { owner_references, labels, annotations, managed_fields, .. } = &set.metadata;
    let owners = owner_references.iter().flatten();
    let owners = owners.map(|owner| Manager::Controller(format!("{} {}", owner.kind, owner.name)));
    let has = |mark: &str| [labels, annotations].into_iter().flatten().any(|marks| marks.contains_key(mark));
    let gitops = GITOPS_MARKS.iter().filter(|(mark, _)| has(mark));
    let gitops = gitops.map(|(mark, name)| Manager::Controller(format!("{name} ({mark})")));
    let mut field_managers = managed_fields.iter().flatten().filter_map(|fields| fields.manager.as_deref());
    let argo_cd = field_managers.find(|manager| manager.starts_with(ARGO_CD_FIELD_MANAGER));
    let has_mark = has("argocd.argoproj.io/tracking-id") || has("argocd.argoproj.io/instance");
    let argo_cd = argo_cd.filter(|_| !has_mark);
    let argo_cd = argo_cd.map(|manager| Manager::Controller(format!("Argo CD (field manager {manager})")));
    let tool = labels.as_ref().and_then(|labels| labels.get(MANAGED_BY));
    owners.chain(gitops).chain(argo_cd).chain(tool.map(|tool| Manager::Tool(tool.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn managers_with(metadata: &serde_json::Value) -> Vec<Manager> {
        managers(&serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn operators_and_gitops_are_controllers() {
        let owner = json!({"apiVersion": "operator.etcd.io/v1alpha1", "kind": "EtcdCluster", "name": "etcd", "uid": "1"});
        for (metadata, expected) in [
            (json!({"ownerReferences": [owner]}), "EtcdCluster etcd"),
            (
                json!({"annotations": {"argocd.argoproj.io/tracking-id": "app:apps/StatefulSet:prod/etcd"}}),
                "Argo CD (argocd.argoproj.io/tracking-id)",
            ),
            (
                json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "etcd"}}),
                "Flux (kustomize.toolkit.fluxcd.io/name)",
            ),
            (
                json!({"labels": {"helm.toolkit.fluxcd.io/name": "etcd"}}),
                "Flux (helm.toolkit.fluxcd.io/name)",
            ),
            (
                json!({"managedFields": [{"manager": "kubectl"}, {"manager": "argocd-controller"}]}),
                "Argo CD (field manager argocd-controller)",
            ),
        ] {
            assert_eq!(managers_with(&metadata), [Manager::Controller(expected.to_owned())]);
        }
    }

    #[test]
    fn helm_is_a_tool() {
        let helm = json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}});
        assert_eq!(managers_with(&helm), [Manager::Tool(String::from("Helm"))]);
        assert_eq!(managers_with(&json!({"labels": {"app": "etcd"}})), []);
    }
}

//! Detects other managers of a StatefulSet, which would reverse the changes of a restart.

use std::fmt;

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

/// The fields with the release of etcd in the custom resources of operators, by API group and kind.
const IMAGE_FIELDS: [(&str, &str, &str); 3] = [
    ("druid.gardener.cloud", "Etcd", "spec.etcd.image"),
    ("operator.etcd.io", "EtcdCluster", "spec.version"),
    ("etcd.aenix.io", "EtcdCluster", "spec.podTemplate.spec.containers"),
];

/// Another manager of a StatefulSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    /// The operator of this object, which reverses changes at any time.
    Owner { group: String, kind: String, name: String },
    /// A GitOps controller, which does the same.
    GitOps(String),
    /// A tool, which reverses changes at its next run.
    Tool(String),
}

// === impl Manager ===

impl Manager {
    /// Returns where to change the image instead, at the end with the command.
    pub(crate) fn image_advice(&self, namespace: &str) -> String {
        let Self::Owner { group, kind, name } = self else {
            return format!("change the image in the source of {self}");
        };
        let known = IMAGE_FIELDS.iter().find(|(of_group, of_kind, _)| of_group == group && of_kind == kind);
        let field = known.map_or("the image", |(_, _, field)| field);
        let resource = [kind.to_lowercase().as_str(), group].join(".");
        let resource = resource.trim_end_matches('.');
        format!("change {field} in {self}: kubectl -n {namespace} edit {resource}/{name}")
    }
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner { kind, name, .. } => write!(f, "{kind} {name}"),
            Self::GitOps(name) | Self::Tool(name) => f.write_str(name),
        }
    }
}

/// Returns the other managers of the StatefulSet.
pub(crate) fn managers(set: &StatefulSet) -> Vec<Manager> {
    let ObjectMeta { owner_references, labels, annotations, managed_fields, .. } = &set.metadata;
    let owners = owner_references.iter().flatten().map(|owner| Manager::Owner {
        group: owner.api_version.rsplit_once('/').map(|(group, _)| group.to_owned()).unwrap_or_default(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
    });
    let has = |mark: &str| [labels, annotations].into_iter().flatten().any(|marks| marks.contains_key(mark));
    let gitops = GITOPS_MARKS.iter().filter(|(mark, _)| has(mark));
    let gitops = gitops.map(|(mark, name)| Manager::GitOps(format!("{name} ({mark})")));
    let mut field_managers = managed_fields.iter().flatten().filter_map(|fields| fields.manager.as_deref());
    let argo_cd = field_managers.find(|manager| manager.starts_with(ARGO_CD_FIELD_MANAGER));
    let has_mark = has("argocd.argoproj.io/tracking-id") || has("argocd.argoproj.io/instance");
    let argo_cd = argo_cd.filter(|_| !has_mark);
    let argo_cd = argo_cd.map(|manager| Manager::GitOps(format!("Argo CD (field manager {manager})")));
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
    fn gitops_is_found_by_its_marks() {
        for (metadata, expected) in [
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
            assert_eq!(managers_with(&metadata), [Manager::GitOps(expected.to_owned())]);
        }
    }

    #[test]
    fn owners_name_the_field_of_the_image() {
        let advice = |api_version: &str, kind: &str| {
            let owner = json!({"apiVersion": api_version, "kind": kind, "name": "main", "uid": "1"});
            let [manager] =
                <[Manager; 1]>::try_from(managers_with(&json!({"ownerReferences": [owner]}))).unwrap();
            manager.image_advice("prod")
        };
        assert_eq!(
            advice("druid.gardener.cloud/v1alpha1", "Etcd"),
            "change spec.etcd.image in Etcd main: kubectl -n prod edit etcd.druid.gardener.cloud/main"
        );
        assert_eq!(
            advice("operator.etcd.io/v1alpha1", "EtcdCluster"),
            "change spec.version in EtcdCluster main: kubectl -n prod edit etcdcluster.operator.etcd.io/main"
        );
        assert!(advice("etcd.aenix.io/v1alpha1", "EtcdCluster").starts_with("change spec.podTemplate."));
        assert_eq!(
            advice("v1", "ConfigMap"),
            "change the image in ConfigMap main: kubectl -n prod edit configmap/main"
        );
        let flux = Manager::GitOps(String::from("Flux"));
        assert_eq!(flux.image_advice("prod"), "change the image in the source of Flux");
    }

    #[test]
    fn helm_is_a_tool() {
        let helm = json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}});
        assert_eq!(managers_with(&helm), [Manager::Tool(String::from("Helm"))]);
        assert_eq!(managers_with(&json!({"labels": {"app": "etcd"}})), []);
    }
}

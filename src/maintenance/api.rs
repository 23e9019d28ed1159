//! Reads and writes of objects with the permissions of the user.

use anyhow::{Context, bail};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        core::v1::{Node, Pod},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::Value;

use crate::{api::Survey, escape::to_shell_word, guard_client::GuardClient, k8s::error_message};

/// The API server and the guard.
pub(crate) struct ClusterApi {
    pub(crate) guard: GuardClient,
    /// The kubectl command with the flags that select the same cluster.
    pub(crate) kubectl: String,
}

// === impl ClusterApi ===

impl ClusterApi {
    pub(crate) fn client(&self) -> Client {
        self.guard.client.clone()
    }

    /// Returns a command of this program, with the flags that select the same cluster and the same identity.
    pub(crate) fn command(&self, name: &str) -> String {
        format!("etcd-guard {name}{}", self.kubectl.strip_prefix("kubectl").unwrap_or_default())
    }

    pub(crate) async fn stateful_set(&self, namespace: &str, name: &str) -> anyhow::Result<StatefulSet> {
        let sets: Api<StatefulSet> = Api::namespaced(self.client(), namespace);
        match sets.get_opt(name).await {
            Ok(Some(set)) => Ok(set),
            Ok(None) => bail!(
                "StatefulSet {namespace}/{name} does not exist; list them: {} -n {namespace} get statefulsets",
                self.kubectl
            ),
            Err(error) => {
                bail!("failed to read StatefulSet {namespace}/{name}: {}", error_message(&error))
            }
        }
    }

    /// Returns the pods that this StatefulSet controls.
    pub(crate) async fn pods_of(&self, namespace: &str, set: &StatefulSet) -> anyhow::Result<Vec<Pod>> {
        let labels =
            set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
        let selector: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let listed = self.pods_with(namespace, &ListParams::default().labels(&selector.join(","))).await?;
        let is_owned = |pod: &Pod| {
            let owners = pod.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| Some(&owner.uid) == set.metadata.uid.as_ref())
        };
        Ok(listed.into_iter().filter(is_owned).collect())
    }

    /// Returns a pod, or `None` if it does not exist.
    pub(crate) async fn pod(&self, namespace: &str, name: &str) -> anyhow::Result<Option<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        pods.get_opt(name).await.map_err(|error| {
            anyhow::anyhow!("failed to read pod {namespace}/{name}: {}", error_message(&error))
        })
    }

    pub(crate) async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.client());
        let listed = nodes.list(&ListParams::default()).await;
        let listed =
            listed.map_err(|error| anyhow::anyhow!("failed to list nodes: {}", error_message(&error)))?;
        Ok(listed.items)
    }

    /// Returns the pods on a node, in all namespaces.
    pub(crate) async fn pods_on(&self, node: &str) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::all(self.client());
        let listed = pods.list(&ListParams::default().fields(&format!("spec.nodeName={node}"))).await;
        let listed = listed.map_err(|error| {
            anyhow::anyhow!("failed to list the pods of all namespaces: {}", error_message(&error))
        })?;
        Ok(listed.items)
    }

    /// Returns the pods of a namespace.
    pub(crate) async fn pods_in(&self, namespace: &str) -> anyhow::Result<Vec<Pod>> {
        self.pods_with(namespace, &ListParams::default()).await
    }

    async fn pods_with(&self, namespace: &str, parameters: &ListParams) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let listed = pods.list(parameters).await;
        let listed = listed.map_err(|error| {
            anyhow::anyhow!("failed to list the pods of namespace {namespace}: {}", error_message(&error))
        })?;
        Ok(listed.items)
    }

    /// Applies a strategic merge patch to a StatefulSet.
    pub(crate) async fn patch_set(
        &self,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> anyhow::Result<StatefulSet> {
        let sets: Api<StatefulSet> = Api::namespaced(self.client(), namespace);
        let patched = sets.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        patched.map_err(|error| {
            anyhow::anyhow!("failed to change StatefulSet {namespace}/{name}: {}", error_message(&error))
        })
    }

    /// Returns an error if the user may not evict pods of this namespace. If the API server does not answer the review, the
    /// eviction itself reports the cause.
    pub(crate) async fn require_evictions(&self, namespace: &str) -> anyhow::Result<()> {
        let eviction = ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            verb: Some(String::from("create")),
            resource: Some(String::from("pods")),
            subresource: Some(String::from("eviction")),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(eviction),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client());
        let review = reviews.create(&PostParams::default(), &review).await;
        if review.is_ok_and(|review| review.status.is_some_and(|status| !status.allowed)) {
            bail!(
                "the permission to create pods/eviction in namespace {namespace} is missing, and no pod was evicted; check \
                 the permission: {} auth can-i create pods --subresource=eviction -n {}",
                self.kubectl,
                to_shell_word(namespace)
            );
        }
        Ok(())
    }

    /// Sets or withdraws the cordon of a node.
    pub(crate) async fn cordon(&self, node: &str, is_cordoned: bool) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client());
        let patch = Patch::Merge(serde_json::json!({"spec": {"unschedulable": is_cordoned}}));
        let patched = nodes.patch(node, &PatchParams::default(), &patch).await;
        let patched = patched.map_err(|error| anyhow::anyhow!("{}", error_message(&error)));
        patched.map(drop).with_context(|| format!("failed to cordon node {node}"))
    }

    /// Returns the status of the guarded clusters of a namespace, or of all namespaces, from the guard.
    pub(crate) async fn survey(&self, namespace: Option<&str>) -> anyhow::Result<Survey> {
        self.guard.status(namespace).await
    }
}

/// Returns the current time in RFC 3339, in UTC and with milliseconds: two requests in one second differ.
pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_time_has_milliseconds() {
        let text = now();
        let time: Timestamp = text.parse().unwrap();
        assert_eq!(text.len(), "2026-11-24T06:00:00.000Z".len(), "{text}");
        assert!(Timestamp::now().duration_since(time).as_secs() < 60, "{text}");
    }
}

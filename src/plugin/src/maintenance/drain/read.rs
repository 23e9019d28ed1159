//! Reads what the plan of a drain requires: the pods and members of the node, their volumes, and previews of verdicts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};

use super::{
    super::{eviction::preview, leadership::transferee},
    placement::{BoundVolume, obstacle},
    plan::{Member, Verdict},
    pods::{Handling, Permitted, controller, handling, is_finished},
};
use crate::{
    api_server::{CallError, call},
    guard_client::GuardClient,
};
use etcd_guard_api::{ClusterStatus, MemberStatus, Role, Survey};

/// The contents of a node.
pub(crate) struct NodeView {
    /// The members, with their verdicts and obstacles.
    pub(crate) members: Vec<Member>,
    /// All other pods, with members that stay on the node, such as those in static pods.
    pub(crate) others: Vec<Pod>,
    /// Clusters or volumes that could not be read, one sentence each.
    pub(crate) problems: Vec<String>,
    /// Whether the guard could not read all clusters of the node's pods. Members can be among the other pods then.
    pub(crate) is_incomplete: bool,
}

impl NodeView {
    /// Returns namespace and name of each pod.
    pub(crate) fn pod_names(&self) -> BTreeSet<(&str, &str)> {
        let members = self.members.iter().map(|member| (member.namespace.as_str(), member.pod.as_str()));
        members.chain(self.others.iter().map(names)).collect()
    }
}

/// Reads a node. The guard must answer: without its verdicts there is no safe order.
pub(crate) async fn read_node(
    guard: &GuardClient,
    node: &str,
    permitted: Permitted,
) -> anyhow::Result<NodeView> {
    let nodes = guard.api_server.nodes().await?;
    let is_drained = |entry: &Node| entry.metadata.name.as_deref() == Some(node);
    anyhow::ensure!(
        nodes.iter().any(is_drained),
        "node {node} does not exist; list the nodes: {} get nodes",
        guard.api_server.kubectl
    );
    let pods = guard.api_server.pods_on(node).await?;
    let survey = guard.status(None).await?;
    let mut problems = survey.problems.clone();
    let mut view = NodeView {
        members: Vec::new(),
        others: Vec::new(),
        problems: Vec::new(),
        is_incomplete: can_hide_members(&survey, &pods, permitted),
    };
    let on_node: BTreeSet<(&str, &str)> = pods.iter().map(names).collect();
    for pod in &pods {
        let (namespace, name) = names(pod);
        let handling = handling(pod, permitted);
        let member = member_of(&survey, namespace, name);
        let (Some((cluster, member)), Handling::Evict | Handling::Refuse(_)) = (member, handling) else {
            view.others.push(pod.clone());
            continue;
        };
        let verdict = preview(guard, namespace, name).await?;
        let mut others = guard.api_server.pods_in(namespace, "").await?;
        // The scheduler ignores finished pods.
        others.retain(|other| !is_finished(other));
        let volumes = match volumes(guard, pod).await {
            Ok(volumes) => volumes,
            Err(problem) => {
                problems.push(problem);
                Vec::new()
            }
        };
        let refusal = match handling {
            Handling::Refuse(cause) => Some(cause.to_owned()),
            Handling::Evict | Handling::Ignore(_) => None,
        };
        view.members.push(Member {
            namespace: namespace.to_owned(),
            pod: name.to_owned(),
            cluster: format!("{}/{}", cluster.namespace, cluster.name),
            role: member.role,
            is_serving: member.serving || member.role == Role::Learner,
            verdict: Verdict {
                is_denied: verdict.verdict == "denied",
                reason: verdict.reason,
                message: verdict.message,
            },
            obstacle: obstacle(pod, node, &nodes, &volumes, &others),
            has_controller: controller(pod).is_some(),
            transferee: transferee(cluster, |pod| !on_node.contains(&(namespace, pod))).map(str::to_owned),
            refusal,
        });
    }
    view.problems = problems;
    Ok(view)
}

/// Whether the survey lacks clusters whose members can be among the pods of the node that would be evicted.
fn can_hide_members(survey: &Survey, pods: &[Pod], permitted: Permitted) -> bool {
    let can_leave = |pod: &Pod| !matches!(handling(pod, permitted), Handling::Ignore(_));
    lacks_clusters_of(survey, pods.iter().filter(|pod| can_leave(pod)))
}

/// Whether the survey can lack the cluster of one of these pods.
pub(super) fn lacks_clusters_of<'a>(survey: &Survey, mut pods: impl Iterator<Item = &'a Pod>) -> bool {
    match &survey.unread_namespaces {
        Some(unread) => pods.any(|pod| unread.iter().any(|namespace| namespace == names(pod).0)),
        None => !survey.problems.is_empty(),
    }
}

/// Returns namespace and name.
pub(crate) fn names(pod: &Pod) -> (&str, &str) {
    let metadata = &pod.metadata;
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

/// Returns the cluster and the member of a pod.
pub(super) fn member_of<'a>(
    survey: &'a Survey,
    namespace: &str,
    pod: &str,
) -> Option<(&'a ClusterStatus, &'a MemberStatus)> {
    let mut clusters = survey.clusters.iter().filter(|cluster| cluster.namespace == namespace);
    clusters.find_map(|cluster| {
        let member = cluster.members.iter().find(|member| member.pod.as_deref() == Some(pod));
        member.map(|member| (cluster, member))
    })
}

/// Returns the volumes of a pod's claims, with the nodes that can mount them.
async fn volumes(guard: &GuardClient, pod: &Pod) -> Result<Vec<BoundVolume>, String> {
    let (namespace, name) = names(pod);
    let claims = guard.api_server.namespaced::<PersistentVolumeClaim>(namespace);
    let volumes = guard.api_server.all::<PersistentVolume>();
    let operation =
        format!("the volumes of pod {namespace}/{name} are unknown, and may be bound to the node");
    let failed = |error: CallError| error.to_string();
    let sources = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut bound = Vec::new();
    for source in sources.filter_map(|volume| volume.persistent_volume_claim.as_ref()) {
        let claim = call(&*operation, claims.get_opt(&source.claim_name)).await.map_err(failed)?;
        let Some(volume) = claim.and_then(|claim| claim.spec?.volume_name) else { continue };
        let volume = call(&*operation, volumes.get_opt(&volume)).await.map_err(failed)?;
        let affinity = volume.and_then(|volume| volume.spec?.node_affinity);
        let nodes = affinity.and_then(|affinity| affinity.required);
        bound.push(BoundVolume { claim: source.claim_name.clone(), nodes });
    }
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_unread_namespaces_of_evictable_pods_hide_members() {
        let pod = |namespace: &str, kind: &str| -> Pod {
            let owner =
                json!([{"apiVersion": "apps/v1", "kind": kind, "name": "a", "uid": "1", "controller": true}]);
            let metadata = json!({"namespace": namespace, "name": "a-0", "ownerReferences": owner});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let problems = vec![String::from("namespace prod: forbidden")];
        let survey = |unread: Option<&[&str]>| Survey {
            problems: problems.clone(),
            unread_namespaces: unread.map(|names| names.iter().map(|name| String::from(*name)).collect()),
            ..Survey::default()
        };
        let hides = |survey: &Survey, pods: &[Pod]| can_hide_members(survey, pods, Permitted::default());
        let pods = [pod("prod", "DaemonSet"), pod("other", "StatefulSet")];
        assert!(!hides(&survey(Some(&["prod"])), &pods), "the pod of the DaemonSet stays");
        assert!(!hides(&survey(Some(&[])), &pods), "the reservations were not read");
        assert!(hides(&survey(Some(&["other"])), &pods));
        assert!(hides(&survey(None), &pods), "no namespace was read");
        assert!(!hides(&Survey::default(), &pods));
    }
}

//! Whether the claim that holds a member's data stays when its pod goes.

use super::{etcd_pod::EtcdPod, snapshot::Storage};
use crate::k8s::{Claim, Claims, LookupError, pod::Pod};

/// Who makes a pod own its claim right before deleting the pod, to scale down; a watch may not have heard of it yet. The
/// second name is that of all controllers together, where they have no service accounts of their own.
const STATEFUL_SET_CONTROLLERS: [&str; 2] =
    ["system:serviceaccount:kube-system:statefulset-controller", "system:kube-controller-manager"];

/// What becomes of the member when this pod of a namespace is deleted by this user: what the pod tells, and what its claim tells.
///
/// Of a watch only the good news is taken, that the claim is there and stays; everything else is read. It can be wrong by
/// as much as an event takes, which costs the one voter more that a permanent loss asks for, never the quorum.
pub(super) async fn of_pod(
    claims: &Claims,
    namespace: &str,
    user: &str,
    pod: &Pod,
    etcd_pod: &EtcdPod,
) -> Result<Storage, LookupError> {
    let Some(name) = etcd_pod.claim.as_ref().filter(|_| etcd_pod.storage.keeps_the_data()) else {
        return Ok(etcd_pod.storage);
    };
    let stays = |claim: &Claim| !claim.is_terminating() && !claim.goes_with(&pod.metadata.uid);
    if !STATEFUL_SET_CONTROLLERS.contains(&user) && claims.known(namespace, name).as_ref().is_some_and(stays)
    {
        return Ok(etcd_pod.storage);
    }
    match claims.read(namespace, name).await {
        Ok(claim) if stays(&claim) => Ok(etcd_pod.storage),
        // A pod that still runs keeps its claim from ending; one that is gone was forced away.
        Ok(_) | Err(LookupError::NotFound { .. }) => Ok(Storage::ClaimTerminating),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        guard::etcd_pod,
        k8s::{Pods, fake},
    };

    /// What a claim in this state means for its pod.
    async fn with_claim(status: u16, claim: &serde_json::Value) -> Result<Storage, LookupError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "etcd-1", "namespace": "prod", "uid": "u1"},
            "spec": {
                "containers": [{"name": "etcd", "image": "etcd", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-etcd-1"}}]
            }
        }))
        .unwrap();
        let etcd_pod = etcd_pod::read(&pod, &pod.metadata.annotations).unwrap();
        let path = "/api/v1/namespaces/prod/persistentvolumeclaims/data-etcd-1";
        let claims = Claims::unwatched(Pods::new(fake::apiserver([(path, status, claim.clone())])));
        of_pod(&claims, "prod", "kubernetes-admin", &pod, &etcd_pod).await
    }

    #[tokio::test]
    async fn a_claim_that_stays_keeps_the_member() {
        // With `whenDeleted: Delete` the StatefulSet owns the claim: a pod that is deleted alone comes back to it.
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "set"});
        let claim = json!({"metadata": {"name": "data-etcd-1", "ownerReferences": [owner]}});
        assert_eq!(with_claim(200, &claim).await.unwrap(), Storage::Persistent);
    }

    #[tokio::test]
    async fn a_claim_that_is_being_deleted_goes_with_its_pod() {
        let claim = json!({"metadata": {"name": "data-etcd-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(with_claim(200, &claim).await.unwrap(), Storage::ClaimTerminating);
        assert_eq!(
            with_claim(404, &fake::failure(404, "not found")).await.unwrap(),
            Storage::ClaimTerminating
        );
    }

    /// `whenScaled: Delete`: the controller made the pod own the claim right before it deletes the pod.
    #[tokio::test]
    async fn a_claim_that_its_pod_owns_goes_with_it() {
        let owner = |uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "etcd-1", "uid": uid});
        let claim = |uid| json!({"metadata": {"name": "data-etcd-1", "ownerReferences": [owner(uid)]}});
        assert_eq!(with_claim(200, &claim("u1")).await.unwrap(), Storage::ClaimTerminating);
        assert_eq!(
            with_claim(200, &claim("u0")).await.unwrap(),
            Storage::Persistent,
            "of a pod that is gone"
        );
    }

    #[tokio::test]
    async fn a_claim_that_cannot_be_read_is_named() {
        let error = with_claim(403, &fake::failure(403, "no rights")).await.unwrap_err();
        let text = "reading PersistentVolumeClaim prod/data-etcd-1 is forbidden: no rights";
        assert_eq!(error.to_string(), text);
    }
}

//! The durability of a member's data, including the state of the claim that holds it.

use etcd_guard_core::{
    discovery::etcd_pod::EtcdPod,
    objects::{claim::Claim, pod::Pod},
    snapshot::Storage,
};
use etcd_guard_kubernetes::{ClaimReader, LookupError};

/// Users of the StatefulSet controller. During a scale-down, the controller makes the pod the owner of its claim
/// immediately before it deletes the pod, and the watch of claims can lag behind. The second user is that of all
/// controllers if the controller manager runs without `--use-service-account-credentials`.
const STATEFUL_SET_CONTROLLERS: [&str; 2] =
    ["system:serviceaccount:kube-system:statefulset-controller", "system:kube-controller-manager"];

/// Returns the durability of the member's data when `user` deletes the pod. The write-ahead log can have a claim of its
/// own; the member returns only if every claim outlives the pod.
///
/// The watch of claims is trusted only if it shows a claim that outlives the pod; otherwise the claim is read from the
/// API server. The watch can lag by one event. A deletion that loses the data is then assessed like one that preserves
/// the data. The cluster can lose the spare voter that a permanent loss requires, but never the quorum.
pub(crate) async fn read_storage(
    claims: &ClaimReader,
    namespace: &str,
    user: &str,
    pod: &Pod,
    etcd_pod: &EtcdPod,
) -> Result<Storage, LookupError> {
    let outlives_pod = |claim: &Claim| !claim.is_terminating() && !claim.is_owned_by_pod(&pod.metadata.uid);
    for name in &etcd_pod.claims {
        if !STATEFUL_SET_CONTROLLERS.contains(&user)
            && claims.cached(namespace, name).as_ref().is_some_and(outlives_pod)
        {
            continue;
        }
        match claims.read(namespace, name).await {
            Ok(claim) if outlives_pod(&claim) => {}
            // Kubernetes protects the claim of a running pod. If it is missing, its finalizer was removed.
            Ok(_) | Err(LookupError::NotFound { .. }) => return Ok(Storage::ClaimTerminating),
            Err(error) => return Err(error),
        }
    }
    Ok(etcd_pod.storage)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use etcd_guard_core::discovery::etcd_pod;
    use etcd_guard_kubernetes::{ApiReader, fake};

    /// Returns the durability for a pod with a claim in this state.
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
        let claims =
            ClaimReader::without_watches(ApiReader::new(fake::api_server([(path, status, claim.clone())])));
        read_storage(&claims, "prod", "kubernetes-admin", &pod, &etcd_pod).await
    }

    #[tokio::test]
    async fn claim_that_outlives_its_pod_is_persistent() {
        // With `whenDeleted: Delete` the StatefulSet owns the claim: its own deletion is required to delete the claim.
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "set"});
        let claim = json!({"metadata": {"name": "data-etcd-1", "ownerReferences": [owner]}});
        assert_eq!(with_claim(200, &claim).await.unwrap(), Storage::Persistent);
    }

    #[tokio::test]
    async fn claim_that_is_terminating_or_gone_is_lost() {
        let claim = json!({"metadata": {"name": "data-etcd-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(with_claim(200, &claim).await.unwrap(), Storage::ClaimTerminating);
        assert_eq!(
            with_claim(404, &fake::status_failure(404, "not found")).await.unwrap(),
            Storage::ClaimTerminating
        );
    }

    /// `whenScaled: Delete`: the controller makes the pod the owner of the claim immediately before it deletes the pod.
    #[tokio::test]
    async fn claim_that_its_pod_owns_is_lost() {
        let owner = |uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "etcd-1", "uid": uid});
        let claim = |uid| json!({"metadata": {"name": "data-etcd-1", "ownerReferences": [owner(uid)]}});
        assert_eq!(with_claim(200, &claim("u1")).await.unwrap(), Storage::ClaimTerminating);
        assert_eq!(
            with_claim(200, &claim("u0")).await.unwrap(),
            Storage::Persistent,
            "the owner is an earlier pod"
        );
    }

    #[tokio::test]
    async fn write_ahead_log_with_terminating_claim_is_lost() {
        let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
        let volume = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "etcd-1", "namespace": "prod", "uid": "u1"},
            "spec": {
                "containers": [{
                    "name": "etcd",
                    "command": ["etcd", "--data-dir=/data", "--wal-dir=/wal"],
                    "volumeMounts": [mount("data"), mount("wal")],
                }],
                "volumes": [volume("data"), volume("wal")]
            }
        }))
        .unwrap();
        let etcd_pod = etcd_pod::read(&pod, &pod.metadata.annotations).unwrap();
        let path = |name: &str| format!("/api/v1/namespaces/prod/persistentvolumeclaims/{name}");
        let with_log = async |deletion: Option<&str>| {
            let log = json!({"metadata": {"name": "wal", "deletionTimestamp": deletion}});
            let (data_path, log_path) = (path("data"), path("wal"));
            let replies = [
                (data_path.as_str(), 200, json!({"metadata": {"name": "data"}})),
                (log_path.as_str(), 200, log),
            ];
            let claims = ClaimReader::without_watches(ApiReader::new(fake::api_server(replies)));
            read_storage(&claims, "prod", "kubernetes-admin", &pod, &etcd_pod).await.unwrap()
        };
        assert_eq!(with_log(None).await, Storage::Persistent);
        assert_eq!(with_log(Some("2026-01-01T00:00:00Z")).await, Storage::ClaimTerminating);
    }

    #[tokio::test]
    async fn error_names_a_claim_that_cannot_be_read() {
        let error = with_claim(403, &fake::status_failure(403, "no rights")).await.unwrap_err();
        let text = "reading PersistentVolumeClaim prod/data-etcd-1 is forbidden: no rights";
        assert_eq!(error.to_string(), text);
    }
}

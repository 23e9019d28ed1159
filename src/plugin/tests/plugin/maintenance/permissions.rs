//! Restarts by users with few permissions.

use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{Api, api::PostParams};
use serde_json::json;
use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::{wait_for, wait_until},
};

use super::{restored, strategy, uids};

/// A permission of a restart, and the error of a user without it.
struct Permission {
    group: &'static str,
    resource: &'static str,
    verb: &'static str,
    error: &'static str,
}

const PERMISSIONS: [Permission; 4] = [
    Permission {
        group: "apps",
        resource: "statefulsets",
        verb: "get",
        error: "cannot get resource \"statefulsets\" in API group \"apps\"",
    },
    Permission {
        group: "apps",
        resource: "statefulsets",
        verb: "patch",
        error: "cannot patch resource \"statefulsets\" in API group \"apps\"",
    },
    Permission {
        group: "",
        resource: "pods",
        verb: "list",
        error: "cannot list resource \"pods\" in API group \"\"",
    },
    Permission {
        group: "",
        resource: "pods/eviction",
        verb: "create",
        error: "the permission to create pods/eviction in namespace ",
    },
];

/// Grants a user all permissions of a restart except this one.
async fn grant_all_except(etcd: &GuardedCluster, user: &str, missing: Option<&Permission>) {
    let granted = PERMISSIONS
        .iter()
        .filter(|permission| missing.is_none_or(|missing| missing.error != permission.error));
    let rules = granted.map(|Permission { group, resource, verb, .. }| {
        json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
    });
    // Without the answer of the guard, the restart does not know that leadership was moved.
    let events = json!({"apiGroups": [""], "resources": ["events"], "verbs": ["list"]});
    let rules: Vec<_> = rules.chain([events]).collect();
    let namespaced: Api<Role> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let role = serde_json::from_value(json!({"metadata": {"name": user}, "rules": rules})).unwrap();
    namespaced.create(&PostParams::default(), &role).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let api = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": api, "kind": "Role", "name": user},
        "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
    });
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
}

#[tokio::test]
async fn restart_without_a_permission_changes_nothing() {
    let etcd = GuardedCluster::start().await;
    let before = uids(&etcd).await;
    for (position, permission) in PERMISSIONS.iter().enumerate() {
        let user = format!("restarter-{position}");
        grant_all_except(&etcd, &user, Some(permission)).await;
        let arguments = ["statefulset/etcd", "--timeout", "10s", "--as", &user];
        // The API server applies a new Role a moment later.
        let output = wait_for(permission.error, START_TIMEOUT, async || {
            let output = cli::run(&etcd, "restart", &arguments).await;
            assert_eq!(output.status, Some(2), "{output:?}");
            output.stderr.contains(permission.error).then_some(output)
        })
        .await;
        assert_eq!(output.stderr.matches("error: ").count(), 1, "{output:?}");
        assert_eq!((uids(&etcd).await, strategy(&etcd).await), (before.clone(), restored()), "{output:?}");
    }

    grant_all_except(&etcd, "restarter", None).await;
    wait_until("the Role applies and all members restart", START_TIMEOUT, async || {
        let output = cli::run(&etcd, "restart", &["statefulset/etcd", "--as", "restarter"]).await;
        let is_complete = output.status == Some(0);
        assert!(is_complete || output.stderr.contains(" is forbidden: "), "{output:?}");
        is_complete
    })
    .await;
    assert!(uids(&etcd).await.iter().zip(&before).all(|(after, before)| after != before));
    assert_eq!(strategy(&etcd).await, restored());
}

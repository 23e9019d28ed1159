//! A configuration with kinds of owners.

use serde_json::json;

use super::{DEPLOYMENTS, Installation};

/// Mounts a `ConfigMap` that lists a custom resource as an owner of members.
pub(super) fn list_owner_kind(it: &mut Installation) {
    let template = &mut it.objects.get_mut(DEPLOYMENTS).unwrap()["items"][0]["spec"]["template"]["spec"];
    template["volumes"] = json!([{"name": "config", "configMap": {"name": "guard-config"}}]);
    let config = "apiVersion: etcd-guard.io/v1alpha1\nguard:\n  ownerKinds:\n  - {group: example.com, version: v1, \
                  resource: etcdclusters, kind: EtcdCluster}\n";
    let object = json!({"data": {"config.yaml": config}});
    it.objects.insert(String::from("/api/v1/namespaces/ops/configmaps/guard-config"), object);
}

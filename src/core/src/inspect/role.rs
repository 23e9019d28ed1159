//! The Role and the `RoleBinding` that permit the guard to read the credentials of one cluster.

use serde_json::{Value, json};

use super::access::InspectedCredential;
use crate::{
    escape::MAX_NAME_CHARS,
    objects::data_object::{DataKind, is_subdomain},
};

/// Name of the Role, before the name of the pod's owner. Two clusters of one namespace have Roles of their own.
const ROLE_PREFIX: &str = "etcd-guard-secrets-";

/// The `ServiceAccount` of the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

// === impl GuardAccount ===

impl GuardAccount {
    /// The user as which the API server authenticates the account.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

/// Returns the Role and the `RoleBinding`, or no objects if the guard needs no content.
pub(super) fn objects(
    namespace: &str,
    owner: &str,
    credentials: &[InspectedCredential],
    account: &GuardAccount,
) -> Vec<Value> {
    let rules: Vec<Value> = [DataKind::Secret, DataKind::ConfigMap]
        .into_iter()
        .filter_map(|kind| {
            let mut names: Vec<&str> = credentials
                .iter()
                .filter(|credential| credential.kind == kind && credential.needed)
                // An annotation can contain any text, and no object has another name.
                .filter(|credential| is_subdomain(&credential.name))
                .map(|credential| credential.name.as_str())
                .collect();
            names.sort_unstable();
            names.dedup();
            // No list and no watch: resourceNames cannot restrict them.
            (!names.is_empty()).then(|| {
                json!({"apiGroups": [""], "resources": [kind.resource()], "resourceNames": names, "verbs": ["get"]})
            })
        })
        .collect();
    if rules.is_empty() {
        return Vec::new();
    }
    let name: String = ROLE_PREFIX
        .chars()
        .chain(owner.chars().filter(|letter| is_part_of_name(*letter)))
        .take(MAX_NAME_CHARS)
        .collect();
    let metadata = json!({
        "name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "etcd-guard"},
    });
    let group = "rbac.authorization.k8s.io";
    let version = "rbac.authorization.k8s.io/v1";
    vec![
        json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
        }),
    ]
}

/// The API server does not validate the name of an owner.
fn is_part_of_name(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit() || matches!(letter, '-' | '.')
}

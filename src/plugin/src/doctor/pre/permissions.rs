//! The permissions of the user to create what the manifests contain.

use futures::{StreamExt, TryStreamExt, stream};

use crate::doctor::{
    permissions::{MAX_CONCURRENT_REVIEWS, Permission, ShippedRoles},
    reader::Reader,
    report::Line,
    sections::PREREQUISITES,
};

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

/// The most missing permissions that the line names.
const MAX_NAMED: usize = 6;

/// The resources of the default installation: its API group, its name, and whether it is in the namespace of the guard.
const RESOURCES: [(&str, &str, bool); 15] = [
    ("", "namespaces", false),
    ("", "serviceaccounts", true),
    ("", "services", true),
    ("", "resourcequotas", true),
    ("apps", "deployments", true),
    ("policy", "poddisruptionbudgets", true),
    ("networking.k8s.io", "networkpolicies", true),
    (RBAC, "roles", true),
    (RBAC, "rolebindings", true),
    (RBAC, "clusterroles", false),
    (RBAC, "clusterrolebindings", false),
    (ADMISSION, "validatingwebhookconfigurations", false),
    (ADMISSION, "mutatingwebhookconfigurations", false),
    (ADMISSION, "validatingadmissionpolicies", false),
    (ADMISSION, "validatingadmissionpolicybindings", false),
];

/// Reviews the permissions to install the guard into this namespace.
pub(super) async fn line(reader: &Reader, namespace: &str) -> Line {
    match missing(reader, namespace).await {
        Err(cause) => reader.unanswered("permissions", cause).about(PREREQUISITES),
        Ok(missing) => match missing.as_slice() {
            [] => Line::ok("permissions", "you may create everything that the manifests contain"),
            [first, ..] => {
                let named: Vec<String> = missing
                    .iter()
                    .take(MAX_NAMED)
                    .map(|permission| format!("cannot {}", permission.describe()))
                    .collect();
                let further = missing.len().saturating_sub(MAX_NAMED);
                let further = if further > 0 { format!("; and {further} more") } else { String::new() };
                let text = format!("you {}{further}", named.join("; "));
                let remedy = format!("install as a cluster-admin: {} {}", reader.kubectl(), first.can_i());
                Line::failure("permissions", text, remedy).about(PREREQUISITES)
            }
        },
    }
}

/// Returns the permissions that the user lacks: those to create the objects and, because the API server lets nobody grant a right
/// that they do not have, those in the roles.
async fn missing(reader: &Reader, namespace: &str) -> Result<Vec<Permission>, String> {
    let create = RESOURCES.iter().map(|(group, resource, is_namespaced)| {
        Permission::new("create", group, resource, is_namespaced.then_some(namespace))
    });
    let mut wanted: Vec<Permission> = create.collect();
    let escalate = Permission::new("escalate", RBAC, "clusterroles", None);
    if !reader.is_permitted(&escalate).await? {
        for roles in [ShippedRoles::Servers, ShippedRoles::Certificates] {
            wanted.extend(roles.permissions(namespace));
        }
    }
    let reviews = stream::iter(wanted).map(|permission| async move {
        let is_permitted = reader.is_permitted(&permission).await?;
        Ok::<_, String>((!is_permitted).then_some(permission))
    });
    let missing: Vec<Option<Permission>> = reviews.buffered(MAX_CONCURRENT_REVIEWS).try_collect().await?;
    Ok(missing.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use serde_json::Value;

    use super::*;

    /// Returns the kinds in the manifests of a folder.
    fn kinds(folder: &str) -> BTreeSet<String> {
        let folder = format!("{}/../../deploy/{folder}", env!("CARGO_MANIFEST_DIR"));
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let texts = files.map(|file| fs::read_to_string(file).unwrap());
        let objects = texts.flat_map(|text| serde_saphyr::from_multiple::<Value>(&text).unwrap());
        let kinds = objects.filter_map(|object| Some(object.get("kind")?.as_str()?.to_owned()));
        kinds.filter(|kind| kind != "Kustomization" && kind != "Component").collect()
    }

    #[test]
    fn resources_are_those_of_the_default_installation() {
        let kinds = kinds("base").into_iter().chain(kinds("components/self-managed"));
        let plural = |kind: String| {
            let name = kind.to_lowercase();
            name.strip_suffix('y').map_or_else(|| format!("{name}s"), |stem| format!("{stem}ies"))
        };
        let shipped: BTreeSet<String> = kinds.map(plural).collect();
        let reviewed: BTreeSet<String> =
            RESOURCES.iter().map(|(_, resource, _)| (*resource).to_owned()).collect();
        assert_eq!(reviewed, shipped);
    }
}

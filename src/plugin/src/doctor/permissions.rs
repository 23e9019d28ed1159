//! The permissions of the guard's accounts, compared with the shipped roles, and the admission policies that limit them.

pub(crate) mod policies;

use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use serde_json::{Value, json};

use super::{
    reader::{Reader, Right, elements, text},
    report::{Finding, Line, State},
};
use etcd_guard_core::escape::to_shell_word;

/// Maximum number of concurrent reviews.
pub(super) const MAX_CONCURRENT_REVIEWS: usize = 8;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The groups of Kubernetes itself. The shipped roles also permit to read custom resources that own members, which concern
/// only clusters with these operators.
const CORE_GROUPS: [&str; 4] = ["", "apps", "coordination.k8s.io", "events.k8s.io"];

/// Resources that are read only for warnings about injected containers.
const WARNING_RESOURCES: [&str; 2] = ["limitranges", "resourcequotas"];

/// The roles of one account.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShippedRoles {
    /// The servers.
    Servers,
    /// The mutating webhook for pods.
    Inject,
    /// The writes of the status of nodes.
    NodeStatus,
    /// The watch of nodes, before whose disruption leadership moves.
    Handover,
    /// The Deployment that keeps the certificates.
    Certificates,
    /// The same Deployment, if it registers the webhook configurations.
    Register,
    /// The `DaemonSet` of lxcfs.
    Lxcfs,
}

/// One permission of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permission {
    group: String,
    /// With the subresource, for instance `nodes/status`.
    resource: String,
    verb: String,
    /// The name of the only permitted object.
    name: Option<String>,
    /// `None` for all namespaces.
    namespace: Option<String>,
}

// === impl ShippedRoles ===

impl ShippedRoles {
    fn manifest(self) -> &'static str {
        match self {
            Self::Servers => {
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/base/rbac.yaml"))
            }
            Self::Inject => {
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/components/inject/rbac.yaml"))
            }
            Self::NodeStatus => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/over-commit/rbac.yaml"
            )),
            Self::Handover => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/handover/rbac.yaml"
            )),
            Self::Certificates => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/self-managed/rbac.yaml"
            )),
            Self::Register => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/register/rbac.yaml"
            )),
            Self::Lxcfs => include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/lxcfs/rbac.yaml")),
        }
    }

    /// Returns the permissions in the manifest. Roles apply to the namespace of the guard.
    pub(super) fn permissions(self, guard_namespace: &str) -> Vec<Permission> {
        // A test parses all manifests.
        let objects: Vec<Value> = serde_saphyr::from_multiple(self.manifest()).unwrap_or_default();
        let mut found = Vec::new();
        for object in &objects {
            let namespace = (text(object, "/kind") == Some("Role")).then(|| guard_namespace.to_owned());
            for rule in elements(object, "/rules") {
                let values = |name: &str| -> Vec<String> {
                    elements(rule, name).filter_map(Value::as_str).map(str::to_owned).collect()
                };
                let mut names: Vec<_> = values("/resourceNames").into_iter().map(Some).collect();
                if names.is_empty() {
                    names.push(None);
                }
                for (group, resource) in product(&values("/apiGroups"), &values("/resources")) {
                    for (verb, name) in product(&values("/verbs"), &names) {
                        let (group, resource) = (group.clone(), resource.clone());
                        found.push(Permission { group, resource, verb, name, namespace: namespace.clone() });
                    }
                }
            }
        }
        found
    }
}

fn product<A: Clone, B: Clone>(left: &[A], right: &[B]) -> Vec<(A, B)> {
    left.iter().flat_map(|left| right.iter().map(move |right| (left.clone(), right.clone()))).collect()
}

// === impl Permission ===

impl Permission {
    /// A permission on all objects of a resource, in this namespace or in all.
    pub(super) fn new(verb: &str, group: &str, resource: &str, namespace: Option<&str>) -> Self {
        let [group, resource, verb] = [group, resource, verb].map(str::to_owned);
        Self { group, resource, verb, name: None, namespace: namespace.map(str::to_owned) }
    }

    /// Returns the attributes for the review of the user's own permission.
    pub(super) fn attributes(&self) -> ResourceAttributes {
        let Self { group, resource, verb, name, namespace } = self.clone();
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
            None => (resource, None),
        };
        ResourceAttributes {
            group: Some(group),
            resource: Some(resource),
            subresource,
            verb: Some(verb),
            name,
            namespace,
            ..ResourceAttributes::default()
        }
    }

    /// Returns the command that shows whether the user has the permission, without its beginning.
    pub(super) fn can_i(&self) -> String {
        let Self { group, resource, verb, name, namespace } = self;
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        let name = name.as_ref().map_or_else(String::new, |name| format!("/{}", to_shell_word(name)));
        let subresource =
            if subresource.is_empty() { String::new() } else { format!(" --subresource={subresource}") };
        let place = namespace
            .as_ref()
            .map_or_else(String::new, |namespace| format!(" -n {}", to_shell_word(namespace)));
        format!("auth can-i {verb} {resource}{group}{name}{subresource}{place}")
    }

    /// Returns the review of the permission for a service account.
    fn review(&self, namespace: &str, account: &str) -> Value {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:{namespace}:{account}"),
                "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
                "resourceAttributes": {
                    "group": self.group, "resource": resource, "subresource": subresource, "verb": self.verb,
                    "name": self.name.as_deref().unwrap_or_default(),
                    "namespace": self.namespace.as_deref().unwrap_or_default(),
                },
            },
        })
    }

    pub(super) fn describe(&self) -> String {
        let Self { group, resource, verb, name, namespace } = self;
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        let name = name.as_ref().map_or_else(String::new, |name| format!("/{name}"));
        let place =
            namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
        format!("{verb} {resource}{group}{name}{place}")
    }

    fn severity(&self) -> State {
        if self.is_core() { State::Failure } else { State::Warning }
    }

    fn is_core(&self) -> bool {
        let is_core =
            CORE_GROUPS.contains(&self.group.as_str()) || self.group == "admissionregistration.k8s.io";
        is_core && !WARNING_RESOURCES.contains(&self.resource.as_str())
    }
}

/// Reviews all permissions of an account.
pub(super) async fn check(
    reader: &Reader,
    (namespace, account): (&str, &str),
    permissions: &[Permission],
    remedy: &str,
) -> Line {
    let reviews = stream::iter(permissions.iter().map(|permission| async move {
        let response = reader.post(REVIEWS, &permission.review(namespace, account)).await;
        (permission, response)
    }));
    let mut reviews = reviews.buffered(MAX_CONCURRENT_REVIEWS);
    let mut missing = Vec::new();
    while let Some((permission, response)) = reviews.next().await {
        match response {
            Ok(response) if response.is_success() => {
                if response.object.pointer("/status/allowed") != Some(&Value::Bool(true)) {
                    missing.push(permission);
                }
            }
            Ok(response) => {
                let resource = "subjectaccessreviews.authorization.k8s.io";
                let right = Right { verb: "create", resource, namespace: None };
                return Line::not_checked("permissions", &reader.unread(&response, right));
            }
            Err(cause) => {
                return reader.unanswered("permissions", cause);
            }
        }
    }
    line(account, permissions.len(), &missing, remedy)
}

fn line(account: &str, count: usize, missing: &[&Permission], remedy: &str) -> Line {
    let findings: Vec<Finding> = missing
        .iter()
        .map(|permission| (permission.severity(), format!("cannot {}", permission.describe())))
        .collect();
    let message = format!("{count} of {count} permissions of the shipped roles");
    Line::from_findings("permissions", &format!("account {account}: "), &message, &findings, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::ApiServer;
    use etcd_guard_kubernetes::fake::{api_server_with, status_failure};

    #[test]
    fn reads_permissions_from_the_shipped_roles() {
        let servers = ShippedRoles::Servers.permissions("ops");
        let texts: Vec<String> = servers.iter().map(Permission::describe).collect();
        for expected in
            ["get pods", "watch statefulsets.apps", "update leases.coordination.k8s.io in namespace ops"]
        {
            assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:?}");
        }
        let certificates = ShippedRoles::Certificates.permissions("ops");
        let texts: Vec<String> = certificates.iter().map(Permission::describe).collect();
        let expected = "update validatingwebhookconfigurations.admissionregistration.k8s.io/etcd-guard";
        assert!(texts.iter().any(|text| text == expected), "{texts:?}");
        assert_eq!(ShippedRoles::NodeStatus.permissions("ops").len(), 4);
        assert_eq!(ShippedRoles::Handover.permissions("ops").len(), 3);
        assert_eq!(ShippedRoles::Register.permissions("ops").len(), 8);
        assert_eq!(ShippedRoles::Lxcfs.permissions("ops").len(), 1);
        let inject = ShippedRoles::Inject.permissions("ops");
        let optional: Vec<_> =
            inject.iter().filter(|permission| permission.severity() == State::Warning).collect();
        assert_eq!((inject.len(), optional.len()), (3, 2), "quotas and LimitRanges concern only warnings");
    }

    /// Checks the permissions of the servers if these verbs are not granted.
    async fn check_without(denied: &'static str) -> Line {
        let client = api_server_with(move |call, review| {
            assert_eq!(call.uri.path(), REVIEWS);
            assert_eq!(review["spec"]["user"], "system:serviceaccount:ops:etcd-guard");
            let attributes = &review["spec"]["resourceAttributes"];
            let text = format!(
                "{} {}",
                attributes["verb"].as_str().unwrap(),
                attributes["resource"].as_str().unwrap()
            );
            (201, json!({"status": {"allowed": text != denied}}))
        });
        let reader = Reader::new(ApiServer::fake(client, "kubectl"));
        check(&reader, ("ops", "etcd-guard"), &ShippedRoles::Servers.permissions("ops"), "apply").await
    }

    #[tokio::test]
    async fn missing_permission_fails_unless_it_concerns_custom_resources() {
        assert_eq!(check_without("none").await.state, State::Ok);
        let line = check_without("list pods").await;
        assert_eq!(line.state, State::Failure);
        assert_eq!(line.message, "account etcd-guard: cannot list pods");
        assert_eq!(check_without("get etcds").await.state, State::Warning);
    }

    #[tokio::test]
    async fn reviews_require_a_permission_themselves() {
        let client = api_server_with(|_, _| (403, status_failure(403, "User \"alice\" cannot create")));
        let reader = Reader::new(ApiServer::fake(client, "kubectl"));
        let permissions = ShippedRoles::Servers.permissions("ops");
        let line = check(&reader, ("ops", "etcd-guard"), &permissions, "apply").await;
        assert_eq!(line.state, State::Warning);
        assert!(
            line.remedy.unwrap().ends_with("auth can-i create subjectaccessreviews.authorization.k8s.io")
        );
    }
}

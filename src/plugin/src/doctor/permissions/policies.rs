//! The admission policies that limit the guard's accounts, because RBAC restricts neither the fields nor the names of what they
//! write.

use serde_json::Value;

use crate::doctor::{
    reader::{Reader, Right, Unread, elements, text},
    report::{Finding, Line, State},
};

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";

/// The policies of a component.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShippedPolicies {
    /// The account that keeps the certificates.
    Certificates,
    /// The account that keeps the certificates and registers the webhook configurations, with other validations.
    Register,
    /// Writes of the status of nodes.
    NodeStatus,
    /// The account of lxcfs.
    Lxcfs,
}

// === impl ShippedPolicies ===

impl ShippedPolicies {
    fn manifest(self) -> &'static str {
        match self {
            Self::Certificates | Self::Register => {
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/../../deploy/components/self-managed/policy.yaml"
                ))
            }
            Self::NodeStatus => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/over-commit/policy.yaml"
            )),
            Self::Lxcfs => {
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/lxcfs/policy.yaml"))
            }
        }
    }

    /// Returns the policies, or the bindings.
    fn objects(self, kind: &str) -> Vec<Value> {
        // A test parses all manifests.
        let objects: Vec<Value> = serde_saphyr::from_multiple(self.manifest()).unwrap_or_default();
        objects.into_iter().filter(|object| text(object, "/kind") == Some(kind)).collect()
    }

    /// Compares the policies of the cluster with the shipped ones.
    pub(crate) async fn check(self, reader: &Reader, remedy: &str) -> Line {
        let mut findings = Vec::new();
        let mut names = Vec::new();
        for shipped in self.objects("ValidatingAdmissionPolicy") {
            match read(reader, POLICIES, &shipped).await {
                Ok(policy) => self.compare(&shipped, policy.as_ref(), &mut findings),
                Err(unread) => return Line::not_checked("policies", &unread),
            }
            names.push(name(&shipped).to_owned());
        }
        for shipped in self.objects("ValidatingAdmissionPolicyBinding") {
            match read(reader, BINDINGS, &shipped).await {
                Ok(binding) => compare_binding(&shipped, binding.as_ref(), &mut findings),
                Err(unread) => return Line::not_checked("policies", &unread),
            }
        }
        let message = format!("{} as shipped", names.join(", "));
        Line::from_findings("policies", "", &message, &findings, remedy)
    }

    fn compare(self, shipped: &Value, policy: Option<&Value>, findings: &mut Vec<Finding>) {
        let name = name(shipped);
        let mut add = |text: String| findings.push((State::Failure, text));
        let Some(policy) = policy else {
            return add(format!(
                "ValidatingAdmissionPolicy {name} is missing, so that nothing limits its account"
            ));
        };
        // The API server's default is Fail.
        if text(policy, "/spec/failurePolicy") == Some("Ignore") {
            add(format!("ValidatingAdmissionPolicy {name} has failurePolicy Ignore"));
        }
        let conditions = |policy| expressions(policy, "/spec/matchConditions");
        if conditions(policy) != conditions(shipped) {
            add(format!("ValidatingAdmissionPolicy {name} has other matchConditions than shipped"));
        }
        let validations = |policy| expressions(policy, "/spec/validations");
        let (present, wanted) = (validations(policy), validations(shipped));
        // The component `register` replaces the expression of one validation.
        let lacks = match self {
            Self::Register => present.len() < wanted.len(),
            _ => wanted.iter().any(|expression| !present.contains(expression)),
        };
        if lacks {
            add(format!("ValidatingAdmissionPolicy {name} lacks a shipped validation"));
        }
    }
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name").unwrap_or_default()
}

/// Returns the expressions of a list, without differences in white space.
fn expressions(policy: &Value, pointer: &str) -> Vec<String> {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    elements(policy, pointer).map(|item| words(text(item, "/expression").unwrap_or_default())).collect()
}

async fn read(reader: &Reader, plural: &str, shipped: &Value) -> Result<Option<Value>, Unread> {
    let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}/{}", name(shipped));
    let resource = if plural == POLICIES {
        "validatingadmissionpolicies.admissionregistration.k8s.io"
    } else {
        "validatingadmissionpolicybindings.admissionregistration.k8s.io"
    };
    reader.get(&path, Right { verb: "get", resource, namespace: None }).await
}

fn compare_binding(shipped: &Value, binding: Option<&Value>, findings: &mut Vec<Finding>) {
    let name = name(shipped);
    let policy = |binding| text(binding, "/spec/policyName");
    let text = match binding {
        None => {
            format!("ValidatingAdmissionPolicyBinding {name} is missing, so that the policy has no effect")
        }
        Some(binding) if policy(binding) != policy(shipped) => {
            format!("ValidatingAdmissionPolicyBinding {name} names another policy")
        }
        Some(binding) if !elements(binding, "/spec/validationActions").any(|action| action == "Deny") => {
            format!("ValidatingAdmissionPolicyBinding {name} does not deny")
        }
        // The API server stores an empty object as a default.
        Some(binding) if elements(binding, "/spec/matchResources/resourceRules").next().is_some() => {
            format!("ValidatingAdmissionPolicyBinding {name} selects some resources only")
        }
        Some(_) => return,
    };
    findings.push((State::Failure, text));
}

//! The Pod Security level of a template: the strictest of the Pod Security Standards that still admits its parts
//! (`k8s.io/pod-security-admission/policy`, version `latest` of Kubernetes 1.34).

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::{Check, Rule, check_fields};
use crate::config::pod_parts::items;
use etcd_guard_core::config::diagnostic::{Diagnostic, Validator, display_path};

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PodSecurityLevel {
    /// Admits every pod.
    #[default]
    Privileged,
    /// Admits pods without known privilege escalations.
    Baseline,
    /// Admits hardened pods.
    Restricted,
}

/// What the levels reject in a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSecurity {
    /// The first part that `baseline` rejects.
    baseline: Option<String>,
    /// The first part that `restricted` rejects.
    restricted: Option<String>,
    /// Whether a container relies on `runAsNonRoot` of the pod.
    inherits_non_root: bool,
    /// Whether a container relies on `seccompProfile` of the pod.
    inherits_seccomp: bool,
}

/// The parts of a template that the levels restrict.
pub(crate) struct RestrictedParts<'a> {
    pub(crate) containers: Vec<(&'static str, usize, &'a Value)>,
    pub(crate) volumes: Vec<&'a Value>,
    pub(crate) security_context: Option<&'a Value>,
    pub(crate) annotations: Vec<(&'a str, &'a str)>,
}

/// Profiles that keep the protection of the container runtime.
const PROFILES: Check = Check::OneOf(&["RuntimeDefault", "Localhost"]);

/// Types of `SELinux` for containers.
const SELINUX_TYPES: Check =
    Check::OneOf(&["container_t", "container_init_t", "container_kvm_t", "container_engine_t"]);

/// The prefix of the annotation with the `AppArmor` profile of a container.
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Rules of `baseline` for both security contexts.
const BASELINE_CONTEXT: &[Rule] = &[
    ("windowsOptions.hostProcess", Check::Value(forbid_true)),
    ("seccompProfile|appArmorProfile.type", PROFILES),
    ("seLinuxOptions.type", SELINUX_TYPES),
    ("seLinuxOptions.user|role", Check::Text(forbid_text)),
];

const BASELINE_CONTAINER: &[Rule] = &[
    ("securityContext.privileged", Check::Value(forbid_true)),
    ("securityContext.procMount", Check::OneOf(&["Default"])),
    (
        "securityContext.capabilities.add[]",
        Check::OneOf(&[
            "AUDIT_WRITE",
            "CHOWN",
            "DAC_OVERRIDE",
            "FOWNER",
            "FSETID",
            "KILL",
            "MKNOD",
            "NET_BIND_SERVICE",
            "SETFCAP",
            "SETGID",
            "SETPCAP",
            "SETUID",
            "SYS_CHROOT",
        ]),
    ),
    ("ports[].hostPort", Check::Range(0, 0)),
    ("livenessProbe|readinessProbe|startupProbe.httpGet|tcpSocket.host", Check::Text(forbid_text)),
    ("lifecycle.postStart|preStop.httpGet|tcpSocket.host", Check::Text(forbid_text)),
];

const BASELINE_POD: &[Rule] = &[(
    "sysctls[].name",
    Check::OneOf(&[
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    ]),
)];

const BASELINE_VOLUME: &[Rule] = &[("hostPath", Check::Absent("it is a directory of the node"))];

/// Rules of `restricted` for both security contexts.
const RESTRICTED_CONTEXT: &[Rule] =
    &[("runAsUser", Check::Value(forbid_root)), ("runAsNonRoot", Check::Value(forbid_false))];

const RESTRICTED_CONTAINER: &[Rule] = &[
    ("securityContext", Check::Required),
    ("securityContext.allowPrivilegeEscalation", Check::Required),
    ("securityContext.allowPrivilegeEscalation", Check::Value(forbid_true)),
    ("securityContext.capabilities", Check::Required),
    ("securityContext.capabilities", Check::Value(require_drop_of_all)),
    ("securityContext.capabilities.add[]", Check::OneOf(&["NET_BIND_SERVICE"])),
];

const RESTRICTED_VOLUME: &[Rule] = &[(
    "awsElasticBlockStore|azureDisk|azureFile|cephfs|cinder|fc|flexVolume|flocker|gcePersistentDisk|gitRepo|\
     glusterfs|iscsi|nfs|photonPersistentDisk|portworxVolume|quobyte|rbd|scaleIO|storageos|vsphereVolume",
    Check::Absent("only volumes of the pod, claims and CSI are"),
)];

// === impl PodSecurityLevel ===

impl PodSecurityLevel {
    /// The level of a label's value. Like the API server, reads an unknown value as the strictest level.
    pub(crate) fn from_label(value: &str) -> Self {
        match value {
            "privileged" => Self::Privileged,
            "baseline" => Self::Baseline,
            _ => Self::Restricted,
        }
    }

    /// The name of the level in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

// === impl PodSecurity ===

impl PodSecurity {
    /// Evaluates the parts of a template.
    pub(crate) fn evaluate(parts: &RestrictedParts<'_>) -> Self {
        let baseline =
            first_violation(parts, BASELINE_CONTAINER, BASELINE_VOLUME, &[BASELINE_CONTEXT, BASELINE_POD]);
        let restricted =
            first_violation(parts, RESTRICTED_CONTAINER, RESTRICTED_VOLUME, &[RESTRICTED_CONTEXT]);
        let profile = |(key, value): &(&str, &str)| {
            let is_allowed = matches!(*value, "" | "runtime/default") || value.starts_with("localhost/");
            (key.starts_with(APPARMOR) && !is_allowed).then(|| format!("annotations.{key}"))
        };
        let lacks = |field: &str| {
            parts.containers.iter().any(|(_, _, container)| {
                let context = container.get("securityContext");
                context.and_then(|context| context.get(field)).is_none_or(Value::is_null)
            })
        };
        Self {
            baseline: baseline.or_else(|| parts.annotations.iter().find_map(profile)),
            restricted,
            inherits_non_root: lacks("runAsNonRoot"),
            inherits_seccomp: lacks("seccompProfile"),
        }
    }

    /// Returns the part of the template that a level rejects. `pod_field` returns whether a field of the pod's security
    /// context is set, including the template's default.
    pub fn violation(
        &self,
        level: PodSecurityLevel,
        pod_field: impl Fn(&str) -> bool,
    ) -> Option<Cow<'_, str>> {
        let baseline = self.baseline.as_deref().filter(|_| level >= PodSecurityLevel::Baseline);
        let restricted = self.restricted.as_deref().filter(|_| level >= PodSecurityLevel::Restricted);
        if let Some(part) = baseline.or(restricted) {
            return Some(Cow::Borrowed(part));
        }
        let inherited = [("runAsNonRoot", self.inherits_non_root), ("seccompProfile", self.inherits_seccomp)];
        let (field, _) = inherited.into_iter().find(|(field, inherits)| *inherits && !pod_field(field))?;
        (level == PodSecurityLevel::Restricted).then(|| Cow::Owned(format!("containers without {field}")))
    }
}

/// Returns the path of the first part that violates a rule.
fn first_violation(
    parts: &RestrictedParts<'_>,
    container_rules: &[Rule],
    volume_rules: &[Rule],
    context_rules: &[&[Rule]],
) -> Option<String> {
    let mut found = Vec::new();
    let mut validator = Validator::new(&mut found);
    for (list, index, container) in &parts.containers {
        let mut validator = validator.at(*list);
        let mut validator = validator.at(*index);
        check_fields(container, container_rules, true, &mut validator);
        if let (Some(context), Some(rules)) = (container.get("securityContext"), context_rules.first()) {
            check_fields(context, rules, true, &mut validator.at("securityContext"));
        }
    }
    for (index, volume) in parts.volumes.iter().enumerate() {
        check_fields(volume, volume_rules, true, &mut validator.at("volumes").at(index));
    }
    if let Some(context) = parts.security_context {
        for rules in context_rules {
            check_fields(context, rules, true, &mut validator.at("securityContext"));
        }
    }
    found.first().map(|(pointer, _)| Diagnostic::new(None, &display_path(pointer), "").path)
}

fn forbid_true(value: &Value, validator: &mut Validator<'_>) {
    if *value == Value::Bool(true) {
        validator.report("is true");
    }
}

fn forbid_false(value: &Value, validator: &mut Validator<'_>) {
    if *value == Value::Bool(false) {
        validator.report("is false");
    }
}

fn forbid_text(_: &str, validator: &mut Validator<'_>) {
    validator.report("is set");
}

fn forbid_root(user: &Value, validator: &mut Validator<'_>) {
    if *user == 0 {
        validator.report("is root");
    }
}

fn require_drop_of_all(capabilities: &Value, validator: &mut Validator<'_>) {
    if !items(capabilities, "drop").iter().any(|name| name == "ALL") {
        validator.at("drop").report("lacks ALL");
    }
}

//! The AdmissionReview that the API server would send for a request.

use std::{fmt, str::FromStr};

use anyhow::{Context, bail};
use clap::ValueEnum;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use etcd_guard_core::{
    escape::{MAX_NAME_CHARS, to_bounded_line},
    objects::data_object::is_subdomain,
};

/// The object of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) kind: TargetKind,
    pub(super) name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetKind {
    Pod,
    StatefulSet,
    Namespace,
    Claim,
}

/// How the deletion of a StatefulSet propagates to its pods
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Cascade {
    Background,
    Foreground,
    Orphan,
}

/// The operation on the object: an eviction, a change of `replicas`, otherwise a deletion.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) evict: bool,
    pub(super) grace_period: Option<i64>,
    /// The deletion is forced: its grace period is 0.
    pub(super) force: bool,
    /// `None` is the default of kubectl.
    pub(super) cascade: Option<Cascade>,
    pub(super) replicas: Option<u32>,
}

/// A request for which the guard previews the verdict.
pub(super) struct PreviewRequest {
    /// The AdmissionReview.
    pub(super) review: Value,
    /// The webhook that the API server would call.
    pub(super) webhook: &'static str,
    /// Description of the request.
    pub(super) summary: String,
    /// Address and node of the pod.
    pub(super) placement: Placement,
}

/// The place where a pod runs, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    pub(crate) address: Option<String>,
    pub(crate) node: Option<String>,
}

// === impl Operation ===

impl Operation {
    /// Returns an error if the operation does not exist for this kind.
    pub(super) fn require(&self, kind: TargetKind) -> anyhow::Result<()> {
        anyhow::ensure!(!self.evict || kind == TargetKind::Pod, "--evict requires a pod");
        let is_scalable = kind == TargetKind::StatefulSet;
        anyhow::ensure!(self.replicas.is_none() || is_scalable, "--replicas requires a StatefulSet");
        anyhow::ensure!(self.cascade.is_none() || is_scalable, "--cascade requires a StatefulSet");
        let is_pod = kind == TargetKind::Pod;
        anyhow::ensure!(self.grace_period.is_none() || is_pod, "--grace-period requires a pod");
        anyhow::ensure!(!self.force || is_pod, "--force requires a pod");
        Ok(())
    }
}

// === impl Target ===

impl Target {
    /// The object of this name. The name is a part of paths.
    pub(super) fn new(kind: TargetKind, name: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Err(String::from("the name is missing"));
        }
        if !is_subdomain(name) {
            return Err(format!("{name:?} is not the name of a {kind}"));
        }
        Ok(Self { kind, name: name.to_owned() })
    }

    /// Returns `TYPE/NAME`, as kubectl prints it with `-o name`.
    pub(super) fn printed_name(&self) -> String {
        format!("{}/{}", self.kind.name_type(), to_bounded_line(&self.name, MAX_NAME_CHARS))
    }

    /// Returns the arguments of `kubectl annotate` for the object.
    pub(super) fn annotate_arguments(&self, default: &str) -> String {
        match self.kind {
            TargetKind::Namespace => self.printed_name(),
            _ => format!("-n {} {}", self.namespace(default), self.printed_name()),
        }
    }

    /// Returns the namespace with the labels that select webhooks.
    pub(super) fn namespace<'a>(&'a self, default: &'a str) -> &'a str {
        match self.kind {
            TargetKind::Namespace => &self.name,
            TargetKind::Pod | TargetKind::StatefulSet | TargetKind::Claim => default,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
        let Some(kind) = TargetKind::from_word(kind) else {
            return Err(format!("unknown type {kind:?}; use pod, statefulset, namespace, pvc or node"));
        };
        Self::new(kind, name)
    }
}

// === impl TargetKind ===

impl TargetKind {
    /// Returns the kind for a type of kubectl, in each of its spellings.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        match word {
            "pod" | "pods" | "po" => Some(Self::Pod),
            "statefulset" | "statefulsets" | "sts" | "statefulset.apps" | "statefulsets.apps" => {
                Some(Self::StatefulSet)
            }
            "namespace" | "namespaces" | "ns" => Some(Self::Namespace),
            "persistentvolumeclaim" | "persistentvolumeclaims" | "pvc" => Some(Self::Claim),
            _ => None,
        }
    }

    /// Returns the kind as objects name it.
    pub(super) const fn object_kind(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::StatefulSet => "StatefulSet",
            Self::Namespace => "Namespace",
            Self::Claim => "PersistentVolumeClaim",
        }
    }

    /// Returns the type in the names that kubectl prints with `-o name`.
    pub(super) const fn name_type(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::StatefulSet => "statefulset.apps",
            Self::Namespace => "namespace",
            Self::Claim => "persistentvolumeclaim",
        }
    }

    pub(super) const fn group(self) -> &'static str {
        match self {
            Self::StatefulSet => "apps",
            Self::Pod | Self::Namespace | Self::Claim => "",
        }
    }

    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::StatefulSet => "statefulsets",
            Self::Namespace => "namespaces",
            Self::Claim => "persistentvolumeclaims",
        }
    }

    fn path(self, namespace: &str, name: &str) -> String {
        let root = match self {
            Self::StatefulSet => "/apis/apps/v1",
            Self::Pod | Self::Namespace | Self::Claim => "/api/v1",
        };
        match self {
            Self::Namespace => format!("{root}/namespaces/{name}"),
            _ => format!("{root}/namespaces/{namespace}/{}/{name}", self.plural()),
        }
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "pod",
            Self::StatefulSet => "StatefulSet",
            Self::Namespace => "namespace",
            Self::Claim => "PersistentVolumeClaim",
        })
    }
}

// === impl Cascade ===

impl Cascade {
    const fn policy(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

// === impl PreviewRequest ===

impl PreviewRequest {
    /// Reads the object from the API server and builds the review.
    pub(super) async fn new(
        api_server: &ApiServer,
        namespace: &str,
        target: &Target,
        operation: &Operation,
        user: &str,
    ) -> anyhow::Result<Self> {
        let Target { kind, name } = target;
        let description = match kind {
            TargetKind::Namespace => format!("{kind} {name}"),
            _ => format!("{kind} {namespace}/{name}"),
        };
        let failure = format!("failed to read {description}");
        let Some(object) = api_server.object(&failure, &kind.path(namespace, name)).await? else {
            bail!("{description} does not exist");
        };
        let field = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let placement = Placement { address: field("/status/podIP"), node: field("/spec/nodeName") };
        let mut request = json!({
            "uid": format!("check-{}", std::process::id()),
            "resource": {"group": kind.group(), "version": "v1", "resource": kind.plural()},
            "name": name,
            "namespace": if *kind == TargetKind::Namespace { name } else { namespace },
            "userInfo": {"username": user},
            "dryRun": true,
        });
        let Some(fields) = request.as_object_mut() else { bail!("the request is not a JSON object") };
        let mut put = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
        let grace_period = if operation.force { Some(0) } else { operation.grace_period };
        let (webhook, verb) = if operation.evict {
            put("operation", json!("CREATE"));
            put("subResource", json!("eviction"));
            let options = json!({"gracePeriodSeconds": grace_period});
            put(
                "object",
                json!({"metadata": {"name": name, "namespace": namespace}, "deleteOptions": options}),
            );
            ("eviction.guard.etcd-guard.io", String::from("evict"))
        } else if let Some(replicas) = operation.replicas {
            put("operation", json!("UPDATE"));
            let mut scaled = object.clone();
            if let Some(spec) = scaled.get_mut("spec").and_then(Value::as_object_mut) {
                spec.insert(String::from("replicas"), json!(replicas));
            }
            put("object", scaled);
            put("oldObject", object);
            ("intent.guard.etcd-guard.io", format!("scale to {replicas}:"))
        } else {
            put("operation", json!("DELETE"));
            let default = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
            put(
                "options",
                json!({
                    "gracePeriodSeconds": grace_period.or(default),
                    "propagationPolicy": operation.cascade.unwrap_or(Cascade::Background).policy(),
                }),
            );
            put("oldObject", object);
            let webhook = match kind {
                TargetKind::Pod => "guard.etcd-guard.io",
                TargetKind::StatefulSet | TargetKind::Namespace | TargetKind::Claim => {
                    "intent.guard.etcd-guard.io"
                }
            };
            (webhook, String::from("delete"))
        };
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        Ok(Self { review, webhook, summary: format!("{verb} {description}"), placement })
    }
}

/// Returns the user name by which the API server authenticates the caller.
pub(super) async fn current_user(api_server: &ApiServer) -> anyhow::Result<String> {
    let review = match api_server.review("cannot find out who you are", &SelfSubjectReview::default()).await {
        Ok(review) => review,
        Err(error) if error.code == Some(404) => {
            bail!("the API server does not tell your user name before Kubernetes 1.28; pass --requester")
        }
        Err(error) => return Err(error.into()),
    };
    let user = review.status.and_then(|status| status.user_info).and_then(|info| info.username);
    user.context("the API server returned no user name; pass --requester")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_without_type_is_a_pod() {
        assert_eq!("etcd-0".parse(), Ok(Target { kind: TargetKind::Pod, name: String::from("etcd-0") }));
        assert_eq!(
            "sts/etcd".parse(),
            Ok(Target { kind: TargetKind::StatefulSet, name: String::from("etcd") })
        );
        assert_eq!(
            "deployment/x".parse::<Target>().unwrap_err(),
            "unknown type \"deployment\"; use pod, statefulset, namespace, pvc or node"
        );
        assert_eq!("pod/".parse::<Target>().unwrap_err(), "the name is missing");
    }
}

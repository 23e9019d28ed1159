//! The review that the apiserver would send, put together from what it knows and who asks.

use std::{fmt, str::FromStr};

use anyhow::{Context, bail};
use clap::ValueEnum;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

/// What would be deleted, evicted or scaled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) kind: Kind,
    pub(super) name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    StatefulSet,
    Namespace,
    Claim,
}

/// What happens to the pods of a StatefulSet that is deleted
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Cascade {
    Background,
    Foreground,
    Orphan,
}

/// How it would go.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) evict: bool,
    pub(super) grace_period: Option<i64>,
    pub(super) cascade: Cascade,
    pub(super) replicas: Option<u32>,
}

/// A question to the guard.
pub(super) struct Question {
    /// The review, in JSON.
    pub(super) review: Value,
    /// The webhook that the apiserver would ask.
    pub(super) webhook: &'static str,
    /// What is asked about, in words.
    pub(super) what: String,
}

// === impl Target ===

impl Target {
    /// The namespace whose webhooks it falls under.
    pub(super) fn namespace<'a>(&'a self, default: &'a str) -> &'a str {
        match self.kind {
            Kind::Namespace => &self.name,
            Kind::Pod | Kind::StatefulSet | Kind::Claim => default,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
        let kind = match kind {
            "pod" | "pods" | "po" => Kind::Pod,
            "statefulset" | "statefulsets" | "sts" | "statefulset.apps" => Kind::StatefulSet,
            "namespace" | "namespaces" | "ns" => Kind::Namespace,
            "persistentvolumeclaim" | "persistentvolumeclaims" | "pvc" => Kind::Claim,
            _ => return Err(format!("{kind:?} is none of pod, statefulset, namespace, pvc")),
        };
        if name.is_empty() {
            return Err(String::from("a name is missing"));
        }
        Ok(Self { kind, name: name.to_owned() })
    }
}

// === impl Kind ===

impl Kind {
    const fn group(self) -> &'static str {
        match self {
            Self::StatefulSet => "apps",
            Self::Pod | Self::Namespace | Self::Claim => "",
        }
    }

    const fn plural(self) -> &'static str {
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

impl fmt::Display for Kind {
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

// === impl Question ===

impl Question {
    /// Reads the object and puts the question.
    pub(super) async fn about(
        client: &Client,
        namespace: &str,
        target: &Target,
        way: &Way,
        user: &str,
    ) -> anyhow::Result<Self> {
        let Target { kind, name } = target;
        let shown = match kind {
            Kind::Namespace => format!("{kind} {name}"),
            _ => format!("{kind} {namespace}/{name}"),
        };
        if way.evict && *kind != Kind::Pod {
            bail!("--evict is for pods");
        }
        if way.replicas.is_some() && *kind != Kind::StatefulSet {
            bail!("--replicas is for StatefulSets");
        }
        let request = http::Request::get(kind.path(namespace, name)).body(Vec::new())?;
        let object: Value = match client.request(request).await {
            Ok(object) => object,
            Err(kube::Error::Api(status)) if status.code == 404 => bail!("{shown} does not exist"),
            Err(error) => return Err(error).with_context(|| format!("reading {shown}")),
        };
        let mut request = json!({
            "uid": format!("check-{}", std::process::id()),
            "resource": {"group": kind.group(), "version": "v1", "resource": kind.plural()},
            "name": name,
            "namespace": if *kind == Kind::Namespace { name } else { namespace },
            "userInfo": {"username": user},
            "dryRun": true,
        });
        let Some(fields) = request.as_object_mut() else { bail!("a review is an object") };
        let mut put = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
        let (webhook, verb) = if way.evict {
            put("operation", json!("CREATE"));
            put("subResource", json!("eviction"));
            let options = json!({"gracePeriodSeconds": way.grace_period});
            put(
                "object",
                json!({"metadata": {"name": name, "namespace": namespace}, "deleteOptions": options}),
            );
            ("eviction.guard.etcd-guard.io", String::from("evict"))
        } else if let Some(replicas) = way.replicas {
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
                    "gracePeriodSeconds": way.grace_period.or(default),
                    "propagationPolicy": way.cascade.policy(),
                }),
            );
            put("oldObject", object);
            let webhook = match kind {
                Kind::Pod => "guard.etcd-guard.io",
                Kind::StatefulSet | Kind::Namespace | Kind::Claim => "intent.guard.etcd-guard.io",
            };
            (webhook, String::from("delete"))
        };
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        Ok(Self { review, webhook, what: format!("{verb} {shown}") })
    }
}

/// The name by which the apiserver knows whoever runs this.
pub(super) async fn own_name(client: &Client) -> anyhow::Result<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.context("asking the apiserver who I am: it takes Kubernetes 1.28, or --as")?;
    let user = review.status.and_then(|it| it.user_info).and_then(|it| it.username);
    user.context("the apiserver does not tell who I am")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_a_pods() {
        assert_eq!("etcd-0".parse(), Ok(Target { kind: Kind::Pod, name: String::from("etcd-0") }));
        assert_eq!("sts/etcd".parse(), Ok(Target { kind: Kind::StatefulSet, name: String::from("etcd") }));
        assert_eq!(
            "deployment/x".parse::<Target>().unwrap_err(),
            "\"deployment\" is none of pod, statefulset, namespace, pvc"
        );
        assert_eq!("pod/".parse::<Target>().unwrap_err(), "a name is missing");
    }
}

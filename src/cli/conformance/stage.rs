//! The place where it is tried: a namespace of its own with an etcd cluster in it. Nothing here touches anything else.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    super::{asked::Asked, reach::Reached},
    call::{Answer, Caller},
};
use crate::guard::{ClusterStatus, Role, Survey};

/// The example that users are told to apply.
const MANIFEST: &str = include_str!("../../../etcd-manifests/plain.yaml");

/// Its StatefulSet, and the value of the label `app` on all that belongs to it.
pub(super) const SET: &str = "etcd";

/// The members' pods.
const MEMBERS: [&str; 3] = ["etcd-0", "etcd-1", "etcd-2"];

/// Opts a namespace in.
const GUARDED: &str = "etcd-guard.io/guard";

/// By which namespaces that were left behind are found.
pub(super) const OWN_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "etcd-guard-conformance");

/// Between two looks at what is waited for.
const PAUSE: Duration = Duration::from_millis(500);

/// Longest until a change of a label or an annotation counts with every apiserver and every replica of the guard.
const IN_FORCE_LIMIT: Duration = Duration::from_secs(30);

/// How the cluster is to be.
pub(super) struct Wanted<'a> {
    pub(super) image: Option<&'a str>,
    pub(super) storage_class: Option<&'a str>,
}

/// A namespace that this program made, and may do anything to.
pub(super) struct Stage {
    pub(super) caller: Caller,
    reached: Reached,
    pub(super) namespace: String,
    uid: String,
    /// Longest until members have started, or are back.
    limit: Duration,
}

/// All members serve, and none is on its way.
pub(super) struct Whole {
    pub(super) leader: String,
    pub(super) followers: [String; 2],
    /// Member ids, by pod.
    pub(super) ids: BTreeMap<String, String>,
    /// The pods' own.
    pub(super) uids: BTreeMap<String, String>,
}

/// A pod, as far as it matters here.
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) terminating: bool,
    ready: bool,
    /// Why it does not run, where the apiserver knows.
    trouble: String,
}

// === impl Stage ===

impl Stage {
    /// Makes the namespace; of this name, which must not be taken, or of a name that nobody has.
    pub(super) async fn set(reached: Reached, name: Option<&str>, limit: Duration) -> anyhow::Result<Self> {
        let caller = Caller::new(reached.client.clone());
        let (key, name) = name.map_or(("generateName", "etcd-guard-conformance-"), |it| ("name", it));
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {key: name, "labels": {GUARDED: "enabled", OWN_LABEL.0: OWN_LABEL.1}},
        });
        let made = caller.post("/api/v1/namespaces", &namespace).await?;
        let made = made.object("making a namespace of its own")?;
        let text =
            |pointer: &str| made.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, uid) = (text("/metadata/name"), text("/metadata/uid"));
        anyhow::ensure!(!namespace.is_empty() && !uid.is_empty(), "the new namespace has no name");
        Ok(Self { caller, reached, namespace, uid, limit })
    }

    /// Whether the apiserver would ask this webhook about objects in here; else why not.
    pub(super) async fn is_asked(&self, webhook: &str) -> Result<(), String> {
        match Asked::find(&self.reached.client, webhook, &self.namespace).await {
            Asked::Yes => Ok(()),
            Asked::No(why) | Asked::Unknown(why) => Err(why),
        }
    }

    /// Applies the example.
    pub(super) async fn start_cluster(&self, wanted: &Wanted<'_>) -> anyhow::Result<()> {
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(MANIFEST).context("etcd-manifests/plain.yaml")?;
        for mut object in objects {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            if kind == "StatefulSet" {
                adapt(&mut object, wanted);
            }
            let collection = match kind.as_str() {
                "Service" => "/api/v1/namespaces/{}/services",
                "PodDisruptionBudget" => "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
                "StatefulSet" => "/apis/apps/v1/namespaces/{}/statefulsets",
                other => bail!("etcd-manifests/plain.yaml holds a {other}, which this release does not know"),
            };
            let path = collection.replace("{}", &self.namespace);
            self.caller.post(&path, &object).await?.object(&format!("making the {kind}"))?;
        }
        Ok(())
    }

    /// Waits until all members serve, their pods are ready, and nothing is on its way.
    pub(super) async fn whole(&self) -> anyhow::Result<Whole> {
        let end = Instant::now() + self.limit;
        loop {
            let missing = match self.look().await {
                Ok(Ok(whole)) => return Ok(whole),
                Ok(Err(missing)) => missing,
                Err(error) => format!("{error:#}"),
            };
            if Instant::now() > end {
                let limit = humantime::format_duration(self.limit);
                bail!(
                    "the etcd cluster in namespace {} is not whole after {limit}: {missing}",
                    self.namespace
                );
            }
            sleep(PAUSE).await;
        }
    }

    /// The members if all is well, or what is not.
    async fn look(&self) -> anyhow::Result<Result<Whole, String>> {
        let pods = self.pods().await?;
        for name in MEMBERS {
            match pods.iter().find(|pod| pod.name == name) {
                None => return Ok(Err(format!("pod {name} does not exist"))),
                Some(pod) if pod.terminating => return Ok(Err(format!("pod {name} is terminating"))),
                Some(pod) if !pod.ready => return Ok(Err(format!("pod {name} is not ready{}", pod.trouble))),
                Some(_) => {}
            }
        }
        let cluster = self.cluster().await?;
        let mut whole = Whole {
            leader: String::new(),
            followers: [String::new(), String::new()],
            ids: BTreeMap::new(),
            uids: pods.into_iter().map(|pod| (pod.name, pod.uid)).collect(),
        };
        let mut followers = Vec::new();
        for member in &cluster.members {
            let (Some(pod), Some(id), true, None) =
                (&member.pod, &member.id, member.serving, &member.leaving)
            else {
                let who = member.pod.as_deref().or(member.name.as_deref()).unwrap_or_default();
                return Ok(Err(format!("member {who} does not serve")));
            };
            whole.ids.insert(pod.clone(), id.clone());
            match member.role {
                Role::Leader => whole.leader.clone_from(pod),
                _ => followers.push(pod.clone()),
            }
        }
        match followers.try_into() {
            Ok(followers) if !whole.leader.is_empty() => Ok(Ok(Whole { followers, ..whole })),
            _ => Ok(Err(String::from("no member leads"))),
        }
    }

    /// What the guard sees of the cluster.
    pub(super) async fn cluster(&self) -> anyhow::Result<ClusterStatus> {
        let survey: Survey = self.reached.get(&format!("/status?namespace={}", self.namespace)).await?;
        let problems = survey.problems.join("; ");
        survey
            .clusters
            .into_iter()
            .next()
            .with_context(|| format!("the guard sees no etcd cluster: {problems}"))
    }

    /// The members' pods.
    pub(super) async fn pods(&self) -> anyhow::Result<Vec<Seen>> {
        let path = format!("{}?labelSelector=app%3D{SET}", self.path("pods"));
        let list = self.caller.get(&path).await?.object("listing the members' pods")?;
        Ok(list.get("items").and_then(Value::as_array).into_iter().flatten().map(Seen::of).collect())
    }

    /// Of something in here.
    pub(super) fn path(&self, what: &str) -> String {
        format!("/api/v1/namespaces/{}/{what}", self.namespace)
    }

    pub(super) fn set_path(&self) -> String {
        format!("/apis/apps/v1/namespaces/{}/statefulsets/{SET}", self.namespace)
    }

    pub(super) fn namespace_path(&self) -> String {
        format!("/api/v1/namespaces/{}", self.namespace)
    }

    /// Chooses a policy by annotations of the StatefulSet, and waits until it is in force; else why it is not.
    pub(super) async fn choose(
        &self,
        annotations: &Value,
        setting: &str,
        value: Option<&str>,
    ) -> anyhow::Result<Result<(), String>> {
        let patch = json!({"metadata": {"annotations": annotations}});
        self.caller.patch(&self.set_path(), &patch).await?.object("annotating the StatefulSet")?;
        let end = Instant::now() + IN_FORCE_LIMIT;
        loop {
            let policy = self.cluster().await?.policy;
            let found = policy.iter().find(|it| it.name == setting);
            if found.is_some_and(|it| value.is_none_or(|value| it.value == value)) {
                return Ok(Ok(()));
            }
            if Instant::now() > end {
                let said = found.map_or_else(
                    || format!("{setting} does not count here"),
                    |it| format!("{setting} is {} here, by the {}", it.value, it.from),
                );
                return Ok(Err(said));
            }
            sleep(PAUSE).await;
        }
    }

    /// Repeats a call until its answer is one to go by, for as long as a change may take to be in force.
    pub(super) async fn until_in_force(
        &self,
        call: impl AsyncFn() -> anyhow::Result<Answer>,
        is_it: impl Fn(&Answer) -> bool,
    ) -> anyhow::Result<Answer> {
        let end = Instant::now() + IN_FORCE_LIMIT;
        loop {
            let answer = call().await?;
            if is_it(&answer) || Instant::now() > end {
                return Ok(answer);
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until something is so; whether it came to be.
    pub(super) async fn until(&self, is_so: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<bool> {
        let end = Instant::now() + self.limit;
        loop {
            if is_so().await? {
                return Ok(true);
            }
            if Instant::now() > end {
                return Ok(false);
            }
            sleep(PAUSE).await;
        }
    }

    /// Takes the guard off the namespace and deletes it, and waits until it is gone.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        let path = self.namespace_path();
        let end = k8s_openapi::jiff::Timestamp::now()
            .checked_add(k8s_openapi::jiff::SignedDuration::from_hours(1))?;
        // Where a webhook selects this namespace by something else than the label, the guard goes by the annotations.
        let off = json!({"metadata": {"uid": self.uid, "labels": {GUARDED: null}, "annotations": {
            "etcd-guard.io/allow-delete-until": end.to_string(),
            "etcd-guard.io/allow-delete-reason": "etcd-guard conformance clears away",
        }}});
        self.caller.patch(&path, &off).await?.object("taking the guard off the namespace")?;
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": self.uid},
        });
        // For some seconds the apiserver may still ask the guard, which protects what it was told to.
        let delete = async || self.caller.delete(&path, &options).await;
        let deleted = self.until_in_force(delete, |answer| answer.denial().is_none()).await?;
        if deleted.code != 404 {
            deleted.object("deleting the namespace")?;
        }
        let is_gone = async || Ok(self.caller.get(&path).await?.code == 404);
        anyhow::ensure!(self.until(is_gone).await?, "it is still terminating");
        Ok(())
    }
}

/// The cluster as it is wanted, under policies that the server's own may not weaken.
fn adapt(set: &mut Value, wanted: &Wanted<'_>) {
    if let Some(metadata) = set.get_mut("metadata").and_then(Value::as_object_mut) {
        let policies = json!({"etcd-guard.io/leader": "deny", "etcd-guard.io/mode": "enforce"});
        metadata.insert("annotations".to_owned(), policies);
    }
    if let Some(container) = set.pointer_mut("/spec/template/spec/containers/0")
        && let Some(image) = wanted.image
    {
        container["image"] = json!(image);
    }
    if let Some(claim) = set.pointer_mut("/spec/volumeClaimTemplates/0/spec")
        && let Some(class) = wanted.storage_class
    {
        claim["storageClassName"] = json!(class);
    }
}

// === impl Seen ===

impl Seen {
    fn of(pod: &Value) -> Self {
        let text =
            |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
        let conditions: Vec<&Value> = conditions.into_iter().flatten().collect();
        let is = |kind: &str, status: &str| {
            conditions.iter().find(|it| it["type"] == kind && it["status"] == status).copied()
        };
        let waiting = text("/status/containerStatuses/0/state/waiting/reason");
        let unscheduled = is("PodScheduled", "False").and_then(|it| it["message"].as_str());
        let trouble = unscheduled.map(str::to_owned).or(Some(waiting).filter(|it| !it.is_empty()));
        Self {
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            terminating: pod.pointer("/metadata/deletionTimestamp").is_some(),
            ready: is("Ready", "True").is_some(),
            trouble: trouble.map(|it| format!(": {it}")).unwrap_or_default(),
        }
    }
}

//! The place where it is tried: a namespace of its own with an etcd cluster in it. Nothing here touches anything else.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    super::{asked::Asked, reach::Reached},
    call::{Answer, Caller},
    example::{SET, Wanted},
    rights,
};
use crate::guard::{ClusterStatus, Role, Survey};

/// Members of the example's cluster.
pub(super) const MEMBERS: u32 = 3;

/// Their pods.
const PODS: [&str; 3] = ["etcd-0", "etcd-1", "etcd-2"];

/// Opts a namespace in.
pub(super) const GUARDED: &str = "etcd-guard.io/guard";

/// By which namespaces that were left behind are found.
pub(super) const OWN_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "etcd-guard-conformance");

/// Between two looks at what is waited for.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// Longest until a change of a label or an annotation counts with every apiserver and every replica of the guard.
const IN_FORCE_LIMIT: Duration = Duration::from_secs(30);

/// A namespace that this program made, and may do anything to.
pub(super) struct Stage {
    pub(super) caller: Caller,
    reached: Reached,
    pub(super) namespace: String,
    pub(super) uid: String,
    /// Longest until members have started, or are back.
    pub(super) limit: Duration,
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
    pub(super) ready: bool,
    /// Why it does not run, where the apiserver knows.
    trouble: String,
}

// === impl Stage ===

impl Stage {
    /// Makes the namespace; of this name, which must not be taken, or of a name that nobody has.
    pub(super) async fn set(reached: Reached, name: Option<&str>, limit: Duration) -> anyhow::Result<Self> {
        let caller = Caller::new(reached.client.clone());
        rights::check(&caller, name).await?;
        let (key, name) = name.map_or(("generateName", "etcd-guard-conformance-"), |it| ("name", it));
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {key: name, "labels": {GUARDED: "enabled", OWN_LABEL.0: OWN_LABEL.1}},
        });
        let made = caller.post("/api/v1/namespaces", &namespace).await.with_context(|| {
            let (key, value) = OWN_LABEL;
            format!("making a namespace; whether it was made: kubectl get namespaces -l {key}={value}")
        })?;
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
        self.make(wanted.objects()?).await
    }

    /// Makes objects of the kinds that the example holds.
    pub(super) async fn make(&self, objects: Vec<Value>) -> anyhow::Result<()> {
        for object in objects {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
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
        self.is_whole(&self.cluster().await?).await
    }

    /// The same, by a look that was taken just now.
    pub(super) async fn is_whole(&self, cluster: &ClusterStatus) -> anyhow::Result<Result<Whole, String>> {
        let pods = self.pods(SET).await?;
        for name in PODS {
            match pods.iter().find(|pod| pod.name == name) {
                None => return Ok(Err(format!("pod {name} does not exist"))),
                Some(pod) if pod.terminating => return Ok(Err(format!("pod {name} is terminating"))),
                Some(pod) if !pod.ready => return Ok(Err(format!("pod {name} is not ready{}", pod.trouble))),
                Some(_) => {}
            }
        }
        let mut whole = Whole {
            leader: String::new(),
            followers: [String::new(), String::new()],
            ids: BTreeMap::new(),
            uids: pods.into_iter().map(|pod| (pod.name, pod.uid)).collect(),
        };
        let mut followers = Vec::new();
        for member in &cluster.members {
            let who = member.pod.as_deref().or(member.name.as_deref()).unwrap_or_default();
            if let Some(leaving) = &member.leaving {
                return Ok(Err(format!("member {who} is {leaving}")));
            }
            let (Some(pod), Some(id), true) = (&member.pod, &member.id, member.serving) else {
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
        self.cluster_of(SET).await
    }

    /// What the guard sees of the cluster that runs in the pods of this StatefulSet.
    pub(super) async fn cluster_of(&self, set: &str) -> anyhow::Result<ClusterStatus> {
        let Survey { clusters, problems, .. } =
            self.reached.get(&format!("/status?namespace={}", self.namespace)).await?;
        let problems = problems.join("; ");
        // Without them a cluster looks as if nobody was on the way.
        if problems.contains("the reservations") {
            bail!("what the guard tells is not whole: {problems}");
        }
        clusters
            .into_iter()
            .find(|it| it.name == set)
            .with_context(|| format!("the guard sees no etcd cluster {set}: {problems}"))
    }

    /// What the guard has allowed of late: pods, and when. A yes that is given again has another time.
    pub(super) async fn allowed(&self) -> anyhow::Result<BTreeSet<(String, String)>> {
        let end = Instant::now() + IN_FORCE_LIMIT;
        loop {
            match self.cluster().await {
                Ok(cluster) => {
                    return Ok(cluster.reservations.into_iter().map(|it| (it.pod, it.at)).collect());
                }
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// The pods of a StatefulSet.
    pub(super) async fn pods(&self, set: &str) -> anyhow::Result<Vec<Seen>> {
        let path = format!("{}?labelSelector=app%3D{set}", self.path("pods"));
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
            let policy = match self.cluster().await {
                Ok(cluster) => cluster.policy,
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => {
                    sleep(PAUSE).await;
                    continue;
                }
            };
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

    /// Repeats a call until its answer is one to go by, for as long as a change may take to be in force. No answer, and one
    /// that no webhook was asked for, is none to go by.
    pub(super) async fn until_in_force(
        &self,
        call: impl AsyncFn() -> anyhow::Result<Answer>,
        is_it: impl Fn(&Answer) -> bool,
    ) -> anyhow::Result<Answer> {
        let end = Instant::now() + IN_FORCE_LIMIT;
        loop {
            let answer = call().await;
            let is_final = answer.as_ref().is_ok_and(|it| is_it(it) && !it.is_unasked());
            if is_final || Instant::now() > end {
                return answer;
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until something is so, for as long as so many members may take one after the other; whether it came to be. What
    /// cannot be told is not so yet.
    pub(super) async fn until(
        &self,
        members: u32,
        is_so: impl AsyncFn() -> anyhow::Result<bool>,
    ) -> anyhow::Result<bool> {
        let end = Instant::now() + self.limit * members;
        loop {
            let told = is_so().await;
            if matches!(told, Ok(true)) || Instant::now() > end {
                return told;
            }
            sleep(PAUSE).await;
        }
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

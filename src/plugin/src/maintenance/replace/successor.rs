//! The pod that starts the successor of a member: the pod that the StatefulSet controller would create, with one difference. Its etcd joins
//! the existing cluster.
//!
//! etcd reads `--initial-cluster-state` only without data. The template has `new`, with which an empty member would form a cluster of its
//! own, under the id of the removed member. Once the successor has data, the template fits again: later pods are those of the controller.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Map, Value, json};

use etcd_guard_core::{
    discovery::{
        etcd_pod::{self, EtcdPod},
        member_settings::MemberSettings,
        recognition::{RecognitionRule, recognize},
    },
    objects::{pod::Pod as MemberPod, quantity::Quantity},
    snapshot::Storage,
};

/// Annotation of the pod, with the id of the member that it succeeds. It is also the scheduling gate that the pod has until the learner
/// is listed, and the finalizer that keeps the old claim while the controller must not create the pod.
pub(crate) const REPLACES: &str = "etcd-guard.io/replaces";

/// The flag, and its variable.
const STATE: &str = "initial-cluster-state";
const STATE_VARIABLE: &str = "ETCD_INITIAL_CLUSTER_STATE";
const EXISTING: &str = "existing";

/// How a member is replaced that this command does not replace.
pub(crate) const BY_HAND: &str = "https://etcd-guard.io/recipes.html#replace-a-lost-or-corrupt-member";

/// What the images and the scripts of Bitnami have in common.
const BITNAMI: &str = "bitnami";

/// The pod of a successor, and what it shows of the member.
#[derive(Clone, Debug)]
pub(crate) struct Successor {
    /// The object as JSON: a typed one would lose fields that this program does not know.
    pub(crate) pod: Value,
    /// The claim with the data.
    pub(crate) claim: String,
    /// The number of members in `--initial-cluster`.
    pub(crate) members: usize,
    /// Whether the controller starts a pod only after those with lower ordinals are ready.
    pub(crate) is_ordered: bool,
}

// === impl Successor ===

impl Successor {
    /// Returns the pod of this name, or why its member cannot be replaced.
    pub(crate) fn new(set: &Value, name: &str, old: &str) -> Result<Self, String> {
        let pod = from_template(set, name, old)?;
        let (etcd, member, settings) = read(&pod)?;
        if mentions_bitnami(&pod, &etcd.container) {
            return Err(format!(
                "the start script of Bitnami replaces the member itself if {name} starts with an empty PVC: remove the member \
                 (etcdctl member remove), then delete its PVC and the pod"
            ));
        }
        Self::joining(set, name, pod, (&etcd, &member, &settings))
            .map_err(|cause| format!("{cause}. By hand: {BY_HAND}"))
    }

    /// Returns the pod with an existing cluster state, or what this command cannot do.
    fn joining(
        set: &Value,
        name: &str,
        mut pod: Value,
        (etcd, member, settings): (&EtcdPod, &MemberPod, &MemberSettings),
    ) -> Result<Self, String> {
        if etcd.is_container_unclear {
            return Err(format!("several containers of {name} may run etcd"));
        }
        if settings.config_file().is_some() {
            return Err(String::from("etcd has a --config-file, and ignores the flags of its command"));
        }
        let claim = claim(set, name, etcd)?;
        if etcd.peer_urls.is_empty() || etcd.initial_members.is_empty() {
            return Err(String::from(
                "the pod template does not show --initial-advertise-peer-urls and --initial-cluster",
            ));
        }
        let own = etcd.member_name.clone().unwrap_or_else(|| name.to_owned());
        if !etcd.initial_members.contains(&own) {
            return Err(format!("--initial-cluster does not contain {own}"));
        }
        let rule = recognize(member, &member.metadata.annotations).rule;
        let is_plain = matches!(rule, Some(RecognitionRule::Command | RecognitionRule::Image));
        join_existing(&mut pod, &etcd.container, is_plain && settings.get(STATE).is_none());
        let (_, _, changed) = read(&pod)?;
        if changed.get(STATE) != Some(EXISTING) {
            return Err(format!("the command of container {} does not show --{STATE}", etcd.container));
        }
        let is_ordered = text(set, "/spec/podManagementPolicy") != "Parallel";
        Ok(Self { pod, claim, members: etcd.initial_members.len(), is_ordered })
    }
}

/// Returns the object of an operator that owns the StatefulSet, and may change its members.
pub(crate) fn operator(set: &Value) -> Option<String> {
    let owner = set.pointer("/metadata/ownerReferences/0")?;
    Some(format!("{} {}", text(owner, "/kind"), text(owner, "/name")))
}

/// Returns why a replacement must not begin during a rollout: the successor has the new template. One that has begun goes on, and so does
/// one that waits for this pod, which has the new revision already. With `OnDelete`, `currentRevision` of older releases never advances
/// (kubernetes 73492).
pub(crate) fn rollout_obstacle(set: &Value, pod: &str, revision: Option<&str>) -> Option<String> {
    let (current, update) = (text(set, "/status/currentRevision"), text(set, "/status/updateRevision"));
    let name = text(set, "/metadata/name");
    if current == update || revision == Some(update) {
        return None;
    }
    if text(set, "/spec/updateStrategy/type") != "OnDelete" {
        return Some(format!("StatefulSet {name} is being rolled out: finish that first"));
    }
    revision.map(|_| format!("pod {pod} has an older template than StatefulSet {name}: delete the pod first"))
}

/// Returns why the new claim would be smaller than the old one, or of another class: the template of a StatefulSet cannot change, so that
/// an expanded claim differs from it.
pub(crate) fn claim_obstacle(set: &Value, pod: &str, claim: &PersistentVolumeClaim) -> Option<String> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let templates = set.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    let is_of_claim = |template: &&Value| format!("{}-{pod}", text(template, "/metadata/name")) == name;
    let template = templates.into_iter().flatten().find(is_of_claim)?;
    let spec = claim.spec.as_ref()?;
    let new = text(template, "/spec/resources/requests/storage");
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let old = requests.and_then(|requests| requests.get("storage")).map_or("", |old| old.0.as_str());
    let set_name = text(set, "/metadata/name");
    if Quantity::parse(new)? < Quantity::parse(old)? {
        return Some(format!(
            "PVC {name} requests {old}, and the new one of StatefulSet {set_name} would request {new}: first create the StatefulSet again \
             (--cascade=orphan) with {old}"
        ));
    }
    let class = template.pointer("/spec/storageClassName").and_then(Value::as_str)?;
    let old = spec.storage_class_name.as_deref().unwrap_or_default();
    (class != old).then(|| format!("PVC {name} has the class {old:?}, and the new one would have {class:?}"))
}

/// Returns the pod that the StatefulSet controller would create, behind a scheduling gate.
fn from_template(set: &Value, name: &str, old: &str) -> Result<Value, String> {
    let set_name = text(set, "/metadata/name");
    let update = text(set, "/status/updateRevision");
    let is_observed = set.pointer("/metadata/generation") == set.pointer("/status/observedGeneration")
        && !update.is_empty();
    if !is_observed {
        return Err(format!("the controller has not seen the last change of StatefulSet {set_name} yet"));
    }
    let ordinal =
        ordinal(set_name, name).ok_or_else(|| format!("{name} is no pod of StatefulSet {set_name}"))?;
    let number = |path: &str| set.pointer(path).and_then(Value::as_i64);
    let first = number("/spec/ordinals/start").unwrap_or_default();
    let count = number("/spec/replicas").unwrap_or(1);
    if ordinal < first || ordinal >= first.saturating_add(count) {
        return Err(format!("StatefulSet {set_name} has {count} replicas, and {name} is none of them"));
    }
    let object = |path: &str| set.pointer(path).and_then(Value::as_object).cloned().unwrap_or_default();
    let mut labels = object("/spec/template/metadata/labels");
    labels.insert(String::from("statefulset.kubernetes.io/pod-name"), json!(name));
    labels.insert(String::from("apps.kubernetes.io/pod-index"), json!(ordinal.to_string()));
    labels.insert(String::from("controller-revision-hash"), json!(update));
    let mut annotations = object("/spec/template/metadata/annotations");
    annotations.insert(REPLACES.to_owned(), json!(old));
    let mut spec: Map<String, Value> = object("/spec/template/spec");
    spec.insert(String::from("hostname"), json!(name));
    spec.insert(String::from("subdomain"), json!(text(set, "/spec/serviceName")));
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let mut gates = list(spec.get("schedulingGates"));
    gates.push(json!({"name": REPLACES}));
    spec.insert(String::from("schedulingGates"), Value::Array(gates));
    let templates = claim_templates(set);
    let claim = |volume: &&str| json!({"name": volume, "persistentVolumeClaim": {"claimName": format!("{volume}-{name}")}});
    let mut volumes: Vec<Value> = templates.iter().map(claim).collect();
    let others = list(spec.get("volumes"));
    volumes.extend(others.into_iter().filter(|volume| !templates.contains(&text(volume, "/name"))));
    spec.insert(String::from("volumes"), Value::Array(volumes));
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": text(set, "/metadata/namespace"),
            "labels": labels,
            "annotations": annotations,
            "finalizers": list(set.pointer("/spec/template/metadata/finalizers")),
            // Without `blockOwnerDeletion`, which needs a permission for finalizers of the StatefulSet.
            "ownerReferences": [{
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": set_name,
                "uid": text(set, "/metadata/uid"),
                "controller": true,
            }],
        },
        "spec": spec,
    }))
}

/// Returns a text of an object; empty if it is absent.
fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the names of the volumeClaimTemplates.
fn claim_templates(set: &Value) -> Vec<&str> {
    let templates = set.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    templates.into_iter().flatten().map(|template| text(template, "/metadata/name")).collect()
}

/// Returns the ordinal of a pod of any StatefulSet.
pub(crate) fn ordinal_of(pod: &str) -> Option<i64> {
    pod.rsplit_once('-')?.1.parse().ok()
}

/// Returns the ordinal of a pod of this StatefulSet.
pub(crate) fn ordinal(set: &str, pod: &str) -> Option<i64> {
    let text = pod.strip_prefix(set)?.strip_prefix('-')?;
    text.parse().ok().filter(|ordinal: &i64| ordinal.to_string() == text)
}

/// Reads the member of a pod.
fn read(pod: &Value) -> Result<(EtcdPod, MemberPod, MemberSettings), String> {
    let parsed: MemberPod =
        serde_json::from_value(pod.clone()).map_err(|_| "the pod template is not readable")?;
    let etcd = etcd_pod::read(&parsed, &parsed.metadata.annotations)
        .ok_or("the pod template does not show an etcd member: kubectl etcd-guard inspect shows why")?;
    let container = parsed.lasting_containers().find(|container| container.name == etcd.container);
    let settings = MemberSettings::read(&parsed, container.ok_or("the pod template has no etcd container")?);
    Ok((etcd, parsed, settings))
}

/// Returns the claim with all data of the member.
fn claim(set: &Value, name: &str, etcd: &EtcdPod) -> Result<String, String> {
    match etcd.storage {
        Storage::Persistent | Storage::ClaimTerminating => {}
        Storage::Ephemeral => {
            return Err(format!(
                "the data of {name} is in the pod (emptyDir): the StatefulSet controller would start an empty member first"
            ));
        }
        Storage::OnNode => return Err(format!("the data of {name} is on its node, and not in a PVC")),
        Storage::RemovedByHook => {
            return Err(format!("a preStop hook of {name} may remove the member itself"));
        }
    }
    let [claim] = etcd.claims.as_slice() else {
        return Err(format!(
            "the data of {name} is in {} PVCs, and this command deletes one",
            etcd.claims.len()
        ));
    };
    let is_own = claim_templates(set).iter().any(|volume| format!("{volume}-{name}") == *claim);
    is_own
        .then(|| claim.clone())
        .ok_or_else(|| format!("PVC {claim} does not come from a volumeClaimTemplate: other pods may use it"))
}

/// Whether the image, the scripts or the directories of the container are those of Bitnami, which change the member list.
fn mentions_bitnami(pod: &Value, name: &str) -> bool {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let mut own = containers.filter(|container| text(container, "/name") == name);
    own.any(|container| {
        let parts = ["image", "command", "args", "volumeMounts"];
        parts.iter().filter_map(|part| container.get(part)).any(|part| part.to_string().contains(BITNAMI))
    })
}

/// Lets etcd in this container join the existing cluster. `is_unset` if no flag says the opposite.
fn join_existing(pod: &mut Value, name: &str, is_unset: bool) {
    let Some(spec) = pod.pointer_mut("/spec").and_then(Value::as_object_mut) else { return };
    let lists = spec.iter_mut().filter(|(key, _)| matches!(key.as_str(), "containers" | "initContainers"));
    let mut containers = lists.filter_map(|(_, list)| list.as_array_mut()).flatten();
    let container = containers.find(|container| text(container, "/name") == name);
    let Some(container) = container.and_then(Value::as_object_mut) else { return };
    let mut is_value = false;
    for part in ["command", "args"] {
        let words = container.get_mut(part).and_then(Value::as_array_mut);
        for word in words.into_iter().flatten() {
            let mut changed = word.as_str().unwrap_or_default().to_owned();
            if is_value && changed == "new" {
                EXISTING.clone_into(&mut changed);
            }
            is_value = changed.trim_start_matches('-') == STATE;
            for separator in ["=", " "] {
                for quote in ["", "\"", "'"] {
                    let with = |value: &str| format!("{STATE}{separator}{quote}{value}");
                    changed = changed.replace(&with("new"), &with(EXISTING));
                }
            }
            *word = Value::String(changed);
        }
    }
    let env = container.entry("env").or_insert_with(|| json!([]));
    let Some(env) = env.as_array_mut() else { return };
    let is_state = |variable: &Value| text(variable, "/name") == STATE_VARIABLE;
    let has_state = env.iter().any(is_state);
    for variable in env.iter_mut().filter(|variable| is_state(variable)) {
        if let Some(value) = variable.get_mut("value") {
            *value = json!(EXISTING);
        }
    }
    if is_unset && !has_state {
        env.push(json!({"name": STATE_VARIABLE, "value": EXISTING}));
    }
}

/// Returns the id of the member that this pod succeeds, if `replace` created it.
pub(crate) fn replaces(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(REPLACES).map(String::as_str)
}

/// Whether the pod waits for the learner.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    let mut gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.any(|gate| gate.name == REPLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS: &str = "etcd-0=http://etcd-0.etcd.prod.svc:2380,etcd-1=http://etcd-1.etcd.prod.svc:2380";

    fn set() -> Value {
        json!({
            "metadata": {"name": "etcd", "namespace": "prod", "uid": "u", "generation": 3},
            "spec": {
                "replicas": 2,
                "serviceName": "etcd",
                "selector": {"matchLabels": {"app": "etcd"}},
                "template": {
                    "metadata": {"labels": {"app": "etcd"}},
                    "spec": {
                        "fieldOfALaterRelease": {"isKept": true},
                        "containers": [{
                            "name": "etcd",
                            "image": "quay.io/coreos/etcd:v3.6.16",
                            "command": [
                                "/usr/local/bin/etcd",
                                "--name=$(POD_NAME)",
                                "--data-dir=/var/lib/etcd/data",
                                "--initial-advertise-peer-urls=http://$(POD_NAME).etcd.prod.svc:2380",
                                format!("--initial-cluster={PEERS}"),
                                "--initial-cluster-state=new",
                            ],
                            "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                            "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}],
                        }],
                    },
                },
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
            },
            "status": {
                "replicas": 2, "currentRevision": "etcd-1f", "updateRevision": "etcd-1f", "observedGeneration": 3,
            },
        })
    }

    fn successor(set: &Value) -> Result<Successor, String> {
        Successor::new(set, "etcd-1", "a1")
    }

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut set = set();
        change(&mut set);
        successor(&set).unwrap_err()
    }

    #[test]
    fn successor_is_the_pod_of_the_controller_and_joins() {
        let Successor { pod, claim, members, is_ordered } = successor(&set()).unwrap();
        assert_eq!((claim.as_str(), members, is_ordered), ("data-etcd-1", 2, true));
        let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!((replaces(&typed), is_gated(&typed)), (Some("a1"), true));
        let value = pod;
        assert_eq!(
            value["metadata"]["labels"],
            json!({
                "app": "etcd",
                "apps.kubernetes.io/pod-index": "1",
                "controller-revision-hash": "etcd-1f",
                "statefulset.kubernetes.io/pod-name": "etcd-1",
            })
        );
        let spec = &value["spec"];
        assert_eq!(spec["fieldOfALaterRelease"], json!({"isKept": true}));
        assert_eq!((&spec["hostname"], &spec["subdomain"]), (&json!("etcd-1"), &json!("etcd")));
        assert_eq!(
            spec["volumes"],
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-etcd-1"}}])
        );
        assert_eq!(spec["containers"][0]["command"][5], "--initial-cluster-state=existing");
        let owner = &value["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&json!("u"), &json!(true)));
    }

    /// Returns the first StatefulSet of a shipped example, as its controller has observed it.
    fn shipped(manifest: &str) -> Value {
        let objects: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
        let mut set = objects.into_iter().find(|object| object["kind"] == "StatefulSet").unwrap();
        set["metadata"]["namespace"] = json!("prod");
        set["status"] = json!({"currentRevision": "r", "updateRevision": "r"});
        set
    }

    macro_rules! example {
        ($name:literal) => {
            shipped(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../etcd-manifests/", $name)))
        };
    }

    #[test]
    fn the_shipped_examples_are_replaced_or_left_to_their_script() {
        for (set, pod, members) in [
            (example!("plain.yaml"), "etcd-2", 3),
            (example!("mtls.yaml"), "etcd-2", 3),
            (example!("password.yaml"), "etcd-2", 3),
            (example!("vcluster-like.yaml"), "my-vcluster-etcd-2", 3),
            (example!("five-with-learner.yaml"), "etcd-4", 5),
        ] {
            let successor = Successor::new(&set, pod, "a1").unwrap();
            assert_eq!((successor.members, successor.claim), (members, format!("data-{pod}")));
        }
        let bitnami = Successor::new(&example!("bitnami-like.yaml"), "etcd-2", "a1").unwrap_err();
        assert!(bitnami.starts_with("the start script of Bitnami replaces the member itself"), "{bitnami}");
    }

    #[test]
    fn finds_the_flag_in_all_forms() {
        let command = "/spec/template/spec/containers/0/command";
        let state = |set: &Value| {
            let pod = successor(set).unwrap().pod;
            let (_, _, settings) = read(&pod).unwrap();
            settings.get(STATE).unwrap().to_owned()
        };
        let mut separate = set();
        let words = separate.pointer_mut(command).unwrap().as_array_mut().unwrap();
        words.splice(5.., [json!("--initial-cluster-state"), json!("new")]);
        assert_eq!(state(&separate), "existing");
        let mut absent = set();
        absent.pointer_mut(command).unwrap().as_array_mut().unwrap().truncate(5);
        assert_eq!(state(&absent), "existing");
        let mut script = set();
        let words = script.pointer_mut(command).unwrap();
        let text: Vec<&str> = words.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        *words = json!(["sh", "-c", format!("exec {}", text.join(" "))]);
        assert_eq!(state(&script), "existing");
    }

    #[test]
    fn refuses_what_it_cannot_do_and_says_who_can() {
        let container = "/spec/template/spec/containers/0";
        let bitnami = refusal(|set| {
            set.pointer_mut(container).unwrap()["image"] = json!("docker.io/bitnamilegacy/etcd:3.6.4");
        });
        assert!(bitnami.starts_with("the start script of Bitnami replaces the member itself"), "{bitnami}");
        let empty_dir = refusal(|set| {
            set["spec"]["volumeClaimTemplates"] = json!([]);
            set["spec"]["template"]["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
        });
        assert!(empty_dir.starts_with("the data of etcd-1 is in the pod (emptyDir)"), "{empty_dir}");
        assert!(empty_dir.ends_with(BY_HAND) && !bitnami.contains(BY_HAND));
        let stale = refusal(|set| set["metadata"]["generation"] = json!(4));
        assert_eq!(stale, "the controller has not seen the last change of StatefulSet etcd yet");
        let replicas = refusal(|set| set["spec"]["replicas"] = json!(1));
        assert_eq!(replicas, "StatefulSet etcd has 1 replicas, and etcd-1 is none of them");
        let config = refusal(|set| {
            let container = set.pointer_mut(container).unwrap();
            container["command"] = json!(["etcd", "--config-file=/etc/etcd.yaml"]);
        });
        assert!(config.starts_with("etcd has a --config-file"), "{config}");
        let wal = refusal(|set| {
            let words = set.pointer_mut("/spec/template/spec/containers/0/command").unwrap();
            words.as_array_mut().unwrap().push(json!("--wal-dir=/wal"));
            let mounts = &mut set.pointer_mut(container).unwrap()["volumeMounts"];
            mounts.as_array_mut().unwrap().push(json!({"name": "wal", "mountPath": "/wal"}));
            let claims = &mut set["spec"]["volumeClaimTemplates"];
            claims.as_array_mut().unwrap().push(json!({"metadata": {"name": "wal"}, "spec": {}}));
        });
        assert_eq!(
            wal,
            "the data of etcd-1 is in 2 PVCs, and this command deletes one. By hand: \
             https://etcd-guard.io/recipes.html#replace-a-lost-or-corrupt-member"
        );
        let fixed = refusal(|set| {
            let words = set.pointer_mut("/spec/template/spec/containers/0/command").unwrap();
            words[5] = json!("--initial-cluster-state=$(STATE)");
        });
        assert!(fixed.contains("does not show --initial-cluster-state"), "{fixed}");
        let mut rollout = set();
        let obstacle = |set: &Value, revision| rollout_obstacle(set, "etcd-1", revision);
        assert_eq!(obstacle(&rollout, None), None);
        rollout["status"]["updateRevision"] = json!("etcd-2f");
        let text = "StatefulSet etcd is being rolled out: finish that first";
        assert_eq!(obstacle(&rollout, Some("etcd-1a")).as_deref(), Some(text));
        assert_eq!(obstacle(&rollout, Some("etcd-2f")), None, "the rollout waits for this pod");
        assert!(successor(&rollout).is_ok(), "one that has begun goes on");
        rollout["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
        let text = "pod etcd-1 has an older template than StatefulSet etcd: delete the pod first";
        assert_eq!(obstacle(&rollout, Some("etcd-1a")).as_deref(), Some(text));
        assert_eq!(obstacle(&rollout, None), None);
    }

    #[test]
    fn new_claim_is_not_smaller_than_an_expanded_one() {
        let mut set = set();
        set["spec"]["volumeClaimTemplates"] = json!([{
            "metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "2Gi"}}},
        }]);
        let obstacle = |set: &Value, storage: &str, class: Option<&str>| {
            let claim = json!({
                "metadata": {"name": "data-etcd-1"},
                "spec": {"resources": {"requests": {"storage": storage}}, "storageClassName": class},
            });
            claim_obstacle(set, "etcd-1", &serde_json::from_value(claim).unwrap()).unwrap_or_default()
        };
        assert_eq!(obstacle(&set, "2048Mi", Some("fast")), "");
        assert!(obstacle(&set, "10Gi", None).starts_with("PVC data-etcd-1 requests 10Gi, and the new one"));
        set["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] = json!("fast");
        assert_eq!(obstacle(&set, "1Gi", Some("fast")), "");
        assert!(obstacle(&set, "2Gi", Some("slow")).starts_with("PVC data-etcd-1 has the class \"slow\""));
    }
}

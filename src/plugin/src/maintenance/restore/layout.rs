//! What the template of a StatefulSet says about its members: names, peer URLs, and where their data is.

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, PodSpec},
};
use serde_json::{Value, json};

use etcd_guard_core::{
    discovery::{etcd_pod, member_settings::MemberSettings},
    objects::pod::{Container, Pod},
};

/// The token of a cluster whose members name none. Source: etcd `server/embed/config.go`.
const DEFAULT_TOKEN: &str = "etcd-cluster";

/// How to restore without this command.
const BY_HAND: &str = "https://etcd.io/docs/latest/op-guide/recovery/";

/// Settings that the user gives because the template does not show them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) image: Option<String>,
    pub(crate) data_dir: Option<String>,
    pub(crate) initial_cluster: Option<String>,
    pub(crate) token: Option<String>,
    /// The user of the members' image.
    pub(crate) user: Option<i64>,
}

/// The members of a StatefulSet.
pub(crate) struct Layout {
    pub(crate) namespace: String,
    pub(crate) set: String,
    /// The specification of the members' pods.
    pub(crate) spec: PodSpec,
    /// The name of the container that runs etcd.
    pub(crate) container: String,
    /// An image with `etcdutl`.
    pub(crate) image: String,
    pub(crate) token: String,
    pub(crate) initial_cluster: String,
    pub(crate) members: Vec<Member>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) pod: String,
    /// The value of `--name`.
    pub(crate) name: String,
    /// The value of `--initial-advertise-peer-urls`.
    pub(crate) peer_urls: String,
    pub(crate) data_dir: String,
    /// The claim with the data directory.
    pub(crate) claim: String,
    /// The volume of the claim, and where the container mounts it.
    pub(crate) volume: String,
    pub(crate) mount_path: String,
    pub(crate) sub_path: String,
}

/// A name and the peer URLs of a member in `--initial-cluster`.
struct Entry {
    name: String,
    urls: Vec<String>,
}

/// Returns the members in a value of `--initial-cluster`, or `None` if it has variables of unknown value or is none.
fn entries(initial_cluster: &str) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    for pair in initial_cluster.split(',') {
        let (name, url) = pair.trim().split_once('=')?;
        if name.is_empty() || !url.contains("://") || pair.contains(['$', '`', '\'', '"', ' ']) {
            return None;
        }
        match entries.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => entry.urls.push(url.to_owned()),
            None => entries.push(Entry { name: name.to_owned(), urls: vec![url.to_owned()] }),
        }
    }
    Some(entries)
}

/// Returns a text unless it has variables of unknown value.
fn known(text: &str) -> Option<String> {
    (!text.is_empty() && !text.contains(['$', '`', '\'', '"'])).then(|| text.trim_end_matches('/').to_owned())
}

/// Returns the pod with this ordinal, as the StatefulSet controller creates it.
fn pod(set: &StatefulSet, name: &str) -> anyhow::Result<Pod> {
    let spec = set.spec.as_ref().context("the StatefulSet has no specification")?;
    let mut annotations = set.metadata.annotations.clone().unwrap_or_default();
    let metadata = spec.template.metadata.as_ref();
    annotations.extend(metadata.and_then(|metadata| metadata.annotations.clone()).unwrap_or_default());
    let mut pod = json!({
        "metadata": {
            "name": name,
            "namespace": set.metadata.namespace,
            "labels": metadata.and_then(|metadata| metadata.labels.clone()),
            "annotations": annotations,
        },
        "spec": spec.template.spec,
    });
    let mut volumes = serde_json::to_value(spec.template.spec.as_ref().and_then(|pod| pod.volumes.clone()))?;
    let mut volumes = volumes.as_array_mut().map(std::mem::take).unwrap_or_default();
    for claim in spec.volume_claim_templates.iter().flatten() {
        let volume = claim.metadata.name.as_deref().unwrap_or_default();
        volumes.retain(|other| other.get("name").and_then(Value::as_str) != Some(volume));
        volumes.push(
            json!({"name": volume, "persistentVolumeClaim": {"claimName": format!("{volume}-{name}")}}),
        );
    }
    if let Some(pod) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        pod.extend([
            (String::from("hostname"), json!(name)),
            (String::from("subdomain"), json!(spec.service_name)),
            (String::from("volumes"), json!(volumes)),
        ]);
    }
    serde_json::from_value(pod).context("the template of the StatefulSet cannot be read")
}

/// Returns the first part of the host of a URL.
fn first_label(url: &str) -> &str {
    let host = url.split_once("://").map_or("", |(_, rest)| rest);
    host.split(['.', ':', '/']).next().unwrap_or_default()
}

// === impl Layout ===

impl Layout {
    /// Reads the template of a StatefulSet with this number of members, or with as many as `--initial-cluster` names. The error names the
    /// flag that supplies what the template does not show.
    pub(crate) fn read(
        set: &StatefulSet,
        replicas: Option<i32>,
        overrides: &Overrides,
    ) -> anyhow::Result<Self> {
        let name = set.metadata.name.clone().unwrap_or_default();
        let namespace = set.metadata.namespace.clone().unwrap_or_default();
        let spec = set.spec.as_ref().context("the StatefulSet has no specification")?;
        let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
        let (mut members, mut found) = (Vec::new(), None);
        let mut replicas = replicas.unwrap_or_default();
        let mut ordinal = first;
        while members.is_empty() || ordinal < first.saturating_add(replicas) {
            let pod = pod(set, &format!("{name}-{ordinal}"))?;
            let etcd = etcd_pod::read(&pod, &pod.metadata.annotations);
            let etcd = etcd.with_context(|| {
                format!("the template of StatefulSet {name} shows no etcd; the annotation etcd-guard.io/member: \"true\" declares it")
            })?;
            let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
            let container = containers.into_iter().find(|container| container.name == etcd.container);
            let container = container.context("the template has no container that runs etcd")?;
            ensure!(
                !is_bitnami(container),
                "the scripts of the Bitnami image restore by themselves: set startFromSnapshot in the values of its chart, as its manual \
                 says"
            );
            let settings = MemberSettings::read(&pod, container);
            let initial_cluster = overrides.initial_cluster.clone();
            let initial_cluster = initial_cluster
                .or_else(|| settings.get("initial-cluster").map(str::to_owned))
                .unwrap_or_default();
            let has_file = settings.config_file().is_some();
            let entries =
                entries(&initial_cluster).filter(|_| !has_file || overrides.initial_cluster.is_some());
            let entries = entries.with_context(|| {
                format!(
                    "the template of StatefulSet {name} does not show its members: pass --initial-cluster=NAME=PEER_URL,... with one \
                     entry per pod. If etcd has a configuration file, pass also its data-dir and initial-cluster-token; with a wal-dir \
                     in it, this command would damage the members: {BY_HAND}"
                )
            })?;
            let listed = i32::try_from(entries.len())?;
            if replicas == 0 {
                replicas = listed;
            }
            ensure!(
                listed == replicas,
                "--initial-cluster names {listed} members, but StatefulSet {name} has {replicas} pods: pass --initial-cluster with one \
                 entry per pod. A cluster with members outside of this StatefulSet cannot be restored by this command"
            );
            let token =
                overrides.token.clone().or_else(|| settings.get("initial-cluster-token").and_then(known));
            let token = token.unwrap_or_else(|| DEFAULT_TOKEN.to_owned());
            let data_dir = overrides.data_dir.as_deref().or_else(|| settings.get("data-dir")).and_then(known);
            let data_dir = data_dir.filter(|dir| dir.starts_with('/')).with_context(|| {
                format!("the template of StatefulSet {name} does not show an absolute data directory: pass --data-dir")
            })?;
            ensure!(
                settings.get("wal-dir").is_none(),
                "the members have a directory of their own for the write-ahead log (--wal-dir), which this command does not restore: \
                 {BY_HAND}"
            );
            members.push(member(&pod, container, &entries, data_dir)?);
            let of_pod = (container.name.clone(), container.image.clone(), token, initial_cluster);
            ensure!(
                found.as_ref().is_none_or(|found| *found == of_pod),
                "--initial-cluster or --initial-cluster-token differs between the pods: pass both"
            );
            found = Some(of_pod);
            ordinal += 1;
        }
        let (container, image, token, initial_cluster) = found.context("the StatefulSet has no members")?;
        let image = overrides.image.clone().unwrap_or(image);
        let mut spec = spec.template.spec.clone().context("the template of the StatefulSet has no pod")?;
        let mounts = spec.containers.iter().flat_map(|container| container.volume_mounts.iter().flatten());
        let has_expression = |path: &str| {
            mounts.clone().any(|mount| mount.mount_path == path && mount.sub_path_expr.is_some())
        };
        ensure!(
            !members.iter().any(|member: &Member| has_expression(&member.mount_path)),
            "the volume of the data is mounted with subPathExpr, which this command does not support: {BY_HAND}"
        );
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let etcd = containers.into_iter().find(|other| other.name == container);
        let (mut of_pod, of_etcd) = (
            spec.security_context.clone().unwrap_or_default(),
            etcd.and_then(|etcd| etcd.security_context.clone()),
        );
        let is_user_known =
            of_pod.run_as_user.or(of_etcd.as_ref().and_then(|context| context.run_as_user)).is_some();
        let needs_user = of_pod.run_as_non_root == Some(true)
            || of_etcd.as_ref().is_some_and(|context| context.run_as_non_root == Some(true));
        ensure!(
            is_user_known || !needs_user || overrides.user.is_some(),
            "the template of StatefulSet {name} forbids root and names no user: pass the user of the image, --run-as-user UID"
        );
        of_pod.run_as_user = overrides.user.or(of_pod.run_as_user);
        spec.security_context = Some(of_pod);
        Ok(Self { namespace, set: name, spec, container, image, token, initial_cluster, members })
    }

    /// Returns the claim of a member, as the StatefulSet controller creates it.
    pub(crate) fn new_claim(set: &StatefulSet, member: &Member) -> Option<PersistentVolumeClaim> {
        let spec = set.spec.as_ref()?;
        let of_volume = |claim: &&PersistentVolumeClaim| claim.metadata.name.as_ref() == Some(&member.volume);
        let mut claim = spec.volume_claim_templates.iter().flatten().find(of_volume)?.clone();
        claim.metadata.name = Some(member.claim.clone());
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        claim.status = None;
        Some(claim)
    }
}

fn is_bitnami(container: &Container) -> bool {
    let has_script = container.command.iter().any(|word| word.starts_with("/opt/bitnami/"));
    has_script
        || container.image.contains("bitnami")
        || container.env.iter().any(|variable| variable.name == "BITNAMI_DEBUG")
}

/// Returns the member in this pod.
fn member(pod: &Pod, container: &Container, entries: &[Entry], data_dir: String) -> anyhow::Result<Member> {
    let name = &pod.metadata.name;
    let by_host = entries.iter().find(|entry| entry.urls.iter().any(|url| first_label(url) == name));
    let entry = by_host.or_else(|| entries.iter().find(|entry| entry.name == *name)).with_context(|| {
        format!("--initial-cluster has no URL with the host {name}: pass --initial-cluster=NAME=PEER_URL,... with one entry per pod")
    })?;
    let is_below = |folder: &str| {
        let rest = data_dir.strip_prefix(folder.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mounts = container.volume_mounts.iter().filter(|mount| is_below(&mount.mount_path));
    let mount = mounts.max_by_key(|mount| mount.mount_path.len());
    let volume = mount.and_then(|mount| pod.spec.volumes.iter().find(|volume| volume.name == mount.name));
    let claim = volume.and_then(|volume| volume.persistent_volume_claim.as_ref());
    let (Some(mount), Some(claim)) = (mount, claim) else {
        bail!(
            "the data directory {data_dir} of {name} is in no claim, and would be empty again after the start: {BY_HAND}"
        );
    };
    Ok(Member {
        pod: name.clone(),
        name: entry.name.clone(),
        peer_urls: entry.urls.join(","),
        data_dir,
        claim: claim.claim_name.clone(),
        volume: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        sub_path: mount.sub_path.clone(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn set(change: impl Fn(&mut Value)) -> StatefulSet {
        let cluster = "etcd-0=https://etcd-0.etcd.$(NAMESPACE).svc:2380,etcd-1=https://etcd-1.etcd.$(NAMESPACE).svc:2380";
        let mut set = json!({
            "metadata": {"name": "etcd", "namespace": "prod"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "etcd"}},
                "serviceName": "etcd",
                "template": {
                    "metadata": {"labels": {"app": "etcd"}},
                    "spec": {
                        "securityContext": {"runAsUser": 65532},
                        "containers": [{
                            "name": "etcd",
                            "image": "quay.io/coreos/etcd:v3.6.16",
                            "command": ["etcd", "--name=$(POD)", "--data-dir=/var/lib/etcd/data", "--initial-cluster-token=t",
                                format!("--initial-cluster={cluster}")],
                            "env": [
                                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                                {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                            ],
                            "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}],
                        }],
                    },
                },
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}}],
            },
        });
        change(&mut set);
        serde_json::from_value(set).unwrap()
    }

    fn layout(change: impl Fn(&mut Value), overrides: &Overrides) -> anyhow::Result<Layout> {
        Layout::read(&set(change), Some(2), overrides)
    }

    fn failure(change: impl Fn(&mut Value)) -> String {
        layout(change, &Overrides::default()).err().unwrap().to_string()
    }

    #[test]
    fn template_shows_members_and_volumes() {
        let layout = layout(|_| {}, &Overrides::default()).unwrap();
        assert_eq!((layout.token.as_str(), layout.image.as_str()), ("t", "quay.io/coreos/etcd:v3.6.16"));
        assert_eq!(layout.members.len(), 2);
        let expected = Member {
            pod: String::from("etcd-1"),
            name: String::from("etcd-1"),
            peer_urls: String::from("https://etcd-1.etcd.prod.svc:2380"),
            data_dir: String::from("/var/lib/etcd/data"),
            claim: String::from("data-etcd-1"),
            volume: String::from("data"),
            mount_path: String::from("/var/lib/etcd"),
            sub_path: String::new(),
        };
        assert_eq!(layout.members[1], expected);
        let claim = Layout::new_claim(&set(|_| {}), &expected).unwrap();
        assert_eq!(claim.metadata.name.as_deref(), Some("data-etcd-1"));
        assert_eq!(claim.metadata.labels.unwrap()["app"], "etcd");
        assert_eq!(claim.spec.unwrap().storage_class_name.as_deref(), Some("fast"));
    }

    #[test]
    fn members_may_have_other_names_and_ordinals_another_start() {
        let cluster = Some(String::from(
            "a=http://etcd-5.etcd:2380,b=http://etcd-6.etcd:2380,b=http://etcd-6.other:2380",
        ));
        let overrides = Overrides { initial_cluster: cluster, ..Overrides::default() };
        let layout = layout(|set| set["spec"]["ordinals"] = json!({"start": 5}), &overrides).unwrap();
        let members: Vec<_> =
            layout.members.iter().map(|member| (member.pod.as_str(), member.name.as_str())).collect();
        assert_eq!(members, [("etcd-5", "a"), ("etcd-6", "b")]);
        assert_eq!(layout.members[1].peer_urls, "http://etcd-6.etcd:2380,http://etcd-6.other:2380");
    }

    #[test]
    fn stopped_sets_have_the_members_of_the_initial_cluster() {
        let layout =
            Layout::read(&set(|set| set["spec"]["replicas"] = json!(0)), None, &Overrides::default())
                .unwrap();
        assert_eq!(layout.members.len(), 2);
    }

    #[test]
    fn user_of_the_image_is_required_where_root_is_forbidden() {
        let without = |set: &mut Value| {
            set["spec"]["template"]["spec"]["securityContext"] = json!({"runAsNonRoot": true});
        };
        assert!(failure(without).ends_with("--run-as-user UID"));
        let layout = layout(without, &Overrides { user: Some(7), ..Overrides::default() }).unwrap();
        assert_eq!(layout.spec.security_context.unwrap().run_as_user, Some(7));
    }

    #[test]
    fn what_the_template_hides_names_the_flag() {
        let command = |set: &mut Value, words: &[&str]| {
            set["spec"]["template"]["spec"]["containers"][0]["command"] = json!(words);
        };
        let cluster = "--initial-cluster=etcd-0=http://etcd-0:2380,etcd-1=http://etcd-1:2380";
        let cases: [(&[&str], &str); 6] = [
            (
                &["etcd", "--name=$(POD)", "--data-dir=/var/lib/etcd/data", "--initial-cluster=$(MISSING)"],
                "pass --initial-cluster=",
            ),
            (
                &["etcd", "--data-dir=/var/lib/etcd/data", "--initial-cluster=etcd-0=http://etcd-0:2380"],
                "names 1 members",
            ),
            (
                &["etcd", "--data-dir=/var/lib/etcd/data", "--initial-cluster=a=http://b:1,c=http://d:1"],
                "has no URL with the host etcd-0",
            ),
            (&["etcd", "--name=$(POD)", cluster], "pass --data-dir"),
            (&["etcd", "--data-dir=/var/lib/etcd/data", "--wal-dir=/wal", cluster], "write-ahead log"),
            (&["etcd", "--data-dir=/tmp/data", cluster], "is in no claim"),
        ];
        for (words, expected) in cases {
            let error = failure(|set| command(set, words));
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        let error = failure(|set| {
            set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("docker.io/bitnami/etcd:3.6");
        });
        assert!(error.contains("startFromSnapshot"), "{error}");
        let error = failure(|set| {
            set["spec"]["volumeClaimTemplates"] = json!([]);
            set["spec"]["template"]["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
        });
        assert!(error.contains("is in no claim"), "{error}");
    }
}

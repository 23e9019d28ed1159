//! The pod that restores one volume, and what it reports.

use anyhow::Context;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use serde_json::{Value, json};

use super::{
    super::backup::checksum::Checksum,
    layout::{Layout, Member},
    record::{RESTORE, Record},
};

/// The label of all pods that restore a volume.
pub(crate) const LABEL: &str = "app.kubernetes.io/name=etcd-restore";

/// The container that receives the backup on its standard input.
pub(crate) const RECEIVE: &str = "receive";

/// The container that restores the backup beside the old data.
const RESTORE_STEP: &str = "restore";

/// The container that exchanges the data.
const PLACE: &str = "place";

/// The raise of the revision, so that no client observes one that decreases.
pub(crate) const BUMP: u64 = 1_000_000_000;

/// The directory below the data directory in which the backup is restored.
const WORK: &str = "etcd-guard-restore";

/// Receives the backup, and verifies that it is whole. The arguments are the data directory, the size and the SHA-256.
const RECEIVE_SCRIPT: &str = r#"set -eu
rm -rf "$1/etcd-guard-restore"
mkdir -p "$1/etcd-guard-restore"
cd "$1/etcd-guard-restore"
head -c "$2" >backup.db
echo "$3  backup.db" | sha256sum -c -"#;

/// Exchanges the data. An attempt that was interrupted may already have moved the old data away. The arguments are the data directory
/// and the new name of the old data.
const PLACE_SCRIPT: &str = r#"set -eu
cd "$1"
test -d etcd-guard-restore/data/member
if [ -e "$2" ]; then rm -rf member; elif [ -e member ]; then mv member "$2"; fi
mv etcd-guard-restore/data/member member
rm -rf etcd-guard-restore
sync"#;

/// How the pod creates the volume's data.
pub(crate) struct Means<'a> {
    /// An image with `sh`, `head`, `mv`, `rm` and `sha256sum`.
    pub(crate) shell_image: &'a str,
    pub(crate) backup_bytes: u64,
    /// Whether the backup is a copied database, which has no hash at its end.
    pub(crate) skips_hash: bool,
}

/// What a pod does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It awaits the backup.
    Receives,
    Done,
    /// It ended early, for this cause.
    Failed(String),
    /// It waits for this cause.
    Waits(String),
}

/// Returns the name of the directory to which the old data of a volume moves.
pub(crate) fn former(record: &Record) -> String {
    format!("member.before-{}", record.id)
}

/// Returns the name of the pod that restores the volume of a member.
pub(crate) fn name_of(member: &Member) -> String {
    format!("{}-restore", member.pod)
}

/// Returns the pod that restores the volume of a member. Its annotation identifies its work: what it does, in which claim, and since
/// when the members are stopped. It has the user, the resources and the nodes of the member's pod.
pub(crate) fn pod(
    layout: &Layout,
    member: &Member,
    record: &Record,
    means: &Means<'_>,
    claim_uid: &str,
) -> anyhow::Result<Pod> {
    let Layout { namespace, spec, container, image, token, initial_cluster, .. } = layout;
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let etcd: &Container =
        containers.find(|other| other.name == *container).context("the template has no etcd")?;
    let Member { name, peer_urls, data_dir, claim, volume, mount_path, sub_path, .. } = member;
    let sub_path = (!sub_path.is_empty()).then_some(sub_path);
    let mount = json!({"name": volume, "mountPath": mount_path, "subPath": sub_path});
    let step = |step: &str, image: &str, command: Vec<String>, has_input: bool| {
        json!({
            "stdin": has_input,
            "stdinOnce": has_input,
            "name": step,
            "image": image,
            "command": command,
            "resources": etcd.resources,
            "securityContext": etcd.security_context,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [mount],
        })
    };
    let shell = |script: &str, arguments: &[String]| {
        let mut command = vec![String::from("sh"), String::from("-c"), script.to_owned(), String::from("sh")];
        command.extend_from_slice(arguments);
        command
    };
    let mut restore = vec![
        String::from("etcdutl"),
        String::from("snapshot"),
        String::from("restore"),
        format!("{data_dir}/{WORK}/backup.db"),
        format!("--data-dir={data_dir}/{WORK}/data"),
        format!("--name={name}"),
        format!("--initial-cluster={initial_cluster}"),
        format!("--initial-advertise-peer-urls={peer_urls}"),
        format!("--initial-cluster-token={token}"),
        format!("--bump-revision={BUMP}"),
        String::from("--mark-compacted"),
    ];
    if means.skips_hash {
        restore.push(String::from("--skip-hash-check"));
    }
    let received = [data_dir.clone(), means.backup_bytes.to_string(), record.sha256.clone()];
    let receive = step(RECEIVE, means.shell_image, shell(RECEIVE_SCRIPT, &received), true);
    let (key, value) = LABEL.split_once('=').unwrap_or_default();
    let labels = json!({key: value});
    let apart = |weight: u8, topology: &str| {
        let term = json!({"topologyKey": topology, "labelSelector": {"matchLabels": labels}});
        json!({"weight": weight, "podAffinityTerm": term})
    };
    let affinity = json!({
        "nodeAffinity": spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()),
        // A new volume is created where its pod runs, and the members may have to run on different nodes, in different zones.
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            apart(100, "kubernetes.io/hostname"), apart(50, "topology.kubernetes.io/zone")]},
    });
    let mut pod: Pod = serde_json::from_value(without_nulls(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name_of(member),
            "namespace": namespace,
            "labels": labels,
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "serviceAccountName": spec.service_account_name,
            "imagePullSecrets": spec.image_pull_secrets,
            "priorityClassName": spec.priority_class_name,
            "runtimeClassName": spec.runtime_class_name,
            "schedulerName": spec.scheduler_name,
            "nodeSelector": spec.node_selector,
            "tolerations": spec.tolerations,
            "securityContext": spec.security_context,
            "affinity": affinity,
            "initContainers": [receive, step(RESTORE_STEP, image, restore, false)],
            "containers": [step(PLACE, means.shell_image, shell(PLACE_SCRIPT, &[data_dir.clone(), former(record)]), false)],
            "volumes": [{"name": volume, "persistentVolumeClaim": {"claimName": claim}}],
        },
    })))?;
    let mut work = Checksum::new();
    work.add(serde_json::to_string(&pod.spec)?.as_bytes());
    work.add(format!("{claim_uid} {}", record.generation.unwrap_or_default()).as_bytes());
    pod.metadata.annotations = Some([(RESTORE.to_owned(), work.sha256())].into());
    Ok(pod)
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(values) => values.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// Whether a pod has the work of another one.
pub(crate) fn has_same_work(pod: &Pod, other: &Pod) -> bool {
    let work = |pod: &Pod| pod.metadata.annotations.as_ref()?.get(RESTORE).cloned();
    work(pod).is_some_and(|of_pod| Some(of_pod) == work(other))
}

/// Returns what a pod does. A cluster may add containers to it, which do not matter.
pub(crate) fn progress(pod: &Pod) -> Progress {
    let Some(status) = &pod.status else { return Progress::Waits(String::from("it has no status")) };
    let containers =
        || status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let has_ended = |container: &ContainerStatus| {
        let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.exit_code == 0)
    };
    if containers().any(|container| container.name == PLACE && has_ended(container)) {
        return Progress::Done;
    }
    let cause = containers().find_map(failure);
    if cause.is_some() || status.phase.as_deref() == Some("Failed") {
        let cause = cause.or_else(|| status.message.clone()).or_else(|| status.reason.clone());
        return Progress::Failed(cause.unwrap_or_else(|| String::from("its cause is not known")));
    }
    let state = |container: &ContainerStatus| container.state.clone().unwrap_or_default();
    if containers().any(|container| container.name == RECEIVE && state(container).running.is_some()) {
        return Progress::Receives;
    }
    let running = containers().find(|container| state(container).running.is_some());
    let waiting = containers().find_map(|container| {
        let waiting = state(container).waiting?;
        let reason = waiting.reason.filter(|reason| reason != "PodInitializing")?;
        Some(format!("{reason}{}", waiting.message.map(|message| format!(": {message}")).unwrap_or_default()))
    });
    let unscheduled = status.conditions.iter().flatten().find_map(|condition| {
        (condition.type_ == "PodScheduled" && condition.status == "False")
            .then(|| condition.message.clone())?
    });
    let running = running.map(|container| format!("{} runs", container.name));
    Progress::Waits(waiting.or(unscheduled).or(running).unwrap_or_else(|| {
        let (name, namespace) = (pod.metadata.name.as_deref(), pod.metadata.namespace.as_deref());
        let (name, namespace) = (name.unwrap_or_default(), namespace.unwrap_or_default());
        format!("it starts; if that takes long: kubectl -n {namespace} describe pod {name}")
    }))
}

/// Returns the error of a container that failed.
fn failure(container: &ContainerStatus) -> Option<String> {
    if ![RECEIVE, RESTORE_STEP, PLACE].contains(&container.name.as_str()) {
        return None;
    }
    let ended = container.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    let text = ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or_default().trim();
    // The log ends with the cause.
    let last = text.lines().last().unwrap_or_default();
    Some(format!("{} ended with status {}: {last}", container.name, ended.exit_code))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{
        super::{
            layout::{Overrides, tests::set},
            record::Phase,
        },
        *,
    };

    fn record() -> Record {
        Record {
            backup: String::new(),
            generation: Some(3),
            id: String::from("20261201T030000Z"),
            sha256: String::from("ab"),
            replicas: 2,
            deletes_claims: false,
            phase: Phase::Filling,
            run: String::new(),
        }
    }

    #[test]
    fn pod_has_the_user_the_volume_and_the_member() {
        let layout = Layout::read(&set(|_| {}), None, &Overrides::default()).unwrap();
        let means = Means { shell_image: "busybox", backup_bytes: 7, skips_hash: false };
        let made = pod(&layout, &layout.members[1], &record(), &means, "uid").unwrap();
        let pod = serde_json::to_value(&made).unwrap();
        assert_eq!(pod["metadata"]["name"], "etcd-1-restore");
        assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 65532);
        assert_eq!(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "data-etcd-1");
        let restore = &pod["spec"]["initContainers"][1];
        assert_eq!(restore["image"], "quay.io/coreos/etcd:v3.6.16");
        let words: Vec<&str> =
            restore["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for word in [
            "--name=etcd-1",
            "--initial-cluster-token=t",
            "--initial-advertise-peer-urls=https://etcd-1.etcd.prod.svc:2380",
        ] {
            assert!(words.contains(&word), "{words:?}");
        }
        // Names in the value that etcdutl receives must be those of the members, not variables.
        assert!(words.iter().all(|word| !word.contains("$(")), "{words:?}");
        assert!(!words.contains(&"--skip-hash-check"));
    }

    /// A volume counts as restored only by a pod with the same work: otherwise members with different data would start together.
    #[test]
    fn other_claims_backups_and_stops_are_other_work() {
        let layout = Layout::read(&set(|_| {}), None, &Overrides::default()).unwrap();
        let means = Means { shell_image: "busybox", backup_bytes: 7, skips_hash: false };
        let made = |layout: &Layout, record: &Record, uid: &str| {
            pod(layout, &layout.members[0], record, &means, uid).unwrap()
        };
        let first = made(&layout, &record(), "a");
        assert!(has_same_work(&first, &made(&layout, &record(), "a")));
        let token = Overrides { token: Some(String::from("other")), ..Overrides::default() };
        let others = [
            made(&layout, &record(), "b"),
            made(&layout, &Record { sha256: String::from("cd"), ..record() }, "a"),
            made(&layout, &Record { generation: Some(4), ..record() }, "a"),
            made(&Layout::read(&set(|_| {}), None, &token).unwrap(), &record(), "a"),
        ];
        assert!(others.iter().all(|other| !has_same_work(&first, other)));
    }

    /// The commands that the pod runs in the volume, with each interruption between them.
    #[test]
    fn old_data_moves_aside_once_and_is_never_lost() {
        let volume = tempfile::tempdir().unwrap();
        let path = |name: &str| volume.path().join(name);
        let shell = |script: &str, arguments: &[&str], input: &str| {
            let input_file = path("input");
            std::fs::write(&input_file, input).unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh", volume.path().to_str().unwrap()]).args(arguments);
            let output = command.stdin(std::fs::File::open(&input_file).unwrap()).output().unwrap();
            std::fs::remove_file(input_file).unwrap();
            output.status.success()
        };
        let sum = "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"; // of "data"
        let receive = |input: &str| shell(RECEIVE_SCRIPT, &["4", sum], input);
        let place = || shell(PLACE_SCRIPT, &["member.before-1"], "");
        let restore = || {
            std::fs::create_dir_all(path("etcd-guard-restore/data/member")).unwrap();
            std::fs::rename(path("etcd-guard-restore/backup.db"), path("etcd-guard-restore/data/member/db"))
                .unwrap();
        };
        let content = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        std::fs::create_dir(path("member")).unwrap();
        std::fs::write(path("member/db"), "old").unwrap();
        // A cut or changed transfer fails, and changes nothing.
        assert!(!receive("dat") && !receive("Data"));
        assert_eq!(content("member/db"), "old");
        assert!(receive("data"));
        restore();
        assert!(place());
        assert_eq!((content("member/db").as_str(), content("member.before-1/db").as_str()), ("data", "old"));
        assert!(!path("etcd-guard-restore").exists());
        // Again, after the exchange and between its two steps.
        for is_between in [false, true] {
            if is_between {
                std::fs::remove_dir_all(path("member")).unwrap();
            }
            assert!(receive("data"));
            restore();
            assert!(place());
            assert_eq!(
                (content("member/db").as_str(), content("member.before-1/db").as_str()),
                ("data", "old")
            );
        }
        // Without restored data, nothing moves.
        assert!(!shell(PLACE_SCRIPT, &["member.before-2"], ""));
        assert_eq!(content("member/db"), "data");
    }

    #[test]
    fn progress_names_the_cause() {
        let pod = |status: Value| -> Pod { serde_json::from_value(json!({"status": status})).unwrap() };
        let receives = json!({"phase": "Pending", "initContainerStatuses": [
            {"name": "receive", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}}}]});
        assert_eq!(progress(&pod(receives)), Progress::Receives);
        let done = json!({"phase": "Running", "containerStatuses": [
            {"name": "place", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}},
            {"name": "sidecar", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]});
        assert_eq!(progress(&pod(done)), Progress::Done);
        let failed = json!({"phase": "Failed", "initContainerStatuses": [
            {"name": "restore", "image": "", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"terminated": {"exitCode": 1, "message": "first\nno space left\n"}}}]});
        assert_eq!(
            progress(&pod(failed)),
            Progress::Failed(String::from("restore ended with status 1: no space left"))
        );
        let pulls = json!({"phase": "Pending", "initContainerStatuses": [
            {"name": "receive", "image": "", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]});
        assert_eq!(progress(&pod(pulls)), Progress::Waits(String::from("ErrImagePull: not found")));
        let condition =
            json!({"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"});
        let unscheduled = json!({"phase": "Pending", "conditions": [condition]});
        assert_eq!(progress(&pod(unscheduled)), Progress::Waits(String::from("0/3 nodes are available")));
    }
}

//! Tests of the order, the refusals and the states in which a restart is resumed.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::maintenance::{
    health::tests::{cluster, pod},
    restart::record::RESTART,
};
use etcd_guard_api::BackupStatus;

fn set_with(change: impl Fn(&mut Value)) -> StatefulSet {
    let mut set = json!({
        "metadata": {"name": "etcd", "resourceVersion": "7"},
        "spec": {
            "selector": {}, "serviceName": "etcd",
            "template": {"spec": {"containers": [{"name": "etcd", "image": "etcd:v3.5.35"}]}},
            "updateStrategy": {"type": "RollingUpdate"},
        },
        "status": {"replicas": 3, "currentRevision": "a", "updateRevision": "a"},
    });
    change(&mut set);
    serde_json::from_value(set).unwrap()
}

fn set() -> StatefulSet {
    set_with(|_| {})
}

fn pods() -> Vec<PodState> {
    ["etcd-0", "etcd-1", "etcd-2"].map(pod).into()
}

fn restarted(name: &str) -> PodState {
    PodState { uid: format!("{name}-new"), ..pod(name) }
}

fn selection(image: &str) -> Selection {
    Selection { image: Some(image.to_owned()), is_without_backup: true, ..Selection::default() }
}

fn refusal(set: &StatefulSet, selection: &Selection) -> String {
    begin(set, &pods(), Some(&cluster()), selection).unwrap_err().to_string()
}

fn order(pods: &[PodState], cluster: &ClusterStatus) -> Vec<(String, StepState)> {
    let record = Record::new(&set(), &self::pods(), None).unwrap();
    let steps = steps(&record, pods, "a", Some(cluster));
    steps.into_iter().map(|step| (step.pod, step.state)).collect()
}

fn names(steps: &[(String, StepState)]) -> Vec<&str> {
    steps.iter().map(|(pod, _)| pod.as_str()).collect()
}

#[test]
fn followers_precede_the_leader() {
    let mut cluster = cluster();
    assert_eq!(names(&order(&pods(), &cluster)), ["etcd-2", "etcd-1", "etcd-0"]);
    cluster.members[0].role = Role::Follower;
    cluster.members[2].role = Role::Leader;
    assert_eq!(names(&order(&pods(), &cluster)), ["etcd-1", "etcd-0", "etcd-2"]);
}

#[test]
fn completed_members_are_first_also_if_one_leads() {
    let mut cluster = cluster();
    cluster.members[0].role = Role::Follower;
    cluster.members[2].role = Role::Leader;
    let pods = [pod("etcd-0"), pod("etcd-1"), restarted("etcd-2")];
    let order = order(&pods, &cluster);
    assert_eq!(names(&order), ["etcd-2", "etcd-1", "etcd-0"]);
    let states: Vec<StepState> = order.iter().map(|(_, state)| *state).collect();
    assert_eq!(states, [StepState::Restarted, StepState::Pending, StepState::Pending]);
}

/// An evicted pod that does not exist yet is not complete.
#[test]
fn absent_member_is_pending() {
    let order = order(&[pod("etcd-0"), pod("etcd-1")], &cluster());
    assert!(order.iter().all(|(_, state)| *state == StepState::Pending), "{order:?}");
}

#[test]
fn order_without_the_guard_is_that_of_the_controller() {
    let record = Record::new(&set(), &pods(), None).unwrap();
    let steps = steps(&record, &pods(), "a", None);
    let names: Vec<&str> = steps.iter().map(|step| step.pod.as_str()).collect();
    assert_eq!(names, ["etcd-2", "etcd-1", "etcd-0"]);
}

/// Returns a StatefulSet of an operator.
fn owned_set(change: impl Fn(&mut Value)) -> StatefulSet {
    let owner =
        json!({"apiVersion": "operator.etcd.io/v1alpha1", "kind": "EtcdCluster", "name": "main", "uid": "1"});
    set_with(|set| {
        set["metadata"]["namespace"] = json!("prod");
        set["metadata"]["ownerReferences"] = json!([owner]);
        change(set);
    })
}

#[test]
fn owned_sets_are_not_changed() {
    let owned = owned_set(|_| {});
    let begun = begin(&owned, &pods(), Some(&cluster()), &Selection::default()).unwrap();
    assert_eq!((begun.record.only_evicts(), begun.warnings.len()), (true, 0));
    assert_eq!(begun.manager.unwrap().to_string(), "EtcdCluster main");
    assert_eq!(
        refusal(&owned, &selection("etcd:v3.6.16")),
        "EtcdCluster main manages StatefulSet etcd and would reverse a new image; change spec.version in EtcdCluster main: \
         kubectl -n prod edit etcdcluster.operator.etcd.io/main"
    );
    let paused = Selection { is_paused: true, ..Selection::default() };
    let begun = begin(&owned, &pods(), Some(&cluster()), &paused).unwrap();
    assert!(!begun.record.only_evicts() && begun.manager.is_none());
    assert!(begun.warnings[0].starts_with("EtcdCluster main manages"), "{:?}", begun.warnings);
    let helm = set_with(|set| set["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "Helm"}));
    let begun = begin(&helm, &pods(), Some(&cluster()), &Selection::default()).unwrap();
    assert!(!begun.record.only_evicts() && begun.warnings[0].starts_with("Helm manages StatefulSet etcd"));
}

#[test]
fn rollouts_of_owned_sets_are_left_to_their_managers() {
    let rolling = owned_set(|set| set["status"]["updateRevision"] = json!("b"));
    let text = refusal(&rolling, &Selection::default());
    assert!(text.ends_with("kubectl -n prod rollout status statefulset/etcd"), "{text}");

    let on_delete = owned_set(|set| {
        set["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
        set["status"]["updateRevision"] = json!("b");
    });
    let begin = |pods: &[PodState]| begin(&on_delete, pods, Some(&cluster()), &Selection::default());
    assert!(begin(&pods()).unwrap().record.only_evicts(), "nobody has begun");
    let mut mixed = pods();
    mixed[2] = PodState { revision: String::from("b"), ..restarted("etcd-2") };
    let text = begin(&mixed).unwrap_err().to_string();
    assert!(
        text.starts_with("1 of 3 pods of StatefulSet etcd have its new template: EtcdCluster main "),
        "{text}"
    );
    assert!(text.ends_with("kubectl etcd-guard restart -n prod statefulset/etcd --paused"), "{text}");

    // The same state in the course of an own restart.
    mixed[0].record = Some(serde_json::to_string(&Record::of_evictions(&pods())).unwrap());
    let resumed = begin(&mixed).unwrap();
    assert!(resumed.is_resumed && resumed.record.only_evicts());
    let states = steps(&resumed.record, &mixed, "b", Some(&cluster()));
    assert_eq!((states[0].pod.as_str(), states[0].state), ("etcd-2", StepState::Restarted));
}

#[test]
fn partition_with_a_staged_update_is_refused() {
    let partitioned =
        |set: &mut Value| set["spec"]["updateStrategy"]["rollingUpdate"] = json!({"partition": 2});
    assert!(begin(&set_with(partitioned), &pods(), Some(&cluster()), &Selection::default()).is_ok());
    let staged = set_with(|set| {
        partitioned(set);
        set["status"]["updateRevision"] = json!("b");
    });
    assert!(refusal(&staged, &Selection::default()).contains("partition 2"));
    assert!(refusal(&set_with(partitioned), &selection("etcd:v3.6.16")).contains("partition 2"));
}

#[test]
fn upgrade_requires_known_releases() {
    let beginning = begin(&set(), &pods(), Some(&cluster()), &selection("etcd:v3.6.16")).unwrap();
    let image = beginning.record.image.unwrap();
    assert_eq!((image.container.as_str(), image.from.as_str()), ("etcd", "etcd:v3.5.35"));
    assert!(refusal(&set(), &selection("etcd:v3.7.0")).contains("one minor version at a time"));
    assert!(refusal(&set(), &selection("etcd:latest")).contains("contains no release of etcd"));
    let error = begin(&set(), &pods(), None, &selection("etcd:v3.6.16")).unwrap_err().to_string();
    assert!(error.contains("unknown without the guard"), "{error}");
}

#[test]
fn upgrade_requires_a_backup_of_the_last_hour() {
    let upgrade = Selection { is_without_backup: false, ..selection("etcd:v3.6.16") };
    let begun = |minutes| {
        let at = (Timestamp::now() - SignedDuration::from_mins(minutes)).to_string();
        let last_backup = Some(BackupStatus { at, revision: 7 });
        begin(&set(), &pods(), Some(&ClusterStatus { last_backup, ..cluster() }), &upgrade).map(drop)
    };
    assert!(begun(59).is_ok());
    assert!(begun(-5).is_ok(), "another clock may be ahead");
    let text = "an upgrade requires a backup of the last hour, and the last one of prod/etcd";
    assert!(begun(200).unwrap_err().to_string().starts_with(&format!("{text} was 3 h ago. ")));
    assert!(refusal(&set(), &upgrade).starts_with(&format!("{text} is unknown. ")));
}

#[test]
fn waits_for_the_end_of_a_replacement() {
    let set = set_with(|set| {
        set["metadata"]["annotations"] = json!({REPLACE: "add etcd-1 a1@2026-11-24T10:00:00Z"});
    });
    let text = "a member of etcd is being replaced (annotation etcd-guard.io/replace): finish that first";
    assert_eq!(refusal(&set, &Selection::default()), text);
}

#[test]
fn upgrade_requires_a_healthy_cluster_and_is_resumed_without() {
    let mut unhealthy = cluster();
    unhealthy.healthy = Some(2);
    let upgrade = selection("etcd:v3.6.16");
    let error = begin(&set(), &pods(), Some(&unhealthy), &upgrade).unwrap_err().to_string();
    assert!(error.starts_with("an upgrade requires a healthy cluster: 2 of 3 voters"), "{error}");
    assert!(begin(&set(), &pods(), Some(&unhealthy), &Selection::default()).is_ok(), "a restart waits");
    let (interrupted, _) = interrupted(Some("etcd:v3.6.16"));
    assert!(begin(&interrupted, &pods(), Some(&unhealthy), &upgrade).is_ok());
}

#[test]
fn container_is_selected_by_name_or_is_the_only_one() {
    let two = set_with(|set| {
        set["spec"]["template"]["spec"]["containers"] =
            json!([{"name": "backup"}, {"name": "server", "image": "etcd:v3.5.35"}]);
    });
    assert!(
        refusal(&two, &selection("etcd:v3.6.16")).ends_with("select one with --container: backup, server")
    );
    let selected = Selection { container: Some(String::from("server")), ..selection("etcd:v3.6.16") };
    let beginning = begin(&two, &pods(), Some(&cluster()), &selected).unwrap();
    assert_eq!(beginning.record.image.unwrap().container, "server");
}

fn interrupted(image: Option<&str>) -> (StatefulSet, Record) {
    let selection = image.map(selection).unwrap_or_default();
    let record = begin(&set(), &pods(), Some(&cluster()), &selection).unwrap().record;
    let text = serde_json::to_string(&record).unwrap();
    let set = set_with(|set| {
        set["metadata"]["annotations"] = json!({RESTART: text});
        set["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    });
    (set, record)
}

/// The uids and the strategy of the record count, not those of the moment.
#[test]
fn resumes_with_the_record_of_the_start() {
    let (set, record) = interrupted(None);
    let now = [pod("etcd-0"), pod("etcd-1"), restarted("etcd-2")];
    let beginning = begin(&set, &now, Some(&cluster()), &Selection::default()).unwrap();
    assert_eq!((&beginning.record, beginning.is_resumed), (&record, true));
    assert_eq!(beginning.record.strategy_type(), "RollingUpdate");
}

#[test]
fn resumes_an_upgrade_only_with_the_same_image() {
    let (set, record) = interrupted(Some("etcd:v3.6.16"));
    for selection in [selection("etcd:v3.6.16"), Selection::default()] {
        assert_eq!(begin(&set, &pods(), Some(&cluster()), &selection).unwrap().record, record);
    }
    assert!(refusal(&set, &selection("etcd:v3.6.17")).contains("with etcd:v3.6.16 is in progress"));
    let (set, _) = interrupted(None);
    assert!(refusal(&set, &selection("etcd:v3.6.16")).contains("no change of the image"));
}

#[test]
fn table_shows_order_and_roles() {
    let record = Record::new(&set(), &pods(), None).unwrap();
    let steps = steps(&record, &[restarted("etcd-2")], "a", Some(&cluster()));
    let expected = "\
Restart of prod/etcd
  STEP   POD      ROLE        VERSION    STATE
  1      etcd-2   follower    3.5.35     restarted
  2      etcd-1   follower    3.5.35     pending
  3      etcd-0   leader      3.5.35     pending; leadership is moved first
";
    assert_eq!(table("Restart of prod/etcd", &steps), expected);
}

//! The texts of the guard with a foreign text in each place that other systems write, for the test of all outputs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "values for tests: a failure is a panic"
)]

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::time::Instant;

use crate::{evaluation, metrics::Metrics, survey::cluster_metrics::ClusterMetrics};
use etcd_guard_core::{
    annotations::{ALLOW_REASON, ALLOW_UNTIL, LEADER, MIN_VOTERS, MODE},
    assess::{Assessment, MissingVoter, cluster_summary::ClusterSummary, scale_down::evaluate_scale_down},
    cluster_key::ClusterKey,
    cluster_state::ClusterState,
    config::policies::{Defaults, Floor, Policies},
    etcd::{error::MemberError, probe_result::ProbeResult},
    explain::{explain, inspection_advice},
    inspect::{InspectedObject, Inspection, inspect},
    membership::contradiction::Contradiction,
    objects::{admission::AdmissionRequest, pod::Pod},
    policy::{Policy, PolicySetting, PolicySource, resolve},
    reason::Reason,
    request::{Operation, Request},
    snapshot::{EtcdctlFlags, Snapshot, fixture::cluster},
    tally::Tally,
    verdict::Verdict,
    wall_clock::WallClock,
};

/// A snapshot in which pods, containers and flags have this text as names and values.
fn snapshot(text: &str) -> Snapshot {
    // The letter separates the ordinal of a pod from a digit.
    let rename = |name: &str| format!("{name}x{text}");
    let mut snapshot = cluster(3);
    snapshot.cluster = rename("prod/etcd");
    snapshot.namespace = rename("prod");
    for pod in &mut snapshot.pods {
        pod.name = rename(&pod.name);
        pod.container = rename("etcd");
        pod.etcdctl = EtcdctlFlags {
            connection: vec![("endpoints", rename("https://etcd")), ("cacert", text.to_owned())],
            user: Some(text.to_owned()),
            has_user: false,
        };
    }
    snapshot.pods[1].reply = ProbeResult::NoStatus { cause: MemberError::Other(text.to_owned()) };
    snapshot
}

/// Returns a verdict for each reason, and one for each way to change a verdict.
pub fn verdicts(text: &str) -> Vec<Verdict> {
    let snapshot = snapshot(text);
    let tally = Tally { voters: 3, healthy: 2, quorum: 2, remaining: 1, leader: None, term: 7 };
    let explained = Reason::ALL.iter().map(|reason| {
        let assessment = Assessment {
            reason: *reason,
            member: snapshot.pods[0].reply.status().map(|status| status.member_id),
            tally: Some(tally.clone()),
            missing: vec![
                MissingVoter {
                    name: snapshot.pods[1].name.clone(),
                    owner_kind: text.to_owned(),
                    cause: text.to_owned(),
                },
                MissingVoter {
                    name: text.to_owned(),
                    owner_kind: text.to_owned(),
                    cause: String::from("it has never started"),
                },
            ],
            leaving: vec![text.to_owned(), String::from("etcd-2")],
            contradiction: Some(Contradiction::LearnerLeads(text.to_owned())),
            doubts: vec![text.to_owned()],
            silent_leader: (*reason != Reason::LeaderProtected).then(|| (text.to_owned(), text.to_owned())),
            too_few_responding: Some(1),
            clusters: Vec::new(),
            min_voters: 0,
            awaits_confirmation: false,
            no_space: true,
        };
        explain(&snapshot, &snapshot.pods[0], &assessment, Instant::now(), &WallClock::default())
    });
    let mut verdicts: Vec<Verdict> = explained.collect();
    verdicts.push(evaluate_scale_down(&snapshot, "etcd", 0..0));
    let new = || Verdict::new(Reason::QuorumAtRisk, text);
    verdicts.push(new());
    verdicts.push(new().with_remedy(text));
    let changes: [fn(&mut Verdict, &str); 5] = [
        |verdict, text| verdict.add_advice(text),
        |verdict, text| verdict.explain_cause(text, text),
        |verdict, text| verdict.overrule(text),
        |verdict, text| verdict.warn(text),
        |verdict, _| verdict.audit(),
    ];
    for change in changes {
        let mut verdict = new().with_remedy(text);
        change(&mut verdict, text);
        verdicts.push(verdict);
    }
    verdicts
}

/// Returns the commands in which a foreign text is an argument.
pub fn commands(text: &str) -> Vec<String> {
    let snapshot = snapshot(text);
    let command = |line: String| line.find("kubectl ").map(|start| line[start..].to_owned());
    let mut commands: Vec<String> = verdicts(text)
        .into_iter()
        // The remedies of other verdicts are the foreign text itself.
        .filter(|verdict| verdict.cluster.is_some())
        .flat_map(|verdict| verdict.remedy.into_iter().chain(verdict.advice))
        .filter_map(command)
        // The shell inserts the time.
        .map(|command| command.replace("$(date -u +%FT%TZ)", "2026-01-31T12:00:00Z"))
        .collect();
    let advice = inspection_advice(text, text);
    commands.push(advice.split_once(": ").unwrap().1.to_owned());
    commands.push(snapshot.pods[0].etcdctl_command(&snapshot.namespace, "member list"));
    commands.push(format!("kubectl annotate {}", evaluation::break_glass_object("prod", &owned_pod(text))));
    commands
}

/// Returns a pod whose ownerReference names an owner with this text.
fn owned_pod(text: &str) -> Pod {
    let pod = json!({"metadata": {
        "name": "etcd-0",
        "ownerReferences": [{"kind": "StatefulSet", "name": text, "uid": "set", "controller": true}],
    }});
    serde_json::from_value(pod).unwrap()
}

/// Returns the display name of a cluster that has an owner of this name.
pub fn cluster_name(text: &str) -> String {
    ClusterKey::from_pod("prod", &owned_pod(text)).name()
}

/// Returns the values and warnings of a policy from annotations with this text.
pub fn policy_texts(text: &str) -> Vec<String> {
    let pairs = [
        (LEADER, text.to_owned()),
        (MODE, text.to_owned()),
        (MIN_VOTERS, text.to_owned()),
        (ALLOW_UNTIL, String::from("2026-01-31T13:00:00Z")),
        (ALLOW_REASON, format!("x{text}x")),
    ];
    let annotations: BTreeMap<String, String> = pairs.map(|(key, value)| (key.to_owned(), value)).into();
    let invalid_end = BTreeMap::from([(ALLOW_UNTIL.to_owned(), text.to_owned())]);
    let now = "2026-01-31T12:00:00Z".parse().unwrap();
    let mut texts = Vec::new();
    for annotations in [annotations, invalid_end] {
        let source = PolicySource { object: String::from("pod etcd-0"), annotations: &annotations };
        let resolved = resolve(&Defaults::default(), &Floor::default(), &[source], now);
        let Policy { leader: _, single_member: _, ephemeral_data: _, min_voters: _, mode: _, break_glass } =
            resolved.policy;
        texts.extend(break_glass);
        texts.extend(resolved.settings.into_iter().map(|setting| setting.value));
        texts.extend(resolved.warnings);
    }
    texts
}

/// Returns the request of a user with this name, as a review contains it.
pub fn request_of_user(text: &str) -> Request {
    let review = json!({
        "uid": "1", "operation": "CREATE", "name": "etcd-0", "namespace": "prod", "subResource": "eviction",
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "userInfo": {"username": text},
    })
    .to_string();
    let review: AdmissionRequest<'_> = serde_json::from_str(&review).unwrap();
    Request::from_admission(&review).unwrap()
}

/// Returns a request with this text in each field, as if no step had escaped it.
pub fn request(text: &str) -> Request {
    Request {
        operation: Operation::Delete,
        namespace: text.to_owned(),
        name: text.to_owned(),
        pod: None,
        uid: Some(text.to_owned()),
        dry_run: false,
        grace_period_seconds: None,
        user: text.to_owned(),
        selector: BTreeMap::new(),
        owner: None,
    }
}

/// Records members with this text as version and error, and a cluster with this text as name.
pub fn record_metrics(registry: &mut Registry, text: &str) {
    let metrics = Metrics::register(registry);
    let failure = ProbeResult::NoStatus { cause: MemberError::Other(text.to_owned()) };
    metrics.record_probe_round(Duration::ZERO, &[failure]);
    metrics.record_releases(&[Some(text)]);
    let snapshot = snapshot(text);
    let summary = ClusterSummary::new(&snapshot);
    let mut status = crate::survey::status::cluster_status(&snapshot, &summary, &[], Vec::new(), Vec::new());
    text.clone_into(&mut status.name);
    let clusters = ClusterMetrics::default();
    clusters.register(registry);
    clusters.record([(&status, ClusterState::Spare)], Some(1), true);
}

/// Returns the report of a pod with this text in each field, also in those that other systems cannot choose.
pub fn inspection(text: &str) -> Inspection {
    let texts = || vec![text.to_owned()];
    let container = json!({
        "name": text, "image": "etcd", "command": ["etcd", "--name", text, "--listen-client-urls=https://0.0.0.0:2379"],
    });
    // Spaces separate the names of several objects.
    let annotations = json!({"etcd-guard.io/client-tls-secret": "tls", "etcd-guard.io/auth-secret": text});
    let pod = json!({
        "metadata": {"name": text, "namespace": text, "annotations": annotations},
        "spec": {"containers": [container]}, "status": {"podIP": "10.0.0.1"},
    });
    let object = InspectedObject {
        object: text.to_owned(),
        pod: serde_json::from_value(pod).unwrap(),
        owners: Vec::new(),
    };
    let mut inspection = inspect(&object, &Policies::default(), Timestamp::UNIX_EPOCH);
    inspection.rule = Some(text.to_owned());
    inspection.vetoes = texts();
    inspection.endpoint = Some(text.to_owned());
    inspection.other_endpoints = texts();
    inspection.server_name = Some(text.to_owned());
    inspection.peer_urls = texts();
    inspection.claims = texts();
    text.clone_into(&mut inspection.configuration);
    text.clone_into(&mut inspection.apply_command);
    for suggestion in &mut inspection.suggestions {
        text.clone_into(&mut suggestion.value);
        text.clone_into(&mut suggestion.condition);
    }
    inspection.warnings = texts();
    for credential in &mut inspection.credentials {
        text.clone_into(&mut credential.name);
        credential.found = texts();
        credential.keys = texts();
    }
    inspection.policy =
        vec![PolicySetting { name: text.to_owned(), value: text.to_owned(), from: text.to_owned() }];
    inspection.role = vec![json!({"metadata": {"name": text, "namespace": text}})];
    inspection
}

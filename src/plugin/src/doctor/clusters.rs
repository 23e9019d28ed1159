//! The guarded clusters, as the running guard surveys them.

use super::{
    report::{Finding, Line, State},
    sections::LABEL,
};
use etcd_guard_api::{ClusterStatus, PRIORITY_WARNING, Survey};
use etcd_guard_core::{
    discovery::fail_closed::OWNER_ONLY,
    etcd::release::{stale_read_fix, wrong_list_fix},
};

/// Returns the lines about the guarded clusters. `status` is the command that shows them, `kubectl` and `selector` find the
/// guard's pods. `runs_in_cluster` is false if the guard has no pod.
pub(super) fn lines(survey: &Survey, status: &str, kubectl: &str, runs_in_cluster: bool) -> Vec<Line> {
    vec![
        clusters(survey, status, kubectl),
        traps(survey, status),
        releases(survey, kubectl),
        recognition(survey, status),
        priority(survey, kubectl, runs_in_cluster),
    ]
}

/// A defect of etcd: the release that corrects the one of a member, and what the defect does.
type Defect = (fn(&str) -> Option<String>, &'static str);

/// The defects of etcd that affect verdicts.
const DEFECTS: [Defect; 2] = [
    (stale_read_fix, "confirm a read at a deposed leader (etcd issue 20418)"),
    (wrong_list_fix, "list a learner as a voter, or a voter as a learner (etcd issues 21694, 19557)"),
];

fn name(cluster: &ClusterStatus) -> String {
    format!("{}/{}", cluster.namespace, cluster.name)
}

/// The problems of clusters that contain this text.
fn problems<'a>(survey: &'a Survey, text: &'a str) -> impl Iterator<Item = String> + 'a {
    survey.clusters.iter().flat_map(move |cluster| {
        let problems = cluster.problems.iter().filter(move |problem| problem.contains(text));
        problems.map(|problem| format!("{}: {problem}", name(cluster)))
    })
}

/// The quorum of each cluster, and namespaces that the guard cannot read.
fn clusters(survey: &Survey, status: &str, kubectl: &str) -> Line {
    let mut findings: Vec<Finding> =
        survey.problems.iter().map(|problem| (State::Warning, problem.clone())).collect();
    if survey.clusters.is_empty() && survey.problems.is_empty() {
        let label = survey.opt_in_label.clone().unwrap_or_default();
        let text = format!(
            "the guard protects no etcd cluster: no namespace with the label {label} contains a member"
        );
        let remedy = format!("{kubectl} label namespace NAME {label} --overwrite");
        return Line::warning("clusters", text, remedy).about(LABEL);
    }
    let without_quorum = survey.clusters.iter().filter(|cluster| cluster.spare.is_none_or(|spare| spare < 0));
    findings
        .extend(without_quorum.map(|cluster| (State::Warning, format!("{} has no quorum", name(cluster)))));
    let message = format!("guarded clusters, all with a quorum: {}", survey.clusters.len());
    Line::from_findings("clusters", "", &message, &findings, status)
}

/// States of clusters that do not end by themselves.
fn traps(survey: &Survey, status: &str) -> Line {
    let of_cluster = |cluster: &ClusterStatus| {
        let name = name(cluster);
        cluster.traps.iter().map(move |trap| (State::Warning, format!("{name}: {trap}"))).collect::<Vec<_>>()
    };
    let findings: Vec<Finding> = survey.clusters.iter().flat_map(of_cluster).collect();
    let message = "no stuck rollout, late learner, full database or old backup";
    Line::from_findings("traps", "", message, &findings, status)
}

/// Releases of etcd with linearizable reads that can be stale, or with member lists that can be wrong.
fn releases(survey: &Survey, kubectl: &str) -> Line {
    let mut findings: Vec<Finding> = Vec::new();
    let mut found: Vec<&str> = Vec::new();
    let mut remedy = String::new();
    for cluster in &survey.clusters {
        for (fix, defect) in DEFECTS {
            let affected = cluster.members.iter().filter_map(|member| {
                let version = member.version.as_deref()?;
                Some((version, fix(version)?))
            });
            if let Some((version, fixed)) = affected.min() {
                let text = format!(
                    "{} runs etcd {version}, which can {defect}: upgrade to {fixed} or later",
                    name(cluster)
                );
                findings.push((State::Warning, text));
                remedy = format!("{kubectl} -n {} get pods -o wide", cluster.namespace);
            }
        }
        found.extend(cluster.members.iter().filter_map(|member| member.version.as_deref()));
    }
    found.sort_unstable();
    found.dedup();
    let message = if found.is_empty() {
        String::from("no etcd member responds")
    } else {
        format!("etcd {}", found.join(", "))
    };
    Line::from_findings("etcd-versions", "", &message, &findings, remedy)
}

/// Namespaces and pods in which a member may not be recognized, and members that the API server does not recognize.
fn recognition(survey: &Survey, status: &str) -> Line {
    let gaps = survey.gaps.iter().map(|gap| gap.text.clone());
    let findings: Vec<Finding> =
        gaps.chain(problems(survey, OWNER_ONLY)).map(|text| (State::Warning, text)).collect();
    Line::from_findings("recognition", "", "no unrecognized pod with a port of etcd", &findings, status)
}

/// Pods of guarded namespaces that the scheduler can try to preempt to start the guard.
fn priority(survey: &Survey, kubectl: &str, runs_in_cluster: bool) -> Line {
    let of_members = problems(survey, PRIORITY_WARNING);
    let findings: Vec<Finding> =
        of_members.chain(survey.warnings.clone()).map(|text| (State::Warning, text)).collect();
    let remedy = format!(
        "compare the priorities: {kubectl} get pods -A -o \
         custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name,PRIORITY:.spec.priority --sort-by=.spec.priority"
    );
    match survey.guard_priority {
        None if runs_in_cluster => {
            Line::warning("priority", "the guard does not report the priority of its own pod", remedy)
        }
        None => Line::ok("priority", "the guard runs in no pod, so the scheduler does not start it"),
        Some(own) => {
            let message = format!(
                "all pods of guarded namespaces that may run etcd have at least the guard's priority ({own})"
            );
            Line::from_findings("priority", "", &message, &findings, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn survey(change: impl Fn(&mut serde_json::Value)) -> Survey {
        let mut survey = json!({
            "clusters": [{
                "namespace": "prod", "name": "etcd", "id": "1", "voters": 3, "healthy": 3, "quorum": 2, "spare": 1, "term": 2,
                "members": [
                    {"pod": "etcd-0", "role": "leader", "serving": true, "version": "3.6.16"},
                    {"pod": "etcd-1", "role": "follower", "serving": true, "version": "3.6.16"},
                ],
                "reservations": [], "policy": [], "problems": [], "traps": [],
            }],
            "problems": [], "warnings": [], "gaps": [], "guardPriority": 2_000_000_000,
        });
        change(&mut survey);
        serde_json::from_value(survey).unwrap()
    }

    fn states(change: impl Fn(&mut serde_json::Value)) -> Vec<(&'static str, State)> {
        let lines = lines(&survey(change), "kubectl etcd-guard status -A", "kubectl", true);
        lines.iter().map(|line| (line.check, line.state)).filter(|(_, state)| *state > State::Ok).collect()
    }

    #[test]
    fn healthy_clusters_are_ok() {
        assert_eq!(states(|_| {}), []);
    }

    #[test]
    fn reports_missing_quorum_and_unread_namespaces() {
        assert_eq!(
            states(|survey| survey["clusters"][0]["spare"] = json!(-1)),
            [("clusters", State::Warning)]
        );
        assert_eq!(
            states(|survey| survey["clusters"][0]["spare"] = json!(null)),
            [("clusters", State::Warning)]
        );
        assert_eq!(
            states(|survey| survey["problems"] = json!(["namespace a"])),
            [("clusters", State::Warning)]
        );
    }

    #[test]
    fn reports_traps_with_their_command() {
        let trapped = survey(|survey| survey["clusters"][0]["traps"] = json!(["old. Save one: kubectl x"]));
        let line = traps(&trapped, "kubectl etcd-guard status -A");
        assert_eq!(
            (line.state, line.message.as_str()),
            (State::Warning, "prod/etcd: old. Save one: kubectl x")
        );
    }

    #[test]
    fn reports_releases_with_defects() {
        for version in ["3.4.41", "3.5.27", "3.6.8", "3.5.30", "3.6.11"] {
            let found = states(|survey| survey["clusters"][0]["members"][1]["version"] = json!(version));
            assert_eq!(found, [("etcd-versions", State::Warning)], "{version}");
        }
        for version in ["3.5.31", "3.6.12", "3.7.0"] {
            assert_eq!(states(|survey| survey["clusters"][0]["members"][1]["version"] = json!(version)), []);
        }
    }

    #[test]
    fn reports_pods_below_the_priority_of_the_guard() {
        let of_member = format!("{PRIORITY_WARNING} (2000000000): etcd-0.");
        let expected = [("priority", State::Warning)];
        assert_eq!(states(|survey| survey["clusters"][0]["problems"] = json!([of_member])), expected);
        assert_eq!(states(|survey| survey["warnings"] = json!(["namespace prod: 1 pod"])), expected);
        assert_eq!(states(|survey| survey["guardPriority"] = json!(null)), expected);
        assert_eq!(states(|survey| survey["clusters"][0]["problems"] = json!(["etcd-1: alarm"])), []);
    }

    #[test]
    fn reports_members_that_may_not_be_recognized() {
        let gap = json!([{"namespace": "prod", "pod": "store", "text": "pod store"}]);
        assert_eq!(states(|survey| survey["gaps"] = gap.clone()), [("recognition", State::Warning)]);
        let of_members = format!("{OWNER_ONLY}: k3s-0.");
        let found = states(|survey| survey["clusters"][0]["problems"] = json!([of_members]));
        assert_eq!(found, [("recognition", State::Warning)]);
    }
}

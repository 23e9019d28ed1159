//! `kubectl etcd-guard check node/NAME`: previews the evictions of the members on a node.
//!
//! `kubectl drain` evicts all pods at once and retries. The guard lets the members of a cluster go one after the other, and the
//! order below is that in which it approves.

use std::{collections::BTreeSet, fmt::Write as _, io::Write};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use serde_json::json;

use super::super::guard_flags::GuardFlags;
use crate::{
    guard_client::GuardClient,
    maintenance::{eviction::preview, reporter::write_plan},
};
use etcd_guard_api::{ClusterStatus, MemberStatus, Preview, Role, Survey};
use etcd_guard_cli::{
    printing::{NONE, Output, stdout},
    terminal::{WARNING, paint},
};
use etcd_guard_core::{
    escape::{MAX_NAME_CHARS, MAX_TEXT_CHARS, to_bounded_line},
    objects::pod::MIRROR_ANNOTATION,
};

/// The reason of an approval after which the guard moves leadership.
const LEADER_TRANSFERRED: &str = "LeaderTransferred";

/// The previews for a node. The fields are those of the JSON output.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeReport {
    node: String,
    /// Whether the guard has read all clusters, and every member may leave the node at the moment.
    completes: bool,
    members: Vec<Entry>,
    /// Clusters that could not be read, one sentence each.
    problems: Vec<String>,
}

/// A member on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    /// The position in the order of approvals.
    order: usize,
    namespace: String,
    pod: String,
    cluster: String,
    role: Role,
    /// Whether the guard would deny the eviction at the moment.
    is_denied: bool,
    /// The reason code of the guard.
    reason: String,
    /// What happens before the eviction, or why it is denied.
    note: Option<String>,
    /// The section of the manual that explains a denial.
    documentation: Option<String>,
    #[serde(skip)]
    is_serving: bool,
}

/// Prints the previews for these nodes. Returns whether every member on them may leave.
pub(super) async fn check(guard: GuardFlags, nodes: &[String], output: Output) -> anyhow::Result<bool> {
    let guard = guard.connect().await?;
    let mut reports = Vec::new();
    for node in nodes {
        reports.push(NodeReport::read(&guard, node).await?);
    }
    let mut out = stdout();
    match output {
        Output::Table | Output::Wide => {
            for (number, report) in reports.iter().enumerate() {
                if number > 0 {
                    writeln!(out)?;
                }
                write_plan(&mut out, &report.text())?;
                for problem in &report.problems {
                    let problem = to_bounded_line(problem, MAX_TEXT_CHARS);
                    writeln!(anstream::stderr().lock(), "{}: {problem}", paint(WARNING, "warning"))?;
                }
            }
        }
        Output::Name => {
            for node in nodes {
                writeln!(out, "node/{}", to_bounded_line(node, MAX_NAME_CHARS))?;
            }
        }
        Output::Json | Output::Yaml => {
            match reports.as_slice() {
                [report] => output.write_document(report, &mut out)?,
                several => output.write_document(&json!({"items": several}), &mut out)?,
            };
        }
    }
    out.flush()?;
    Ok(reports.iter().all(|report| report.completes))
}

/// Puts the members into the order in which the guard approves their evictions: first those that do not serve, leaders after
/// their followers, and those that are denied at the moment last.
fn ordered(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by_key(|entry| {
        let is_leader = entry.role == Role::Leader;
        (entry.is_denied, entry.is_serving, is_leader, entry.namespace.clone(), entry.pod.clone())
    });
    let mut earlier: Vec<(String, String)> = Vec::new();
    for (position, entry) in entries.iter_mut().enumerate() {
        entry.order = position + 1;
        let previous = earlier.iter().rfind(|(cluster, _)| *cluster == entry.cluster);
        if let (None, Some((_, pod))) = (&entry.note, previous) {
            entry.note = Some(format!("after the successor of {pod} serves"));
        }
        earlier.push((entry.cluster.clone(), entry.pod.clone()));
    }
    entries
}

/// Returns the namespace and the name of a pod.
fn names(pod: &Pod) -> (&str, &str) {
    let metadata = &pod.metadata;
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

/// Whether no drain evicts the pod: it is the mirror of a static pod.
fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION))
}

/// Returns the cluster and the member of a pod.
fn member_of<'a>(survey: &'a Survey, pod: &Pod) -> Option<(&'a ClusterStatus, &'a MemberStatus)> {
    let (namespace, name) = names(pod);
    let mut clusters = survey.clusters.iter().filter(|cluster| cluster.namespace == namespace);
    clusters.find_map(|cluster| {
        let member = cluster.members.iter().find(|member| member.pod.as_deref() == Some(name));
        member.map(|member| (cluster, member))
    })
}

/// Whether the survey can lack the cluster of one of these pods.
fn lacks_clusters_of(survey: &Survey, pods: &[Pod]) -> bool {
    match &survey.unread_namespaces {
        Some(unread) => pods.iter().any(|pod| unread.iter().any(|namespace| namespace == names(pod).0)),
        None => !survey.problems.is_empty(),
    }
}

// === impl NodeReport ===

impl NodeReport {
    async fn read(guard: &GuardClient, node: &str) -> anyhow::Result<Self> {
        let nodes = guard.api_server.nodes().await?;
        anyhow::ensure!(
            nodes.iter().any(|entry: &Node| entry.metadata.name.as_deref() == Some(node)),
            "node {node} does not exist; list the nodes: {} get nodes",
            guard.api_server.kubectl
        );
        let mut pods = guard.api_server.pods_on(node).await?;
        pods.retain(|pod| !is_mirror(pod));
        let survey = guard.status(None).await?;
        let mut entries = Vec::new();
        for pod in &pods {
            let Some((cluster, member)) = member_of(&survey, pod) else { continue };
            let (namespace, name) = names(pod);
            let preview = preview(guard, namespace, name).await?;
            entries.push(Entry::new(cluster, member, namespace, name, preview));
        }
        let is_denied = entries.iter().any(|entry| entry.is_denied);
        Ok(Self {
            node: node.to_owned(),
            completes: !is_denied && !lacks_clusters_of(&survey, &pods),
            members: ordered(entries),
            problems: survey.problems,
        })
    }

    /// Returns the report as lines.
    fn text(&self) -> String {
        let mut text = format!("Drain of node {}\n", self.node);
        if self.members.is_empty() {
            text.push_str("  no etcd member runs on the node\n");
            return text;
        }
        let header = ["ORDER", "POD", "ROLE", "VERDICT", "NOTE"].map(str::to_owned);
        let rows: Vec<[String; 5]> =
            std::iter::once(header).chain(self.members.iter().map(Entry::cells)).collect();
        let mut widths = [0; 5];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}   "));
            text.push_str("  ");
            text.push_str(cells.collect::<String>().trim_end());
            text.push('\n');
        }
        let sections: BTreeSet<&String> =
            self.members.iter().filter_map(|entry| entry.documentation.as_ref()).collect();
        for section in sections {
            let _ = writeln!(text, "See {section}");
        }
        text
    }
}

// === impl Entry ===

impl Entry {
    fn new(
        cluster: &ClusterStatus,
        member: &MemberStatus,
        namespace: &str,
        pod: &str,
        preview: Preview,
    ) -> Self {
        let is_denied = preview.verdict == "denied";
        let note = match preview.reason.as_str() {
            _ if is_denied => Some(preview.message),
            LEADER_TRANSFERRED => Some(String::from("leadership moves first")),
            _ => None,
        };
        Self {
            order: 0,
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            cluster: format!("{}/{}", cluster.namespace, cluster.name),
            role: member.role,
            is_denied,
            reason: preview.reason,
            note,
            documentation: preview.documentation,
            is_serving: member.serving || member.role == Role::Learner,
        }
    }

    fn cells(&self) -> [String; 5] {
        let verdict = if self.is_denied { "DENIED" } else { "ALLOWED" };
        [
            self.order.to_string(),
            format!("{}/{}", self.namespace, self.pod),
            self.role.as_str().to_owned(),
            format!("{verdict} {}", self.reason),
            self.note.clone().unwrap_or_else(|| String::from(NONE)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(cluster: &str, pod: &str, role: Role) -> Entry {
        let reason = if role == Role::Leader { LEADER_TRANSFERRED } else { "SafeToDelete" };
        Entry {
            order: 0,
            namespace: String::from("prod"),
            pod: pod.to_owned(),
            cluster: format!("prod/{cluster}"),
            role,
            is_denied: false,
            reason: reason.to_owned(),
            note: None,
            documentation: None,
            is_serving: true,
        }
    }

    #[test]
    fn leaders_and_denied_members_are_last() {
        let stopped = Entry { is_serving: false, ..entry("c", "c-0", Role::Follower) };
        let denied = Entry { is_denied: true, ..entry("a", "a-2", Role::Follower) };
        let entries =
            vec![denied, entry("a", "a-0", Role::Leader), entry("b", "b-1", Role::Follower), stopped];
        let order: Vec<_> = ordered(entries).into_iter().map(|entry| (entry.order, entry.pod)).collect();
        let expected = [(1, "c-0"), (2, "b-1"), (3, "a-0"), (4, "a-2")];
        assert_eq!(order, expected.map(|(order, pod)| (order, pod.to_owned())));
    }

    #[test]
    fn text_has_order_verdict_and_note() {
        let leader =
            Entry { note: Some(String::from("leadership moves first")), ..entry("a", "a-0", Role::Leader) };
        let denied = |pod| Entry {
            is_denied: true,
            reason: String::from("QuorumLost"),
            note: Some(String::from("no quorum")),
            documentation: Some(String::from("https://etcd-guard.io/reasons.html#quorumlost")),
            ..entry("c", pod, Role::Follower)
        };
        let entries = vec![
            leader,
            entry("b", "b-0", Role::Follower),
            entry("b", "b-1", Role::Follower),
            denied("c-0"),
            denied("c-1"),
        ];
        let report = |members| NodeReport {
            node: String::from("worker"),
            completes: true,
            members,
            problems: Vec::new(),
        };
        let expected = "\
Drain of node worker
  ORDER   POD        ROLE       VERDICT                     NOTE
  1       prod/b-0   follower   ALLOWED SafeToDelete        <none>
  2       prod/b-1   follower   ALLOWED SafeToDelete        after the successor of b-0 serves
  3       prod/a-0   leader     ALLOWED LeaderTransferred   leadership moves first
  4       prod/c-0   follower   DENIED QuorumLost           no quorum
  5       prod/c-1   follower   DENIED QuorumLost           no quorum
See https://etcd-guard.io/reasons.html#quorumlost
";
        assert_eq!(report(ordered(entries)).text(), expected);
        assert!(report(Vec::new()).text().ends_with("  no etcd member runs on the node\n"));
    }

    #[test]
    fn only_unread_namespaces_of_the_pods_hide_members() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "prod", "name": "a-0"}})).unwrap();
        let survey = |unread: Option<&[&str]>| Survey {
            problems: vec![String::from("namespace prod: forbidden")],
            unread_namespaces: unread.map(|names| names.iter().map(|name| String::from(*name)).collect()),
            ..Survey::default()
        };
        let pods = [pod];
        assert!(lacks_clusters_of(&survey(Some(&["prod"])), &pods));
        assert!(!lacks_clusters_of(&survey(Some(&["other"])), &pods));
        assert!(lacks_clusters_of(&survey(None), &pods), "no namespace was read");
        assert!(!lacks_clusters_of(&Survey::default(), &pods));
    }
}

//! The printed result of `check`: a table, or JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::review::Placement;
use crate::guard_client::webhook_coverage::WebhookCoverage;
use etcd_guard_api::Preview;
use etcd_guard_cli::terminal::{EMPHASIS, FAILURE, SUCCESS, WARNING, paint};
use etcd_guard_core::{
    escape::{MAX_NAME_CHARS, MAX_TEXT_CHARS, to_bounded_line, to_single_line},
    objects::annotations::{ALLOW_REASON, ALLOW_UNTIL},
};

/// The result of `check`. The fields are those of the JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckReport<'a> {
    question: String,
    user: String,
    /// Whether the API server would call the webhook; `null` if unknown.
    asked: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(flatten)]
    preview: &'a Preview,
    /// Rows of the wide table.
    #[serde(skip)]
    placement: Placement,
    /// The command that overrules the denial, a row of the wide table.
    #[serde(skip)]
    break_glass: Option<String>,
}

/// Title and value of a table row. A row without a title continues the row above.
type Row = (&'static str, String);

// === impl CheckReport ===

impl<'a> CheckReport<'a> {
    /// Creates the report. User name and causes are texts of the API server, and are escaped and cut.
    pub(crate) fn new(question: &str, user: &str, coverage: &WebhookCoverage, preview: &'a Preview) -> Self {
        let (asked, note) = match coverage {
            WebhookCoverage::Covered => (Some(true), None),
            WebhookCoverage::NotCovered(cause) => (Some(false), Some(cause.as_str())),
            WebhookCoverage::Unknown(cause) => (None, Some(cause.as_str())),
        };
        let escaped = |text: &str| to_bounded_line(text, MAX_TEXT_CHARS);
        Self {
            question: escaped(question),
            user: escaped(user),
            asked,
            note: note.map(escaped),
            preview,
            placement: Placement::default(),
            break_glass: None,
        }
    }

    /// Adds rows for the place of the pod to the table. Both are texts of the API server.
    pub(crate) fn with_placement(self, placement: &Placement) -> Self {
        let escaped =
            |text: &Option<String>| text.as_deref().map(|text| to_bounded_line(text, MAX_NAME_CHARS));
        let Placement { address, node } = placement;
        Self { placement: Placement { address: escaped(address), node: escaped(node) }, ..self }
    }

    /// Adds a row with the command that overrules the denial by annotations of an object; `object` has its arguments for `kubectl
    /// annotate`. A message that contains such a command gets no row.
    pub(crate) fn with_break_glass(mut self, object: &str) -> Self {
        let Preview { verdict, message, .. } = self.preview;
        let is_overrulable = verdict == "denied" && !message.contains(ALLOW_UNTIL);
        self.break_glass = is_overrulable.then(|| {
            format!(
                "kubectl annotate --overwrite {object} {ALLOW_UNTIL}=\"$(date -u -d '+1 hour' +%Y-%m-%dT%H:%M:%SZ)\" \
                 {ALLOW_REASON}='REASON'"
            )
        });
        self
    }

    /// Writes the warnings, which, as with kubectl, are for standard error.
    pub(crate) fn write_warnings(&self, out: &mut impl Write) -> io::Result<()> {
        for warning in &self.preview.warnings {
            writeln!(out, "{}: {}", paint(WARNING, "Warning"), to_single_line(warning))?;
        }
        let Some(cause) = &self.note else { return Ok(()) };
        match self.asked {
            Some(_) => writeln!(out, "{}: {cause}", paint(FAILURE, "Not guarded")),
            None => {
                let title = paint(WARNING, "Unknown");
                writeln!(out, "{title}: whether the API server would call the guard: {cause}")
            }
        }
    }

    /// Writes the verdict and a table of its evidence.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Preview { verdict, reason, .. } = self.preview;
        let style = match verdict.as_str() {
            "allowed" => SUCCESS,
            "denied" => FAILURE,
            _ => WARNING,
        };
        let (verdict, reason) = (to_single_line(&verdict.to_uppercase()), to_single_line(reason));
        let title = format!("{} {}", paint(style, &verdict), paint(EMPHASIS, &reason));
        writeln!(out, "{title}: {}, by {}", self.question, self.user)?;
        let mut rows = rows(self.preview, &self.placement);
        rows.extend(self.break_glass.clone().map(|command| ("OVERRULE", command)));
        let width = rows.iter().map(|(title, _)| title.len()).max().unwrap_or_default();
        for (title, value) in rows {
            // Computed here, because a format width would count the color codes.
            let pad = width - title.len();
            let title = if title.is_empty() { String::new() } else { paint(EMPHASIS, title) };
            // Parts of the text come from users of the cluster. Control characters must not reach the terminal.
            writeln!(out, "  {title}{:pad$}   {}", "", to_single_line(&value))?;
        }
        out.flush()
    }
}

/// Returns a row for each known fact. WHY and NEXT together are the message of the verdict.
fn rows(preview: &Preview, placement: &Placement) -> Vec<Row> {
    let Preview { message, next, cluster, member, role, leader, documentation, .. } = preview;
    let why = next.as_ref().and_then(|next| message.strip_suffix(next.as_str())?.strip_suffix(". "));
    let number = |number: Option<usize>| number.map(|number| number.to_string());
    let facts = [
        ("WHY", Some(why.unwrap_or(message).to_owned())),
        ("NEXT", next.clone().filter(|_| why.is_some())),
        ("SEE", documentation.clone()),
        ("CLUSTER", cluster.clone()),
        ("ADDRESS", placement.address.clone()),
        ("NODE", placement.node.clone()),
        ("MEMBER", member.clone()),
        ("ROLE", role.map(|role| role.as_str().to_owned())),
        ("LEADER", leader.clone()),
        ("VOTERS", number(preview.voters)),
        ("HEALTHY", number(preview.healthy)),
        ("QUORUM", number(preview.quorum)),
        ("REMAINING", number(preview.remaining)),
    ];
    let mut rows: Vec<Row> = facts.into_iter().filter_map(|(title, value)| Some((title, value?))).collect();
    for (index, setting) in preview.policy.iter().enumerate() {
        let name = setting.name.trim_start_matches("etcd-guard.io/");
        let title = if index == 0 { "POLICY" } else { "" };
        rows.push((title, format!("{name}: {} ({})", setting.value, setting.from)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn print(preview: &serde_json::Value) -> String {
        let preview: Preview = serde_json::from_value(preview.clone()).unwrap();
        let mut out = anstream::StripStream::new(Vec::new());
        CheckReport::new("delete pod prod/etcd-1", "alice", &WebhookCoverage::Covered, &preview)
            .write(&mut out)
            .unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn prints_row_for_each_known_fact() {
        let denial = json!({
            "verdict": "denied", "reason": "LeaderProtected", "code": 403, "warnings": [],
            "message": "etcd-1 leads prod/etcd. Move leadership, then retry: etcdctl move-leader 2",
            "next": "Move leadership, then retry: etcdctl move-leader 2",
            "cluster": "prod/etcd", "member": "1", "role": "leader", "leader": "1",
            "voters": 3, "healthy": 3, "quorum": 2, "remaining": 2,
            "documentation": "https://etcd-guard.io/reasons.html#leaderprotected",
            "policy": [
                {"name": "etcd-guard.io/leader", "value": "deny", "from": "configuration"},
                {"name": "etcd-guard.io/mode", "value": "enforce", "from": "namespace prod"},
            ],
        });
        let table = "\
DENIED LeaderProtected: delete pod prod/etcd-1, by alice
  WHY         etcd-1 leads prod/etcd
  NEXT        Move leadership, then retry: etcdctl move-leader 2
  SEE         https://etcd-guard.io/reasons.html#leaderprotected
  CLUSTER     prod/etcd
  MEMBER      1
  ROLE        leader
  LEADER      1
  VOTERS      3
  HEALTHY     3
  QUORUM      2
  REMAINING   2
  POLICY      leader: deny (configuration)
              mode: enforce (namespace prod)
";
        assert_eq!(print(&denial), table);
    }

    #[test]
    fn wide_table_has_address_and_node_of_the_pod() {
        let preview =
            json!({"verdict": "allowed", "reason": "NotEtcd", "warnings": [], "message": "no etcd"});
        let preview: Preview = serde_json::from_value(preview).unwrap();
        let placement =
            Placement { address: Some(String::from("10.0.0.7")), node: Some(String::from("n\u{1b}1")) };
        let report = CheckReport::new("delete pod prod/web", "alice", &WebhookCoverage::Covered, &preview);
        let mut out = anstream::StripStream::new(Vec::new());
        report.with_placement(&placement).write(&mut out).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert!(text.contains("  ADDRESS   10.0.0.7\n  NODE      n\\u{1b}1\n"), "{text}");
    }

    #[test]
    fn wide_table_ends_with_the_command_that_overrules_a_denial() {
        let last_line = |verdict: &str, message: &str| {
            let preview =
                json!({"verdict": verdict, "reason": "QuorumAtRisk", "warnings": [], "message": message});
            let preview: Preview = serde_json::from_value(preview).unwrap();
            let report =
                CheckReport::new("delete pod prod/etcd-1", "alice", &WebhookCoverage::Covered, &preview);
            let mut out = anstream::StripStream::new(Vec::new());
            report.with_break_glass("-n prod pod/etcd-1").write(&mut out).unwrap();
            String::from_utf8(out.into_inner()).unwrap().lines().last().unwrap().to_owned()
        };
        assert_eq!(
            last_line("denied", "2 of 3 voters are healthy"),
            "  OVERRULE   kubectl annotate --overwrite -n prod pod/etcd-1 etcd-guard.io/allow-delete-until=\"$(date -u -d '+1 hour' \
             +%Y-%m-%dT%H:%M:%SZ)\" etcd-guard.io/allow-delete-reason='REASON'"
        );
        assert_eq!(last_line("allowed", "safe"), "  WHY   safe");
        let with_command = "overrule: kubectl annotate etcd-guard.io/allow-delete-until=1";
        assert_eq!(last_line("denied", with_command), format!("  WHY   {with_command}"));
    }

    #[test]
    fn prints_whole_message_without_next_step() {
        let approval = json!({
            "verdict": "allowed", "reason": "NotEtcd", "warnings": [], "message": "pod etcd-1 runs no etcd. So it is",
        });
        let table = "\
ALLOWED NotEtcd: delete pod prod/etcd-1, by alice
  WHY   pod etcd-1 runs no etcd. So it is
";
        assert_eq!(print(&approval), table);
    }
}

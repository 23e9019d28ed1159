//! An answer as it is printed: a table for people, JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

use crate::{
    cli::{
        asked::Asked,
        style::{BAD, GOOD, ODD, STRONG, paint},
    },
    server::Preview,
};

/// What is printed. As JSON it is this.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer<'a> {
    question: &'a str,
    user: &'a str,
    /// Whether the apiserver would ask the guard; `null` if that is not known.
    asked: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    #[serde(flatten)]
    preview: &'a Preview,
}

/// A title and what is under it. Without a title it belongs to the line above.
type Row = (&'static str, String);

// === impl Answer ===

impl<'a> Answer<'a> {
    pub(super) fn new(question: &'a str, user: &'a str, asked: &'a Asked, preview: &'a Preview) -> Self {
        let (asked, note) = match asked {
            Asked::Yes => (Some(true), None),
            Asked::No(why) => (Some(false), Some(why.as_str())),
            Asked::Unknown(why) => (None, Some(why.as_str())),
        };
        Self { question, user, asked, note, preview }
    }

    /// Prints it for people: the verdict and a table of what it rests on, and beside it, as kubectl does, the warnings.
    pub(super) fn print(&self, asked: &Asked) -> io::Result<()> {
        self.write(&mut anstream::stdout().lock())?;
        for warning in &self.preview.warnings {
            anstream::eprintln!("{}: {warning}", paint(ODD, "Warning"));
        }
        match asked {
            Asked::Yes => {}
            Asked::No(why) => anstream::eprintln!("{}: {why}", paint(BAD, "Not guarded")),
            Asked::Unknown(why) => {
                anstream::eprintln!("{}: whether the apiserver would ask: {why}", paint(ODD, "Unknown"));
            }
        }
        Ok(())
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Preview { verdict, reason, .. } = self.preview;
        let style = match verdict.as_str() {
            "allowed" => GOOD,
            "denied" => BAD,
            _ => ODD,
        };
        let verdict = paint(style, &verdict.to_uppercase());
        writeln!(out, "{verdict} {}: {}, by {}", paint(STRONG, reason), self.question, self.user)?;
        let rows = rows(self.preview);
        let width = rows.iter().map(|(title, _)| title.len()).max().unwrap_or_default();
        for (title, value) in rows {
            // Colours would count as letters.
            let pad = width - title.len();
            let title = if title.is_empty() { String::new() } else { paint(STRONG, title) };
            // Some of it was written by who made the pods: on a terminal it must stay what it is, words in a row.
            let value = value.replace(char::is_control, " ");
            writeln!(out, "  {title}{:pad$}  {value}", "")?;
        }
        out.flush()
    }
}

/// What is known, each in a row. WHY and NEXT are the words of the answer itself, one after the other.
fn rows(preview: &Preview) -> Vec<Row> {
    let Preview { message, next, cluster, member, role, leader, .. } = preview;
    let why = next.as_ref().and_then(|next| message.strip_suffix(next.as_str())?.strip_suffix(". "));
    let number = |number: Option<usize>| number.map(|it| it.to_string());
    let facts = [
        ("WHY", Some(why.unwrap_or(message).to_owned())),
        ("NEXT", next.clone().filter(|_| why.is_some())),
        ("CLUSTER", cluster.clone()),
        ("MEMBER", member.clone()),
        ("ROLE", role.map(|it| it.word().to_owned())),
        ("LEADER", leader.clone()),
        ("VOTERS", number(preview.voters)),
        ("HEALTHY", number(preview.healthy)),
        ("QUORUM", number(preview.quorum)),
        ("REMAINING", number(preview.remaining)),
    ];
    let mut rows: Vec<Row> = facts.into_iter().filter_map(|(title, value)| Some((title, value?))).collect();
    for (count, it) in preview.policy.iter().enumerate() {
        let name = it.name.trim_start_matches("etcd-guard.io/");
        let title = if count == 0 { "POLICY" } else { "" };
        rows.push((title, format!("{name}: {} ({})", it.value, it.from)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(preview: &serde_json::Value) -> String {
        let preview: Preview = serde_json::from_value(preview.clone()).unwrap();
        let mut out = anstream::StripStream::new(Vec::new());
        Answer::new("delete pod prod/etcd-1", "alice", &Asked::Yes, &preview).write(&mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn what_is_known_stands_in_a_table_and_what_is_not_known_does_not() {
        let denial = json!({
            "verdict": "denied", "reason": "LeaderProtected", "code": 403, "warnings": [],
            "message": "pod etcd-1 is the leader. Move it first: etcdctl move-leader 2",
            "next": "Move it first: etcdctl move-leader 2",
            "cluster": "prod/etcd", "member": "1", "role": "leader", "leader": "1",
            "voters": 3, "healthy": 3, "quorum": 2, "remaining": 2,
            "policy": [
                {"name": "etcd-guard.io/leader", "value": "deny", "from": "configuration"},
                {"name": "etcd-guard.io/mode", "value": "enforce", "from": "namespace prod"},
            ],
        });
        let table = "\
DENIED LeaderProtected: delete pod prod/etcd-1, by alice
  WHY        pod etcd-1 is the leader
  NEXT       Move it first: etcdctl move-leader 2
  CLUSTER    prod/etcd
  MEMBER     1
  ROLE       leader
  LEADER     1
  VOTERS     3
  HEALTHY    3
  QUORUM     2
  REMAINING  2
  POLICY     leader: deny (configuration)
             mode: enforce (namespace prod)
";
        assert_eq!(printed(&denial), table);
    }

    /// As a guard of an earlier release answers, too.
    #[test]
    fn words_without_a_next_step_are_told_whole() {
        let yes = json!({
            "verdict": "allowed", "reason": "NotEtcd", "warnings": [], "message": "pod etcd-1 runs no etcd. So it is",
        });
        let table = "\
ALLOWED NotEtcd: delete pod prod/etcd-1, by alice
  WHY  pod etcd-1 runs no etcd. So it is
";
        assert_eq!(printed(&yes), table);
    }
}

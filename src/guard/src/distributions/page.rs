//! The page docs/compatibility.md.

use std::fmt::Write as _;

use super::Entry;

const HEAD: &str = "# Compatibility

<!-- Generated from tests/data/corpus: UPDATE_CORPUS=1 cargo test --package etcd-guard-guard --lib distributions -->

How etcd runs on Kubernetes, and what the guard needs there. Each row was read in November 2026, at the version or commit that it names: a pod as
the distribution creates it, with its Secrets. The distributions themselves were not run. A newer version can need something else; ask
`kubectl etcd-guard inspect`, and send us a pod that it reads wrongly.

| needs | means |
| --- | --- |
| - | plain HTTP, no users |
| Role | credentials: apply what `kubectl etcd-guard inspect --role` prints. The row names the Secrets |
| annotation | the annotation in the row, and the Role if the members use TLS |
| no | the guard cannot ask the members. It refuses to delete a recognized pod, and does not protect any other |

Bitnami's versioned images moved to `bitnamilegacy` in August and September 2025 and get no updates since then. Charts that contain Bitnami's
etcd (APISIX, Milvus and others) need another image. The guard does not depend on the name.

| distribution | version | mode | needs | what to do |
| --- | --- | --- | --- | --- |
";

const OTHERS: &str = "
No members, and approved: ";

/// Returns the page.
pub(super) fn generate(entries: &[Entry]) -> String {
    let mut page = HEAD.to_owned();
    let (members, others): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| entry.expected.reached.is_some());
    let mut plain: Vec<String> = Vec::new();
    for entry in sorted(&members) {
        let expected = &entry.expected;
        let mut action = short(&expected.action);
        for (key, value) in &expected.annotations {
            let _ = write!(action, " `{key}: {value}`");
        }
        if let Some(gap) = &expected.known_gap {
            action = format!("Known gap: {gap}. {action}");
        }
        let needs = match expected.reached.as_deref() {
            Some("nothing") => "-",
            Some("no") if expected.embedded => "no, embedded",
            Some(needs) => needs,
            None => "",
        };
        let version = expected.version.replace("commit ", "");
        let (name, mode) = (&expected.distribution, &expected.mode);
        if needs == "-" && action.is_empty() {
            plain.push(format!("{name} ({version}, {mode})"));
            continue;
        }
        let _ = writeln!(page, "| {name} | {version} | {mode} | {needs} | {} |", action.trim());
    }
    let _ = write!(page, "\nNothing to do: {}.\n", plain.join("; "));
    page += OTHERS;
    let names = sorted(&others).into_iter().map(|entry| {
        let expected = &entry.expected;
        let name = [expected.distribution.as_str(), expected.mode.as_str()].join(" ");
        match &expected.known_gap {
            Some(gap) => format!("{} (known gap: {gap})", name.trim()),
            None => name.trim().to_owned(),
        }
    });
    page += &names.collect::<Vec<_>>().join(", ");
    page += ".\n";
    page
}

/// Leaves out what the column `needs` says already.
fn short(action: &str) -> String {
    let text = action.strip_prefix("Nothing is required.").unwrap_or(action).trim();
    let text = text.strip_prefix("Apply the Role for ").unwrap_or(text);
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

fn sorted<'a>(entries: &[&'a Entry]) -> Vec<&'a Entry> {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| {
        let expected = &entry.expected;
        (expected.distribution.to_lowercase(), expected.version.clone(), entry.name.clone())
    });
    entries
}

//! The page docs/compatibility.md.

use std::{collections::BTreeSet, fmt::Write as _};

use super::Entry;

const HEAD: &str = "# Compatibility

<!-- Generated from tests/data/corpus: UPDATE_CORPUS=1 cargo test --package etcd-guard-guard --lib distributions -->

This page lists the ways in which etcd runs on Kubernetes. The guard's tests read one pod of each distribution and mode, which was
written after the source in the column \"version\", with the Secrets that the distribution creates. The tests do not run the
distributions: a release with other names or flags can need another action. Eight shapes of clusters that they use run on a real node
(`tests/shapes_node`). The files in `tests/data/corpus` name the sources. Send us a pod that is not read correctly.

The requirement for a probe of the members is one of these:

- **nothing**: the members use plain HTTP without users.
- **Role**: the guard must read the credentials. Apply the Role that `kubectl etcd-guard inspect --role` prints ([cli.md](cli.md)), or copy
  [deploy/secrets-role.yaml](../deploy/secrets-role.yaml), and set the names of the Secrets and ConfigMaps
  ([tls-and-auth.md](tls-and-auth.md)).
- **annotation**: one annotation that `kubectl etcd-guard inspect` names is required, and the Role if the members use TLS.
- **no**: the guard cannot probe the members, and denies their deletion if the pod is recognized.

";

const RELEASES: &str = "
## Releases of etcd

etcd before 3.4.42, 3.5.28 and 3.6.9 can confirm a linearizable read at a leader that was paused and deposed
([etcd issue 20418](https://github.com/etcd-io/etcd/issues/20418)). The guard supports these releases, because it also requires that the
members agree on the term and the leader. Upgrade them nevertheless: `kubectl etcd-guard status`, `kubectl etcd-guard doctor` and the metric
`etcd_guard_members{release=\"stale_reads\"}` report their members ([monitoring.md](monitoring.md)).
";

/// Returns the page.
pub(super) fn generate(entries: &[Entry]) -> String {
    let mut page = HEAD.to_owned();
    let (members, others): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| entry.expected.reached.is_some());
    write_counts(&mut page, &members, others.len());
    page += RELEASES;
    page += "\n## Distributions\n\n";
    page += "| distribution | version | mode | recognized | requirement | action |\n| --- | --- | --- | --- | --- | --- |\n";
    for entry in sorted(&members) {
        let expected = &entry.expected;
        let recognized = match (expected.recognized, expected.reported.as_deref()) {
            (true, _) => "yes",
            (false, Some("port")) => "no, the port is reported",
            (false, Some(_)) => "no, the namespace is reported",
            (false, None) => "no",
        };
        let mut action = expected.action.clone();
        for (key, value) in &expected.annotations {
            let _ = write!(action, " Annotation: `{key}: {value}`.");
        }
        let (recognized, reached) = match &expected.known_gap {
            Some(gap) => {
                action = format!("Known gap: {gap}. {action}");
                (format!("{recognized} (gap)"), "gap".to_owned())
            }
            None => (recognized.to_owned(), expected.reached.clone().unwrap_or_default()),
        };
        let (name, version, mode) = (&expected.distribution, &expected.version, &expected.mode);
        let _ = writeln!(page, "| {name} | {version} | {mode} | {recognized} | {reached} | {action} |");
    }
    page += "\n## Pods that run no member\n\n";
    page += "These pods mention etcd or use its image. The guard approves their deletion.\n\n";
    page += "| pod | version | recognized as a member |\n| --- | --- | --- |\n";
    for entry in sorted(&others) {
        let expected = &entry.expected;
        let name = [expected.distribution.as_str(), expected.mode.as_str()].join(" ");
        let recognized = match &expected.known_gap {
            Some(gap) => format!("yes (known gap: {gap})"),
            None => String::from("no"),
        };
        let _ = writeln!(page, "| {} | {} | {recognized} |", name.trim(), expected.version);
    }
    page
}

fn sorted<'a>(entries: &[&'a Entry]) -> Vec<&'a Entry> {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| {
        let expected = &entry.expected;
        (expected.distribution.to_lowercase(), expected.version.clone(), entry.name.clone())
    });
    entries
}

fn write_counts(page: &mut String, members: &[&Entry], others: usize) {
    let distributions: BTreeSet<&str> =
        members.iter().map(|entry| entry.expected.distribution.as_str()).collect();
    let recognized: Vec<_> = members
        .iter()
        .filter(|entry| entry.expected.recognized && entry.expected.known_gap.is_none())
        .collect();
    let embedded = members.iter().filter(|entry| entry.expected.embedded).count();
    let gaps = members.iter().filter(|entry| entry.expected.known_gap.is_some()).count();
    let with = |requirement: &str| {
        recognized.iter().filter(|entry| entry.expected.reached.as_deref() == Some(requirement)).count()
    };
    let (nothing, role, annotation, no) = (with("nothing"), with("Role"), with("annotation"), with("no"));
    let _ = writeln!(
        page,
        "The corpus has {} pods of {} distributions, and {others} pods that run no member.\n\n\
         - Recognized as members: {} pods. The guard can probe {} of them: it needs nothing for {nothing}, the Role for {role}, and one \
         annotation for {annotation}. It cannot probe {no}.\n\
         - Not recognized: {} pods. In {embedded} of them, another program runs etcd, or the pod is a placeholder. The others are \
         mirrors of static pods.\n\
         - Pods with a known gap: {gaps}.",
        members.len(),
        distributions.len(),
        recognized.len(),
        nothing + role + annotation,
        members
            .iter()
            .filter(|entry| !entry.expected.recognized && entry.expected.known_gap.is_none())
            .count(),
    );
}

//! Generates `docs/cli.md` from the command line. `UPDATE_CLI=1 cargo test -p etcd-guard-plugin --lib cli::reference` writes it.

use std::fmt::Write;

use clap::{Arg, Command};

use super::{EXIT_STATUS, GROUPS, NAMESPACES, command};
use etcd_guard_cli::reference::{cell, ensure_current, table};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");

const BEGINNING: &str = "\
# Command line

<!-- Generated from the command line of the plugin: UPDATE_CLI=1 cargo test -p etcd-guard-plugin --lib cli::reference -->

`kubectl etcd-guard` is a kubectl plugin, the program `kubectl-etcd_guard`. It uses your kubeconfig and your rights.
There is no `drain`: `kubectl drain` does it.

";

const CONNECTION: &str = "\
The commands that ask the guard open a port-forward to one replica, so you need `pods/portforward` in its namespace
([Role](security.md#restrict-access)). These are `status`, `check`, `move-leader`, `defrag`, `replace`, `backup`, `conformance`, and parts of
`doctor`, `restart`, `restore` and `version`. `--guard-namespace` finds a guard elsewhere, `--guard` uses a connection that is open already.

";

const END: &str = "\
## The server

<!-- not run: it deletes the webhook configurations; tests/shipping/registration/uninstall.rs runs it as the chart's Job does -->
The image contains the program `etcd-guard` with `serve`, `certificates`, `lxcfs-label` and `unregister`. You never run them by hand, except
`etcd-guard unregister`, which deletes the guard's webhook configurations, as [uninstall](uninstall.md) does with kubectl.
";

/// What the commands print, after the examples: the commands in these blocks are run by the tests of the documentation.
const OUTPUTS: [(&str, &str); 11] = [
    (
        "status",
        r"```console
$ kubectl etcd-guard status -n prod
prod/etcd  cluster id cdf818194e3a8c32  3 voters, 3 healthy, quorum 2, 1 to spare
  POD      MEMBER             ROLE       STATE     VERSION   LAG   DATA
  etcd-0   8e9e05c52164694d   leader     serving   3.6.16    0     persistent
  etcd-1   91bc3c398fb3c146   follower   serving   3.6.16    0     persistent
  etcd-2   fd422379fda50e48   follower   serving   3.6.16    0     persistent
  policy leader: auto (configuration)
```
",
    ),
    (
        "check",
        r"<!-- run: answered -->
```console
$ kubectl etcd-guard check etcd-1 -n prod
DENIED LeaderProtected: delete pod prod/etcd-1, by alice
  WHY         etcd-1 leads prod/etcd (member 91bc3c398fb3c146, term 7; 3 of 3 voters healthy, quorum 2)
  NEXT        Move leadership, then retry: kubectl etcd-guard move-leader -n prod etcd-1
  SEE         https://etcd-guard.io/reasons.html#leaderprotected
  CLUSTER     prod/etcd
  ROLE        leader
  REMAINING   2
  POLICY      leader: auto (configuration)
```
",
    ),
    (
        "check",
        r"<!-- not run: a file in src/plugin/tests/plugin/maintenance runs the command -->
```console
$ kubectl etcd-guard check node/worker-1
Drain of node worker-1
  ORDER   POD            ROLE       VERDICT                     NOTE
  1       prod/etcd-0    follower   ALLOWED SafeToDelete        <none>
  2       stage/etcd-0   leader     ALLOWED LeaderTransferred   leadership moves first
```
",
    ),
    (
        "move-leader",
        r"<!-- not run: src/plugin/tests/plugin/maintenance/move_leader.rs runs the command -->
```console
$ kubectl etcd-guard move-leader etcd-2 -n prod
complete: leadership moved from etcd-2 to etcd-0 (term 7 to 8) in 23 ms
```
",
    ),
    (
        "restart",
        r"<!-- not run: src/plugin/tests/plugin/maintenance/restart.rs runs the command -->
```console
$ kubectl etcd-guard restart statefulset/etcd -n prod
Restart of StatefulSet prod/etcd
  STEP   POD      ROLE        VERSION    STATE
  1      etcd-1   follower    3.6.16     pending
  2      etcd-0   follower    3.6.16     pending
  3      etcd-2   leader      3.6.16     pending; leadership is moved first
[######----] 2/3 leadership moved from etcd-2 to etcd-0 (term 7 to 8) in 23 ms
[##########] 3/3 complete: all members of prod/etcd were restarted; the update strategy is RollingUpdate again
```
",
    ),
    (
        "defrag",
        r"<!-- not run: src/plugin/tests/plugin/maintenance/defrag.rs runs the command -->
```console
$ kubectl etcd-guard defrag statefulset/etcd -n prod --if-fragmented 30%
prod/etcd
  1. etcd-0: 1402.5 MiB of 1741.0 MiB free
  2. etcd-1: 1402.1 MiB of 1740.7 MiB free, leader: leadership moves first
  -  etcd-2: 0.4 MiB of 338.9 MiB free, left alone
[----------] 0/2 etcd-0: 1402.5 MiB of 1741.0 MiB free
[#####-----] 1/2 etcd-0 shrank from 1741.0 MiB to 338.8 MiB in 2913 ms
[#####-----] 1/2 leadership moved from etcd-1 to etcd-2
[#####-----] 1/2 etcd-1: 1402.1 MiB of 1740.7 MiB free
[##########] 2/2 etcd-1 shrank from 1740.7 MiB to 338.9 MiB in 2864 ms
[##########] 2/2 complete: 2 members of prod/etcd, 2804.0 MiB freed
```
",
    ),
    (
        "backup",
        r"<!-- not run: src/plugin/tests/plugin/maintenance/backup.rs runs the command -->
```console
$ kubectl etcd-guard backup statefulset/etcd /backup/ -n prod
prod/etcd
  from etcd-2: follower, 0 entries behind, etcd 3.6.16, revision 91340, 338.9 MiB
  to   /backup/prod_etcd_91340_20261201T021500Z.db
complete: prod/etcd at revision 91340 from etcd-2 in /backup/prod_etcd_91340_20261201T021500Z.db (338.9 MiB, 3.1 s, sha256 c0ffee...)
```
",
    ),
    (
        "replace",
        r"<!-- not run: docs/recipes.md runs the command -->
```console
$ kubectl etcd-guard replace etcd-1 -n prod
Replacement of etcd-1 of prod/etcd (etcd-1 (connection refused); without it 2 of 3 voters are healthy)
  1. member 8e9e05c52164694d is removed; until the end, the cluster has one voter less
  2. PVC data-etcd-1 and pod etcd-1 are deleted, with all data in them
  3. etcd-1 is added as a learner, and starts with an empty PVC
  4. once it has caught up, it becomes a voter
[#---------] 1/6 member 8e9e05c52164694d of etcd-1 is removed; the cluster has 2 voters
[#---------] 1/6 PVC data-etcd-1 is deleted
[#---------] 1/6 pod etcd-1 is deleted
[#---------] 1/6 waiting: pod etcd-1 is terminating
[###-------] 2/6 pod etcd-1 is created, and waits for the learner
[######----] 4/6 etcd-1 is listed as learner 91bc3c398fb3c146
[######----] 4/6 etcd-1 starts with an empty PVC
[######----] 4/6 waiting: learner etcd-1 has not joined yet
[##########] 6/6 etcd-1 is voter 91bc3c398fb3c146; the cluster has 3 voters
[##########] 6/6 complete: etcd-1 was replaced; the cluster has 3 voters
```
",
    ),
    (
        "restore",
        r"<!-- not run: tests/docs_node runs the command on a node -->
```console
$ kubectl etcd-guard restore statefulset/etcd /backup/ -n prod
prod/etcd: restore all 3 members
  from   /backup/prod_etcd_91340_20261201T021500Z.db (338.9 MiB, sha256 c0ffee...)
  lost   all writes since revision 91340 (20261201T021500Z)
  volume data-etcd-0 of etcd-0; its data moves to /var/lib/etcd/data/member.before-20261201T100000Z
  volume data-etcd-1 of etcd-1; its data moves to /var/lib/etcd/data/member.before-20261201T100000Z
  volume data-etcd-2 of etcd-2; its data moves to /var/lib/etcd/data/member.before-20261201T100000Z
  stops  all members; the guard protects nothing of this cluster for up to 2 h
To stop all members and replace their data, type prod/etcd: prod/etcd
all members are stopped
[###-------] 1/3 the volume of etcd-0 has the backup
[######----] 2/3 the volume of etcd-1 has the backup
[##########] 3/3 the volume of etcd-2 has the backup
[##########] 3/3 the members start
[##########] 3/3 complete: prod/etcd has the data of revision 91340, at revision 1000091340 and later; ...
```
",
    ),
    (
        "doctor",
        r"<!-- run: answered -->
```console
$ kubectl etcd-guard doctor
STATE     CHECK               MESSAGE
ok        api-server          Kubernetes 1.37 (supported: 1.30 or later)
ok        webhooks            etcd-guard: as shipped
ok        network             the API server calls the guard (dry-run eviction of the absent pod prod/etcd-guard-doctor-absent-pod)
warning   disruption-budget   PodDisruptionBudget etcd-guard permits no eviction of a replica: drains wait
          -> kubectl -n etcd-guard describe poddisruptionbudgets
          See https://etcd-guard.io/install.html#before-production
ok        clusters            guarded clusters, all with a quorum: 1
ok: 14, warnings: 1, failures: 0
```
",
    ),
    (
        "inspect",
        r"```console
$ kubectl etcd-guard inspect etcd-1 -n prod
RECOGNIZED: pod prod/etcd-1
  WHY             container etcd of pod etcd-1 runs an etcd member
  RULE            the command starts etcd
  ENDPOINT        https://10.244.0.8:2379
  STORAGE         persistent (data-etcd-1)
  CREDENTIALS     Secret etcd-client-tls (certificates): exists; readable by you; not readable by the guard; keys tls.crt, tls.key, ca.crt
  ROLE            to apply: kubectl etcd-guard inspect -n prod etcd-1 --role | kubectl apply -f -
```
",
    ),
];

/// Whether an argument is described once for all commands.
fn is_common(common: &[Arg], command: &str, argument: &Arg) -> bool {
    let id = argument.get_id();
    let has_own_help = id == "namespace" && NAMESPACES.iter().any(|(name, _)| *name == command);
    !has_own_help
        && common.iter().any(|other| other.get_id() == id && other.get_help() == argument.get_help())
}

fn section(page: &mut String, name: &str, command: &Command, common: &[Arg]) {
    let _ = writeln!(page, "## {name}\n");
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    for paragraph in about.split("\n\n") {
        let end = if paragraph.ends_with('.') { "" } else { "." };
        let _ = writeln!(page, "{}{end}\n", paragraph.replace('\n', " "));
    }
    let nested: Vec<_> = command.get_subcommands().filter(|command| command.get_name() != "help").collect();
    if !nested.is_empty() {
        for command in nested {
            section(page, &format!("{name} {}", command.get_name()), command, common);
        }
        return;
    }
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(page, "```text\n{}\n```\n", unindented(&examples));
    for (_, output) in OUTPUTS.iter().filter(|(of, _)| *of == name) {
        let _ = writeln!(page, "{output}");
    }
    let own: Vec<_> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !is_common(common, name, argument))
        .filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version"))
        .collect();
    page.push_str(&table(&own));
}

/// Returns the examples without their title.
fn unindented(examples: &str) -> String {
    let lines = examples.lines().skip(1).map(|line| line.strip_prefix("  ").unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

fn page() -> String {
    let mut command = command();
    command.build();
    let status = command.find_subcommand("status").unwrap();
    let of_all = command
        .get_arguments()
        .filter(|argument| argument.get_id() != "help")
        .map(|argument| argument.get_id().clone());
    let of_all: Vec<_> = of_all.collect();
    let common: Vec<Arg> =
        status.get_arguments().filter(|argument| of_all.contains(argument.get_id())).cloned().collect();

    let mut page = String::from(BEGINNING);
    page.push_str("| | command | |\n| --- | --- | --- |\n");
    for (title, names) in GROUPS {
        for name in names {
            let about = command.find_subcommand(name).unwrap().get_about().unwrap().to_string();
            let _ = writeln!(page, "| {title} | [{name}](#{name}) | {} |", cell(&about));
        }
    }
    let (statuses, _) = EXIT_STATUS.split_once("\n\n").unwrap();
    page.push_str("\n## Exit status\n\n| status | meaning |\n| --- | --- |\n");
    for line in statuses.lines().skip(1) {
        let (status, meaning) = line.trim().split_once("  ").unwrap();
        let _ = writeln!(page, "| {status} | {meaning} |");
    }
    page.push_str("\n## Common flags\n\nThey may precede the command.\n\n");
    page.push_str(&table(&common.iter().collect::<Vec<_>>()));
    page.push_str(CONNECTION);
    for name in GROUPS.iter().flat_map(|(_, names)| *names) {
        section(&mut page, name, command.find_subcommand(name).unwrap(), &common);
    }
    page.push_str(END);
    page
}

#[test]
fn page_is_current() -> anyhow::Result<()> {
    ensure_current(PAGE, &page())
}

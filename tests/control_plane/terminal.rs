//! `etcd-guard check` and `etcd-guard status` where a person watches: colours, and a table that follows the cluster.

use crate::support::{
    cli,
    guarded_cluster::{GuardedCluster, START_LIMIT},
    process_node::Order,
    terminal::Terminal,
};

/// With it every style begins.
const ESCAPE: char = '\u{1b}';

/// What a terminal has that begins at its top.
const CLEARED: &str = "\u{1b}[H\u{1b}[2J";

/// The last line of a cluster without reservations and problems.
const LAST: &str = "policy mode: enforce (configuration)";

/// The last line of an answer about a pod of such a cluster.
const OF_CHECK: &str = "mode: enforce (configuration)";

/// What a command shows at a terminal, when it has shown its end.
async fn shown(
    etcd: &GuardedCluster,
    command: &str,
    argument: &str,
    environment: &[(&str, &str)],
    end: &str,
) -> String {
    Terminal::of(program(etcd, command, &[argument], environment))
        .until(START_LIMIT, |it| it.contains(end))
        .await
}

/// A command as a person has it who chose nothing about colours but this.
fn program(
    etcd: &GuardedCluster,
    command: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> std::process::Command {
    let mut program = cli::program(etcd, command, arguments);
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        program.env_remove(name);
    }
    program.env("TERM", "xterm-256color").envs(environment.iter().copied());
    program
}

/// What is on the screen after the last time that it was cleared.
fn screen(shown: &str) -> &str {
    shown.rsplit(CLEARED).next().unwrap_or_default()
}

#[tokio::test]
async fn colours_are_for_terminals_and_for_those_who_want_them() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    for (command, argument, end) in [("status", "--interval=1s", LAST), ("check", leader.as_str(), OF_CHECK)]
    {
        let coloured = shown(&etcd, command, argument, &[], end).await;
        assert!(coloured.contains(ESCAPE), "{command}: {coloured:?}");
        for environment in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let plain = shown(&etcd, command, argument, &[environment], end).await;
            assert!(!plain.contains(ESCAPE), "{command} with {environment:?}: {plain:?}");
        }
        let piped = cli::run(&etcd, command, &[argument]).await;
        assert!(piped.stdout.contains(end), "{piped:?}");
        assert!(!piped.stdout.contains(ESCAPE) && !piped.stderr.contains(ESCAPE), "{piped:?}");
    }
}

/// Also where no colours are wanted.
#[tokio::test]
async fn a_watched_status_is_shown_again_from_the_top_and_follows_the_cluster() {
    let etcd = GuardedCluster::start().await;
    let [follower, _] = etcd.followers().await;
    let arguments = ["--watch", "--interval=200ms"];
    let watching = Terminal::of(program(&etcd, "status", &arguments, &[("NO_COLOR", "1")]));
    let until = async |numbers: &str| {
        watching.until(START_LIMIT, |it| screen(it).contains(numbers) && screen(it).contains(LAST)).await
    };
    let shown = until("3 voters, 3 healthy, quorum 2, 1 to spare").await;
    let table = screen(&shown).split(LAST).next().unwrap();
    assert!(shown.starts_with(CLEARED) && !table.contains(ESCAPE), "{shown:?}");
    etcd.order(&follower, Order::Pause).await;
    let shown = until("3 voters, 2 healthy, quorum 2, none to spare").await;
    assert!(screen(&shown).contains("silent"), "{}", screen(&shown));
    etcd.order(&follower, Order::Resume).await;
    until("3 voters, 3 healthy, quorum 2, 1 to spare").await;
}

#[tokio::test]
async fn a_watched_status_in_json_is_a_line_each_time_and_clears_nothing() {
    let etcd = GuardedCluster::start().await;
    let arguments = ["--watch", "--interval=200ms", "-o", "json"];
    let shown = Terminal::of(program(&etcd, "status", &arguments, &[]))
        .until(START_LIMIT, |it| it.matches('\n').count() >= 2)
        .await;
    assert!(!shown.contains(ESCAPE), "{shown:?}");
    for line in shown.lines().take(2) {
        let survey: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
        assert_eq!(survey["clusters"][0]["voters"], 3, "{line}");
    }
}

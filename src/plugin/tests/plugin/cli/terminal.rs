//! `kubectl etcd-guard check` and `kubectl etcd-guard status` on a terminal: colours, and a table that is updated.

use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    processes::terminal::Terminal,
};

/// The first character of every ANSI style.
const ESCAPE: char = '\u{1b}';

/// The sequence that clears the terminal and moves to its top.
const CLEARED: &str = "\u{1b}[H\u{1b}[2J";

/// The last line about a cluster without reservations and problems.
const LAST: &str = "policy mode: enforce (configuration)";

/// The last line of a check of a pod of such a cluster.
const LAST_OF_CHECK: &str = "mode: enforce (configuration)";

/// Returns the output of a command on a terminal, once its last line is shown.
async fn shown(
    etcd: &GuardedCluster,
    command: &str,
    argument: &str,
    environment: &[(&str, &str)],
    end: &str,
) -> String {
    Terminal::start(program(etcd, command, &[argument], environment))
        .wait_until_shown(START_TIMEOUT, |text| text.contains(end))
        .await
}

/// Returns a command with only these variables for colours in its environment.
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

/// Returns the contents of the screen after it was last cleared.
fn screen(shown: &str) -> &str {
    shown.rsplit(CLEARED).next().unwrap_or_default()
}

#[tokio::test]
async fn uses_colours_only_on_terminals() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    for (command, argument, end) in
        [("status", "--interval=1s", LAST), ("check", leader.as_str(), LAST_OF_CHECK)]
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

/// This also applies without colours.
#[tokio::test]
async fn watched_status_redraws_and_follows_the_cluster() {
    let etcd = GuardedCluster::start().await;
    let [follower, _] = etcd.followers().await;
    let arguments = ["--watch", "--interval=200ms"];
    let watching = Terminal::start(program(&etcd, "status", &arguments, &[("NO_COLOR", "1")]));
    let wait_until = async |numbers: &str| {
        watching
            .wait_until_shown(START_TIMEOUT, |text| {
                screen(text).contains(numbers) && screen(text).contains(LAST)
            })
            .await
    };
    let shown = wait_until("3 voters, 3 healthy, quorum 2, 1 to spare").await;
    let table = screen(&shown).split(LAST).next().unwrap();
    assert!(shown.starts_with(CLEARED) && !table.contains(ESCAPE), "{shown:?}");
    etcd.apply(&follower, ProcessAction::Pause).await;
    let shown = wait_until("3 voters, 2 healthy, quorum 2, 0 to spare").await;
    assert!(screen(&shown).contains("silent"), "{}", screen(&shown));
    etcd.apply(&follower, ProcessAction::Resume).await;
    wait_until("3 voters, 3 healthy, quorum 2, 1 to spare").await;
}

#[tokio::test]
async fn watched_status_in_json_prints_one_line_each() {
    let etcd = GuardedCluster::start().await;
    let arguments = ["--watch", "--interval=200ms", "-o", "json"];
    let shown = Terminal::start(program(&etcd, "status", &arguments, &[]))
        .wait_until_shown(START_TIMEOUT, |text| text.matches('\n').count() >= 2)
        .await;
    assert!(!shown.contains(ESCAPE), "{shown:?}");
    for line in shown.lines().take(2) {
        let survey: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
        assert_eq!(survey["clusters"][0]["voters"], 3, "{line}");
    }
}

//! `kubectl etcd-guard status` of one cluster, its exit status, its formats, and `--watch` while the guard is absent.

use nix::sys::signal::Signal;
use serde_json::Value;

use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    processes::terminal::Terminal,
    wait::wait_until,
};

#[tokio::test]
async fn status_selects_cluster_and_prints_each_format() {
    let etcd = GuardedCluster::start().await;
    let namespace = etcd.namespace.clone();
    let qualified = format!("{namespace}/etcd");
    for arguments in [&["etcd"][..], &[qualified.as_str()]] {
        let (status, survey) = cli::json(&etcd, "status", arguments).await;
        assert_eq!((status, &survey["clusters"][0]["name"]), (Some(0), &"etcd".into()), "{survey}");
    }
    let printed = cli::run(&etcd, "status", &["other"]).await;
    assert_eq!((printed.status, printed.stdout.as_str()), (Some(2), ""), "{printed:?}");
    let text = format!(
        "error: no etcd cluster other was found in namespace {namespace}; list the clusters: kubectl"
    );
    assert!(printed.stderr.starts_with(&text), "{printed:?}");
    let printed = cli::run(&etcd, "status", &["elsewhere/etcd"]).await;
    assert_eq!(printed.status, Some(2), "the namespaces differ: {printed:?}");

    let names = cli::run(&etcd, "status", &["-o", "name"]).await;
    assert_eq!((names.status, names.stdout), (Some(0), format!("{qualified}\n")));
    let yaml = cli::run(&etcd, "status", &["-o", "yaml"]).await;
    let yaml: Value = serde_saphyr::from_str(&yaml.stdout).unwrap();
    assert_eq!(yaml["clusters"][0]["voters"], 3, "{yaml}");
    let wide = cli::run(&etcd, "status", &["-o", "wide"]).await.stdout;
    let pod = etcd.pods.get("etcd-0").await.unwrap();
    let address = pod.status.unwrap().pod_ip.unwrap();
    let row = wide.lines().find(|line| line.trim_start().starts_with("etcd-0 "));
    assert!(wide.contains("ADDRESS") && row.is_some_and(|row| row.ends_with(&address)), "{wide}");
}

#[tokio::test]
async fn exit_code_reports_lost_quorum() {
    let etcd = GuardedCluster::start().await;
    let exit_code = async |arguments: &[&str]| cli::run(&etcd, "status", arguments).await;
    assert_eq!(exit_code(&["--exit-code"]).await.status, Some(0));
    let paused = ["etcd-0", "etcd-1"];
    for pod in paused {
        etcd.apply(pod, ProcessAction::Pause).await;
    }
    wait_until("the exit status reports the loss", START_TIMEOUT, async || {
        let printed = exit_code(&["--exit-code"]).await;
        printed.status == Some(1)
            && printed.stderr.contains(&format!("error: cluster {}/etcd ", etcd.namespace))
    })
    .await;
    assert_eq!(exit_code(&[]).await.status, Some(0), "the status alone was read");
    for pod in paused {
        etcd.apply(pod, ProcessAction::Resume).await;
    }
    wait_until("the quorum is back", START_TIMEOUT, async || {
        exit_code(&["etcd", "--exit-code"]).await.status == Some(0)
    })
    .await;
}

#[tokio::test]
async fn watched_status_survives_failed_refreshes() {
    let mut etcd = GuardedCluster::start().await;
    let arguments = ["--watch", "--interval=200ms", "-o", "json"];
    let mut program = cli::program(&etcd, "status", &arguments);
    program.env("NO_COLOR", "1");
    let watching = Terminal::start(program);
    let lines = |text: &str| text.lines().filter(|line| line.starts_with('{')).count();
    watching.wait_until_shown(START_TIMEOUT, |text| lines(text) >= 1).await;
    etcd.guard.kill();
    let shown = watching.wait_until_shown(START_TIMEOUT, |text| text.contains("error: ")).await;
    assert!(shown.contains("failed to connect to the guard"), "{shown}");
    etcd.guard.restart().await;
    let before = lines(&watching.shown());
    watching.wait_until_shown(START_TIMEOUT, |text| lines(text) > before + 1).await;

    // Without a first status, there is nothing to continue with.
    etcd.guard.kill();
    let printed = cli::run(&etcd, "status", &arguments).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.starts_with("error: failed to connect to the guard"), "{printed:?}");
    etcd.guard.restart().await;
}

/// The last status stays on the screen, with the error below it.
#[tokio::test]
async fn failed_refresh_keeps_last_status_on_screen() {
    let mut etcd = GuardedCluster::start().await;
    let mut program = cli::program(&etcd, "status", &["--watch", "--interval=200ms"]);
    program.env("NO_COLOR", "1").env("TERM", "xterm-256color");
    let watching = Terminal::start(program);
    watching.wait_until_shown(START_TIMEOUT, |text| text.contains("3 voters")).await;
    etcd.guard.kill();
    let screen = |text: &str| text.rsplit("\u{1b}[H\u{1b}[2J").next().unwrap_or_default().to_owned();
    watching
        .wait_until_shown(START_TIMEOUT, |text| {
            let screen = screen(text);
            let (status, error) = (screen.find("3 voters"), screen.find("error: "));
            status.is_some() && error > status
        })
        .await;
    etcd.guard.restart().await;
    watching
        .wait_until_shown(START_TIMEOUT, |text| {
            screen(text).contains("3 voters") && !screen(text).contains("error: ")
        })
        .await;
}

#[tokio::test]
async fn long_wait_names_the_awaited_replica() {
    let etcd = GuardedCluster::start().await;
    for (command, argument) in [("status", "etcd"), ("check", "etcd-0"), ("doctor", "--output=json")] {
        etcd.guard.signal(Signal::SIGSTOP);
        let waiting = Terminal::start(cli::program(&etcd, command, &[argument]));
        let expected = format!("waiting for the response of the replica at http://{}/", etcd.guard.http());
        waiting.wait_until_shown(START_TIMEOUT, |text| text.contains(&expected)).await;
        etcd.guard.signal(Signal::SIGCONT);
    }
    let quick = cli::run(&etcd, "status", &[]).await;
    assert!(quick.status == Some(0), "{quick:?}");
}

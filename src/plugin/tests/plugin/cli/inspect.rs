//! `kubectl etcd-guard inspect`: live reads, reviews of access, and the Role that it prints.

use std::process::Stdio;

use serde_json::Value;

use test_support::{
    guard::cli::CliOutput,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    processes::child::{run_to_end, scoped_command},
    project,
    wait::wait_for,
};

/// The guard's account as kubectl impersonates it.
const GUARD: &str = "--as=system:serviceaccount:etcd-guard:etcd-guard";

async fn inspect(etcd: &GuardedCluster, arguments: &[&str]) -> CliOutput {
    let mut program = scoped_command(project::plugin_program());
    program.arg("inspect").args(arguments).args(["-n", &etcd.namespace]).stdin(Stdio::null());
    program.arg("--kubeconfig").arg(etcd.control_plane.admin_kubeconfig());
    let output = run_to_end(program).await;
    CliOutput {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

async fn inspect_json(etcd: &GuardedCluster, arguments: &[&str]) -> Value {
    let printed = inspect(etcd, &[arguments, &["-o", "json"]].concat()).await;
    serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("no JSON: {printed:?}"))
}

/// Whether the guard's account may read a Secret.
async fn can_read(etcd: &GuardedCluster, secret: &str) -> bool {
    etcd.kubectl(&["get", "secret", secret, "-o", "name", GUARD]).await.success
}

/// Applies what `inspect --role` has printed.
async fn apply(etcd: &GuardedCluster, printed: &CliOutput) {
    let file = etcd.dir().join("role.yaml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let output = etcd.kubectl(&["apply", "-f", &file.to_string_lossy()]).await;
    assert!(output.success, "{output:?} {printed:?}");
}

#[tokio::test]
async fn printed_role_permits_exactly_the_needed_secrets() {
    let etcd = GuardedCluster::start().await;
    let report = inspect_json(&etcd, &["etcd-0"]).await;
    assert_eq!((&report["recognized"], &report["reason"]), (&true.into(), &"Recognized".into()), "{report}");
    assert_eq!(report["guarded"], true, "{report}");
    assert_eq!(report["storage"], "persistent", "{report}");
    assert_eq!(report["role"], serde_json::json!([]), "the members require no credentials: {report}");
    let printed = inspect(&etcd, &["etcd-0", "--role"]).await;
    assert!(printed.status == Some(0) && printed.stdout.starts_with("# "), "{printed:?}");

    let printed = inspect(&etcd, &["unrelated"]).await;
    assert_eq!(printed.status, Some(1), "{printed:?}");
    assert!(printed.stdout.starts_with("NOT RECOGNIZED NotEtcd: "), "{printed:?}");
    let printed = inspect(&etcd, &["missing"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");

    let secret = ["create", "secret", "generic"];
    let content = ["--from-literal=username=guard", "--from-literal=password=very-secret"];
    for name in ["etcd-user", "other"] {
        let output = etcd.kubectl(&[&secret[..], &[name], &content].concat()).await;
        assert!(output.success, "{output:?}");
    }
    let annotate = ["annotate", "statefulset/etcd", "etcd-guard.io/auth-secret=etcd-user"];
    let output = etcd.kubectl(&annotate).await;
    assert!(output.success, "{output:?}");

    let before = inspect_json(&etcd, &["etcd-0"]).await;
    let credential = &before["credentials"][0];
    assert_eq!((&credential["name"], &credential["exists"]), (&"etcd-user".into(), &true.into()), "{before}");
    assert_eq!(
        (&credential["callerCanRead"], &credential["guardCanRead"]),
        (&true.into(), &false.into()),
        "{before}"
    );
    let printed = inspect(&etcd, &["statefulset/etcd", "--role"]).await;
    assert!(printed.status == Some(0) && !printed.stdout.contains("very-secret"), "{printed:?}");
    assert!(!can_read(&etcd, "etcd-user").await);
    apply(&etcd, &printed).await;
    assert!(can_read(&etcd, "etcd-user").await);
    assert!(!can_read(&etcd, "other").await);
    let list = etcd.kubectl(&["get", "secrets", GUARD]).await;
    assert!(!list.success, "{list:?}");

    let after = inspect_json(&etcd, &["etcd-0"]).await;
    assert_eq!(after["credentials"][0]["guardCanRead"], true, "{after}");
    let table = inspect(&etcd, &["etcd-0"]).await;
    assert!(table.stdout.contains("granted already") && !table.stdout.contains("very-secret"), "{table:?}");
}

/// Adds a preStop hook whose script is in a `ConfigMap`, as in charts 4 to 6 of Bitnami.
fn with_script(manifest: &str) -> String {
    let (containers, mounts) = ("      containers:\n", "        volumeMounts:\n");
    assert!(manifest.contains(containers) && manifest.contains(mounts), "the shipped manifest has changed");
    let volume =
        "      volumes:\n      - {name: scripts, configMap: {name: etcd-scripts, defaultMode: 493}}\n";
    let hook = "        lifecycle: {preStop: {exec: {command: [/scripts/prestop-hook.sh]}}}\n";
    let mount = "        - {name: scripts, mountPath: /scripts/prestop-hook.sh, subPath: prestop-hook.sh}\n";
    let manifest = manifest.replacen(containers, &format!("{volume}{containers}"), 1);
    manifest.replacen(mounts, &format!("{hook}{mounts}{mount}"), 1)
}

/// Starts members with this script, deletes a follower, and follows the advice of the denial. Returns the name of the follower, and
/// the first answer to its deletion that does not depend on the Role.
async fn delete_with_role(etcd: &GuardedCluster, script: &str) -> (String, Result<(), String>) {
    let script = format!("--from-literal=prestop-hook.sh={script}");
    let output = etcd.kubectl(&["create", "configmap", "etcd-scripts", &script]).await;
    assert!(output.success, "{output:?}");
    let [follower, _] = etcd.followers().await;
    // A busy machine can cause other denials.
    let denial = wait_for("the script decides", START_TIMEOUT, async || {
        let denial = etcd.delete(&follower).await.expect_err("the guard may not read the script");
        denial.contains("PermanentLoss: ").then_some(denial)
    });
    let denial = denial.await;
    let unread = format!(
        "a preStop hook of {follower} runs a script that may remove its member, /scripts/prestop-hook.sh (the guard is not allowed \
         to read ConfigMap {}/etcd-scripts",
        etcd.namespace
    );
    assert!(denial.contains(&unread), "{denial}");
    let namespace = &etcd.namespace;
    let advice = format!(
        "Let the guard read the script: kubectl etcd-guard inspect -n {namespace} {follower} --role | kubectl apply -f -"
    );
    assert!(denial.contains(&advice), "{denial}");
    apply(etcd, &inspect(etcd, &[&follower, "--role"]).await).await;
    let answer = wait_for("the guard reads the script", START_TIMEOUT, async || {
        let answer = etcd.delete(&follower).await;
        let is_read = |denial: &String| {
            denial.contains("PermanentLoss: ") && !denial.contains("is not allowed to read")
        };
        answer.as_ref().map_or_else(is_read, |()| true).then_some(answer)
    });
    let answer = answer.await;
    (follower, answer)
}

#[tokio::test]
async fn harmless_script_of_a_hook_is_approved_after_the_role_is_applied() {
    let mut etcd = GuardedCluster::start_as(Setup { change_manifest: with_script, ..Setup::default() }).await;
    let script =
        "#!/bin/bash\nsleep 1\netcdctl endpoint health && etcdctl move-leader \"$TRANSFEREE\" || true\n";
    let (_, answer) = delete_with_role(&etcd, script).await;
    answer.unwrap();
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed SafeToDelete")), "{verdicts:?}");
}

#[tokio::test]
async fn script_of_a_hook_that_removes_the_member_is_denied_after_the_role_is_applied() {
    let etcd = GuardedCluster::start_as(Setup { change_manifest: with_script, ..Setup::default() }).await;
    let script = "#!/bin/bash\netcdctl $AUTH_OPTIONS member remove \"$(cat \"$ETCD_DATA_DIR/member_id\")\"\n";
    let (follower, answer) = delete_with_role(&etcd, script).await;
    let denial = answer.expect_err("two members would remain");
    let removal = format!("PermanentLoss: a preStop hook of {follower} removes its member");
    assert!(denial.contains(&removal), "{denial}");
}

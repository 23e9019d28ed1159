//! `kubectl etcd-guard inspect`: live reads, reviews of access, and the Role that it prints.

use std::process::Stdio;

use serde_json::Value;

use test_support::{
    guard::cli::CliOutput,
    guarded_cluster::GuardedCluster,
    processes::child::{run_to_end, scoped_command},
    project,
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
    let file = etcd.dir().join("role.yaml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let output = etcd.kubectl(&["apply", "-f", &file.to_string_lossy()]).await;
    assert!(output.success, "{output:?} {}", printed.stdout);
    assert!(can_read(&etcd, "etcd-user").await);
    assert!(!can_read(&etcd, "other").await);
    let list = etcd.kubectl(&["get", "secrets", GUARD]).await;
    assert!(!list.success, "{list:?}");

    let after = inspect_json(&etcd, &["etcd-0"]).await;
    assert_eq!(after["credentials"][0]["guardCanRead"], true, "{after}");
    let table = inspect(&etcd, &["etcd-0"]).await;
    assert!(table.stdout.contains("granted already") && !table.stdout.contains("very-secret"), "{table:?}");
}

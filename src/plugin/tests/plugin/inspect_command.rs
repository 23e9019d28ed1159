//! `kubectl etcd-guard inspect` without a cluster: the reports of the objects in a file.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use test_support::{processes::child::scoped_command, project::plugin_program};

/// A StatefulSet with its namespace and its Secret, the mirror of a static pod, and a Deployment without etcd.
const MANIFEST: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: prod, labels: {etcd-guard.io/guard: enabled}}
---
apiVersion: v1
kind: Secret
metadata: {name: etcd-tls, namespace: prod}
stringData: {ca.crt: ca-content, tls.crt: certificate-content, tls.key: very-secret-content}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: etcd, namespace: prod}
spec:
  serviceName: etcd
  template:
    spec:
      containers:
      - name: etcd
        image: quay.io/coreos/etcd:v3.6.17
        command: [etcd, --cert-file=/tls/tls.crt, --key-file=/tls/tls.key, --trusted-ca-file=/tls/ca.crt]
        args: [--client-cert-auth, '--listen-client-urls=https://0.0.0.0:2379']
        volumeMounts:
        - {name: data, mountPath: /data}
        - {name: tls, mountPath: /tls}
      volumes:
      - {name: tls, secret: {secretName: etcd-tls}}
  volumeClaimTemplates:
  - {metadata: {name: data}}
---
apiVersion: v1
kind: Pod
metadata:
  name: etcd-node-1
  namespace: kube-system
  annotations: {kubernetes.io/config.mirror: abc}
spec:
  containers:
  - {name: etcd, image: 'registry.k8s.io/etcd:3.6.4-0', command: [etcd, '--listen-client-urls=https://0.0.0.0:2379']}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: prod}
spec:
  template:
    spec:
      containers:
      - {name: web, image: nginx}
";

/// Runs `kubectl etcd-guard inspect ARGUMENTS` with this standard input.
fn inspect(arguments: &[&str], input: &str) -> Output {
    let mut plugin: Command = scoped_command(plugin_program());
    plugin.arg("inspect").args(arguments).env("KUBECONFIG", "/nonexistent");
    plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = plugin.spawn().unwrap();
    // The program does not read the input if its arguments are invalid.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn printed(output: &Output, status: i32) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{stdout}{stderr}");
    for secret in ["very-secret-content", "certificate-content", "ca-content"] {
        assert!(!stdout.contains(secret) && !stderr.contains(secret), "{stdout}{stderr}");
    }
    stdout
}

fn manifest(folder: &Path) -> String {
    let file = folder.join("etcd.yaml");
    std::fs::write(&file, MANIFEST).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn inspect_reads_objects_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = manifest(folder.path());
    let in_file = |arguments: &[&str]| inspect(&[arguments, &["-f", &file]].concat(), "");

    let table = printed(&in_file(&["statefulset/etcd", "-n", "prod"]), 0);
    assert!(table.contains("RECOGNIZED") && table.contains("etcd-tls"), "{table}");
    let json = printed(&in_file(&["sts/etcd", "-n", "prod", "-o", "json"]), 0);
    let report: Value = serde_json::from_str(&json).unwrap();
    for (field, value) in
        [("recognized", Value::from(true)), ("guarded", true.into()), ("storage", "persistent".into())]
    {
        assert_eq!(report[field], value, "{report:#}");
    }
    // Secrets with conventional names precede those of the volumes, and the file does not contain them.
    let credentials = report["credentials"].as_array().unwrap();
    let credential = credentials.iter().find(|credential| credential["name"] == "etcd-tls").unwrap();
    assert_eq!(credential["exists"], true, "{report:#}");
    assert_eq!(credential["keys"], serde_json::json!(["tls.crt", "tls.key", "ca.crt"]), "{report:#}");

    // Standard input, and YAML with the same values.
    let yaml = printed(&inspect(&["sts/etcd", "-n", "prod", "-o", "yaml", "-f", "-"], MANIFEST), 0);
    let from_yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    for field in ["recognized", "container", "endpoint", "serverName", "credentials", "role", "policy"] {
        assert_eq!(from_yaml[field], report[field], "{field}: {yaml}");
    }

    let role = printed(&in_file(&["sts/etcd", "-n", "prod", "--role"]), 0);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&role).unwrap();
    let permission = &documents[0]["rules"][0];
    let secrets = permission["resourceNames"].as_array().unwrap();
    assert!(secrets.contains(&"etcd-tls".into()), "{role}");
    assert_eq!(
        (&documents[0]["kind"], &documents[1]["kind"]),
        (&"Role".into(), &"RoleBinding".into()),
        "{role}"
    );
}

#[test]
fn inspect_status_states_whether_a_member_was_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = manifest(folder.path());
    let json = |arguments: &[&str], status| -> Value {
        let output = inspect(&[arguments, &["-f", &file, "-o", "json"]].concat(), "");
        serde_json::from_str(&printed(&output, status)).unwrap()
    };
    let mirror = json(&["etcd-node-1", "-n", "kube-system"], 1);
    assert_eq!(
        (&mirror["recognized"], &mirror["reason"]),
        (&false.into(), &"MirrorPod".into()),
        "{mirror:#}"
    );
    let deployment = json(&["deployment/web", "-n", "prod"], 1);
    assert_eq!(
        (&deployment["recognized"], &deployment["reason"]),
        (&false.into(), &"NotEtcd".into()),
        "{deployment:#}"
    );
    // One member among all objects is sufficient.
    let all = json(&[], 0);
    assert_eq!(all["items"].as_array().map(Vec::len), Some(3), "{all:#}");

    let role = inspect(&["deployment/web", "-n", "prod", "-f", &file, "--role"], "");
    assert!(printed(&role, 1).starts_with("# etcd-guard needs no Role for "));
    for arguments in [
        &["missing", "-n", "prod", "-f", file.as_str()][..],
        &["-f", "/nonexistent.yaml"],
        &["--role", "-o", "json", "-f", file.as_str()],
    ] {
        let output = inspect(arguments, "");
        assert!(printed(&output, 2).is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
    printed(&inspect(&["-f", "-"], "kind: [\n"), 2);
}

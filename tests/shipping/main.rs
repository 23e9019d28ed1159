//! The shipped manifests, chart, permissions, scripts and self-managed certificates, with a real API server.

// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod artifacts;
mod certificates;
mod pods;
mod registration;

use std::{path::PathBuf, process::Command};

use kube::config::{AuthInfo, Kubeconfig};
use serde_json::Value;
use test_support::{
    kubernetes::control_plane::ControlPlane,
    processes::{child::scoped_command, testbed::program},
};

/// Returns the path of a file of the project.
fn project_path(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// Returns the output of `kubectl kustomize` for a folder.
fn kustomize(folder: &str) -> String {
    stdout(scoped_command(program("kubectl")).arg("kustomize").arg(project_path(folder)))
}

/// Returns the output of `helm template` for the chart with these flags.
fn helm_template(flags: &[&str]) -> String {
    let mut command = scoped_command(program("helm"));
    command
        // Helm built without a version assumes an old Kubernetes version.
        .args(["template", "etcd-guard", "--namespace=etcd-guard", "--kube-version=1.37.2"])
        .arg(project_path("deploy/chart/etcd-guard"))
        .args(flags);
    stdout(&mut command)
}

fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Writes a kubeconfig with this token, under the name of its account.
fn kubeconfig_with(control_plane: &ControlPlane, account: &str, token: &str) -> PathBuf {
    let mut kubeconfig = Kubeconfig::read_from(control_plane.admin_kubeconfig()).unwrap();
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() });
    }
    let path = control_plane.dir.join(format!("{account}.kubeconfig"));
    std::fs::write(&path, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    path
}

/// Parses a stream of YAML documents, and sorts the objects by kind, namespace and name.
fn objects(yaml: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let mut objects: Vec<Value> = documents.into_iter().filter(|document| !document.is_null()).collect();
    objects.sort_by_key(identity);
    objects
}

fn identity(object: &Value) -> String {
    format!("{} {} {}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"])
}

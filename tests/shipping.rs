//! What is shipped, held against a real apiserver: manifests, chart, permissions, and certificates that the guard manages
//! itself.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "shipping/apiserver_identity.rs"]
mod apiserver_identity;
#[path = "shipping/chart.rs"]
mod chart;
#[path = "shipping/chart_variants.rs"]
mod chart_variants;
#[path = "shipping/completion.rs"]
mod completion;
#[path = "shipping/confined.rs"]
mod confined;
#[path = "shipping/differing_replicas.rs"]
mod differing_replicas;
#[path = "shipping/ended_files.rs"]
mod ended_files;
#[path = "shipping/image.rs"]
mod image;
#[path = "shipping/krew.rs"]
mod krew;
#[path = "shipping/lost_key.rs"]
mod lost_key;
#[path = "shipping/lxcfs_label.rs"]
mod lxcfs_label;
#[path = "shipping/manifests.rs"]
mod manifests;
#[path = "shipping/monitoring.rs"]
mod monitoring;
#[path = "shipping/other_parts.rs"]
mod other_parts;
#[path = "shipping/permissions.rs"]
mod permissions;
#[path = "shipping/placed.rs"]
mod placed;
#[path = "shipping/register_end.rs"]
mod register_end;
#[path = "shipping/register_start.rs"]
mod register_start;
#[path = "shipping/scripts.rs"]
mod scripts;
#[path = "shipping/self_managed.rs"]
mod self_managed;
#[path = "shipping/uninstall.rs"]
mod uninstall;

#[allow(dead_code, unreachable_pub, reason = "shared with other tests, which use other parts of it")]
#[path = "support"]
mod support {
    pub mod api_client;
    pub mod child;
    pub mod control_plane;
    pub mod freeze;
    pub mod guard_process;
    pub mod http_client;
    pub mod kubectl;
    pub mod member;
    pub mod process_node;
    pub mod prometheus;
    pub mod review;
    pub mod scheduler;
    pub mod self_managed_guard;
    pub mod testbed;
    pub mod wait;
}

use std::{path::PathBuf, process::Command};

use kube::config::{AuthInfo, Kubeconfig};
use serde_json::Value;
use support::{child::mortal, control_plane::ControlPlane, testbed::program};

/// A path of the project.
fn path_of(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// What `kubectl kustomize` makes of a folder.
fn kustomize(folder: &str) -> String {
    stdout(mortal(program("kubectl")).arg("kustomize").arg(path_of(folder)))
}

/// What `helm template` makes of the chart with these flags.
fn helm_template(flags: &[&str]) -> String {
    let mut command = mortal(program("helm"));
    command
        // What it would find; built without a version of its own, it takes an old one for granted.
        .args(["template", "etcd-guard", "--namespace=etcd-guard", "--kube-version=1.34.3"])
        .arg(path_of("deploy/chart/etcd-guard"))
        .args(flags);
    stdout(&mut command)
}

fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A kubeconfig of whoever holds this token.
fn kubeconfig_with(control_plane: &ControlPlane, token: &str) -> PathBuf {
    let mut kubeconfig = Kubeconfig::read_from(control_plane.admin_kubeconfig()).unwrap();
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() });
    }
    let path = control_plane.dir.join("token.kubeconfig");
    std::fs::write(&path, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    path
}

/// Objects of a stream of YAML documents, in an order of their own.
fn objects(yaml: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let mut objects: Vec<Value> = documents.into_iter().filter(|it| !it.is_null()).collect();
    objects.sort_by_key(identity);
    objects
}

fn identity(object: &Value) -> String {
    format!("{} {} {}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"])
}

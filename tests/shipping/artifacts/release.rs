//! `scripts/release`: one version, the notes of a release, and the chart of a registry.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::{objects, project_path, stdout};
use test_support::{processes::child::scoped_command, processes::testbed::program};

/// The files that the script reads.
const FILES: [&str; 11] = [
    "Cargo.toml",
    "Cargo.lock",
    "CHANGELOG.md",
    "scripts/release",
    "scripts/lib",
    "deploy/Dockerfile",
    "deploy/base",
    "deploy/components",
    "deploy/lxcfs",
    "deploy/monitoring",
    "deploy/chart",
];

/// Copies the files of the project that the script reads.
fn copy_project(folder: &Path) {
    for file in FILES {
        let target = folder.join(file);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        stdout(Command::new("cp").arg("-R").arg(project_path(file)).arg(target));
    }
}

/// Runs the script of a project. Returns its output, or its errors if it fails.
fn release(project: &Path, arguments: &[&str]) -> Result<String, String> {
    let helm = program("helm");
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(helm, folder.path().join("helm")).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut command = scoped_command(project.join("scripts/release"));
    let output = command.args(arguments).env("PATH", path).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn all_files_have_version_of_cargo_manifest() {
    assert_eq!(release(&project_path(""), &["check"]), Ok(String::new()));
}

#[test]
fn version_command_changes_every_copy() {
    let folder = tempfile::tempdir().unwrap();
    copy_project(folder.path());
    assert!(release(folder.path(), &["check", "v7.8.9"]).unwrap_err().contains("v7.8.9"));
    assert_eq!(release(folder.path(), &["version", "7.8.9"]), Ok(String::new()));
    assert_eq!(release(folder.path(), &["check", "v7.8.9"]), Ok(String::new()));
    let notes = release(folder.path(), &["notes", "7.8.9"]).unwrap();
    assert!(notes.starts_with("### Added"), "{notes}");
    for file in ["deploy/Dockerfile", "deploy/base/kustomization.yaml", "deploy/lxcfs/Dockerfile"] {
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(text.contains("7.8.9") && !text.contains(env!("CARGO_PKG_VERSION")), "{file}: {text}");
    }

    // One copy differs.
    let file = folder.path().join("deploy/lxcfs/kustomization.yaml");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("7.8.9", "7.8.8")).unwrap();
    let error = release(folder.path(), &["check"]).unwrap_err();
    assert!(error.contains("deploy/lxcfs/kustomization.yaml has 7.8.8"), "{error}");
}

#[test]
fn packed_chart_names_images_of_registry() {
    let folder = tempfile::tempdir().unwrap();
    release(&project_path(""), &["chart", "registry.example/team", folder.path().to_str().unwrap()]).unwrap();
    let chart = folder.path().join(concat!("etcd-guard-", env!("CARGO_PKG_VERSION"), ".tgz"));
    let mut template = scoped_command(program("helm"));
    template.args(["template", "x", "--kube-version=1.34.3", "--set=parts.lxcfs=true"]).arg(chart);
    let mut images = Vec::new();
    for object in objects(&stdout(&mut template)) {
        let containers = object["spec"]["template"]["spec"]["containers"].as_array().cloned();
        images.extend(
            containers.unwrap_or_default().into_iter().map(|mut container| container["image"].take()),
        );
    }
    assert!(images.len() >= 4, "{images:?}");
    let is_of_registry = |image: &Value| {
        image.as_str().is_some_and(|image| image.starts_with("registry.example/team/etcd-guard"))
    };
    assert!(images.iter().all(is_of_registry), "{images:?}");
}

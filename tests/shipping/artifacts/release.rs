//! `scripts/release`: one version, the notes of a release, and the chart of a registry.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::{kustomize, objects, project_path, stdout};
use test_support::processes::{child::scoped_command, testbed::program};

/// The files that the script reads.
const FILES: [&str; 15] = [
    "Cargo.toml",
    "Cargo.lock",
    "CHANGELOG.md",
    "rust-toolchain.toml",
    ".github/workflows/ci.yml",
    "src",
    "scripts/release",
    "scripts/lib",
    "deploy/Dockerfile",
    "deploy/base",
    "deploy/components",
    "deploy/lxcfs",
    "deploy/monitoring",
    "deploy/overlays",
    "deploy/chart",
];

const CHART: &str = "deploy/chart/etcd-guard/Chart.yaml";

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
    let folder = tempfile::tempdir().unwrap();
    for name in ["helm", "kubectl"] {
        std::os::unix::fs::symlink(program(name), folder.path().join(name)).unwrap();
    }
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
    let changelog = fs::read_to_string(folder.path().join("CHANGELOG.md")).unwrap();
    assert!(!changelog.contains("Nothing has been released"), "{changelog}");
    let chart = chart(&fs::read_to_string(folder.path().join(CHART)).unwrap());
    let annotation = |chart: &Value, name: &str| chart["annotations"][name].as_str().unwrap().to_owned();
    assert_eq!(annotation(&chart, "artifacthub.io/prerelease"), "false");
    let changes: Value = serde_saphyr::from_str(&annotation(&chart, "artifacthub.io/changes")).unwrap();
    let entries = notes.lines().filter(|line| line.starts_with("- ")).count();
    assert_eq!(changes.as_array().unwrap().len(), entries, "{changes}");
    for change in changes.as_array().unwrap() {
        let kind = change["kind"].as_str().unwrap();
        assert!(
            ["added", "changed", "fixed", "security", "removed", "deprecated"].contains(&kind),
            "{change}"
        );
        assert!(!change["description"].as_str().unwrap().is_empty(), "{change}");
    }
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

/// The version in Cargo.toml has no section yet, which the documented command creates.
#[test]
fn first_release_follows_documented_steps() {
    let folder = tempfile::tempdir().unwrap();
    copy_project(folder.path());
    let version = env!("CARGO_PKG_VERSION");
    let tag = format!("v{version}");
    let changelog = folder.path().join("CHANGELOG.md");
    let is_released = fs::read_to_string(&changelog).unwrap().contains(&format!("\n## {version} - "));
    if !is_released {
        let error = release(folder.path(), &["check", &tag]).unwrap_err();
        assert!(error.contains(&format!("run scripts/release version {version}")), "{error}");
    }
    assert_eq!(release(folder.path(), &["version", version]), Ok(String::new()));
    assert_eq!(release(folder.path(), &["check", &tag]), Ok(String::new()));
    assert!(release(folder.path(), &["notes", version]).unwrap().contains("\n- "));
    assert!(fs::read_to_string(&changelog).unwrap().contains(&format!("\n## Unreleased\n\n## {version} - ")));

    assert_eq!(release(folder.path(), &["version", "0.3.0-rc.1"]), Ok(String::new()));
    let chart = chart(&fs::read_to_string(folder.path().join(CHART)).unwrap());
    assert_eq!(chart["annotations"]["artifacthub.io/prerelease"], "true");
}

fn chart(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn manifests_name_image_of_registry() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().to_str().unwrap();
    release(&project_path(""), &["manifests", "registry.example/team", target]).unwrap();
    let written = objects(&fs::read_to_string(folder.path().join("install.yaml")).unwrap());
    let mut shipped = objects(&kustomize("deploy/overlays/self-managed"));
    let mut images = 0;
    for object in &mut shipped {
        if let Some(image) = object.pointer_mut("/spec/template/spec/containers/0/image") {
            let name = format!("registry.example/team/{}", image.as_str().unwrap());
            *image = Value::String(name);
            images += 1;
        }
    }
    assert_eq!(images, 2);
    assert_eq!(written, shipped);
}

#[test]
fn packed_chart_names_images_of_registry() {
    let folder = tempfile::tempdir().unwrap();
    let url = "https://forge.example/team/etcd-guard";
    release(&project_path(""), &["chart", "registry.example/team", folder.path().to_str().unwrap(), url])
        .unwrap();
    let chart_file = folder.path().join(concat!("etcd-guard-", env!("CARGO_PKG_VERSION"), ".tgz"));
    let mut template = scoped_command(program("helm"));
    template.args(["template", "x", "--kube-version=1.37.2", "--set=parts.lxcfs=true"]).arg(&chart_file);
    template.arg("--set=monitoring.enabled=true");
    let mut images = Vec::new();
    for object in objects(&stdout(&mut template)) {
        if object["kind"] == "PrometheusRule" {
            let runbook = object.pointer("/spec/groups/0/rules/0/annotations/runbook_url").unwrap();
            assert!(runbook.as_str().unwrap().starts_with(&format!("{url}/blob/v")), "{runbook}");
        }
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
    let values = stdout(scoped_command(program("helm")).args(["show", "readme"]).arg(&chart_file));
    for row in ["`image.repository` | `\"registry.example/team/etcd-guard\"`", "team/etcd-guard-lxcfs\"`"] {
        assert!(values.contains(row), "the table of the values has no {row}");
    }
    let shown = stdout(scoped_command(program("helm")).args(["show", "chart"]).arg(&chart_file));
    let shown = chart(&shown);
    assert_eq!((&shown["home"], &shown["sources"][0]), (&Value::from(url), &Value::from(url)));
    let listed: Value =
        serde_saphyr::from_str(shown["annotations"]["artifacthub.io/images"].as_str().unwrap()).unwrap();
    let listed: Vec<&str> =
        listed.as_array().unwrap().iter().map(|image| image["image"].as_str().unwrap()).collect();
    let expected = ["etcd-guard", "etcd-guard-lxcfs"]
        .map(|name| format!("registry.example/team/{name}:{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(listed, expected);
    let links: Value =
        serde_saphyr::from_str(shown["annotations"]["artifacthub.io/links"].as_str().unwrap()).unwrap();
    assert!(links.as_array().unwrap().iter().all(|link| link["url"].as_str().unwrap().starts_with(url)));
}

/// `release.yml` and the rehearsal call this command; a file that is in the folder already, as the SBOM, has a checksum as well.
#[test]
fn files_of_a_release_have_checksums_and_one_address() {
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("programs");
    for platform in ["darwin-amd64", "darwin-arm64", "linux-amd64", "linux-arm64"] {
        let plugin = programs.join(format!("plugin-{platform}"));
        fs::create_dir_all(&plugin).unwrap();
        fs::write(plugin.join("kubectl-etcd_guard"), "a program").unwrap();
        // Beside the program, so that the list of licences is not made.
        fs::write(plugin.join("THIRD-PARTY.txt"), "licences").unwrap();
    }
    let dist = folder.path().join("dist");
    fs::create_dir(&dist).unwrap();
    fs::write(dist.join("etcd-guard.spdx.json"), "{}").unwrap();
    let url = "https://forge.example/team/etcd-guard";
    let arguments =
        ["files", "registry.example/team", url, programs.to_str().unwrap(), dist.to_str().unwrap()];
    assert_eq!(release(&project_path(""), &arguments), Ok(String::new()));

    let sums = fs::read_to_string(dist.join("SHA256SUMS")).unwrap();
    let files: Vec<&str> = sums.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let mut expected = ["darwin-amd64", "darwin-arm64", "linux-amd64", "linux-arm64"]
        .map(|platform| format!("etcd-guard-{version}-{platform}.tar.gz"))
        .to_vec();
    expected.extend([
        format!("etcd-guard-{version}.tgz"),
        String::from("etcd-guard.spdx.json"),
        String::from("etcd-guard.yaml"),
        String::from("install.yaml"),
    ]);
    assert_eq!(files, expected);
    let manifest: Value =
        serde_saphyr::from_str(&fs::read_to_string(dist.join("etcd-guard.yaml")).unwrap()).unwrap();
    assert_eq!(manifest["spec"]["homepage"], url);
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 4);
    let archives = format!("{url}/releases/download/v{version}/etcd-guard-{version}-");
    for platform in platforms {
        assert!(platform["uri"].as_str().unwrap().starts_with(&archives), "{platform}");
    }
}

//! The kubectl plugin as krew installs it.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use serde_json::Value;
use test_support::project::{self, plugin_program};

/// Runs the script, which must succeed.
fn krew(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(project::path("scripts/krew")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn krew_manifest_lists_all_platforms_of_release() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let program = folder.path().join("kubectl-etcd_guard");
    fs::write(&program, "program").unwrap();
    let program = program.to_str().unwrap();
    // A list that exists is used.
    fs::write(folder.path().join("THIRD-PARTY.txt"), "licences").unwrap();
    let platforms = ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"];
    for platform in platforms {
        krew(&["--pack", program, directory, "9.8.7", platform]);
    }
    let first = fs::read(folder.path().join("etcd-guard-9.8.7-linux-amd64.tar.gz")).unwrap();
    krew(&["--pack", program, directory, "9.8.7", "linux-amd64"]);
    assert_eq!(fs::read(folder.path().join("etcd-guard-9.8.7-linux-amd64.tar.gz")).unwrap(), first);
    let manifest = krew(&["--manifest", directory, "https://example.com/v9.8.7", "9.8.7"]);
    let manifest: Value = serde_saphyr::from_slice(&manifest).unwrap();
    assert_eq!(manifest["spec"]["version"], "v9.8.7");
    let listed: Vec<_> = manifest["spec"]["platforms"]
        .as_array()
        .unwrap()
        .iter()
        .map(|platform| {
            let [os, arch] =
                ["os", "arch"].map(|key| platform["selector"]["matchLabels"][key].as_str().unwrap());
            let uri = format!("https://example.com/v9.8.7/etcd-guard-9.8.7-{os}-{arch}.tar.gz");
            assert_eq!(platform["uri"], uri);
            format!("{os}-{arch}")
        })
        .collect();
    assert_eq!(listed, platforms);
}

/// Asserts that the document names every normal dependency of the program, as `cargo tree` prints them.
fn assert_licences(document: &str) {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--edges=normal", "--prefix=none", "--format={p}"]);
    let output = tree.arg("--package=etcd-guard-plugin").current_dir(project::path("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let mut count = 0;
    for line in tree.lines().filter(|line| !line.is_empty() && !line.starts_with("etcd-guard")) {
        let mut words = line.split(' ');
        let (name, version) = (words.next().unwrap(), words.next().unwrap().trim_start_matches('v'));
        assert!(document.contains(&format!("\n- {name} {version}: ")), "{name} {version} is missing");
        count += 1;
    }
    assert!(count > 100, "{count}");
    for text in ["Permission is hereby granted, free of charge", "Apache License"] {
        assert!(document.contains(text), "{text}");
    }
}

#[test]
fn krew_manifest_matches_plugin_archive() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(project::path("scripts/krew"))
        .arg(plugin_program())
        .arg(folder.path())
        .arg("https://example.com/releases/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let manifest: Value = serde_saphyr::from_slice(&output.stdout).unwrap();
    assert_eq!(manifest["metadata"]["name"], "etcd-guard");
    assert_eq!(manifest["spec"]["version"], format!("v{}", env!("CARGO_PKG_VERSION")));
    let platform = &manifest["spec"]["platforms"][0];
    let uri = platform["uri"].as_str().unwrap();
    let archive = folder.path().join(uri.strip_prefix("https://example.com/releases/").unwrap());
    let digest = ring::digest::digest(&ring::digest::SHA256, &fs::read(&archive).unwrap());
    let sum = platform["sha256"].as_str().unwrap();
    let bytes = sum
        .as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap());
    assert_eq!(bytes.collect::<Vec<_>>(), digest.as_ref());

    let unpacked =
        Command::new("tar").arg("-C").arg(folder.path()).arg("-xzf").arg(&archive).status().unwrap();
    assert!(unpacked.success());
    let plugin = folder.path().join(platform["bin"].as_str().unwrap());
    assert_licences(&fs::read_to_string(folder.path().join("THIRD-PARTY.txt")).unwrap());
    let completer = fs::metadata(folder.path().join("kubectl_complete-etcd_guard")).unwrap();
    assert_eq!(completer.permissions().mode() & 0o777, 0o755);
    let help = Command::new(plugin).arg("check").arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("Usage: kubectl etcd-guard check"), "{help}");
}

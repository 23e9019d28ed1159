//! The kubectl plugin as krew installs it.

use std::{fs, process::Command};

use serde_json::Value;

use crate::project_path;

#[test]
fn krew_manifest_matches_plugin_archive() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(project_path("scripts/krew"))
        .arg(env!("CARGO_BIN_EXE_etcd-guard"))
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
    let help = Command::new(plugin).arg("check").arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("Usage: kubectl etcd-guard check"), "{help}");
}

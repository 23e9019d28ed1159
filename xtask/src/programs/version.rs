//! Versions: the one that a `go.mod` requires, and the one that a program reports.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::catalog::Module;
use crate::process;

/// Characters of a digest that distinguish builds of a source file.
const DIGEST_LENGTH: usize = 12;

/// Seconds that a program has to report its version.
const REPORT_TIMEOUT: &str = "10";

/// Returns the version of a module that `go.mod` requires.
///
/// If the source is in the directory itself, its digest is a part of the version.
pub(super) fn required(modules: &Path, module: &Module) -> Result<String> {
    let directory = module.directory(modules)?;
    let file = directory.join("go.mod");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let Some(version) = required_by(&text, module.path) else {
        bail!("{} does not require a version of {}", file.display(), module.path);
    };
    if module.package.is_some() {
        return Ok(version.to_owned());
    }
    let digest = process::sha256(&directory.join("main.go"))?;
    Ok(format!("{version}-{}", digest.chars().take(DIGEST_LENGTH).collect::<String>()))
}

/// Returns the version of a module in the text of a `go.mod`.
fn required_by<'text>(go_mod: &'text str, module: &str) -> Option<&'text str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word == "require");
        let version = (words.next() == Some(module)).then(|| words.next())??;
        version.starts_with('v').then_some(version)
    })
}

/// Returns the version that a program reports, as `1.2.3`.
pub(super) fn reported(program: &Path, name: &str) -> Option<String> {
    let arguments: &[&str] = match name {
        "kubectl" => &["version", "--client"],
        "helm-3" | "helm-4" => &["version", "--short"],
        "coredns" => &["-version"],
        _ if name.starts_with("etcdctl-") => &["version"],
        _ => &["--version"],
    };
    let mut command = Command::new("timeout");
    command.arg(REPORT_TIMEOUT).arg(program).args(arguments);
    let output = command.stdin(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    first_version(&String::from_utf8_lossy(&output.stdout)).map(str::to_owned)
}

/// Returns the first three numbers with dots between them.
fn first_version(text: &str) -> Option<&str> {
    let candidates = text.split(|character: char| !character.is_ascii_digit() && character != '.');
    candidates.map(|candidate| candidate.trim_matches('.')).find_map(|candidate| {
        let mut numbers = candidate.split('.');
        let length: usize = numbers.by_ref().take(3).map(|number| number.len() + 1).sum();
        let version = candidate.get(..length.saturating_sub(1))?;
        let parts: Vec<&str> = version.split('.').collect();
        (parts.len() == 3 && parts.iter().all(|part| !part.is_empty())).then_some(version)
    })
}

/// Whether a reported version can replace the build of a program.
///
/// `kubernetes` is the minor release of Kubernetes that the tests run, for example `1.37`.
pub(super) fn fits(name: &str, version: &str, kubernetes: &str) -> bool {
    let is_minor = |minor: &str| {
        version == minor || version.strip_prefix(minor).is_some_and(|rest| rest.starts_with('.'))
    };
    match name {
        // The version skew that Kubernetes supports: one minor release.
        "kubectl" => minor_number(version)
            .zip(minor_number(kubernetes))
            .is_some_and(|(kubectl, server)| kubectl.abs_diff(server) <= 1),
        _ if name.starts_with("kube") => is_minor(kubernetes),
        _ => match name.split_once('-') {
            Some(("etcd" | "etcdctl" | "helm", minor)) => is_minor(minor),
            _ => true,
        },
    }
}

/// Returns the second number of a version 1.x.
fn minor_number(version: &str) -> Option<u32> {
    version.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_both_forms_of_require() {
        let text = "module x\n\nrequire a.example/b v1.2.3\n\nrequire (\n\tc.example/d v0.1.0\n\tc.example/d/e v9.9.9 // indirect\n)\n";
        assert_eq!(required_by(text, "a.example/b"), Some("v1.2.3"));
        assert_eq!(required_by(text, "c.example/d"), Some("v0.1.0"));
        assert_eq!(required_by(text, "c.example"), None);
    }

    #[test]
    fn reported_version_is_the_first_of_three_numbers() {
        assert_eq!(first_version("etcd Version: 3.6.16\nGit SHA: 1.2"), Some("3.6.16"));
        assert_eq!(first_version("Client Version: v1.34.3\nKustomize Version: v5.7.1"), Some("1.34.3"));
        assert_eq!(first_version("CoreDNS-1.15.0\nlinux/amd64, go1.26.0"), Some("1.15.0"));
        assert_eq!(first_version("v3.22.0+g1234"), Some("3.22.0"));
        assert_eq!(first_version("version 1.2"), None);
    }

    #[test]
    fn only_supported_versions_fit() {
        let fits = |name, version| super::fits(name, version, "1.37");
        assert!(fits("etcd-3.6", "3.6.16") && !fits("etcd-3.6", "3.5.9") && !fits("etcd-3.6", "3.60.1"));
        assert!(fits("etcd-3.6.11", "3.6.11") && !fits("etcd-3.6.11", "3.6.12"));
        assert!(fits("kubectl", "1.36.0") && fits("kubectl", "1.38.2") && !fits("kubectl", "1.35.9"));
        assert!(fits("kubelet", "1.37.0") && !fits("kube-apiserver", "1.36.3"));
        assert!(fits("helm-3", "3.1.0") && !fits("helm-3", "4.0.0") && fits("helm-4", "4.3.2"));
        assert!(fits("coredns", "1.9.0"));
    }
}

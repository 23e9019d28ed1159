//! The programs and the source of each.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// Programs of a call without names.
pub(super) const DEFAULT_NAMES: [&str; 37] = [
    "etcd-3.6",
    "etcdctl-3.6",
    "etcdutl-3.6",
    "etcd-3.5",
    "etcdctl-3.5",
    "etcd-3.7",
    "etcdctl-3.7",
    "etcd-3.4",
    "etcd-3.6.11",
    "kube-apiserver",
    "kube-controller-manager",
    "kubectl",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "coredns",
    "helm-3",
    "helm-4",
    "crane",
    "actionlint",
    "cert-manager",
    "containerd",
    "ctr",
    "runc",
    "lxcfs",
    "catatonit",
    "busybox",
    "iptables",
    "conntrack",
    "promtool",
    "prometheus",
    "wrk",
    "protoc",
    "faketime",
    "g++",
    "zsh",
    "fish",
];

/// A program that scripts call by a name of their own.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    /// File name of the program on `PATH` and in the cache.
    pub(super) executable: &'static str,
    pub(super) source: Source,
}

/// Where a program comes from if the machine has no fitting one.
#[derive(Debug)]
pub(super) enum Source {
    Go(Module),
    Debian { packages: &'static [&'static str] },
}

/// A program of a Go module.
#[derive(Debug)]
pub(super) struct Module {
    /// Directory below `scripts/lib/programs`; its `go.mod` pins the version. Kubernetes has one for each minor release.
    pub(super) directory: &'static str,
    /// Module that defines the version.
    pub(super) path: &'static str,
    /// Package to build, relative to the module; `None` for the package in the directory itself.
    pub(super) package: Option<&'static str>,
}

const KUBERNETES: &str = "k8s.io/kubernetes";

/// Variable that selects one of `KUBERNETES_MINORS`.
const KUBERNETES_VARIABLE: &str = "KUBERNETES";

/// The minor releases of Kubernetes that the tests can run, each a directory below `scripts/lib/programs`; the first is the default.
pub(super) const KUBERNETES_MINORS: [&str; 3] = ["1.37", "1.36", "1.35"];

/// Returns the minor release of Kubernetes that the variable `KUBERNETES` selects.
///
/// # Errors
///
/// The variable names another release.
pub(super) fn kubernetes_minor() -> Result<&'static str> {
    let Some(selected) = env::var_os(KUBERNETES_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(KUBERNETES_MINORS[0]);
    };
    let known = KUBERNETES_MINORS.into_iter().find(|minor| selected == *minor);
    known.with_context(|| {
        format!("KUBERNETES={} is unknown (known: {})", selected.display(), KUBERNETES_MINORS.join(" "))
    })
}
const ETCD: &str = "go.etcd.io/etcd/server/v3";
const ETCDCTL: &str = "go.etcd.io/etcd/etcdctl/v3";
const ETCDUTL: &str = "go.etcd.io/etcd/etcdutl/v3";

impl Module {
    /// Returns the directory of the `go.mod` below `scripts/lib/programs`.
    ///
    /// # Errors
    ///
    /// The variable `KUBERNETES` selects an unknown release.
    pub(super) fn directory(&self, modules: &Path) -> Result<PathBuf> {
        if self.path != KUBERNETES {
            return Ok(modules.join(self.directory));
        }
        Ok(modules.join(format!("{}-{}", self.directory, kubernetes_minor()?)))
    }
}

const fn go_module(directory: &'static str, path: &'static str, package: &'static str) -> Source {
    Source::Go(Module { directory, path, package: Some(package) })
}

const fn debian(packages: &'static [&'static str]) -> Source {
    Source::Debian { packages }
}

/// Variable that selects the major release of Helm; by default 3.
const HELM_VARIABLE: &str = "HELM_MAJOR";

/// Returns the name of the program that the variable `HELM_MAJOR` selects.
fn selected_helm() -> Result<&'static str> {
    match env::var(HELM_VARIABLE).as_deref() {
        Err(_) | Ok("" | "3") => Ok("helm-3"),
        Ok("4") => Ok("helm-4"),
        Ok(other) => bail!("{HELM_VARIABLE}={other} is unknown (known: 3 4)"),
    }
}

/// Returns the program of a name.
pub(super) fn program(name: &str) -> Result<Program> {
    let (executable, source) = match name {
        "kube-apiserver" => ("kube-apiserver", go_module("kubernetes", KUBERNETES, "/cmd/kube-apiserver")),
        "kube-controller-manager" => {
            ("kube-controller-manager", go_module("kubernetes", KUBERNETES, "/cmd/kube-controller-manager"))
        }
        "kube-scheduler" => ("kube-scheduler", go_module("kubernetes", KUBERNETES, "/cmd/kube-scheduler")),
        "kube-proxy" => ("kube-proxy", go_module("kubernetes", KUBERNETES, "/cmd/kube-proxy")),
        "kubelet" => ("kubelet", go_module("kubernetes", KUBERNETES, "/cmd/kubelet")),
        "kubectl" => ("kubectl", go_module("kubernetes", KUBERNETES, "/cmd/kubectl")),
        // 3.4.21, by the name that Go has for that commit.
        "etcd-3.4" => ("etcd", go_module("etcd-3.4", "go.etcd.io/etcd", "")),
        "etcd-3.5" => ("etcd", go_module("etcd-3.5", ETCD, "")),
        "etcd-3.6" => ("etcd", go_module("etcd-3.6", ETCD, "")),
        "etcd-3.6.11" => ("etcd", go_module("etcd-3.6.11", ETCD, "")),
        "etcd-3.7" => ("etcd", go_module("etcd-3.7", ETCD, "")),
        "etcdctl-3.5" => ("etcdctl", go_module("etcd-3.5", ETCDCTL, "")),
        "etcdctl-3.6" => ("etcdctl", go_module("etcd-3.6", ETCDCTL, "")),
        "etcdctl-3.7" => ("etcdctl", go_module("etcd-3.7", ETCDCTL, "")),
        "etcdutl-3.6" => ("etcdutl", go_module("etcd-3.6", ETCDUTL, "")),
        "coredns" => ("coredns", go_module("coredns", "github.com/coredns/coredns", "")),
        "helm" => return program(selected_helm()?),
        "helm-3" => ("helm", go_module("helm-3", "helm.sh/helm/v3", "/cmd/helm")),
        "helm-4" => ("helm", go_module("helm-4", "helm.sh/helm/v4", "/cmd/helm")),
        // A registry on loopback, and the client that pushes images to it.
        "crane" => ("crane", go_module("crane", "github.com/google/go-containerregistry", "/cmd/crane")),
        // Signs and verifies a rehearsed release.
        "cosign" => ("cosign", go_module("cosign", "github.com/sigstore/cosign/v3", "/cmd/cosign")),
        "actionlint" => {
            ("actionlint", go_module("actionlint", "github.com/rhysd/actionlint", "/cmd/actionlint"))
        }
        // main.go in that directory selects the controllers.
        "cert-manager" => {
            let path = "github.com/cert-manager/cert-manager";
            ("cert-manager", Source::Go(Module { directory: "cert-manager", path, package: None }))
        }
        // Runs programs for arm64 on other machines.
        "qemu-aarch64-static" => ("qemu-aarch64-static", debian(&["qemu-user-static"])),
        // Subjects of scripts/compare.
        "kyverno" => ("kyverno", go_module("kyverno", "github.com/kyverno/kyverno", "/cmd/kyverno")),
        "gatekeeper" => {
            ("gatekeeper", go_module("gatekeeper", "github.com/open-policy-agent/gatekeeper/v3", ""))
        }
        "go-webhook" => {
            let path = "k8s.io/api";
            ("go-webhook", Source::Go(Module { directory: "go-webhook", path, package: None }))
        }
        // Installed at CNI_PLUGIN, not on PATH.
        "cni-plugins" => ("ptp", debian(&["containernetworking-plugins"])),
        "containerd" => ("containerd", debian(&["containerd"])),
        "ctr" => ("ctr", debian(&["containerd"])),
        "busybox" => ("busybox", debian(&["busybox-static"])),
        "promtool" => ("promtool", debian(&["prometheus"])),
        "prometheus" => ("prometheus", debian(&["prometheus"])),
        // The second package holds the files that every .proto file imports.
        "protoc" => ("protoc", debian(&["protobuf-compiler", "libprotobuf-dev"])),
        "ip" => ("ip", debian(&["iproute2"])),
        "free" => ("free", debian(&["procps"])),
        "runc" => ("runc", debian(&["runc"])),
        "lxcfs" => ("lxcfs", debian(&["lxcfs"])),
        "catatonit" => ("catatonit", debian(&["catatonit"])),
        "iptables" => ("iptables", debian(&["iptables"])),
        "conntrack" => ("conntrack", debian(&["conntrack"])),
        "wrk" => ("wrk", debian(&["wrk"])),
        "shellcheck" => ("shellcheck", debian(&["shellcheck"])),
        "faketime" => ("faketime", debian(&["faketime"])),
        "g++" => ("g++", debian(&["g++"])),
        "zsh" => ("zsh", debian(&["zsh"])),
        "fish" => ("fish", debian(&["fish"])),
        "chromium" => ("chromium", debian(&["chromium"])),
        _ => bail!("unknown program: {name} (known: {})", DEFAULT_NAMES.join(" ")),
    };
    Ok(Program { name: name.to_owned(), executable, source })
}

/// A plugin that indicates the package `containernetworking-plugins`.
pub(super) const CNI_PLUGIN: &str = "/usr/lib/cni/ptp";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_name_is_known() {
        for name in DEFAULT_NAMES {
            assert_eq!(program(name).unwrap().name, name);
        }
    }

    #[test]
    fn unknown_name_is_rejected_with_the_known_ones() {
        let error = program("etcd-9.9").unwrap_err().to_string();
        assert!(error.contains("unknown program: etcd-9.9") && error.contains("etcdctl-3.6"), "{error}");
    }
}

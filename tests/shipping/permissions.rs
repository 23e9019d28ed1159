//! The guard's service account may do what is listed here, and nothing else.

use std::fs;

use crate::{kustomize, support::control_plane::ControlPlane};

/// What every account may do, the guard's too, is left out: looking at itself, and at the API's own description.
const OF_EVERYBODY: [&str; 4] = ["selfsubject", "[/", "Resources", "serviceaccounts/token"];

fn rules(control_plane: &ControlPlane, namespace: &str) -> Vec<String> {
    let account = "--as=system:serviceaccount:etcd-guard:etcd-guard";
    let listed = control_plane.kubectl().must(&["auth", "can-i", "--list", account, "-n", namespace]).stdout;
    let lines = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut rules: Vec<String> =
        lines.filter(|line| !OF_EVERYBODY.iter().any(|it| line.contains(it))).collect();
    rules.sort();
    rules
}

fn apply(control_plane: &ControlPlane, folder: &str) {
    let file = control_plane.dir.join("deploy.yaml");
    fs::write(&file, kustomize(folder)).unwrap();
    control_plane.kubectl().must(&["apply", "-f", &file.to_string_lossy()]);
}

const EVERYWHERE: [&str; 3] =
    ["namespaces [] [] [list watch]", "pods [] [] [get list]", "statefulsets.apps [] [] [get list watch]"];

#[test]
fn the_guard_may_do_what_is_listed_and_no_more() {
    let control_plane = ControlPlane::start(&[]);
    apply(&control_plane, "deploy/base");
    assert_eq!(rules(&control_plane, "default"), EVERYWHERE);
    let mut at_home =
        [&EVERYWHERE[..], &["leases.coordination.k8s.io [] [] [get list create update delete]"]].concat();
    at_home.sort_unstable();
    assert_eq!(rules(&control_plane, "etcd-guard"), at_home);

    apply(&control_plane, "deploy/overlays/self-managed");
    let configurations = [
        "mutatingwebhookconfigurations.admissionregistration.k8s.io [] [etcd-guard] [get update]",
        "validatingwebhookconfigurations.admissionregistration.k8s.io [] [etcd-guard] [get update]",
    ];
    let mut everywhere = [&EVERYWHERE[..], &configurations].concat();
    everywhere.sort_unstable();
    assert_eq!(rules(&control_plane, "default"), everywhere);
    let secrets = ["secrets [] [] [create]", "secrets [] [etcd-guard-certificates] [get update]"];
    at_home.extend([&configurations[..], &secrets].concat());
    at_home.sort_unstable();
    assert_eq!(rules(&control_plane, "etcd-guard"), at_home);
}

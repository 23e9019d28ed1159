//! The guard's service account may do what is listed here, and nothing else.

use std::fs;

use crate::{kustomize, support::control_plane::ControlPlane};

/// What every account may do, the guard's too, is left out: looking at itself, and at the API's own description.
const OF_EVERYBODY: [&str; 4] = ["selfsubject", "[/", "Resources", "serviceaccounts/token"];

fn rules(control_plane: &ControlPlane, namespace: &str) -> Vec<String> {
    let account = "--as=system:serviceaccount:etcd-guard:etcd-guard";
    let listed = control_plane.kubectl().must(&["auth", "can-i", "--list", account, "-n", namespace]).stdout;
    let lines = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let rules = lines.filter(|line| !OF_EVERYBODY.iter().any(|it| line.contains(it)));
    let mut rules: Vec<String> = rules.map(|rule| with_sorted_verbs(&rule)).collect();
    rules.sort();
    rules
}

/// Several rules for one resource come together in an order that the apiserver does not promise.
fn with_sorted_verbs(rule: &str) -> String {
    let (resource, verbs) = rule.trim_end_matches(']').rsplit_once('[').unwrap();
    let mut verbs: Vec<_> = verbs.split(' ').collect();
    verbs.sort_unstable();
    format!("{resource}[{}]", verbs.join(" "))
}

fn apply(control_plane: &ControlPlane, folder: &str) {
    let file = control_plane.dir.join("deploy.yaml");
    fs::write(&file, kustomize(folder)).unwrap();
    control_plane.kubectl().must(&["apply", "-f", &file.to_string_lossy()]);
}

const EVERYWHERE: [&str; 5] = [
    "events.events.k8s.io [] [] [create patch]",
    "namespaces [] [] [list watch]",
    "persistentvolumeclaims [] [] [get list watch]",
    "pods [] [] [get list]",
    "statefulsets.apps [] [] [get list watch]",
];

/// What may be done to the guard's own webhook configurations.
fn own_configurations(verbs: &str) -> [String; 4] {
    [("mutating", "-inject"), ("mutating", "-nodes"), ("validating", "-rules"), ("validating", "")].map(
        |(kind, part)| {
            format!(
                "{kind}webhookconfigurations.admissionregistration.k8s.io [] [etcd-guard{part}] [{verbs}]"
            )
        },
    )
}

fn sorted(lists: &[&[String]]) -> Vec<String> {
    let mut all = lists.concat();
    all.sort_unstable();
    all
}

#[test]
fn the_guard_may_do_what_is_listed_and_no_more() {
    let control_plane = ControlPlane::start(&[]);
    let everywhere = EVERYWHERE.map(String::from);
    let leases = [String::from("leases.coordination.k8s.io [] [] [create delete get list update]")];
    apply(&control_plane, "deploy/base");
    assert_eq!(rules(&control_plane, "default"), everywhere);
    assert_eq!(rules(&control_plane, "etcd-guard"), sorted(&[&everywhere, &leases]));

    apply(&control_plane, "deploy/overlays/self-managed");
    let configurations = own_configurations("get update");
    let secrets =
        ["secrets [] [] [create]", "secrets [] [etcd-guard-certificates] [get update]"].map(String::from);
    assert_eq!(rules(&control_plane, "default"), sorted(&[&everywhere, &configurations]));
    let at_home = sorted(&[&everywhere, &leases, &configurations, &secrets]);
    assert_eq!(rules(&control_plane, "etcd-guard"), at_home);
}

#[test]
fn what_is_added_brings_its_permissions_and_no_more() {
    let control_plane = ControlPlane::start(&[]);
    apply(&control_plane, "deploy/overlays/mutating");
    let mut everywhere = EVERYWHERE.map(String::from);
    everywhere[1] = String::from("namespaces [] [] [get list watch]");
    assert_eq!(rules(&control_plane, "default"), everywhere);

    let control_plane = ControlPlane::start(&[]);
    apply(&control_plane, "deploy/overlays/register");
    let everywhere = EVERYWHERE.map(String::from);
    let create = ["mutating", "validating"]
        .map(|kind| format!("{kind}webhookconfigurations.admissionregistration.k8s.io [] [] [create]"));
    let configurations = own_configurations("get patch update");
    assert_eq!(rules(&control_plane, "default"), sorted(&[&everywhere, &create, &configurations]));
}

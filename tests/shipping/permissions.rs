//! The guard's service account may do what docs/security.md lists, and nothing else, whatever is installed with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use crate::{
    kustomize, path_of,
    support::{control_plane::ControlPlane, wait::until},
};

/// Longest until the apiserver's authorizer, which learns by watches, knows of all roles; next to compilers.
const KNOWN: Duration = Duration::from_secs(60);

const GUARD: &str = "etcd-guard:etcd-guard";
const LXCFS: &str = "etcd-guard-lxcfs:lxcfs";

/// What docs/security.md calls the places of a permission.
const EVERYWHERE: &str = "everywhere";
const AT_HOME: &str = "in its own namespace";

/// Which parts of the documented list make up each way of installing.
const WAYS: [(&str, &[&str]); 11] = [
    ("deploy/base", &["base"]),
    ("deploy/overlays/cert-manager", &["base"]),
    ("deploy/overlays/self-managed", &["base", "self-managed"]),
    ("deploy/overlays/minikube", &["base", "self-managed"]),
    ("deploy/overlays/audit-only", &["base", "self-managed"]),
    ("deploy/overlays/nodes", &["base", "self-managed"]),
    ("deploy/overlays/register", &["base", "self-managed", "register"]),
    ("deploy/overlays/mutating", &["base", "inject"]),
    ("deploy/overlays/lxcfs", &["base", "self-managed", "inject"]),
    ("tests/data/kustomizations/with-cert-manager", &["base", "inject"]),
    ("tests/data/kustomizations/self-managed-with-client-ca", &["base", "self-managed"]),
];

/// Verbs by what they are for: a resource, and the name of an object or nothing.
type Rules = BTreeMap<(String, String), BTreeSet<String>>;

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// What `kubectl auth can-i --list` says of a service account. What is no resource goes by its URL.
fn said_of(control_plane: &ControlPlane, account: &str, namespace: &str) -> Rules {
    let account = format!("--as=system:serviceaccount:{account}");
    let kubectl = control_plane.kubectl();
    let listed = kubectl.must(&["auth", "can-i", "--list", "--no-headers", &account, "-n", namespace]);
    let mut rules = Rules::new();
    for line in listed.stdout.lines() {
        let columns: Vec<_> = line.split('[').map(|it| it.trim().trim_end_matches(']')).collect();
        let [resource, urls, names, verbs] = columns[..] else { panic!("four columns: {line}") };
        let resource = format!("{resource}{urls}");
        let names = if names.is_empty() { vec![""] } else { names.split(' ').collect() };
        for name in names {
            rules.entry((resource.clone(), name.to_owned())).or_default().extend(words(verbs));
        }
    }
    rules
}

/// What an account may do that not every account may.
fn rules_of(control_plane: &ControlPlane, account: &str, namespace: &str) -> Rules {
    let everybody = said_of(control_plane, "etcd-guard:nobody", namespace);
    let mut rules = said_of(control_plane, account, namespace);
    rules.retain(|what, verbs| everybody.get(what) != Some(verbs));
    rules
}

/// These parts of the list in docs/security.md, at these places.
fn documented(parts: &[&str], places: &[&str]) -> Rules {
    let text = fs::read_to_string(path_of("docs/security.md")).unwrap();
    let list = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let (mut rules, mut is_meant) = (Rules::new(), false);
    for line in list.lines() {
        if let Some((part, place)) = line.strip_suffix(':').and_then(|it| it.split_once(", ")) {
            is_meant = parts.contains(&part) && places.contains(&place);
        } else if is_meant {
            let (what, verbs) = line.trim().split_once(' ').unwrap();
            let (resource, name) = what.split_once('/').unwrap_or((what, ""));
            rules.entry((resource.to_owned(), name.to_owned())).or_default().extend(words(verbs));
        }
    }
    rules
}

/// Waits for the rules that should be, and fails with those that are.
async fn assert_rules(what: &str, mut ask: impl FnMut() -> Rules, expected: &Rules) {
    let end = std::time::Instant::now() + KNOWN;
    let mut rules = ask();
    while rules != *expected && std::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(200)).await;
        rules = ask();
    }
    assert_eq!(rules, *expected, "{what}");
}

/// Applies who is who and who may do what, in place of what was there before.
async fn permit(control_plane: &ControlPlane, folder: &str) {
    let kubectl = control_plane.kubectl();
    for selector in ["app.kubernetes.io/name=etcd-guard", "app.kubernetes.io/name=etcd-guard-lxcfs"] {
        let kinds = "clusterroles,clusterrolebindings,roles,rolebindings";
        kubectl.must(&["delete", kinds, "-A", "-l", selector]);
    }
    until("nothing of before is known", KNOWN, async || {
        ["default", "etcd-guard"].iter().all(|place| rules_of(control_plane, GUARD, place).is_empty())
    })
    .await;
    let mut all: Vec<serde_json::Value> = serde_saphyr::from_multiple(&kustomize(folder)).unwrap();
    all.retain(|it| {
        let kind = it["kind"].as_str().unwrap_or_default();
        ["Namespace", "ServiceAccount"].contains(&kind) || kind.ends_with("Role") || kind.ends_with("Binding")
    });
    // That of an admission policy is none.
    all.retain(|it| it["kind"] != "ValidatingAdmissionPolicyBinding");
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": all});
    let file = control_plane.dir.join("permissions.json");
    fs::write(&file, list.to_string()).unwrap();
    kubectl.must(&["apply", "-f", &file.to_string_lossy()]);
}

#[tokio::test]
async fn the_accounts_may_do_what_is_documented_and_no_more() {
    let control_plane = ControlPlane::start(&[]);
    for (folder, parts) in WAYS {
        permit(&control_plane, folder).await;
        for (namespace, places) in [("default", &[EVERYWHERE][..]), ("etcd-guard", &[EVERYWHERE, AT_HOME])] {
            let expected = documented(parts, places);
            assert!(!expected.is_empty(), "{folder}");
            let ask = || rules_of(&control_plane, GUARD, namespace);
            assert_rules(&format!("{folder}, in {namespace}"), ask, &expected).await;
        }
    }
    permit(&control_plane, "deploy/overlays/lxcfs").await;
    for namespace in ["default", "etcd-guard-lxcfs"] {
        let ask = || rules_of(&control_plane, LXCFS, namespace);
        assert_rules(namespace, ask, &documented(&["lxcfs"], &[EVERYWHERE])).await;
    }
}

/// Whose permissions nobody has looked at.
#[test]
fn every_overlay_and_every_documented_part_is_among_the_ways() {
    for overlay in fs::read_dir(path_of("deploy/overlays")).unwrap() {
        let folder = format!("deploy/overlays/{}", overlay.unwrap().file_name().into_string().unwrap());
        assert!(WAYS.iter().any(|(way, _)| *way == folder), "{folder}");
    }
    let of_ways: BTreeSet<&str> = WAYS.iter().flat_map(|(_, parts)| parts.iter().copied()).collect();
    let known: Vec<&str> = of_ways.into_iter().chain(["lxcfs"]).collect();
    let text = fs::read_to_string(path_of("docs/security.md")).unwrap();
    let list = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let headings: Vec<&str> = list.lines().filter_map(|it| it.strip_suffix(':')).collect();
    assert!(headings.len() >= known.len(), "{headings:?}");
    for heading in headings {
        let (part, place) = heading.split_once(", ").unwrap();
        assert!(known.contains(&part) && [EVERYWHERE, AT_HOME].contains(&place), "{heading}");
    }
}

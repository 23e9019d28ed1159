//! The guard's service account has exactly the permissions of docs/security.md, for each way of installing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use crate::{kustomize, project_path};
use test_support::{kubernetes::control_plane::ControlPlane, wait::wait_until};

/// The longest time until the API server's authorizer knows all roles by its watches, on a busy machine.
const AUTHORIZER_TIMEOUT: Duration = Duration::from_secs(60);

const GUARD: &str = "etcd-guard:etcd-guard";
const LXCFS: &str = "etcd-guard-lxcfs:lxcfs";

/// The scopes of permissions in docs/security.md.
const EVERYWHERE: &str = "everywhere";
const OWN_NAMESPACE: &str = "in its own namespace";

/// The parts of the documented list for each way of installing.
const INSTALLATIONS: [(&str, &[&str]); 11] = [
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

/// The verbs for each resource and object name; an empty name stands for all objects.
type Rules = BTreeMap<(String, String), BTreeSet<String>>;

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the result of `kubectl auth can-i --list` for a service account, with the URL for permissions without a
/// resource.
fn listed_rules(control_plane: &ControlPlane, account: &str, namespace: &str) -> Rules {
    let account = format!("--as=system:serviceaccount:{account}");
    let kubectl = control_plane.kubectl();
    let listed = kubectl.run_checked(&["auth", "can-i", "--list", "--no-headers", &account, "-n", namespace]);
    let mut rules = Rules::new();
    for line in listed.stdout.lines() {
        let columns: Vec<_> = line.split('[').map(|column| column.trim().trim_end_matches(']')).collect();
        let [resource, urls, names, verbs] = columns[..] else { panic!("four columns: {line}") };
        let resource = format!("{resource}{urls}");
        let names = if names.is_empty() { vec![""] } else { names.split(' ').collect() };
        for name in names {
            rules.entry((resource.clone(), name.to_owned())).or_default().extend(words(verbs));
        }
    }
    rules
}

/// Returns the permissions of an account that not every account has.
fn extra_rules(control_plane: &ControlPlane, account: &str, namespace: &str) -> Rules {
    let common = listed_rules(control_plane, "etcd-guard:nobody", namespace);
    let mut rules = listed_rules(control_plane, account, namespace);
    rules.retain(|resource, verbs| common.get(resource) != Some(verbs));
    rules
}

/// Returns the documented permissions of these parts and scopes.
fn documented(parts: &[&str], places: &[&str]) -> Rules {
    let text = fs::read_to_string(project_path("docs/security.md")).unwrap();
    let list = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let (mut rules, mut is_selected) = (Rules::new(), false);
    for line in list.lines() {
        if let Some((part, place)) = line.strip_suffix(':').and_then(|heading| heading.split_once(", ")) {
            is_selected = parts.contains(&part) && places.contains(&place);
        } else if is_selected {
            let (target, verbs) = line.trim().split_once(' ').unwrap();
            let (resource, name) = target.split_once('/').unwrap_or((target, ""));
            rules.entry((resource.to_owned(), name.to_owned())).or_default().extend(words(verbs));
        }
    }
    rules
}

/// Waits until the rules are as expected, and fails with the actual ones.
async fn assert_rules(description: &str, mut list: impl FnMut() -> Rules, expected: &Rules) {
    let end = std::time::Instant::now() + AUTHORIZER_TIMEOUT;
    let mut rules = list();
    while rules != *expected && std::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(200)).await;
        rules = list();
    }
    assert_eq!(rules, *expected, "{description}");
}

/// Applies accounts, roles and bindings, and removes earlier ones.
async fn permit(control_plane: &ControlPlane, folder: &str) {
    let kubectl = control_plane.kubectl();
    for selector in ["app.kubernetes.io/name=etcd-guard", "app.kubernetes.io/name=etcd-guard-lxcfs"] {
        let kinds = "clusterroles,clusterrolebindings,roles,rolebindings";
        kubectl.run_checked(&["delete", kinds, "-A", "-l", selector]);
    }
    wait_until("no earlier permission is left", AUTHORIZER_TIMEOUT, async || {
        ["default", "etcd-guard"].iter().all(|place| extra_rules(control_plane, GUARD, place).is_empty())
    })
    .await;
    let mut all: Vec<serde_json::Value> = serde_saphyr::from_multiple(&kustomize(folder)).unwrap();
    all.retain(|object| {
        let kind = object["kind"].as_str().unwrap_or_default();
        ["Namespace", "ServiceAccount"].contains(&kind) || kind.ends_with("Role") || kind.ends_with("Binding")
    });
    // The binding of an admission policy grants no permissions.
    all.retain(|object| object["kind"] != "ValidatingAdmissionPolicyBinding");
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": all});
    let file = control_plane.dir.join("permissions.json");
    fs::write(&file, list.to_string()).unwrap();
    kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);
}

#[tokio::test]
async fn accounts_have_only_documented_permissions() {
    let control_plane = ControlPlane::start(&[]);
    for (folder, parts) in INSTALLATIONS {
        permit(&control_plane, folder).await;
        for (namespace, places) in
            [("default", &[EVERYWHERE][..]), ("etcd-guard", &[EVERYWHERE, OWN_NAMESPACE])]
        {
            let expected = documented(parts, places);
            assert!(!expected.is_empty(), "{folder}");
            let list = || extra_rules(&control_plane, GUARD, namespace);
            assert_rules(&format!("{folder}, in {namespace}"), list, &expected).await;
        }
    }
    permit(&control_plane, "deploy/overlays/lxcfs").await;
    for namespace in ["default", "etcd-guard-lxcfs"] {
        let list = || extra_rules(&control_plane, LXCFS, namespace);
        assert_rules(namespace, list, &documented(&["lxcfs"], &[EVERYWHERE])).await;
    }
}

/// Every way of installing is tested.
#[test]
fn permission_tests_cover_every_installation() {
    for overlay in fs::read_dir(project_path("deploy/overlays")).unwrap() {
        let folder = format!("deploy/overlays/{}", overlay.unwrap().file_name().into_string().unwrap());
        assert!(INSTALLATIONS.iter().any(|(way, _)| *way == folder), "{folder}");
    }
    let tested: BTreeSet<&str> = INSTALLATIONS.iter().flat_map(|(_, parts)| parts.iter().copied()).collect();
    let known: Vec<&str> = tested.into_iter().chain(["lxcfs"]).collect();
    let text = fs::read_to_string(project_path("docs/security.md")).unwrap();
    let list = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let headings: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(':')).collect();
    assert!(headings.len() >= known.len(), "{headings:?}");
    for heading in headings {
        let (part, place) = heading.split_once(", ").unwrap();
        assert!(known.contains(&part) && [EVERYWHERE, OWN_NAMESPACE].contains(&place), "{heading}");
    }
}

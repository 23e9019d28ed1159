//! The shipped service accounts have exactly the permissions of docs/permissions.md, for each way of installing.

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
const CERTIFICATES: &str = "etcd-guard:etcd-guard-certificates";
const LXCFS: &str = "etcd-guard-lxcfs:lxcfs";

/// The scopes of permissions in docs/permissions.md.
const EVERYWHERE: &str = "everywhere";
const OWN_NAMESPACE: &str = "in its own namespace";

/// The parts of the documented list that are permissions of [`CERTIFICATES`].
const CERTIFICATE_PARTS: [&str; 2] = ["self-managed", "register"];

/// The parts of the documented list for each way of installing.
const INSTALLATIONS: [(&str, &[&str]); 12] = [
    ("deploy/base", &["base"]),
    ("deploy/overlays/cert-manager", &["base"]),
    ("deploy/overlays/self-managed", &["base", "self-managed"]),
    ("deploy/overlays/minikube", &["base", "self-managed"]),
    ("deploy/overlays/fail-open", &["base", "self-managed"]),
    ("deploy/overlays/nodes", &["base", "self-managed", "nodes"]),
    ("tests/data/kustomizations/with-handover", &["base", "self-managed", "handover"]),
    ("deploy/overlays/register", &["base", "self-managed", "register"]),
    ("deploy/overlays/mutating", &["base", "self-managed", "inject", "nodes"]),
    ("deploy/overlays/lxcfs", &["base", "self-managed", "inject"]),
    ("tests/data/kustomizations/with-cert-manager", &["base", "inject", "nodes"]),
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
    let text = fs::read_to_string(project_path("docs/permissions.md")).unwrap();
    let list = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let (mut rules, mut is_selected) = (Rules::new(), false);
    for line in list.lines() {
        if let Some((part, place)) = line.strip_suffix(':').and_then(|heading| heading.split_once(", ")) {
            is_selected = parts.contains(&part) && places.contains(&place);
        } else if is_selected {
            let (target, verbs) = line.trim().split_once(' ').unwrap();
            let (resource, name) = match target.split_once('/') {
                // A subresource, not the name of an object.
                Some((_, "status")) | None => (target, ""),
                Some(pair) => pair,
            };
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
        [GUARD, CERTIFICATES].iter().all(|account| {
            ["default", "etcd-guard"]
                .iter()
                .all(|place| extra_rules(control_plane, account, place).is_empty())
        })
    })
    .await;
    let mut all: Vec<serde_json::Value> = serde_saphyr::from_multiple(&kustomize(folder)).unwrap();
    all.retain(|object| {
        let kind = object["kind"].as_str().unwrap_or_default();
        ["Namespace", "ServiceAccount"].contains(&kind) || kind.ends_with("Role") || kind.ends_with("Binding")
    });
    // Admission policies grant no permissions.
    all.retain(|object| object["kind"] != "ValidatingAdmissionPolicyBinding");
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": all});
    let file = control_plane.dir.join("permissions.json");
    fs::write(&file, list.to_string()).unwrap();
    kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);
}

#[tokio::test]
async fn accounts_have_only_documented_permissions_and_servers_change_no_webhooks() {
    let control_plane = ControlPlane::start(&[]);
    for (folder, parts) in INSTALLATIONS {
        permit(&control_plane, folder).await;
        for (namespace, places) in
            [("default", &[EVERYWHERE][..]), ("etcd-guard", &[EVERYWHERE, OWN_NAMESPACE])]
        {
            let (keeping, serving): (Vec<&str>, Vec<&str>) =
                parts.iter().copied().partition(|part| CERTIFICATE_PARTS.contains(part));
            for (account, parts) in [(GUARD, serving), (CERTIFICATES, keeping)] {
                let expected = documented(&parts, places);
                assert_eq!(expected.is_empty(), parts.is_empty(), "{folder}");
                let list = || extra_rules(&control_plane, account, namespace);
                assert_rules(&format!("{folder}, {account} in {namespace}"), list, &expected).await;
            }
        }
    }
    permit(&control_plane, "deploy/overlays/lxcfs").await;
    for namespace in ["default", "etcd-guard-lxcfs"] {
        let list = || extra_rules(&control_plane, LXCFS, namespace);
        assert_rules(namespace, list, &documented(&["lxcfs"], &[EVERYWHERE])).await;
    }
    permit(&control_plane, "deploy/overlays/register").await;
    assert_decisions(&control_plane).await;
}

/// Requests that RBAC must decide: the verb, the object, and whether the account of the servers and that of the
/// certificate manager may do it.
const DECISIONS: [(&str, &str, bool, bool); 16] = [
    ("get", "validatingwebhookconfigurations/etcd-guard", false, true),
    ("update", "validatingwebhookconfigurations/etcd-guard", false, true),
    ("patch", "validatingwebhookconfigurations/etcd-guard", false, true),
    ("update", "mutatingwebhookconfigurations/etcd-guard-inject", false, true),
    ("create", "mutatingwebhookconfigurations", false, true),
    ("update", "validatingwebhookconfigurations/other", false, false),
    ("delete", "validatingwebhookconfigurations/etcd-guard", false, false),
    ("create", "secrets", false, true),
    ("get", "secrets/etcd-guard-certificates", false, true),
    ("update", "secrets/etcd-guard-certificates", false, true),
    ("get", "secrets/other", false, false),
    ("list", "secrets", false, false),
    ("get", "pods/etcd-0", true, false),
    ("list", "pods", true, false),
    ("update", "leases/reservations", true, false),
    ("create", "pods/exec", false, false),
];

/// RBAC does not restrict the rules or the `caBundle` of a webhook configuration, so that an account that updates one is
/// equivalent to a cluster administrator. The servers, which every caller can reach, must not have this permission.
async fn assert_decisions(control_plane: &ControlPlane) {
    let kubectl = control_plane.kubectl();
    let decide = async |account: &str| {
        let account = format!("--as=system:serviceaccount:{account}");
        let mut decisions = Vec::new();
        for (verb, object, ..) in DECISIONS {
            let output = kubectl.run(&["auth", "can-i", verb, object, &account, "-n", "etcd-guard"]).await;
            decisions.push((verb, object, output.stdout.trim() == "yes"));
        }
        decisions
    };
    let servers = DECISIONS.map(|(verb, object, allowed, _)| (verb, object, allowed));
    let manager = DECISIONS.map(|(verb, object, _, allowed)| (verb, object, allowed));
    let end = std::time::Instant::now() + AUTHORIZER_TIMEOUT;
    while decide(CERTIFICATES).await != manager && std::time::Instant::now() < end {}
    assert_eq!(decide(GUARD).await, servers);
    assert_eq!(decide(CERTIFICATES).await, manager);
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
    let text = fs::read_to_string(project_path("docs/permissions.md")).unwrap();
    let list = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let headings: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(':')).collect();
    assert!(headings.len() >= known.len(), "{headings:?}");
    for heading in headings {
        let (part, place) = heading.split_once(", ").unwrap();
        assert!(known.contains(&part) && [EVERYWHERE, OWN_NAMESPACE].contains(&place), "{heading}");
    }
}

//! Warnings about quotas and limit ranges of the namespace.

#![allow(clippy::needless_pass_by_value, reason = "callers write it in place")]

use serde_json::{Value, json};

use super::{config, pod};
use crate::{
    config::Config,
    pods::{InjectionContext, Outcome, Reason, inject},
};
use etcd_guard_core::{config::selector::Labels, objects::namespace_limits::NamespaceLimits};

/// One template per kind of container: a native sidecar, an init container, an ordinary container.
fn templates(resources: &str) -> Config {
    config(&format!(
        "\
sidecars:
  templates:
  - {{name: agent, containers: [{{name: agent, image: 'agent:1', resources: {resources}}}]}}
  - {{name: setup, initContainers: [{{name: setup, image: 'setup:1', resources: {resources}}}]}}
  - {{name: ordinary, native: false, containers: [{{name: ordinary, image: 'ordinary:1', resources: {resources}}}]}}
"
    ))
}

fn limits(quota: Value, items: Value) -> NamespaceLimits {
    let quotas =
        if quota.is_null() { json!([]) } else { json!([{"metadata": {"name": "q"}, "spec": quota}]) };
    let ranges = json!([{"metadata": {"name": "r"}, "spec": {"limits": items}}]);
    NamespaceLimits {
        quotas: serde_json::from_value(quotas).unwrap(),
        ranges: serde_json::from_value(ranges).unwrap(),
    }
}

/// Returns the warnings about the limits for a pod that requests this template.
fn warnings(template: &str, spec: Value, config: &Config, limits: &NamespaceLimits) -> Vec<String> {
    let mut pod = pod(json!({"etcd-guard.io/inject": template}));
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    let labels = Labels::new();
    let context =
        InjectionContext { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: true };
    let injection = inject(pod.clone(), &context, config).unwrap();
    assert_eq!(injection.added_containers, [template]);
    let notes = injection.limit_warnings(limits);
    assert!(notes.iter().all(|note| note.reason.outcome() == Outcome::Warned), "{notes:?}");
    // A second pass adds nothing, and repeats no warning.
    let after = injection.pod.clone().unwrap();
    let second = inject(after.clone(), &context, config).unwrap();
    assert_eq!(second.limit_warnings(limits), []);
    notes.into_iter().filter_map(|note| note.warning).collect()
}

const KINDS: [&str; 3] = ["agent", "setup", "ordinary"];

#[test]
fn quota_warns_of_container_without_required_amount() {
    let hard = |hard: Value| limits(json!({"hard": hard}), json!([]));
    let plain = templates("{requests: {cpu: 1m}}");
    for name in KINDS {
        let found =
            warnings(name, json!({}), &plain, &hard(json!({"limits.memory": "1Gi", "requests.cpu": "1"})));
        let expected =
            format!("ResourceQuota q requires limits.memory: the injected container {name} has none");
        assert_eq!(found, [expected]);
        let found = warnings(name, json!({}), &plain, &hard(json!({"memory": "1Gi", "pods": "5"})));
        assert!(found[0].contains("requires requests.memory"), "{found:?}");
        assert_eq!(warnings(name, json!({}), &plain, &hard(json!({"cpu": "1", "services": "5"}))), [""; 0]);
    }
    // A request is derived from the limit, and a pod with resources as a whole needs none in its containers.
    let limited = templates("{limits: {memory: 1Mi}}");
    assert_eq!(warnings("agent", json!({}), &limited, &hard(json!({"requests.memory": "1Gi"}))), [""; 0]);
    let whole = json!({"resources": {"limits": {"memory": "1Gi"}}});
    assert_eq!(warnings("agent", whole, &plain, &hard(json!({"limits.memory": "1Gi"}))), [""; 0]);
}

#[test]
fn quota_applies_by_its_scopes() {
    let plain = templates("{}");
    let scoped = |scope: &str| limits(json!({"hard": {"limits.cpu": "1"}, "scopes": [scope]}), json!([]));
    let is_warned = |scope: &str, spec: Value| !warnings("agent", spec, &plain, &scoped(scope)).is_empty();
    let ending = json!({"activeDeadlineSeconds": 60});
    assert!(is_warned("Terminating", ending.clone()) && !is_warned("Terminating", json!({})));
    assert!(!is_warned("NotTerminating", ending) && is_warned("NotTerminating", json!({})));
    let container = json!({"name": "web", "image": "web:1", "resources": {"limits": {"cpu": "1"}}});
    let burstable = json!({"containers": [container]});
    assert!(is_warned("NotBestEffort", burstable) && !is_warned("NotBestEffort", json!({})));
    assert!(!is_warned("CrossNamespacePodAffinity", json!({})));
    let selected = json!({"hard": {"limits.cpu": "1"}, "scopeSelector": {"matchExpressions": []}});
    assert_eq!(warnings("agent", json!({}), &plain, &limits(selected, json!([]))), [""; 0]);
}

#[test]
fn limit_range_warns_of_container_outside_its_bounds() {
    let bounds = json!([{"type": "Container", "min": {"memory": "32Mi"}, "max": {"memory": "64Mi"}}]);
    let bounds = limits(Value::Null, bounds);
    let with = |resources: &str| warnings("agent", json!({}), &templates(resources), &bounds);
    assert_eq!(with("{limits: {memory: 64Mi}, requests: {memory: 32Mi}}"), [""; 0]);
    let above = ["LimitRange r rejects the injected container agent: the maximum of memory is 64Mi"];
    assert_eq!(with("{limits: {memory: 65Mi}, requests: {memory: 32Mi}}"), above);
    assert_eq!(with("{requests: {memory: 32Mi}}"), above, "without a limit");
    let below = ["LimitRange r rejects the injected container agent: the minimum of memory is 32Mi"];
    assert_eq!(with("{limits: {memory: 64Mi}, requests: {memory: 31Mi}}"), below);
}

#[test]
fn defaults_of_limit_range_apply_to_injected_containers() {
    let plain = templates("{}");
    let items = |default: &str| json!([{"type": "Container", "default": {"memory": default}, "defaultRequest": {"memory": "1Mi"}}]);
    let quota = json!({"hard": {"limits.memory": "1Gi", "requests.memory": "1Gi"}});
    assert_eq!(warnings("agent", json!({}), &plain, &limits(quota, items("1Mi"))), [""; 0]);
    let mut bounded = items("65Mi");
    bounded[0]["max"] = json!({"memory": "64Mi"});
    assert_eq!(warnings("agent", json!({}), &plain, &limits(Value::Null, bounded)).len(), 1);
}

#[test]
fn limit_range_warns_of_sum_of_all_containers() {
    let limited = templates("{limits: {memory: 40Mi}}");
    let of_pod = |max: &str| limits(Value::Null, json!([{"type": "Pod", "max": {"memory": max}}]));
    let container = |name: &str, memory: &str| json!({"name": name, "image": "i", "resources": {"limits": {"memory": memory}}});
    let own = json!({"containers": [container("web", "60Mi")]});
    for name in ["agent", "ordinary"] {
        assert_eq!(warnings(name, own.clone(), &limited, &of_pod("100Mi")), [""; 0]);
        let expected = "LimitRange r permits memory 99Mi per pod: injected containers exceed it";
        assert_eq!(warnings(name, own.clone(), &limited, &of_pod("99Mi")), [expected]);
    }
    // Init containers end before the others start, but run beside native sidecars that start before them.
    assert_eq!(warnings("setup", own.clone(), &limited, &of_pod("60Mi")), [""; 0]);
    let sidecar = |memory: &str| {
        let mut sidecar = container("own", memory);
        sidecar["restartPolicy"] = json!("Always");
        json!({"containers": [container("web", "60Mi")], "initContainers": [sidecar]})
    };
    assert_eq!(warnings("setup", sidecar("10Mi"), &limited, &of_pod("70Mi")), [""; 0]);
    let init = json!({"containers": [container("web", "1Mi")], "initContainers": [container("own", "60Mi")]});
    assert_eq!(warnings("agent", init.clone(), &limited, &of_pod("99Mi")).len(), 1);
    assert_eq!(warnings("agent", init, &limited, &of_pod("100Mi")), [""; 0]);
    // The amount of the pod as a whole counts instead of the sum.
    let mut whole = own;
    whole["containers"][0]["resources"]["requests"] = json!({"memory": "1Mi"});
    assert_eq!(warnings("ordinary", whole.clone(), &limited, &of_pod("99Mi")).len(), 1);
    whole["resources"] = json!({"limits": {"memory": "99Mi"}, "requests": {"memory": "50Mi"}});
    assert_eq!(warnings("ordinary", whole, &limited, &of_pod("99Mi")), [""; 0]);
    // The API server rejects this pod without the template as well.
    assert_eq!(warnings("agent", sidecar("99Mi"), &limited, &of_pod("99Mi")), [""; 0]);
    assert_eq!(Reason::LimitRange.as_str(), "LimitRange");
}

/// Resources of the pod as a whole, for each list, resource and kind of container.
#[test]
fn pod_resources_bound_each_kind_of_container() {
    let container = |name: &str, request: &str| json!({"name": name, "image": "i", "resources": {"requests": {"memory": request}}});
    let reasons = |template: &str, whole: Value, init: Value, resources: &str| {
        let mut pod = pod(json!({"etcd-guard.io/inject": template}));
        pod["spec"]["containers"] = json!([container("web", "60Mi")]);
        pod["spec"]["initContainers"] = init;
        pod["spec"]["resources"] = whole;
        let labels = Labels::new();
        let context =
            InjectionContext { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: true };
        let config = templates(resources);
        let injection = inject(pod.clone(), &context, &config).unwrap();
        let is_skipped = injection.notes.iter().any(|note| note.reason == Reason::PodResources);
        assert_eq!(is_skipped, injection.is_empty(), "{:?}", injection.notes);
        injection.notes.into_iter().find_map(|note| note.warning)
    };
    let exceeds = |template: &str, part: &str| {
        Some(format!("template {template} was not injected: it exceeds spec.resources of the pod ({part})"))
    };
    // A limit of one container must not exceed that of the pod; the sum of the limits may.
    let limits = |memory: &str| json!({"limits": {"memory": memory}});
    for name in KINDS {
        let limited = "{limits: {memory: 40Mi}, requests: {memory: 1Mi}}";
        assert_eq!(reasons(name, limits("40Mi"), json!([]), limited), None);
        assert_eq!(reasons(name, limits("39Mi"), json!([]), limited), exceeds(name, "limits.memory"));
    }
    // The requests of containers that run at the same time must not exceed that of the pod.
    let requests = |memory: &str| json!({"requests": {"memory": memory}});
    let requesting = "{requests: {memory: 40Mi}}";
    for name in ["agent", "ordinary"] {
        assert_eq!(reasons(name, requests("100Mi"), json!([]), requesting), None);
        assert_eq!(reasons(name, requests("99Mi"), json!([]), requesting), exceeds(name, "requests.memory"));
        let from_limit = "{limits: {memory: 40Mi}}";
        assert_eq!(reasons(name, requests("99Mi"), json!([]), from_limit), exceeds(name, "requests.memory"));
    }
    // An init container runs before the others, and beside native sidecars.
    assert_eq!(reasons("setup", requests("60Mi"), json!([]), requesting), None);
    let mut sidecar = container("own", "30Mi");
    sidecar["restartPolicy"] = json!("Always");
    assert_eq!(reasons("setup", requests("90Mi"), json!([sidecar.clone()]), requesting), None);
    let large = "{requests: {memory: 61Mi}}";
    assert_eq!(
        reasons("setup", requests("90Mi"), json!([sidecar]), large),
        exceeds("setup", "requests.memory")
    );
    let init = json!([container("own", "70Mi")]);
    assert_eq!(reasons("agent", requests("110Mi"), init.clone(), requesting), None);
    assert_eq!(reasons("agent", requests("109Mi"), init, requesting), exceeds("agent", "requests.memory"));
}

/// The API server sets the defaults of a limit range in injected containers, and then compares their sum with the pod.
#[test]
fn default_amounts_exceed_amounts_of_the_pod() {
    let config = templates("{}");
    let own = json!({"requests": {"cpu": "50m"}, "limits": {"memory": "32Mi"}});
    let spec = json!({
        "containers": [{"name": "app", "image": "app:1", "resources": own}],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}},
    });
    let default = json!([{
        "type": "Container",
        "defaultRequest": {"cpu": "200m"},
        "default": {"memory": "128Mi"},
    }]);
    for kind in KINDS {
        let found = warnings(kind, spec.clone(), &config, &limits(Value::Null, default.clone()));
        assert_eq!(found.len(), 2, "{kind}: {found:?}");
        assert!(found.iter().any(|text| text.contains("exceed requests.cpu of the pod")), "{found:?}");
        assert!(found.iter().any(|text| text.contains("exceed limits.memory of the pod")), "{found:?}");
    }
    let small =
        json!([{"type": "Container", "defaultRequest": {"cpu": "10m"}, "default": {"memory": "1Mi"}}]);
    assert!(warnings("agent", spec, &config, &limits(Value::Null, small)).is_empty());
}

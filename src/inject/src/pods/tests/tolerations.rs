//! Tolerations for the requested lifespan.

use serde_json::{Value, json};

use super::{Injected, config, inject_with, injected, pod};
use crate::pods::{InjectionContext, Reason};
use etcd_guard_core::config::selector::Labels;

const LABEL: &str = "acme.com/lifespan-requested";

fn requesting_pod(lifespan: &str) -> Value {
    let mut pod = pod(json!({}));
    pod["metadata"]["labels"] = json!({LABEL: lifespan});
    pod
}

#[test]
fn tolerates_nodes_with_at_least_the_requested_lifespan() {
    let (after, reasons) = injected(&requesting_pod("12"), &[], &config("lifespan: {}"));
    assert_eq!(reasons, [Reason::Lifespan]);
    let toleration = |value| json!({"key": "acme.com/lifespan-remaining", "operator": "Equal", "value": value, "effect": "NoSchedule"});
    assert_eq!(after["spec"]["tolerations"], json!([toleration("12"), toleration("13"), toleration("14")]));
}

#[test]
fn does_not_duplicate_tolerations() {
    let mut before = requesting_pod("13");
    // An absent operator means Equal.
    before["spec"]["tolerations"] =
        json!([{"key": "acme.com/lifespan-remaining", "value": "14", "effect": "NoSchedule"}]);
    let (after, _) = injected(&before, &[], &config("lifespan: {}"));
    assert_eq!(after["spec"]["tolerations"].as_array().unwrap().len(), 2);
    before["spec"]["tolerations"] = json!([{"key": "acme.com/lifespan-remaining", "operator": "Exists"}]);
    assert_eq!(injected(&before, &[], &config("lifespan: {}")), (before, vec![Reason::AlreadyInjected]));
}

#[test]
fn denies_invalid_lifespan_with_the_allowed_range() {
    // slackhq/simple-kubernetes-webhook responds with HTTP 500, so that failurePolicy decides.
    for bad in ["0", "15", "-1", "three", "", "1.5"] {
        let denial = inject_with(&requesting_pod(bad), &[], &config("lifespan: {}")).unwrap_err();
        let expected = format!("label {LABEL}: {bad:?} is not a whole number from 1 to 14");
        assert_eq!((denial.reason, denial.message), (Reason::BadLifespan, expected));
    }
    let injection = inject_with(&requesting_pod("0"), &[], &config("")).unwrap();
    assert!(injection.is_empty(), "disabled by default");
}

#[test]
fn label_taint_and_range_are_configurable() {
    let own = config("lifespan: {label: days, taint: left, least: 0, most: 2, effect: NoExecute}");
    let mut before = pod(json!({}));
    before["metadata"]["labels"] = json!({"days": "0"});
    let (after, _) = injected(&before, &[], &own);
    assert_eq!(after["spec"]["tolerations"].as_array().unwrap().len(), 3);
    assert_eq!(
        after["spec"]["tolerations"][0],
        json!({"key": "left", "operator": "Equal", "value": "0", "effect": "NoExecute"})
    );
}

#[test]
fn excluded_pods_receive_no_tolerations_and_no_denial() {
    // A denied mirror would hide its static pod from the API, and pods of kube-system must not fail because of a label.
    let settings = config("skipNamespaces: [left-alone]\nlifespan: {}");
    let labels = Labels::new();
    let left_alone =
        InjectionContext { namespace: "left-alone", namespace_labels: Ok(&labels), native_sidecars: true };
    for lifespan in ["12", "three"] {
        let injection = Injected::new(requesting_pod(lifespan), &left_alone, &settings).unwrap();
        assert!(injection.is_empty(), "{:?}", injection.patch);
        let reasons: Vec<Reason> = injection.notes.iter().map(|note| note.reason).collect();
        assert_eq!(reasons, [Reason::SkippedNamespace]);

        let mut mirror = requesting_pod(lifespan);
        mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("1");
        assert_eq!(injected(&mirror, &[], &settings), (mirror, vec![Reason::MirrorPod]));
    }
    let mut windows = requesting_pod("14");
    windows["spec"]["os"] = json!({"name": "windows"});
    assert_eq!(injected(&windows, &[], &settings).1, [Reason::Lifespan], "a taint is the same for all");
}

//! Tolerations by the requested lifespan.

use serde_json::{Value, json};

use super::{Injected, config, inject_with, injected, pod};
use crate::{
    config::Labels,
    inject::{Reason, Surroundings},
};

const LABEL: &str = "acme.com/lifespan-requested";

fn asking_for(lifespan: &str) -> Value {
    let mut pod = pod(json!({}));
    pod["metadata"]["labels"] = json!({LABEL: lifespan});
    pod
}

#[test]
fn a_pod_tolerates_nodes_with_at_least_the_lifespan_that_it_asks_for() {
    let (after, reasons) = injected(&asking_for("12"), &[], &config("lifespan: {}"));
    assert_eq!(reasons, [Reason::Lifespan]);
    let toleration = |value| json!({"key": "acme.com/lifespan-remaining", "operator": "Equal", "value": value, "effect": "NoSchedule"});
    assert_eq!(after["spec"]["tolerations"], json!([toleration("12"), toleration("13"), toleration("14")]));
}

#[test]
fn tolerations_that_are_there_are_not_doubled() {
    let mut before = asking_for("13");
    // Without an operator it means Equal.
    before["spec"]["tolerations"] =
        json!([{"key": "acme.com/lifespan-remaining", "value": "14", "effect": "NoSchedule"}]);
    let (after, _) = injected(&before, &[], &config("lifespan: {}"));
    assert_eq!(after["spec"]["tolerations"].as_array().unwrap().len(), 2);
    before["spec"]["tolerations"] = json!([{"key": "acme.com/lifespan-remaining", "operator": "Exists"}]);
    assert_eq!(injected(&before, &[], &config("lifespan: {}")), (before, vec![Reason::AlreadyInjected]));
}

#[test]
fn a_label_that_is_no_lifespan_is_denied_and_told_what_is_allowed() {
    // slackhq/simple-kubernetes-webhook answers HTTP 500, so that failurePolicy decides.
    for bad in ["0", "15", "-1", "three", "", "1.5"] {
        let denial = inject_with(&asking_for(bad), &[], &config("lifespan: {}")).unwrap_err();
        let expected = format!("label {LABEL}: {bad:?} is no whole number from 1 to 14");
        assert_eq!((denial.reason, denial.message), (Reason::BadLifespan, expected));
    }
    let injection = inject_with(&asking_for("0"), &[], &config("")).unwrap();
    assert!(injection.is_empty(), "off until it is configured");
}

#[test]
fn key_taint_and_range_are_configurable() {
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
fn a_namespace_that_is_left_alone_and_a_mirror_pod_get_no_tolerations_and_no_denial() {
    // Without the mirror of a static pod nobody sees it; and kube-system may be what a bad label must not stop.
    let settings = config("skipNamespaces: [left-alone]\nlifespan: {}");
    let labels = Labels::new();
    let left_alone =
        Surroundings { namespace: "left-alone", namespace_labels: Ok(&labels), native_sidecars: true };
    for lifespan in ["12", "three"] {
        let injection = Injected::of(asking_for(lifespan).into(), &left_alone, &settings).unwrap();
        assert!(injection.is_empty(), "{:?}", injection.patch);
        let reasons: Vec<Reason> = injection.notes.iter().map(|it| it.reason).collect();
        assert_eq!(reasons, [Reason::SkippedNamespace]);

        let mut mirror = asking_for(lifespan);
        mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("1");
        assert_eq!(injected(&mirror, &[], &settings), (mirror, vec![Reason::MirrorPod]));
    }
    let mut windows = asking_for("14");
    windows["spec"]["os"] = json!({"name": "windows"});
    assert_eq!(injected(&windows, &[], &settings).1, [Reason::Lifespan], "a taint is the same for all");
}

//! The rules of over-commit, by examples and by interleavings of clients.

mod interleavings;

use serde_json::{Value, json};

use super::{
    Outcome, RECORD, Reason,
    evaluation::{Correction, correct},
    over_commit,
};
use crate::config::{Config, over_commit::OverCommit};

const LABEL: &str = "node-restriction.kubernetes.io/over-commit";

fn settings(text: &str) -> OverCommit {
    let config = Config::read(&format!("apiVersion: etcd-guard.io/v1alpha1\noverCommit: {text}"));
    config.unwrap_or_else(|diagnostics| panic!("{diagnostics:#?}")).over_commit.unwrap()
}

fn double() -> OverCommit {
    settings("{nodes: [{selector: {}, cpu: 2, memory: 1.5}]}")
}

/// A node as a kubelet sends it, with the label that selects the factors of the configuration.
fn node(cpu: (&str, &str), memory: (&str, &str)) -> Value {
    json!({
        "metadata": {"name": "n", "labels": {LABEL: "configured"}},
        "status": {
            "allocatable": {"cpu": cpu.0, "memory": memory.0, "pods": "110"},
            "capacity": {"cpu": cpu.1, "memory": memory.1, "pods": "110"},
        }
    })
}

fn machine_node() -> Value {
    node(("3920m", "4"), ("1000Ki", "1024Ki"))
}

/// The stored node without amounts, so that all sent amounts are new.
fn empty_node() -> Value {
    json!({"metadata": {"name": "n", "labels": {LABEL: "configured"}}, "status": {}})
}

/// Applies a kubelet's patch: the difference between its cache and the machine.
fn kubelet(stored: &Value, cache: &Value, machine: &Value) -> Value {
    let mut sent = stored.clone();
    for list in ["allocatable", "capacity"] {
        for resource in ["cpu", "memory"] {
            if cache["status"][list][resource] != machine["status"][list][resource] {
                sent["status"][list][resource] = machine["status"][list][resource].clone();
            }
        }
    }
    sent
}

/// The node after a write of `sent`.
fn after(sent: &Value, stored: Option<&Value>, settings: Option<&OverCommit>) -> Value {
    over_commit(sent.clone(), stored, settings).node.unwrap_or_else(|| sent.clone())
}

fn cpu(node: &Value) -> (&str, &str) {
    let text = |list: &str| node["status"][list]["cpu"].as_str().unwrap();
    (text("allocatable"), text("capacity"))
}

#[test]
fn multiplies_allocatable_exactly_and_adds_reserved_once() {
    // BoomChao/simple-kubernetes-webhook rounds 3920m up to four cores and 80m reserved up to one core.
    let raised = after(&machine_node(), None, Some(&double()));
    assert_eq!(cpu(&raised), ("7840m", "7920m"));
    assert_eq!(raised["status"]["allocatable"]["memory"], "1536000");
    assert_eq!(raised["status"]["capacity"]["memory"], (1_536_000 + 24 * 1024).to_string());
    assert_eq!(raised["status"]["capacity"]["pods"], "110");
}

#[test]
fn does_not_raise_a_raised_value_again() {
    // BoomChao multiplies at each write of any client except the kubelet.
    let raised = after(&machine_node(), None, Some(&double()));
    let outcome = over_commit(raised.clone(), Some(&raised), Some(&double()));
    assert_eq!((outcome.node, outcome.reason), (None, Reason::OverCommitted));
}

#[test]
fn uses_stored_record_if_client_drops_it() {
    let raised = after(&machine_node(), None, Some(&double()));
    let mut sent = raised.clone();
    sent["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(after(&sent, Some(&raised), Some(&double())), raised);
}

#[test]
fn second_call_of_one_request_changes_nothing() {
    // reinvocationPolicy: the stored node has no record yet.
    let raised = after(&machine_node(), Some(&empty_node()), Some(&double()));
    assert_eq!(after(&raised, Some(&empty_node()), Some(&double())), raised);
    let reduced = after(&machine_node(), Some(&machine_node()), Some(&double()));
    assert_eq!(after(&reduced, Some(&machine_node()), Some(&double())), reduced);
}

#[test]
fn reduces_unknown_amount_and_raises_reported_one() {
    // A node that was registered before it was labelled: no client, and especially not the kubelet, sends its CPU
    // again.
    let outcome = over_commit(machine_node(), Some(&machine_node()), Some(&double()));
    assert_eq!(outcome.reason, Reason::KubeletAsked);
    let reduced = outcome.node.unwrap();
    assert_eq!(
        cpu(&reduced),
        ("3919m", "3999m"),
        "one unit less, so that the kubelet reports the machine's amounts"
    );
    let other = over_commit(reduced.clone(), Some(&reduced), Some(&double()));
    assert_eq!((other.node, other.reason), (None, Reason::KubeletAsked), "another client changes nothing");
    let reported = after(&kubelet(&reduced, &reduced, &machine_node()), Some(&reduced), Some(&double()));
    assert_eq!(cpu(&reported), ("7840m", "7920m"));
}

#[test]
fn removed_record_does_not_lead_to_a_second_raise() {
    let raised = after(&machine_node(), Some(&empty_node()), Some(&double()));
    let mut annotated = raised;
    annotated["metadata"]["annotations"].as_object_mut().unwrap().remove(RECORD);
    let sent = after(&annotated, Some(&annotated), Some(&double()));
    assert_eq!(cpu(&sent), ("7839m", "7919m"));
    let reported = after(&kubelet(&sent, &sent, &machine_node()), Some(&sent), Some(&double()));
    assert_eq!(cpu(&reported), ("7840m", "7920m"));
}

/// The stored node after a kubelet restored its values without a call of the webhook: the record remains.
fn restored_unseen() -> Value {
    let mut node = after(&machine_node(), None, Some(&double()));
    node["status"] = machine_node()["status"].clone();
    node["metadata"]["resourceVersion"] = json!("7");
    node
}

#[test]
fn raises_recorded_originals_of_a_stored_node() {
    let stored = restored_unseen();
    let outcome = over_commit(stored.clone(), Some(&stored), Some(&double()));
    assert_eq!(outcome.reason, Reason::OverCommitted, "the kubelet need not report them again");
    assert_eq!(cpu(&outcome.node.unwrap()), ("7840m", "7920m"));
}

#[test]
fn correction_is_a_change_of_the_version_that_was_read() {
    let Correction { patch, reason, .. } = correct(&restored_unseen(), false, Some(&double()));
    assert_eq!(reason, Reason::OverCommitted);
    let patch = patch.unwrap();
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(patch["status"]["allocatable"], json!({"cpu": "7840m", "memory": "1536000"}));
    assert!(patch["metadata"]["annotations"][RECORD].as_str().unwrap().contains("3920m"));

    let removed = correct(&restored_unseen(), false, None).patch.unwrap();
    assert_eq!(removed["metadata"]["annotations"], json!({RECORD: null}));
    let raised = after(&machine_node(), None, Some(&double()));
    assert_eq!(correct(&raised, false, Some(&double())).patch, None, "as configured");
}

#[test]
fn correction_raises_unrecorded_values_only_if_they_are_raw() {
    let amount = |is_raw| {
        let patch = correct(&machine_node(), is_raw, Some(&double())).patch.unwrap();
        patch["status"]["allocatable"]["cpu"].clone()
    };
    assert_eq!((amount(true), amount(false)), (json!("7840m"), json!("3919m")));
}

#[test]
fn limits_allocatable_if_kubelet_sends_only_capacity() {
    // The kubelet read the node before the capacity was raised; the origin of the allocatable amount is unknown.
    let sent = node(("39", "4"), ("1Ki", "1Ki"));
    let stored = node(("39", "40"), ("1Ki", "1Ki"));
    assert_eq!(
        cpu(&after(&sent, Some(&stored), Some(&double()))),
        ("3999m", "3999m"),
        "allocatable does not exceed the capacity"
    );
}

#[test]
fn removing_the_record_reveals_a_machine_that_grew() {
    // Rule 5: the kubelet's update does not contain amounts that equal the stored ones.
    let raised = after(&node(("4", "4"), ("1Ki", "1Ki")), Some(&empty_node()), Some(&double()));
    let grown = node(("8", "8"), ("1Ki", "1Ki"));
    assert_eq!(cpu(&after(&kubelet(&raised, &raised, &grown), Some(&raised), Some(&double()))), ("8", "8"));
    let mut annotated = raised;
    annotated["metadata"]["annotations"].as_object_mut().unwrap().remove(RECORD);
    let reduced = after(&kubelet(&annotated, &annotated, &grown), Some(&annotated), Some(&double()));
    let reported = after(&kubelet(&reduced, &reduced, &grown), Some(&reduced), Some(&double()));
    assert_eq!(cpu(&reported), ("16", "16"));
}

#[test]
fn compares_amounts_by_value() {
    let mut raised = after(&machine_node(), None, Some(&double()));
    raised["status"]["allocatable"]["cpu"] = json!("7.84");
    let outcome = over_commit(raised.clone(), Some(&raised), Some(&double()));
    assert!(outcome.node.is_none(), "{:?}", outcome.patch);
}

#[test]
fn determines_the_origin_of_each_amount_separately() {
    let raised = after(&machine_node(), None, Some(&double()));
    let mut sent = raised.clone();
    sent["status"]["allocatable"]["cpu"] = json!("3900m");
    assert_eq!(cpu(&after(&sent, Some(&raised), Some(&double()))), ("7800m", "7900m"));
}

#[test]
fn restores_amounts_when_over_commit_is_disabled() {
    let raised = after(&machine_node(), None, Some(&double()));
    for off in [None, Some(settings("{}")), Some(settings("{nodes: [{selector: {}, cpu: 1}]}"))] {
        let outcome = over_commit(raised.clone(), Some(&raised), off.as_ref());
        assert_eq!(outcome.reason, Reason::Restored);
        let restored = outcome.node.unwrap();
        assert_eq!(cpu(&restored), ("3920m", "4"));
        assert_eq!(restored["status"]["allocatable"]["memory"], "1024000");
        assert_eq!(restored["metadata"]["annotations"].get(RECORD), None);
    }
}

#[test]
fn restores_amounts_when_the_label_is_removed() {
    let raised = after(&machine_node(), None, Some(&double()));
    let mut unlabelled = raised.clone();
    unlabelled["metadata"]["labels"].as_object_mut().unwrap().remove(LABEL);
    let outcome = over_commit(unlabelled.clone(), Some(&unlabelled), Some(&double()));
    assert_eq!(outcome.reason, Reason::Restored);
    let restored = outcome.node.unwrap();
    assert_eq!(cpu(&restored), ("3920m", "4"));
    assert_eq!(restored["status"]["allocatable"]["memory"], "1024000");
    assert_eq!(restored["metadata"]["annotations"].get(RECORD), None);
    let again = over_commit(restored.clone(), Some(&restored), Some(&double()));
    assert_eq!((again.node, again.reason), (None, Reason::NotOverCommitted));
}

#[test]
fn record_without_label_does_not_opt_in() {
    // A kubelet may annotate its node, so that the webhook is called, but NodeRestriction prevents it from setting the
    // label.
    let record = after(&machine_node(), None, Some(&double()))["metadata"]["annotations"].clone();
    for (annotations, reason) in
        [(record, Reason::Restored), (json!({RECORD: "{}"}), Reason::NotOverCommitted)]
    {
        let mut sent = machine_node();
        sent["metadata"] = json!({"name": "n", "annotations": annotations});
        let outcome = over_commit(sent.clone(), Some(&empty_node()), Some(&double()));
        assert_eq!(outcome.reason, reason);
        assert_eq!(cpu(&outcome.node.unwrap_or(sent)), ("3920m", "4"));
    }
}

#[test]
fn label_takes_precedence_and_is_limited() {
    let with = |value: &str| {
        let mut node = machine_node();
        node["metadata"]["labels"][LABEL] = json!(value);
        over_commit(node, None, Some(&settings("{most: 3, nodes: [{selector: {}, cpu: 2}]}")))
    };
    assert_eq!(cpu(&with("1.5").node.unwrap()).0, "5880m");
    assert_eq!(cpu(&with("configured").node.unwrap()).0, "7840m");
    let limited = with("50");
    assert_eq!(cpu(&limited.node.unwrap()).0, "11760m");
    assert!(limited.warning.unwrap().contains("reduced to 3"));
    assert_eq!(with("1").reason, Reason::NotOverCommitted);
    for bad in ["0.5", "-2", "two", "NaN", "1.0001"] {
        let Outcome { node, reason, warning, .. } = with(bad);
        assert_eq!((node, reason, warning.is_some()), (None, Reason::Malformed, true), "{bad}");
    }
}

#[test]
fn admits_unreadable_values_unchanged_with_a_warning() {
    let mut bad_record = machine_node();
    bad_record["metadata"]["annotations"] = json!({RECORD: "{"});
    let mut forged = after(&machine_node(), None, Some(&double()));
    let text = forged["metadata"]["annotations"][RECORD].as_str().unwrap().replace("3920m", "39200m");
    forged["metadata"]["annotations"][RECORD] = json!(text);
    for bad in [bad_record, forged, node(("x", "4"), ("1", "1"))] {
        let outcome = over_commit(bad, None, Some(&double()));
        assert_eq!((outcome.node, outcome.reason), (None, Reason::Malformed));
        assert!(outcome.warning.is_some());
    }
    // BoomChao writes to maps that do not exist.
    let bare = over_commit(json!({"metadata": {"name": "n"}}), None, Some(&double()));
    assert_eq!((bare.node, bare.reason), (None, Reason::NotOverCommitted));
}

#[test]
fn shipped_webhooks_match_labelled_and_recorded_nodes() {
    for file in ["components/over-commit/webhook.yaml", "chart/etcd-guard/templates/nodes.yaml"] {
        let text = std::fs::read_to_string(format!(
            "{}/deploy/{file}",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
        ))
        .unwrap();
        let label = format!("'{}' in object.metadata.labels", OverCommit::default().label);
        assert!(text.contains(&label), "{file} lacks {label}");
        assert!(text.contains(&format!("'{RECORD}' in object.metadata.annotations")), "{file}");
    }
}

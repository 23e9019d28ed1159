//! The eight rules, and the law: whoever writes in whatever order, never more than factor times what the node has.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use super::{Outcome, RECORD, Reason, over_commit};
use crate::config::{Config, OverCommit};

fn settings(text: &str) -> OverCommit {
    let config = Config::read(&format!("apiVersion: etcd-guard.io/v1alpha1\noverCommit: {text}"));
    config.unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).over_commit.unwrap()
}

fn double() -> OverCommit {
    settings("{nodes: [{selector: {}, cpu: 2, memory: 1.5}]}")
}

/// A node as a kubelet sends it.
fn node(cpu: (&str, &str), memory: (&str, &str)) -> Value {
    json!({
        "metadata": {"name": "n", "labels": {}},
        "status": {
            "allocatable": {"cpu": cpu.0, "memory": memory.0, "pods": "110"},
            "capacity": {"cpu": cpu.1, "memory": memory.1, "pods": "110"},
        }
    })
}

fn plain() -> Value {
    node(("3920m", "4"), ("1000Ki", "1024Ki"))
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
fn allocatable_is_multiplied_exactly_and_what_is_reserved_is_added_once() {
    // BoomChao/simple-kubernetes-webhook rounds 3920m up to four cores, and turns 80m reserved into one core.
    let raised = after(&plain(), None, Some(&double()));
    assert_eq!(cpu(&raised), ("7840m", "7920m"));
    assert_eq!(raised["status"]["allocatable"]["memory"], "1536000");
    assert_eq!(raised["status"]["capacity"]["memory"], (1_536_000 + 24 * 1024).to_string());
    assert_eq!(raised["status"]["capacity"]["pods"], "110");
}

#[test]
fn a_writer_that_sends_the_raised_value_does_not_raise_it_again() {
    // BoomChao multiplies at each write that is not the kubelet's.
    let raised = after(&plain(), None, Some(&double()));
    let outcome = over_commit(raised.clone(), Some(&raised), Some(&double()));
    assert_eq!((outcome.node, outcome.reason), (None, Reason::OverCommitted));
}

#[test]
fn a_writer_that_drops_the_record_does_not_raise_it_again() {
    let raised = after(&plain(), None, Some(&double()));
    let mut sent = raised.clone();
    sent["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(after(&sent, Some(&raised), Some(&double())), raised);
}

#[test]
fn a_second_call_in_one_request_does_not_raise_it_again() {
    // reinvocationPolicy: the stored node has no record yet.
    let raised = after(&plain(), Some(&plain()), Some(&double()));
    assert_eq!(after(&raised, Some(&plain()), Some(&double())), raised);
}

#[test]
fn another_text_of_the_same_amount_is_the_same() {
    let mut raised = after(&plain(), None, Some(&double()));
    raised["status"]["allocatable"]["cpu"] = json!("7.84");
    let outcome = over_commit(raised.clone(), Some(&raised), Some(&double()));
    assert!(outcome.node.is_none(), "{:?}", outcome.patch);
}

#[test]
fn one_number_sent_anew_and_the_other_as_it_was_are_each_taken_for_what_they_are() {
    let raised = after(&plain(), None, Some(&double()));
    let mut sent = raised.clone();
    sent["status"]["allocatable"]["cpu"] = json!("3900m");
    assert_eq!(cpu(&after(&sent, Some(&raised), Some(&double()))), ("7800m", "7900m"));
}

#[test]
fn switched_off_by_configuration_or_a_factor_of_one_the_node_gets_its_own_back_at_once() {
    let raised = after(&plain(), None, Some(&double()));
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
fn the_protected_label_goes_before_the_list_and_is_cut_down() {
    let label = "node-restriction.kubernetes.io/over-commit";
    let with = |value: &str| {
        let mut node = plain();
        node["metadata"]["labels"][label] = json!(value);
        over_commit(node, None, Some(&settings("{most: 3, nodes: [{selector: {}, cpu: 2}]}")))
    };
    assert_eq!(cpu(&with("1.5").node.unwrap()).0, "5880m");
    assert_eq!(cpu(&with("configured").node.unwrap()).0, "7840m");
    let cut = with("50");
    assert_eq!(cpu(&cut.node.unwrap()).0, "11760m");
    assert!(cut.warning.unwrap().contains("cut down to 3"));
    assert_eq!(with("1").reason, Reason::NotOverCommitted);
    for bad in ["0.5", "-2", "two", "NaN", "1.0001"] {
        let Outcome { node, reason, warning, .. } = with(bad);
        assert_eq!((node, reason, warning.is_some()), (None, Reason::Malformed, true), "{bad}");
    }
}

#[test]
fn what_cannot_be_read_passes_unchanged_with_a_warning() {
    let mut bad_record = plain();
    bad_record["metadata"]["annotations"] = json!({RECORD: "{"});
    let mut forged = after(&plain(), None, Some(&double()));
    let text = forged["metadata"]["annotations"][RECORD].as_str().unwrap().replace("3920m", "39200m");
    forged["metadata"]["annotations"][RECORD] = json!(text);
    for bad in [bad_record, forged, node(("x", "4"), ("1", "1"))] {
        let outcome = over_commit(bad, None, Some(&double()));
        assert_eq!((outcome.node, outcome.reason), (None, Reason::Malformed));
        assert!(outcome.warning.is_some());
    }
    // BoomChao writes to maps that are not there.
    let bare = over_commit(json!({"metadata": {"name": "n"}}), None, Some(&double()));
    assert_eq!((bare.node, bare.reason), (None, Reason::NotOverCommitted));
}

/// What happens to a node's status.
#[derive(Clone, Debug)]
enum Event {
    /// The kubelet patches from what it has in its cache to what the machine has.
    Kubelet,
    /// The same with a cache that is some writes old.
    StaleKubelet(usize),
    /// Another controller sends the whole status that it read, with a condition of its own.
    Other,
    /// The same without annotations, as from a client that does not know them.
    Forgetful,
    /// The machine gets other numbers.
    Machine(&'static str),
    /// The administrator sets another factor.
    Factor(&'static str),
}

/// Applies what a kubelet's patch holds: the difference between its cache and the machine.
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

fn milli(node: &Value, list: &str) -> i128 {
    crate::k8s::quantity::Quantity::parse(node["status"][list]["cpu"].as_str().unwrap()).unwrap().milli()
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Kubelet),
        2 => (1_usize..6).prop_map(Event::StaleKubelet),
        3 => Just(Event::Other),
        1 => Just(Event::Forgetful),
        // Never exactly what was written before: rule 5, the hole that nobody can see.
        1 => select(vec!["3920m", "3900m", "1", "1999m"]).prop_map(Event::Machine),
        1 => select(vec!["1", "2", "1.5", "1.333", "10"]).prop_map(Event::Factor),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_of_writers_exceeds_factor_times_raw_and_raw_comes_back(events in vec(event(), 1..40)) {
        let mut machine = node(("3920m", "4"), ("1000Ki", "1024Ki"));
        let mut stored = machine.clone();
        let mut history = vec![stored.clone()];
        let mut settings = double();
        // The most that any factor and any machine of the story allow so far.
        let (mut largest_factor, mut largest_raw) = (2000_i128, 3920_i128);
        for event in events {
            let cache = |age: usize| &history[history.len().saturating_sub(age + 1)];
            let sent = match event {
                Event::Kubelet => kubelet(&stored, &stored, &machine),
                Event::StaleKubelet(age) => kubelet(&stored, cache(age), &machine),
                Event::Other => stored.clone(),
                Event::Forgetful => {
                    let mut sent = stored.clone();
                    sent["metadata"].as_object_mut().unwrap().remove("annotations");
                    sent
                }
                Event::Machine(cpu) => {
                    machine["status"]["allocatable"]["cpu"] = json!(cpu);
                    largest_raw = largest_raw.max(milli(&machine, "allocatable"));
                    continue;
                }
                Event::Factor(factor) => {
                    settings = self::settings(&format!("{{nodes: [{{selector: {{}}, cpu: {factor}}}]}}"));
                    let thousandths = (factor.parse::<f64>().unwrap() * 1000.0).round();
                    largest_factor = largest_factor.max(format!("{thousandths}").parse().unwrap());
                    continue;
                }
            };
            let outcome = over_commit(sent.clone(), Some(&stored), Some(&settings));
            prop_assert_ne!(outcome.reason, Reason::Malformed, "{:?}", outcome.warning);
            stored = outcome.node.unwrap_or(sent);
            history.push(stored.clone());
            prop_assert!(milli(&stored, "allocatable") * 1000 <= largest_factor * largest_raw, "{stored:#}");
            prop_assert!(milli(&stored, "capacity") >= milli(&stored, "allocatable"));
        }
        // The kubelet reports once more, and then somebody switches it off.
        let sent = kubelet(&stored, &stored, &machine);
        stored = over_commit(sent.clone(), Some(&stored), Some(&settings)).node.unwrap_or(sent);
        let off = over_commit(stored.clone(), Some(&stored), None);
        let restored = off.node.unwrap_or(stored);
        prop_assert_eq!(milli(&restored, "allocatable"), milli(&machine, "allocatable"));
        prop_assert_eq!(milli(&restored, "capacity"), milli(&machine, "capacity"));
        prop_assert_eq!(restored["metadata"]["annotations"].get(RECORD), None);
    }
}

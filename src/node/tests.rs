//! The eight rules, and the law: whoever writes in whatever order, never more than factor times what the node has.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use super::{RECORD, Reason};
use crate::{
    config::{Config, OverCommit},
    json::Json,
    patch::Patch,
};

const LABEL: &str = "node-restriction.kubernetes.io/over-commit";

fn settings(text: &str) -> OverCommit {
    let config = Config::read(&format!("apiVersion: etcd-guard.io/v1alpha1\noverCommit: {text}"));
    config.unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).over_commit.unwrap()
}

fn double() -> OverCommit {
    settings("{nodes: [{selector: {}, cpu: 2, memory: 1.5}]}")
}

/// A node as a kubelet sends it, with the label that leaves the factors to the configuration.
fn node(cpu: (&str, &str), memory: (&str, &str)) -> Value {
    json!({
        "metadata": {"name": "n", "labels": {LABEL: "configured"}},
        "status": {
            "allocatable": {"cpu": cpu.0, "memory": memory.0, "pods": "110"},
            "capacity": {"cpu": cpu.1, "memory": memory.1, "pods": "110"},
        }
    })
}

fn plain() -> Value {
    node(("3920m", "4"), ("1000Ki", "1024Ki"))
}

/// The node before anybody wrote its status, so that whatever is sent is sent anew.
fn new() -> Value {
    json!({"metadata": {"name": "n", "labels": {LABEL: "configured"}}, "status": {}})
}

/// What became of a node's status, with nothing borrowed.
#[derive(Debug)]
struct Outcome {
    node: Option<Value>,
    patch: Patch,
    reason: Reason,
    warning: Option<String>,
}

#[allow(clippy::needless_pass_by_value, reason = "callers write it in place")]
fn over_commit(node: Value, stored: Option<&Value>, settings: Option<&OverCommit>) -> Outcome {
    let stored = stored.map(Json::from);
    let outcome = super::over_commit(Json::from(&node), stored.as_ref(), settings);
    let (reason, warning) = (outcome.reason, outcome.warning);
    Outcome { node: outcome.node.as_ref().map(Value::from), patch: outcome.patch, reason, warning }
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
    let raised = after(&plain(), Some(&new()), Some(&double()));
    assert_eq!(after(&raised, Some(&new()), Some(&double())), raised);
    let asked = after(&plain(), Some(&plain()), Some(&double()));
    assert_eq!(after(&asked, Some(&plain()), Some(&double())), asked);
}

#[test]
fn a_number_that_nobody_sent_anew_is_asked_for_and_then_raised() {
    // A node that was registered before it got its label: no writer sends its CPU, the kubelet least of all.
    let outcome = over_commit(plain(), Some(&plain()), Some(&double()));
    assert_eq!(outcome.reason, Reason::KubeletAsked);
    let asked = outcome.node.unwrap();
    assert_eq!(cpu(&asked), ("3919m", "3999m"), "one unit less, so that the kubelet says its own");
    let other = over_commit(asked.clone(), Some(&asked), Some(&double()));
    assert_eq!((other.node, other.reason), (None, Reason::KubeletAsked), "another writer changes nothing");
    let answered = after(&kubelet(&asked, &asked, &plain()), Some(&asked), Some(&double()));
    assert_eq!(cpu(&answered), ("7840m", "7920m"));
}

#[test]
fn a_record_that_was_removed_from_the_node_does_not_let_the_next_writer_raise_it_again() {
    let raised = after(&plain(), Some(&new()), Some(&double()));
    let mut annotated = raised;
    annotated["metadata"]["annotations"].as_object_mut().unwrap().remove(RECORD);
    let sent = after(&annotated, Some(&annotated), Some(&double()));
    assert_eq!(cpu(&sent), ("7839m", "7919m"));
    let answered = after(&kubelet(&sent, &sent, &plain()), Some(&sent), Some(&double()));
    assert_eq!(cpu(&answered), ("7840m", "7920m"));
}

#[test]
fn a_kubelet_with_an_old_cache_may_send_one_of_the_two_numbers_alone() {
    // It read the node when the capacity was not raised yet; nobody knows any more what the other number was made from.
    let sent = node(("39", "4"), ("1Ki", "1Ki"));
    let stored = node(("39", "40"), ("1Ki", "1Ki"));
    assert_eq!(
        cpu(&after(&sent, Some(&stored), Some(&double()))),
        ("3999m", "3999m"),
        "never more than there is"
    );
}

#[test]
fn a_machine_that_grew_to_what_it_offered_is_seen_once_its_record_is_removed() {
    // Rule 5: the kubelet's update does not name a number that the node has already.
    let raised = after(&node(("4", "4"), ("1Ki", "1Ki")), Some(&new()), Some(&double()));
    let grown = node(("8", "8"), ("1Ki", "1Ki"));
    assert_eq!(cpu(&after(&kubelet(&raised, &raised, &grown), Some(&raised), Some(&double()))), ("8", "8"));
    let mut annotated = raised;
    annotated["metadata"]["annotations"].as_object_mut().unwrap().remove(RECORD);
    let asked = after(&kubelet(&annotated, &annotated, &grown), Some(&annotated), Some(&double()));
    let answered = after(&kubelet(&asked, &asked, &grown), Some(&asked), Some(&double()));
    assert_eq!(cpu(&answered), ("16", "16"));
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
fn without_the_label_a_node_gets_its_own_back_whatever_entry_selects_it() {
    let raised = after(&plain(), None, Some(&double()));
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
fn a_record_that_a_kubelet_writes_on_its_own_node_opts_it_in_to_nothing() {
    // A kubelet may annotate its node, and so have the webhook called; the label it cannot set (NodeRestriction).
    let record = after(&plain(), None, Some(&double()))["metadata"]["annotations"].clone();
    for (annotations, reason) in
        [(record, Reason::Restored), (json!({RECORD: "{}"}), Reason::NotOverCommitted)]
    {
        let mut sent = plain();
        sent["metadata"] = json!({"name": "n", "annotations": annotations});
        let outcome = over_commit(sent.clone(), Some(&new()), Some(&double()));
        assert_eq!(outcome.reason, reason);
        assert_eq!(cpu(&outcome.node.unwrap_or(sent)), ("3920m", "4"));
    }
}

#[test]
fn the_protected_label_goes_before_the_list_and_is_cut_down() {
    let with = |value: &str| {
        let mut node = plain();
        node["metadata"]["labels"][LABEL] = json!(value);
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

#[test]
fn the_shipped_webhooks_see_the_nodes_of_the_default_label_and_those_that_were_raised() {
    for file in ["components/over-commit/webhook.yaml", "chart/etcd-guard/templates/nodes.yaml"] {
        let text = std::fs::read_to_string(format!("{}/deploy/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let label = format!("'{}' in object.metadata.labels", OverCommit::default().label);
        assert!(text.contains(&label), "{file} lacks {label}");
        assert!(text.contains(&format!("'{RECORD}' in object.metadata.annotations")), "{file}");
    }
}

/// What happens to a node and its status.
#[derive(Clone, Debug)]
enum Event {
    /// Somebody writes the status, through the webhook.
    Write(Writer),
    /// The same while the webhook is down: it is stored as it was sent.
    WriteUnseen(Writer),
    /// `kubectl annotate node`: the record is removed, of which the webhook hears nothing.
    RecordRemoved,
    /// `kubectl replace` of a node as it was some writes ago: an old record takes the place of the last.
    RecordReplaced(usize),
    /// The machine gets other numbers: allocatable and capacity of a resource.
    Machine(&'static str, (&'static str, &'static str)),
    /// The administrator sets another factor.
    Factor(&'static str),
}

/// Who writes a node's status.
#[derive(Clone, Debug)]
enum Writer {
    /// The kubelet patches from what it has in its cache, which may be some writes old, to what the machine has.
    Kubelet(usize),
    /// Another controller sends the whole status that it read, with a condition of its own.
    Other,
    /// The same without annotations, as from a client that does not know them.
    Forgetful,
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

/// A number of a node's status, as `Resource` counts it.
fn amount(node: &Value, list: &str, resource: &str) -> i128 {
    let text = node["status"][list][resource].as_str().unwrap();
    let quantity = crate::k8s::quantity::Quantity::parse(text).unwrap();
    if resource == "cpu" { quantity.milli() } else { quantity.whole() }
}

fn writer() -> impl Strategy<Value = Writer> {
    prop_oneof![
        3 => Just(Writer::Kubelet(0)),
        2 => (1_usize..6).prop_map(Writer::Kubelet),
        3 => Just(Writer::Other),
        1 => Just(Writer::Forgetful),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        9 => writer().prop_map(Event::Write),
        1 => writer().prop_map(Event::WriteUnseen),
        1 => Just(Event::RecordRemoved),
        1 => (1_usize..6).prop_map(Event::RecordReplaced),
        // None of them is what another one is raised to: the kubelet would not say so (rule 5).
        1 => select(vec![("3920m", "4"), ("3900m", "4"), ("1", "1200m"), ("1999m", "2")])
            .prop_map(|amounts| Event::Machine("cpu", amounts)),
        1 => select(vec![("1000Ki", "1024Ki"), ("900Ki", "1000Ki"), ("501Ki", "512Ki")])
            .prop_map(|amounts| Event::Machine("memory", amounts)),
        1 => select(vec!["1", "2", "1.5", "1.333", "10"]).prop_map(Event::Factor),
    ]
}

/// A factor of both resources.
fn both(factor: &str) -> OverCommit {
    settings(&format!("{{nodes: [{{selector: {{}}, cpu: {factor}, memory: {factor}}}]}}"))
}

/// A node, its machine and its administrator, over time.
struct Story {
    machine: Value,
    /// All that the machine was since a kubelet that saw the node as it was said what the machine is.
    machines: Vec<Value>,
    stored: Value,
    history: Vec<Value>,
    factor: &'static str,
    settings: OverCommit,
}

impl Story {
    fn sent(&self, writer: &Writer) -> Value {
        let stored = &self.stored;
        match writer {
            Writer::Kubelet(age) => kubelet(stored, self.ago(*age), &self.machine),
            Writer::Other => stored.clone(),
            Writer::Forgetful => {
                let mut sent = stored.clone();
                sent["metadata"].as_object_mut().unwrap().remove("annotations");
                sent
            }
        }
    }

    /// The node as it was so many writes ago.
    fn ago(&self, writes: usize) -> &Value {
        &self.history[self.history.len().saturating_sub(writes + 1)]
    }

    fn store(&mut self, node: Value) {
        self.history.push(node.clone());
        self.stored = node;
    }

    /// A write through the webhook, by these settings.
    fn write(&mut self, writer: &Writer, settings: Option<&OverCommit>) -> Reason {
        let sent = self.sent(writer);
        let outcome = over_commit(sent.clone(), Some(&self.stored), settings);
        assert_ne!(outcome.reason, Reason::Malformed, "{:?}", outcome.warning);
        self.store(outcome.node.unwrap_or(sent));
        outcome.reason
    }

    /// The law, by the factor that counts now, after a write by `writer` to the node that was `before`.
    fn exceeded(&self, writer: &Writer, before: &Value, reason: Reason) -> Option<String> {
        // In thousandths, as the factors have at most three digits.
        let factor = match self.factor.split_once('.') {
            None => self.factor.parse::<i128>().unwrap() * 1000,
            Some((whole, part)) => format!("{whole}{part:0<3}").parse().unwrap(),
        };
        let excess = |resource: &str| {
            let now = |list| amount(&self.stored, list, resource) * 1000;
            let before = |list| amount(before, list, resource) * 1000;
            let machine = |list| amount(&self.machine, list, resource);
            let largest = |list| self.machines.iter().map(|it| amount(it, list, resource)).max().unwrap();
            let (allocatable, capacity) = match writer {
                // What the machine has was said just now.
                Writer::Kubelet(0) => {
                    let allocatable = factor * machine("allocatable");
                    (allocatable, allocatable + 1000 * (machine("capacity") - machine("allocatable")))
                }
                _ => (factor * largest("allocatable"), factor * largest("capacity")),
            };
            // What nobody knows the origin of may stay, and grows no more.
            let is_known = reason == Reason::OverCommitted || matches!(writer, Writer::Kubelet(0));
            let most = |known: i128, list| if is_known { known } else { known.max(before(list)) };
            let fits = now("allocatable") <= most(allocatable, "allocatable")
                && now("capacity") <= most(capacity, "capacity");
            (!fits)
                .then(|| format!("{resource} by {writer:?}, {reason:?}, {}: {:#}", self.factor, self.stored))
        };
        excess("cpu").or_else(|| excess("memory"))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_of_writers_exceeds_factor_times_raw_and_raw_comes_back(events in vec(event(), 1..40)) {
        let machine = plain();
        let (machines, history) = (vec![machine.clone()], vec![machine.clone()]);
        let mut story = Story { stored: machine.clone(), machine, machines, history, factor: "2", settings: both("2") };
        for event in events {
            match event {
                Event::Write(writer) => {
                    let before = story.stored.clone();
                    let reason = story.write(&writer, Some(&story.settings.clone()));
                    let exceeded = story.exceeded(&writer, &before, reason);
                    prop_assert!(exceeded.is_none(), "{}", exceeded.unwrap());
                    if matches!(writer, Writer::Kubelet(0)) {
                        story.machines = vec![story.machine.clone()];
                    }
                    for resource in ["cpu", "memory"] {
                        let of = |list| amount(&story.stored, list, resource);
                        let is_ours = [Reason::OverCommitted, Reason::KubeletAsked].contains(&reason);
                        let goes_together = of("capacity") >= of("allocatable");
                        prop_assert!(goes_together || !is_ours, "{:#}", story.stored);
                    }
                }
                Event::WriteUnseen(writer) => story.store(story.sent(&writer)),
                Event::RecordRemoved => {
                    let mut node = story.stored.clone();
                    if let Some(annotations) = node["metadata"]["annotations"].as_object_mut() {
                        annotations.remove(RECORD);
                    }
                    story.store(node);
                }
                Event::RecordReplaced(writes) => {
                    let mut node = story.stored.clone();
                    node["metadata"] = story.ago(writes)["metadata"].clone();
                    story.store(node);
                }
                Event::Machine(resource, (allocatable, capacity)) => {
                    story.machine["status"]["allocatable"][resource] = json!(allocatable);
                    story.machine["status"]["capacity"][resource] = json!(capacity);
                    story.machines.push(story.machine.clone());
                }
                Event::Factor(factor) => (story.factor, story.settings) = (factor, both(factor)),
            }
        }
        // The kubelet reports once more, and then somebody switches it off.
        let reason = story.write(&Writer::Kubelet(0), Some(&story.settings.clone()));
        story.write(&Writer::Other, None);
        if reason != Reason::OverCommitted {
            // Whose numbers these were was not known: the kubelet's next report says.
            story.write(&Writer::Kubelet(0), None);
        }
        for (list, resource) in
            [("allocatable", "cpu"), ("capacity", "cpu"), ("allocatable", "memory"), ("capacity", "memory")]
        {
            let (node, machine) = (&story.stored, &story.machine);
            prop_assert_eq!(amount(node, list, resource), amount(machine, list, resource), "{:#}", node);
        }
        let annotations = story.stored["metadata"].get("annotations");
        prop_assert_eq!(annotations.and_then(|it| it.get(RECORD)), None);
    }
}

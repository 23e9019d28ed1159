//! Safety under concurrent clients: no order of writes results in more than the factor times the machine's amounts.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use super::{RECORD, Reason, kubelet, machine_node, over_commit, settings};
use crate::config::over_commit::OverCommit;

/// An event in the life of a node.
#[derive(Clone, Debug)]
enum Event {
    /// A client writes the status, through the webhook.
    Write(StatusClient),
    /// A client writes the status while the webhook is down.
    WriteUnseen(StatusClient),
    /// `kubectl annotate node` removes the record, without a call of the webhook.
    RecordRemoved,
    /// `kubectl replace` restores the metadata of some writes ago, with an old record.
    RecordReplaced(usize),
    /// The machine's amounts of a resource change: allocatable and capacity.
    Machine(&'static str, (&'static str, &'static str)),
    /// The administrator changes the factor.
    Factor(&'static str),
}

/// A client that writes a node's status.
#[derive(Clone, Debug)]
enum StatusClient {
    /// The kubelet patches the difference between its cache, which may be some writes old, and the machine.
    Kubelet(usize),
    /// Another controller sends the whole status that it read, with an additional condition.
    Other,
    /// A client that drops all annotations.
    DropsAnnotations,
}

/// An amount of a node's status in the units of `Resource::count`.
fn amount(node: &Value, list: &str, resource: &str) -> i128 {
    let text = node["status"][list][resource].as_str().unwrap();
    let quantity = etcd_guard_core::objects::quantity::Quantity::parse(text).unwrap();
    if resource == "cpu" { quantity.milli() } else { quantity.units() }
}

fn client() -> impl Strategy<Value = StatusClient> {
    prop_oneof![
        3 => Just(StatusClient::Kubelet(0)),
        2 => (1_usize..6).prop_map(StatusClient::Kubelet),
        3 => Just(StatusClient::Other),
        1 => Just(StatusClient::DropsAnnotations),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        9 => client().prop_map(Event::Write),
        1 => client().prop_map(Event::WriteUnseen),
        1 => Just(Event::RecordRemoved),
        1 => (1_usize..6).prop_map(Event::RecordReplaced),
        // No amount equals the raised value of another one: the kubelet would not report it (rule 5).
        1 => select(vec![("3920m", "4"), ("3900m", "4"), ("1", "1200m"), ("1999m", "2")])
            .prop_map(|amounts| Event::Machine("cpu", amounts)),
        1 => select(vec![("1000Ki", "1024Ki"), ("900Ki", "1000Ki"), ("501Ki", "512Ki")])
            .prop_map(|amounts| Event::Machine("memory", amounts)),
        1 => select(vec!["1", "2", "1.5", "1.333", "10"]).prop_map(Event::Factor),
    ]
}

/// Settings with one factor for both resources.
fn both(factor: &str) -> OverCommit {
    settings(&format!("{{nodes: [{{selector: {{}}, cpu: {factor}, memory: {factor}}}]}}"))
}

/// A simulated node with its machine and its settings.
struct Simulation {
    machine: Value,
    /// All states of the machine since the last report of a kubelet with a current cache.
    machines: Vec<Value>,
    stored: Value,
    hisimulation: Vec<Value>,
    factor: &'static str,
    settings: OverCommit,
}

impl Simulation {
    fn sent(&self, client: &StatusClient) -> Value {
        let stored = &self.stored;
        match client {
            StatusClient::Kubelet(age) => kubelet(stored, self.ago(*age), &self.machine),
            StatusClient::Other => stored.clone(),
            StatusClient::DropsAnnotations => {
                let mut sent = stored.clone();
                sent["metadata"].as_object_mut().unwrap().remove("annotations");
                sent
            }
        }
    }

    /// The node as stored a number of writes ago.
    fn ago(&self, writes: usize) -> &Value {
        &self.hisimulation[self.hisimulation.len().saturating_sub(writes + 1)]
    }

    fn store(&mut self, node: Value) {
        self.hisimulation.push(node.clone());
        self.stored = node;
    }

    /// Writes the status through the webhook with these settings.
    fn write(&mut self, client: &StatusClient, settings: Option<&OverCommit>) -> Reason {
        let sent = self.sent(client);
        let outcome = over_commit(sent.clone(), Some(&self.stored), settings);
        assert_ne!(outcome.reason, Reason::Malformed, "{:?}", outcome.warning);
        self.store(outcome.node.unwrap_or(sent));
        outcome.reason
    }

    /// Checks the limit with the current factor, after a write by `client` to the node `before`. Returns a violation.
    fn violation(&self, client: &StatusClient, before: &Value, reason: Reason) -> Option<String> {
        // In thousandths, as the factors have at most three digits.
        let factor = match self.factor.split_once('.') {
            None => self.factor.parse::<i128>().unwrap() * 1000,
            Some((whole, part)) => format!("{whole}{part:0<3}").parse().unwrap(),
        };
        let excess = |resource: &str| {
            let now = |list| amount(&self.stored, list, resource) * 1000;
            let before = |list| amount(before, list, resource) * 1000;
            let machine = |list| amount(&self.machine, list, resource);
            let largest =
                |list| self.machines.iter().map(|machine| amount(machine, list, resource)).max().unwrap();
            let (allocatable, capacity) = match client {
                // This write reports the machine's amounts.
                StatusClient::Kubelet(0) => {
                    let allocatable = factor * machine("allocatable");
                    (allocatable, allocatable + 1000 * (machine("capacity") - machine("allocatable")))
                }
                _ => (factor * largest("allocatable"), factor * largest("capacity")),
            };
            // Amounts of unknown origin may remain, but must not increase.
            let is_known = reason == Reason::OverCommitted || matches!(client, StatusClient::Kubelet(0));
            let limit = |known: i128, list| if is_known { known } else { known.max(before(list)) };
            let fits = now("allocatable") <= limit(allocatable, "allocatable")
                && now("capacity") <= limit(capacity, "capacity");
            (!fits)
                .then(|| format!("{resource} by {client:?}, {reason:?}, {}: {:#}", self.factor, self.stored))
        };
        excess("cpu").or_else(|| excess("memory"))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn interleaved_writes_respect_the_limit_and_are_reversible(events in vec(event(), 1..40)) {
        let machine = machine_node();
        let (machines, hisimulation) = (vec![machine.clone()], vec![machine.clone()]);
        let mut simulation = Simulation { stored: machine.clone(), machine, machines, hisimulation, factor: "2", settings: both("2") };
        for event in events {
            match event {
                Event::Write(client) => {
                    let before = simulation.stored.clone();
                    let reason = simulation.write(&client, Some(&simulation.settings.clone()));
                    let violation = simulation.violation(&client, &before, reason);
                    prop_assert!(violation.is_none(), "{}", violation.unwrap());
                    if matches!(client, StatusClient::Kubelet(0)) {
                        simulation.machines = vec![simulation.machine.clone()];
                    }
                    for resource in ["cpu", "memory"] {
                        let stored = |list| amount(&simulation.stored, list, resource);
                        let is_written = [Reason::OverCommitted, Reason::KubeletAsked].contains(&reason);
                        let is_consistent = stored("capacity") >= stored("allocatable");
                        prop_assert!(is_consistent || !is_written, "{:#}", simulation.stored);
                    }
                }
                Event::WriteUnseen(client) => simulation.store(simulation.sent(&client)),
                Event::RecordRemoved => {
                    let mut node = simulation.stored.clone();
                    if let Some(annotations) = node["metadata"]["annotations"].as_object_mut() {
                        annotations.remove(RECORD);
                    }
                    simulation.store(node);
                }
                Event::RecordReplaced(writes) => {
                    let mut node = simulation.stored.clone();
                    node["metadata"] = simulation.ago(writes)["metadata"].clone();
                    simulation.store(node);
                }
                Event::Machine(resource, (allocatable, capacity)) => {
                    simulation.machine["status"]["allocatable"][resource] = json!(allocatable);
                    simulation.machine["status"]["capacity"][resource] = json!(capacity);
                    simulation.machines.push(simulation.machine.clone());
                }
                Event::Factor(factor) => (simulation.factor, simulation.settings) = (factor, both(factor)),
            }
        }
        // The kubelet reports once more, then over-commit is disabled.
        let reason = simulation.write(&StatusClient::Kubelet(0), Some(&simulation.settings.clone()));
        simulation.write(&StatusClient::Other, None);
        if reason != Reason::OverCommitted {
            // The origin was unknown: the kubelet's next report contains the machine's amounts.
            simulation.write(&StatusClient::Kubelet(0), None);
        }
        for (list, resource) in
            [("allocatable", "cpu"), ("capacity", "cpu"), ("allocatable", "memory"), ("capacity", "memory")]
        {
            let (node, machine) = (&simulation.stored, &simulation.machine);
            prop_assert_eq!(amount(node, list, resource), amount(machine, list, resource), "{:#}", node);
        }
        let annotations = simulation.stored["metadata"].get("annotations");
        prop_assert_eq!(annotations.and_then(|annotations| annotations.get(RECORD)), None);
    }
}

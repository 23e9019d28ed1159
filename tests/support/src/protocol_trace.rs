//! Traces of runs for the comparison with the model of the reservation protocol
//! (`src/core/src/ledger/protocol/traces.rs`): the changes of the reservations and of the pods in the order of the API server, and
//! the approvals.
//!
//! A trace is a text with a JSON object per line. The first line names the pods of the voters and of the learners:
//! `{"voters":["etcd-0"],"learners":[]}`. Each other line has the time in milliseconds and one event:
//!
//! - `"record":[[UID,TIME]]`: the reservations of the cluster after a write, each with the time of its approval;
//! - `"created":{"pod":NAME,"uid":UID}`: a pod was created;
//! - `"running":UID` and `"stopped":UID`: the container of etcd runs, or has stopped;
//! - `"ready":UID` and `"unready":UID`: the container of etcd became ready, or is not ready any more;
//! - `"terminating":UID` and `"gone":UID`: the pod has a deletion timestamp, or was deleted;
//! - `"approved":UID`: the deletion of the pod was approved.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

/// The environment variable with the folder to which tests write traces.
const FOLDER: &str = "PROTOCOL_TRACES";

/// The annotation of a Lease with the reservations of a cluster.
const RESERVATIONS: &str = "etcd-guard.io/reservations";

/// The name of the container that runs the member.
const CONTAINER: &str = "etcd";

/// One change of an object, as a watch reports it.
#[derive(Clone, Debug)]
pub struct Change {
    /// Time in milliseconds since the start of the run.
    pub millis: u64,
    /// The resource version, which orders the changes of all resources.
    pub version: u64,
    /// The kind of the object.
    pub kind: Kind,
    /// Whether the object was deleted.
    pub is_deleted: bool,
    /// The object after the change, or before its deletion.
    pub object: Value,
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Lease of `coordination.k8s.io`, with the reservations of a cluster.
    Lease,
    /// A pod.
    Pod,
}

/// The members of a cluster, and the namespace of their pods.
#[derive(Clone, Debug)]
pub struct Members {
    /// The namespace of the pods.
    pub namespace: String,
    /// The names of the pods of voters.
    pub voters: Vec<String>,
    /// The names of the pods of learners.
    pub learners: Vec<String>,
}

/// Returns the folder to which tests write traces, if there is one.
pub fn folder() -> Option<PathBuf> {
    env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Writes a trace to a file in this folder.
pub fn write(folder: &Path, name: &str, trace: &str) {
    std::fs::create_dir_all(folder).expect("the folder of the traces exists");
    std::fs::write(folder.join(format!("{name}.jsonl")), trace).expect("the trace is written");
}

/// Returns the trace of a run. `approvals` are the times and the uids of the approved pods.
pub fn trace(members: &Members, mut changes: Vec<Change>, approvals: &[(u64, String)]) -> String {
    changes.sort_by_key(|change| change.version);
    let mut events = Events::default();
    let mut approvals = approvals.iter().peekable();
    for change in &changes {
        while let Some((millis, uid)) = approvals.next_if(|(millis, _)| *millis < change.millis) {
            events.add(*millis, "approved", &json!(uid));
        }
        match change.kind {
            Kind::Lease => events.add_lease(members, change),
            Kind::Pod => events.add_pod(members, change),
        }
    }
    for (millis, uid) in approvals {
        events.add(*millis, "approved", &json!(uid));
    }
    let header = json!({"voters": members.voters, "learners": members.learners});
    format!("{header}\n{}", events.lines)
}

/// The events so far, and the state after them.
#[derive(Default)]
struct Events {
    lines: String,
    millis: u64,
    /// The reservations of each Lease.
    leases: BTreeMap<String, Vec<(String, String)>>,
    record: Vec<(String, String)>,
    /// The pods by uid.
    pods: BTreeMap<String, PodState>,
}

#[derive(Clone, Copy, Default)]
struct PodState {
    is_running: bool,
    is_ready: bool,
    is_terminating: bool,
}

// === impl Events ===

impl Events {
    /// Adds an event. Times do not decrease: watches of different resources report changes with different delays.
    fn add(&mut self, millis: u64, event: &str, value: &Value) {
        self.millis = self.millis.max(millis);
        self.lines += &json!({"ms": self.millis, event: value}).to_string();
        self.lines.push('\n');
    }

    fn add_lease(&mut self, members: &Members, change: &Change) {
        let name = text(&change.object["metadata"]["name"]);
        let reservations =
            if change.is_deleted { Vec::new() } else { reservations(&change.object, &members.namespace) };
        self.leases.insert(name, reservations);
        let mut record: Vec<(String, String)> = self.leases.values().flatten().cloned().collect();
        record.sort_unstable();
        record.dedup();
        if record != self.record {
            self.add(change.millis, "record", &json!(record));
            self.record = record;
        }
    }

    fn add_pod(&mut self, members: &Members, change: &Change) {
        let (pod, metadata) = (&change.object, &change.object["metadata"]);
        let (name, uid) = (text(&metadata["name"]), text(&metadata["uid"]));
        let runs_member = members.voters.iter().chain(&members.learners).any(|member| *member == name);
        if !runs_member || metadata["namespace"] != members.namespace.as_str() {
            return;
        }
        let before = self.pods.get(&uid).copied();
        if before.is_none() {
            self.add(change.millis, "created", &json!({"pod": name, "uid": uid}));
        }
        let before = before.unwrap_or_default();
        let mut states = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        let etcd = states.find(|state| state["name"] == CONTAINER).unwrap_or(&Value::Null);
        let now = PodState {
            is_running: etcd["state"]["running"].is_object(),
            is_ready: etcd["ready"] == true,
            is_terminating: !metadata["deletionTimestamp"].is_null(),
        };
        if now.is_terminating && !before.is_terminating {
            self.add(change.millis, "terminating", &json!(uid));
        }
        if now.is_running != before.is_running {
            self.add(change.millis, if now.is_running { "running" } else { "stopped" }, &json!(uid));
        }
        if now.is_ready != before.is_ready {
            self.add(change.millis, if now.is_ready { "ready" } else { "unready" }, &json!(uid));
        }
        self.pods.insert(uid.clone(), now);
        if change.is_deleted {
            self.add(change.millis, "gone", &json!(uid));
        }
    }
}

/// Returns the reservations of pods of a namespace in a Lease: the uid of the pod, and the time of the approval.
fn reservations(lease: &Value, namespace: &str) -> Vec<(String, String)> {
    let annotation = lease["metadata"]["annotations"][RESERVATIONS].as_str().unwrap_or("[]");
    let reservations: Vec<Value> = serde_json::from_str(annotation).expect("the reservations are JSON");
    let of_namespace = reservations.iter().filter(|reservation| reservation["namespace"] == namespace);
    of_namespace.map(|reservation| (text(&reservation["uid"]), text(&reservation["at"]))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

//! Traces of simulated runs for the comparison with the model of the reservation protocol.

use test_support::protocol_trace::{self, Change, Kind, Members};

use crate::{scenario::NAMESPACE, world::World};

/// Returns the trace of a run.
pub(crate) fn of_run(world: &World) -> String {
    let mut voters = world.scenario.pod_names();
    let learners = voters.split_off(voters.len() - world.scenario.learners);
    let members = Members { namespace: String::from(NAMESPACE), voters, learners };
    let changes = world.store.log().iter().filter_map(|change| {
        let kind = match change.key.0.as_str() {
            "leases" => Kind::Lease,
            "pods" => Kind::Pod,
            _ => return None,
        };
        let millis = u64::try_from(change.at.duration_since(world.started).as_millis()).unwrap();
        let (is_deleted, object) = (change.kind == "DELETED", change.object.clone());
        Some(Change { millis, version: change.version, kind, is_deleted, object })
    });
    protocol_trace::trace(&members, changes.collect(), &world.approvals)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn change(millis: u64, kind: Kind, object: Value) -> Change {
        Change { millis, version: millis, kind, is_deleted: false, object }
    }

    #[test]
    fn trace_has_each_change_of_the_record_and_of_the_pods() {
        let members = Members {
            namespace: String::from("prod"),
            voters: vec![String::from("etcd-0")],
            learners: Vec::new(),
        };
        let lease = |reservations: Value| json!({"metadata": {"name": "etcd-guard.1", "annotations": {"etcd-guard.io/reservations": reservations.to_string()}}});
        let reservation = |namespace: &str| json!({"uid": "u", "at": "t", "namespace": namespace});
        let pod = |metadata: Value, state: Value| {
            let mut pod = json!({"metadata": metadata, "status": {"containerStatuses": [{"name": "etcd", "state": state}]}});
            pod["metadata"]["namespace"] = json!("prod");
            pod
        };
        let metadata = json!({"name": "etcd-0", "uid": "u"});
        let mut deleted = metadata.clone();
        deleted["deletionTimestamp"] = json!("2026-01-31T12:00:00Z");
        let mut gone = change(7, Kind::Pod, pod(deleted.clone(), json!({})));
        gone.is_deleted = true;
        let changes = vec![
            gone,
            change(1, Kind::Pod, pod(metadata.clone(), json!({}))),
            change(2, Kind::Pod, pod(metadata, json!({"running": {}}))),
            change(3, Kind::Lease, lease(json!([reservation("other")]))),
            change(4, Kind::Lease, lease(json!([reservation("prod")]))),
            change(6, Kind::Pod, pod(deleted, json!({"running": {}}))),
        ];
        let expected = [
            json!({"voters": ["etcd-0"], "learners": []}),
            json!({"ms": 1, "created": {"pod": "etcd-0", "uid": "u"}}),
            json!({"ms": 2, "running": "u"}),
            json!({"ms": 4, "record": [["u", "t"]]}),
            json!({"ms": 5, "approved": "u"}),
            json!({"ms": 6, "terminating": "u"}),
            json!({"ms": 7, "stopped": "u"}),
            json!({"ms": 7, "gone": "u"}),
        ];
        let trace = protocol_trace::trace(&members, changes, &[(5, String::from("u"))]);
        let lines: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, expected);
    }
}

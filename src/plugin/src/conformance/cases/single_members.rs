//! Clusters with one member, in which every deletion causes an outage or a loss of data.

use serde_json::{Value, json};

use super::{
    requests::{Deletion, Expected, request_deletion},
    runner::{Case, Cases},
};

/// A cluster with one member.
struct SingleMember {
    /// The name of the StatefulSet.
    name: &'static str,
    case: Case,
    /// Changes the StatefulSet.
    change: fn(&mut Value),
}

const SINGLE_MEMBERS: [SingleMember; 3] = [
    SingleMember {
        name: "single",
        case: Case {
            request: "delete the only member",
            expected: Expected::Denied(&["SingleMember"]),
            why: "no member would serve",
        },
        change: |_| {},
    },
    SingleMember {
        name: "single-empty-dir",
        case: Case {
            request: "delete the only member, on an emptyDir",
            expected: Expected::Denied(&["PermanentLoss"]),
            why: "its data would be lost",
        },
        change: use_empty_dir,
    },
    SingleMember {
        name: "single-hook",
        case: Case {
            request: "delete the only member, which a preStop hook removes",
            expected: Expected::Denied(&["PermanentLoss"]),
            why: "the hook removes the member from the cluster",
        },
        change: add_hook,
    },
];

fn use_empty_dir(set: &mut Value) {
    if let Some(spec) = set.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.remove("volumeClaimTemplates");
    }
    if let Some(spec) = set.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut) {
        spec.insert(String::from("volumes"), json!([{"name": "data", "emptyDir": {}}]));
    }
}

/// Adds a preStop hook that looks like one that removes the member. It fails when it runs during the deletion of the
/// namespace, because `etcdctl member remove` expects an id instead of a name.
fn add_hook(set: &mut Value) {
    let command = ["/usr/local/bin/etcdctl", "member", "remove", "$(POD_NAME)"];
    let hook = json!({"preStop": {"exec": {"command": command}}});
    if let Some(container) = set.pointer_mut("/spec/template/spec/containers/0") {
        container["lifecycle"] = hook;
    }
}

// === impl Cases ===

impl Cases<'_> {
    pub(super) async fn single_members(&mut self) -> anyhow::Result<()> {
        // All clusters are created first, so that they start in parallel.
        let mut clusters = Vec::new();
        for single in &SINGLE_MEMBERS {
            let mut objects = self.cluster.single_member_objects(single.name)?;
            objects.iter_mut().filter(|object| object["kind"] == "StatefulSet").for_each(single.change);
            clusters.push((single, self.sandbox.create_objects(objects).await));
        }
        for (SingleMember { name, case, .. }, created) in clusters {
            if let Err(error) = created {
                self.skip(*case, &format!("{error:#}"));
                continue;
            }
            let is_serving = async || {
                let is_ready = self.sandbox.pods(name).await?.iter().any(|pod| pod.ready);
                let cluster = self.sandbox.cluster_of(name).await;
                Ok(is_ready && cluster.is_ok_and(|cluster| cluster.healthy == Some(1)))
            };
            if !self.sandbox.wait_until(1, is_serving).await? {
                self.skip(*case, "its pod did not serve in time");
                continue;
            }
            let before = self.sandbox.pods(name).await?;
            let response = request_deletion(self.sandbox, &format!("{name}-0"), Deletion::Delete).await?;
            let after = self.sandbox.pods(name).await?;
            let remains =
                before.iter().all(|pod| after.iter().any(|other| other.uid == pod.uid && !other.terminating));
            let failure = (!remains).then(|| String::from("its pod was deleted"));
            self.record(*case, &response, failure);
        }
        Ok(())
    }
}

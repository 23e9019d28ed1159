//! Clusters of one member: nobody is to spare there, and a member's data least of all.

use serde_json::{Value, json};

use super::{Act, Cases, Expected, act};

/// One such cluster.
struct Single {
    /// Of its StatefulSet.
    name: &'static str,
    request: &'static str,
    reason: Expected,
    why: &'static str,
    /// What is special about it.
    change: fn(&mut Value),
}

const SINGLES: [Single; 3] = [
    Single {
        name: "single",
        request: "delete the only member",
        reason: Expected::Denied(&["SingleMember"]),
        why: "nobody serves meanwhile",
        change: |_| {},
    },
    Single {
        name: "single-empty-dir",
        request: "delete the only member, on an emptyDir",
        reason: Expected::Denied(&["PermanentLoss"]),
        why: "its data would go with it",
        change: put_on_empty_dir,
    },
    Single {
        name: "single-hook",
        request: "delete the only member, which a preStop hook removes",
        reason: Expected::Denied(&["PermanentLoss"]),
        why: "it would be no member any more",
        change: hook,
    },
];

fn put_on_empty_dir(set: &mut Value) {
    if let Some(spec) = set.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.remove("volumeClaimTemplates");
    }
    if let Some(spec) = set.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut) {
        spec.insert(String::from("volumes"), json!([{"name": "data", "emptyDir": {}}]));
    }
}

/// Where it runs, at the namespace's end, it fails: a name is no member's id.
fn hook(set: &mut Value) {
    let command = ["/usr/local/bin/etcdctl", "member", "remove", "$(POD_NAME)"];
    let hook = json!({"preStop": {"exec": {"command": command}}});
    if let Some(container) = set.pointer_mut("/spec/template/spec/containers/0") {
        container["lifecycle"] = hook;
    }
}

// === impl Cases ===

impl Cases<'_> {
    pub(super) async fn singles(&mut self) -> anyhow::Result<()> {
        // All of them first, so that they start side by side.
        let mut made = Vec::new();
        for single in &SINGLES {
            let mut objects = self.wanted.single(single.name)?;
            objects.iter_mut().filter(|it| it["kind"] == "StatefulSet").for_each(single.change);
            made.push((single, self.stage.make(objects).await));
        }
        for (single, made) in made {
            let Single { name, request, reason, why, .. } = single;
            if let Err(error) = made {
                self.skip(request, *reason, why, &format!("{error:#}"));
                continue;
            }
            let serves = async || {
                let is_ready = self.stage.pods(name).await?.iter().any(|pod| pod.ready);
                Ok(is_ready && self.stage.cluster_of(name).await.is_ok_and(|it| it.healthy == Some(1)))
            };
            if !self.stage.until(1, serves).await? {
                self.skip(request, *reason, why, "its pod did not come to serve in time");
                continue;
            }
            let before = self.stage.pods(name).await?;
            let answer = act(self.stage, &format!("{name}-0"), Act::Delete).await?;
            let after = self.stage.pods(name).await?;
            let stays = before.iter().all(|pod| after.iter().any(|it| it.uid == pod.uid && !it.terminating));
            let lost = (!stays).then(|| String::from("its pod did not stay"));
            self.judge(request, *reason, why, &answer, lost);
        }
        Ok(())
    }
}

//! Taking all of it away again: whatever the guard, the apiserver or the network does meanwhile.

use anyhow::bail;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    call::Answer,
    stage::{GUARDED, PAUSE, Stage},
};

/// How far the namespace's end is.
enum Deletion {
    Gone,
    UnderWay,
    /// For good; why.
    Forbidden(String),
}

// === impl Stage ===

impl Stage {
    /// Takes the guard off the namespace and deletes it, and waits until it is gone. What does not work is tried again, unless
    /// it is forbidden: for some seconds the apiserver may still ask the guard, which protects what it was told to.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        let end = Instant::now() + self.limit;
        loop {
            let obstacle = match self.try_to_delete().await {
                Ok(Deletion::Gone) => return Ok(()),
                Ok(Deletion::UnderWay) => anyhow::anyhow!("it is still terminating"),
                Ok(Deletion::Forbidden(why)) => bail!("deleting the namespace: {why}"),
                Err(error) => error,
            };
            if Instant::now() > end {
                return Err(obstacle);
            }
            sleep(PAUSE).await;
        }
    }

    async fn try_to_delete(&self) -> anyhow::Result<Deletion> {
        let path = self.namespace_path();
        let found = self.caller.get(&path).await?;
        // Another of the same name is none of ours.
        let is_another = |it: &Answer| {
            it.is_success() && it.object.pointer("/metadata/uid").and_then(Value::as_str) != Some(&self.uid)
        };
        if found.code == 404 || is_another(&found) {
            return Ok(Deletion::Gone);
        }
        if found.object.pointer("/metadata/deletionTimestamp").is_some() {
            return Ok(Deletion::UnderWay);
        }
        // Where the guard cannot be taken off it may still let the namespace go: nothing may live in there any more.
        let unguarded = self.take_the_guard_off().await;
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": self.uid},
        });
        let deleted = self.caller.delete(&path, &options).await?;
        match deleted.code {
            404 => Ok(Deletion::Gone),
            _ if deleted.is_success() => Ok(Deletion::UnderWay),
            _ if deleted.is_without_right() => Ok(Deletion::Forbidden(deleted.message)),
            _ => match unguarded? {
                it if it.is_without_right() => Ok(Deletion::Forbidden(it.message)),
                it => {
                    it.object("taking the guard off the namespace")?;
                    deleted.object("deleting the namespace")?;
                    Ok(Deletion::UnderWay)
                }
            },
        }
    }

    async fn take_the_guard_off(&self) -> anyhow::Result<Answer> {
        let end = k8s_openapi::jiff::Timestamp::now()
            .checked_add(k8s_openapi::jiff::SignedDuration::from_hours(1))?;
        // Where a webhook selects this namespace by something else than the label, the guard goes by the annotations.
        let off = json!({"metadata": {"uid": self.uid, "labels": {GUARDED: null}, "annotations": {
            "etcd-guard.io/allow-delete-until": end.to_string(),
            "etcd-guard.io/allow-delete-reason": "etcd-guard conformance clears away",
        }}});
        self.caller.patch(&self.namespace_path(), &off).await
    }
}

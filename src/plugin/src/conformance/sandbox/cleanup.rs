//! Deletes the namespace, also if the guard, the API server or the network fails temporarily.

use anyhow::bail;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{POLL_INTERVAL, Sandbox};
use crate::api_server::Response;

/// The progress of the deletion.
enum Deletion {
    Complete,
    InProgress,
    /// The user lacks a permission; the message of the API server.
    Forbidden(String),
}

// === impl Sandbox ===

impl Sandbox {
    /// Opts the namespace out of the guard, deletes it and waits until it is gone. Failures are retried, except for
    /// missing permissions: for some seconds the API server may still call the guard, which protects the cluster.
    pub(crate) async fn delete(&self) -> anyhow::Result<()> {
        let end = Instant::now() + self.timeout;
        loop {
            let obstacle = match self.try_to_delete().await {
                Ok(Deletion::Complete) => return Ok(()),
                Ok(Deletion::InProgress) => anyhow::anyhow!("the namespace is still terminating"),
                Ok(Deletion::Forbidden(message)) => bail!("deleting the namespace: {message}"),
                Err(error) => error,
            };
            if Instant::now() > end {
                return Err(obstacle);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn try_to_delete(&self) -> anyhow::Result<Deletion> {
        let path = self.namespace_path();
        let existing = self.api.get(&path).await?;
        // A namespace of the same name with another uid was not created by this run.
        let uid = existing.object.pointer("/metadata/uid").and_then(Value::as_str);
        let is_another = existing.is_success() && uid != Some(&self.uid);
        if existing.code == 404 || is_another {
            return Ok(Deletion::Complete);
        }
        if existing.object.pointer("/metadata/deletionTimestamp").is_some() {
            return Ok(Deletion::InProgress);
        }
        // A failure to opt out is not final: the guard approves the deletion of a namespace without running members.
        let opted_out = self.opt_out().await;
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": self.uid},
        });
        let deleted = self.api.delete(&path, &options).await?;
        match deleted.code {
            404 => Ok(Deletion::Complete),
            _ if deleted.is_success() => Ok(Deletion::InProgress),
            _ if deleted.is_forbidden() => Ok(Deletion::Forbidden(deleted.message)),
            _ => {
                let opted_out = opted_out?;
                if opted_out.is_forbidden() {
                    return Ok(Deletion::Forbidden(opted_out.message));
                }
                opted_out.into_object("opting the namespace out of the guard")?;
                deleted.into_object("deleting the namespace")?;
                Ok(Deletion::InProgress)
            }
        }
    }

    async fn opt_out(&self) -> anyhow::Result<Response> {
        let end = k8s_openapi::jiff::Timestamp::now()
            .checked_add(k8s_openapi::jiff::SignedDuration::from_hours(1))?;
        // The break-glass annotations are for webhooks that select the namespace by other means than the label.
        let patch = json!({"metadata": {"uid": self.uid, "labels": {self.opt_in_label.key(): null}, "annotations": {
            "etcd-guard.io/allow-delete-until": end.to_string(),
            "etcd-guard.io/allow-delete-reason": "cleanup of etcd-guard conformance",
        }}});
        self.api.patch(&self.namespace_path(), &patch).await
    }
}

//! Moves of leadership that a user requests by an annotation.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::runner::{Cases, Observation};
use crate::api_server::Response;

const MOVE: Observation = Observation {
    request: "move leadership by an annotation",
    expected: "the named member leads",
    why: "a replica of the guard hands leadership over on request",
};

// === impl Cases ===

impl Cases<'_> {
    /// Requests that a follower becomes the leader.
    pub(super) async fn requested_move(&mut self) -> anyhow::Result<()> {
        let followers = self.sandbox.wait_until_healthy().await?.followers;
        let [transferee, _] = followers;
        let request = || {
            let value = format!("{transferee}@{}", Timestamp::now());
            json!({"metadata": {"annotations": {"etcd-guard.io/move-leader": value}}})
        };
        let annotate = async || self.sandbox.api.patch(&self.sandbox.set_path(), &request()).await;
        let response = self.sandbox.retry_until(annotate, Response::is_success).await?;
        if response.is_forbidden() {
            self.skip_observation(MOVE, &format!("missing permission: {}", response.message));
            return Ok(());
        }
        response.into_object("annotating the StatefulSet")?;
        let leads = async || Ok(self.sandbox.wait_until_healthy().await?.leader == transferee);
        let has_moved = self.sandbox.wait_until(1, leads).await?;
        let leader = self.sandbox.wait_until_healthy().await?.leader;
        self.record_observation(MOVE, &format!("{leader} leads"), has_moved);
        Ok(())
    }
}

//! A rolling restart by the command of this program.

use super::{
    requests::{Deletion, request_deletion},
    runner::{Cases, Observation},
};
use crate::{
    conformance::{manifests::SET, sandbox::cluster_state::MEMBERS},
    maintenance::{
        reporter::Reporter,
        restart::{
            plan::Selection,
            run::{Options, Restart},
        },
    },
};

const RESTART: Observation = Observation {
    request: "kubectl etcd-guard restart",
    expected: "every pod replaced, and leadership moved",
    why: "the command waits for each member, and requests the move of leadership",
};

// === impl Cases ===

impl Cases<'_> {
    /// Restarts the members under the policy `deny`: the eviction of a leader would be denied.
    pub(super) async fn rolling_restart(&mut self) -> anyhow::Result<()> {
        let before = self.sandbox.wait_until_healthy().await?;
        let [follower, _] = &before.followers;
        let eviction = request_deletion(self.sandbox, follower, Deletion::EvictDryRun).await?;
        if eviction.is_forbidden() {
            self.skip_observation(RESTART, &format!("missing permission: {}", eviction.message));
            return Ok(());
        }
        let options = Options {
            namespace: self.sandbox.namespace.clone(),
            name: SET.to_owned(),
            selection: Selection::default(),
            timeout: self.sandbox.timeout,
            is_dry_run: false,
        };
        let mut restart = Restart::new(&self.sandbox.guard, &options, Reporter::silent());
        let (is_complete, end) = match Box::pin(restart.run()).await {
            Ok(is_complete) => (is_complete, restart.last_message().to_owned()),
            Err(error) => (false, format!("{error:#}")),
        };
        let deleted = self.deleted_pods(&before).await?.len();
        let has_moved = self.sandbox.wait_until_healthy().await?.leader != before.leader;
        let leadership = if has_moved { "leadership moved" } else { "leadership did not move" };
        let passed = is_complete && deleted == usize::try_from(MEMBERS)? && has_moved;
        self.record_observation(RESTART, &format!("{deleted} pods replaced, {leadership}: {end}"), passed);
        Ok(())
    }
}

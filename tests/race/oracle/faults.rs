//! Faults of members, recorded by the oracle.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Fault, Oracle, STARTUP_TIME};
use test_support::process_node::ProcessAction;

/// A slowed member is stopped for the first and runs for the second duration in turn. It has a fifth of its normal
/// time, and each stop is shorter than an election timeout.
const STOPPED: Duration = Duration::from_millis(80);
const RUNNING: Duration = Duration::from_millis(20);

impl Oracle {
    /// Kills or freezes the process of a pod whose deletion has not been approved, and returns whether it was applied.
    pub(crate) async fn fault(&self, name: &str, action: ProcessAction) -> bool {
        let mut state = self.state.lock().await;
        let serving = self.serving(&mut state).await;
        let Some(uid) = self.running_uid(name) else { return false };
        if state.departures.contains_key(name) || state.frozen.contains_key(name) {
            return false;
        }
        let served = serving.iter().any(|member| member == name);
        if !self.node.try_apply(&self.namespace, name, action).await {
            // The action may have been applied although the caller gave up.
            self.resume(name, &uid).await;
            return false;
        }
        // The member may have answered until the action was applied, which takes a while on a busy machine.
        state.faults.insert(name.to_owned(), Fault { at: Instant::now(), served });
        if action == ProcessAction::Pause {
            state.frozen.insert(name.to_owned(), uid);
        }
        true
    }

    /// Resumes a frozen process.
    pub(crate) async fn thaw(&self, name: &str) {
        let mut state = self.state.lock().await;
        if let Some(uid) = state.frozen.remove(name) {
            self.resume(name, &uid).await;
        }
    }

    /// Gives a process only a part of its time, as on an overloaded node, and returns whether it was applied. The
    /// member serves slowly in the meantime.
    pub(crate) async fn slow(&self, name: &str, lasts: Duration) -> bool {
        let Some(uid) = self.running_uid(name) else { return false };
        let (end, mut applied) = (Instant::now() + lasts, false);
        while Instant::now() < end && self.running_uid(name).as_ref() == Some(&uid) {
            applied |= self.node.try_apply(&self.namespace, name, ProcessAction::Pause).await;
            sleep(STOPPED).await;
            self.resume(name, &uid).await;
            sleep(RUNNING).await;
        }
        applied
    }

    /// Returns the pods that are neither approved for deletion nor frozen nor starting. An approval for a starting pod
    /// is often not used: its status changes in the meantime, so the API server calls the webhook again, and that call
    /// is denied.
    pub(crate) async fn present(&self) -> Vec<String> {
        let state = self.state.lock().await;
        let starts =
            |name: &String| state.faults.get(name).is_some_and(|fault| fault.at.elapsed() < STARTUP_TIME);
        let is_present = |name: &&String| {
            !state.departures.contains_key(*name) && !state.frozen.contains_key(*name) && !starts(name)
        };
        self.names.iter().filter(is_present).cloned().collect()
    }

    /// Resumes the process of a pod, if it still runs.
    async fn resume(&self, name: &str, uid: &str) {
        while self.running_uid(name).as_deref() == Some(uid)
            && !self.node.try_apply(&self.namespace, name, ProcessAction::Resume).await
        {}
    }
}

//! Under the policy `transfer`: moves leadership away from the pod that is to be deleted, and looks again before it may
//! go. Whatever goes wrong costs a denial and nothing else: etcd gives up a transfer by itself.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{
    ANSWER_SHARE, Case, Guard, NoLook,
    assess::{Assessment, heir},
    decision::{Facts, Reserved, reservation},
    look::{Look, Siblings},
    snapshot::{MemberPod, Snapshot},
    verdict::Reason,
};
use crate::etcd::{self, MemberId};

/// Pause before the next look while the old leader has not yet heard of the new one: a heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// Looks after a transfer: half a second of heartbeats. Then an election is under way, and nobody waits for its end here.
const MOST_LOOKS: usize = 5;

/// With less time than this leadership is not moved: there would be none for a look at what came of it.
const LEAST_TRANSFER: Duration = Duration::from_millis(700);

/// Leadership was moved, or not.
pub(super) enum Transfer {
    /// The pod no longer leads and may go.
    Done { snapshot: Box<Snapshot>, assessment: Assessment, heir: String },
    /// It may not; the reason and its words.
    Failed(String),
}

// === impl Guard ===

impl Guard {
    /// Moves leadership from the pod `target` of `snapshot` to the best of its voters, and decides once more: on the pods, the
    /// record and the members as they are then. The target is reserved already, so that no other deletion counts on it
    /// meanwhile; it is reserved again, because what others reserved before that must have been looked at.
    pub(super) async fn transfer(
        &self,
        case: &Case<'_>,
        siblings: &Siblings,
        snapshot: &Snapshot,
        target: &MemberPod,
    ) -> Result<Transfer, NoLook> {
        let &Case { policy, deadline, .. } = case;
        let (Some((heir, status)), Some(leader)) = (heir(snapshot, target), siblings.endpoint(&target.name))
        else {
            return Ok(Transfer::Failed(String::from("no other voter serves and stays")));
        };
        deadline.leaves(LEAST_TRANSFER, ANSWER_SHARE, "what came before the transfer of leadership")?;
        let (heir_id, cluster_id): (MemberId, _) = (status.member_id, status.cluster_id);
        let until = deadline.earlier(ANSWER_SHARE);
        let moved = etcd::move_leader(&self.looker.connections, leader, heir_id, until).await;
        if let Err(cause) = moved {
            return Ok(Transfer::Failed(format!("{} did not take over: {cause}", heir.name)));
        }
        let mut last = Reason::ElectionInProgress;
        for _ in 0..MOST_LOOKS {
            let began = Instant::now();
            let Facts { siblings, records, reserved } = self.facts(case, None).await?;
            let look = self.looker.look(case, &siblings, &reserved).await?;
            let Some(Look { snapshot: after, doubt }) = self.keep_roster(case.family, &siblings, look) else {
                deadline.within("waiting for the new leader", sleep_until(began + HEARTBEAT)).await?;
                continue;
            };
            if let Some(target) = after.pod(&target.name) {
                let assessment = doubt.assess(&after, target, policy).map_err(NoLook::Lookup)?;
                last = assessment.reason;
                if last == Reason::SafeToDelete {
                    let record = self.reservations.pick(records?, cluster_id);
                    let Some(mut record) = record.map_err(|error| NoLook::unreadable(&error))? else {
                        continue;
                    };
                    let again = reservation(case, &target.uid, &assessment);
                    if let Reserved::StartOver = self.reserve(&mut record, again, &siblings, case).await? {
                        continue;
                    }
                    let assessment = Assessment { reason: Reason::LeaderTransferred, ..assessment };
                    let heir = heir.name.clone();
                    return Ok(Transfer::Done { snapshot: Box::new(after), assessment, heir });
                }
            }
            deadline.within("waiting for the new leader", sleep_until(began + HEARTBEAT)).await?;
        }
        Ok(Transfer::Failed(format!(
            "{} took over, but the cluster is not safe without it: {last}",
            heir.name
        )))
    }
}

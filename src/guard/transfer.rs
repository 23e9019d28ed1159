//! Under the policy `transfer`: moves leadership away from the pod that is to be deleted, and looks again before it may
//! go. Whatever goes wrong costs a denial and nothing else: etcd gives up a transfer by itself.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{
    ANSWER_SHARE, Case, NoLook,
    assess::{Assessment, heir},
    look::{Look, Looker, Siblings},
    reservations::Record,
    snapshot::{MemberPod, Snapshot},
    verdict::Reason,
};
use crate::etcd::{self, MemberId};

/// Pause before the next look while the old leader has not yet heard of the new one: a heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// Looks after a transfer: half a second of heartbeats. Then an election is under way, and nobody waits for its end here.
const MOST_LOOKS: usize = 5;

/// Leadership was moved, or not.
pub(super) enum Transfer {
    /// The pod no longer leads and may go.
    Done { snapshot: Box<Snapshot>, assessment: Assessment, heir: String },
    /// It may not; the reason and its words.
    Failed(String),
}

/// Moves leadership from the pod `target` of `snapshot` to the best of its voters, and looks at the cluster again. The
/// target is reserved already, so that no other deletion counts on it meanwhile.
pub(super) async fn transfer(
    looker: &Looker,
    case: &Case<'_>,
    siblings: &Siblings,
    record: &Record,
    snapshot: &Snapshot,
    target: &MemberPod,
) -> Result<Transfer, NoLook> {
    let &Case { policy, deadline, .. } = case;
    let (Some((heir, status)), Some(leader)) = (heir(snapshot, target), siblings.endpoint(&target.name))
    else {
        return Ok(Transfer::Failed(String::from("no other voter serves and stays")));
    };
    let heir_id: MemberId = status.member_id;
    let moved = etcd::move_leader(&looker.connections, leader, heir_id, deadline.earlier(ANSWER_SHARE)).await;
    if let Err(cause) = moved {
        return Ok(Transfer::Failed(format!("{} did not take over: {cause}", heir.name)));
    }
    let mut last = Reason::ElectionInProgress;
    for _ in 0..MOST_LOOKS {
        let began = Instant::now();
        let Look { snapshot: after, doubt } = looker.look(case, siblings, &record.live()).await?;
        if let Some(target) = after.pod(&target.name) {
            let assessment = doubt.assess(&after, target, policy).map_err(NoLook::Lookup)?;
            if assessment.reason == Reason::SafeToDelete {
                let assessment = Assessment { reason: Reason::LeaderTransferred, ..assessment };
                return Ok(Transfer::Done { snapshot: Box::new(after), assessment, heir: heir.name.clone() });
            }
            last = assessment.reason;
        }
        deadline.within("waiting for the new leader", sleep_until(began + HEARTBEAT)).await?;
    }
    Ok(Transfer::Failed(format!("{} took over, but the cluster is not safe without it: {last}", heir.name)))
}

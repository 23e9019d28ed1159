//! One decision, from a fresh look to a reservation.

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Case, Guard, LastLook, NoLook,
    assess::{Assessment, assess},
    deadline::Deadline,
    explain::explain,
    family::Family,
    ledger::Reservation,
    look::{Look, Siblings},
    request::Request,
    reservations::{Record, Records},
    roster::Roster,
    snapshot::{MemberPod, Snapshot},
    transfer::Transfer,
    verdict::{Reason, Verdict},
};
use crate::{
    etcd::ClusterId,
    k8s::{WriteError, pod::Pod},
};

/// What a decision reads before its round.
pub(super) struct Reads {
    /// The pods of the namespace, or those of the cluster's roster.
    pub(super) pods: Vec<Pod>,
    /// They are those of the roster.
    pub(super) by_name: bool,
    /// Where it is not known yet whether there is a cluster to read the record of, none was read.
    pub(super) records: Option<Result<Records, NoLook>>,
}

/// What a round rests on.
pub(super) struct Facts {
    pub(super) siblings: Siblings,
    pub(super) records: Result<Records, NoLook>,
    /// What the records hold, and lives.
    pub(super) reserved: Vec<Reservation>,
}

/// What became of an attempt to reserve.
pub(super) enum Reserved {
    Yes,
    /// Another replica allowed something meanwhile.
    StartOver,
}

// === impl Guard ===

impl Guard {
    /// One attempt at a verdict: record, round, assessment, reservation. `None` if it must start over, because the
    /// cluster is another one than it was taken for, has other pods, or because another replica allowed something meanwhile.
    pub(super) async fn decide(
        &self,
        case: &Case<'_>,
        reads: Option<Reads>,
    ) -> Result<Option<Verdict>, NoLook> {
        let &Case { request, family, policy, .. } = case;
        let Facts { siblings, records, reserved } = self.facts(case, reads).await?;
        // A record that cannot be read costs a yes, and need not cost the better reason of a no.
        let (records, mut no_record) = match records {
            Ok(records) => (Some(records), None),
            Err(error) => (None, Some(error)),
        };
        let look = self.looker.look(case, &siblings, &reserved).await?;
        let Some(Look { mut snapshot, doubt }) = self.keep_roster(family, &siblings, look) else {
            return Ok(None);
        };
        let Some(target) = snapshot.pod(&request.name) else {
            let text = format!("pod {} changed its owner or its labels while it was judged", request.name);
            return Ok(Some(Verdict::new(Reason::LookupFailed, text).with_next("Try again")));
        };
        let assessment = doubt.assess(&snapshot, target, policy).map_err(NoLook::Lookup)?;
        let wants_transfer = assessment.wants_transfer(policy);
        let may_go = assessment.reason.allows() || wants_transfer;

        let id = snapshot.cluster_id();
        if let Some(id) = id {
            self.ids.insert(family.clone(), id);
        }
        let mut record = match (records, id) {
            (Some(records), Some(id)) => self.reservations.pick(records, id).unwrap_or_else(|error| {
                no_record = Some(NoLook::unreadable(&error));
                None
            }),
            // No member tells its cluster. Who crashed may be back before its deletion arrives, and that must count then.
            (Some(records), None) => self.reservations.pick_by_name(records, &snapshot.cluster),
            (None, _) => None,
        };
        if may_go && record.is_none() && id.is_some() && no_record.is_none() {
            // The record that was read is not this cluster's.
            return Ok(None);
        }
        if let Some(error) = no_record.take_if(|_| {
            // A dry run reserves nothing, and a yes that cannot be recorded would be none.
            may_go && request.dry_run && (wants_transfer || assessment.reason.costs_a_vote())
        }) {
            return Err(error);
        }
        if !may_go || request.dry_run {
            let mut verdict = explain(&snapshot, target, &assessment, Instant::now());
            if wants_transfer {
                verdict.reason = Reason::LeaderTransferred;
                verdict.message = format!("leadership would be moved away from pod {} first", target.name);
                verdict.next = None;
            }
            self.keep_look(family, snapshot);
            return Ok(Some(verdict));
        }

        let had_one = reserved.iter().any(|it| it.uid == target.uid);
        let new = reservation(case, &target.uid, &assessment);
        let reserved = match (&mut record, no_record) {
            (Some(record), _) => self.reserve(record, new, &siblings, case).await,
            (None, Some(error)) => Err(error),
            // No member tells its cluster, and none did before: there is nothing to reserve in.
            (None, None) if assessment.reason == Reason::MemberNotServing => Ok(Reserved::Yes),
            (None, None) => Err(NoLook::Ledger(String::from("no member tells its cluster"))),
        };
        match reserved {
            Ok(Reserved::StartOver) => return Ok(None),
            Err(error) if wants_transfer || assessment.reason.costs_a_vote() => return Err(error),
            // What has no vote is not held for want of a reservation.
            Ok(Reserved::Yes) | Err(_) => {}
        }
        let verdict = match record {
            Some(mut record) if wants_transfer => {
                let verdict = self.hand_over(case, &siblings, &mut record, &snapshot, target, had_one).await;
                // What was seen before the transfer says nothing any more.
                self.looks.invalidate(family);
                return verdict.map(Some);
            }
            _ => explain(&snapshot, target, &assessment, Instant::now()),
        };
        let uid = target.uid.clone();
        snapshot.mark_reserved(&uid);
        self.keep_look(family, snapshot);
        Ok(Some(verdict))
    }

    /// The pods and what is reserved of them, as they are now; or from what was read of them just now.
    pub(super) async fn facts(&self, case: &Case<'_>, reads: Option<Reads>) -> Result<Facts, NoLook> {
        let &Case { request, family, deadline, .. } = case;
        let Reads { pods, by_name, records } = match reads {
            Some(reads) => reads,
            None => self.read(request, family, deadline).await?,
        };
        let mut siblings = self.looker.siblings_among(pods, family, request, deadline).await?;
        siblings.by_name = by_name;
        let records = match records {
            Some(records) => records,
            None => self.records(None, deadline).await,
        };
        let reserved = records.as_ref().map(Records::live).unwrap_or_default();
        // The two reads went side by side.
        if let Ok(records) = &records
            && records.outdate(&request.namespace, &siblings.living())
        {
            siblings = self.looker.siblings(family, request, deadline).await?;
            records.note_living(&request.namespace, &siblings.living());
        }
        Ok(Facts { siblings, records, reserved })
    }

    /// Keeps the roster of a look for the next decision. `None` if the look was one at the pods of a roster, and they are not
    /// all that it takes any more.
    pub(super) fn keep_roster(&self, family: &Family, siblings: &Siblings, look: Look) -> Option<Look> {
        match Roster::of(&look.snapshot, siblings) {
            Some(_) if siblings.by_name => {}
            Some(roster) => self.rosters.insert(family.clone(), roster),
            None => {
                self.rosters.invalidate(family);
                if siblings.by_name {
                    return None;
                }
            }
        }
        Some(look)
    }

    /// Moves leadership away from the target, which is reserved; if that fails, its reservation is taken back, unless it
    /// is to be kept: another call for the same pod may have been allowed before, and its deletion be under way.
    async fn hand_over(
        &self,
        case: &Case<'_>,
        siblings: &Siblings,
        record: &mut Record,
        snapshot: &Snapshot,
        target: &MemberPod,
        keep: bool,
    ) -> Result<Verdict, NoLook> {
        let moved = self.transfer(case, siblings, snapshot, target).await;
        let done = matches!(moved, Ok(Transfer::Done { .. }));
        self.looker.metrics.record_transfer(done);
        if !done && !keep {
            // If this fails too, the reservation expires by itself.
            let living = siblings.living();
            let take_back = self.reservations.take_back(record, &snapshot.namespace, &target.uid, &living);
            let _ = case.deadline.within("taking the reservation back", take_back).await;
        }
        match moved? {
            Transfer::Done { snapshot, assessment, heir } => {
                let mut verdict = explain(&snapshot, target, &assessment, Instant::now());
                verdict.warn(&format!("leadership of etcd {} was moved to {heir}", snapshot.cluster));
                Ok(verdict)
            }
            Transfer::Failed(why) => {
                let text = format!(
                    "pod {} is the leader of etcd cluster {}, and leadership could not be moved: {why}",
                    target.name, snapshot.cluster
                );
                Ok(Verdict::new(Reason::TransferFailed, text).with_next("Nothing is lost: try again in 3 s"))
            }
        }
    }

    /// The pods and the record, side by side.
    pub(super) async fn read(
        &self,
        request: &Request,
        family: &Family,
        deadline: Deadline,
    ) -> Result<Reads, NoLook> {
        let pods = self.read_pods(request, family, deadline);
        let (pods, records) = tokio::join!(pods, self.records(self.ids.get(family), deadline));
        let (pods, by_name) = pods?;
        Ok(Reads { pods, by_name, records: Some(records) })
    }

    /// The pods of the family's roster, or else of the namespace; and whether they are those of the roster.
    async fn read_pods(
        &self,
        request: &Request,
        family: &Family,
        deadline: Deadline,
    ) -> Result<(Vec<Pod>, bool), NoLook> {
        if let Some(roster) = self.rosters.get(family)
            && let Some(pods) = self.looker.pods_of_roster(&roster, request, family, deadline).await?
        {
            return Ok((pods, true));
        }
        Ok((self.looker.pods_beside(request, deadline).await?, false))
    }

    /// The record of the cluster by which this family was known last; at the first look, all records.
    async fn records(&self, known: Option<ClusterId>, deadline: Deadline) -> Result<Records, NoLook> {
        let read = self.reservations.read(known);
        let read = deadline.within("reading the reservations from the apiserver", read).await?;
        read.map_err(|error| NoLook::unreadable(&error))
    }

    pub(super) async fn reserve(
        &self,
        record: &mut Record,
        new: Reservation,
        siblings: &Siblings,
        case: &Case<'_>,
    ) -> Result<Reserved, NoLook> {
        let living = siblings.living();
        let cluster = format!("{}/{}", case.family.namespace(), case.family.name());
        let add = self.reservations.add(record, cluster, new, &living);
        match case.deadline.within("writing the reservation to the apiserver", add).await? {
            Ok(()) => Ok(Reserved::Yes),
            Err(WriteError::Conflict) => Ok(Reserved::StartOver),
            Err(error) => Err(NoLook::Ledger(error.to_string())),
        }
    }

    /// Reserves a deletion that goes on against the guard's own judgement, so that no other counts on this pod. It goes
    /// on all the same if that cannot be done; then this says so.
    pub(super) async fn reserve_unasked(&self, case: &Case<'_>) -> bool {
        let member = self.looks.get(case.family).and_then(|LastLook { snapshot, .. }| {
            let target = snapshot.pod(&case.request.name)?;
            assess(&snapshot, target, case.policy).member
        });
        let assessment = Assessment { member, ..Assessment::of(Reason::BreakGlass) };
        let reserved = loop {
            match self.try_reserve_unasked(case, &assessment).await {
                Ok(Some(Reserved::StartOver)) => {}
                Ok(Some(Reserved::Yes)) => break true,
                Ok(None) | Err(_) => break false,
            }
        };
        self.looks.invalidate(case.family);
        reserved
    }

    /// `None` where nothing is known to reserve in.
    async fn try_reserve_unasked(
        &self,
        case: &Case<'_>,
        assessment: &Assessment,
    ) -> Result<Option<Reserved>, NoLook> {
        let Some(id) = self.ids.get(case.family) else { return Ok(None) };
        let records = self.records(Some(id), case.deadline).await?;
        let Some(mut record) =
            self.reservations.pick(records, id).map_err(|error| NoLook::unreadable(&error))?
        else {
            return Ok(None);
        };
        let siblings = self.looker.siblings(case.family, case.request, case.deadline).await?;
        // The uid is the apiserver's own word, whatever the review says.
        let Some(uid) = siblings.uid(&case.request.name) else { return Ok(None) };
        let new = reservation(case, uid, assessment);
        self.reserve(&mut record, new, &siblings, case).await.map(Some)
    }
}

pub(super) fn reservation(case: &Case<'_>, uid: &str, assessment: &Assessment) -> Reservation {
    Reservation {
        uid: uid.to_owned(),
        namespace: case.request.namespace.clone(),
        pod: case.request.name.clone(),
        member: assessment.member.map(|id| id.to_string()).unwrap_or_default(),
        at: Timestamp::now().to_string(),
        by: case.request.user.clone(),
    }
}

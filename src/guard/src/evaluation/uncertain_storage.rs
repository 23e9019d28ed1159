//! Assessments for a target with an unreadable claim. The error is returned only if the verdict depends on the
//! claim.

use etcd_guard_core::{
    assess::{Assessment, assess_members},
    membership::{Membership, MembershipError, single_member::SingleMemberEvidence},
    policy::Policy,
    snapshot::{MemberPod, Snapshot, Storage},
};
use etcd_guard_kubernetes::LookupError;

/// Assesses the target under the assumption that an unread claim persists. A denial holds in any case. An approval is
/// returned only if a second assessment, with a claim that is deleted with the pod, has the same result. `claim_error` is the
/// reason why the claim could not be read.
///
/// # Errors
///
/// Returns the error of the read if the verdict depends on the claim.
pub(super) fn assess_with_claim(
    snapshot: &Snapshot,
    membership: &Result<Membership<'_>, MembershipError>,
    target: &MemberPod,
    policy: &Policy,
    evidence: SingleMemberEvidence,
    claim_error: Option<&LookupError>,
) -> Result<Assessment, LookupError> {
    let assessment = assess_members(snapshot, membership, target, policy, evidence);
    let Some(error) = claim_error else { return Ok(assessment) };
    if !assessment.reason.allows() && !assessment.wants_transfer(policy) {
        return Ok(assessment);
    }
    let without_claim = MemberPod { storage: Storage::ClaimTerminating, ..target.clone() };
    if assess_members(snapshot, membership, &without_claim, policy, evidence).reason == assessment.reason {
        return Ok(assessment);
    }
    Err(error.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_core::{
        policy::{LeaderPolicy, Permission},
        reason::Reason,
        snapshot::fixture::cluster,
    };

    fn reason(snapshot: &Snapshot, n: usize, policy: &Policy) -> Result<Reason, String> {
        let error =
            LookupError::Forbidden { subject: String::from("the claim"), cause: String::from("no rights") };
        let (membership, evidence) = (Membership::new(snapshot), SingleMemberEvidence::default());
        let target = &snapshot.pods[n];
        let assessment = assess_with_claim(snapshot, &membership, target, policy, evidence, Some(&error));
        assessment.map(|assessment| assessment.reason).map_err(|error| error.to_string())
    }

    const UNREADABLE: &str = "reading the claim is forbidden: no rights";

    #[test]
    fn denies_without_reading_the_claim() {
        let policy = Policy::default();
        assert_eq!(reason(&cluster(3), 0, &policy), Ok(Reason::LeaderProtected));
        assert_eq!(reason(&cluster(3).crash(2), 1, &policy), Ok(Reason::QuorumAtRisk));
        assert_eq!(reason(&cluster(1), 0, &policy), Ok(Reason::SingleMember));
    }

    #[test]
    fn fails_if_the_unread_claim_decides() {
        assert_eq!(reason(&cluster(3), 1, &Policy::default()), Err(UNREADABLE.to_owned()));
        // A crashed member may be deleted only if its data persists.
        assert_eq!(reason(&cluster(3).crash(1), 1, &Policy::default()), Err(UNREADABLE.to_owned()));
        let transfer = Policy { leader: LeaderPolicy::Transfer, ..Policy::default() };
        assert_eq!(reason(&cluster(3), 0, &transfer), Err(UNREADABLE.to_owned()));
    }

    #[test]
    fn fails_for_an_allowed_single_member_with_unread_claim() {
        let restart = Policy { single_member: Permission::Allow, ..Policy::default() };
        assert_eq!(reason(&cluster(1), 0, &restart), Err(UNREADABLE.to_owned()));
    }

    #[test]
    fn approves_if_even_lost_data_would_be_acceptable() {
        assert_eq!(reason(&cluster(5), 1, &Policy::default()), Ok(Reason::SafeToDelete), "a voter to spare");
        let allowed = Policy { ephemeral_data: Permission::Allow, ..Policy::default() };
        assert_eq!(reason(&cluster(3), 1, &allowed), Ok(Reason::SafeToDelete), "the loss is allowed");
    }
}

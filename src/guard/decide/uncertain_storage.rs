//! Assessments for a target with an unreadable claim. The error is returned only if the verdict depends on the
//! claim.

use crate::guard::{
    assess::{Assessment, assess_with_evidence},
    model::{
        membership::single_member::SingleMemberEvidence,
        snapshot::{MemberPod, Snapshot, Storage},
    },
    policy::effective::Policy,
};
use crate::k8s::LookupError;

/// The storage of the target. Its durability is unknown if reading the claim failed.
pub(super) struct UncertainStorage(Option<LookupError>);

// === impl UncertainStorage ===

impl UncertainStorage {
    /// Creates the storage of a target. `error` is the reason why the claim could not be read.
    pub(super) fn new(error: Option<LookupError>) -> Self {
        Self(error)
    }

    /// Assesses the target under the assumption that an unread claim persists. A denial holds in any case. An approval
    /// is returned only if a second assessment, with a claim that is deleted with the pod, has the same result.
    ///
    /// # Errors
    ///
    /// Returns the error of the read if the verdict depends on the claim.
    pub(super) fn assess(
        &self,
        snapshot: &Snapshot,
        target: &MemberPod,
        policy: &Policy,
        evidence: SingleMemberEvidence,
    ) -> Result<Assessment, LookupError> {
        let assessment = assess_with_evidence(snapshot, target, policy, evidence);
        let Some(error) = &self.0 else { return Ok(assessment) };
        if !assessment.reason.allows() && !assessment.wants_transfer(policy) {
            return Ok(assessment);
        }
        let without_claim = MemberPod { storage: Storage::ClaimTerminating, ..target.clone() };
        if assess_with_evidence(snapshot, &without_claim, policy, evidence).reason == assessment.reason {
            return Ok(assessment);
        }
        Err(error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{
        model::{reason::Reason, snapshot::fixture::cluster},
        policy::effective::{LeaderPolicy, Permission},
    };

    fn reason(snapshot: &Snapshot, n: usize, policy: &Policy) -> Result<Reason, String> {
        let storage = UncertainStorage::new(Some(LookupError::Forbidden {
            subject: String::from("the claim"),
            cause: String::from("no rights"),
        }));
        let evidence = SingleMemberEvidence::default();
        let assessment = storage.assess(snapshot, &snapshot.pods[n], policy, evidence);
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

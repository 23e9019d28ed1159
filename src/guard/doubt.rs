//! A claim that could not be read: it matters only where it would change the verdict.

use super::{
    assess::{Assessment, assess},
    policy::Policy,
    snapshot::{MemberPod, Snapshot, Storage},
};
use crate::k8s::LookupError;

/// Why it is not known whether the target's data stays, if it is not.
pub(super) struct Doubt(Option<LookupError>);

// === impl Doubt ===

impl Doubt {
    pub(super) fn of(error: Option<LookupError>) -> Self {
        Self(error)
    }

    /// Judges the target, whose claim counts as one that stays where it is not known. A no needs no claim and keeps its
    /// own reason; a yes must hold for the worst that the claim could say.
    pub(super) fn assess(
        &self,
        snapshot: &Snapshot,
        target: &MemberPod,
        policy: &Policy,
    ) -> Result<Assessment, LookupError> {
        let assessment = assess(snapshot, target, policy);
        let Some(error) = &self.0 else { return Ok(assessment) };
        if !assessment.reason.allows() && !assessment.wants_transfer(policy) {
            return Ok(assessment);
        }
        let lost = MemberPod { storage: Storage::ClaimTerminating, ..target.clone() };
        if assess(snapshot, &lost, policy).reason == assessment.reason {
            return Ok(assessment);
        }
        Err(error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{
        assess::tests::cluster,
        policy::{LeaderPolicy, Permission},
        verdict::Reason,
    };

    fn reason(snapshot: &Snapshot, n: usize, policy: &Policy) -> Result<Reason, String> {
        let doubt = Doubt::of(Some(LookupError::Forbidden {
            what: String::from("the claim"),
            cause: String::from("no rights"),
        }));
        let assessment = doubt.assess(snapshot, &snapshot.pods[n], policy);
        assessment.map(|it| it.reason).map_err(|error| error.to_string())
    }

    const UNREADABLE: &str = "reading the claim is forbidden: no rights";

    #[test]
    fn a_claim_that_cannot_be_read_does_not_hide_a_better_no() {
        let policy = Policy::default();
        assert_eq!(reason(&cluster(3), 0, &policy), Ok(Reason::LeaderProtected));
        assert_eq!(reason(&cluster(3).crash(2), 1, &policy), Ok(Reason::QuorumAtRisk));
        assert_eq!(reason(&cluster(1), 0, &policy), Ok(Reason::SingleMember));
    }

    #[test]
    fn a_yes_that_hangs_on_the_claim_is_none() {
        assert_eq!(reason(&cluster(3), 1, &Policy::default()), Err(UNREADABLE.to_owned()));
        // A member that gives nothing may go only if its data stays.
        assert_eq!(reason(&cluster(3).crash(1), 1, &Policy::default()), Err(UNREADABLE.to_owned()));
        let transfer = Policy { leader: LeaderPolicy::Transfer, ..Policy::default() };
        assert_eq!(reason(&cluster(3), 0, &transfer), Err(UNREADABLE.to_owned()));
    }

    #[test]
    fn a_permission_to_restart_the_only_member_hangs_on_its_claim() {
        let restart = Policy { single_member: Permission::Allow, ..Policy::default() };
        assert_eq!(reason(&cluster(1), 0, &restart), Err(UNREADABLE.to_owned()));
    }

    #[test]
    fn a_yes_that_holds_for_lost_data_as_well_stands() {
        assert_eq!(reason(&cluster(5), 1, &Policy::default()), Ok(Reason::SafeToDelete), "a voter to spare");
        let allowed = Policy { ephemeral_data: Permission::Allow, ..Policy::default() };
        assert_eq!(reason(&cluster(3), 1, &allowed), Ok(Reason::SafeToDelete), "the loss is allowed");
    }
}

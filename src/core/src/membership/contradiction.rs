//! Contradictions between the member list and what the members do.
//!
//! Defects of etcd make the list and raft disagree: a learner is listed as a voter (etcd issues 21694 and 18347), or a voter as a
//! learner (19557 and 20793). The quorum is then not the one that the list implies, and no number of voters proves anything.

use std::fmt;

use super::Membership;
use crate::{
    etcd::{
        error::MemberError,
        member::{MemberId, Suffrage},
        probe_result::ProbeResult,
        release::lost_promotion_fix,
    },
    mistakes::Mistake,
    tally,
};

/// Proof that the member list is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// Serving voters follow a leader that is listed as a learner. Only a voter can lead.
    LearnerLeads(String),
    /// A member that is listed as a learner votes.
    LearnerVotes(String),
    /// A member that is listed as a voter says that raft counts it as a learner.
    VoterIsLearner(String),
}

// === impl Contradiction ===

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LearnerLeads(name) => write!(f, "{name} is listed as a learner and leads"),
            Self::LearnerVotes(name) => write!(f, "{name} is listed as a learner and votes"),
            Self::VoterIsLearner(name) => write!(f, "{name} is listed as a voter and is a learner"),
        }
    }
}

// === impl Membership ===

impl Membership<'_> {
    /// Returns the first proof that the member list is wrong.
    pub fn contradiction(&self) -> Option<Contradiction> {
        if Mistake::BelieveMemberList.is_active() {
            return None;
        }
        self.learner_that_leads().or_else(|| self.wrong_suffrage())
    }

    /// Whether the listed voters that respond are enough for the quorum that a passed read proves. Otherwise a voter that the
    /// guard cannot reach takes part, or the list is wrong, and a listed learner may be that voter.
    pub fn explains_reads(&self) -> bool {
        let responding = self.responding_voters();
        Mistake::BelieveMemberList.is_active() || responding >= tally::quorum(self.voters().count())
    }

    /// Whether the listed voters that respond and are not leaving are enough for the quorum of the list.
    pub(crate) fn keeps_quorum_of_responding(&self) -> bool {
        let staying = self.voters().filter(|voter| voter.is_responding() && !voter.is_leaving()).count();
        Mistake::BelieveMemberList.is_active() || staying >= tally::quorum(self.voters().count())
    }

    /// Whether a member runs a release that can list a voter as a learner.
    pub(crate) fn may_lose_promotions(&self) -> bool {
        self.lost_promotions().is_some()
    }

    /// Returns the release of a member that can list a voter as a learner, and the one to which it must be upgraded.
    pub(crate) fn lost_promotions(&self) -> Option<(&str, String)> {
        let mut statuses = self.members.iter().filter_map(|member| member.reply()?.status());
        let affected = statuses.find_map(|status| {
            let fixed = lost_promotion_fix(&status.version)?;
            Some((status.version.as_str(), fixed))
        });
        affected.filter(|_| !Mistake::BelieveMemberList.is_active())
    }

    /// Number of listed voters whose processes respond.
    pub fn responding_voters(&self) -> usize {
        self.voters().filter(|voter| voter.is_responding()).count()
    }

    /// Whether a serving voter names this member as the current leader.
    pub fn is_named_leader(&self, id: MemberId) -> bool {
        let mut votes = self.members.iter().filter_map(super::Member::vote);
        votes.any(|status| status.leader == Some(id) && self.leadership.is_current(status))
    }

    fn learner_that_leads(&self) -> Option<Contradiction> {
        let mut learners = self.members.iter().filter(|member| member.listed.is_learner);
        let leader = learners.find(|learner| self.is_named_leader(learner.id()))?;
        Some(Contradiction::LearnerLeads(leader.name()))
    }

    /// A member's own evidence counts only against its own list: around a promotion, other members list it as a voter before it
    /// has applied the promotion.
    fn wrong_suffrage(&self) -> Option<Contradiction> {
        self.members.iter().find_map(|member| match member.reply()? {
            ProbeResult::Healthy { status, members } => {
                let is_listed_voter = members.iter().any(|own| own.id == member.id() && !own.is_learner);
                let is_wrong = is_listed_voter && status.suffrage == Some(Suffrage::Learner);
                is_wrong.then(|| Contradiction::VoterIsLearner(member.name()))
            }
            ProbeResult::StatusOnly { status, cause: MemberError::Learner } => {
                let is_wrong = member.listed.is_learner && status.suffrage == Some(Suffrage::Voter);
                is_wrong.then(|| Contradiction::LearnerVotes(member.name()))
            }
            ProbeResult::StatusOnly { .. } | ProbeResult::NoStatus { .. } => None,
        })
    }
}

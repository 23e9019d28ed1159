//! Reasons of verdicts: a closed set of codes.
//!
//! A code is the same string in the message, the audit annotation, the metric label, the event, the log and the
//! documentation.

use std::fmt;

use crate::request::Operation;

/// Declares each reason once: its code, its kind, and its documentation.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $kind:ident,)*) => {
        /// Why a deletion is approved or denied.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The reason's code.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            const fn kind(self) -> Kind {
                match self { $(Self::$name => Kind::$kind,)* }
            }
        }
    };
}

/// Effect of a reason on the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Approves.
    Allows,
    /// Denies for the moment: an eviction receives 429 and is retried.
    DeniesForNow,
    /// Denies until the cluster, the policy or the request is changed.
    Denies,
}

reasons! {
    /// The cluster retains its quorum and its leader without this pod.
    SafeToDelete => Allows,
    /// The pod runs no etcd.
    NotEtcd => Allows,
    /// The pod is terminating: an earlier deletion was accepted.
    AlreadyTerminating => Allows,
    /// All containers of the pod have terminated and will not restart.
    PodFinished => Allows,
    /// The pod does not exist.
    PodGone => Allows,
    /// The pod is the mirror of a static pod: its deletion stops no process.
    MirrorPod => Allows,
    /// The pod's member is a learner, or is not in the member list.
    NotAVoter => Allows,
    /// The pod's member serves no requests, so that its deletion loses nothing.
    MemberNotServing => Allows,

    /// Leadership was moved to another voter, and the cluster retains its quorum without this pod.
    LeaderTransferred => Allows,
    /// The cluster has one voter, and the policy allows its deletion.
    SingleMemberAllowed => Allows,
    /// A break-glass annotation overrules denials until a set time.
    BreakGlass => Allows,
    /// The workload operation removes no voter that a live cluster needs.
    IntentHarmless => Allows,
    /// The pod's StatefulSet was deleted, and the garbage collector deletes the pod.
    OwnerDeleted => Allows,
    /// The pod's namespace is being deleted.
    NamespaceTerminating => Allows,
    /// The namespace has not opted in: no API server sends reviews for it.
    NamespaceNotGuarded => Allows,

    /// The pod's member is the leader.
    LeaderProtected => DeniesForNow,
    /// Fewer healthy voters than the quorum would remain.
    QuorumAtRisk => DeniesForNow,
    /// The member list has fewer voters than the policy requires.
    TooFewVoters => DeniesForNow,
    /// Fewer healthy voters than the quorum would remain while another pod of the cluster is leaving or restarting.
    DisruptionInProgress => DeniesForNow,
    /// The cluster has one voter.
    SingleMember => Denies,
    /// The deletion destroys the member's data, and the cluster has no voter to spare.
    PermanentLoss => Denies,
    /// No member could prove a quorum.
    QuorumLost => DeniesForNow,
    /// Members reply, but no leader is proven.
    ElectionInProgress => DeniesForNow,
    /// The pod cannot be matched with one member.
    AmbiguousMember => Denies,
    /// The pods belong to different clusters.
    SplitCluster => Denies,
    /// The members contradict the member list.
    MemberListWrong => Denies,
    /// No member could be reached.
    EtcdUnreachable => DeniesForNow,
    /// The members rejected the guard's credentials.
    CredentialsRejected => Denies,
    /// The pod or other pods of its cluster could not be read from the API server.
    LookupFailed => DeniesForNow,
    /// The workload operation would remove voters that a live cluster needs.
    IntentProtected => Denies,
    /// Leadership could not be moved to another voter.
    TransferFailed => DeniesForNow,
    /// The deletion could not be reserved.
    LedgerUnavailable => DeniesForNow,
    /// The API server would refuse the eviction: a `PodDisruptionBudget` allows no disruption now.
    BudgetExhausted => DeniesForNow,
    /// The API server would refuse the eviction: more than one `PodDisruptionBudget` selects the pod.
    AmbiguousBudget => Denies,
    /// The API server's timeout expired before the evaluation was complete.
    DeadlineExceeded => DeniesForNow,
}

/// HTTP status and Kubernetes status reason of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 403 or 429. Never 404 or 409, which clients interpret as a missing or changed object.
    pub code: u16,
    /// `Forbidden` or `TooManyRequests`.
    pub reason: &'static str,
}

// === impl Refusal ===

impl Refusal {
    /// The denial of a request that a retry does not cure.
    pub(super) const FORBIDDEN: Self = Self { code: 403, reason: "Forbidden" };

    /// The denial of a request that may be approved later.
    const TOO_MANY_REQUESTS: Self = Self { code: 429, reason: "TooManyRequests" };
}

// === impl Reason ===

impl Reason {
    /// Whether the reason approves the request.
    pub const fn allows(self) -> bool {
        matches!(self.kind(), Kind::Allows)
    }

    /// Whether an approval with this reason removes a voter that serves, or one that may serve again before its deletion
    /// arrives. No other approval may count on that voter.
    pub const fn removes_a_voter(self) -> bool {
        matches!(
            self,
            Self::SafeToDelete | Self::LeaderTransferred | Self::SingleMemberAllowed | Self::MemberNotServing
        )
    }

    /// Whether a denial with this reason depends on what the guard reads of pods: their members, addresses or credentials.
    /// Members at wrong addresses can also use up the time of an evaluation, or belong to another cluster. Such a denial can
    /// concern a pod that only mentions etcd: the evaluation did not prove that the pod runs a member.
    pub const fn concerns_discovery(self) -> bool {
        matches!(
            self,
            Self::EtcdUnreachable
                | Self::CredentialsRejected
                | Self::AmbiguousMember
                | Self::SplitCluster
                | Self::DeadlineExceeded
        )
    }

    /// HTTP status of a denial. `kubectl drain` retries an eviction only after 429. A DELETE receives 403 in every case:
    /// after 429, clients would wait inside a call while a user watches.
    pub const fn refusal(self, operation: Operation) -> Option<Refusal> {
        match (self.kind(), operation) {
            (Kind::Allows, _) => None,
            (Kind::DeniesForNow, Operation::Evict) => Some(Refusal::TOO_MANY_REQUESTS),
            (Kind::DeniesForNow | Kind::Denies, _) => Some(Refusal::FORBIDDEN),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

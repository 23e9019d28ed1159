//! The guard's answer: a reason from a closed set, numbers, and what to do next.
//!
//! A reason is one word wherever it stands: in the message, the audit annotation, the metric's label, the log, the docs.

use std::{fmt, time::Duration};

use super::{assess::Tally, request::Operation};
use crate::etcd::MemberId;

/// Longest warning: kubectl prints it on one line, and the apiserver cuts what is much longer.
const LONGEST_WARNING: usize = 120;

/// Declares the reasons once: name, whether it allows, and its text in this program's documentation.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $kind:ident,)*) => {
        /// Why a deletion is allowed or denied.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons there are.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The reason's one word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            const fn kind(self) -> Kind {
                match self { $(Self::$name => Kind::$kind,)* }
            }
        }
    };
}

/// What a reason does with the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Allows,
    /// Denies what may pass a while later: an eviction is told to try again.
    DeniesForNow,
    /// Denies what no waiting cures: somebody has to change something first.
    Denies,
}

reasons! {
    /// The cluster keeps its quorum and its leader without this pod.
    SafeToDelete => Allows,
    /// The pod runs no etcd.
    NotEtcd => Allows,
    /// The deletion was accepted before; this is its end.
    AlreadyTerminating => Allows,
    /// All containers of the pod have ended for good.
    PodFinished => Allows,
    /// There is no such pod any more.
    PodGone => Allows,
    /// The mirror of a static pod: deleting it stops nothing.
    MirrorPod => Allows,
    /// The pod's member is a learner, or is not in the member list any more.
    NotAVoter => Allows,
    /// The pod's member serves nothing, so that nothing is lost with it.
    MemberNotServing => Allows,

    /// Leadership was moved to another voter, and the cluster keeps its quorum without this pod.
    LeaderTransferred => Allows,
    /// The pod's member leads, and its owners let it go.
    LeaderAllowed => Allows,
    /// The cluster has one voter, and its owners let it go.
    SingleMemberAllowed => Allows,
    /// The owners overrule denials for a time.
    BreakGlass => Allows,
    /// What is meant takes nothing from a living cluster.
    IntentHarmless => Allows,
    /// The pod's StatefulSet was deleted, and the garbage collector follows.
    OwnerDeleted => Allows,
    /// The pod's namespace is being deleted.
    NamespaceTerminating => Allows,

    /// The pod's member is the leader.
    LeaderProtected => DeniesForNow,
    /// Too few healthy voters would remain.
    QuorumAtRisk => DeniesForNow,
    /// Too few would remain, because another pod of the cluster is on its way out or back.
    DisruptionInProgress => DeniesForNow,
    /// The cluster has one voter.
    SingleMember => Denies,
    /// The member's data goes with the pod, and the cluster has no voter to spare.
    PermanentLoss => Denies,
    /// No member could prove a quorum.
    QuorumLost => DeniesForNow,
    /// Members answer, but no leader is proven.
    ElectionInProgress => DeniesForNow,
    /// Which member the pod runs cannot be told.
    AmbiguousMember => Denies,
    /// The pods belong to different clusters.
    SplitCluster => Denies,
    /// No member could be reached.
    EtcdUnreachable => DeniesForNow,
    /// The members did not accept the guard's credentials.
    CredentialsRejected => Denies,
    /// The pod or its siblings could not be read from the apiserver.
    LookupFailed => DeniesForNow,
    /// What is meant would take a living cluster apart.
    IntentProtected => Denies,
    /// Leadership could not be moved to another voter.
    TransferFailed => DeniesForNow,
    /// The deletion could not be reserved.
    LedgerUnavailable => DeniesForNow,
    /// The time that the apiserver gives ran out.
    DeadlineExceeded => DeniesForNow,
}

/// What is answered, and why.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Why.
    pub reason: Reason,
    /// One or two sentences for the person at the terminal.
    pub message: String,
    /// The second of them, where there is one: what would make it pass, or how to go on.
    pub next: Option<String>,
    /// The pod's member, where it is known.
    pub member: Option<MemberId>,
    /// Shown by kubectl beside the answer, on a yes as on a no.
    pub warnings: Vec<String>,
    /// The numbers that it rests on, where it came to counting.
    pub tally: Option<Tally>,
    /// The cluster, where it is known: `NAMESPACE/OWNER`.
    pub cluster: Option<String>,
    /// How old the facts were.
    pub data_age: Option<Duration>,
    /// Whether a denial is only told and not meant: audit mode.
    pub audited: bool,
    /// What a break-glass overruled.
    pub overruled: Option<Reason>,
}

/// HTTP status and Kubernetes status reason of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 403 or 429. Never 404 or 409: clients take those for something else.
    pub code: u16,
    /// `Forbidden` or `TooManyRequests`.
    pub reason: &'static str,
}

// === impl Reason ===

impl Reason {
    /// Whether the request may go on.
    #[must_use]
    pub const fn allows(self) -> bool {
        matches!(self.kind(), Kind::Allows)
    }

    /// Whether a yes for this reason takes a voter away, so that no other deletion may count on it: one that serves, or one
    /// that may be back before its deletion arrives.
    #[must_use]
    pub const fn costs_a_vote(self) -> bool {
        matches!(
            self,
            Self::SafeToDelete
                | Self::LeaderTransferred
                | Self::LeaderAllowed
                | Self::SingleMemberAllowed
                | Self::MemberNotServing
        )
    }

    /// How a denial is told to Kubernetes. `kubectl drain` tries an eviction again only after 429; a DELETE with 429
    /// would make other clients wait inside a call that a person watches.
    #[must_use]
    pub const fn refusal(self, operation: Operation) -> Option<Refusal> {
        match (self.kind(), operation) {
            (Kind::Allows, _) => None,
            (Kind::DeniesForNow, Operation::Evict) => Some(Refusal { code: 429, reason: "TooManyRequests" }),
            (Kind::DeniesForNow | Kind::Denies, _) => Some(Refusal { code: 403, reason: "Forbidden" }),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

// === impl Verdict ===

impl Verdict {
    /// A verdict that rests on no look at the cluster.
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            next: None,
            member: None,
            warnings: Vec::new(),
            tally: None,
            cluster: None,
            data_age: None,
            audited: false,
            overruled: None,
        }
    }

    /// The same with a second sentence, on what to do about it.
    pub(super) fn with_next(mut self, next: &str) -> Self {
        self.message = format!("{}. {next}", self.message);
        self.next = Some(next.to_owned());
        self
    }

    /// Whether the request may go on.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.reason.allows() || self.audited
    }

    /// How a denial is told to Kubernetes.
    #[must_use]
    pub fn refusal(&self, operation: Operation) -> Option<Refusal> {
        if self.allows() { None } else { self.reason.refusal(operation) }
    }

    /// The verdict in one word, for logs and metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match (self.reason.allows(), self.audited) {
            (true, _) => "allowed",
            (false, true) => "audited",
            (false, false) => "denied",
        }
    }

    /// A denial becomes a warning.
    pub(super) fn audit(&mut self) {
        self.audited = true;
        let text = format!("would be denied [{}]: {}", self.reason, self.message);
        self.warn(&text);
    }

    /// A denial is overruled by whoever set the annotation.
    pub(super) fn overrule(&mut self, why: &str) {
        self.warn(&format!("break-glass overrules {}: {why}", self.reason));
        self.message = format!("{}; overruled by a break-glass: {why}", self.message);
        self.next = None;
        self.overruled = Some(std::mem::replace(&mut self.reason, Reason::BreakGlass));
    }

    /// Adds a warning, cut to the length that a terminal's line bears.
    pub(super) fn warn(&mut self, text: &str) {
        let mut warning: String = text.chars().filter(|c| !c.is_control()).take(LONGEST_WARNING).collect();
        if warning.len() < text.len() {
            warning.pop();
            warning.push('…');
        }
        self.warnings.push(warning);
    }

    /// The message as the person at the terminal reads it: the reason's word at its end leads to the documentation.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} [{}]", self.message, self.reason)
    }

    /// Keys and values for the apiserver's audit log.
    #[must_use]
    pub fn audit_annotations(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![("reason", self.reason.word().to_owned())];
        if let Some(cluster) = &self.cluster {
            pairs.push(("cluster", cluster.clone()));
        }
        if let Some(tally) = &self.tally {
            pairs.push(("voters", tally.voters.to_string()));
            pairs.push(("healthy", tally.healthy.to_string()));
            pairs.push(("quorum", tally.quorum.to_string()));
            pairs.push(("leader", tally.leader.map_or_else(|| String::from("unknown"), |id| id.to_string())));
        }
        if let Some(reason) = self.overruled {
            pairs.push(("overruled", reason.word().to_owned()));
        }
        if self.audited {
            pairs.push(("mode", String::from("audit")));
        }
        if let Some(age) = self.data_age {
            pairs.push(("data-age", format!("{}ms", age.as_millis())));
        }
        pairs
    }
}

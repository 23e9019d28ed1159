//! Verdict on a request: a reason, numbers and a remedy.

use std::time::Duration;

use crate::{
    escape::{into_bounded_line, to_bounded_line},
    etcd::member::MemberId,
    reason::{Reason, Refusal},
    request::Operation,
    tally::Tally,
};

/// Maximum length of a warning, in characters: kubectl prints it on one line, and the API server truncates longer ones.
const MAX_WARNING_LENGTH: usize = 120;

/// Maximum length of the facts in a message, in characters. They can name every member of a large cluster.
const MAX_FACTS_CHARS: usize = 2048;

/// Maximum length of a remedy, in characters. No command reaches it, because each word of a command is bounded: a command
/// that is cut could have another meaning.
const MAX_REMEDY_CHARS: usize = 8192;

/// The guard's response to a request. Its methods escape and cut all texts: they contain names and messages of members,
/// pods and users.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Reason of the approval or denial.
    pub reason: Reason,
    /// One or two sentences for the user, the remedy included.
    pub message: String,
    /// The second sentence, if there is one: how to continue after the denial.
    pub remedy: Option<String>,
    /// Other ways to continue. Each is a line of its own, because nothing may follow a command that people paste.
    pub advice: Vec<String>,
    /// The pod's member, if it is known.
    pub member: Option<MemberId>,
    /// Warnings, which kubectl prints for approvals and denials.
    pub warnings: Vec<String>,
    /// The numbers of the evaluation, if voters were counted.
    pub tally: Option<Tally>,
    /// The cluster, if it is known: `NAMESPACE/OWNER`.
    pub cluster: Option<String>,
    /// Namespace and name of a pod that contributes to the denial, and whose member the guard may lack access to.
    pub inaccessible_pod: Option<(String, String)>,
    /// Age of the snapshot.
    pub data_age: Option<Duration>,
    /// Whether audit mode approves the request in spite of the denial.
    pub audited: bool,
    /// The denial that a break-glass annotation overruled.
    pub overruled: Option<Reason>,
}

// === impl Verdict ===

impl Verdict {
    /// A verdict without a snapshot of the cluster.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: into_bounded_line(message.into(), MAX_FACTS_CHARS),
            remedy: None,
            advice: Vec::new(),
            member: None,
            warnings: Vec::new(),
            tally: None,
            cluster: None,
            inaccessible_pod: None,
            data_age: None,
            audited: false,
            overruled: None,
        }
    }

    /// Adds a second sentence: how to continue after the denial.
    pub fn with_remedy(mut self, remedy: &str) -> Self {
        let remedy = to_bounded_line(remedy, MAX_REMEDY_CHARS);
        self.message = format!("{}. {remedy}", self.message);
        self.remedy = Some(remedy);
        self
    }

    /// Adds another way to continue after the denial, on a line of its own.
    pub fn add_advice(&mut self, advice: &str) {
        match self.remedy {
            Some(_) => self.advice.push(to_bounded_line(advice, MAX_REMEDY_CHARS)),
            None => *self = self.clone().with_remedy(advice),
        }
    }

    /// Adds the cause of the request to the message, and replaces the remedy and all advice.
    pub fn explain_cause(&mut self, cause: &str, remedy: &str) {
        let remedy = to_bounded_line(remedy, MAX_REMEDY_CHARS);
        let facts = into_bounded_line(format!("{}; {cause}", self.summary()), MAX_FACTS_CHARS);
        self.message = format!("{facts}. {remedy}");
        self.remedy = Some(remedy);
        self.advice.clear();
    }

    /// Whether the request is approved.
    pub fn allows(&self) -> bool {
        self.reason.allows() || self.audited
    }

    /// HTTP status of a denial. A denial that time cannot cure is final, also if another cluster would recover from the
    /// same reason: a drain ends instead of retrying. Conversely, a large cluster recovers from a reason that is final in
    /// a cluster of three.
    pub fn refusal(&self, operation: Operation) -> Option<Refusal> {
        if self.allows() {
            return None;
        }
        let is_curable = self.tally.as_ref().is_none_or(Tally::can_ever_spare_one);
        let has_spares = self.tally.as_ref().is_some_and(Tally::can_ever_spare_two);
        match self.reason {
            Reason::QuorumAtRisk if !is_curable => Some(Refusal::FORBIDDEN),
            Reason::PermanentLoss if has_spares => Reason::QuorumAtRisk.refusal(operation),
            reason => reason.refusal(operation),
        }
    }

    /// The outcome as logs and metrics name it.
    pub fn outcome(&self) -> &'static str {
        match (self.reason.allows(), self.audited) {
            (true, _) => "allowed",
            (false, true) => "audited",
            (false, false) => "denied",
        }
    }

    /// Turns a denial into a warning.
    pub fn audit(&mut self) {
        self.audited = true;
        let text = format!("would be denied: {}: {}", self.reason, self.message);
        self.warn(&text);
    }

    /// Overrules a denial because of a break-glass annotation with this reason.
    pub fn overrule(&mut self, cause: &str) {
        self.warn(&format!("break-glass overrules {}: {cause}", self.reason));
        let facts = format!("{}; overruled by a break-glass annotation: {cause}", self.summary());
        self.message = into_bounded_line(facts, MAX_FACTS_CHARS);
        self.remedy = None;
        self.advice.clear();
        self.overruled = Some(std::mem::replace(&mut self.reason, Reason::BreakGlass));
    }

    /// Adds a warning, escaped and cut to `MAX_WARNING_LENGTH`.
    pub fn warn(&mut self, text: &str) {
        self.warnings.push(to_bounded_line(text, MAX_WARNING_LENGTH));
    }

    /// The message as a person reads it: the reason's code, the facts and the remedy. Each further advice is a line of its own.
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// The lines of [`Self::text`].
    pub fn lines(&self) -> Vec<String> {
        let first = format!("{}: {}", self.reason, self.message);
        std::iter::once(first).chain(self.advice.iter().cloned()).collect()
    }

    /// The message with all advice on one line, for logs and events.
    pub fn line(&self) -> String {
        std::iter::once(&self.message).chain(&self.advice).map(String::as_str).collect::<Vec<_>>().join("; ")
    }

    /// The message without the remedy.
    fn summary(&self) -> &str {
        let remedy = self.remedy.as_deref().unwrap_or_default();
        self.message.strip_suffix(remedy).and_then(|text| text.strip_suffix(". ")).unwrap_or(&self.message)
    }

    /// Keys and values for the API server's audit log.
    pub fn audit_annotations(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![("reason", self.reason.as_str().to_owned())];
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
            pairs.push(("overruled", reason.as_str().to_owned()));
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

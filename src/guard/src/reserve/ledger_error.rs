//! Why reservations cannot be stored, and what a person does about it. No way out deletes a Lease: the reservations in it
//! protect other clusters of the namespace.

use std::time::Duration;

use crate::reserve::store::RESERVATIONS_ANNOTATION;
use etcd_guard_core::escape::to_shell_word;
use etcd_guard_kubernetes::{LookupError, WriteError};

/// Reservations that could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub(crate) struct LedgerError {
    /// The namespace of the guard.
    pub(crate) namespace: String,
    /// The Lease; empty if it is one of several.
    pub(crate) lease: String,
    pub(crate) fault: LedgerFault,
}

/// What is wrong with the Lease or with the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LedgerFault {
    /// The API server denied the call.
    Forbidden(String),
    /// The reservations exceed the limit for one Lease.
    Full { reservations: usize, kibibytes: usize, limit: usize },
    /// The content is none of this program.
    Unreadable(String),
    /// Other evaluations changed the Lease in each of this number of attempts.
    Conflict(usize),
    /// No answer within this time.
    TimedOut(Duration),
    /// The API server returned another error, or could not be reached.
    Failed(String),
    /// The members of one cluster report different cluster ids, or none.
    NoClusterId,
}

// === impl LedgerError ===

impl LedgerError {
    pub(crate) fn of_read(namespace: &str, lease: &str, error: LookupError) -> Self {
        let fault = match error {
            LookupError::Forbidden { cause, .. } => LedgerFault::Forbidden(cause),
            LookupError::TimedOut { limit, .. } => LedgerFault::TimedOut(limit),
            LookupError::Failed { cause, .. } | LookupError::TooLarge { cause, .. } => {
                LedgerFault::Failed(cause)
            }
            error @ LookupError::NotFound { .. } => LedgerFault::Failed(error.to_string()),
        };
        Self { namespace: namespace.to_owned(), lease: lease.to_owned(), fault }
    }

    /// Returns what is wrong, for a person who has never heard of the Lease.
    fn sentence(&self) -> String {
        let lease = match self.lease.as_str() {
            "" => format!("the reservation Leases in namespace {}", self.namespace),
            name => format!("the reservation Lease {}/{name}", self.namespace),
        };
        match &self.fault {
            LedgerFault::Forbidden(cause) if is_rejected_by_others(cause) => {
                format!("a quota or another webhook rejects {lease}: {cause}")
            }
            LedgerFault::Forbidden(cause) => format!("the guard may not use {lease}: {cause}"),
            LedgerFault::Full { reservations, kibibytes, limit } => format!(
                "{lease} is full: its {reservations} reservations take {kibibytes} KiB, more than {limit} KiB"
            ),
            LedgerFault::Unreadable(cause) => format!(
                "somebody edited {lease}: its annotation {RESERVATIONS_ANNOTATION} cannot be parsed ({cause})"
            ),
            LedgerFault::Conflict(attempts) => {
                format!("other deletions changed {lease} {attempts} times in a row")
            }
            LedgerFault::TimedOut(limit) => format!(
                "the API server is slow: no answer for {lease} within {}",
                humantime::format_duration(*limit)
            ),
            LedgerFault::Failed(cause) => format!("the API server failed for {lease}: {cause}"),
            LedgerFault::NoClusterId => String::from("the members report no common cluster ID"),
        }
    }

    /// Returns the next step, with a command at its end. `members` is the namespace of the pods.
    pub(crate) fn remedy(&self, members: &str) -> String {
        let namespace = to_shell_word(&self.namespace);
        let of_members = match members {
            "" => String::from("-A"),
            name => format!("-n {}", to_shell_word(name)),
        };
        match &self.fault {
            LedgerFault::Forbidden(cause) if cause.contains(QUOTA) => {
                format!(
                    "Exempt namespace {namespace} from the quota: kubectl -n {namespace} describe resourcequotas"
                )
            }
            LedgerFault::Forbidden(cause) if is_rejected_by_others(cause) => format!(
                "Exempt namespace {namespace} from that webhook: kubectl get \
                 validatingwebhookconfigurations,mutatingwebhookconfigurations"
            ),
            LedgerFault::Forbidden(cause) => format!(
                "A Role of the guard is missing: apply its manifests again, and check: kubectl auth can-i update \
                 leases.coordination.k8s.io -n {namespace} --as={}",
                to_shell_word(denied_user(cause).unwrap_or("system:serviceaccount:etcd-guard:etcd-guard"))
            ),
            LedgerFault::Full { .. } => format!(
                "Reservations expire within two minutes. Wait, then retry: kubectl etcd-guard status {of_members}"
            ),
            LedgerFault::Unreadable(_) => format!(
                "Two minutes after the last approval, no reservation in it counts. Then reset it: kubectl -n {namespace} \
                 annotate --overwrite lease {} {RESERVATIONS_ANNOTATION}='[]'",
                to_shell_word(&self.lease)
            ),
            LedgerFault::Conflict(_) => {
                format!(
                    "Nothing is broken. Retry when the other deletions are done: kubectl get pods {of_members} -w"
                )
            }
            LedgerFault::TimedOut(_) | LedgerFault::Failed(_) => String::from(
                "Retry when the API server and its etcd are well: kubectl get --raw '/readyz?verbose'",
            ),
            LedgerFault::NoClusterId => {
                format!("Find the member that differs: kubectl etcd-guard status {of_members}")
            }
        }
    }
}

/// The part of the API server's message that names a quota.
const QUOTA: &str = "exceeded quota";

/// Whether a denial comes from another admission plugin: then the guard has its permission.
fn is_rejected_by_others(cause: &str) -> bool {
    cause.contains(QUOTA) || cause.contains("denied the request")
}

/// Returns the user in a message such as `leases… is forbidden: User "NAME" cannot update resource …`.
pub(crate) fn denied_user(cause: &str) -> Option<&str> {
    cause.split_once("User \"")?.1.split_once('"').map(|(user, _)| user)
}

/// Returns the error of a write, or `None` for a conflict.
pub(crate) fn of_write(namespace: &str, error: WriteError) -> Option<LedgerError> {
    let (lease, fault) = match error {
        WriteError::Conflict => return None,
        WriteError::Forbidden { name, cause } => (name, LedgerFault::Forbidden(cause)),
        WriteError::TimedOut { name, limit } => (name, LedgerFault::TimedOut(limit)),
        WriteError::Failed { name, cause } => (name, LedgerFault::Failed(cause)),
    };
    Some(LedgerError { namespace: namespace.to_owned(), lease, fault })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(fault: LedgerFault) -> LedgerError {
        let lease = String::from("etcd-guard.ns.prod");
        LedgerError { namespace: String::from("etcd-guard"), lease, fault }
    }

    #[test]
    fn each_fault_has_its_own_sentence_and_command() {
        let user = "system:serviceaccount:guards:own";
        let forbidden =
            format!("leases \"x\" is forbidden: User \"{user}\" cannot update resource \"leases\"");
        let full = LedgerFault::Full { reservations: 3000, kibibytes: 400, limit: 200 };
        let cases = [
            (
                LedgerFault::Forbidden(forbidden),
                "the guard may not use",
                "kubectl auth can-i update leases.coordination.k8s.io -n etcd-guard --as=system:serviceaccount:guards:own",
            ),
            (
                LedgerFault::Forbidden(String::from("leases \"x\" is forbidden: exceeded quota: all")),
                "a quota or another webhook rejects",
                "kubectl -n etcd-guard describe resourcequotas",
            ),
            (
                LedgerFault::Forbidden(String::from("admission webhook \"x\" denied the request")),
                "a quota or another webhook rejects",
                "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
            ),
            (full, "is full: its 3000 reservations take 400 KiB", "kubectl etcd-guard status -n prod"),
            (
                LedgerFault::Unreadable(String::from("expected value")),
                "somebody edited the reservation Lease etcd-guard/etcd-guard.ns.prod",
                "annotate --overwrite lease etcd-guard.ns.prod etcd-guard.io/reservations='[]'",
            ),
            (LedgerFault::Conflict(5), "5 times in a row", "kubectl get pods -n prod -w"),
            (
                LedgerFault::TimedOut(Duration::from_secs(3)),
                "the API server is slow: no answer",
                "kubectl get --raw '/readyz?verbose'",
            ),
            (
                LedgerFault::Failed(String::from("Connection refused")),
                "the API server failed",
                "kubectl get --raw '/readyz?verbose'",
            ),
            (LedgerFault::NoClusterId, "no common cluster ID", "kubectl etcd-guard status -n prod"),
        ];
        for (fault, sentence, command) in cases {
            let error = error(fault);
            assert!(error.to_string().contains(sentence), "{error}");
            let remedy = error.remedy("prod");
            assert!(remedy.ends_with(command), "{remedy}");
            assert!(!remedy.contains("delete"), "{remedy}");
        }
        assert!(error(LedgerFault::NoClusterId).remedy("").ends_with(" -A"), "a node has no namespace");
    }
}

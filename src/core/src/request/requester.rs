//! Who asks: a person reads a denial and acts on it, a program retries for ever.

use super::{Operation, Request};

/// Users whose names begin like those of programs, and with whose credentials people work.
const PEOPLE: [&str; 2] = ["system:admin", "system:anonymous"];

/// Who requests a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A person, who deletes the pod.
    Person,
    /// A service account, which deletes the pod. A person may use its credentials, for instance in a kubeconfig.
    ServiceAccount,
    /// A program. Evictions count as requests of programs, because drains, autoscalers and deschedulers retry them.
    Program,
}

// === impl Requester ===

impl Requester {
    /// Returns the requester of this request. `programs` are the further users that the configuration names.
    pub fn of(request: &Request, programs: &[String]) -> Self {
        let user = request.user.as_str();
        if request.operation == Operation::Evict || programs.iter().any(|program| program == user) {
            Self::Program
        } else if PEOPLE.contains(&user) || !user.starts_with("system:") {
            Self::Person
        } else if user.starts_with("system:serviceaccount:") {
            Self::ServiceAccount
        } else {
            Self::Program
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::LeaderPolicy::{self, Auto, Deny, Transfer};

    fn request(operation: &str, user: &str) -> Request {
        let sub_resource = if operation == "CREATE" { "eviction" } else { "" };
        let review = serde_json::json!({
            "uid": "1", "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": sub_resource,
            "operation": operation, "name": "etcd-0", "namespace": "prod", "userInfo": {"username": user},
        })
        .to_string();
        Request::from_admission(&serde_json::from_str(&review).unwrap()).unwrap()
    }

    #[test]
    fn users_of_kubernetes_and_of_the_configuration_are_programs() {
        let programs = [String::from("argocd@example.com")];
        for (user, expected) in [
            ("alice", Requester::Person),
            ("kubernetes-admin", Requester::Person),
            ("", Requester::Person),
            ("system:admin", Requester::Person),
            ("system:anonymous", Requester::Person),
            ("mallory@argocd@example.com", Requester::Person),
            ("argocd@example.com", Requester::Program),
            ("system:kube-scheduler", Requester::Program),
            ("system:node:worker", Requester::Program),
            ("system:serviceaccount:kube-system:statefulset-controller", Requester::ServiceAccount),
            ("system:serviceaccount:ci:deploy", Requester::ServiceAccount),
        ] {
            assert_eq!(Requester::of(&request("DELETE", user), &programs), expected, "DELETE by {user:?}");
            assert_eq!(Requester::of(&request("CREATE", user), &programs), Requester::Program, "eviction");
        }
    }

    #[test]
    fn only_auto_depends_on_the_requester() {
        let requesters = [Requester::Person, Requester::ServiceAccount, Requester::Program];
        let meaning = |policy: LeaderPolicy| requesters.map(|requester| policy.for_requester(requester));
        assert_eq!(meaning(Auto), [Deny, Transfer, Transfer]);
        assert_eq!(meaning(Deny), [Deny; 3]);
        assert_eq!(meaning(Transfer), [Transfer; 3]);
        assert_eq!([Auto, Deny, Transfer].map(LeaderPolicy::transfers), [true, false, true]);
    }
}

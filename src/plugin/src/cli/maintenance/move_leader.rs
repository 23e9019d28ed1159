//! `kubectl etcd-guard move-leader`: the guard moves leadership, at the request of the user.

use std::{str::FromStr, time::Duration};

use anyhow::bail;
use clap::Args;

use super::EventFormat;
use crate::{
    cli::guard_flags::GuardFlags,
    guard_client::GuardClient,
    maintenance::{
        health::PodState,
        leadership::{Subject, move_leader},
        reporter::Reporter,
    },
};
use etcd_guard_api::Role;
use etcd_guard_cli::access::run;

/// Move leadership of a cluster to another member
///
/// The command annotates the StatefulSet, and the guard moves leadership with its own credentials for etcd. Exit status: 0 if
/// leadership is where you want it, 1 if the guard could not move it, 2 if the request failed.
#[derive(Debug, Args)]
pub(crate) struct MoveLeader {
    /// A pod that leadership shall leave, or statefulset/NAME
    target: Target,
    /// The pod that shall lead; by default the guard selects the best voter
    #[arg(long, value_name = "POD")]
    to: Option<String>,
    #[command(flatten)]
    guard: GuardFlags,
    /// Time for the answer of the guard
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: EventFormat,
}

/// The object of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Pod(String),
    StatefulSet(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            None if !text.is_empty() => Ok(Self::Pod(text.to_owned())),
            Some(("pod" | "pods" | "po", name)) if !name.is_empty() => Ok(Self::Pod(name.to_owned())),
            Some(("statefulset" | "statefulsets" | "sts" | "statefulset.apps", name)) if !name.is_empty() => {
                Ok(Self::StatefulSet(name.to_owned()))
            }
            _ => Err(String::from("expected POD or statefulset/NAME")),
        }
    }
}

// === impl MoveLeader ===

impl MoveLeader {
    /// Returns whether leadership is where the user wants it.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        run(self.request())
    }

    async fn request(self) -> anyhow::Result<bool> {
        let Self { target, to, guard, timeout, output } = self;
        let guard = guard.connect().await?;
        let namespace = guard.api_server.namespace.clone();
        let mut reporter = Reporter::new(output == EventFormat::Json);
        let (subject, to) = match target {
            Target::StatefulSet(name) => (Subject::stateful_set(&namespace, &name), to),
            Target::Pod(pod) => match away_from(&guard, &namespace, &pod, to, &mut reporter).await? {
                Some(request) => request,
                None => return Ok(true),
            },
        };
        let answer = move_leader(&guard, &subject, to.as_deref(), timeout).await?;
        if answer.is_moved {
            reporter.complete(&answer.text);
        } else {
            reporter.aborted(&format!("{}: {}", answer.reason, answer.text));
        }
        Ok(answer.is_moved)
    }
}

/// Returns the object to annotate and the new leader, so that leadership leaves the pod; `None` if the pod does not lead.
async fn away_from(
    guard: &GuardClient,
    namespace: &str,
    name: &str,
    to: Option<String>,
    reporter: &mut Reporter,
) -> anyhow::Result<Option<(Subject, Option<String>)>> {
    if to.as_deref() == Some(name) {
        bail!("leadership cannot leave pod {name} and move to it; name another pod with --to");
    }
    let Some(pod) = guard.api_server.pod(namespace, name).await? else {
        bail!(
            "pod {namespace}/{name} does not exist; list them: {} -n {namespace} get pods",
            guard.api_server.kubectl
        );
    };
    let subject = Subject::of_pod(namespace, name, &pod);
    let survey = match guard.status(Some(namespace)).await {
        Ok(survey) => survey,
        Err(error) => {
            reporter.warn(&format!("the leader is unknown: {error:#}"));
            let to = match to {
                Some(to) => Some(to),
                None => sibling(guard, namespace, name, &subject).await?,
            };
            return Ok(Some((subject, to)));
        }
    };
    let has_pod = |pod: &Option<String>| pod.as_deref() == Some(name);
    let cluster =
        survey.clusters.iter().find(|cluster| cluster.members.iter().any(|member| has_pod(&member.pod)));
    let leader =
        cluster.and_then(|cluster| cluster.members.iter().find(|member| member.role == Role::Leader));
    match leader {
        Some(leader) if !has_pod(&leader.pod) => {
            let leader = leader.pod.as_deref().or(leader.name.as_deref()).unwrap_or("another member");
            reporter.complete(&format!("leadership is already elsewhere: {leader} leads, not {name}"));
            Ok(None)
        }
        _ => Ok(Some((subject, to))),
    }
}

/// Returns a ready pod of the same StatefulSet: while the leader is unknown, the best voter may be the pod that leadership
/// shall leave.
async fn sibling(
    guard: &GuardClient,
    namespace: &str,
    pod: &str,
    subject: &Subject,
) -> anyhow::Result<Option<String>> {
    if *subject != Subject::stateful_set(namespace, &subject.name) {
        return Ok(None);
    }
    let set = guard.api_server.stateful_set(namespace, &subject.name).await?;
    let pods = guard.api_server.pods_of(namespace, &set).await?;
    let mut others = pods.iter().map(PodState::from).filter(|other| other.name != pod);
    let sibling = others.find(|other| other.is_ready && !other.is_terminating);
    match sibling {
        Some(sibling) => Ok(Some(sibling.name)),
        None => bail!("no other pod of StatefulSet {namespace}/{} is ready", subject.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_without_type_is_a_pod() {
        assert_eq!("etcd-1".parse(), Ok(Target::Pod(String::from("etcd-1"))));
        assert_eq!("pod/etcd-1".parse(), Ok(Target::Pod(String::from("etcd-1"))));
        assert_eq!("sts/etcd".parse(), Ok(Target::StatefulSet(String::from("etcd"))));
        for text in ["", "sts/", "deployment/etcd"] {
            assert_eq!(text.parse::<Target>().unwrap_err(), "expected POD or statefulset/NAME");
        }
    }
}

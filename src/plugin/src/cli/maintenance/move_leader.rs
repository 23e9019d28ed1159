//! `kubectl etcd-guard move-leader`: the guard moves leadership, at the request of the user.

use std::time::Duration;

use anyhow::bail;
use clap::Args;

use super::{EventFormat, Target};
use crate::{
    cli::guard_flags::{GuardFlags, parse_name},
    durations,
    guard_client::GuardClient,
    maintenance::{health::PodState, leadership::move_leader, reporter::Reporter, requests::Subject},
};
use etcd_guard_api::Role;
use etcd_guard_cli::{
    access::run,
    printing::{causes, print_warning},
};

/// Move leadership of a cluster to another member
///
/// The command writes an annotation; one replica of the guard acts with its own credentials for etcd, and answers with an Event.
/// You need no access to etcd. Your clock and the guard's must agree within 60 s. Status 1 means that the guard could
/// not move leadership.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Away from etcd-2
  kubectl etcd-guard move-leader etcd-2 -n prod

  # To the best other voter, or to etcd-0
  kubectl etcd-guard move-leader statefulset/etcd -n prod
  kubectl etcd-guard move-leader statefulset/etcd -n prod --to etcd-0")]
pub(crate) struct MoveLeader {
    /// A pod that leadership shall leave, or statefulset/NAME
    target: Target,
    /// The pod that shall lead; by default the guard selects the best voter
    #[arg(long, value_name = "POD", value_parser = parse_name)]
    to: Option<String>,
    #[command(flatten)]
    guard: GuardFlags,
    /// Time for the answer of the guard
    #[arg(long, default_value = "30s", value_parser = durations::parse)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: EventFormat,
}

// === impl MoveLeader ===

impl MoveLeader {
    /// Returns whether leadership is where the user wants it.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        run(self.request())
    }

    async fn request(self) -> anyhow::Result<bool> {
        let Self { target, to, guard, timeout, output } = self;
        if let (Target::Pod(pod), Some(to)) = (&target, &to)
            && pod == to
        {
            bail!("leadership cannot leave pod {pod} and move to it; name another pod with --to");
        }
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
        if answer.is_moved() {
            reporter.complete(&answer.text);
        } else {
            reporter.aborted(&format!("{}: {}", answer.reason, answer.text));
        }
        Ok(answer.is_moved())
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
            print_warning(&format!("the leader is unknown: {}", causes(&error)));
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

//! `etcd-guard check`: what a deletion would be answered, before anybody deletes.
//!
//! The guard that would be asked is asked: the same program, configuration, reservations and cluster, by the same
//! review, as a dry run.

mod answer;
mod question;

use clap::Args;

use self::{
    answer::Answer,
    question::{Cascade, Question, Target, Way, own_name},
};
use super::{
    asked::Asked,
    client::run,
    reach::{Output, Reach},
};
use crate::server::Preview;

/// Tell what the deletion of a pod would be answered, and why
///
/// Exit status: 0 if it would be allowed, 1 if it would be denied, 2 if that could not be told.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// A pod, or TYPE/NAME, where TYPE is pod, statefulset, namespace or pvc
    target: Target,
    #[command(flatten)]
    reach: Reach,
    /// Ask about an eviction, as kubectl drain does, instead of a deletion
    #[arg(long)]
    evict: bool,
    /// Seconds between SIGTERM and SIGKILL; by default the pod's own
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<i64>,
    /// Ask about a deletion by --force --grace-period=0
    #[arg(long, conflicts_with = "grace_period")]
    force: bool,
    /// What becomes of the pods of a StatefulSet
    #[arg(long, value_enum, default_value = "background")]
    cascade: Cascade,
    /// Ask about scaling a StatefulSet to so many pods
    #[arg(long, conflicts_with_all = ["evict", "grace_period", "force"])]
    replicas: Option<u32>,
    /// Who would delete, such as system:serviceaccount:kube-system:statefulset-controller; by default you
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    /// What to print
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

// === impl Check ===

impl Check {
    /// Whether it would be allowed.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        run(self.ask())
    }

    async fn ask(self) -> anyhow::Result<bool> {
        let Self { target, reach, evict, grace_period, force, cascade, replicas, user, output } = self;
        let reached = reach.connect().await?;
        let user = match user {
            Some(user) => user,
            None => own_name(&reached.client).await?,
        };
        let grace_period = if force { Some(0) } else { grace_period };
        let way = Way { evict, grace_period, cascade, replicas };
        let namespace = target.namespace(&reached.namespace);
        let question = Question::about(&reached.client, namespace, &target, &way, &user).await?;
        let review = serde_json::to_vec(&question.review)?;
        let (preview, asked) = tokio::join!(
            reached.post::<Preview>("/check", review),
            Asked::find(&reached.client, question.webhook, namespace)
        );
        let preview = preview?;
        let answer = Answer::new(&question.what, &user, &asked, &preview);
        match output {
            Output::Text => answer.print(&asked)?,
            Output::Json => anstream::println!("{}", serde_json::to_string_pretty(&answer)?),
        }
        Ok(preview.verdict != "denied")
    }
}

//! `etcd-guard check`: what a deletion would be answered, before anybody deletes.
//!
//! The guard that would be asked is asked: the same program, configuration, reservations and cluster, by the same
//! review, as a dry run.

mod question;

use clap::Args;
use serde::Serialize;

use self::question::{Cascade, Question, Target, Way, own_name};
use super::{
    asked::Asked,
    client::run,
    reach::{Output, Reach},
    style::{BAD, GOOD, ODD, STRONG, paint},
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

/// What is printed as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    question: &'a str,
    user: &'a str,
    /// Whether the apiserver would ask the guard; `null` if that is not known.
    asked: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    #[serde(flatten)]
    preview: &'a Preview,
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
        match output {
            Output::Text => print_text(&question.what, &user, &preview, &asked),
            Output::Json => {
                let (asked, note) = match &asked {
                    Asked::Yes => (Some(true), None),
                    Asked::No(why) => (Some(false), Some(why.as_str())),
                    Asked::Unknown(why) => (None, Some(why.as_str())),
                };
                let answer = Answer { question: &question.what, user: &user, asked, note, preview: &preview };
                anstream::println!("{}", serde_json::to_string_pretty(&answer)?);
            }
        }
        Ok(preview.verdict != "denied")
    }
}

fn print_text(what: &str, user: &str, preview: &Preview, asked: &Asked) {
    let style = match preview.verdict.as_str() {
        "allowed" => GOOD,
        "denied" => BAD,
        _ => ODD,
    };
    let verdict = paint(style, &preview.verdict.to_uppercase());
    anstream::println!("{verdict} {}: {what}, by {user}", paint(STRONG, &preview.reason));
    anstream::println!("{}", preview.message);
    if let (Some(voters), Some(healthy), Some(quorum), Some(remaining)) =
        (preview.voters, preview.healthy, preview.quorum, preview.remaining)
    {
        let cluster = preview.cluster.as_deref().unwrap_or("the cluster");
        let leader = preview.leader.as_deref().unwrap_or("unknown");
        anstream::println!(
            "{cluster}: {voters} voters, {healthy} healthy, {remaining} would remain, quorum {quorum}, leader {leader}"
        );
    }
    for warning in &preview.warnings {
        anstream::eprintln!("{}: {warning}", paint(ODD, "Warning"));
    }
    match asked {
        Asked::Yes => {}
        Asked::No(why) => anstream::eprintln!("{}: {why}", paint(BAD, "Not guarded")),
        Asked::Unknown(why) => {
            anstream::eprintln!("{}: whether the apiserver would ask: {why}", paint(ODD, "Unknown"));
        }
    }
}

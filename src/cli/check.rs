//! `etcd-guard check`: previews the verdict on a deletion, an eviction or a scale-down.
//!
//! The running guard evaluates a dry-run review, so that the program, its configuration, the reservations and the
//! cluster are those of the real request.

pub(in crate::cli) mod report;
mod review;

use clap::Args;

use self::{
    report::CheckReport,
    review::{Cascade, Operation, PreviewRequest, Target, current_user},
};
use super::kube_client::{
    guard_flags::{GuardFlags, Output},
    run,
};
use crate::{escape::escape_json, guard_client::webhook_coverage::WebhookCoverage, server::Preview};

/// Preview the verdict on the deletion of a pod, with the reason
///
/// Exit status: 0 if the request would be allowed, 1 if it would be denied, 2 if the preview failed.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// A pod, or TYPE/NAME, where TYPE is pod, statefulset, namespace or pvc
    target: Target,
    #[command(flatten)]
    guard: GuardFlags,
    /// Preview an eviction, as kubectl drain requests, instead of a deletion
    #[arg(long)]
    evict: bool,
    /// Grace period of the deletion, in seconds; by default the grace period of the pod
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<i64>,
    /// Preview a deletion with --force --grace-period=0
    #[arg(long, conflicts_with = "grace_period")]
    force: bool,
    /// How the deletion of a StatefulSet propagates to its pods, as in kubectl delete --cascade
    #[arg(long, value_enum, default_value = "background")]
    cascade: Cascade,
    /// Preview scaling a StatefulSet to this number of replicas
    #[arg(long, conflicts_with_all = ["evict", "grace_period", "force"])]
    replicas: Option<u32>,
    /// The requesting user, such as system:serviceaccount:kube-system:statefulset-controller; by default the user of the kubeconfig
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

// === impl Check ===

impl Check {
    /// Prints the preview and returns whether the request would be allowed.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        run(self.preview())
    }

    async fn preview(self) -> anyhow::Result<bool> {
        let Self { target, guard, evict, grace_period, force, cascade, replicas, user, output } = self;
        let client = guard.connect().await?;
        let user = match user {
            Some(user) => user,
            None => current_user(&client.client).await?,
        };
        let grace_period = if force { Some(0) } else { grace_period };
        let operation = Operation { evict, grace_period, cascade, replicas };
        let namespace = target.namespace(&client.namespace);
        let request = PreviewRequest::new(&client.client, namespace, &target, &operation, &user).await?;
        let review = serde_json::to_vec(&request.review)?;
        let (preview, coverage) = tokio::join!(
            client.post::<Preview>("/check", review),
            WebhookCoverage::find(&client.client, request.webhook, namespace)
        );
        let preview = preview?;
        let report = CheckReport::new(&request.summary, &user, &coverage, &preview);
        match output {
            Output::Text => report.print()?,
            Output::Json => anstream::println!("{}", escape_json(&serde_json::to_string_pretty(&report)?)),
        }
        Ok(preview.verdict != "denied")
    }
}

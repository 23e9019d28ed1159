//! `kubectl etcd-guard check`: previews the verdict on a deletion, an eviction or a scale-down.
//!
//! The running guard evaluates a dry-run review, so that the program, its configuration, the reservations and the
//! cluster are those of the real request.

mod node;
pub(crate) mod report;
pub(crate) mod review;
mod targets;

use std::io::Write;

use anyhow::bail;
use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::json;

use self::{
    report::CheckReport,
    review::{Cascade, Operation, PreviewRequest, Target, current_user},
    targets::{Targets, nodes},
};
use super::guard_flags::{GuardFlags, parse_selector};
use crate::guard_client::{GuardClient, webhook_coverage::WebhookCoverage};
use etcd_guard_api::Preview;
use etcd_guard_cli::{
    access::run,
    printing::{Output, print_error, stdout},
    terminal::waiting::with_notice,
};

/// Preview the verdict on the deletion of pods, with the reason
///
/// The guard evaluates the same request as a dry run, so the text is the one that you would get. Several objects are
/// checked independently, not as one batch. For node/NAME, the order in which a drain evicts the etcd members of the node is
/// printed, and the members that cannot leave. Status 1 means that a request would be denied.
///
/// No preview can know what only happens for real: a move of leadership that fails, a Lease that cannot be written, your own
/// rights, other webhooks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # May this pod be deleted? May these?
  kubectl etcd-guard check etcd-1 -n prod
  kubectl etcd-guard check -n prod -l app=etcd

  # What would a drain of this node meet?
  kubectl etcd-guard check node/worker-1

  # An eviction, a scale-down, a PVC, a namespace
  kubectl etcd-guard check etcd-1 --evict
  kubectl etcd-guard check statefulset/etcd --replicas=3
  kubectl etcd-guard check pvc/data-etcd-1
  kubectl etcd-guard check namespace/prod

  # As a controller
  kubectl etcd-guard check etcd-1 --requester system:serviceaccount:kube-system:statefulset-controller")]
pub(super) struct Check {
    /// Pods, TYPE/NAME, or TYPE and names, where TYPE is pod, statefulset, namespace, pvc or node
    #[arg(value_name = "TARGET", required_unless_present = "selector")]
    targets: Vec<String>,
    /// Label selector: all objects of TYPE with these labels, by default pods
    #[arg(short = 'l', long, value_parser = parse_selector)]
    selector: Option<String>,
    #[command(flatten)]
    guard: GuardFlags,
    /// Preview an eviction, as kubectl drain requests, instead of a deletion
    #[arg(long)]
    evict: bool,
    /// Grace period of the deletion, in seconds; by default the grace period of the pod
    #[arg(long, value_name = "SECONDS", value_parser = parse_grace_period)]
    grace_period: Option<i64>,
    /// Preview a deletion with --force --grace-period=0
    #[arg(long, conflicts_with = "grace_period")]
    force: bool,
    /// How the deletion of a StatefulSet propagates to its pods, as in kubectl delete --cascade (default: `background`)
    #[arg(long, value_enum)]
    cascade: Option<Cascade>,
    /// Preview scaling a StatefulSet to this number of replicas
    #[arg(long, value_parser = parse_replicas, conflicts_with_all = ["evict", "grace_period", "force", "cascade"])]
    replicas: Option<u32>,
    /// The user of the previewed request, such as system:serviceaccount:kube-system:statefulset-controller; by default your own user
    #[arg(long, value_name = "USER", value_parser = NonEmptyStringValueParser::new())]
    requester: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// The previewed requests: the same operation by the same user on several objects.
struct Question {
    client: GuardClient,
    operation: Operation,
    user: String,
}

/// The answer for one object.
struct Answer {
    request: PreviewRequest,
    coverage: WebhookCoverage,
    preview: Preview,
}

fn parse_replicas(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| String::from("expected a number, 0 or more"))
}

fn parse_grace_period(text: &str) -> Result<i64, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds >= 0);
    seconds.ok_or_else(|| String::from("expected a number of seconds, 0 or more"))
}

// === impl Check ===

impl Check {
    /// Prints the previews and returns whether all requests would be allowed.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        run(self.preview())
    }

    async fn preview(self) -> anyhow::Result<bool> {
        let Self {
            targets,
            selector,
            guard,
            evict,
            grace_period,
            force,
            cascade,
            replicas,
            requester,
            output,
        } = self;
        if let Some(nodes) = nodes(&targets, selector.as_deref())? {
            let is_changed = evict || grace_period.is_some() || force || cascade.is_some();
            anyhow::ensure!(
                !is_changed && replicas.is_none() && requester.is_none(),
                "--evict, --grace-period, --force, --cascade, --replicas and --requester do not apply to node/NAME"
            );
            return Box::pin(node::check(guard, &nodes, output)).await;
        }
        let targets = Targets::parse(&targets, selector)?;
        let operation = Operation { evict, grace_period, force, cascade, replicas };
        targets.kinds().try_for_each(|kind| operation.require(kind))?;
        // A list, even of one object, is printed as a list.
        let is_list = !matches!(&targets, Targets::Named(targets) if targets.len() == 1);
        let client = guard.connect().await?;
        let api_server = client.api_server.describe();
        let targets = with_notice(&api_server, targets.resolve(&client.api_server)).await?;
        let user = match requester {
            Some(user) => user,
            None => with_notice(&api_server, current_user(&client.api_server)).await?,
        };
        let question = Question { client, operation, user };
        let (mut answers, mut errors) = (Vec::new(), Vec::new());
        for target in &targets {
            match question.ask(target).await {
                Ok(answer) => answers.push((target, answer)),
                Err(error) => errors.push(error),
            }
        }
        let is_allowed = answers.iter().all(|(_, answer)| answer.preview.verdict != "denied");
        if !answers.is_empty() {
            question.print(&answers, output, is_list)?;
        }
        if let (1, Some(_)) = (targets.len(), errors.first()) {
            return errors.into_iter().next().map_or(Ok(is_allowed), Err);
        }
        errors.iter().for_each(print_error);
        if !errors.is_empty() {
            bail!("{} of {} previews failed", errors.len(), targets.len());
        }
        Ok(is_allowed)
    }
}

// === impl Question ===

impl Question {
    /// Previews the request for one object.
    async fn ask(&self, target: &Target) -> anyhow::Result<Answer> {
        let Self { client, operation, user } = self;
        let api_server = client.api_server.describe();
        let namespace = target.namespace(&client.api_server.namespace);
        let request = PreviewRequest::new(&client.api_server, namespace, target, operation, user);
        let request = with_notice(&api_server, request).await?;
        let review = serde_json::to_vec(&request.review)?;
        let (preview, coverage) = tokio::join!(
            client.post::<Preview>("/check", review),
            WebhookCoverage::find(&client.api_server, request.webhook, namespace)
        );
        Ok(Answer { preview: preview?, coverage, request })
    }

    /// Prints the answers to standard output, and, like kubectl, the warnings of tables to standard error.
    fn print(&self, answers: &[(&Target, Answer)], output: Output, is_list: bool) -> anyhow::Result<()> {
        let reports = answers.iter().map(|(target, Answer { request, coverage, preview })| {
            let report = CheckReport::new(&request.summary, &self.user, coverage, preview);
            let is_wide = output == Output::Wide;
            if !is_wide {
                return (target, report);
            }
            let namespace = &self.client.api_server.namespace;
            let report = report.with_placement(&request.placement);
            (target, report.with_break_glass(&target.annotate_arguments(namespace)))
        });
        let reports: Vec<_> = reports.collect();
        let mut out = stdout();
        match output {
            Output::Table | Output::Wide => {
                for (number, (_, report)) in reports.iter().enumerate() {
                    if number > 0 {
                        writeln!(out)?;
                    }
                    report.write(&mut out)?;
                    report.write_warnings(&mut anstream::stderr().lock())?;
                }
            }
            Output::Name => {
                for (target, _) in &reports {
                    writeln!(out, "{}", target.printed_name())?;
                }
            }
            Output::Json | Output::Yaml => {
                let reports: Vec<_> = reports.iter().map(|(_, report)| report).collect();
                match reports.as_slice() {
                    [report] if !is_list => output.write_document(report, &mut out)?,
                    several => output.write_document(&json!({"items": several}), &mut out)?,
                };
            }
        }
        Ok(out.flush()?)
    }
}

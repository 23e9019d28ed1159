//! The conformance suite: tests the guarantees of the guard in a test cluster of the user.
//!
//! [`Suite::start`] creates a namespace of its own, [`Suite::run`] starts etcd clusters there, requests the deletion of
//! their pods in every supported way and compares the responses with docs/requesters.md.
//! [`Suite::clean_up`] deletes the namespace. Nothing outside the namespace is changed.

mod cases;
mod manifests;
mod permissions;
mod progress;
mod report;
mod sandbox;

use std::time::Duration;

use anyhow::{Context, bail};

pub(crate) use self::report::{Outcome, Report};
use self::{
    cases::{
        requests::{DELETION_WEBHOOK, EVICTION_WEBHOOK},
        runner::Cases,
    },
    manifests::ClusterOptions,
    progress::report_progress,
    sandbox::{OWN_LABEL, Sandbox},
};
use crate::guard_client::GuardClient;

/// The user's choices for one run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The namespace to create; `None` for a generated name.
    pub(crate) namespace: Option<String>,
    /// The etcd image; `None` for the image of etcd-manifests/plain.yaml.
    pub(crate) image: Option<String>,
    /// The storage class of the members' volumes; `None` for the default class of the cluster.
    pub(crate) storage_class: Option<String>,
    /// Maximum time for members to start or to recover.
    pub(crate) timeout: Duration,
    /// The namespace in which the guard runs.
    pub(crate) guard_namespace: String,
}

/// One run of the suite.
pub(crate) struct Suite {
    options: Options,
    sandbox: Sandbox,
    report: Report,
}

// === impl Suite ===

impl Suite {
    /// Checks that the guard responds and that the user has the required permissions, then creates the namespace.
    pub(crate) async fn start(guard: GuardClient, options: Options) -> anyhow::Result<Self> {
        let version = guard.api_server.client.apiserver_version();
        let server =
            guard.api_server.call("failed to read the version of the API server", version).await?.git_version;
        // The suite depends on the status of the guard. The namespace of the guard has no etcd cluster, so that this
        // request only tests the connection.
        let status = guard.status(Some(&options.guard_namespace)).await;
        let status = status.context("reading the status of the guard, before anything is created")?;
        let label = status.opt_in_label.unwrap_or_default();
        let sandbox = Sandbox::create(guard, label, options.namespace.as_deref(), options.timeout).await?;
        let report = Report { namespace: sandbox.namespace.clone(), server, rows: Vec::new() };
        Ok(Self { options, sandbox, report })
    }

    /// Starts the etcd clusters and runs all cases.
    pub(crate) async fn run(&mut self) -> anyhow::Result<()> {
        let Self { options, sandbox, report } = self;
        for webhook in [DELETION_WEBHOOK, EVICTION_WEBHOOK] {
            if let Err(reason) = sandbox.check_coverage(webhook).await {
                bail!("the guard is not active: {reason}. Install it first (docs/install.md)");
            }
        }
        report_progress(&format!("starting an etcd cluster in namespace {}", sandbox.namespace));
        let cluster = ClusterOptions {
            image: options.image.as_deref(),
            storage_class: options.storage_class.as_deref(),
        };
        sandbox.start_cluster(&cluster).await?;
        sandbox.wait_until_healthy().await?;
        if let Err(response) = Cases::check_enforcement(sandbox).await? {
            let (kubectl, guard_namespace) = (&sandbox.api.kubectl, &options.guard_namespace);
            bail!(
                "the guard is not active: {response}. Inspect it: {kubectl} get validatingwebhookconfigurations; \
                 {kubectl} -n {guard_namespace} get pods"
            );
        }
        Cases { sandbox, cluster: &cluster, report }.run().await
    }

    /// The results so far.
    pub(crate) fn report(&self) -> &Report {
        &self.report
    }

    /// Deletes the namespace and waits until it is gone. May be called after [`Self::run`] was cancelled.
    pub(crate) async fn clean_up(&self) -> anyhow::Result<()> {
        report_progress(&format!("deleting namespace {}", self.sandbox.namespace));
        self.sandbox.delete().await
    }

    /// A sentence with the commands that delete the namespace if [`Self::clean_up`] failed.
    pub(crate) fn manual_clean_up(&self) -> String {
        let (namespace, kubectl) = (&self.sandbox.namespace, &self.sandbox.api.kubectl);
        let ((key, value), opt_in) = (OWN_LABEL, self.sandbox.opt_in_label.key());
        format!(
            "namespace {namespace} remains. List such namespaces: {kubectl} get namespaces -l {key}={value}. Delete it: \
             {kubectl} label namespace {namespace} {opt_in}- && {kubectl} delete namespace {namespace}"
        )
    }
}

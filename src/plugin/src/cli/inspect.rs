//! `kubectl etcd-guard inspect`: what the guard reads of a pod, and the Role that it needs.
//!
//! It requires no running guard. The report is that of the functions that the guard uses, with the rights of the caller.

mod live;
mod manifest;
pub(crate) mod report;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::jiff::Timestamp;

pub(crate) use self::live::LiveReader;
use self::{
    live::BUILT_IN,
    manifest::{InspectionTarget, Manifest},
    report::{print, print_roles},
};
use super::guard_flags::{ClusterFlags, parse_name, parse_namespace};
use crate::api_server::ApiServer;
use etcd_guard_cli::{
    access::run,
    printing::{Output, stdout},
};
use etcd_guard_core::{
    escape::to_shell_word,
    inspect::{Inspection, inspect, role::GuardAccount},
    opt_in_label::OptInLabel,
};
use etcd_guard_inject::config::Config;

/// Namespace of objects in files that name none.
const DEFAULT_NAMESPACE: &str = "default";

/// Show what the guard reads of a pod: recognition, endpoint, storage, credentials, policy, and the Role to apply
///
/// Without --file, the object is read from the API server with your rights; no running guard is needed. The content of a
/// Secret is never printed. Status 1 means that the guard recognizes no etcd member.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # What does the guard see of this pod?
  kubectl etcd-guard inspect etcd-1 -n prod

  # Let the guard read the certificates of these members
  kubectl etcd-guard inspect statefulset/etcd -n prod --role | kubectl apply -f -

  # Before you install anything: a pod of a StatefulSet in a file
  kubectl etcd-guard inspect -f etcd.yaml etcd-1")]
pub(super) struct Inspect {
    /// A pod, or TYPE/NAME, where TYPE is pod, statefulset, deployment, replicaset, daemonset, job, cronjob or
    /// replicationcontroller; with --file, selects one object of the file
    #[arg(required_unless_present = "file")]
    target: Option<InspectionTarget>,
    /// Objects in YAML or JSON, or - for standard input; requires no cluster
    #[arg(short, long)]
    file: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Print only the Role and the `RoleBinding` as YAML, or a comment if the guard needs none
    #[arg(long, conflicts_with = "output")]
    role: bool,
    /// The guard's configuration file; by default the `ConfigMap` of the guard, or with --file the built-in configuration
    #[arg(long, env = "ETCD_GUARD_CONFIG")]
    config: Option<PathBuf>,
    /// The namespace of the guard
    #[arg(long, default_value = "etcd-guard", env = "ETCD_GUARD_NAMESPACE", value_parser = parse_namespace)]
    guard_namespace: String,
    /// The service account of the guard
    #[arg(long, default_value = "etcd-guard", value_parser = parse_name)]
    service_account: String,
    /// The label of guarded namespaces, as in the guard's arguments
    #[arg(
        long,
        env = "ETCD_GUARD_OPT_IN_LABEL",
        value_name = "KEY=VALUE",
        default_value_t = OptInLabel::default()
    )]
    opt_in_label: OptInLabel,
}

/// Inspects a pod for another command, which reads the credentials itself.
pub(crate) async fn inspect_member(
    api_server: &ApiServer,
    pod: &str,
) -> anyhow::Result<(Inspection, LiveReader)> {
    let reader = LiveReader::new(api_server.clone());
    let target: InspectionTarget = pod.parse().map_err(anyhow::Error::msg)?;
    let mut object = reader.read(&target).await?;
    let config = Config::default();
    reader.add_owners(&mut object, &config, &OptInLabel::default()).await;
    Ok((inspect(&object.inspected, &config.guard, Timestamp::now()), reader))
}

// === impl Inspect ===

impl Inspect {
    /// Prints the report and returns whether an etcd member was recognized.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (is_role, output) = (self.role, self.output);
        let inspections = match self.file.clone() {
            Some(file) => self.inspect_file(&file)?,
            None => vec![run(self.inspect_live())?],
        };
        let mut out = stdout();
        if is_role {
            print_roles(&inspections, &mut out)?;
        } else {
            print(&inspections, output, &mut out)?;
        }
        Ok(inspections.iter().any(|inspection| inspection.recognized))
    }

    fn account(&self) -> GuardAccount {
        GuardAccount { namespace: self.guard_namespace.clone(), name: self.service_account.clone() }
    }

    /// Returns the command that applies the Role for this object.
    fn apply_command(&self, namespace: &str, target: &str) -> String {
        let [namespace, target] = [namespace, target].map(to_shell_word);
        let mut command = format!("kubectl etcd-guard inspect -n {namespace} {target}");
        if let Some(file) = &self.file {
            let _ = write!(command, " -f {}", to_shell_word(&file.display().to_string()));
        }
        if let Some(config) = &self.config {
            let _ = write!(command, " --config {}", to_shell_word(&config.display().to_string()));
        }
        let cluster = self.cluster.selection();
        format!("{command}{cluster} --role | kubectl{cluster} apply -f -")
    }

    fn read_config(&self) -> anyhow::Result<Option<(Config, String)>> {
        let Some(file) = &self.config else { return Ok(None) };
        let (config, _) = super::config::read_or_default(Some(file))?;
        Ok(Some((config, file.display().to_string())))
    }

    fn inspect_file(self, file: &Path) -> anyhow::Result<Vec<Inspection>> {
        let (config, configuration) = self.read_config()?.unwrap_or((Config::default(), BUILT_IN.to_owned()));
        let text = super::config::read_text(file)?;
        let manifest = Manifest::parse(&text).with_context(|| file.display().to_string())?;
        let namespace = self.cluster.namespace_flag();
        let objects = manifest.objects(self.target.as_ref(), namespace, DEFAULT_NAMESPACE);
        let objects = objects.with_context(|| file.display().to_string())?;
        if objects.is_empty() {
            let (file, targets) = (file.display(), manifest.targets());
            match &self.target {
                Some(target) if !targets.is_empty() => {
                    bail!("{file} has no {target}; it has: {}", targets.join(", "))
                }
                _ => bail!("{file} has no pod and no object with a pod template"),
            }
        }
        let account = self.account();
        let inspected = objects.iter().map(|object| {
            let mut inspection = inspect(&object.inspected, &config.guard, Timestamp::now());
            inspection.configuration.clone_from(&configuration);
            inspection.guarded = manifest.is_guarded(&inspection.namespace, &self.opt_in_label);
            inspection.record(&manifest.states(&inspection.namespace));
            inspection.apply_command = self.apply_command(&inspection.namespace, &object.target);
            inspection.add_role(&account);
            inspection
        });
        Ok(inspected.collect())
    }

    async fn inspect_live(self) -> anyhow::Result<Inspection> {
        let account = self.account();
        let config = self.read_config()?;
        let target = self.target.clone().context("the name is missing")?;
        let reader = LiveReader::new(self.cluster.clone().connect().await?);
        let mut object = reader.read(&target).await?;
        let (config, configuration) = match config {
            Some(config) => config,
            None => reader.config(&account.namespace).await?,
        };
        let is_guarded = reader.add_owners(&mut object, &config, &self.opt_in_label).await;
        let mut inspection = inspect(&object.inspected, &config.guard, Timestamp::now());
        inspection.configuration = configuration;
        inspection.guarded = is_guarded;
        reader.add_access(&mut inspection, &account).await;
        inspection.apply_command = self.apply_command(&inspection.namespace, &object.target);
        inspection.add_role(&account);
        Ok(inspection)
    }
}

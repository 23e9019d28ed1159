//! `etcd-guard unregister`: deletes the webhook configurations, so that the API server stops calling the guard.

use std::io::Write;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::webhook_configurations::Configurations;
use etcd_guard_cli::{
    access::{AccessFlags, run},
    printing::confirm,
    registration::{ConfigurationName, WebhookGroup, shipped_configurations},
    terminal::{EMPHASIS, paint},
};
use etcd_guard_core::escape::to_single_line;

/// Delete the guard's webhook configurations
///
/// The API server then no longer calls the guard, and deletions of etcd members are no longer evaluated. Without a
/// kubeconfig, uses the service account of the pod.
#[derive(Debug, Args)]
pub(crate) struct Unregister {
    #[command(flatten)]
    access: AccessFlags,
    /// Print the configurations, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete without confirmation
    #[arg(short, long)]
    yes: bool,
}

// === impl Unregister ===

impl Unregister {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        run(self.unregister())
    }

    async fn unregister(self) -> anyhow::Result<()> {
        let Self { access, dry_run, yes } = self;
        let config = access.config_or_in_cluster().await?;
        let server = config.cluster_url.clone();
        let client =
            etcd_guard_cli::client::client(config).context("failed to create a client for the API server")?;
        let configurations = Configurations::new(client);
        let mut found = Vec::new();
        for name in shipped_configurations() {
            if configurations.read(&name).await?.is_some() {
                found.push(name);
            }
        }
        let server = to_single_line(&server.to_string());
        if found.is_empty() {
            anstream::println!("no webhook configuration of the guard is registered at {server}");
            return Ok(());
        }
        write_plan(&found, &server, &mut anstream::stderr().lock())?;
        if dry_run {
            for name in &found {
                anstream::println!("{} deleted (dry run)", object(name));
            }
            return Ok(());
        }
        if !yes {
            confirm("The API server no longer calls the guard until the configurations are applied again.")?;
        }
        for name in &found {
            let deleted = configurations.delete(name).await?;
            anstream::println!("{} {}", object(name), if deleted { "deleted" } else { "not found" });
        }
        Ok(())
    }
}

/// Writes the configurations that are deleted, with the effect of each deletion.
fn write_plan(found: &[ConfigurationName], server: &str, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "Webhook configurations to delete at {}:", paint(EMPHASIS, server))?;
    for name in found {
        writeln!(out, "  {}: {}", object(name), effect(name))?;
    }
    Ok(())
}

/// Returns `TYPE/NAME`, as kubectl accepts it.
fn object(name: &ConfigurationName) -> String {
    format!("{}/{}", name.kind.to_lowercase(), name.name)
}

/// Returns the effect of the deletion of a configuration.
fn effect(name: &ConfigurationName) -> &'static str {
    match WebhookGroup::value_variants().iter().find(|group| group.is_named(name)) {
        Some(WebhookGroup::Guard) => {
            "deletions, evictions and scale-downs of etcd members are approved without evaluation"
        }
        Some(WebhookGroup::Uid) => {
            "an eviction of an etcd member keeps the name of its pod reserved for a minute"
        }
        Some(WebhookGroup::NodeDeletions) => {
            "deletions of nodes with members are approved without evaluation"
        }
        Some(WebhookGroup::Inject) => "new pods get no lxcfs files, sidecars and tolerations",
        Some(WebhookGroup::Nodes) => "nodes are no longer over-committed",
        Some(WebhookGroup::Rules) => "the names of new pods are not validated",
        None => "the API server no longer calls this webhook",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_names_each_configuration_and_its_effect() {
        let mut out = anstream::StripStream::new(Vec::new());
        write_plan(&shipped_configurations(), "https://127.0.0.1/", &mut out).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert!(text.starts_with("Webhook configurations to delete at https://127.0.0.1/:\n"), "{text}");
        assert!(
            text.contains("  validatingwebhookconfiguration/etcd-guard: deletions, evictions and"),
            "{text}"
        );
        assert!(text.contains("  mutatingwebhookconfiguration/etcd-guard-nodes: nodes are"), "{text}");
        assert_eq!(text.lines().count(), 1 + WebhookGroup::value_variants().len());
        assert!(!text.contains("this webhook"), "each configuration has an effect: {text}");
    }
}

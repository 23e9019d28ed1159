//! `kubectl etcd-guard config`: validates a configuration file and prints the schema.

mod dry_run;

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args, Subcommand};

use self::dry_run::check_templates;
use crate::api_server::ApiServer;
use etcd_guard_cli::access::{AccessFlags, run};
use etcd_guard_core::escape::to_single_line;
use etcd_guard_inject::config::{Config, schema};

/// Validate a configuration file, or print its schema
#[derive(Debug, Args)]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Validate a file and report every error with its line
    Check {
        /// The file, or - for standard input
        file: PathBuf,
        /// Also create a pod with each template, as a dry run with your own rights, and report each template that the
        /// API server rejects
        #[arg(long)]
        server: bool,
        /// With --server, the namespace of these pods; by default the namespace of the kubeconfig
        #[arg(short, long, requires = "server")]
        namespace: Option<String>,
        /// With --server, the kubeconfig file; by default $KUBECONFIG, then the service account of the pod
        #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
        kubeconfig: Option<PathBuf>,
    },
    /// Print the JSON schema of configuration files
    Schema,
}

// === impl ConfigCommand ===

impl ConfigCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Check { file, server, namespace, kubeconfig } => {
                let (config, _) = read(&file, |diagnostic| eprintln!("{diagnostic}"))?;
                if server {
                    run(check_on_server(&file, &config, namespace, kubeconfig))?;
                }
                println!("{}: valid", file.display());
            }
            Command::Schema => println!("{}", serde_json::to_string_pretty(&schema())?),
        }
        Ok(())
    }
}

/// Reports each template that the API server rejects in a pod.
async fn check_on_server(
    file: &Path,
    config: &Config,
    namespace: Option<String>,
    kubeconfig: Option<PathBuf>,
) -> anyhow::Result<()> {
    let access = AccessFlags::of_file(kubeconfig).config_or_in_cluster().await?;
    let api_server = ApiServer::new(access, namespace, String::from("kubectl"))?;
    let results = check_templates(config, &api_server).await?;
    let namespace = &api_server.namespace;
    let mut rejected = 0;
    for result in &results {
        if let Some(error) = &result.error {
            rejected += 1;
            eprintln!("{}: template {}: {}", file.display(), result.name, to_single_line(error));
        }
    }
    if rejected > 0 {
        anyhow::bail!(
            "{}: {rejected} of {} templates failed in namespace {namespace}",
            file.display(),
            results.len()
        );
    }
    Ok(())
}

/// Returns the text of a file, or of standard input for `-`.
pub(super) fn read_text(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}

/// Reads the configuration and its text from a file. Passes each diagnostic to `report`, in the format of compilers.
fn read(file: &Path, report: impl Fn(&str)) -> anyhow::Result<(Config, String)> {
    let text = read_text(file)?;
    match Config::read(&text) {
        Ok(config) => Ok((config, text)),
        Err(diagnostics) => {
            for diagnostic in &diagnostics {
                report(&diagnostic.in_file(file));
            }
            let plural = if diagnostics.len() == 1 { "" } else { "s" };
            anyhow::bail!("{} has {} error{plural}", file.display(), diagnostics.len())
        }
    }
}

/// Reads the configuration of `--config`, or returns the default one if the flag is absent.
pub(super) fn read_or_default(file: Option<&Path>) -> anyhow::Result<(Config, String)> {
    match file {
        Some(file) => read(file, |diagnostic| tracing::error!("{diagnostic}")).context("--config"),
        None => Ok((Config::default(), String::new())),
    }
}

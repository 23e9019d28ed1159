//! `kubectl etcd-guard config`: validates a configuration file and prints the schema.

mod dry_run;

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use self::dry_run::{TemplateResult, check_templates};
use super::guard_flags::parse_namespace;
use crate::api_server::ApiServer;
use etcd_guard_cli::{
    access::{AccessFlags, run},
    printing::{Output, print_error, stdout},
};
use etcd_guard_core::{config::diagnostic::Diagnostic, escape::to_single_line};
use etcd_guard_inject::config::{Config, schema};

/// Validate a configuration file, or print its schema
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Check a file
  kubectl etcd-guard config check config.yaml")]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Validate a file and report every error with its line
    ///
    /// Status 1 means that the file is not valid, or that the API server rejects a template.
    #[command(after_help = "Examples:
  # Check a file
  kubectl etcd-guard config check config.yaml

  # Also check the templates of the file with the API server, as a dry run
  kubectl etcd-guard config check config.yaml --server -n prod

  # Check the file in the cluster
  kubectl get configmap -n etcd-guard etcd-guard-config -o jsonpath='{.data.config\\.yaml}' | kubectl etcd-guard config check -")]
    Check {
        /// The file, or - for standard input
        file: PathBuf,
        /// Output format
        #[arg(short, long, value_enum, default_value = "text")]
        output: Format,
        /// Also create a pod with each template, as a dry run with your own rights, and report each template that the
        /// API server rejects
        #[arg(long)]
        server: bool,
        /// With --server, the namespace of these pods; by default the namespace of the kubeconfig
        #[arg(short, long, value_parser = parse_namespace)]
        namespace: Option<String>,
        /// With --server, the kubeconfig file; by default $KUBECONFIG, then ~/.kube/config, then the service account of the pod
        #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
        kubeconfig: Option<PathBuf>,
    },
    /// Print the JSON schema of configuration files
    #[command(after_help = "Examples:
  # For an editor that knows JSON schemas
  kubectl etcd-guard config schema > etcd-guard.schema.json")]
    Schema,
}

/// Output format of the result
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Each error on a line with its file and line, on standard error
    Text,
    /// One JSON document on standard output
    Json,
}

/// The result of `config check`. The fields are those of the JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Validation {
    file: String,
    valid: bool,
    errors: Vec<Diagnostic>,
    /// The dry runs of `--server`; `None` without it, or if the file has errors.
    server: Option<DryRuns>,
}

/// The dry runs of the creation of a pod with each template.
#[derive(Debug, Serialize)]
struct DryRuns {
    namespace: String,
    templates: Vec<TemplateResult>,
}

// === impl ConfigCommand ===

impl ConfigCommand {
    /// Returns whether the file is valid.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        match self.command {
            Command::Check { file, output, server, namespace, kubeconfig } => {
                let (errors, config) = match Config::read(&read_text(&file)?) {
                    Ok(config) => (Vec::new(), Some(config)),
                    Err(errors) => (errors, None),
                };
                let server = match &config {
                    Some(config) if server => Some(run(check_on_server(config, namespace, kubeconfig))?),
                    _ => None,
                };
                let validation = Validation::new(&file, errors, server);
                match output {
                    Format::Text => validation.print(&file)?,
                    Format::Json => drop(Output::Json.write_document(&validation, &mut stdout())?),
                }
                Ok(validation.valid)
            }
            Command::Schema => {
                writeln!(stdout(), "{}", serde_json::to_string_pretty(&schema())?)?;
                Ok(true)
            }
        }
    }
}

// === impl Validation ===

impl Validation {
    fn new(file: &Path, errors: Vec<Diagnostic>, server: Option<DryRuns>) -> Self {
        let is_rejected = server.as_ref().is_some_and(|server| server.rejected().count() > 0);
        let valid = errors.is_empty() && !is_rejected;
        Self { file: file.display().to_string(), valid, errors, server }
    }

    /// Prints each error and a summary.
    fn print(&self, file: &Path) -> anyhow::Result<()> {
        let Self { file: name, errors, server, .. } = self;
        if self.valid {
            return Ok(writeln!(stdout(), "{name}: valid")?);
        }
        for error in errors {
            print_line(&error.in_file(file));
        }
        let Some(server) = server else {
            print_error(&counted(file, errors.len()));
            return Ok(());
        };
        for (template, error) in server.rejected() {
            print_line(&format!("{name}: template {template}: {}", to_single_line(error)));
        }
        let DryRuns { namespace, templates } = server;
        let (rejected, count) = (server.rejected().count(), templates.len());
        print_error(&anyhow::anyhow!(
            "{name}: {rejected} of {count} templates failed in namespace {namespace}"
        ));
        Ok(())
    }
}

// === impl DryRuns ===

impl DryRuns {
    /// The templates whose pods the API server rejects, with the cause.
    fn rejected(&self) -> impl Iterator<Item = (&str, &str)> {
        self.templates.iter().filter_map(|result| Some((result.name.as_str(), result.error.as_deref()?)))
    }
}

/// Prints a line to standard error.
fn print_line(line: &str) {
    // If standard error is closed, the exit status remains.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

async fn check_on_server(
    config: &Config,
    namespace: Option<String>,
    kubeconfig: Option<PathBuf>,
) -> anyhow::Result<DryRuns> {
    let access = AccessFlags::of_file(kubeconfig).config_or_in_cluster().await?;
    let api_server = ApiServer::new(access, namespace, String::from("kubectl"))?;
    let templates = check_templates(config, &api_server).await?;
    Ok(DryRuns { namespace: api_server.namespace, templates })
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

/// Reads the configuration and its text from a file, and logs each of its errors.
fn read(file: &Path) -> anyhow::Result<(Config, String)> {
    let text = read_text(file)?;
    match Config::read(&text) {
        Ok(config) => Ok((config, text)),
        Err(errors) => {
            for error in &errors {
                tracing::error!("{}", error.in_file(file));
            }
            Err(counted(file, errors.len()))
        }
    }
}

/// The error of a file with this number of errors.
fn counted(file: &Path, count: usize) -> anyhow::Error {
    let plural = if count == 1 { "" } else { "s" };
    anyhow::anyhow!("{} has {count} error{plural}", file.display())
}

/// Reads the configuration of `--config`, or returns the default one if the flag is absent.
pub(super) fn read_or_default(file: Option<&Path>) -> anyhow::Result<(Config, String)> {
    match file {
        Some(file) => read(file).context("--config"),
        None => Ok((Config::default(), String::new())),
    }
}

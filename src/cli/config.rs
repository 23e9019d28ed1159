//! `etcd-guard config`: validates a configuration file and prints the schema.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::config::{Config, Diagnostic, schema};

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
    },
    /// Print the JSON schema of configuration files
    Schema,
}

// === impl ConfigCommand ===

impl ConfigCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Check { file } => {
                read(&file, |diagnostic| eprintln!("{diagnostic}"))?;
                println!("{}: valid", file.display());
            }
            Command::Schema => println!("{}", serde_json::to_string_pretty(&schema())?),
        }
        Ok(())
    }
}

/// Reads the configuration and its text from a file. Passes each diagnostic to `report`, in the format of compilers.
fn read(file: &Path, report: impl Fn(&str)) -> anyhow::Result<(Config, String)> {
    let text = super::input::read(file)?;
    match Config::read(&text) {
        Ok(config) => Ok((config, text)),
        Err(diagnostics) => {
            for Diagnostic { line, path, message } in &diagnostics {
                let line = line.map(|line| format!("{line}:")).unwrap_or_default();
                let colon = if path.is_empty() { "" } else { ": " };
                report(&format!("{}:{line} {path}{colon}{message}", file.display()));
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

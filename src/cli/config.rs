//! `etcd-guard config`: what is wrong with a configuration file, and what may be in one.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::config::{Config, Mistake, schema};

/// Check a configuration file, or print its schema
#[derive(Debug, Args)]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say all that is wrong with a file, line by line
    Check {
        /// The file; - for standard input
        file: PathBuf,
    },
    /// Print the JSON schema of the file
    Schema,
}

// === impl ConfigCommand ===

impl ConfigCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Check { file } => {
                read(&file, |mistake| eprintln!("{mistake}"))?;
                println!("{}: good", file.display());
            }
            Command::Schema => println!("{}", serde_json::to_string_pretty(&schema())?),
        }
        Ok(())
    }
}

/// The configuration in a file, and its text. Mistakes are told one by one, as compilers write them.
fn read(file: &Path, tell: impl Fn(&str)) -> anyhow::Result<(Config, String)> {
    let text = super::input::read(file)?;
    match Config::read(&text) {
        Ok(config) => Ok((config, text)),
        Err(mistakes) => {
            for Mistake { line, place, text } in &mistakes {
                let line = line.map(|it| format!("{it}:")).unwrap_or_default();
                let colon = if place.is_empty() { "" } else { ": " };
                tell(&format!("{}:{line} {place}{colon}{text}", file.display()));
            }
            let plural = if mistakes.len() == 1 { "" } else { "s" };
            anyhow::bail!("{} has {} mistake{plural}", file.display(), mistakes.len())
        }
    }
}

/// The default configuration where no file is given.
pub(super) fn read_or_default(file: Option<&Path>) -> anyhow::Result<(Config, String)> {
    match file {
        Some(file) => read(file, |mistake| tracing::error!("{mistake}")).context("--config"),
        None => Ok((Config::default(), String::new())),
    }
}

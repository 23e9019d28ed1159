//! `kubectl etcd-guard version`: the releases of this program and of the replicas of the guard.

use std::io::Write;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::Serialize;

use super::super::guard_flags::GuardFlags;
use crate::guard_client::replica::{MAX_REPLICAS, release};
use etcd_guard_cli::{
    access::run,
    printing::{Output, causes, print_error, stdout},
};
use etcd_guard_core::escape::{MAX_NAME_CHARS, to_bounded_line};

/// Show the releases of this program and of each replica of the guard
///
/// Status 2 means that the release of a replica could not be read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # This program and every replica of the guard
  kubectl etcd-guard version

  # Only this program, without a cluster
  kubectl etcd-guard version --client")]
pub(crate) struct Version {
    #[command(flatten)]
    guard: GuardFlags,
    /// Show only the release of this program, which requires no cluster
    #[arg(long)]
    client: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// The releases. The fields are those of the JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Releases {
    client_version: &'static str,
    servers: Vec<ServerRelease>,
}

/// The release of one replica.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerRelease {
    replica: String,
    version: String,
}

// === impl Version ===

impl Version {
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        let Self { guard, client, output } = self;
        let mut releases = Releases { client_version: env!("CARGO_PKG_VERSION"), servers: Vec::new() };
        let errors = if client {
            Vec::new()
        } else {
            // Without a server, the release of this program is still printed.
            run(async { Ok(releases.read(guard).await) })?
        };
        let mut out = stdout();
        releases.write(output, &mut out)?;
        out.flush()?;
        drop(out);
        let Some((last, others)) = errors.split_last() else { return Ok(true) };
        others.iter().for_each(print_error);
        bail!("{}", causes(last));
    }
}

// === impl Releases ===

impl Releases {
    /// Adds the release of each replica. Returns the causes why releases are unknown.
    async fn read(&mut self, guard: GuardFlags) -> Vec<anyhow::Error> {
        let replicas = async {
            let client = guard.connect().await?;
            let replicas = client.replicas().await?;
            anyhow::Ok((client, replicas))
        };
        let (client, replicas) = match replicas.await {
            Ok(found) => found,
            Err(error) => return vec![error],
        };
        let mut errors = Vec::new();
        for replica in replicas.iter().take(MAX_REPLICAS) {
            let read = async {
                let response = client.get_from(replica, "/metrics").await?;
                release(&String::from_utf8_lossy(response.body()))
                    .context("the metrics of the guard contain no release")
            };
            match read.await {
                Ok(version) => self.add(&replica.describe(), &version),
                Err(error) => errors.push(error.context(replica.describe())),
            }
        }
        let further = replicas.len().saturating_sub(MAX_REPLICAS);
        if further > 0 {
            errors.push(anyhow!("{further} further replicas were not read: at most {MAX_REPLICAS} are"));
        }
        errors
    }

    /// Adds a release. Both texts come from other systems.
    fn add(&mut self, replica: &str, version: &str) {
        let [replica, version] = [replica, version].map(|text| to_bounded_line(text, MAX_NAME_CHARS));
        self.servers.push(ServerRelease { replica, version });
    }

    pub(crate) fn write(&self, output: Output, out: &mut impl Write) -> anyhow::Result<()> {
        let Self { client_version, servers } = self;
        match output {
            Output::Table | Output::Wide => {
                writeln!(out, "Client Version: {client_version}")?;
                for ServerRelease { replica, version } in servers {
                    writeln!(out, "Server Version: {version} ({replica})")?;
                }
            }
            Output::Name => {
                writeln!(out, "{client_version}")?;
                servers.iter().try_for_each(|server| writeln!(out, "{}", server.version))?;
            }
            Output::Json | Output::Yaml => {
                output.write_document(self, out)?;
            }
        }
        Ok(())
    }

    /// Releases with this text in each field of another system.
    #[cfg(any(test, feature = "fixtures"))]
    pub(crate) fn with_texts(text: &str) -> Self {
        let mut releases = Self { client_version: "0.1.0", servers: Vec::new() };
        releases.add(text, text);
        releases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_line_per_replica_or_fields() {
        let releases = Releases::with_texts("x");
        let written = |output: Output| {
            let mut out = Vec::new();
            releases.write(output, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(Output::Table), "Client Version: 0.1.0\nServer Version: x (x)\n");
        assert_eq!(written(Output::Name), "0.1.0\nx\n");
        let value: serde_json::Value = serde_json::from_str(&written(Output::Json)).unwrap();
        let expected =
            serde_json::json!({"clientVersion": "0.1.0", "servers": [{"replica": "x", "version": "x"}]});
        assert_eq!(value, expected);
        let yaml: serde_json::Value = serde_saphyr::from_str(&written(Output::Yaml)).unwrap();
        assert_eq!(yaml, expected);
    }
}

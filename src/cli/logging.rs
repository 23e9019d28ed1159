//! How the process logs.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// The Kubernetes client logs each failed call as an error, and so would whoever made the call.
const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off";

/// Flags of every subcommand.
#[derive(Debug, Args)]
pub(super) struct Logging {
    /// The shape of log lines
    #[arg(long, global = true, value_enum, default_value = "text", env = "ETCD_GUARD_LOG_FORMAT")]
    log_format: LogFormat,
    /// What to log: error, warn, info, debug, trace, or a filter such as `info,etcd_guard::etcd=debug`
    #[arg(
        long,
        global = true,
        default_value = DEFAULT_FILTER,
        env = "ETCD_GUARD_LOG_LEVEL",
        value_parser = parse_filter
    )]
    log_level: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

// === impl Logging ===

impl Logging {
    /// Sends all of the process's log lines to standard error, from here on.
    pub(super) fn start(&self) {
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(&self.log_level))
            .with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => subscriber.with_ansi(false).init(),
            LogFormat::Json => subscriber.json().flatten_event(true).init(),
        }
    }
}

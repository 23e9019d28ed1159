//! How the process logs.

mod json;
mod waiting;

use clap::{Args, ValueEnum};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt, filter_fn},
    fmt,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

pub(super) use self::waiting::{write_out, write_out_at_rest};
use self::{json::JsonLines, waiting::Lines};
use crate::traces::SPANS;

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
    /// Sends all of the process's log lines to standard error, from here on, and its spans to `collector`, if there is one.
    pub(super) fn start(&self, collector: Option<Box<dyn Layer<Registry> + Send + Sync>>) {
        // A line says all by itself: spans are for the collector. Without one nobody wants them, and they are not even made.
        let filter = EnvFilter::new(&self.log_level).and(filter_fn(|it| it.target() != SPANS));
        let lines = fmt::layer().with_writer(Lines);
        let lines = match self.log_format {
            LogFormat::Text => lines.with_ansi(false).with_filter(filter).boxed(),
            LogFormat::Json => lines.json().event_format(JsonLines::default()).with_filter(filter).boxed(),
        };
        let layers: Vec<_> = collector.into_iter().chain([lines]).collect();
        tracing_subscriber::registry().with(layers).init();
    }
}

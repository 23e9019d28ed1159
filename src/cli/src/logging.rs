//! Logging of the process.

mod escaping;
#[cfg(any(test, feature = "fixtures"))]
pub mod test_buffer;

use std::io;

use clap::Args;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt, filter_fn},
    fmt::{self, MakeWriter},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use self::escaping::EscapingWriter;
pub use self::escaping::LogFormat;
#[cfg(any(test, feature = "fixtures"))]
pub use self::test_buffer::TestBuffer;
use etcd_guard_core::spans::SPAN_TARGET;

/// Targets without lines: spans, and the verification of certificates, whose failure the error of the connection reports.
const HIDDEN_TARGETS: [&str; 2] = [SPAN_TARGET, "rustls_platform_verifier"];

/// Flags of every subcommand.
#[derive(Debug, Args)]
pub struct Logging {
    /// The format of log lines
    #[arg(long, global = true, value_enum, default_value = "text", env = "ETCD_GUARD_LOG_FORMAT")]
    log_format: LogFormat,
    /// The log level: error, warn, info, debug, trace, or a filter such as `info,etcd_guard_etcd=debug`
    #[arg(
        long,
        global = true,
        default_value = "info",
        env = "ETCD_GUARD_LOG_LEVEL",
        value_parser = parse_filter
    )]
    log_level: String,
}

fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Returns the layer that writes lines in this format to `writer`.
pub fn lines<M>(format: LogFormat, writer: M) -> Box<dyn Layer<Registry> + Send + Sync>
where
    M: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // A line that cannot be written is lost. Reporting that to the same closed output would panic.
    let lines = fmt::layer().with_writer(EscapingWriter::new(writer, format)).log_internal_errors(false);
    match format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

// === impl Logging ===

impl Logging {
    /// Starts logging to standard error, and passes spans to `collector`, if present.
    pub fn start(&self, collector: Option<Box<dyn Layer<Registry> + Send + Sync>>) {
        // Log lines are complete without spans. Spans are for the collector only, and are disabled without one.
        let filter = EnvFilter::new(&self.log_level).and(filter_fn(|metadata| {
            !HIDDEN_TARGETS.iter().any(|target| metadata.target().starts_with(target))
        }));
        let lines = lines(self.log_format, || io::stderr().lock()).with_filter(filter).boxed();
        let layers: Vec<_> = collector.into_iter().chain([lines]).collect();
        tracing_subscriber::registry().with(layers).init();
    }
}

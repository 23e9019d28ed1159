//! The exporter of spans: a bounded queue, and a background thread that sends its content. Evaluations never wait for
//! it. The OpenTelemetry SDK logs failed exports and dropped spans.

use std::{env, fs, io, time::Duration};

use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithExportConfig, WithTonicConfig,
    tonic_types::transport::{Certificate, ClientTlsConfig},
};
use opentelemetry_sdk::{
    Resource,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider},
};
use tracing_subscriber::{Layer, Registry, filter::filter_fn};

use etcd_guard_core::spans::SPAN_TARGET;

/// Capacity of the queue, in spans of about 1 KB: the spans of a few hundred verdicts. Further spans are dropped.
const MAX_QUEUED_SPANS: usize = 2048;

/// Maximum number of spans in one export request.
const MAX_BATCH_SPANS: usize = 512;

/// Maximum time that a span waits in the queue for a batch to fill.
const SEND_INTERVAL: Duration = Duration::from_secs(2);

/// Timeout of one export request: the usual default of exporters.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for the export of the remaining spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Variables with the URL of the collector, in the order of their precedence
/// (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).
const ENDPOINT_VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Variables with the file of the CA that signed the collector's certificate.
const CA_VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];

/// Variable with the name of this service.
const SERVICE_VARIABLE: &str = "OTEL_SERVICE_NAME";

/// The exporter of spans to one OpenTelemetry collector.
pub(crate) struct Collector {
    provider: SdkTracerProvider,
}

/// A collector that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectorError {
    /// The URL is not of the form `http://HOST:PORT` or `https://HOST:PORT`.
    #[error(
        "{0} is not the URL of a collector; pass http://HOST:PORT or https://HOST:PORT (OTLP over gRPC, usually port 4317)"
    )]
    NotHttp(String),
    /// The image has no certificates of public CAs.
    #[error(
        "{0} needs the file of the CA that signed the collector's certificate in OTEL_EXPORTER_OTLP_CERTIFICATE"
    )]
    NoCa(http::Uri),
    /// The file of the CA cannot be read.
    #[error("cannot read the CA of the collector in {file}: {error}")]
    UnreadableCa {
        /// Path of the file.
        file: String,
        /// The cause.
        error: io::Error,
    },
    /// The exporter rejects the URL.
    #[error("{0}")]
    Unusable(#[from] ExporterBuildError),
}

// === impl Collector ===

impl Collector {
    /// Creates an exporter for the collector at this URL, or at that of OpenTelemetry's variables; `None` without both.
    ///
    /// Must be called within a Tokio runtime, which must outlive the exporter.
    pub(crate) fn from_settings(url: Option<&http::Uri>) -> Result<Option<Self>, CollectorError> {
        if let Some(url) = url {
            return Self::new(url).map(Some);
        }
        let Some(text) = variable(&ENDPOINT_VARIABLES) else { return Ok(None) };
        let url = text.parse().map_err(|_| CollectorError::NotHttp(text))?;
        Self::new(&url).map(Some)
    }

    /// Creates an exporter for the collector at this URL. The collector may be unavailable.
    fn new(url: &http::Uri) -> Result<Self, CollectorError> {
        let scheme = url.scheme_str().filter(|_| url.port_u16().is_some());
        let mut exporter =
            SpanExporter::builder().with_tonic().with_endpoint(url.to_string()).with_timeout(EXPORT_TIMEOUT);
        match scheme {
            Some("http") => {}
            Some("https") => {
                let file = variable(&CA_VARIABLES).ok_or_else(|| CollectorError::NoCa(url.clone()))?;
                let ca = fs::read(&file).map_err(|error| CollectorError::UnreadableCa { file, error })?;
                let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
                exporter = exporter.with_tls_config(tls);
            }
            _ => return Err(CollectorError::NotHttp(url.to_string())),
        }
        let exporter = exporter.build()?;
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED_SPANS)
            .with_max_export_batch_size(MAX_BATCH_SPANS)
            .with_scheduled_delay(SEND_INTERVAL)
            .build();
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let provider =
            SdkTracerProvider::builder().with_span_processor(batches).with_resource(resource()).build();
        Ok(Self { provider })
    }

    /// Returns a subscriber layer that exports the spans with the target [`SPAN_TARGET`].
    pub(crate) fn layer(&self) -> Box<dyn Layer<Registry> + Send + Sync> {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("etcd-guard"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(|metadata| metadata.target() == SPAN_TARGET))
            .boxed()
    }

    /// Exports the remaining spans, within a time limit.
    pub(crate) async fn flush(self) {
        let flushed =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH_TIMEOUT)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(%error, "failed to export the remaining trace spans");
        }
    }
}

/// Returns the first of these environment variables that is set and not empty.
fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
}

/// Describes this process to the collector. `OTEL_RESOURCE_ATTRIBUTES` adds attributes, and `OTEL_SERVICE_NAME` replaces the name.
fn resource() -> Resource {
    let instance = std::env::var("HOSTNAME").ok().map(|host| KeyValue::new("service.instance.id", host));
    Resource::builder()
        .with_service_name(variable(&[SERVICE_VARIABLE]).unwrap_or_else(|| String::from("etcd-guard")))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(instance)
        .build()
}

//! The exporter of spans: a bounded queue, and a background thread that sends its content. Evaluations never wait for
//! it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use opentelemetry::{Context, KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter as OtlpExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter,
        SpanProcessor,
    },
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::{runtime::Handle, time::timeout};
use tracing_subscriber::{Layer, Registry as Subscribers, filter::filter_fn};

use super::names::SPAN_TARGET;

/// Capacity of the queue, in spans of about 1 KB: the spans of a few hundred verdicts. Further spans are dropped.
const MAX_QUEUED_SPANS: usize = 2048;

/// Maximum number of spans in one export request.
const MAX_BATCH_SPANS: usize = 512;

/// Maximum time that a span waits in the queue for a batch to fill.
const SEND_INTERVAL: Duration = Duration::from_secs(2);

/// Timeout of one export request, including a new connection: the usual default of exporters.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for the export of the remaining spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The exporter of spans to one OpenTelemetry collector.
pub struct Collector {
    provider: SdkTracerProvider,
}

/// A collector that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The URL is not of the form `http://HOST:PORT`. TLS is left to an agent beside the guard, or to the network.
    #[error("{0} is not the URL of a collector; pass http://HOST:PORT (OTLP over gRPC, usually port 4317)")]
    NotHttp(http::Uri),
    /// The exporter rejects the URL.
    #[error("{0}")]
    Unusable(#[from] ExporterBuildError),
}

/// Counts spans by result.
#[derive(Clone, Debug)]
pub struct SpanCounts(Family<ResultLabel, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The length of the queue, and the results of spans that left it.
#[derive(Debug)]
struct QueueState {
    queued: AtomicUsize,
    counts: SpanCounts,
    /// Whether the loss of spans was logged since the last successful export.
    is_loss_logged: AtomicBool,
}

/// Puts ended spans into the queue, and drops them while the queue is full.
#[derive(Debug)]
struct BoundedSpanProcessor {
    state: Arc<QueueState>,
    batches: BatchSpanProcessor,
}

/// Sends batches of spans to the collector and counts the results.
#[derive(Debug)]
struct CountingExporter {
    state: Arc<QueueState>,
    exporter: Arc<OtlpExporter>,
    /// Runs the exports: the thread of the batch processor is outside the runtime, and timeouts need it.
    runtime: Handle,
}

// === impl Collector ===

impl Collector {
    /// Creates an exporter for the collector at this URL. The collector may be unavailable.
    ///
    /// Must be called within a Tokio runtime, which must outlive the exporter.
    pub fn new(url: &http::Uri, counts: SpanCounts) -> Result<Self, CollectorError> {
        if url.scheme_str() != Some("http") || url.port_u16().is_none() {
            return Err(CollectorError::NotHttp(url.clone()));
        }
        let exporter = OtlpExporter::builder()
            .with_tonic()
            .with_endpoint(url.to_string())
            .with_timeout(EXPORT_TIMEOUT)
            .build()?;
        let state = Arc::new(QueueState {
            queued: AtomicUsize::new(0),
            counts,
            is_loss_logged: AtomicBool::new(false),
        });
        let exporter = CountingExporter {
            state: Arc::clone(&state),
            exporter: Arc::new(exporter),
            runtime: Handle::current(),
        };
        let config = BatchConfigBuilder::default()
            // Twice the capacity that `BoundedSpanProcessor` enforces, so that this limit is never reached.
            .with_max_queue_size(2 * MAX_QUEUED_SPANS)
            .with_max_export_batch_size(MAX_BATCH_SPANS)
            .with_scheduled_delay(SEND_INTERVAL)
            .build();
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BoundedSpanProcessor { state, batches })
            .with_resource(resource())
            .build();
        Ok(Self { provider })
    }

    /// Returns a subscriber layer that exports the spans with the target [`SPAN_TARGET`].
    #[must_use]
    pub fn layer(&self) -> Box<dyn Layer<Subscribers> + Send + Sync> {
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
    pub async fn flush(self) {
        let flushed =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH_TIMEOUT)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(%error, "failed to export the remaining trace spans");
        }
    }
}

/// Describes this process to the collector. `OTEL_RESOURCE_ATTRIBUTES` adds attributes.
fn resource() -> Resource {
    let instance = std::env::var("HOSTNAME").ok().map(|host| KeyValue::new("service.instance.id", host));
    Resource::builder()
        .with_service_name("etcd-guard")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(instance)
        .build()
}

// === impl SpanCounts ===

impl Default for SpanCounts {
    fn default() -> Self {
        let counts = Family::default();
        for result in ["sent", "failed", "dropped"] {
            drop(counts.get_or_create(&ResultLabel { result }));
        }
        Self(counts)
    }
}

impl SpanCounts {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Trace spans by result: accepted by the collector, not accepted, dropped because the queue was full";
        registry.register("trace_spans", help, self.0.clone());
    }

    fn add(&self, result: &'static str, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.0.get_or_create(&ResultLabel { result }).inc_by(spans);
    }
}

// === impl QueueState ===

impl QueueState {
    /// Counts lost spans. Logs the first loss only, until an export succeeds: every batch fails while the collector is
    /// unavailable.
    fn record_loss(&self, result: &'static str, spans: usize, cause: &str) {
        self.counts.add(result, spans);
        if !self.is_loss_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                cause,
                "trace spans are lost, verdicts are not affected; the metric etcd_guard_trace_spans_total counts them"
            );
        }
    }

    fn record_sent(&self, spans: usize) {
        self.counts.add("sent", spans);
        if self.is_loss_logged.swap(false, Ordering::Relaxed) {
            tracing::info!("the collector accepts trace spans again");
        }
    }
}

// === impl BoundedSpanProcessor ===

impl SpanProcessor for BoundedSpanProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        if self.state.queued.fetch_add(1, Ordering::Relaxed) >= MAX_QUEUED_SPANS {
            self.state.queued.fetch_sub(1, Ordering::Relaxed);
            self.state.record_loss("dropped", 1, "the queue of trace spans is full");
            return;
        }
        self.batches.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, limit: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(limit)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

// === impl CountingExporter ===

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.state.queued.fetch_sub(spans, Ordering::Relaxed);
        let exporter = Arc::clone(&self.exporter);
        let sent = self.runtime.spawn(async move { timeout(EXPORT_TIMEOUT, exporter.export(batch)).await });
        match sent.await {
            Ok(Ok(Ok(()))) => self.state.record_sent(spans),
            Ok(Ok(Err(error))) => self.state.record_loss("failed", spans, &error.to_string()),
            Ok(Err(_)) => self.state.record_loss("failed", spans, "the export timed out"),
            Err(_) => self.state.record_loss("failed", spans, "the process is stopping"),
        }
        Ok(())
    }

    fn shutdown_with_timeout(&self, limit: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(limit)
    }

    fn set_resource(&mut self, resource: &Resource) {
        // Called before the first export, when this is the only reference.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

//! The way to the collector: a queue with an end, and a thread that empties it. Nobody ever waits for either.

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

use super::SPANS;

/// The most spans that wait to be sent, of about 1 KB each: what some hundred verdicts leave behind. Further ones are dropped.
const MOST_WAITING: usize = 2048;

/// The most spans that are sent at a time.
const MOST_AT_A_TIME: usize = 512;

/// Longest that a span waits for others to be sent with.
const SEND_INTERVAL: Duration = Duration::from_secs(2);

/// Longest that the collector is waited for, a new connection included: what exporters commonly wait. No verdict waits with
/// it.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// Longest that a process which ends waits for what is left to be sent.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// Where spans go.
pub struct Collector {
    provider: SdkTracerProvider,
}

/// A collector that cannot be sent to.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// TLS is the business of an agent beside the guard, or of the network.
    #[error("{0}: a collector is reached by http://HOST:PORT (OTLP over gRPC, mostly port 4317)")]
    NotHttp(http::Uri),
    /// What the exporter makes of it.
    #[error("{0}")]
    Unusable(#[from] ExporterBuildError),
}

/// What became of spans.
#[derive(Clone, Debug)]
pub struct SpanCounts(Family<ResultLabel, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// How many spans wait, and what became of the others.
#[derive(Debug)]
struct Queue {
    waiting: AtomicUsize,
    counts: SpanCounts,
    /// Whether somebody was told that spans are lost, since the collector took some last.
    is_told: AtomicBool,
}

/// Lets spans into the queue for as long as there is room.
#[derive(Debug)]
struct Entrance {
    queue: Arc<Queue>,
    batches: BatchSpanProcessor,
}

/// Sends what left the queue.
#[derive(Debug)]
struct Exit {
    queue: Arc<Queue>,
    exporter: Arc<OtlpExporter>,
    /// The queue is emptied by a thread that is not the runtime's, and time limits are.
    runtime: Handle,
}

// === impl Collector ===

impl Collector {
    /// A way to the collector at this URL, which need not be there yet. Within a runtime, which must outlive it.
    pub fn new(url: &http::Uri, counts: SpanCounts) -> Result<Self, CollectorError> {
        if url.scheme_str() != Some("http") || url.port_u16().is_none() {
            return Err(CollectorError::NotHttp(url.clone()));
        }
        let exporter = OtlpExporter::builder()
            .with_tonic()
            .with_endpoint(url.to_string())
            .with_timeout(SEND_LIMIT)
            .build()?;
        let queue = Arc::new(Queue { waiting: AtomicUsize::new(0), counts, is_told: AtomicBool::new(false) });
        let exit =
            Exit { queue: Arc::clone(&queue), exporter: Arc::new(exporter), runtime: Handle::current() };
        let config = BatchConfigBuilder::default()
            // Twice what is let in: its own end is never reached.
            .with_max_queue_size(2 * MOST_WAITING)
            .with_max_export_batch_size(MOST_AT_A_TIME)
            .with_scheduled_delay(SEND_INTERVAL)
            .build();
        let batches = BatchSpanProcessor::builder(exit).with_batch_config(config).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Entrance { queue, batches })
            .with_resource(resource())
            .build();
        Ok(Self { provider })
    }

    /// Takes the spans of [`SPANS`] out of all that a process tells of.
    #[must_use]
    pub fn layer(&self) -> Box<dyn Layer<Subscribers> + Send + Sync> {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("etcd-guard"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(|metadata| metadata.target() == SPANS))
            .boxed()
    }

    /// Sends what is left, for a limited time.
    pub async fn flush(self) {
        let flushed =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH_LIMIT)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Who sends. `OTEL_RESOURCE_ATTRIBUTES` adds to it.
fn resource() -> Resource {
    let instance = std::env::var("HOSTNAME").ok().map(|it| KeyValue::new("service.instance.id", it));
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
    /// Shows the counts.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Spans that the collector took, that it did not, and that found no room to wait for it";
        registry.register("trace_spans", help, self.0.clone());
    }

    fn add(&self, result: &'static str, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.0.get_or_create(&ResultLabel { result }).inc_by(spans);
    }
}

// === impl Queue ===

impl Queue {
    /// Told once, until the collector takes spans again: every batch fails while it is gone.
    fn lose(&self, result: &'static str, spans: usize, cause: &str) {
        self.counts.add(result, spans);
        if !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                cause,
                "spans are lost, which no verdict waits for; etcd_guard_trace_spans_total counts them"
            );
        }
    }

    fn sent(&self, spans: usize) {
        self.counts.add("sent", spans);
        if self.is_told.swap(false, Ordering::Relaxed) {
            tracing::info!("the collector takes spans again");
        }
    }
}

// === impl Entrance ===

impl SpanProcessor for Entrance {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        if self.queue.waiting.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
            self.queue.lose("dropped", 1, "too many wait to be sent");
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

// === impl Exit ===

impl SpanExporter for Exit {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.queue.waiting.fetch_sub(spans, Ordering::Relaxed);
        let exporter = Arc::clone(&self.exporter);
        let sent = self.runtime.spawn(async move { timeout(SEND_LIMIT, exporter.export(batch)).await });
        match sent.await {
            Ok(Ok(Ok(()))) => self.queue.sent(spans),
            Ok(Ok(Err(error))) => self.queue.lose("failed", spans, &error.to_string()),
            Ok(Err(_)) => self.queue.lose("failed", spans, "the collector did not answer in time"),
            Err(_) => self.queue.lose("failed", spans, "the process ends"),
        }
        Ok(())
    }

    fn shutdown_with_timeout(&self, limit: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(limit)
    }

    fn set_resource(&mut self, resource: &Resource) {
        // Before the first batch, nobody else holds it.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

//! Traces: one span for each review, with the steps of its answer below it, sent to an OpenTelemetry collector.
//!
//! Any room may open a span under [`SPANS`]; they cost nothing while nobody collects them, and never stand in the log. What is
//! written into one leaves the cluster's own records: names and numbers that the log has too, never a body and never a
//! secret.

mod collector;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub use self::collector::{Collector, CollectorError, SpanCounts};

/// The target of all spans that are sent, and of nothing else.
pub const SPANS: &str = "etcd_guard_spans";

/// Makes a span part of the trace that its caller began, if the caller says so: an apiserver that traces its requests sends
/// a W3C `traceparent` to webhooks, too.
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    if span.is_disabled() || !headers.contains_key("traceparent") {
        return;
    }
    let context = TraceContextPropagator::new().extract(&Headers(headers));
    // It fails for a span that has begun, which this one has not.
    let _ = span.set_parent(context);
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

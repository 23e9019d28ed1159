//! Traces: one span per admission review, with child spans for the steps of its evaluation, exported to an
//! OpenTelemetry collector.
//!
//! Every module may open spans with the target [`SPAN_TARGET`]. Without a collector they are disabled and cost nothing.
//! They never appear in the log. Span attributes leave the cluster, so they contain only names and numbers that the log
//! contains as well: no request bodies, no secrets.

mod collector;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub(crate) use self::collector::Collector;

/// Attaches a span to the trace of its caller. An API server with tracing enabled sends a W3C `traceparent` header to
/// webhooks.
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    if span.is_disabled() || !headers.contains_key("traceparent") {
        return;
    }
    let context = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    // An error is returned only for a span that was entered already; this one was not.
    let _ = span.set_parent(context);
}

/// Reads the trace context from HTTP headers.
struct HeaderExtractor<'a>(&'a HeaderMap);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

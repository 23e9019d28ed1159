//! The trace span of a review. Its attributes are the fields of the log line.

use http::HeaderMap;
use tracing::{Span, field::Empty, info_span};

use crate::traces::continue_trace;
use etcd_guard_core::{
    escape::{MAX_NAME_CHARS, MAX_TEXT_CHARS, to_bounded_line},
    objects::admission::AdmissionRequest,
    request::{Operation, PodUpdate, Request},
    spans::SPAN_TARGET,
    verdict::Verdict,
};

/// Creates the span of a new review, as part of the caller's trace if there is one.
pub(super) fn start_review(name: &'static str, headers: &HeaderMap) -> Span {
    let span = info_span!(
        target: SPAN_TARGET,
        "review",
        otel.name = name,
        otel.kind = "server",
        uid = Empty,
        namespace = Empty,
        pod = Empty,
        resource = Empty,
        name = Empty,
        operation = Empty,
        user = Empty,
        dry_run = Empty,
        grace_period_seconds = Empty,
        verdict = Empty,
        reason = Empty,
        cluster = Empty,
        voters = Empty,
        healthy = Empty,
        quorum = Empty,
        message = Empty,
    );
    continue_trace(&span, headers);
    span
}

/// Returns the name of an operation in logs and spans.
pub(super) fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Delete => "delete",
        Operation::Evict => "evict",
        Operation::Update(PodUpdate::Restart) => "restart",
        Operation::Update(PodUpdate::End) => "end",
        Operation::Update(PodUpdate::Pause) => "pause",
        Operation::Workload(operation) => operation.as_str(),
    }
}

/// Records a verdict of the guard in the current span.
pub(super) fn record_verdict(uid: &str, request: &Request, verdict: &Verdict) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("uid", attribute(uid));
    span.record("namespace", attribute(&request.namespace));
    span.record("pod", attribute(&request.name));
    span.record("operation", operation_name(request.operation));
    span.record("user", attribute(&request.user));
    span.record("dry_run", request.dry_run);
    span.record("grace_period_seconds", request.grace_period_seconds);
    span.record("verdict", verdict.outcome());
    span.record("reason", verdict.reason.as_str());
    span.record("cluster", verdict.cluster.as_deref().map(attribute));
    if let Some(tally) = &verdict.tally {
        let counts = [("voters", tally.voters), ("healthy", tally.healthy), ("quorum", tally.quorum)];
        for (name, count) in counts {
            span.record(name, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    span.record("message", to_bounded_line(&verdict.line(), MAX_TEXT_CHARS));
}

/// Records a result that does not depend on an etcd cluster in the current span.
pub(super) fn record_result(request: &AdmissionRequest<'_>, allowed: bool, reason: &str) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("uid", attribute(&request.uid));
    span.record("namespace", request.namespace.as_deref().map(attribute));
    span.record("resource", attribute(&request.resource.resource));
    span.record("name", request.name.as_deref().map(attribute));
    span.record("operation", attribute(&request.operation));
    span.record("dry_run", request.dry_run);
    span.record("verdict", if allowed { "allowed" } else { "denied" });
    span.record("reason", reason);
}

/// Returns a text of the review as an attribute: collectors show attributes on terminals as well.
fn attribute(text: &str) -> String {
    to_bounded_line(text, MAX_NAME_CHARS)
}

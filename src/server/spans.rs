//! The span of a review: what its line in the log says, for who collects traces.

use http::HeaderMap;
use tracing::{Span, field::Empty, info_span};

use crate::{
    guard::{Operation, Request, Verdict},
    k8s::admission::{AdmissionRequest, clipped},
    traces::{SPANS, continue_trace},
};

/// The span of a review that just came in, within its caller's trace, if there is one.
pub(super) fn begin(name: &'static str, headers: &HeaderMap) -> Span {
    let span = info_span!(
        target: SPANS,
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

/// The word of an operation, in the log and in spans.
pub(super) fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Delete => "delete",
        Operation::Evict => "evict",
        Operation::Intent(intent) => intent.word(),
    }
}

/// Writes a verdict of the guard's into the span that is open.
pub(super) fn tell_verdict(uid: &str, request: &Request, verdict: &Verdict) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("uid", clipped(uid));
    span.record("namespace", &request.namespace);
    span.record("pod", &request.name);
    span.record("operation", word(request.operation));
    span.record("user", &request.user);
    span.record("dry_run", request.dry_run);
    span.record("grace_period_seconds", request.grace_period_seconds);
    span.record("verdict", verdict.word());
    span.record("reason", verdict.reason.word());
    span.record("cluster", &verdict.cluster);
    if let Some(tally) = &verdict.tally {
        let numbers = [("voters", tally.voters), ("healthy", tally.healthy), ("quorum", tally.quorum)];
        for (name, number) in numbers {
            span.record(name, i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
    span.record("message", &verdict.message);
}

/// Writes an answer that hangs on no etcd cluster into the span that is open.
pub(super) fn tell_answer(uid: &str, request: &AdmissionRequest<'_>, allowed: bool, reason: &str) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("uid", clipped(uid));
    span.record("namespace", request.namespace.as_deref());
    span.record("resource", request.resource.resource.as_ref());
    span.record("name", request.name.as_deref());
    span.record("operation", request.operation.as_ref());
    span.record("dry_run", request.dry_run);
    span.record("verdict", if allowed { "allowed" } else { "denied" });
    span.record("reason", reason);
}

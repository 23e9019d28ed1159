//! Metrics of the calls to the Kubernetes API server.

use http::{Method, Uri};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use etcd_guard_cli::client::ObservedCall;
use etcd_guard_kubernetes::watch_restarts;

/// Upper bounds in seconds: from a read that the API server answers from memory to one that runs into the timeout.
const DURATION_BUCKETS: [f64; 8] = [0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 3.0];

/// The code of a call without a response.
const NO_RESPONSE: &str = "none";

/// Metrics of the calls to the API server. Clones share the values.
#[derive(Clone)]
pub(crate) struct ApiServerMetrics {
    calls: Family<CallLabels, Counter>,
    durations: Family<VerbLabel, Histogram>,
}

/// The verb of a call and the status of its response.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    verb: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabel {
    verb: &'static str,
}

// === impl ApiServerMetrics ===

impl Default for ApiServerMetrics {
    fn default() -> Self {
        Self {
            calls: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
        }
    }
}

impl ApiServerMetrics {
    /// Registers the metrics.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "api_server_calls",
            "Calls to the Kubernetes API server by verb and HTTP status; a watch is called again every 30 s",
            self.calls.clone(),
        );
        registry.register_with_unit(
            "api_server_call_duration",
            "Time until the Kubernetes API server starts to respond",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register(
            "api_server_watch_restarts",
            "Watches that failed or whose version expired, and that started again with a new list",
            watch_restarts(),
        );
    }

    /// Counts a call.
    pub(crate) fn record(&self, call: &ObservedCall) {
        let verb = verb(&call.method, &call.uri);
        let code =
            call.status.map_or_else(|| String::from(NO_RESPONSE), |status| status.as_u16().to_string());
        self.calls.get_or_create(&CallLabels { verb, code }).inc();
        self.durations.get_or_create(&VerbLabel { verb }).observe(call.duration.as_secs_f64());
    }
}

/// Returns the verb of a call, as in a Role.
fn verb(method: &Method, uri: &Uri) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ if is_watch(uri) => "watch",
        _ if is_collection(uri.path()) => "list",
        _ => "get",
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(|field| field == "watch=true" || field == "watch=1")
}

/// Whether a path names all objects of a resource: `/api/v1/pods`, `/apis/apps/v1/namespaces/NAMESPACE/statefulsets`.
fn is_collection(path: &str) -> bool {
    let mut segments: Vec<_> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let prefix = match segments.first() {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        _ => return false,
    };
    segments.drain(..prefix.min(segments.len()));
    if segments.len() > 2 && segments.first() == Some(&"namespaces") {
        segments.drain(..2);
    }
    segments.len() == 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;

    #[test]
    fn verbs_are_those_of_roles() {
        for (method, uri, expected) in [
            (Method::GET, "/version", "get"),
            (Method::GET, "/api/v1/namespaces?watch=true", "watch"),
            (Method::GET, "/api/v1/namespaces", "list"),
            (Method::GET, "/api/v1/namespaces/prod", "get"),
            (Method::GET, "/api/v1/namespaces/prod/pods?limit=100", "list"),
            (Method::GET, "/api/v1/namespaces/prod/pods/etcd-0", "get"),
            (Method::GET, "/apis/apps/v1/namespaces/prod/statefulsets?watch=1&limit=1", "watch"),
            (Method::PATCH, "/api/v1/nodes/node-1/status", "patch"),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases/a", "update"),
        ] {
            assert_eq!(verb(&method, &uri.parse().unwrap()), expected, "{uri}");
        }
    }

    #[test]
    fn calls_are_counted_by_verb_and_code() {
        let metrics = ApiServerMetrics::default();
        for status in [Some(StatusCode::OK), Some(StatusCode::OK), Some(StatusCode::NOT_FOUND), None] {
            let uri = Uri::from_static("/api/v1/namespaces/prod/pods/etcd-0");
            metrics.record(&ObservedCall { method: Method::GET, uri, status, duration: Duration::ZERO });
        }
        let count = |code: &str| {
            metrics.calls.get_or_create(&CallLabels { verb: "get", code: code.to_owned() }).get()
        };
        assert_eq!((count("200"), count("404"), count("none")), (2, 1, 1));
    }
}

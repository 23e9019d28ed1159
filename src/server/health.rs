//! The second port, plain HTTP: whether the process lives, whether it should get requests, and its metrics.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, header};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{TypedMetric, gauge::ConstGauge},
    registry::Registry,
};

use super::metrics;

/// Whether the server should get requests. Its copies share one state.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    apiserver_answered: Arc<AtomicBool>,
    certificate_trusted: Arc<AtomicBool>,
    stopping: Arc<AtomicBool>,
}

/// What the routes show.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) readiness: Readiness,
    pub(super) registry: Arc<Registry>,
}

/// The routes of the second port.
pub(super) fn routes(health: Health) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(show_metrics))
        .with_state(health)
}

async fn readyz(State(health): State<Health>) -> Response {
    match health.readiness.obstacle() {
        None => (StatusCode::OK, "ok\n").into_response(),
        // As an apiserver's own `/readyz`: kubectl shows the words beside a 500, and of a 503 only that it is one.
        Some(obstacle) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{obstacle}\n")).into_response(),
    }
}

async fn show_metrics(State(health): State<Health>) -> Response {
    match metrics::render(&health.registry) {
        Ok(page) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

// === impl Readiness ===

impl Readiness {
    /// The apiserver answered this process for the first time.
    pub fn apiserver_answered(&self) {
        self.apiserver_answered.store(true, Ordering::Relaxed);
    }

    /// Whether a certificate is served that the apiserver trusts, as far as this process can know.
    pub fn certificate_trusted(&self, trusted: bool) {
        self.certificate_trusted.store(trusted, Ordering::Relaxed);
    }

    /// The process was told to stop: it serves on, but wants no new callers.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether the process was told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Shows it: whoever scrapes all replicas sees whether any of them would get requests.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    fn obstacle(&self) -> Option<&'static str> {
        if self.is_stopping() {
            Some("stopping")
        } else if !self.apiserver_answered.load(Ordering::Relaxed) {
            Some("the apiserver has not answered yet")
        } else if self.certificate_trusted.load(Ordering::Relaxed) {
            None
        } else {
            Some("no certificate is served that the apiserver would accept")
        }
    }
}

impl Collector for Readiness {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = ConstGauge::new(i64::from(self.obstacle().is_none()));
        let help = "Whether this replica wants to be asked, as /readyz says: 1 or 0";
        gauge.encode(encoder.encode_descriptor("ready", help, None, ConstGauge::<i64>::TYPE)?)
    }
}

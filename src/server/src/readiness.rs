//! Readiness of the server, for `/readyz` and as a metric.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{TypedMetric, gauge::ConstGauge},
    registry::Registry,
};

/// Whether the server should receive requests. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    apiserver_answered: Arc<AtomicBool>,
    certificate_trusted: Arc<AtomicBool>,
    stopping: Arc<AtomicBool>,
}

// === impl Readiness ===

impl Readiness {
    /// Records that the API server has responded to this process.
    pub(crate) fn set_apiserver_answered(&self) {
        self.apiserver_answered.store(true, Ordering::Relaxed);
    }

    /// Records whether a certificate is served that the API server trusts, as far as this process can determine.
    pub(crate) fn set_certificate_trusted(&self, trusted: bool) {
        self.certificate_trusted.store(trusted, Ordering::Relaxed);
    }

    /// Records that the process is stopping: it continues to serve, but should receive no new requests.
    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Returns whether the process is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Registers the metric. It shows for all replicas at once whether any of them is ready.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// Returns why the server is not ready.
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        if self.is_stopping() {
            Some("stopping")
        } else if !self.apiserver_answered.load(Ordering::Relaxed) {
            Some("the API server has not responded yet")
        } else if self.certificate_trusted.load(Ordering::Relaxed) {
            None
        } else {
            Some("no certificate is served that the API server would accept")
        }
    }
}

impl Collector for Readiness {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = ConstGauge::new(i64::from(self.obstacle().is_none()));
        let help = "Whether this replica is ready, as reported by /readyz: 1 or 0";
        gauge.encode(encoder.encode_descriptor("ready", help, None, ConstGauge::<i64>::TYPE)?)
    }
}

//! The certificate that new connections get.

use std::sync::{Arc, atomic::AtomicU64};

use arc_swap::ArcSwapOption;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::certificate_pair::CertificatePair;

/// The certificate that new connections get, and metrics about its replacements. Clones share one state.
///
/// Without a certificate every handshake fails, so that a server without a trusted certificate answers no request.
#[derive(Clone, Debug, Default)]
pub struct ServedCertificate {
    pair: Arc<ArcSwapOption<CertificatePair>>,
    reloads: Family<ReloadLabels, Counter<u64, AtomicU64>>,
    expiry: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: &'static str,
}

// === impl ServedCertificate ===

impl ServedCertificate {
    /// Serves this certificate to new connections.
    pub fn replace(&self, pair: CertificatePair) {
        self.expiry.set(pair.expiry());
        self.pair.store(Some(Arc::new(pair)));
        self.reloads.get_or_create(&ReloadLabels { result: "success" }).inc();
    }

    /// Returns whether a certificate is served that is valid at this time, in seconds since 1970.
    pub fn is_valid(&self, now: i64) -> bool {
        self.pair.load().as_ref().is_some_and(|pair| (pair.start()..=pair.expiry()).contains(&now))
    }

    /// Counts a new certificate that was unusable. The previous one stays in use.
    pub(crate) fn count_failure(&self) {
        self.reloads.get_or_create(&ReloadLabels { result: "failure" }).inc();
    }

    /// Registers the metrics.
    pub(crate) fn register(&self, registry: &mut Registry) {
        // Both results exist from the start, so that an alert on the rate of failures has a series.
        for result in ["success", "failure"] {
            drop(self.reloads.get_or_create(&ReloadLabels { result }));
        }
        registry.register(
            "certificate_reloads",
            "Replacements of the served certificate by result: success, or failure while the old one stays in use",
            self.reloads.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "Expiry of the served certificate, in seconds since 1970; 0 without a certificate",
            self.expiry.clone(),
        );
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.pair.load().as_ref().map(|pair| Arc::clone(&pair.certified))
    }
}

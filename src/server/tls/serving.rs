//! The pair that is served now.

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

use super::Pair;

/// The pair that new connections get, and what is counted of its changes. Copies share one state.
///
/// Without a pair every handshake fails: that is what a server without a trusted certificate has to say.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    pair: Arc<ArcSwapOption<Pair>>,
    reloads: Family<ReloadLabels, Counter<u64, AtomicU64>>,
    expiry: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: &'static str,
}

// === impl Serving ===

impl Serving {
    /// Shows this pair from now on.
    pub fn replace(&self, pair: Pair) {
        self.expiry.set(pair.expiry());
        self.pair.store(Some(Arc::new(pair)));
        self.reloads.get_or_create(&ReloadLabels { result: "success" }).inc();
    }

    /// Whether there is a pair, and its certificate is valid at this time, in seconds since 1970.
    #[must_use]
    pub fn is_valid(&self, now: i64) -> bool {
        self.pair.load().as_ref().is_some_and(|pair| (pair.start()..=pair.expiry()).contains(&now))
    }

    /// Counts a pair that could not be used; what was served still is.
    pub fn count_failure(&self) {
        self.reloads.get_or_create(&ReloadLabels { result: "failure" }).inc();
    }

    /// Registers what is counted.
    pub(in crate::server) fn register(&self, registry: &mut Registry) {
        // Both from the start, so that an alert on the rate of failures has something to look at.
        for result in ["success", "failure"] {
            drop(self.reloads.get_or_create(&ReloadLabels { result }));
        }
        registry.register(
            "certificate_reloads",
            "Certificates that were taken into use (success), or found unusable while the old one stayed (failure)",
            self.reloads.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When the served certificate ends, in seconds since 1970; 0 without one",
            self.expiry.clone(),
        );
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.pair.load().as_ref().map(|pair| Arc::clone(&pair.certified))
    }
}

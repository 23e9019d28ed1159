//! The addresses of the API servers, at which the guard probes no member.
//!
//! The guard reaches the API server through the Service `kubernetes`. The processes behind this Service also listen at
//! addresses of their own, which the guard reads at the first evaluation that needs them, and again from time to time.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use etcd_guard_kubernetes::ApiReader;

/// Time after which the addresses are read again. API servers are replaced seldom.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);

/// Time after which a failed read is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The addresses of the API servers.
#[derive(Clone)]
pub struct ApiServers {
    /// Absent if the addresses are fixed.
    reader: Option<ApiReader>,
    /// The address of the client's connections, as `HOST:PORT`.
    configured: Arc<[String]>,
    known: Arc<Mutex<Known>>,
    /// Held during a read, so that concurrent evaluations share it.
    reading: Arc<tokio::sync::Mutex<()>>,
}

/// The addresses that were read.
#[derive(Default)]
struct Known {
    /// `HOST:PORT`; absent before the first read.
    addresses: Option<Vec<String>>,
    next_read: Option<Instant>,
}

// === impl ApiServers ===

impl ApiServers {
    /// Creates a reader of the addresses. `configured` are the addresses of the client's connections, as `HOST:PORT`.
    pub fn new(reader: &ApiReader, configured: Vec<String>) -> Self {
        let reader = Some(reader.for_background_tasks());
        Self { reader, configured: configured.into(), known: Arc::default(), reading: Arc::default() }
    }

    /// Creates a list of addresses, each as `HOST:PORT`, that does not change.
    pub fn fixed(addresses: Vec<String>) -> Self {
        let known = Known { addresses: Some(Vec::new()), next_read: None };
        Self {
            reader: None,
            configured: addresses.into(),
            known: Arc::new(Mutex::new(known)),
            reading: Arc::default(),
        }
    }

    /// Returns all addresses as `HOST:PORT`. Returns `None` if no read has succeeded before the deadline.
    pub(super) async fn addresses(&self, deadline: Instant) -> Option<Vec<String>> {
        // If the deadline passes, the earlier addresses apply.
        let _ = timeout_at(deadline, self.refresh()).await;
        let known = self.lock();
        let addresses = known.addresses.as_ref()?;
        Some(self.configured.iter().chain(addresses).cloned().collect())
    }

    /// Reads the addresses if they are due.
    async fn refresh(&self) {
        let Some(reader) = &self.reader else { return };
        let _reading = self.reading.lock().await;
        let now = Instant::now();
        let is_due = {
            let mut known = self.lock();
            let is_due = known.next_read.is_none_or(|next_read| next_read <= now);
            if is_due && known.addresses.is_some() {
                known.next_read = Some(now + RETRY_INTERVAL);
            }
            is_due
        };
        if is_due && let Some(addresses) = read(reader).await {
            *self.lock() = Known { addresses: Some(addresses), next_read: Some(now + REFRESH_INTERVAL) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the addresses of all API servers, and the address that the responding one advertises. The second read needs no
/// permission of its own. Either one is sufficient.
async fn read(reader: &ApiReader) -> Option<Vec<String>> {
    let (endpoints, advertised) =
        tokio::join!(reader.endpoints_of_api_servers(), reader.advertised_api_server());
    if let Err(error) = &endpoints {
        tracing::warn!(
            %error,
            "the addresses of the API servers are not known completely; member lists can make the guard connect to the others"
        );
    }
    match (endpoints, advertised) {
        (Err(_), Err(_)) => None,
        (endpoints, advertised) => {
            Some(endpoints.into_iter().flatten().chain(advertised.into_iter().flatten()).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use etcd_guard_kubernetes::fake::{api_server, api_server_with, status_failure};

    const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

    fn slice(address: &str) -> Value {
        json!({"endpoints": [{"addresses": [address]}], "ports": [{"port": 6443}]})
    }

    fn versions(address: &str) -> Value {
        json!({"serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]})
    }

    async fn addresses(servers: &ApiServers) -> Option<Vec<String>> {
        servers.addresses(Instant::now() + Duration::from_secs(1)).await
    }

    fn servers(reader: &ApiReader) -> ApiServers {
        ApiServers::new(reader, vec![String::from("10.96.0.1:443")])
    }

    #[tokio::test]
    async fn reads_advertised_address_without_permission() {
        let forbidden = status_failure(403, "forbidden");
        let client = api_server([(SLICE, 403, forbidden.clone()), ("/api", 200, versions("192.0.2.7:6443"))]);
        let known = addresses(&servers(&ApiReader::new(client))).await.unwrap();
        assert_eq!(known, ["10.96.0.1:443", "192.0.2.7:6443"]);

        let client = api_server([(SLICE, 403, forbidden.clone()), ("/api", 403, forbidden)]);
        assert_eq!(addresses(&servers(&ApiReader::new(client))).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_addresses_again_after_an_interval() {
        let reads = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reads);
        let client = api_server_with(move |call, _| match call.uri.path() {
            SLICE => {
                let read = count.fetch_add(1, Ordering::Relaxed);
                // The second read fails.
                let failure = (503, status_failure(503, "unavailable"));
                if read == 1 { failure } else { (200, slice(&format!("192.0.2.{read}"))) }
            }
            _ => (503, status_failure(503, "unavailable")),
        });
        let servers = servers(&ApiReader::new(client));
        for expected in ["192.0.2.0:6443", "192.0.2.0:6443"] {
            assert_eq!(addresses(&servers).await.unwrap(), ["10.96.0.1:443", expected]);
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        tokio::time::advance(REFRESH_INTERVAL).await;
        assert_eq!(addresses(&servers).await.unwrap(), ["10.96.0.1:443", "192.0.2.0:6443"], "a failed read");
        tokio::time::advance(RETRY_INTERVAL).await;
        assert_eq!(addresses(&servers).await.unwrap(), ["10.96.0.1:443", "192.0.2.2:6443"]);
        assert_eq!(reads.load(Ordering::Relaxed), 3);
    }
}

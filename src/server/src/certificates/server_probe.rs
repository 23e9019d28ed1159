//! A TLS handshake with the servers that mount the Secret. It proves that the API server would accept one of them.

use std::{fmt, sync::Arc, time::Duration};

use rustls::{
    ClientConfig,
    crypto::CryptoProvider,
    pki_types::{ServerName, UnixTime},
    time_provider::TimeProvider,
};
use time::OffsetDateTime;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use super::certificate_set::{CertificateSet, unix_time};

/// Timeout of a probe: a server in the cluster completes a handshake within milliseconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The address by which the API server reaches the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    /// A DNS name or an IP address, which the certificate contains.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The time of the API server, because this process may have another clock.
#[derive(Debug)]
struct FixedTime(UnixTime);

// === impl ServerAddress ===

impl ServerAddress {
    /// Completes a handshake with a server that uses this set. The error is the cause of a failure.
    pub(super) async fn probe(
        &self,
        set: &CertificateSet,
        now: OffsetDateTime,
        provider: &Arc<CryptoProvider>,
    ) -> Result<(), String> {
        let text = |error: &dyn fmt::Display| error.to_string();
        let roots = set.roots().map_err(|error| text(&error))?;
        let time = Arc::new(FixedTime(unix_time(now)));
        let config = ClientConfig::builder_with_details(Arc::clone(provider), time)
            .with_safe_default_protocol_versions()
            .map_err(|error| text(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(self.host.clone()).map_err(|error| text(&error))?;
        let handshake = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            TlsConnector::from(Arc::new(config)).connect(name, stream).await
        };
        match timeout(PROBE_TIMEOUT, handshake).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(text(&error)),
            Err(_) => Err(format!("no TLS handshake within {}", humantime::format_duration(PROBE_TIMEOUT))),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(formatter, "[{host}]:{port}")
        } else {
            write!(formatter, "{host}:{port}")
        }
    }
}

impl TimeProvider for FixedTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

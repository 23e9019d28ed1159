//! A TLS handshake that reads the certificate chain of a server without a decision about it.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use rustls::{
    ClientConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::etcd::AnyCertificate;

/// Timeout of a handshake: through a port-forward it completes within milliseconds.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the certificate chain that a server sends for this name. No data is sent over the connection.
pub(super) async fn read_chain(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    server_name: &str,
) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate::with_key()))
        .with_no_client_auth();
    let name = ServerName::try_from(server_name.to_owned())?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let connection = timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .with_context(|| {
            format!("no TLS handshake within {}", humantime::format_duration(HANDSHAKE_TIMEOUT))
        })?
        .context("the TLS handshake failed")?;
    let (_, session) = connection.get_ref();
    let chain = session.peer_certificates().context("the server sent no certificate")?;
    Ok(chain.iter().cloned().map(CertificateDer::into_owned).collect())
}

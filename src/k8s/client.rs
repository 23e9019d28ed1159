//! The client for the API server, with `TCP_NODELAY`.

use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client,
    client::{Body, ConfigExt as _},
};
use tower::{BoxError, ServiceBuilder};

/// Creates a client for the API server that sends each request at once.
///
/// The connections of [`Client::try_from`] use Nagle's algorithm (kube issue 2056): the first request of a connection waits until
/// the API server has acknowledged the end of the TLS handshake, for up to 50 ms (decision 76).
///
/// The client does not log calls. It does not retry either: kube retries up to fifteen times with the delay that the server
/// requests, which would exceed the deadline of an evaluation (decision 15).
///
/// # Errors
///
/// Returns an error if the certificates, the credentials or the impersonated identity of the configuration are invalid, or if it has
/// a proxy, which the program does not support.
pub(crate) fn client(config: kube::Config) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let client: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(Client::new(service, config.default_namespace))
}

/// Returns a connector that disables Nagle's algorithm.
fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The connector of TLS passes URLs with the scheme https.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn connections_have_no_delay() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let connection = connector().oneshot(url).await.unwrap();
        assert!(connection.inner().nodelay().unwrap());
    }

    #[tokio::test]
    async fn proxies_remain_unsupported() {
        let mut config = kube::Config::new("https://127.0.0.1:6443".parse().unwrap());
        config.proxy_url = Some("http://127.0.0.1:3128".parse().unwrap());
        let error = client(config).err().unwrap();
        assert!(matches!(error, kube::Error::ProxyProtocolDisabled { .. }), "{error}");
    }
}

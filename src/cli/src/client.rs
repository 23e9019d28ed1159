//! The client for the API server, with `TCP_NODELAY`.

use std::time::{Duration, Instant};

use http::{Method, Request, StatusCode, Uri};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client,
    client::{Body, ConfigExt as _},
};
use tower::{BoxError, ServiceBuilder, service_fn};

/// Creates a client for the API server that sends each request at once.
///
/// The connections of [`Client::try_from`] use Nagle's algorithm (kube issue 2056): the first request of a connection waits until
/// the API server has acknowledged the end of the TLS handshake, for up to 50 ms (decision 39).
///
/// The client does not log calls. It does not retry either: kube retries up to fifteen times with the delay that the server
/// requests, which would exceed the deadline of an evaluation (decision 39).
///
/// # Errors
///
/// Returns an error if the certificates, the credentials or the impersonated identity of the configuration are invalid, or if it has
/// a proxy, which the program does not support.
pub fn client(config: kube::Config) -> kube::Result<Client> {
    observed_client(config, |_| {})
}

/// A call to the API server.
#[derive(Debug)]
pub struct ObservedCall {
    /// The HTTP method.
    pub method: Method,
    /// The URL.
    pub uri: Uri,
    /// The status of the response; `None` without a response.
    pub status: Option<StatusCode>,
    /// The time until the response began.
    pub duration: Duration,
}

/// Creates a client as [`client`] does, which passes each call to `on_call` when its response begins.
///
/// # Errors
///
/// As [`client`].
pub fn observed_client(
    config: kube::Config,
    on_call: impl Fn(ObservedCall) + Clone + Send + Sync + 'static,
) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    // Before the TLS settings, which also run an exec plugin, and ignore its failure. In the other order, a failing plugin would
    // run twice.
    let auth_layer = config.auth_layer()?;
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let client: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let send = service_fn(move |request: Request<Body>| {
        let (method, uri, started) = (request.method().clone(), request.uri().clone(), Instant::now());
        let (response, on_call) = (client.request(request), on_call.clone());
        async move {
            let response = response.await;
            let status = response.as_ref().ok().map(http::Response::status);
            on_call(ObservedCall { method, uri, status, duration: started.elapsed() });
            response
        }
    });
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(auth_layer)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(send);
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
    use std::fs;

    use serde_json::json;

    use super::*;

    /// Returns a configuration without certificates of the system.
    fn config(url: &str) -> kube::Config {
        let mut config = kube::Config::new(url.parse().unwrap());
        config.root_cert = Some(Vec::new());
        config
    }

    #[tokio::test]
    async fn failing_plugin_runs_once() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let mut config = config("https://127.0.0.1:6443");
        let plugin = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", format!("echo run >> '{}'; exit 1", runs.display())],
            "interactiveMode": "Never",
        });
        config.auth_info = serde_json::from_value(json!({ "exec": plugin })).unwrap();
        let error = client(config).err().unwrap();
        assert!(matches!(error, kube::Error::Auth(_)), "{error}");
        assert_eq!(fs::read_to_string(runs).unwrap(), "run\n");
    }

    #[tokio::test]
    async fn proxies_remain_unsupported() {
        let mut config = config("https://127.0.0.1:6443");
        config.proxy_url = Some("http://127.0.0.1:3128".parse().unwrap());
        let error = client(config).err().unwrap();
        assert!(matches!(error, kube::Error::ProxyProtocolDisabled { .. }), "{error}");
    }
}

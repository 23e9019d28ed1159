//! Connections: HTTPS for the API server, plain HTTP on the admin port.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use http::{HeaderValue, Request, header};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{io::BufReader, net::TcpStream, time::timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{readiness::Readiness, slots::Usage};

/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of the read buffer of a connection in bytes: a TLS record of maximum length. rustls alone reads 4 KiB at a
/// time, which takes three system calls for a common review.
const READ_BUFFER_SIZE: usize = (16 << 10) + 256;

/// Maximum time for a connection to be idle or to send the head of a request. The API server closes idle connections
/// after 90 s. A connection that this server closes first can lose the next request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum size in bytes of the buffer for the head of a request, and for a piece of its body. The default of hyper is
/// 400 KiB, so that [`MAX_CONNECTIONS`](super::MAX_CONNECTIONS) slow clients could occupy 200 MiB.
const MAX_BUFFER_SIZE: usize = 32 << 10;

/// The same on the admin port. It is short because clients reconnect at no cost there, and idle connections keep other
/// clients out.
const ADMIN_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the first request of a new connection to arrive after the listener is closed.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the peer of an admin connection has a loopback address.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsLoopbackPeer(pub(super) bool);

/// Serves one connection of the admin port.
pub(super) async fn serve_admin_connection(stream: TcpStream, usage: Arc<Usage>, router: Router) {
    let is_loopback = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(IsLoopbackPeer(is_loopback));
        let (router, in_progress) = (router.clone(), usage.start_review());
        async move {
            let response = router.oneshot(request).await?;
            // The request is in progress until its response is sent.
            Ok::<_, Infallible>(response.map(|body| {
                body.map_frame(move |frame| {
                    let _held = &in_progress;
                    frame
                })
            }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_IDLE_TIMEOUT)
        .max_buf_size(MAX_BUFFER_SIZE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection ended with an error");
    }
}

/// Serves one HTTPS connection. After `close`, it finishes the current request, or waits a moment for the first one.
pub(super) async fn serve_connection(
    stream: TcpStream,
    usage: Arc<Usage>,
    tls: TlsAcceptor,
    router: Router,
    readiness: Readiness,
    close: CancellationToken,
) {
    // Responses are small and complete. Nagle's algorithm would only delay them.
    let _ = stream.set_nodelay(true);
    let stream = BufReader::with_capacity(READ_BUFFER_SIZE, stream);
    let stream = match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!("TLS handshake timed out");
            return;
        }
    };
    let first_request = CancellationToken::new();
    let first_request_arrived = first_request.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        first_request.cancel();
        usage.start_request();
        request.extensions_mut().insert(Arc::clone(&usage));
        let (router, readiness) = (router.clone(), readiness.clone());
        async move {
            let mut response = router.oneshot(request).await?;
            if readiness.is_stopping() {
                // Lets the client open its next connection to another replica, before this one is closed.
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(MAX_BUFFER_SIZE)
            .serve_connection(TokioIo::new(stream), service)
    );
    let closing = async {
        close.cancelled().await;
        // A client that has just connected is about to send a request, which would fail if the connection closed now.
        let _ = timeout(FIRST_REQUEST_TIMEOUT, first_request_arrived.cancelled()).await;
    };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = closing => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended with an error");
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Mutex};

    use axum::{body::Body, routing::get};
    use bytes::Bytes;
    use futures::channel::mpsc;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::sleep,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    async fn read_until(client: &mut TcpStream, end: &str) {
        let mut text = Vec::new();
        while !String::from_utf8_lossy(&text).contains(end) {
            let count = timeout(LIMIT, client.read_buf(&mut text)).await.unwrap().unwrap();
            assert_ne!(count, 0, "the connection is closed before {end:?}");
        }
    }

    #[tokio::test]
    async fn admin_request_is_in_progress_until_its_response_is_sent() {
        let (parts, body) = mpsc::unbounded::<io::Result<Bytes>>();
        let body = Arc::new(Mutex::new(Some(Body::from_stream(body))));
        let router = Router::new().route("/", get(|| async move { body.lock().unwrap().take().unwrap() }));
        let usage = Arc::new(Usage::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let server = tokio::spawn(serve_admin_connection(accepted, Arc::clone(&usage), router));

        client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        parts.unbounded_send(Ok(Bytes::from_static(b"first part"))).unwrap();
        read_until(&mut client, "first part").await;
        assert!(usage.is_in_progress(), "the rest of the response is missing");

        drop(parts);
        read_until(&mut client, "0\r\n\r\n").await;
        timeout(LIMIT, async {
            while usage.is_in_progress() {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
        drop(client);
        timeout(LIMIT, server).await.unwrap().unwrap();
    }
}

//! The webhook server: HTTPS for the apiserver, plain HTTP on a second port for the kubelet and for Prometheus.
//!
//! It knows of reviews and verdicts, and never of etcd. Its life: bind both ports, serve, be told to stop, fail readiness
//! and serve on while callers turn away, stop accepting, let requests finish, end.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod health;
mod inspect;
mod metrics;
mod mutate;
mod pod_names;
mod review;
mod routes;
mod spans;
pub mod tls;

use std::{io, iter, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use http::{HeaderValue, Request, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinError,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

pub(crate) use self::routes::HARMLESS;
use self::tls::Tls;
pub use self::{health::Readiness, inspect::Preview, mutate::Mutator};
use crate::guard::Guard;

/// Longest that a TLS handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// What is read of a connection at a time: a record of TLS at its longest. rustls alone reads 4 KiB at a time, and so asks
/// the kernel three times for a common review.
const RECORD_LENGTH: usize = (16 << 10) + 256;

/// Longest that a connection may be idle, or take to send a request's head. The apiserver keeps idle connections for
/// 90 s: one that the server closes first can swallow the next request.
const IDLE_LIMIT: Duration = Duration::from_secs(120);

/// The most connections at a time; an apiserver keeps 25 to a host. Further ones wait to be accepted, so that some of the
/// 1,024 descriptors that a process commonly has are left to ask members with.
const MOST_CONNECTIONS: usize = 512;

/// The same on the plain port, where a kubelet and a Prometheus ask now and then.
const MOST_ADMIN_CONNECTIONS: usize = 64;

/// The same as [`IDLE_LIMIT`] there: nobody minds to connect anew, and who says nothing keeps others out.
const ADMIN_IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Pause after an accept that failed, for instance for want of file descriptors: trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Longest that a new connection may take to bring its first request after the listener is closed.
const FIRST_REQUEST_LIMIT: Duration = Duration::from_secs(1);

/// Longest that requests may take to finish after the listener is closed: as long as the apiserver would wait.
const FINISH_LIMIT: Duration = Duration::from_secs(30);

/// A server that has its ports, so that nothing but time stands between it and its first request.
pub struct Server {
    webhooks: TcpListener,
    admin: TcpListener,
    tls: TlsAcceptor,
    guard: Arc<Guard>,
    router: Router,
    admin_router: Router,
    readiness: Readiness,
    survey_interval: Option<Duration>,
}

/// Where a server listens and how it ends.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the HTTPS port.
    pub listen: SocketAddr,
    /// Address of the plain port.
    pub admin_listen: SocketAddr,
    /// How often to look at all guarded clusters without being asked; never without it.
    pub survey_interval: Option<Duration>,
}

/// A port that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {address}: {cause}")]
pub struct BindError {
    flag: &'static str,
    address: SocketAddr,
    cause: io::Error,
}

/// Makes a guard and registers what it counts.
pub type MakeGuard<'a> = &'a dyn Fn(&mut Registry) -> Guard;

// === impl Server ===

impl Server {
    /// Takes both ports.
    pub async fn bind(
        options: &Options,
        tls: Tls,
        make_guard: MakeGuard<'_>,
        mutator: Mutator,
    ) -> Result<Self, BindError> {
        let mut registry = Registry::with_prefix("etcd_guard");
        let metrics = metrics::Metrics::register(&mut registry);
        tls.serving.register(&mut registry);
        let guard = Arc::new(make_guard(&mut registry));
        mutator.register(&mut registry);
        let readiness = Readiness::default();
        readiness.register(&mut registry);
        let health = health::Health { readiness: readiness.clone(), registry: Arc::new(registry) };
        let webhooks = Arc::new(routes::Webhooks::new(Arc::clone(&guard), mutator, metrics));
        Ok(Self {
            webhooks: bind("--listen", options.listen).await?,
            admin: bind("--admin-listen", options.admin_listen).await?,
            tls: TlsAcceptor::from(Arc::new(tls.config)),
            router: routes::routes(Arc::clone(&webhooks)),
            guard,
            admin_router: health::routes(health).merge(inspect::routes(webhooks)),
            readiness,
            survey_interval: options.survey_interval,
        })
    }

    /// Switches that others turn.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// The addresses that were taken, HTTPS first: with port 0 they tell which.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.webhooks.local_addr()?, self.admin.local_addr()?))
    }

    /// Serves until `stop`; then fails readiness and serves on for `linger`, closes the listener, and lets accepted
    /// requests finish.
    pub async fn serve(self, stop: CancellationToken, linger: Duration) -> io::Result<()> {
        let Self { webhooks, admin, tls, guard, router, admin_router, readiness, survey_interval } = self;
        let over = CancellationToken::new();
        let admin_over = over.clone();
        let mut admin = tokio::spawn(async move {
            let serve = |stream| serve_admin_connection(stream, admin_router.clone());
            accept(admin, MOST_ADMIN_CONNECTIONS, admin_over, serve).await;
        });

        let mut housekeeping = tokio::spawn(async move { guard.keep_house(survey_interval).await });
        let close = CancellationToken::new();
        let closing = close.clone();
        let stopping = readiness.clone();
        let mut accepting = tokio::spawn(async move {
            let serve = |stream| {
                serve_connection(stream, tls.clone(), router.clone(), stopping.clone(), closing.clone())
            };
            accept(webhooks, MOST_CONNECTIONS, closing.clone(), serve).await;
        });
        // None of them ends by itself. Without one of them we would look alive and not be: a new start is better.
        tokio::select! {
            () = stop.cancelled() => {}
            ended = &mut accepting => return Err(ended_early("accepting reviews", ended)),
            ended = &mut admin => return Err(ended_early("the plain port", ended)),
            ended = &mut housekeeping => return Err(ended_early("clearing away reservations", ended)),
        }
        readiness.stopping();
        tracing::info!(linger = %humantime::format_duration(linger), "stopping: not ready, serving on");
        sleep(linger).await;
        close.cancel();
        accepting.await?;
        housekeeping.abort();
        over.cancel();
        // The plain port has nobody to be gentle to but a probe under way.
        if let Ok(ended) = timeout(Duration::from_secs(1), admin).await {
            ended?;
        }
        Ok(())
    }
}

/// Serves these routes as a [`Server`] serves its webhooks, connections, TLS and HTTP alike, for as long as it is awaited:
/// what a review costs is measured against other handlers on the same server.
pub async fn serve_routes(listener: TcpListener, tls: Tls, routes: Router) {
    let (tls, never) = (TlsAcceptor::from(Arc::new(tls.config)), CancellationToken::new());
    let serve =
        |stream| serve_connection(stream, tls.clone(), routes.clone(), Readiness::default(), never.clone());
    accept(listener, MOST_CONNECTIONS, never.clone(), serve).await;
}

fn ended_early(what: &str, ended: Result<(), JoinError>) -> io::Error {
    let cause = ended.map_or_else(|error| error.to_string(), |()| "it returned".to_owned());
    io::Error::other(format!("{what} ended before the server was told to stop: {cause}"))
}

async fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|cause| BindError { flag, address, cause })
}

/// Accepts until told to close, then waits for what was accepted.
async fn accept<F>(
    listener: TcpListener,
    most: usize,
    close: CancellationToken,
    serve: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let connections = TaskTracker::new();
    let permits = Arc::new(Semaphore::new(most));
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = close.cancelled() => break,
            next = next => next,
        };
        match (permit, accepted) {
            (Ok(permit), Ok((stream, _))) => {
                connections.spawn(hold(permit, serve(stream)));
            }
            (_, Err(error)) => {
                tracing::warn!(%error, "accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
            }
            // The semaphore is never closed.
            (Err(_), Ok(_)) => break,
        }
    }
    // Who is connected for the kernel believes to be connected to us, and would be reset with the listener.
    for stream in backlog(listener) {
        connections.spawn(serve(stream));
    }
    connections.close();
    if timeout(FINISH_LIMIT, connections.wait()).await.is_err() {
        tracing::warn!("requests were still under way at the end and are cut off");
    }
}

/// Closes a listener and returns the connections that the kernel had made for it by then.
fn backlog(listener: TcpListener) -> Vec<TcpStream> {
    // Asked of the kernel: the runtime may not have heard of them yet.
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    let waiting = iter::from_fn(|| listener.accept().ok());
    waiting
        .filter_map(|(stream, _)| {
            stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)).ok()
        })
        .collect()
}

async fn hold(permit: OwnedSemaphorePermit, connection: impl Future<Output = ()>) {
    connection.await;
    drop(permit);
}

async fn serve_admin_connection(stream: TcpStream, router: Router) {
    let is_local = stream.peer_addr().is_ok_and(|it| it.ip().to_canonical().is_loopback());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(inspect::IsLocal(is_local));
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_IDLE_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection ended with an error");
    }
}

async fn serve_connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    router: Router,
    readiness: Readiness,
    close: CancellationToken,
) {
    // Answers are small and complete: waiting to fill a segment would only delay them.
    let _ = stream.set_nodelay(true);
    let stream =
        match timeout(HANDSHAKE_LIMIT, tls.accept(BufReader::with_capacity(RECORD_LENGTH, stream))).await {
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
    let asked = CancellationToken::new();
    let has_asked = asked.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        asked.cancel();
        let (router, readiness) = (router.clone(), readiness.clone());
        async move {
            let mut response = router.oneshot(request).await?;
            if readiness.is_stopping() {
                // Sends a caller that keeps its connection elsewhere, before the connection is closed under it.
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_LIMIT)
            .serve_connection(TokioIo::new(stream), service)
    );
    let closing = async {
        close.cancelled().await;
        // Who has just connected is about to ask, and closed now would get no answer.
        let _ = timeout(FIRST_REQUEST_LIMIT, has_asked.cancelled()).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended with an error");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn answer(mut stream: TcpStream) {
        let asked = stream.read_u8().await.unwrap();
        stream.write_u8(asked).await.unwrap();
    }

    /// Asks on a connection and returns the answer.
    async fn ask(stream: &mut TcpStream, question: u8) -> io::Result<u8> {
        stream.write_u8(question).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn who_waits_to_be_accepted_at_the_end_is_answered_too() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let close = CancellationToken::new();
        let accepting = tokio::spawn(accept(listener, 1, close.clone(), answer));
        let mut accepted = TcpStream::connect(address).await.unwrap();
        let mut waiting =
            [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        close.cancel();
        for (question, stream) in (1..).zip(&mut waiting) {
            assert_eq!(ask(stream, question).await.unwrap(), question);
        }
        assert_eq!(ask(&mut accepted, 9).await.unwrap(), 9);
        accepting.await.unwrap();
    }

    #[tokio::test]
    async fn nobody_is_accepted_after_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let close = CancellationToken::new();
        close.cancel();
        accept(listener, 1, close, answer).await;
        assert!(TcpStream::connect(address).await.is_err());
    }
}

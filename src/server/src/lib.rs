//! The webhook server: HTTPS for the API server, plain HTTP on the admin port for the kubelet, Prometheus and the kubectl plugin.
//!
//! A guard that decides correctly is useless if it cannot be reached: while no replica answers, the API server rejects the
//! deletions of all labelled namespaces. Most of this crate is about staying reachable.
//!
//! - A connection: `listener` accepts it, `slots` decides which one yields when all are in use, `tls` serves the certificate that
//!   is current at that moment, `connection` bounds times and sizes.
//! - A deletion: `webhook::validate` reads the AdmissionReview, `etcd_guard_guard::Guard` decides, and `webhook::review_response`
//!   turns the verdict into the status that kubectl prints.
//! - A mutation: `webhook::mutate` and `webhook::mutator` hand the object to the crate `inject`, and send its patch back.
//! - `admin`: health, metrics, `/status` and `/preview`.
//! - In the background: `reload` watches the configuration file, `certificates` creates and renews certificates and registers the
//!   webhooks, and `nodes` writes the status of over-committed nodes.
//! - `cli`: the commands of the program. `cli::serve` wires everything, and is the place to start reading.
//!
//! The life of a [`Server`]: bind both ports and serve. On the stop signal, fail readiness and serve on while clients move to
//! other replicas. Then stop accepting, finish the accepted requests, return.
//!
//! This crate must not know members, probes or ledgers. It never approves anything itself: whatever it cannot read, it rejects.

// The compiler verifies that the nested futures of the guard's background tasks are `Send`.
#![recursion_limit = "256"]

mod admin;
mod api_server_metrics;
mod certificates;
pub mod cli;
mod connection;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzzing;
mod listener;
mod nodes;
mod readiness;
mod reload;
mod slots;
pub mod tls;
mod traces;
mod webhook;
mod webhook_configurations;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    task::JoinError,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

#[cfg(any(test, feature = "fixtures"))]
pub use self::{admin::outputs as admin_outputs, webhook::outputs as webhook_outputs};
use self::{
    admin::{health::HealthState, process::ProcessMetrics},
    connection::{serve_admin_connection, serve_connection},
    listener::accept_connections,
    tls::Tls,
    webhook::{metrics::Metrics, state::WebhookState},
};
pub use self::{readiness::Readiness, webhook::mutator::Mutator};
use etcd_guard_core::documentation::Manual;
use etcd_guard_guard::{Guard, Surveys};

/// Maximum number of HTTPS connections, including those during the TLS handshake. An API server opens one per concurrent
/// call. At the limit, connections are closed in the order of [`slots`]. Some of the 1,024 file descriptors that a process
/// commonly has remain for connections to etcd members.
const MAX_CONNECTIONS: usize = 512;

/// Maximum number of connections of the admin port, which a kubelet and Prometheus use from time to time.
const MAX_ADMIN_CONNECTIONS: usize = 64;

/// Maximum time for the admin port to finish its requests at the end.
const ADMIN_FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// A server with bound ports.
pub struct Server {
    https: TcpListener,
    admin: TcpListener,
    tls: TlsAcceptor,
    guard: Arc<Guard>,
    router: Router,
    admin_router: Router,
    readiness: Readiness,
    surveys: Option<Surveys>,
}

/// Addresses and intervals of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the HTTPS port.
    pub listen: SocketAddr,
    /// Address of the admin port.
    pub admin_listen: SocketAddr,
    /// Background surveys of all guarded clusters; absent if disabled.
    pub surveys: Option<Surveys>,
    /// Where denials lead their readers.
    pub manual: Manual,
}

/// A port that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {flag} {address}: {cause}")]
pub struct BindError {
    flag: &'static str,
    address: SocketAddr,
    cause: io::Error,
}

/// Creates a guard and registers its metrics.
pub type GuardFactory<'a> = &'a dyn Fn(&mut Registry) -> Guard;

// === impl Server ===

impl Server {
    /// Binds both ports.
    pub async fn bind(
        options: &Options,
        tls: Tls,
        new_guard: GuardFactory<'_>,
        mutator: Mutator,
    ) -> Result<Self, BindError> {
        let mut registry = Registry::default();
        // The standard metrics of processes have no prefix.
        ProcessMetrics::register(&mut registry);
        let own = registry.sub_registry_with_prefix("etcd_guard");
        let metrics = Metrics::register(own);
        tls.served.register(own);
        let guard = Arc::new(new_guard(own));
        mutator.register(own);
        let readiness = Readiness::default();
        readiness.register(own);
        let health = HealthState { readiness: readiness.clone(), registry: Arc::new(registry) };
        let state = Arc::new(WebhookState::new(Arc::clone(&guard), mutator, metrics, options.manual.clone()));
        Ok(Self {
            https: bind("--listen", options.listen).await?,
            admin: bind("--admin-listen", options.admin_listen).await?,
            tls: TlsAcceptor::from(Arc::new(tls.config)),
            router: webhook::routes(Arc::clone(&state)),
            guard,
            admin_router: admin::routes(health, state),
            readiness,
            surveys: options.surveys,
        })
    }

    /// Returns the readiness, which other tasks update.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Returns the addresses of the HTTPS port and the admin port, with the actual numbers if port 0 was given.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.https.local_addr()?, self.admin.local_addr()?))
    }

    /// Serves until `stop`. Then it fails readiness, serves on for `linger`, closes the listener and finishes the
    /// accepted requests.
    pub async fn serve(self, stop: CancellationToken, linger: Duration) -> io::Result<()> {
        let Self { https, admin, tls, guard, router, admin_router, readiness, surveys } = self;
        let close_admin = CancellationToken::new();
        let admin_closed = close_admin.clone();
        let mut admin_task = tokio::spawn(async move {
            let serve = |stream, usage| serve_admin_connection(stream, usage, admin_router.clone());
            accept_connections(admin, MAX_ADMIN_CONNECTIONS, admin_closed, serve).await;
        });

        let mut background_task =
            tokio::spawn(async move { Box::pin(guard.run_background_tasks(surveys)).await });
        let close = CancellationToken::new();
        let closed = close.clone();
        let stopping = readiness.clone();
        let mut https_task = tokio::spawn(async move {
            let serve = |stream, usage| {
                serve_connection(stream, usage, tls.clone(), router.clone(), stopping.clone(), closed.clone())
            };
            accept_connections(https, MAX_CONNECTIONS, closed.clone(), serve).await;
        });
        // These tasks never end by themselves. Without one of them the process would appear healthy but not work, so
        // that a restart is better.
        tokio::select! {
            () = stop.cancelled() => {}
            ended = &mut https_task => return Err(ended_early("the HTTPS port", ended)),
            ended = &mut admin_task => return Err(ended_early("the admin port", ended)),
            ended = &mut background_task => return Err(ended_early("the guard's background work", ended)),
        }
        readiness.set_stopping();
        tracing::info!(linger = %humantime::format_duration(linger), "stopping: not ready, still serving requests");
        sleep(linger).await;
        close.cancel();
        https_task.await?;
        background_task.abort();
        close_admin.cancel();
        // The only requests that matter here are probes in progress.
        if let Ok(ended) = timeout(ADMIN_FINISH_TIMEOUT, admin_task).await {
            ended?;
        }
        Ok(())
    }
}

/// Serves these routes with the connections, TLS and HTTP of [`Server`], for as long as the future is awaited.
/// Benchmarks use it to compare other handlers with the guard's.
pub async fn serve_routes(listener: TcpListener, tls: Tls, routes: Router) {
    let (tls, never) = (TlsAcceptor::from(Arc::new(tls.config)), CancellationToken::new());
    let serve = |stream, usage| {
        serve_connection(stream, usage, tls.clone(), routes.clone(), Readiness::default(), never.clone())
    };
    accept_connections(listener, MAX_CONNECTIONS, never.clone(), serve).await;
}

fn ended_early(task: &str, ended: Result<(), JoinError>) -> io::Error {
    let cause = ended.map_or_else(|error| error.to_string(), |()| "it returned".to_owned());
    io::Error::other(format!("{task} ended before the server was stopped: {cause}"))
}

async fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|cause| BindError { flag, address, cause })
}

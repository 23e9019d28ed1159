//! `etcd-guard serve`: the webhook server.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use rustls::crypto::CryptoProvider;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    sync::{oneshot, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    client::{client, install_provider},
    logging::{Logging, write_out, write_out_at_rest},
    tls::TlsFlags,
};
use crate::{
    config::{Live, ReloadMetrics, follow},
    guard::{Guard, Sources},
    k8s::{Annotations, Claims, Events, Leases, Namespaces, Pods, Secrets},
    server::{Mutator, Options, Readiness, Server},
    traces::{Collector, SpanCounts},
};

/// Pause between attempts to reach the apiserver before it has answered once.
const REACH_PAUSE: Duration = Duration::from_millis(500);

/// How long a version that cannot be read keeps the process from being ready: some looks at it, and no wait for the
/// guard's own work, which does not need it.
const VERSION_WAIT: Duration = Duration::from_secs(10);

/// Serve the admission webhooks
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Address of the HTTPS port that the apiserver calls
    #[arg(long, default_value = "0.0.0.0:8443", env = "ETCD_GUARD_LISTEN")]
    listen: SocketAddr,
    /// Address of the plain port with /livez, /readyz and /metrics
    #[arg(long, default_value = "0.0.0.0:8080", env = "ETCD_GUARD_ADMIN_LISTEN")]
    admin_listen: SocketAddr,
    #[command(flatten)]
    tls: TlsFlags,
    /// How to reach the apiserver; by default $KUBECONFIG, then the pod's service account
    #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where the guard keeps its reservations; by default the namespace of its service account or kubeconfig
    #[arg(long, env = "ETCD_GUARD_NAMESPACE")]
    namespace: Option<String>,
    /// The configuration file; it is read again whenever it changes
    #[arg(long, env = "ETCD_GUARD_CONFIG")]
    config: Option<PathBuf>,
    /// How long to serve on after SIGTERM, not ready, while callers turn to other replicas
    #[arg(long, default_value = "5s", env = "ETCD_GUARD_LINGER", value_parser = humantime::parse_duration)]
    linger: Duration,
    /// How often to look at all guarded clusters unasked, for `etcd_guard_clusters` and its alerts; by default never
    // The last counts: an overlay may say it once more.
    #[arg(
        long,
        env = "ETCD_GUARD_SURVEY_INTERVAL",
        overrides_with = "survey_interval",
        value_parser = humantime::parse_duration
    )]
    survey_interval: Option<Duration>,
    /// An OpenTelemetry collector that takes traces by OTLP over gRPC, for instance `http://collector:4317`; by default
    /// nobody does
    #[arg(long, env = "ETCD_GUARD_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<http::Uri>,
}

// === impl Serve ===

impl Serve {
    pub(super) fn run(self, logging: &Logging) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .on_thread_park(write_out_at_rest)
            .on_thread_stop(write_out)
            .build();
        let spans = SpanCounts::default();
        let collector = {
            let _within = runtime.as_ref().ok().map(Runtime::enter);
            self.otlp_endpoint.as_ref().map(|url| Collector::new(url, spans.clone())).transpose()
        };
        logging.start(collector.as_ref().ok().and_then(Option::as_ref).map(Collector::layer));
        let collector = collector.context("--otlp-endpoint")?;
        let provider = install_provider()?;
        runtime?.block_on(async {
            let served = self.serve(provider, spans).await;
            if let Some(collector) = collector {
                collector.flush().await;
            }
            served
        })
    }

    async fn serve(self, provider: Arc<CryptoProvider>, spans: SpanCounts) -> anyhow::Result<()> {
        let Self {
            listen,
            admin_listen,
            tls,
            kubeconfig,
            namespace,
            config,
            linger,
            survey_interval,
            otlp_endpoint: _,
        } = self;
        let (tls, source) = tls.prepare(provider)?;
        // Asked for before the ports are taken: a signal that comes early must not kill.
        let stop = stop_on_signal()?;
        let (live, reloads) = follow_config(config)?;
        let client = client(kubeconfig).await?;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        let (pods, secrets) = (Pods::new(client.clone()), Secrets::new(client.clone()));
        let annotations = Annotations::watch(&client);
        let claims = Claims::watch(&client, annotations.guarded_namespaces());
        let leases = Leases::new(client.clone(), &namespace);
        let events = Events::start(client.clone());
        let mutator = Mutator::new(live.clone(), Namespaces::new(pods.clone()), reloads);
        let (told, version_known) = oneshot::channel();
        tokio::spawn(mutator.follow_version(told));
        let options = Options { listen, admin_listen, survey_interval };
        let make_guard = |registry: &mut _| {
            spans.register(registry);
            let sources = Sources {
                pods: pods.clone(),
                claims: claims.clone(),
                secrets: secrets.clone(),
                annotations: annotations.clone(),
                config: live.clone(),
                events: events.clone(),
            };
            Guard::new(sources, leases.clone(), registry)
        };
        let server = Server::bind(&options, tls, &make_guard, mutator).await?;
        let (https, http) = server.addresses()?;
        tracing::info!(%https, %http, version = env!("CARGO_PKG_VERSION"), "serving");
        tokio::spawn(reach_apiserver(pods, annotations.clone(), version_known, server.readiness()));
        source.start(&client, &namespace, server.readiness())?;
        server.serve(stop, linger).await?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// The configuration as it is, and from now on as it becomes. A file that is bad at the start is an error.
fn follow_config(file: Option<PathBuf>) -> anyhow::Result<(Live, ReloadMetrics)> {
    let (config, text) = super::config::read_or_default(file.as_deref())?;
    let (told, live) = watch::channel(Arc::new(config));
    let reloads = ReloadMetrics::default();
    if let Some(file) = file {
        tokio::spawn(follow(file, text, told, reloads.clone()));
    }
    Ok((live, reloads))
}

/// Ready from when the apiserver answers, its version and the policies are known.
async fn reach_apiserver(
    pods: Pods,
    annotations: Annotations,
    version_known: oneshot::Receiver<()>,
    readiness: Readiness,
) {
    while let Err(error) = pods.reach_apiserver().await {
        tracing::warn!(%error, "not ready");
        sleep(REACH_PAUSE).await;
    }
    while !annotations.synced().await {
        tracing::warn!("not ready: namespaces and StatefulSets are not listed yet");
    }
    // The first Jobs after a start would get sidecars that never let them finish.
    if timeout(VERSION_WAIT, version_known).await.is_err() {
        tracing::warn!("the apiserver's version is not known: sidecars are ordinary containers until it is");
    }
    readiness.apiserver_answered();
    tracing::info!("ready");
}

/// The first SIGTERM or SIGINT stops gently, the second at once.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let mut term = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
        told.cancel();
        tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
        tracing::warn!("stopped at once by a second signal");
        write_out();
        std::process::exit(1);
    });
    Ok(stop)
}

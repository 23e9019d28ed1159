//! `etcd-guard serve`: the webhook server.

mod certificates;
pub(crate) mod lxcfs_label;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::{Args, builder::RangedU64ValueParser};
use k8s_openapi::jiff::Timestamp;
use rustls::crypto::CryptoProvider;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    sync::{oneshot, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::certificates::CertificateFlags;
use super::kube_client::client_and_api_servers;
use crate::{
    Mutator, Options, Readiness, Server,
    api_server_metrics::ApiServerMetrics,
    nodes::{NodeMetrics, NodeReconciler},
    reload::{LiveConfig, ReloadMetrics, follow, load},
    traces::Collector,
};
use etcd_guard_cli::{access::install_provider, logging::Logging};
use etcd_guard_core::{
    documentation::{DEFAULT_URL, Manual},
    wall_clock::WallClock,
};
use etcd_guard_etcd::Connections;
use etcd_guard_guard::{Guard, Sources, Surveys};
use etcd_guard_kubernetes::{
    AnnotationCache, ApiReader, ClaimReader, EventRecorder, Leases, NodeReader, SecretReader,
};

/// Interval between attempts to reach the API server before its first response.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum delay of readiness while the version of the API server cannot be read: time for a few attempts. It is
/// limited, because the guard works without the version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of clusters with metrics of their own if `--cluster-metrics` has no value. A cluster has ten series of about 100
/// bytes, so the page has at most about half a megabyte.
const DEFAULT_NAMED_CLUSTERS: &str = "500";

/// Maximum value of `--cluster-metrics`: a page of about five megabytes, as large as those of kube-state-metrics.
const MAX_NAMED_CLUSTERS: u64 = 5_000;

/// Serve the admission webhooks
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Address of the HTTPS port that the API server calls
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443", env = "ETCD_GUARD_LISTEN")]
    listen: SocketAddr,
    /// Address of the plain HTTP port with /livez, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080", env = "ETCD_GUARD_ADMIN_LISTEN")]
    admin_listen: SocketAddr,
    #[command(flatten)]
    tls: CertificateFlags,
    /// The kubeconfig file; by default $KUBECONFIG, then the service account of the pod
    #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of the reservations; by default the namespace of the service account or kubeconfig
    #[arg(long, env = "ETCD_GUARD_NAMESPACE")]
    namespace: Option<String>,
    /// The name of the guard's own pod, whose priority `status` compares with those of members; by default the host name
    #[arg(long, env = "HOSTNAME", hide_env_values = true)]
    pod_name: Option<String>,
    /// The configuration file; it is reloaded when it changes
    #[arg(long, value_name = "FILE", env = "ETCD_GUARD_CONFIG")]
    config: Option<PathBuf>,
    /// How long to go on serving after SIGTERM, while /readyz fails and callers move to another replica
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5s",
        env = "ETCD_GUARD_LINGER",
        value_parser = humantime::parse_duration
    )]
    linger: Duration,
    /// How often to check all guarded clusters, for `etcd_guard_clusters` and its alerts; by default never
    // The last value wins, so that an overlay can append the flag again.
    #[arg(
        long,
        value_name = "DURATION",
        env = "ETCD_GUARD_SURVEY_INTERVAL",
        overrides_with = "survey_interval",
        value_parser = humantime::parse_duration
    )]
    survey_interval: Option<Duration>,
    /// Export the state of each cluster as `etcd_guard_cluster_*` with its namespace and name, for at most MAX clusters (500
    /// without a number); requires `--survey-interval`; by default, metrics contain no names
    #[arg(
        long,
        env = "ETCD_GUARD_CLUSTER_METRICS",
        value_name = "MAX",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = DEFAULT_NAMED_CLUSTERS,
        overrides_with = "cluster_metrics",
        requires = "survey_interval",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_NAMED_CLUSTERS)
    )]
    cluster_metrics: Option<usize>,
    /// Write the status of over-committed nodes at once, instead of at the next writes of their kubelets; requires the
    /// permissions of deploy/components/over-commit
    #[arg(long, env = "ETCD_GUARD_WRITE_NODE_STATUS")]
    write_node_status: bool,
    /// Move leadership off nodes that are about to be disrupted, and during rollouts, except under the policy `leader: deny`;
    /// requires the permissions of deploy/components/handover
    #[arg(long, env = "ETCD_GUARD_HANDOVER")]
    handover: bool,
    /// URL of an OpenTelemetry collector for traces by OTLP over gRPC, such as `http://collector:4317`; by default
    /// `$OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `$OTEL_EXPORTER_OTLP_ENDPOINT`, and disabled without them
    #[arg(long, env = "ETCD_GUARD_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<http::Uri>,
    /// URL of the manual to which denials and events lead; set it if you publish a copy of your own
    #[arg(long, env = "ETCD_GUARD_DOCS_URL", value_name = "URL", default_value = DEFAULT_URL)]
    docs_url: Manual,
}

// === impl Serve ===

impl Serve {
    pub(super) fn run(self, logging: &Logging) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let collector = {
            let _runtime = runtime.as_ref().ok().map(Runtime::enter);
            Collector::from_settings(self.otlp_endpoint.as_ref())
        };
        logging.start(collector.as_ref().ok().and_then(Option::as_ref).map(Collector::layer));
        let collector = collector.context("traces")?;
        let provider = install_provider()?;
        runtime?.block_on(async {
            let served = self.serve(provider).await;
            if let Some(collector) = collector {
                collector.flush().await;
            }
            served
        })
    }

    async fn serve(self, provider: Arc<CryptoProvider>) -> anyhow::Result<()> {
        let Self {
            listen,
            admin_listen,
            tls,
            kubeconfig,
            namespace,
            pod_name,
            config,
            linger,
            survey_interval,
            cluster_metrics,
            write_node_status,
            handover,
            otlp_endpoint: _,
            docs_url: manual,
        } = self;
        let opt_in_label = tls.opt_in_label().clone();
        let (tls, source) = tls.prepare(provider)?;
        // Handlers are installed before the ports are bound, so that an early signal does not kill the process.
        let stop = stop_on_signal()?;
        let (live, reloads) = follow_config(config)?;
        let calls = ApiServerMetrics::default();
        let (client, api_servers) = client_and_api_servers(kubeconfig, {
            let calls = calls.clone();
            move |call| calls.record(&call)
        })
        .await?;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        let (pods, secrets) = (ApiReader::new(client.clone()), SecretReader::new(client.clone()));
        let annotations = AnnotationCache::watch(&client, opt_in_label);
        let claims = ClaimReader::watch(&client, annotations.guarded_namespaces());
        let leases = Leases::new(client.clone(), &namespace);
        let events = EventRecorder::start(client.clone());
        let policies = policies_of(live.clone());
        let mutator = Mutator::new(live.clone(), &pods, reloads);
        let (sender, version_known) = oneshot::channel();
        tokio::spawn(mutator.follow_version(sender));
        let surveys =
            survey_interval.map(|interval| Surveys { interval, max_named_clusters: cluster_metrics });
        let options = Options { listen, admin_listen, surveys, manual: manual.clone() };
        let node_writes = NodeMetrics::default();
        let new_guard = |registry: &mut _| {
            node_writes.register(registry);
            calls.register(registry);
            let sources = Sources {
                pods: pods.clone(),
                claims: claims.clone(),
                secrets: secrets.clone(),
                annotations: annotations.clone(),
                config: policies.clone(),
                events: events.clone(),
                manual: manual.clone(),
                api_servers: api_servers.clone(),
                nodes: handover.then(|| NodeReader::new(client.clone())),
                connections: Connections::new(),
                wall_clock: WallClock::from_fn(Timestamp::now),
                own_pod: pod_name.clone().map(|name| (namespace.clone(), name)),
            };
            Guard::new(sources, leases.clone(), registry)
        };
        let server = Server::bind(&options, tls, &new_guard, mutator).await?;
        let (https, http) = server.addresses()?;
        tracing::info!(%https, %http, version = env!("CARGO_PKG_VERSION"), "serving");
        if write_node_status {
            tokio::spawn(NodeReconciler::new(client.clone(), live.clone(), node_writes).run());
        }
        tokio::spawn(set_ready(pods, annotations.clone(), version_known, server.readiness()));
        source.start(&client, &namespace, server.readiness())?;
        server.serve(stop, linger).await?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Reads the configuration and follows its changes. An invalid file at the start is an error.
fn follow_config(file: Option<PathBuf>) -> anyhow::Result<(LiveConfig, ReloadMetrics)> {
    let (config, text) = load(file.as_deref())?;
    let (sender, live) = watch::channel(Arc::new(config));
    let reloads = ReloadMetrics::default();
    if let Some(file) = file {
        tokio::spawn(follow(file, text, sender, reloads.clone()));
    }
    Ok((live, reloads))
}

/// Returns the section `guard` of the configuration, which changes with it.
fn policies_of(mut live: LiveConfig) -> etcd_guard_guard::LiveConfig {
    let section = |live: &mut LiveConfig| Arc::new(live.borrow_and_update().guard.clone());
    let (sender, policies) = watch::channel(section(&mut live));
    tokio::spawn(async move {
        while live.changed().await.is_ok() {
            sender.send_replace(section(&mut live));
        }
    });
    policies
}

/// Marks the server as ready after the API server has responded and its version and the policies are known.
async fn set_ready(
    pods: ApiReader,
    annotations: AnnotationCache,
    version_known: oneshot::Receiver<()>,
    readiness: Readiness,
) {
    while let Err(error) = pods.check_connection().await {
        tracing::warn!(%error, "not ready");
        sleep(CONNECT_RETRY_INTERVAL).await;
    }
    while !annotations.wait_until_synced().await {
        tracing::warn!("not ready: waiting for the lists of namespaces and StatefulSets");
    }
    // Without the version, the first Jobs after a start would get no sidecars.
    if timeout(VERSION_TIMEOUT, version_known).await.is_err() {
        tracing::warn!(
            "the version of the API server is unknown: until it is known, sidecars are injected as ordinary containers, and not into pods of Jobs"
        );
    }
    readiness.set_apiserver_answered();
    tracing::info!("ready");
}

/// The first SIGTERM or SIGINT stops gracefully, the second one immediately.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let mut term = signal(SignalKind::terminate()).context("failed to handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to handle SIGINT")?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
        stopping.cancel();
        tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
        tracing::warn!("stopping immediately after a second signal");
        std::process::exit(1);
    });
    Ok(stop)
}

//! The services of the guard. Evaluations, surveys and handovers share one instance, which [`Guard`](super::Guard) builds.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use crate::{
    LiveConfig,
    cluster_cache::ClusterCache,
    credentials::CredentialReader,
    metrics::Metrics,
    observe::{
        answered_addresses::AnsweredAddresses,
        external::{ApiServers, ProbeGate},
        observer::ClusterObserver,
    },
    ownership::store::OwnershipStore,
    policy::{owner_chain::OwnerReader, resolver::PolicyResolver},
    reserve::store::ReservationStore,
};
use etcd_guard_core::{documentation::Manual, wall_clock::WallClock};
use etcd_guard_etcd::Connections;
use etcd_guard_kubernetes::{
    AnnotationCache, ApiReader, ClaimReader, EventRecorder, Leases, NodeReader, SecretReader,
};

/// What evaluations, surveys and handovers read from and write to. Clones share all caches and connections.
#[derive(Clone)]
pub(crate) struct Services {
    /// Reads pods, and probes members.
    pub(crate) observer: ClusterObserver,
    /// Effective policies.
    pub(crate) policies: Arc<PolicyResolver>,
    /// Reads the owners of pods.
    pub(crate) owners: OwnerReader,
    /// Owners of members, recorded while both existed.
    pub(crate) ownership: Arc<OwnershipStore>,
    /// Reservations and handovers, shared with other replicas.
    pub(crate) reservations: Arc<ReservationStore>,
    /// State of each cluster that outlives one evaluation.
    pub(crate) cache: Arc<ClusterCache>,
    /// Records events on the objects that verdicts concern.
    pub(crate) events: EventRecorder,
    /// The manual that events name.
    pub(crate) manual: Manual,
}

/// The sources of a guard, and the recorder of its events.
pub struct Sources {
    /// Reads pods.
    pub pods: ApiReader,
    /// Reads the claims that hold the data of members.
    pub claims: ClaimReader,
    /// Reads the credentials that members require from clients.
    pub secrets: SecretReader,
    /// Annotations of namespaces and StatefulSets.
    pub annotations: AnnotationCache,
    /// The configuration of the server.
    pub config: LiveConfig,
    /// Records events on the objects that verdicts concern.
    pub events: EventRecorder,
    /// The manual that events name.
    pub manual: Manual,
    /// `HOST:PORT` of the API server, at which no member is probed.
    pub api_servers: Vec<String>,
    /// Connections to members.
    pub connections: Connections,
    /// The wall clock.
    pub wall_clock: WallClock,
    /// Namespace and name of the guard's own pod, if it runs in one.
    pub own_pod: Option<(String, String)>,
    /// Reads and watches nodes, for handovers before disruptions; absent without `--handover`.
    pub nodes: Option<NodeReader>,
}

// === impl Services ===

impl Services {
    /// Creates the services that read from `sources` and share their state through `leases`. Registers their metrics.
    pub(crate) fn new(sources: Sources, leases: Leases, registry: &mut Registry) -> Self {
        let Sources {
            pods,
            claims,
            secrets,
            annotations,
            config,
            events,
            manual,
            api_servers,
            connections,
            wall_clock,
            own_pod: _,
            nodes: _,
        } = sources;
        let metrics = Metrics::register(registry);
        let ownership = Arc::new(OwnershipStore::new(&leases));
        let reservations = ReservationStore::new(leases, wall_clock.clone());
        reservations.register(registry);
        let owners = OwnerReader::new(annotations.clone(), pods.clone(), config.clone());
        let policies = PolicyResolver::new(annotations.clone(), config.clone(), owners.clone(), wall_clock);
        let gate = ProbeGate::new(config.clone(), ApiServers::new(&pods, api_servers));
        let observer = ClusterObserver {
            pods,
            claims,
            annotations,
            ownership: Arc::clone(&ownership),
            gate,
            config,
            credentials: CredentialReader::new(secrets),
            answers: AnsweredAddresses::new(),
            connections,
            metrics,
        };
        Self {
            observer,
            policies: Arc::new(policies),
            owners,
            ownership,
            reservations: Arc::new(reservations),
            cache: Arc::new(ClusterCache::new()),
            events,
            manual,
        }
    }

    /// Returns the same services with connections for surveys, which must not delay evaluations.
    pub(crate) fn for_surveys(&self) -> Self {
        let connections = self.observer.connections.for_surveys();
        Self { observer: ClusterObserver { connections, ..self.observer.clone() }, ..self.clone() }
    }

    /// Creates services that read from this API server, without a cache of claims.
    #[cfg(test)]
    pub(crate) fn of_client(client: &kube::Client) -> Self {
        let pods = ApiReader::new(client.clone());
        let sources = Sources {
            claims: ClaimReader::without_watches(pods.clone()),
            pods,
            secrets: SecretReader::new(client.clone()),
            annotations: AnnotationCache::watch(client, etcd_guard_core::opt_in_label::OptInLabel::default()),
            // The default configuration, which never changes.
            config: tokio::sync::watch::channel(Arc::default()).1,
            events: EventRecorder::start(client.clone()),
            manual: Manual::default(),
            api_servers: Vec::new(),
            connections: Connections::new(),
            wall_clock: WallClock::default(),
            own_pod: None,
            nodes: None,
        };
        Self::new(sources, Leases::new(client.clone(), "etcd-guard"), &mut Registry::default())
    }
}

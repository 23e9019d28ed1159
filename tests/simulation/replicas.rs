//! The replicas of the guard: the shipped code, with simulated clients.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use etcd_guard_core::{
    config::policies::Policies, documentation::Manual, opt_in_label::OptInLabel, wall_clock::WallClock,
};
use etcd_guard_etcd::Connections;
use etcd_guard_guard::{Guard, Sources};
use etcd_guard_kubernetes::{
    AnnotationCache, ApiReader, ClaimReader, EventRecorder, Leases, NodeReader, SecretReader,
};
use k8s_openapi::jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::{sync::watch, task::AbortHandle};

use crate::{api::server, raft::service::transport, world::Sim};

/// The running replicas by number.
#[derive(Clone, Default)]
pub(crate) struct Replicas(Arc<Mutex<BTreeMap<usize, Replica>>>);

struct Replica {
    guard: Arc<Guard>,
    background: AbortHandle,
    /// Ends the subscriptions to the configuration.
    _config: watch::Sender<Arc<Policies>>,
}

// === impl Replicas ===

impl Replicas {
    pub(crate) fn get(&self, number: usize) -> Option<Arc<Guard>> {
        self.0.lock().unwrap().get(&number).map(|replica| Arc::clone(&replica.guard))
    }

    /// Starts a replica with empty caches, as `serve` does.
    pub(crate) fn start(&self, sim: &Sim, number: usize) {
        let (generation, config, has_handovers) = {
            let world = sim.world();
            let scenario = &world.scenario;
            (scenario.generations[number], scenario.config(), scenario.has_handovers)
        };
        let (sender, config) = watch::channel(Arc::new(config));
        let client = server::client(sim, number, generation);
        let annotations = AnnotationCache::watch(&client, OptInLabel::default());
        let clock = sim.clone();
        let sources = Sources {
            pods: ApiReader::new(client.clone()),
            claims: ClaimReader::watch(&client, annotations.guarded_namespaces()),
            secrets: SecretReader::new(client.clone()),
            annotations,
            config,
            events: EventRecorder::start(client.clone()),
            manual: Manual::default(),
            api_servers: vec![String::from("192.0.2.1:6443")],
            connections: Connections::through(transport(sim, number)),
            wall_clock: WallClock::from_fn(move || {
                Timestamp::from_second(clock.world().wall_clock(number)).unwrap()
            }),
            own_pod: None,
            nodes: has_handovers.then(|| NodeReader::new(client.clone())),
        };
        let guard =
            Arc::new(Guard::new(sources, Leases::new(client, "etcd-guard"), &mut Registry::default()));
        let running = Arc::clone(&guard);
        let ended = sim.clone();
        let background = sim.spawn("background tasks of the guard", async move {
            Box::pin(running.run_background_tasks(None)).await;
            ended.world().oracle.violations.push(String::from("the background tasks of a replica ended"));
        });
        let replica = Replica { guard, background, _config: sender };
        self.0.lock().unwrap().insert(number, replica);
    }

    /// Kills a replica: its evaluations end without a response, and its calls to the API server fail.
    pub(crate) fn crash(&self, sim: &Sim, number: usize) {
        sim.world().scenario.generations[number] += 1;
        if let Some(replica) = self.0.lock().unwrap().remove(&number) {
            replica.background.abort();
        }
    }
}

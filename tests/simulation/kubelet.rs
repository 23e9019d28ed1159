//! The kubelets: they start and stop processes, slowly or by force, and report the state of pods.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    api::server::pod_key,
    raft::Role,
    scenario::NAMESPACE,
    world::{Sim, World},
};

/// The name of the random numbers.
const KUBELET: &str = "kubelet";

/// The latest start of preStop hooks that last longer than a reservation.
const LONG_HOOKS_UNTIL: Duration = Duration::from_secs(120);

/// Interval between two rounds.
const INTERVAL: Duration = Duration::from_millis(200);

/// The pods that the kubelets know, by uid.
#[derive(Default)]
struct Kubelets(BTreeMap<String, PodState>);

struct PodState {
    name: String,
    member: usize,
    start_at: Instant,
    is_started: bool,
    address: String,
    /// The time of SIGTERM, and that at which the process has ended.
    terminate_at: Option<Instant>,
    stop_at: Option<Instant>,
    restart_at: Option<Instant>,
    is_ready: bool,
}

/// Runs the kubelets of all nodes.
pub(crate) async fn run(sim: Sim) {
    let mut kubelets = Kubelets::default();
    loop {
        {
            let mut world = sim.world();
            world.advance();
            kubelets.run_once(&mut world);
        }
        sleep(INTERVAL).await;
    }
}

// === impl Kubelets ===

impl Kubelets {
    fn run_once(&mut self, world: &mut World) {
        let pods: Vec<Value> = world.store.list("pods", Some(NAMESPACE)).cloned().collect();
        for pod in &pods {
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            if !self.0.contains_key(uid) {
                let state = PodState::new(world, pod);
                self.0.insert(uid.to_owned(), state);
            }
        }
        let uids: Vec<String> = self.0.keys().cloned().collect();
        for uid in uids {
            let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == uid.as_str());
            let state = self.0.get_mut(&uid).unwrap();
            if !state.run_once(world, &uid, pod) {
                self.0.remove(&uid);
            }
        }
    }
}

// === impl PodState ===

impl PodState {
    fn new(world: &mut World, pod: &Value) -> Self {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let delay = if world.chance(KUBELET, 10) { 8_000..=20_000 } else { 500..=4_000 };
        Self {
            member: world.cluster.index_of(&name).unwrap(),
            name,
            start_at: Instant::now() + world.time(KUBELET, delay),
            is_started: false,
            address: String::new(),
            terminate_at: None,
            stop_at: None,
            restart_at: None,
            is_ready: false,
        }
    }

    /// Returns whether the pod still exists on its node.
    fn run_once(&mut self, world: &mut World, uid: &str, pod: Option<&Value>) -> bool {
        let now = Instant::now();
        let grace = pod.map_or(Some(0), |pod| pod["metadata"]["deletionGracePeriodSeconds"].as_u64());
        match grace {
            None => self.keep_running(world, uid, now),
            Some(_) if !self.is_started => {
                self.finish(world, pod);
                return false;
            }
            Some(grace) => return self.terminate(world, uid, pod, Duration::from_secs(grace), now),
        }
        true
    }

    fn keep_running(&mut self, world: &mut World, uid: &str, now: Instant) {
        let other_runs = world.oracle.running.get(&self.member).is_some_and(|running| running != uid);
        if !self.is_started {
            if now >= self.start_at && !other_runs {
                self.start(world, uid);
            }
            return;
        }
        if !world.cluster.members[self.member].is_up {
            // The process has crashed.
            match self.restart_at {
                None => {
                    // Shortly after the second look of an evaluation at a silent pod, two seconds after the first one.
                    let delay = if world.faults.restarts_quickly { 2_300..=2_600 } else { 1_000..=6_000 };
                    self.restart_at = Some(now + world.time(KUBELET, delay));
                    self.report(world, &json!({"terminated": {"exitCode": 1}}), false);
                }
                Some(at) if at <= now => {
                    self.restart_at = None;
                    world.cluster.start(self.member, &self.address);
                    world.note(&format!("kubelet: restarted {}", self.name));
                    self.report(world, &json!({"running": {}}), false);
                }
                Some(_) => {}
            }
            return;
        }
        let is_ready = world.cluster.serves(self.member, now);
        if is_ready != self.is_ready {
            self.report(world, &json!({"running": {}}), is_ready);
        }
    }

    fn start(&mut self, world: &mut World, uid: &str) {
        let number = world.addresses.len() + 1;
        self.address = format!("10.1.{}.{}", number / 250, number % 250 + 1);
        self.is_started = true;
        world.addresses.insert(self.address.clone(), self.member);
        world.oracle.running.insert(self.member, uid.to_owned());
        world.cluster.start(self.member, &self.address);
        world.note(&format!("kubelet: started {} {uid} at {}", self.name, self.address));
        self.report(world, &json!({"running": {}}), false);
    }

    /// Writes the status of the pod.
    fn report(&mut self, world: &mut World, state: &Value, is_ready: bool) {
        self.is_ready = is_ready;
        let address = self.address.clone();
        let has_handovers = world.scenario.has_handovers;
        world.store.update(&pod_key(NAMESPACE, &self.name), |pod| {
            pod["status"] = json!({
                "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "containerStatuses": [{"name": "etcd", "ready": is_ready, "state": state}],
            });
            if has_handovers {
                let ready = if is_ready { "True" } else { "False" };
                pod["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
            }
        });
    }

    /// Stops the process within the grace period. Returns false when the pod is gone.
    fn terminate(
        &mut self,
        world: &mut World,
        uid: &str,
        pod: Option<&Value>,
        grace: Duration,
        now: Instant,
    ) -> bool {
        let terminate_at = *self.terminate_at.get_or_insert_with(|| {
            let is_possible = world.started.elapsed() < LONG_HOOKS_UNTIL;
            // With several StatefulSets, most hooks outlast the reservation, so that the guard must count terminating pods of other
            // StatefulSets without it.
            let long_hooks = if world.scenario.sets.len() > 1 { 60 } else { 15 };
            let delay = match world.number(KUBELET, 0..=99) {
                number if number < long_hooks && is_possible => 62_000..=110_000,
                0..=29 => 2_000..=25_000,
                _ => 0..=2_000,
            };
            now + world.time(KUBELET, delay)
        });
        if now < terminate_at {
            return true;
        }
        let is_paused = world.cluster.members[self.member].is_paused;
        let stop_at = match self.stop_at {
            Some(stop_at) => stop_at,
            None => {
                let hangs = is_paused || world.chance(KUBELET, 10);
                let run_down = if hangs { grace } else { world.time(KUBELET, 50..=1_500).min(grace) };
                if !is_paused && world.cluster.members[self.member].role == Role::Leader {
                    // etcd moves the leadership before it stops.
                    let heirs: Vec<usize> =
                        world.cluster.voters().filter(|voter| *voter != self.member).collect();
                    if !heirs.is_empty() {
                        let heir = heirs[world.index(KUBELET, heirs.len())];
                        world.cluster.transfer(self.member, heir, now);
                    }
                }
                *self.stop_at.insert(now + run_down)
            }
        };
        if now < stop_at {
            return true;
        }
        world.note(&format!("kubelet: stopped {} {uid}", self.name));
        if world.oracle.running.get(&self.member).is_some_and(|running| running == uid) {
            world.cluster.stop(self.member);
            world.oracle.running.remove(&self.member);
        }
        self.finish(world, pod);
        false
    }

    /// Removes the object of a pod whose processes have ended.
    fn finish(&self, world: &mut World, pod: Option<&Value>) {
        if pod.is_some() {
            world.store.remove(&pod_key(NAMESPACE, &self.name), None).unwrap();
        }
    }
}

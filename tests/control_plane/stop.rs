//! The guard stops gently under load, and gets over a hard end.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::{net::TcpListener, time::sleep};

use crate::support::{
    control_plane::ControlPlane,
    guard_process::GuardProcess,
    guarded_cluster::new_namespace,
    http_client::{Connection, NoAnswer, Response},
    review::{create_etcd_pod, deletion_of, verdict},
    wait::{some, until},
};

/// As long as the apiserver would wait for an answer.
const STOP_LIMIT: Duration = Duration::from_secs(30);

const PATH: &str = "/validate?timeout=10s";

#[tokio::test]
async fn a_guard_that_is_told_to_stop_answers_all_that_it_accepted() {
    let mut scene = Scene::start().await;
    let load: Vec<Load> = (0..4).map(|_| Load::on(&scene.guard)).collect();
    let slow = scene.ask_slowly().await;
    until("the load is on", STOP_LIMIT, async || load.iter().all(|it| it.answered() > 20)).await;

    scene.guard.signal(Signal::SIGTERM);
    let was_ready_on_end = some("it is not ready, or has ended", STOP_LIMIT, async || {
        (!scene.guard.is_ready().await).then(|| scene.guard.has_ended().is_none())
    })
    .await;
    assert!(was_ready_on_end, "it ended without telling that it is not ready");
    let at_the_end = load.iter().map(Load::answered).sum::<u32>();

    for answer in slow {
        let (allowed, message) =
            verdict(&answer.await.unwrap().expect("an answer to what was accepted").body);
        assert!(!allowed && message.contains("EtcdUnreachable"), "{message}");
    }
    let status = some("it ends", STOP_LIMIT, async || scene.guard.has_ended()).await;
    assert!(status.success(), "{status}");
    let mut answered = 0;
    for load in load {
        answered += load.answered();
        load.end().await.expect("an answer to every request on an open connection");
    }
    assert!(answered > at_the_end, "it served on while callers turned away");
}

#[tokio::test]
async fn after_a_hard_end_requests_fail_and_a_new_guard_answers() {
    let mut scene = Scene::start().await;
    let slow = scene.ask_slowly().await;
    scene.guard.signal(Signal::SIGKILL);
    for answer in slow {
        // The apiserver takes this for a refusal.
        answer.await.unwrap().expect_err("no answer of a dead guard");
    }
    scene.guard.start_again().await;
    let mut connection = Connection::tls(scene.guard.https(), &scene.guard.ca_pem).await.unwrap();
    let answer = connection.post(PATH, deletion_of(&free_pod())).await.unwrap();
    assert_eq!(verdict(&answer.body), (true, String::new()));
    assert_eq!(scene.guard.news().await, ["DELETE allowed NotEtcd"]);
}

/// A guard, and pods whose members take every connection and never answer.
struct Scene {
    guard: GuardProcess,
    silent: Vec<Pod>,
    _members: Vec<TcpListener>,
}

impl Scene {
    async fn start() -> Self {
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        let dir = control_plane.dir.join(&namespace);
        let guard = GuardProcess::start(&control_plane.guard_kubeconfig(), &dir).await;
        let pods = Api::namespaced(client, &namespace);
        let (mut silent, mut members) = (Vec::new(), Vec::new());
        for name in ["silent-0", "silent-1", "silent-2"] {
            let address = control_plane.addresses.of(&namespace, name);
            // Nobody accepts: the system does, and so a client waits for words.
            members.push(TcpListener::bind((address, 2379)).await.unwrap());
            silent.push(create_etcd_pod(&pods, name, address).await);
        }
        Self { guard, silent, _members: members }
    }

    /// Asks about the silent members, each of a cluster of its own, and returns once the guard waits for them. They
    /// keep it waiting for a second.
    async fn ask_slowly(&self) -> Vec<tokio::task::JoinHandle<Result<Response, NoAnswer>>> {
        let mut answers = Vec::new();
        for pod in &self.silent {
            let mut connection = Connection::tls(self.guard.https(), &self.guard.ca_pem).await.unwrap();
            let review = deletion_of(pod);
            answers.push(tokio::spawn(async move { connection.post(PATH, review).await }));
        }
        sleep(Duration::from_millis(200)).await;
        assert!(answers.iter().all(|answer| !answer.is_finished()), "the guard waits for silent members");
        answers
    }
}

/// A caller that asks again and again, on a connection that it keeps as long as the guard does.
struct Load {
    answered: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<(), NoAnswer>>,
}

impl Load {
    fn on(guard: &GuardProcess) -> Self {
        let (answered, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let task = ask(guard.https(), guard.ca_pem.clone(), Arc::clone(&answered), Arc::clone(&stop));
        Self { answered, stop, task: tokio::spawn(task) }
    }

    fn answered(&self) -> u32 {
        self.answered.load(Ordering::Relaxed)
    }

    async fn end(self) -> Result<(), NoAnswer> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// Asks until the port refuses connections; an error is a request that got no answer.
async fn ask(
    address: SocketAddr,
    ca_pem: String,
    answered: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
) -> Result<(), NoAnswer> {
    while let Ok(mut connection) = Connection::tls(address, &ca_pem).await {
        loop {
            let answer = connection.post(PATH, deletion_of(&free_pod())).await?;
            assert_eq!(verdict(&answer.body), (true, String::new()));
            answered.fetch_add(1, Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if answer.closes {
                break;
            }
        }
    }
    Ok(())
}

/// A pod that runs no etcd: judged without a look at anything.
fn free_pod() -> Pod {
    let pod = json!({
        "metadata": {"name": "free", "namespace": "free", "uid": "free"},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    });
    serde_json::from_value(pod).unwrap()
}

//! The guard stops gently under load, and gets over a hard end.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use nix::sys::signal::Signal;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::support::{
    control_plane::ControlPlane,
    guard_process::GuardProcess,
    http_client::{Connection, NoAnswer, Response},
    load::Load,
    pods::{create_etcd_pod, new_namespace},
    review::{deletion_of, pod_without_etcd, verdict},
    wait::{some, until},
};

/// As long as the apiserver would wait for an answer.
const STOP_LIMIT: Duration = Duration::from_secs(30);

const PATH: &str = "/validate?timeout=10s";

#[tokio::test]
async fn a_guard_that_is_told_to_stop_answers_all_that_it_accepted() {
    let mut scene = Scene::start().await;
    let load: Vec<Load> = (0..4).map(|_| Load::on(&scene.guard, PATH)).collect();
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
async fn a_caller_that_connected_just_before_the_port_closed_gets_its_answer() {
    let mut scene = Scene::start().await;
    scene.guard.signal(Signal::SIGTERM);
    let (address, ca_pem) = (scene.guard.https(), &scene.guard.ca_pem);
    let mut last = Connection::tls(address, ca_pem).await.expect("it serves on for a while");
    until("the port is closed", STOP_LIMIT, async || match Connection::tls(address, ca_pem).await {
        Ok(connection) => {
            last = connection;
            false
        }
        Err(_) => true,
    })
    .await;

    let answer = last.post(PATH, deletion_of(&pod_without_etcd())).await.expect("an answer");
    assert_eq!(verdict(&answer.body), (true, String::new()));
    assert!(answer.closes, "the connection is of no further use");
    assert!(some("it ends", STOP_LIMIT, async || scene.guard.has_ended()).await.success());
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
    let answer = connection.post(PATH, deletion_of(&pod_without_etcd())).await.unwrap();
    assert_eq!(verdict(&answer.body), (true, String::new()));
    assert_eq!(scene.guard.news().await, ["DELETE allowed NotEtcd"]);
}

/// A guard, and pods whose members take every connection and never answer.
struct Scene {
    guard: GuardProcess,
    silent: Vec<Pod>,
    members: Vec<TcpListener>,
    /// The connections on which nothing is ever said.
    asked: Vec<TcpStream>,
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
        Self { guard, silent, members, asked: Vec::new() }
    }

    /// Asks about the silent members, each of a cluster of its own, and returns once the guard waits for them. They
    /// keep it waiting for a second.
    async fn ask_slowly(&mut self) -> Vec<tokio::task::JoinHandle<Result<Response, NoAnswer>>> {
        let mut answers = Vec::new();
        for pod in &self.silent {
            let mut connection = Connection::tls(self.guard.https(), &self.guard.ca_pem).await.unwrap();
            let review = deletion_of(pod);
            answers.push(tokio::spawn(async move { connection.post(PATH, review).await }));
        }
        for member in &self.members {
            let asked = timeout(STOP_LIMIT, member.accept()).await.expect("the guard asks each of them");
            self.asked.push(asked.unwrap().0);
        }
        assert!(answers.iter().all(|answer| !answer.is_finished()), "the guard waits for silent members");
        answers
    }
}

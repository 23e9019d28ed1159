//! Graceful shutdown under load, and recovery after a kill.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use nix::sys::signal::Signal;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use test_support::{
    guard::{
        load::Load,
        process::GuardProcess,
        review::{deletion_review, pod_without_etcd, verdict},
    },
    http_client::{Connection, RequestError, Response},
    kubernetes::{
        control_plane::ControlPlane,
        pods::{create_etcd_pod, new_namespace},
    },
    wait::{wait_for, wait_until},
};

/// As long as the API server waits for a response.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

const PATH: &str = "/validate?timeout=10s";

#[tokio::test]
async fn shutdown_answers_all_accepted_requests() {
    let mut guarded = SilentMembers::start().await;
    let load: Vec<Load> = (0..4).map(|_| Load::start(&guarded.guard, PATH)).collect();
    let slow = guarded.send_slow_reviews().await;
    wait_until("every client is served", STOP_TIMEOUT, async || {
        load.iter().all(|client| client.answered() > 20)
    })
    .await;

    guarded.guard.signal(Signal::SIGTERM);
    let was_ready_on_end = wait_for("the guard is not ready, or has ended", STOP_TIMEOUT, async || {
        (!guarded.guard.is_ready().await).then(|| guarded.guard.has_ended().is_none())
    })
    .await;
    assert!(was_ready_on_end, "the guard ended before it was not ready");
    let at_the_end = load.iter().map(Load::answered).sum::<u32>();

    for answer in slow {
        let (allowed, message) =
            verdict(&answer.await.unwrap().expect("a response to an accepted request").body);
        assert!(!allowed && message.contains("EtcdUnreachable"), "{message}");
    }
    let status = wait_for("the guard ends", STOP_TIMEOUT, async || guarded.guard.has_ended()).await;
    assert!(status.success(), "{status}");
    let mut answered = 0;
    for load in load {
        answered += load.answered();
        load.end().await.expect("a response to every request on an open connection");
    }
    assert!(answered > at_the_end, "the guard serves while callers move to other replicas");
}

#[tokio::test]
async fn answers_caller_that_connected_before_port_closed() {
    let mut guarded = SilentMembers::start().await;
    guarded.guard.signal(Signal::SIGTERM);
    let (address, ca_pem) = (guarded.guard.https(), &guarded.guard.ca_pem);
    let mut last = Connection::tls(address, ca_pem).await.expect("the guard serves for a while");
    wait_until("the port is closed", STOP_TIMEOUT, async || match Connection::tls(address, ca_pem).await {
        Ok(connection) => {
            last = connection;
            false
        }
        Err(_) => true,
    })
    .await;

    let answer = last.post(PATH, deletion_review(&pod_without_etcd())).await.expect("a response");
    assert_eq!(verdict(&answer.body), (true, String::new()));
    assert!(answer.closes, "the guard closes the connection");
    assert!(wait_for("the guard ends", STOP_TIMEOUT, async || guarded.guard.has_ended()).await.success());
}

#[tokio::test]
async fn requests_fail_after_kill_until_restart() {
    let mut guarded = SilentMembers::start().await;
    let slow = guarded.send_slow_reviews().await;
    guarded.guard.signal(Signal::SIGKILL);
    for answer in slow {
        // The API server treats this as a denial.
        answer.await.unwrap().expect_err("a killed guard does not respond");
    }
    guarded.guard.restart().await;
    let mut connection = Connection::tls(guarded.guard.https(), &guarded.guard.ca_pem).await.unwrap();
    let answer = connection.post(PATH, deletion_review(&pod_without_etcd())).await.unwrap();
    assert_eq!(verdict(&answer.body), (true, String::new()));
    assert_eq!(guarded.guard.new_verdicts().await, ["DELETE allowed NamespaceNotGuarded"]);
}

/// A guard, and pods whose members accept connections and do not respond.
struct SilentMembers {
    guard: GuardProcess,
    silent: Vec<Pod>,
    members: Vec<TcpListener>,
    /// The accepted connections.
    accepted: Vec<TcpStream>,
}

impl SilentMembers {
    async fn start() -> Self {
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        let dir = control_plane.dir.join(&namespace);
        let guard = GuardProcess::start(&control_plane.guard_kubeconfig(), &dir).await;
        let pods = Api::namespaced(client, &namespace);
        let (mut silent, mut members) = (Vec::new(), Vec::new());
        for name in ["silent-0", "silent-1", "silent-2"] {
            let address = control_plane.addresses.pod_address(&namespace, name);
            // The kernel accepts connections, so a client waits for a response.
            members.push(TcpListener::bind((address, 2379)).await.unwrap());
            silent.push(create_etcd_pod(&pods, name, address).await);
        }
        Self { guard, silent, members, accepted: Vec::new() }
    }

    /// Sends reviews of the silent members' pods, each in a cluster of its own, and returns when the guard waits for
    /// the members, which takes a second.
    async fn send_slow_reviews(&mut self) -> Vec<tokio::task::JoinHandle<Result<Response, RequestError>>> {
        let mut answers = Vec::new();
        for pod in &self.silent {
            let mut connection = Connection::tls(self.guard.https(), &self.guard.ca_pem).await.unwrap();
            let review = deletion_review(pod);
            answers.push(tokio::spawn(async move { connection.post(PATH, review).await }));
        }
        for member in &self.members {
            let accepted =
                timeout(STOP_TIMEOUT, member.accept()).await.expect("the guard probes each member");
            self.accepted.push(accepted.unwrap().0);
        }
        assert!(answers.iter().all(|answer| !answer.is_finished()), "the guard waits for silent members");
        answers
    }
}

//! Clients that send reviews without a pause.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use crate::{
    guard::{
        process::GuardProcess,
        review::{deletion_review, pod_without_etcd, verdict},
    },
    http_client::{Connection, RequestError},
};

/// A client that sends one review after the other, on one connection until the guard closes it.
pub struct Load {
    answered: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<(), RequestError>>,
}

impl Load {
    /// Starts sending reviews to this path of the guard.
    pub fn start(guard: &GuardProcess, path: &'static str) -> Self {
        let (answered, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let task =
            send_reviews(guard.https(), path, guard.ca_pem.clone(), Arc::clone(&answered), Arc::clone(&stop));
        Self { answered, stop, task: tokio::spawn(task) }
    }

    /// Returns the number of answered reviews.
    pub fn answered(&self) -> u32 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Stops the client. The error is a request without a response.
    pub async fn end(self) -> Result<(), RequestError> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the client does not panic")
    }
}

/// Sends reviews until the port refuses connections. The error is a request without a response.
async fn send_reviews(
    address: SocketAddr,
    path: &str,
    ca_pem: String,
    answered: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
) -> Result<(), RequestError> {
    while let Ok(mut connection) = Connection::tls(address, &ca_pem).await {
        loop {
            let answer = connection.post(path, deletion_review(&pod_without_etcd())).await?;
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

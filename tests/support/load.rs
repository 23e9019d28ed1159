//! Callers that do not stop asking.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use super::{
    guard_process::GuardProcess,
    http_client::{Connection, NoAnswer},
    review::{deletion_of, pod_without_etcd, verdict},
};

/// A caller that asks again and again, on a connection that it keeps as long as the guard does.
pub struct Load {
    answered: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<(), NoAnswer>>,
}

impl Load {
    pub fn on(guard: &GuardProcess, path: &'static str) -> Self {
        let (answered, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let task = ask(guard.https(), path, guard.ca_pem.clone(), Arc::clone(&answered), Arc::clone(&stop));
        Self { answered, stop, task: tokio::spawn(task) }
    }

    pub fn answered(&self) -> u32 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Ends it; an error is a request that got no answer.
    pub async fn end(self) -> Result<(), NoAnswer> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("a caller that does not panic")
    }
}

/// Asks until the port refuses connections; an error is a request that got no answer.
async fn ask(
    address: SocketAddr,
    path: &str,
    ca_pem: String,
    answered: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
) -> Result<(), NoAnswer> {
    while let Ok(mut connection) = Connection::tls(address, &ca_pem).await {
        loop {
            let answer = connection.post(path, deletion_of(&pod_without_etcd())).await?;
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

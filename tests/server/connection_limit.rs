//! The limit of connections: callers without a valid review cannot close the port.

use std::{io::Write, sync::Arc, time::Duration};

use futures::{StreamExt, future::join_all, stream};
use serde_json::{Value, json};
use test_support::http_client::{self, Connection};
use tokio::time::timeout;

use crate::{Server, UNREACHABLE, deletion_review};

/// The maximum number of connections of the guard.
const LIMIT: usize = 512;

/// The number of concurrent reviews. The API server opens one connection for each.
const REVIEWS: usize = 400;

/// The number of concurrent TLS handshakes of the test.
const HANDSHAKES: usize = 32;

/// The longest time for one TLS handshake, on a busy machine.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// The memory of the guard with all connections, in bytes: a quarter of the container's limit.
const MAX_MEMORY: u64 = 32 << 20;

/// Edge case 54.
#[tokio::test]
async fn idle_connections_do_not_refuse_concurrent_reviews() {
    let server = Arc::new(Server::start(UNREACHABLE));
    let connect = |_| async { http_client::tls(server.address(), &server.guard.ca_pem).await.unwrap() };
    let attackers: Vec<_> =
        stream::iter((0..LIMIT).map(connect)).buffer_unordered(HANDSHAKES).collect().await;
    let connect = |_| async {
        let connect = Connection::tls(server.address(), &server.guard.ca_pem);
        timeout(HANDSHAKE_TIMEOUT, connect).await.expect("the port accepts connections").unwrap()
    };
    let callers: Vec<Connection> =
        stream::iter((0..REVIEWS).map(connect)).buffer_unordered(HANDSHAKES).collect().await;
    let pod = json!({
        "metadata": {"name": "web-0", "namespace": "prod", "uid": "u"},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    });
    let review = deletion_review(&pod).to_string();
    let send = |mut caller: Connection| {
        let review = review.clone();
        async move {
            let response = caller.post("/validate", review).await.unwrap();
            (caller, serde_json::from_str::<Value>(&response.body).unwrap())
        }
    };
    let answers = join_all(callers.into_iter().map(send)).await;
    assert!(answers.iter().all(|(_, answer)| answer["response"]["allowed"] == true));
    let memory = server.guard.anonymous_memory();
    std::io::stderr()
        .write_all(format!("memory with {LIMIT} connections: {memory} bytes\n").as_bytes())
        .unwrap();
    assert!(memory < MAX_MEMORY, "{memory}");
    drop(attackers);
}

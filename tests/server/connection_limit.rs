//! The limit of connections: callers that occupy all of them cannot close the port.

use std::{io::Write, sync::Arc, time::Duration};

use futures::{StreamExt, future::join_all, stream};
use serde_json::{Value, json};
use test_support::http_client::{self, Connection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::client::TlsStream;

use crate::{Server, deletion_review};

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

/// The interval between two bytes of a slow request.
const BYTE_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the review of the deletion of a pod without etcd. The guard approves it without the API server.
fn review() -> String {
    let pod = json!({
        "metadata": {"name": "web-0", "namespace": "prod", "uid": "u"},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    });
    deletion_review(&pod).to_string()
}

/// Sends a review, and returns the open connection with the verdict.
async fn send(mut caller: Connection) -> (Connection, bool) {
    let response = caller.post("/validate", review()).await.unwrap();
    let answer: Value = serde_json::from_str(&response.body).unwrap();
    (caller, answer["response"]["allowed"] == true)
}

fn assert_bounded_memory(server: &Server) {
    let memory = server.guard.anonymous_memory();
    std::io::stderr()
        .write_all(format!("memory with {LIMIT} connections: {memory} bytes\n").as_bytes())
        .unwrap();
    assert!(memory < MAX_MEMORY, "{memory}");
}

/// Sends one valid review, and returns the connection.
async fn attack(server: &Server) -> TlsStream<TcpStream> {
    let mut stream = http_client::tls(server.address(), &server.guard.ca_pem).await.unwrap();
    stream.write_all(request(&review()).as_bytes()).await.unwrap();
    let mut response = vec![0; 4096];
    let length = stream.read(&mut response).await.unwrap();
    assert!(response[..length].starts_with(b"HTTP/1.1 200 OK"));
    stream
}

fn request(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /validate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Sends the bytes of one request slowly, until the guard closes the connection. The last byte never follows.
async fn send_slowly(mut stream: TlsStream<TcpStream>) {
    let request = request(&review());
    for byte in &request.as_bytes()[..request.len() - 1] {
        if stream.write_all(&[*byte]).await.is_err() {
            return;
        }
        sleep(BYTE_INTERVAL).await;
    }
}

#[tokio::test]
async fn idle_connections_do_not_refuse_concurrent_reviews() {
    let server = Arc::new(Server::start_with_lists().await);
    let connect = |_| async { http_client::tls(server.address(), &server.guard.ca_pem).await.unwrap() };
    let attackers: Vec<_> =
        stream::iter((0..LIMIT).map(connect)).buffer_unordered(HANDSHAKES).collect().await;
    let connect = |_| async {
        let connect = Connection::tls(server.address(), &server.guard.ca_pem);
        timeout(HANDSHAKE_TIMEOUT, connect).await.expect("the port accepts connections").unwrap()
    };
    let callers: Vec<Connection> =
        stream::iter((0..REVIEWS).map(connect)).buffer_unordered(HANDSHAKES).collect().await;
    let answers = join_all(callers.into_iter().map(send)).await;
    assert!(answers.iter().all(|(_, is_allowed)| *is_allowed));
    assert_bounded_memory(&server);
    drop(attackers);
}

/// One half of the attackers is idle after the review, the other half sends a second one byte by byte.
#[tokio::test]
async fn forged_reviews_do_not_keep_all_connections() {
    let server = Arc::new(Server::start_with_lists().await);
    let attackers: Vec<_> =
        stream::iter((0..LIMIT).map(|_| attack(&server))).buffer_unordered(HANDSHAKES).collect().await;
    let mut slow = JoinSet::new();
    let mut idle = Vec::new();
    for (n, attacker) in attackers.into_iter().enumerate() {
        if n % 2 == 0 {
            idle.push(attacker);
        } else {
            slow.spawn(send_slowly(attacker));
        }
    }
    // The API server sends a review on each new connection at once.
    let call = |_| async {
        let connect = Connection::tls(server.address(), &server.guard.ca_pem);
        let caller = timeout(HANDSHAKE_TIMEOUT, connect).await.expect("the port accepts connections");
        send(caller.unwrap()).await
    };
    let started = std::time::Instant::now();
    let answers: Vec<_> = stream::iter((0..REVIEWS).map(call)).buffer_unordered(HANDSHAKES).collect().await;
    let connected = started.elapsed();
    assert!(answers.iter().all(|(_, is_allowed)| *is_allowed));
    let callers = answers.into_iter().map(|(caller, _)| caller);
    let answers = join_all(callers.map(send)).await;
    assert!(answers.iter().all(|(_, is_allowed)| *is_allowed));
    let line = format!("{REVIEWS} callers beside {LIMIT} attackers: connected in {connected:?}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    assert_bounded_memory(&server);
    drop(idle);
}

//! The accept loop, with a limit of connections and a graceful stop.

use std::{iter, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Pause after a failed accept, such as one for lack of file descriptors. An immediate retry would spin.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum time for requests to finish after the listener is closed: the maximum timeout of the API server.
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);

/// Accepts up to `max_connections` at a time until `close`, then waits for the accepted ones to finish.
pub(super) async fn accept_connections<F>(
    listener: TcpListener,
    max_connections: usize,
    close: CancellationToken,
    serve: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let connections = TaskTracker::new();
    let permits = Arc::new(Semaphore::new(max_connections));
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = close.cancelled() => break,
            next = next => next,
        };
        match (permit, accepted) {
            (Ok(permit), Ok((stream, _))) => {
                connections.spawn(with_permit(permit, serve(stream)));
            }
            (_, Err(error)) => {
                tracing::warn!(%error, "failed to accept a connection");
                sleep(ACCEPT_RETRY_INTERVAL).await;
            }
            // The semaphore is never closed.
            (Err(_), Ok(_)) => break,
        }
    }
    // For the client, a connection in the backlog is established. Closing the listener would reset it.
    for stream in drain_backlog(listener) {
        connections.spawn(serve(stream));
    }
    connections.close();
    if timeout(FINISH_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!("requests are still in progress at the end of the grace period and are aborted");
    }
}

/// Closes a listener and returns the connections that the kernel has established for it.
fn drain_backlog(listener: TcpListener) -> Vec<TcpStream> {
    // Uses the system call directly, because the runtime may not know these connections yet.
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    let backlog = iter::from_fn(|| listener.accept().ok());
    backlog
        .filter_map(|(stream, _)| {
            stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)).ok()
        })
        .collect()
}

/// Serves a connection and releases its permit afterwards.
async fn with_permit(permit: OwnedSemaphorePermit, connection: impl Future<Output = ()>) {
    connection.await;
    drop(permit);
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Serves a connection by returning the byte that it receives.
    async fn echo(mut stream: TcpStream) {
        let byte = stream.read_u8().await.unwrap();
        stream.write_u8(byte).await.unwrap();
    }

    /// Sends a byte and returns the response.
    async fn exchange(stream: &mut TcpStream, byte: u8) -> io::Result<u8> {
        stream.write_u8(byte).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn serves_backlog_after_close() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let close = CancellationToken::new();
        let accepting = tokio::spawn(accept_connections(listener, 1, close.clone(), echo));
        let mut accepted = TcpStream::connect(address).await.unwrap();
        let mut waiting =
            [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        close.cancel();
        for (byte, stream) in (1..).zip(&mut waiting) {
            assert_eq!(exchange(stream, byte).await.unwrap(), byte);
        }
        assert_eq!(exchange(&mut accepted, 9).await.unwrap(), 9);
        accepting.await.unwrap();
    }

    #[tokio::test]
    async fn accepts_no_connection_after_close() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let close = CancellationToken::new();
        close.cancel();
        accept_connections(listener, 1, close, echo).await;
        assert!(TcpStream::connect(address).await.is_err());
    }
}

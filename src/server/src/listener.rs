//! The accept loop, with a limit of connections and a graceful stop.

use std::{iter, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::slots::{Slot, Slots, Usage};

/// Pause after a failed accept, such as one for lack of file descriptors. An immediate retry would spin.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum time for requests to finish after the listener is closed: the maximum timeout of the API server.
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);

/// Accepts up to `max_connections` at a time until `close`, then waits for the accepted ones to finish. At the limit, a
/// new connection takes the slot of another one, as [`Slots`] describes.
pub(super) async fn accept_connections<F>(
    listener: TcpListener,
    max_connections: usize,
    close: CancellationToken,
    serve: impl Fn(TcpStream, Arc<Usage>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let connections = TaskTracker::new();
    let slots = Slots::new(max_connections);
    loop {
        let accepted = tokio::select! {
            biased;
            () = close.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            }
        };
        let slot = tokio::select! {
            biased;
            () = close.cancelled() => None,
            slot = slots.take() => slot,
        };
        let Some(slot) = slot else {
            connections.spawn(serve(stream, Arc::new(Usage::new())));
            break;
        };
        let usage = Arc::clone(slot.usage());
        connections.spawn(serve_in_slot(slot, serve(stream, usage)));
    }
    // For the client, a connection in the backlog is established. Closing the listener would reset it.
    for stream in drain_backlog(listener) {
        connections.spawn(serve(stream, Arc::new(Usage::new())));
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

/// Serves a connection until it ends or another connection needs its slot. Data that has arrived is read first, because it
/// can be a review.
async fn serve_in_slot(slot: Slot, connection: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = connection => {}
        () = slot.closed() => tracing::debug!("a connection was closed for another one: the limit is reached"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// The first byte of the server. It shows that a review is in progress, so that the connection is not closed for
    /// another one.
    const GREETING: u8 = 255;

    /// Serves a connection by returning the byte that it receives.
    async fn echo(mut stream: TcpStream, usage: Arc<Usage>) {
        let _review = usage.start_review();
        stream.write_u8(GREETING).await.unwrap();
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
        assert_eq!(accepted.read_u8().await.unwrap(), GREETING);
        let mut waiting =
            [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        close.cancel();
        for (byte, stream) in (1..).zip(&mut waiting) {
            assert_eq!(stream.read_u8().await.unwrap(), GREETING);
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

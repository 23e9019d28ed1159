//! The database of one member as a stream, for backups.
//!
//! This is the only response without a limit: etcd sends the database in pieces of 32 KiB, and this module holds one piece. Its
//! connections do not come from the pool, because a backup also runs outside of the cluster, where only a port-forward reaches a member.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use etcd_client::{Channel, Client, Error, SnapshotResponse, SnapshotStreaming};
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};

use super::{
    connection::{channel_builder, log_in},
    response::{member_error, status_of},
    scheme::{SCHEME_TIMEOUT, detect_through},
    unverified::{handshake, unverified_builder},
};
use etcd_guard_core::etcd::{
    endpoint::{Endpoint, url_host},
    error::MemberError,
    member::{Scheme, Status},
};

/// A connection to a member, before TLS.
pub trait MemberStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> MemberStream for T {}

/// Opens a connection to the client port of one member: over TCP, or through a port-forward.
pub type Dial = Arc<dyn Fn() -> BoxFuture<'static, io::Result<Box<dyn MemberStream>>> + Send + Sync>;

/// A member whose database is read. A login, if any, was accepted.
pub struct BackupSource {
    client: Client,
    /// The time for each answer of the member, and for each piece of its database.
    limit: Duration,
}

/// The database of a member, as it was at one moment.
pub struct Database {
    stream: SnapshotStreaming,
    limit: Duration,
}

/// A piece of a database. The last 32 bytes of the last piece are the SHA-256 of all bytes before.
pub struct Piece(SnapshotResponse);

/// Returns the scheme at which the member listens, or `None` if it does not reply.
pub async fn detect_scheme(dial: &Dial) -> Option<Scheme> {
    detect_through(|| dial(), Instant::now() + 10 * SCHEME_TIMEOUT).await
}

/// Returns the channel to a member, whose responses have no limit.
fn channel(endpoint: &Endpoint, dial: Dial) -> Result<Channel, Error> {
    let address = endpoint.url.parse().ok().and_then(|url: Uri| url_host(&url)?.parse::<IpAddr>().ok());
    let unverified = endpoint.accepts_any_certificate().then_some(address).flatten();
    let builder = match unverified {
        Some(_) => unverified_builder(&endpoint.url)?,
        None => channel_builder(endpoint)?,
    };
    let connect = tower::service_fn(move |_: Uri| {
        let dial = Arc::clone(&dial);
        async move {
            let stream = dial().await?;
            let stream: Box<dyn MemberStream> = match unverified {
                Some(address) => Box::new(handshake(address, stream).await?),
                None => stream,
            };
            io::Result::Ok(TokioIo::new(stream))
        }
    });
    Ok(Channel::Tonic(builder.connect_with_connector_lazy(connect)))
}

/// Awaits an answer of a member.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, MemberError> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|error| classify(&error)),
        Err(_) => Err(MemberError::TimedOut(limit)),
    }
}

/// Classifies a failure. Before 3.6, etcd refuses a backup to other users than root without the code for that.
fn classify(error: &Error) -> MemberError {
    match member_error(error) {
        MemberError::Other(text) if text.contains("permission denied") => {
            MemberError::CredentialsRejected(text)
        }
        other => other,
    }
}

// === impl BackupSource ===

impl BackupSource {
    /// Connects to the member at this endpoint, and logs in if the endpoint has a user.
    pub async fn connect(endpoint: &Endpoint, dial: Dial, limit: Duration) -> Result<Self, MemberError> {
        let client = within(limit, async { log_in(channel(endpoint, dial)?, endpoint).await }).await?;
        Ok(Self { client, limit })
    }

    /// Returns the status of the member, and the revision up to which it has applied all changes.
    pub async fn status(&mut self) -> Result<(Status, u64), MemberError> {
        let response = within(self.limit, self.client.status()).await?;
        let revision = response.header().and_then(|header| u64::try_from(header.revision()).ok());
        let status = status_of(&response).zip(revision);
        status.ok_or_else(|| MemberError::Other(String::from("its status has no revision")))
    }

    /// Starts to read the database. With users, etcd requires the role `root`.
    pub async fn database(&mut self) -> Result<Database, MemberError> {
        let stream = within(self.limit, self.client.snapshot()).await?;
        Ok(Database { stream, limit: self.limit })
    }
}

// === impl Database ===

impl Database {
    /// Returns the next piece, or `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Piece>, MemberError> {
        Ok(within(self.limit, self.stream.message()).await?.map(Piece))
    }
}

// === impl Piece ===

impl Piece {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.blob()
    }

    /// The number of bytes of the database that follow, without the hash.
    pub fn remaining(&self) -> u64 {
        self.0.remaining_bytes()
    }
}

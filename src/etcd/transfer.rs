//! Moves leadership from one voter to another.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, field::Empty, info_span};

use super::{Cause, Connections, Endpoint, MemberId};
use crate::traces::SPANS;

/// Longest that a transfer is waited for. A good one takes 100 ms; one to a member that froze never ends by itself, and
/// etcd gives it up after one election timeout, by default a second.
const TRANSFER_LIMIT: Duration = Duration::from_secs(2);

/// Asks the leader at `leader` to hand over to the voter `heir`. etcd accepts this at the leader alone.
pub async fn move_leader(
    connections: &Connections,
    leader: &Endpoint,
    heir: MemberId,
    deadline: Instant,
) -> Result<(), Cause> {
    let deadline = deadline.min(Instant::now() + TRANSFER_LIMIT);
    let transfer = async {
        let (mut client, _) = connections.get(leader).await?;
        client.move_leader(heir.0).await
    };
    let span = info_span!(target: SPANS, "moving leadership", heir = %heir, failed = Empty);
    let moved = match timeout_at(deadline, transfer).instrument(span.clone()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Cause::of(&error)),
        Err(_) => Err(Cause::TimedOut(TRANSFER_LIMIT)),
    };
    if let Err(cause) = &moved {
        span.record("failed", cause.label());
    }
    moved
}

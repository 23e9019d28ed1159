//! Transfer of the leadership from one voter to another.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, field::Empty, info_span};

use super::{connection::Connections, response::member_error};
use etcd_guard_core::{
    etcd::{endpoint::Endpoint, error::MemberError, member::MemberId},
    spans::SPAN_TARGET,
};

/// Timeout of a transfer. A successful transfer takes 100 ms. A transfer to a frozen member never completes, and etcd
/// aborts it after one election timeout, by default one second.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);

/// Transfers the leadership from the member at the endpoint `leader` to the voter `transferee`. Only the leader accepts
/// this request.
pub async fn move_leader(
    connections: &Connections,
    leader: &Endpoint,
    transferee: MemberId,
    deadline: Instant,
) -> Result<(), MemberError> {
    let deadline = deadline.min(Instant::now() + TRANSFER_TIMEOUT);
    let transfer = async {
        let mut moved = Err(MemberError::Unreachable(String::from("the member has no address")));
        for address in connections.addresses(leader) {
            moved = move_leader_at(connections, &address, transferee).await;
            // Another address can only help if no process received the request.
            if !matches!(moved, Err(MemberError::Refused(_) | MemberError::Unreachable(_))) {
                break;
            }
        }
        moved
    };
    let span = info_span!(target: SPAN_TARGET, "moving leadership", transferee = %transferee, failed = Empty);
    let moved = match timeout_at(deadline, transfer).instrument(span.clone()).await {
        Ok(moved) => moved,
        Err(_) => Err(MemberError::TimedOut(TRANSFER_TIMEOUT)),
    };
    if let Err(cause) = &moved {
        span.record("failed", cause.label());
    }
    moved
}

async fn move_leader_at(
    connections: &Connections,
    leader: &Endpoint,
    transferee: MemberId,
) -> Result<(), MemberError> {
    let (mut client, _) = connections.get(leader).await.map_err(|error| member_error(&error))?;
    client.move_leader(transferee.0).await.map(drop).map_err(|error| member_error(&error))
}

//! Defragmentation of a member, and the end of alarms.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client};
use tokio::time::{Instant, timeout_at};

use super::{connection::Connections, response::member_error};
use etcd_guard_core::etcd::{
    endpoint::Endpoint,
    error::MemberError,
    member::{AlarmKind, MemberId},
};

/// Defragments the database of the member at this endpoint, within the time limit. The member answers no other request meanwhile:
/// etcd copies what is in use to a new file. A call that ends early does not end the work of the member.
pub async fn defragment(
    connections: &Connections,
    member: &Endpoint,
    limit: Duration,
) -> Result<(), MemberError> {
    let call = async {
        let mut client = client(connections, member).await?;
        client.defragment().await.map(drop).map_err(|error| member_error(&error))
    };
    match timeout_at(Instant::now() + limit, call).await {
        Ok(done) => done,
        Err(_) => Err(MemberError::TimedOut(limit)),
    }
}

/// Ends the alarms of this kind of these members, by a proposal of the member at this endpoint.
pub async fn disarm(
    connections: &Connections,
    member: &Endpoint,
    kind: AlarmKind,
    alarmed: &[MemberId],
    limit: Duration,
) -> Result<(), MemberError> {
    let kind = match kind {
        AlarmKind::Corrupt => AlarmType::Corrupt,
        AlarmKind::NoSpace => AlarmType::Nospace,
    };
    let calls = async {
        let mut client = client(connections, member).await?;
        for id in alarmed {
            let mut options = AlarmOptions::new();
            options.with_member(id.0);
            let disarm = client.alarm(AlarmAction::Deactivate, kind, Some(options));
            disarm.await.map_err(|error| member_error(&error))?;
        }
        Ok(())
    };
    match timeout_at(Instant::now() + limit, calls).await {
        Ok(done) => done,
        Err(_) => Err(MemberError::TimedOut(limit)),
    }
}

/// Returns a client of the member at the address that answered last.
pub(super) async fn client(connections: &Connections, member: &Endpoint) -> Result<Client, MemberError> {
    let address = connections.addresses(member).into_iter().next();
    let address =
        address.ok_or_else(|| MemberError::Unreachable(String::from("the member has no address")))?;
    let (client, _) = connections.get(&address).await.map_err(|error| member_error(&error))?;
    Ok(client)
}

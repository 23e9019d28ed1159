//! Changes of the member list.

use std::time::Duration;

use etcd_client::MemberAddOptions;
use tokio::time::{Instant, timeout_at};

use super::{connection::Connections, defragmentation::client, response::member_error};
use etcd_guard_core::etcd::{endpoint::Endpoint, error::MemberError, member::MemberId};

/// One change of the member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// To remove this member.
    Remove(MemberId),
    /// To add a learner with these peer URLs.
    AddLearner(Vec<String>),
    /// To make this learner a voter. etcd refuses until the learner has caught up with the leader.
    Promote(MemberId),
}

/// Changes the member list, by a proposal of the member at this endpoint. A call that ends early may still take effect.
pub async fn change_members(
    connections: &Connections,
    member: &Endpoint,
    change: &MemberChange,
    limit: Duration,
) -> Result<(), MemberError> {
    let call = async {
        let mut client = client(connections, member).await?;
        let changed = match change {
            MemberChange::Remove(id) => client.member_remove(id.0).await.map(drop),
            MemberChange::AddLearner(peer_urls) => {
                let learner = MemberAddOptions::new().with_is_learner();
                client.member_add(peer_urls.as_slice(), Some(learner)).await.map(drop)
            }
            MemberChange::Promote(id) => client.member_promote(id.0).await.map(drop),
        };
        changed.map_err(|error| member_error(&error))
    };
    match timeout_at(Instant::now() + limit, call).await {
        Ok(done) => done,
        Err(_) => Err(MemberError::TimedOut(limit)),
    }
}

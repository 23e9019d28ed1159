//! What an etcd member says at its own address: the truth that the guard is measured against.

use std::{net::Ipv4Addr, time::Duration};

use etcd_client::{Client, Error, GetOptions, StatusResponse};
use tokio::time::timeout;

/// Longest that a member is waited for; one that is well answers in milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Where clients find a member.
pub const CLIENT_PORT: u16 = 2379;

/// A member of a plain cluster.
pub struct Member {
    url: String,
}

impl Member {
    pub fn at(address: Ipv4Addr) -> Self {
        Self { url: format!("http://{address}:{CLIENT_PORT}") }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether it reaches a quorum and is caught up.
    pub async fn serves(&self) -> bool {
        let read =
            async { self.client().await?.get("health", Some(GetOptions::new().with_count_only())).await };
        matches!(timeout(ANSWER_LIMIT, read).await, Ok(Ok(_)))
    }

    pub async fn status(&self) -> Option<StatusResponse> {
        let status = async { self.client().await?.status().await };
        timeout(ANSWER_LIMIT, status).await.ok()?.ok()
    }

    /// Its id, as texts show it.
    pub async fn id(&self) -> String {
        let status = self.status().await.expect("a member that answers");
        format!("{:x}", status.header().expect("a header").member_id())
    }

    pub async fn client(&self) -> Result<Client, Error> {
        Client::connect([&self.url], None).await
    }
}

/// Whether the member that says this leads.
pub fn leads(status: &StatusResponse) -> bool {
    status.leader() == status.header().map_or(0, etcd_client::ResponseHeader::member_id)
}

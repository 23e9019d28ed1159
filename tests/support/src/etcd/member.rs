//! An etcd member at its own address: the actual state that verdicts are compared with.

use std::{net::Ipv4Addr, time::Duration};

use etcd_client::{Client, ConnectOptions, Error, GetOptions, StatusResponse};
use tokio::time::timeout;

/// The longest time for a response; a healthy member answers in milliseconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time for a call of a test, which otherwise has no limit.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The client port of members.
pub const CLIENT_PORT: u16 = 2379;

/// A member of a cluster without TLS.
pub struct Member {
    url: String,
}

impl Member {
    /// Returns the member that listens on the client port of this address.
    pub fn at(address: Ipv4Addr) -> Self {
        Self { url: format!("http://{address}:{CLIENT_PORT}") }
    }

    /// The client URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether a linearizable read succeeds.
    pub async fn serves(&self) -> bool {
        let read =
            async { self.client().await?.get("health", Some(GetOptions::new().with_count_only())).await };
        matches!(timeout(RESPONSE_TIMEOUT, read).await, Ok(Ok(_)))
    }

    /// Returns the status, unless the member does not answer in time.
    pub async fn status(&self) -> Option<StatusResponse> {
        let status = async { self.client().await?.status().await };
        timeout(RESPONSE_TIMEOUT, status).await.ok()?.ok()
    }

    /// Returns the member id in the format of messages.
    pub async fn id(&self) -> String {
        let status = self.status().await.expect("the member answers");
        format!("{:x}", status.header().expect("a header").member_id())
    }

    /// Connects to the member.
    pub async fn client(&self) -> Result<Client, Error> {
        Client::connect([&self.url], Some(ConnectOptions::new().with_timeout(CALL_TIMEOUT))).await
    }
}

/// Whether the member with this status is the leader.
pub fn leads(status: &StatusResponse) -> bool {
    status.leader() == status.header().map_or(0, etcd_client::ResponseHeader::member_id)
}

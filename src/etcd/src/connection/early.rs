//! Connections that are opened before their use, while the API server is read.

use etcd_client::{Client, Error};
use tokio::task::JoinSet;

use super::{Connections, channel_builder, connect_options};
use crate::limits::limited;
use etcd_guard_core::etcd::endpoint::Endpoint;

/// Connections that are being opened. A drop has the effect of [`EarlyConnections::abandon`].
pub struct EarlyConnections {
    tasks: JoinSet<()>,
}

// === impl Connections ===

impl Connections {
    /// Starts to open a connection to each of these members for which the pool has none. Stores each connection as soon as it is open.
    /// A failure is ignored, because the next probe opens the connection again. Only the probe opens the connections that
    /// [`Endpoint::can_connect_early`] excludes.
    pub fn connect_early(&self, endpoints: &[Endpoint]) -> EarlyConnections {
        let mut tasks = JoinSet::new();
        if self.transport.is_some() {
            return EarlyConnections { tasks };
        }
        let first_address = |endpoint: &Endpoint| self.addresses(endpoint).into_iter().next();
        for address in endpoints.iter().filter(|known| known.can_connect_early()).filter_map(first_address) {
            if self.open.get(&address).is_some() {
                continue;
            }
            let pool = self.clone();
            tasks.spawn(async move {
                if let Ok(client) = connect(&address).await {
                    pool.store(&address, &client);
                }
            });
        }
        EarlyConnections { tasks }
    }
}

// === impl EarlyConnections ===

impl EarlyConnections {
    /// Abandons the connections that are not open.
    pub fn abandon(mut self) {
        self.tasks.abort_all();
    }
}

/// Opens the connection to a member that requires no login. Has no time limit of its own.
async fn connect(endpoint: &Endpoint) -> Result<Client, Error> {
    let channel = channel_builder(endpoint)?.connect().await?;
    Client::from_channel(limited(channel), Some(connect_options(endpoint))).await
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tokio::{io::AsyncReadExt, net::TcpListener, time::timeout};

    use super::*;
    use etcd_guard_core::etcd::endpoint::{Tls, User};

    #[tokio::test]
    async fn opens_missing_connections_before_their_use() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answering = Endpoint {
            url: format!("http://{}", listener.local_addr().unwrap()),
            other_urls: Vec::new(),
            tls: None,
            user: None,
        };
        let (mut refusing, mut with_login) = (answering.clone(), answering.clone());
        refusing.url = String::from("http://127.0.0.1:1");
        with_login.user = Some(User { name: String::from("guard"), password: Arc::from("secret") });
        let connections = Connections::new();
        for expected in [2, 1] {
            let early = connections.connect_early(&[refusing.clone(), answering.clone(), with_login.clone()]);
            assert_eq!(early.tasks.len(), expected);
            early.tasks.join_all().await;
        }
        assert!(connections.get(&answering).await.unwrap().1);
        assert!(!connections.get(&refusing).await.unwrap().1);
        assert!(connections.open.get(&with_login).is_none());
        let accept = async || timeout(Duration::from_millis(200), listener.accept()).await;
        assert!(accept().await.is_ok());
        assert!(accept().await.is_err(), "the second call reuses the connection, and neither call logs in");
    }

    #[tokio::test]
    async fn abandoned_connection_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tls = Tls {
            server_name: String::from("etcd-0"),
            ca: None,
            accepts_any_certificate: false,
            identity: None,
        };
        let without_handshake = Endpoint {
            url: format!("https://{}", listener.local_addr().unwrap()),
            other_urls: Vec::new(),
            tls: Some(tls),
            user: None,
        };
        let early = Connections::new().connect_early(&[without_handshake]);
        let (mut stream, _) = listener.accept().await.unwrap();
        early.abandon();
        let mut received = Vec::new();
        let end = timeout(Duration::from_secs(10), stream.read_to_end(&mut received)).await;
        end.expect("the connection is closed").unwrap();
    }
}

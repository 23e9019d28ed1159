//! One client per member: a client with several endpoints asks one of them by chance, which says nothing of the others.

use std::{fmt, sync::Arc, time::Duration};

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use moka::sync::Cache;

/// A connection that nobody used for this long is closed. Deletions come in waves: a rollout, a drain.
const IDLE_LIMIT: Duration = Duration::from_secs(300);

/// More members than any guard looks after; a bound against an endless list of pods that come and go.
const MOST_CONNECTIONS: u64 = 1024;

/// Where one member listens to its clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Scheme, host and port, for instance `https://10.244.0.7:2379`.
    pub url: String,
    /// What a TLS connection needs; for plain HTTP nothing.
    pub tls: Option<Tls>,
    /// Whom to log in as, where members ask for a user and a password.
    pub user: Option<User>,
}

/// A user of etcd's own. A login is a raft proposal and takes 80 ms of computing on purpose, so that connections are kept;
/// a client certificate with the user's name needs none.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The user's password.
    pub password: Arc<str>,
}

/// What a TLS connection to a member needs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The name that the member's certificate is checked against; the address is dialled, not this name.
    pub server_name: String,
    /// The certificates (PEM) that the member's must lead to; without them no certificate is accepted.
    pub ca: Option<Arc<[u8]>>,
    /// Who this client is, where members ask for a certificate.
    pub identity: Option<ClientIdentity>,
}

/// A certificate and its key, both PEM.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClientIdentity {
    /// The certificate chain.
    pub certificate: Arc<[u8]>,
    /// The certificate's private key.
    pub key: Arc<[u8]>,
}

/// Open connections, kept for the next round.
#[derive(Clone)]
pub struct Connections {
    open: Cache<Endpoint, Client>,
}

// === impl Connections ===

impl Connections {
    /// No connection yet.
    #[must_use]
    pub fn new() -> Self {
        Self { open: Cache::builder().max_capacity(MOST_CONNECTIONS).time_to_idle(IDLE_LIMIT).build() }
    }

    /// The connection to this member, and whether it served an earlier round.
    pub(super) async fn get(&self, endpoint: &Endpoint) -> Result<(Client, bool), Error> {
        if let Some(client) = self.open.get(endpoint) {
            return Ok((client, true));
        }
        // No limits here: those of this client leave a TLS handshake unbounded. Every caller has a limit around all of it.
        let client = match Box::pin(Client::connect([&endpoint.url], Some(endpoint.options()))).await {
            Err(error) if endpoint.user.is_some() && is_without_users(&error) => {
                let options = Endpoint { user: None, ..endpoint.clone() }.options();
                Box::pin(Client::connect([&endpoint.url], Some(options))).await?
            }
            connected => connected?,
        };
        self.open.insert(endpoint.clone(), client.clone());
        Ok((client, false))
    }

    /// Makes the next round connect anew.
    pub(super) fn forget(&self, endpoint: &Endpoint) {
        self.open.invalidate(endpoint);
    }
}

impl Default for Connections {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether authentication is switched off, so that nobody can log in, and nobody needs to.
fn is_without_users(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("authentication is not enabled"))
}

// === impl Endpoint ===

impl Endpoint {
    fn options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new();
        if let Some(tls) = &self.tls {
            options = options.with_tls(tls.options());
        }
        match &self.user {
            Some(User { name, password }) => options.with_user(name.as_str(), password.as_ref()),
            None => options,
        }
    }

    /// Who the member sees, in words for a person.
    pub(super) fn who(&self) -> String {
        let has_certificate = self.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        match &self.user {
            Some(user) => format!("user {}", user.name),
            None if has_certificate => String::from("the user that the client certificate names"),
            None => String::from("a client without a user"),
        }
    }
}

// === impl User ===

/// Only the name: passwords stay out of every log.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl Tls ===

impl Tls {
    fn options(&self) -> TlsOptions {
        let mut options = TlsOptions::new().domain_name(self.server_name.as_str());
        if let Some(ca) = &self.ca {
            options = options.ca_certificate(Certificate::from_pem(ca));
        }
        match &self.identity {
            Some(own) => options.identity(Identity::from_pem(&own.certificate, &own.key)),
            None => options,
        }
    }
}

/// Names only the server: keys stay out of every log.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

//! The client address of a member and the credentials for it.

use std::{fmt, sync::Arc};

use super::member::Scheme;

/// The client address of one member, with the credentials for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Scheme, host and port, for instance `https://10.244.0.7:2379`.
    pub url: String,
    /// Further URLs of the same member, for a pod with several addresses.
    pub other_urls: Vec<String>,
    /// Settings of the TLS connection; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// The user of the login, if members require a user and a password.
    pub user: Option<User>,
}

/// A user of etcd. A login is a raft proposal and takes 80 ms of computing by design. Connections are therefore pooled.
/// A client certificate with the user's name needs no login.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The user's password.
    pub password: Arc<str>,
}

/// Settings of a TLS connection to a member.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The name that the member's certificate must contain. The connection goes to the endpoint's address, not to this
    /// name.
    pub server_name: String,
    /// Trusted certificate authorities (PEM) for the member's certificate. `None` accepts no certificate.
    pub ca: Option<Arc<[u8]>>,
    /// Whether every certificate is accepted, of a member that issues its own one. The other fields are then not used.
    pub accepts_any_certificate: bool,
    /// The client certificate, if members require one.
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

// === impl Endpoint ===

impl Endpoint {
    /// Returns the endpoint of the same member with this URL only. A certificate that must name the first address must
    /// name this URL's address instead.
    pub fn at(&self, url: &str) -> Self {
        let mut endpoint = Self { url: url.to_owned(), other_urls: Vec::new(), ..self.clone() };
        if let Some(tls) = &mut endpoint.tls
            && host(&self.url).is_some_and(|first| first == tls.server_name)
            && let Some(own) = host(url)
        {
            tls.server_name = own;
        }
        endpoint
    }

    /// Changes an endpoint of plain HTTP to one with these TLS settings.
    pub fn use_tls(&mut self, tls: Tls) {
        for url in [&mut self.url].into_iter().chain(&mut self.other_urls) {
            if let Some(address) = url.strip_prefix("http://") {
                *url = format!("https://{address}");
            }
        }
        self.tls = Some(tls);
    }

    /// Returns the scheme of the URL.
    pub fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::Https } else { Scheme::Http }
    }

    /// Whether a connection can be opened before its use: not if it requires a login, which is a raft proposal, or accepts every
    /// certificate.
    pub fn can_connect_early(&self) -> bool {
        self.user.is_none() && !self.accepts_any_certificate()
    }

    /// Whether the connection accepts every certificate of the member.
    pub fn accepts_any_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.accepts_any_certificate)
    }

    /// Describes the user as which the member authenticates this client, for messages.
    pub fn identity_description(&self) -> String {
        let has_certificate = self.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        match &self.user {
            Some(user) => format!("user {}", user.name),
            None if has_certificate => String::from("the user that the client certificate names"),
            None => String::from("a client without a user"),
        }
    }
}

/// Returns the host of a URL. An IPv6 address has no brackets, as in certificates and in the status of pods.
pub fn url_host(uri: &http::Uri) -> Option<&str> {
    let host = uri.host()?;
    Some(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host))
}

/// Returns the host in the text of a URL, as [`url_host`] does.
fn host(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    url_host(&uri).map(str::to_owned)
}

// === impl User ===

/// Shows only the name: logs must not contain passwords.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl Tls ===

/// Shows only the server name: logs must not contain keys.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

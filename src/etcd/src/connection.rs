//! Connections to members, with one client per member. A client with several endpoints would send each call to an
//! arbitrary endpoint, and its response would prove nothing about the other members.

pub(crate) mod early;

use std::{sync::Arc, time::Duration};

use etcd_client::{Certificate, Channel, Client, ConnectOptions, Error, Identity, TlsOptions};
use http::Uri;
use tonic::transport;

use super::{limits::limited, unverified::unverified_channel};
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::etcd::endpoint::{Endpoint, Tls, User};

/// Time after which an unused connection is closed. It exceeds the pause between two pods of a rollout or drain.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum number of pooled connections of evaluations: those to the members of 32 clusters of three. A full pool closes the connection
/// that no evaluation has used for the longest time.
const MAX_CONNECTIONS: u64 = 96;

/// Maximum number of pooled connections of surveys. A survey of more members connects to most of them again, so that it neither
/// occupies the memory of a connection to each member nor closes the connections of evaluations.
const MAX_SURVEY_CONNECTIONS: u64 = 24;

/// Maximum number of members with several URLs of which the pool stores the one that answered.
const MAX_ANSWERING_URLS: u64 = 1024;

/// A pool of open connections, reused by the next probe rounds.
#[derive(Clone)]
pub struct Connections {
    open: ExpiringCache<Endpoint, Client>,
    /// The connections of evaluations, which a pool for surveys uses as well.
    shared: Option<ExpiringCache<Endpoint, Client>>,
    /// The URL that answered last, of members with several URLs.
    answering_urls: ExpiringCache<Endpoint, String>,
    /// Creates the channels; `None` for connections over TCP.
    transport: Option<Transport>,
}

/// Creates the channel to the member at a URL, in the place of a connection over TCP: the seam through which a simulation
/// provides members.
pub type Transport = Arc<dyn Fn(&str) -> Channel + Send + Sync>;

// === impl Connections ===

impl Connections {
    /// Creates an empty pool.
    pub fn new() -> Self {
        Self::with(None)
    }

    /// Creates an empty pool of channels that this transport creates.
    pub fn through(transport: Transport) -> Self {
        Self::with(Some(transport))
    }

    fn with(transport: Option<Transport>) -> Self {
        Self {
            transport,
            open: ExpiringCache::new(MAX_CONNECTIONS, Lifetime::SinceUse(IDLE_TIMEOUT)),
            shared: None,
            answering_urls: ExpiringCache::new(MAX_ANSWERING_URLS, Lifetime::SinceUse(IDLE_TIMEOUT)),
        }
    }

    /// Returns a pool for surveys, which uses the open connections of this pool and stores its own ones elsewhere: a survey of many
    /// clusters does not close the connections of evaluations. A survey does not renew the idle time of a connection of an evaluation.
    pub fn for_surveys(&self) -> Self {
        Self {
            open: ExpiringCache::new(MAX_SURVEY_CONNECTIONS, Lifetime::SinceUse(IDLE_TIMEOUT)),
            shared: Some(self.open.clone()),
            ..self.clone()
        }
    }

    /// Returns the connection to this member, and whether it is a pooled one.
    pub(super) async fn get(&self, endpoint: &Endpoint) -> Result<(Client, bool), Error> {
        let shared = self.shared.as_ref().and_then(|shared| shared.peek(endpoint));
        if let Some(client) = shared.or_else(|| self.open.get(endpoint)) {
            return Ok((client, true));
        }
        // Every caller sets a timeout for this call.
        let client = log_in(self.channel(endpoint)?, endpoint).await?;
        self.store(endpoint, &client);
        Ok((client, false))
    }

    fn store(&self, endpoint: &Endpoint, client: &Client) {
        self.open.insert(endpoint.clone(), client.clone());
        self.open.evict();
    }

    /// Creates the channel to a member. It connects at the first call. The channels of `Client::connect` also contain a
    /// balancer between several members.
    pub(super) fn channel(&self, endpoint: &Endpoint) -> Result<Channel, Error> {
        if let Some(transport) = &self.transport {
            return Ok(transport(&endpoint.url));
        }
        let builder = channel_builder(endpoint)?;
        if endpoint.accepts_any_certificate() {
            return Ok(unverified_channel(&endpoint.url)?);
        }
        Ok(limited(builder.connect_lazy()))
    }

    /// Whether [`Self::channel`] opens a TCP connection without TLS.
    pub(super) fn opens_plain_tcp(&self, endpoint: &Endpoint) -> bool {
        self.transport.is_none() && endpoint.tls.is_none()
    }

    /// Returns one endpoint for each URL of a member, first the one that answered last.
    pub(super) fn addresses(&self, endpoint: &Endpoint) -> Vec<Endpoint> {
        if endpoint.other_urls.is_empty() {
            return vec![endpoint.clone()];
        }
        let mut urls: Vec<&String> = [&endpoint.url].into_iter().chain(&endpoint.other_urls).collect();
        if let Some(answering) = self.answering_urls.get(endpoint) {
            urls.sort_by_key(|url| **url != answering);
        }
        urls.into_iter().map(|url| endpoint.at(url)).collect()
    }

    /// Records that a member answered at this address, which is one of [`Self::addresses`].
    pub(super) fn record_answer(&self, endpoint: &Endpoint, address: &Endpoint) {
        if !endpoint.other_urls.is_empty() {
            self.answering_urls.insert(endpoint.clone(), address.url.clone());
        }
    }

    /// Removes the connection from the pool: the next probe round opens a new one.
    pub(super) fn remove(&self, endpoint: &Endpoint) {
        self.open.invalidate(endpoint);
        if let Some(shared) = &self.shared {
            shared.invalidate(endpoint);
        }
    }
}

impl Default for Connections {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a client of the member behind a channel. A client with a user logs in.
pub(super) async fn log_in(channel: Channel, endpoint: &Endpoint) -> Result<Client, Error> {
    let connect = |options| Box::pin(Client::from_channel(channel.clone(), Some(options)));
    match connect(connect_options(endpoint)).await {
        Err(error) if endpoint.user.is_some() && is_authentication_disabled(&error) => {
            connect(connect_options(&Endpoint { user: None, ..endpoint.clone() })).await
        }
        connected => connected,
    }
}

/// Whether the cluster has authentication disabled. A login then fails, and is not required.
fn is_authentication_disabled(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("authentication is not enabled"))
}

/// Returns the settings of a connection to the first URL, whose scheme must be that of the TLS settings. A connection that
/// accepts every certificate has other settings.
pub(super) fn channel_builder(endpoint: &Endpoint) -> Result<transport::Endpoint, Error> {
    let url: Uri = endpoint.url.parse()?;
    // tonic would send the password of a user over a connection without TLS.
    if url.scheme_str() != Some(endpoint.scheme().as_str()) {
        let message = format!("the scheme of {} contradicts the TLS settings of the endpoint", endpoint.url);
        return Err(Error::InvalidArgs(message));
    }
    let builder = transport::Channel::builder(url);
    match &endpoint.tls {
        Some(tls) if !tls.accepts_any_certificate => Ok(builder.tls_config(tls_options(tls))?),
        Some(_) | None => Ok(builder),
    }
}

/// Returns the login of a connection.
fn connect_options(endpoint: &Endpoint) -> ConnectOptions {
    let options = ConnectOptions::new();
    match &endpoint.user {
        Some(User { name, password }) => options.with_user(name.as_str(), password.as_ref()),
        None => options,
    }
}

/// Returns the settings of a connection with TLS.
fn tls_options(tls: &Tls) -> TlsOptions {
    let mut options = TlsOptions::new().domain_name(tls.server_name.as_str());
    if let Some(ca) = &tls.ca {
        options = options.ca_certificate(Certificate::from_pem(ca));
    }
    match &tls.identity {
        Some(identity) => options.identity(Identity::from_pem(&identity.certificate, &identity.key)),
        None => options,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::advance;

    use super::*;

    fn endpoint(number: u64) -> Endpoint {
        let url = format!("http://10.0.{}.{}:2379", number / 256, number % 256);
        Endpoint { url, other_urls: Vec::new(), tls: None, user: None }
    }

    #[tokio::test]
    async fn survey_keeps_the_connections_of_evaluations() {
        let created: Arc<Mutex<Vec<String>>> = Arc::default();
        let record = Arc::clone(&created);
        let connections = Connections::through(Arc::new(move |url: &str| {
            record.lock().unwrap().push(url.to_owned());
            Channel::Tonic(transport::Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy())
        }));
        let survey = connections.for_surveys();
        let is_pooled = async |pool: &Connections, number| pool.get(&endpoint(number)).await.unwrap().1;
        assert!(!is_pooled(&connections, 0).await);
        for number in 0..2 * MAX_CONNECTIONS {
            assert_eq!(is_pooled(&survey, number).await, number == 0, "it uses the open connection");
        }
        assert!(is_pooled(&connections, 0).await, "the survey has not closed it");
        assert!(!is_pooled(&connections, 1).await, "an evaluation opens its own connections");
        assert_eq!(survey.open.values().count(), usize::try_from(MAX_SURVEY_CONNECTIONS).unwrap());
        survey.remove(&endpoint(0));
        assert!(!is_pooled(&connections, 0).await, "the connection failed");
        assert_eq!(created.lock().unwrap().len(), usize::try_from(2 * MAX_CONNECTIONS + 2).unwrap());
    }

    /// With a survey once a minute, such a use would keep each connection open, and a full pool would close the
    /// connections of recent evaluations instead.
    #[tokio::test(start_paused = true)]
    async fn survey_is_no_use_of_the_connection_of_an_evaluation() {
        let connections = Connections::new();
        let survey = connections.for_surveys();
        let is_pooled = async |pool: &Connections, number| pool.get(&endpoint(number)).await.unwrap().1;
        for number in 0..MAX_CONNECTIONS {
            assert!(!is_pooled(&connections, number).await);
        }
        assert!(is_pooled(&survey, 0).await);
        assert!(!is_pooled(&connections, MAX_CONNECTIONS).await, "a further member");
        assert!(!is_pooled(&connections, 0).await, "no evaluation has used it for the longest time");
        advance(IDLE_TIMEOUT / 2).await;
        assert!(is_pooled(&survey, MAX_CONNECTIONS).await);
        advance(IDLE_TIMEOUT / 2).await;
        assert!(
            !is_pooled(&connections, MAX_CONNECTIONS).await,
            "no evaluation has used it for the idle time"
        );
    }

    #[tokio::test]
    async fn repeated_deletions_in_one_cluster_close_no_other_connection() {
        let connections = Connections::new();
        let is_pooled = async |number| connections.get(&endpoint(number)).await.unwrap().1;
        for number in 0..MAX_CONNECTIONS {
            assert!(!is_pooled(number).await);
        }
        for _ in 0..1000 {
            for number in 0..3 {
                assert!(is_pooled(number).await);
            }
        }
        for number in 0..MAX_CONNECTIONS {
            assert!(is_pooled(number).await, "{number}");
        }
        assert!(!is_pooled(MAX_CONNECTIONS).await, "a further member");
        assert!(!is_pooled(0).await, "it was unused for the longest time");
    }

    #[tokio::test]
    async fn refuses_urls_that_contradict_the_tls_settings() {
        let tls =
            Tls { server_name: String::new(), ca: None, accepts_any_certificate: false, identity: None };
        for (scheme, tls) in [("http", Some(tls)), ("https", None)] {
            let endpoint = Endpoint { url: format!("{scheme}://10.0.0.1:2379"), tls, ..endpoint(0) };
            let error = Connections::new().get(&endpoint).await.err().unwrap();
            assert!(matches!(error, Error::InvalidArgs(_)), "{error}");
        }
    }
}

//! Release, clock and certificate of each replica.

use std::collections::BTreeMap;

use anyhow::Context;
use http::Uri;
use time::OffsetDateTime;
use tokio::{net::TcpStream, time::timeout};

use super::{
    api_server::ClockOffset,
    certificate::ServedChain,
    handshake::{self, HANDSHAKE_TIMEOUT},
    installation::Installation,
    remedies::urls,
    replicas::Replicas,
};
use crate::{
    api_server::ApiServer,
    guard_client::{
        GuardClient, GuardEndpoint,
        replica::{MAX_REPLICAS, Replica, release},
    },
};
use etcd_guard_cli::{printing::causes, terminal::waiting::with_notice};
use etcd_guard_core::escape::{MAX_ERROR_CHARS, to_bounded_line};

/// What the replicas report about themselves.
#[derive(Default)]
pub(super) struct Reports {
    /// The release by replica.
    pub(super) releases: BTreeMap<String, String>,
    pub(super) clocks: Vec<ClockOffset>,
    pub(super) chains: Vec<ServedChain>,
    /// Why the release and the clock of a replica could not be read.
    pub(super) unread_replicas: Vec<String>,
    /// Why the certificate of a server could not be read.
    pub(super) unread_certificates: Vec<String>,
}

// === impl Reports ===

impl Reports {
    /// Reads release, clock and certificate of each replica. Returns the time of the API server as well.
    pub(super) async fn read(
        guard: &GuardClient,
        replicas: &Replicas,
        installation: &Installation,
    ) -> (Result<OffsetDateTime, String>, Self) {
        let mut reports = Self::default();
        let before = OffsetDateTime::now_utc();
        let now = with_notice("the time of the API server", api_server_time(&guard.api_server)).await;
        // The time was read in the middle of the call.
        let elapsed: time::Duration = OffsetDateTime::now_utc() - before;
        let local = before + elapsed / 2;
        let own_offset = now.as_ref().map_or(0, |now| seconds_between(*now, local));
        let own =
            ClockOffset { subject: String::from("this machine"), is_replica: false, seconds: own_offset };
        reports.clocks.push(own);
        let targets: Vec<Replica> = match &guard.endpoint {
            GuardEndpoint::Url(address) => vec![Replica::Url(address.clone())],
            GuardEndpoint::PortForward { .. } => {
                replicas.ready().take(MAX_REPLICAS).map(Replica::from_pod).collect()
            }
        };
        for replica in &targets {
            if let Err(error) = reports.read_metrics(guard, replica, own_offset).await {
                reports.unread_replicas.push(bounded(&error));
            }
        }
        let further = replicas.ready().count().saturating_sub(MAX_REPLICAS);
        if further > 0 {
            let text = format!("{further} further replicas were not read: at most {MAX_REPLICAS} are");
            reports.unread_replicas.push(text);
        }
        let configurations = installation.configurations.iter();
        let registered = configurations.filter_map(|(_, read)| read.as_ref().ok()?.as_ref());
        let mut addresses: Vec<String> =
            registered.flat_map(urls).filter_map(|url| authority(&url)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        for address in &addresses {
            let subject = format!("the certificate of the server at {address}");
            match with_notice(&subject, read_chain_at(address)).await {
                Ok(chain) => reports.chains.push(chain),
                Err(error) => reports.unread_certificates.push(bounded(&error)),
            }
        }
        if addresses.is_empty() {
            for replica in replicas.ready().take(MAX_REPLICAS).map(Replica::from_pod) {
                let subject = format!("the certificate of {}", replica.describe());
                match with_notice(&subject, read_chain(guard, &replica)).await {
                    Ok(chain) => reports.chains.push(chain),
                    Err(error) => reports.unread_certificates.push(bounded(&error)),
                }
            }
        }
        (now, reports)
    }

    async fn read_metrics(
        &mut self,
        guard: &GuardClient,
        replica: &Replica,
        own_offset: i64,
    ) -> anyhow::Result<()> {
        let response = guard.get_from(replica, "/metrics").await?;
        let date = response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
        if let Some(time) = date.and_then(|date| httpdate::parse_http_date(date).ok()) {
            let ahead = seconds_between(OffsetDateTime::now_utc(), OffsetDateTime::from(time));
            let seconds = ahead.saturating_add(own_offset);
            self.clocks.push(ClockOffset { subject: replica.describe(), is_replica: true, seconds });
        }
        let release = release(&String::from_utf8_lossy(response.body()));
        let release = release.context("the metrics of the guard contain no release")?;
        self.releases.insert(replica.describe(), release);
        Ok(())
    }
}

/// Reads the certificate of the server in a pod.
async fn read_chain(guard: &GuardClient, replica: &Replica) -> anyhow::Result<ServedChain> {
    let connection = guard.connect_to_webhook(replica).await?;
    let certificates = handshake::read_chain(connection.stream, "localhost").await;
    let subject = replica.describe();
    Ok(ServedChain { certificates: certificates.with_context(|| subject.clone())?, subject })
}

/// Reads the certificate of a server that the webhook configuration names by its URL.
async fn read_chain_at(address: &str) -> anyhow::Result<ServedChain> {
    let stream = timeout(HANDSHAKE_TIMEOUT, TcpStream::connect(address)).await;
    let stream = stream.with_context(|| format!("no connection to {address}"))?;
    let stream = stream.with_context(|| format!("failed to connect to {address}"))?;
    let certificates =
        handshake::read_chain(stream, "localhost").await.with_context(|| address.to_owned())?;
    Ok(ServedChain { subject: format!("the server at {address}"), certificates })
}

/// Returns the time of the API server, which compares the validity of certificates with it.
async fn api_server_time(api_server: &ApiServer) -> Result<OffsetDateTime, String> {
    let response = api_server.get("/version").await.map_err(|error| error.to_string())?;
    let date = response.headers.get(http::header::DATE).and_then(|date| date.to_str().ok());
    let date = date.ok_or_else(|| String::from("the response of the API server has no Date header"))?;
    httpdate::parse_http_date(date).map(OffsetDateTime::from).map_err(|error| error.to_string())
}

/// Returns `HOST:PORT` of an HTTPS URL.
fn authority(url: &str) -> Option<String> {
    let url: Uri = url.parse().ok()?;
    Some(format!("{}:{}", url.host()?, url.port_u16().unwrap_or(443)))
}

/// Returns by how many seconds `end` is later than `start`.
fn seconds_between(start: OffsetDateTime, end: OffsetDateTime) -> i64 {
    end.unix_timestamp().saturating_sub(start.unix_timestamp())
}

/// Returns the causes of an error on one line.
pub(super) fn bounded(error: &anyhow::Error) -> String {
    to_bounded_line(&causes(error), MAX_ERROR_CHARS)
}

//! External members: listed voters that do not run in the cluster's pods, for example in a second StatefulSet, another
//! namespace or on another machine. They count like all other voters if the member itself replies.
//!
//! They are probed at the client URLs that they advertise, which may connect to another member: some charts advertise
//! one Service for all members. A reply counts only if it contains the expected member id. The guard does not know
//! whether the pod of an external member is terminating, unless it approved the deletion itself. The observer marks
//! such members by the member id in the reservation.

use tokio::time::Instant;

use crate::etcd::{self, Connections, Endpoint, ListedMember, Tls};
use crate::guard::model::{
    membership::Membership,
    snapshot::{ExternalMember, Snapshot},
};

/// Maximum number of client URLs at which one member is probed.
const MAX_URLS: usize = 4;

/// Returns the voters that have started and run in no pod of the snapshot.
#[must_use]
pub fn voters_without_pod(snapshot: &Snapshot) -> Vec<ListedMember> {
    // If the membership is ambiguous, the assessment is a denial, and external members cannot change it.
    let Ok(membership) = Membership::new(snapshot) else { return Vec::new() };
    let voters = membership.voters().filter(|voter| voter.listed.has_started() && voter.pod.is_none());
    voters.map(|voter| voter.listed.clone()).collect()
}

/// Probes these members at the URLs that they advertise, with the credentials of the `known` member.
pub async fn probe_external_members(
    connections: &Connections,
    known: &Endpoint,
    snapshot: &Snapshot,
    members: &[ListedMember],
    deadline: Instant,
) -> Vec<ExternalMember> {
    let urls = |member: &ListedMember| {
        let urls = member.client_urls.iter().take(MAX_URLS);
        urls.filter_map(|url| endpoint(url, known)).map(|endpoint| (member.id, endpoint)).collect::<Vec<_>>()
    };
    let (ids, endpoints): (Vec<_>, Vec<_>) = members.iter().flat_map(urls).unzip();
    if endpoints.is_empty() {
        return Vec::new();
    }
    let replies = etcd::probe(connections, &endpoints, deadline).await;
    let mut found: Vec<ExternalMember> = Vec::new();
    for (id, reply) in ids.into_iter().zip(replies) {
        let is_expected = reply
            .status()
            .is_some_and(|status| status.member_id == id && snapshot.cluster_id() == Some(status.cluster_id));
        if !is_expected {
            continue;
        }
        match found.iter_mut().find(|known| known.id == id) {
            Some(known) if known.reply.is_healthy() => {}
            Some(known) => known.reply = reply,
            None => found.push(ExternalMember { id, reply, reserved: false }),
        }
    }
    found
}

fn endpoint(url: &str, known: &Endpoint) -> Option<Endpoint> {
    let uri: http::Uri = url.parse().ok()?;
    let host = uri.host()?;
    // A password that is sent to members over TLS must not be sent without TLS.
    let tls = match (uri.scheme_str()?, &known.tls) {
        ("https", Some(tls)) => Some(Tls { server_name: host.to_owned(), ..tls.clone() }),
        ("http", None) => None,
        _ => return None,
    };
    Some(Endpoint { url: url.trim_end_matches('/').to_owned(), tls, user: known.user.clone() })
}

//! Members that are listed and run in none of the pods that were asked: those of a second StatefulSet, of another
//! namespace, of another machine. They count like all others, if they answer for themselves.
//!
//! They are dialled by the names that they advertise, which may lead to somebody else: some charts advertise one Service
//! for all members. So an answer counts only if it carries the very id that was looked for. That such a member's pod is on
//! its way out is known only if this guard allowed it: whoever fills in the reservations marks it by its id.

use tokio::time::Instant;

use super::{
    assess::union_of_lists,
    identity,
    snapshot::{Elsewhere, Snapshot},
};
use crate::etcd::{self, Connections, Endpoint, ListedMember, Tls};

/// Longest list of names that one member is looked for at.
const MOST_URLS: usize = 4;

/// The voters that have started and that no pod of the snapshot runs.
#[must_use]
pub fn unseen(snapshot: &Snapshot) -> Vec<ListedMember> {
    let mut list = union_of_lists(snapshot);
    // What is ambiguous is denied, whoever else answers.
    let Ok(members) = identity::resolve(snapshot, &list) else { return Vec::new() };
    let seen: Vec<_> = snapshot.pods.iter().filter_map(|pod| members.of(&pod.name)).collect();
    list.retain(|member| !member.is_learner && member.has_started() && !seen.contains(&member.id));
    list
}

/// Asks these members at the URLs that they advertise, with the credentials of a known one.
pub async fn ask(
    connections: &Connections,
    known: &Endpoint,
    snapshot: &Snapshot,
    members: &[ListedMember],
    deadline: Instant,
) -> Vec<Elsewhere> {
    let urls = |member: &ListedMember| {
        let urls = member.client_urls.iter().take(MOST_URLS);
        urls.filter_map(|url| endpoint(url, known)).map(|endpoint| (member.id, endpoint)).collect::<Vec<_>>()
    };
    let (ids, endpoints): (Vec<_>, Vec<_>) = members.iter().flat_map(urls).unzip();
    if endpoints.is_empty() {
        return Vec::new();
    }
    let replies = etcd::probe(connections, &endpoints, deadline).await;
    let mut found: Vec<Elsewhere> = Vec::new();
    for (id, reply) in ids.into_iter().zip(replies) {
        let is_it = reply
            .status()
            .is_some_and(|status| status.member_id == id && snapshot.cluster_id() == Some(status.cluster_id));
        if !is_it {
            continue;
        }
        match found.iter_mut().find(|known| known.id == id) {
            Some(known) if known.reply.is_serving() => {}
            Some(known) => known.reply = reply,
            None => found.push(Elsewhere { id, reply, reserved: false }),
        }
    }
    found
}

fn endpoint(url: &str, known: &Endpoint) -> Option<Endpoint> {
    let uri: http::Uri = url.parse().ok()?;
    let host = uri.host()?;
    // A password that went to members over TLS goes nowhere without.
    let tls = match (uri.scheme_str()?, &known.tls) {
        ("https", Some(tls)) => Some(Tls { server_name: host.to_owned(), ..tls.clone() }),
        ("http", None) => None,
        _ => return None,
    };
    Some(Endpoint { url: url.trim_end_matches('/').to_owned(), tls, user: known.user.clone() })
}

//! The addresses at which members have answered this replica: evidence that a refused connection comes from the member's
//! own address, and not from a network policy that rejects this client.

use std::time::Duration;

use crate::observe::namespace_pods::member_pod;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::{
    discovery::etcd_pod::EtcdPod, etcd::probe_result::ProbeResult, objects::pod::Pod,
    reservation::Reservation, snapshot::MemberPod,
};

/// Time for which an answer is evidence of the path.
const ANSWER_TTL: Duration = Duration::from_secs(3600);

/// Maximum number of addresses, each of which takes about 100 bytes.
const MAX_ADDRESSES: u64 = 16_384;

/// The addresses at which members have answered. Clones share them.
#[derive(Clone)]
pub(crate) struct AnsweredAddresses(ExpiringCache<(String, String), ()>);

// === impl AnsweredAddresses ===

impl AnsweredAddresses {
    /// Creates an empty set.
    pub(crate) fn new() -> Self {
        Self(ExpiringCache::new(MAX_ADDRESSES, Lifetime::SinceInsertion(ANSWER_TTL)))
    }

    /// Combines a pod with the result of probing its member, and with what earlier results show of the path to it.
    pub(crate) fn with_path(
        &self,
        pod: &Pod,
        etcd_pod: &EtcdPod,
        reply: ProbeResult,
        reserved: &[Reservation],
    ) -> MemberPod {
        let mut member = member_pod(pod, etcd_pod, reply, reserved);
        if let Some(endpoint) = &etcd_pod.endpoint {
            let address = (pod.metadata.uid.clone(), endpoint.url.clone());
            if member.reply.status().is_some() {
                self.0.insert(address, ());
                member.path.has_answered = true;
            } else {
                member.path.has_answered = self.0.get(&address).is_some();
            }
        }
        member
    }
}

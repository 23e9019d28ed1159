//! Limits for the responses of members. A pod that answers like a member chooses these responses.

use etcd_client::Channel;
use http::Response;
use http_body_util::Limited;
use tonic::body::Body;
use tower::{BoxError, ServiceExt, util::BoxCloneSyncService};

/// Maximum number of members in a member list. etcd recommends at most seven. A longer list is an error and never
/// truncated, because the quorum counts every voter.
pub const MAX_LISTED_MEMBERS: usize = 64;

/// Maximum number of peer URLs, and of client URLs, of one member in a member list.
pub const MAX_LISTED_URLS: usize = 16;

/// Maximum size of one response. A list of [`MAX_LISTED_MEMBERS`] members with several URLs each takes 50 KiB.
pub(super) const MAX_RESPONSE_BYTES: usize = 256 << 10;

/// Maximum number of members that one round probes at a time. It exceeds the largest member list.
pub(super) const MAX_CONCURRENT_PROBES: usize = 128;

/// Returns a channel that ends a response with an error once it exceeds [`MAX_RESPONSE_BYTES`].
pub(super) fn limited(channel: tonic::transport::Channel) -> Channel {
    let limited = channel
        .map_response(|response: Response<Body>| {
            response.map(|body| Body::new(Limited::new(body, MAX_RESPONSE_BYTES)))
        })
        .map_err(BoxError::from);
    Channel::Custom(BoxCloneSyncService::new(limited))
}

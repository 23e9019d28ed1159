//! Access control of `/check` and `/status`: only clients on the pod's own loopback.
//!
//! `kubectl port-forward` connects from there, so that the permissions to get and create `pods/portforward` in the
//! namespace of the guard are required. A client can read nothing here that the pods of the etcd clusters would not reveal, and can
//! change nothing.

use std::time::Duration;

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::StatusCode;

use crate::connection::IsLoopbackPeer;

/// Timeout of an evaluation, and of the status of one namespace. A person waits for the response, and a cluster with a
/// frozen member needs two seconds.
pub(super) const EVALUATION_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) async fn require_loopback(request: Request, next: Next) -> Response {
    if request.extensions().get::<IsLoopbackPeer>().is_some_and(|peer| peer.0) {
        return next.run(request).await;
    }
    let message = "this path is served on loopback only; use `kubectl port-forward` to the pod\n";
    (StatusCode::FORBIDDEN, message).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, middleware, routing::get};
    use tower::ServiceExt;

    use super::*;

    async fn status(peer: Option<IsLoopbackPeer>) -> StatusCode {
        let router =
            Router::new().route("/status", get(|| async {})).layer(middleware::from_fn(require_loopback));
        let mut request = Request::get("/status").body(Body::empty()).unwrap();
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        router.oneshot(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn serves_loopback_clients_only() {
        assert_eq!(status(Some(IsLoopbackPeer(true))).await, StatusCode::OK);
        assert_eq!(status(Some(IsLoopbackPeer(false))).await, StatusCode::FORBIDDEN);
        assert_eq!(status(None).await, StatusCode::FORBIDDEN);
    }
}

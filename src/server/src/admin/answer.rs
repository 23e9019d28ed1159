//! Answers about guarded clusters, in the form in which they leave the program.

use std::time::Duration;

use axum::{
    Json,
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{FutureExt, Stream, stream};
use http::{StatusCode, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use crate::webhook::http_response::Rejection;
use etcd_guard_core::{
    escape::{MAX_TEXT_CHARS, escape_texts, into_bounded_line},
    objects::data_object::hide_secret_names,
};

/// The time after which a response without data gets a space. Clients of the API server close a port-forward that transfers no
/// data for some time (`read_timeout` of kube-rs, idle limits of load balancers).
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Returns the response with these facts.
pub(super) fn answer<T: Serialize + DeserializeOwned>(facts: &T) -> Result<Response, Rejection> {
    let facts = displayed(facts)
        .map_err(|error| Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(Json(facts).into_response())
}

/// Returns the response with facts that can take long to collect. Spaces precede the JSON text, one every 5 s until the
/// facts are complete. JSON allows them.
pub(super) fn answer_when_complete<T: Serialize + DeserializeOwned>(
    facts: impl Future<Output = T> + Send + 'static,
) -> Response {
    let text = facts.map(|facts| Ok::<_, serde_json::Error>(serde_json::to_vec(&displayed(&facts)?)?.into()));
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, Body::from_stream(with_spaces(text))).into_response()
}

/// Returns the output of this future, after a space for each [`KEEP_ALIVE`] in which it is not complete.
fn with_spaces<E>(
    text: impl Future<Output = Result<Bytes, E>> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, E>> {
    stream::unfold(Some(Box::pin(text)), |text| async {
        let mut text = text?;
        match timeout(KEEP_ALIVE, &mut text).await {
            Ok(text) => Some((text, None)),
            Err(_) => Some((Ok(Bytes::from_static(b" ")), Some(text))),
        }
    })
}

/// Returns facts without names of Secrets, and with every text escaped and cut. The permission to port-forward to the guard
/// includes answers about all namespaces, and names of Secrets help only to read Secrets. The requester of a deletion reads
/// the names in the denial.
pub(crate) fn displayed<T: Serialize + DeserializeOwned>(facts: &T) -> serde_json::Result<T> {
    let mut value = serde_json::to_value(facts)?;
    escape_texts(&mut value, &|text| into_bounded_line(hide_secret_names(text), MAX_TEXT_CHARS));
    serde_json::from_value(value)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::time::sleep;

    use super::*;

    /// Returns the parts of a response whose facts take this long.
    async fn parts(duration: Duration) -> Vec<Bytes> {
        let text = async move {
            sleep(duration).await;
            Ok::<_, serde_json::Error>(Bytes::from_static(b"{}"))
        };
        with_spaces(text).map(Result::unwrap).collect().await
    }

    #[tokio::test(start_paused = true)]
    async fn slow_response_has_spaces_before_its_text() {
        assert_eq!(parts(Duration::from_secs(1)).await, ["{}"]);
        assert_eq!(parts(Duration::from_secs(17)).await, [" ", " ", " ", "{}"]);
    }
}

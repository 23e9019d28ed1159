//! A fake API server for unit tests that serves a few paths.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "values for tests: a failure is a panic"
)]

use std::{collections::BTreeMap, convert::Infallible};

use http::request::Parts;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// Returns a client of an API server with these responses by path; all other paths are 404.
pub fn api_server<const N: usize>(responses: [(&str, u16, Value); N]) -> Client {
    let responses: BTreeMap<String, (u16, Value)> =
        responses.into_iter().map(|(path, status, body)| (path.to_owned(), (status, body))).collect();
    api_server_with(move |call, _| {
        let path = call.uri.path();
        let not_found = (404, status_failure(404, &format!("{path} not found")));
        responses.get(path).cloned().unwrap_or(not_found)
    })
}

/// Returns a client of an API server with this handler: from a call and its body to a status code and a body.
pub fn api_server_with(
    handler: impl Fn(&Parts, &Value) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> Client {
    let serve = move |request: http::Request<Body>| {
        let handler = handler.clone();
        async move {
            let (call, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let (status, body) = handler(&call, &serde_json::from_slice(&body).unwrap_or_default());
            let body = Body::from(body.to_string().into_bytes());
            let date = httpdate::fmt_http_date(std::time::SystemTime::now());
            let response = http::Response::builder().status(status).header(http::header::DATE, date);
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    };
    Client::new(tower::service_fn(serve), "default")
}

/// A failure in the format of the API server (`meta/v1` `Status`).
pub fn status_failure(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})
}

//! An apiserver for unit tests that answers a few paths.

use std::{collections::BTreeMap, convert::Infallible};

use kube::{Client, client::Body};
use serde_json::{Value, json};

/// A client of an apiserver that gives these answers, and knows of nothing else.
pub(crate) fn apiserver<const N: usize>(answers: [(&str, u16, Value); N]) -> Client {
    let answers: BTreeMap<String, (u16, Value)> =
        answers.into_iter().map(|(path, status, body)| (path.to_owned(), (status, body))).collect();
    let serve = move |request: http::Request<Body>| {
        let path = request.uri().path();
        let nothing = (404, failure(404, &format!("{path} not found")));
        let (status, body) = answers.get(path).cloned().unwrap_or(nothing);
        let body = Body::from(body.to_string().into_bytes());
        let response = http::Response::builder().status(status).body(body).unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    };
    Client::new(tower::service_fn(serve), "default")
}

/// A refusal, as the apiserver words it.
pub(crate) fn failure(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})
}

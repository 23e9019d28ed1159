//! An apiserver for unit tests that answers a few paths.

use std::{collections::BTreeMap, convert::Infallible};

use http::request::Parts;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// A client of an apiserver that gives these answers, and knows of nothing else.
pub(crate) fn apiserver<const N: usize>(answers: [(&str, u16, Value); N]) -> Client {
    let answers: BTreeMap<String, (u16, Value)> =
        answers.into_iter().map(|(path, status, body)| (path.to_owned(), (status, body))).collect();
    served_by(move |call, _| {
        let path = call.uri.path();
        let nothing = (404, failure(404, &format!("{path} not found")));
        answers.get(path).cloned().unwrap_or(nothing)
    })
}

/// A client of an apiserver that answers like this: a status and a body, to a call and its body.
pub(crate) fn served_by(
    answer: impl Fn(&Parts, &Value) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> Client {
    let serve = move |request: http::Request<Body>| {
        let answer = answer.clone();
        async move {
            let (call, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let (status, body) = answer(&call, &serde_json::from_slice(&body).unwrap_or_default());
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::builder().status(status).body(body).unwrap())
        }
    };
    Client::new(tower::service_fn(serve), "default")
}

/// A refusal, as the apiserver words it.
pub(crate) fn failure(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})
}

//! Answers about guarded clusters, in the form in which they leave the program.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    escape::{MAX_TEXT_CHARS, escape_texts, into_bounded_line},
    k8s::hide_secret_names,
    server::webhook::http_response::Rejection,
};

/// Returns the response with these facts.
pub(super) fn answer<T: Serialize + DeserializeOwned>(facts: &T) -> Result<Response, Rejection> {
    let facts = displayed(facts)
        .map_err(|error| Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(Json(facts).into_response())
}

/// Returns facts without names of Secrets, and with every text escaped and cut. The permission to port-forward to the guard
/// includes answers about all namespaces, and names of Secrets help only to read Secrets. The requester of a deletion reads
/// the names in the denial.
pub(in crate::server) fn displayed<T: Serialize + DeserializeOwned>(facts: &T) -> serde_json::Result<T> {
    let mut value = serde_json::to_value(facts)?;
    escape_texts(&mut value, &|text| into_bounded_line(hide_secret_names(text), MAX_TEXT_CHARS));
    serde_json::from_value(value)
}

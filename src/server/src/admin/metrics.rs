//! `GET /metrics`.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header};
use prometheus_client::encoding::text::encode;

use super::health::HealthState;

/// The content type of the `OpenMetrics` text format.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn metrics(State(health): State<HealthState>) -> Response {
    let mut page = String::new();
    match encode(&mut page, &health.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

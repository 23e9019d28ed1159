//! Single calls to the API server with everything that a client sees: the status, the message and the warnings.

use std::time::Duration;

use anyhow::Context;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

/// Timeout of one call. Longer than the API server waits for all webhooks of a request.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(60);

/// The API server, called with the permissions of the user.
pub(super) struct ApiClient {
    client: Client,
}

/// A response of the API server.
#[derive(Debug)]
pub(super) struct Response {
    /// The HTTP status.
    pub(super) code: u16,
    /// The message of an error response.
    pub(super) message: String,
    /// The warnings that kubectl prints beside the response.
    pub(super) warnings: Vec<String>,
    /// The returned object or list; null in an error response.
    pub(super) object: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
}

// === impl ApiClient ===

impl ApiClient {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Response> {
        self.call(Method::GET, path, None).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Sends a merge patch.
    pub(super) async fn patch(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        self.call(Method::PATCH, path, Some(body)).await
    }

    /// Sends the options in the body, as clients do.
    pub(super) async fn delete(&self, path: &str, options: &Value) -> anyhow::Result<Response> {
        self.call(Method::DELETE, path, Some(options)).await
    }

    /// Returns an error only if there was no response. An error response is a [`Response`].
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Response> {
        let operation = format!("{method} {path}");
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content_type);
        let bytes = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let exchange = async {
            let response = self.client.send(request.body(Body::from(bytes))?).await?;
            let (head, body) = response.into_parts();
            anyhow::Ok((head, body.collect().await?.to_bytes()))
        };
        let (head, body) = timeout(API_TIMEOUT, exchange)
            .await
            .with_context(|| {
                format!("{operation}: no response within {}", humantime::format_duration(API_TIMEOUT))
            })?
            .with_context(|| operation.clone())?;
        // A long warning ends with an ellipsis, which is not ASCII.
        let warnings = head.headers.get_all(header::WARNING).iter();
        let warnings = warnings.map(|value| String::from_utf8_lossy(value.as_bytes()));
        let warnings = warnings.map(|warning| warning_text(&warning).to_owned()).collect();
        let code = head.status.as_u16();
        if head.status.is_success() {
            let object = serde_json::from_slice(&body).with_context(|| operation)?;
            return Ok(Response { code, message: String::new(), warnings, object });
        }
        let status: Status = serde_json::from_slice(&body).unwrap_or_default();
        Ok(Response { code, message: status.message, warnings, object: Value::Null })
    }
}

/// Returns the text of a warning header `299 - "text"`.
fn warning_text(header: &str) -> &str {
    header.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"')).map_or(header, |(text, _)| text)
}

// === impl Response ===

impl Response {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Returns the object, or the error response as an error. `operation` describes the call.
    pub(super) fn into_object(self, operation: &str) -> anyhow::Result<Value> {
        anyhow::ensure!(self.is_success(), "{operation}: {} ({})", self.message, self.code);
        Ok(self.object)
    }

    /// Whether the API server could not call the webhook (`failed calling webhook`). The condition is temporary.
    pub(super) fn is_webhook_failure(&self) -> bool {
        self.code >= 500 && self.message.contains("failed calling webhook")
    }

    /// Whether the user lacks a permission, by the message of the API server's authorizer (`authorizationErrorMessage`
    /// in k8s.io/apiserver, `endpoints/handlers/responsewriters/errors.go`). Admission plugins use the same status code.
    pub(super) fn is_forbidden(&self) -> bool {
        self.code == 403 && self.message.contains("forbidden: User \"") && self.message.contains("\" cannot ")
    }

    /// Whether a warning contains this text.
    pub(super) fn has_warning(&self, text: &str) -> bool {
        self.warnings.iter().any(|warning| warning.contains(text))
    }

    /// Returns the webhook that denied the request and the reason code, which starts the guard's message and ends at a colon.
    pub(super) fn denial(&self) -> Option<(&str, &str)> {
        let (_, rest) = self.message.split_once("admission webhook \"")?;
        let (webhook, message) = rest.split_once('"')?;
        let (_, text) = message.split_once("denied the request: ")?;
        let (code, _) = text.split_once(": ")?;
        let is_code = code.starts_with(|first: char| first.is_ascii_uppercase())
            && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_code.then_some((webhook, code))
    }
}

//! One call of the apiserver as any client makes it, and what was answered: not only whether it worked, but the status, its
//! words, and the warnings that a user would see.

use std::time::Duration;

use anyhow::Context;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

/// Longest that one call may take: longer than an apiserver waits for all webhooks of a request.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(60);

/// The apiserver, with the user's own rights.
pub(super) struct Caller {
    client: Client,
}

/// What the apiserver answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// The HTTP status.
    pub(super) code: u16,
    /// Why it was refused, in the apiserver's words.
    pub(super) message: String,
    /// What kubectl prints beside the answer.
    pub(super) warnings: Vec<String>,
    /// The object or list that came back; of a refusal nothing.
    pub(super) object: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
}

// === impl Caller ===

impl Caller {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.call(Method::GET, path, None).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// A merge patch.
    pub(super) async fn patch(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.call(Method::PATCH, path, Some(body)).await
    }

    /// The options are a body, as clients send them.
    pub(super) async fn delete(&self, path: &str, options: &Value) -> anyhow::Result<Answer> {
        self.call(Method::DELETE, path, Some(options)).await
    }

    /// An error is that no answer came; a refusal is an answer.
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        let what = format!("{method} {path}");
        let content =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content);
        let bytes = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let exchange = async {
            let response = self.client.send(request.body(Body::from(bytes))?).await?;
            let (head, body) = response.into_parts();
            anyhow::Ok((head, body.collect().await?.to_bytes()))
        };
        let (head, body) = timeout(CALL_LIMIT, exchange)
            .await
            .with_context(|| format!("{what}: no answer within {}", humantime::format_duration(CALL_LIMIT)))?
            .with_context(|| what.clone())?;
        // A long warning ends with an ellipsis, which is no ASCII.
        let warnings = head.headers.get_all(header::WARNING).iter();
        let warnings = warnings.map(|it| String::from_utf8_lossy(it.as_bytes()));
        let warnings = warnings.map(|it| unquoted(&it).to_owned()).collect();
        let code = head.status.as_u16();
        if head.status.is_success() {
            let object = serde_json::from_slice(&body).with_context(|| what)?;
            return Ok(Answer { code, message: String::new(), warnings, object });
        }
        let status: Status = serde_json::from_slice(&body).unwrap_or_default();
        Ok(Answer { code, message: status.message, warnings, object: Value::Null })
    }
}

/// Of `299 - "text"`, the text.
fn unquoted(warning: &str) -> &str {
    warning.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"')).map_or(warning, |(text, _)| text)
}

// === impl Answer ===

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The object, or the refusal as an error.
    pub(super) fn object(self, what: &str) -> anyhow::Result<Value> {
        anyhow::ensure!(self.is_success(), "{what}: {} ({})", self.message, self.code);
        Ok(self.object)
    }

    /// Whether nobody was asked, because the webhook did not answer: the apiserver's `failed calling webhook`. It passes.
    pub(super) fn is_unasked(&self) -> bool {
        self.code >= 500 && self.message.contains("failed calling webhook")
    }

    /// Whether the caller has no right to this, by the words of the apiserver's authorizer (`authorizationErrorMessage` in
    /// apiserver's `endpoints/handlers/responsewriters/errors.go`): admission refuses with the same status.
    pub(super) fn is_without_right(&self) -> bool {
        self.code == 403 && self.message.contains("forbidden: User \"") && self.message.contains("\" cannot ")
    }

    /// The webhook that refused, and the guard's reason at the end of its message: `[LeaderProtected]`.
    pub(super) fn denial(&self) -> Option<(&str, &str)> {
        let (_, rest) = self.message.split_once("admission webhook \"")?;
        let (webhook, message) = rest.split_once('"')?;
        let (_, reason) = message.rsplit_once('[')?;
        Some((webhook, reason.split(']').next().unwrap_or_default()))
    }
}

//! Reads with the permissions of the user. A read that fails is the result of its own check, and ends no other check.

use std::time::Duration;

use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    escape::{MAX_ERROR_CHARS, to_bounded_line, to_shell_word},
    terminal::waiting::with_notice,
};

/// Timeout of one call. Longer than the timeout of the guard's webhooks, which the network check waits for.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Calls the API server with the permissions of the user.
pub(super) struct Reader {
    client: Client,
    /// The kubectl command with the flags that select the same cluster.
    kubectl: String,
}

/// The permission that a call requires, for the remedy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Right<'a> {
    pub(super) verb: &'static str,
    /// For instance `deployments.apps`.
    pub(super) resource: &'static str,
    pub(super) namespace: Option<&'a str>,
}

/// A response of the API server.
#[derive(Clone, Debug)]
pub(super) struct Response {
    pub(super) code: u16,
    /// The object, or the `Status` of an error.
    pub(super) body: Value,
}

/// A read without a result.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    pub(super) cause: String,
    pub(super) remedy: String,
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(client: Client, kubectl: String) -> Self {
        Self { client, kubectl }
    }

    pub(super) fn kubectl(&self) -> &str {
        &self.kubectl
    }

    /// Returns the object at this path, or `None` if it does not exist.
    pub(super) async fn get(&self, path: &str, right: Right<'_>) -> Result<Option<Value>, Unread> {
        let response = self.call(Method::GET, path, &Value::Null).await.map_err(|cause| Unread {
            cause,
            remedy: format!("{} get --raw {}", self.kubectl, to_shell_word(path)),
        })?;
        match response.code {
            200..300 => Ok(Some(response.body)),
            404 => Ok(None),
            _ => Err(self.unread(&response, right)),
        }
    }

    /// Returns the version of the API server. The outer error is that it does not respond.
    pub(super) async fn version(&self) -> Result<Result<Value, Unread>, String> {
        let response = self.call(Method::GET, "/version", &Value::Null).await?;
        if response.is_success() {
            return Ok(Ok(response.body));
        }
        let remedy = format!("{} get --raw /version", self.kubectl);
        Ok(Err(Unread { cause: response.message(), remedy }))
    }

    /// Returns the items of the list at this path.
    pub(super) async fn list(&self, path: &str, right: Right<'_>) -> Result<Vec<Value>, Unread> {
        let list = self.get(path, right).await?.unwrap_or_default();
        Ok(list.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// Creates an object that the API server does not store, such as a review or a dry run. The error is the cause why
    /// there is no response.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Response, String> {
        self.call(Method::POST, path, body).await
    }

    /// Returns the result for an error response.
    pub(super) fn unread(&self, response: &Response, right: Right<'_>) -> Unread {
        let Right { verb, resource, namespace } = right;
        let kubectl = &self.kubectl;
        let place = namespace.map_or_else(String::new, |name| format!(" -n {}", to_shell_word(name)));
        Unread {
            cause: response.message(),
            remedy: format!(
                "repeat with an account that has this permission: {kubectl} auth can-i {verb} {resource}{place}"
            ),
        }
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Result<Response, String> {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let subject = format!("the API server: {method} {path}");
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(Body::from(bytes));
        let exchange = async {
            let request = request.map_err(|error| error.to_string())?;
            let response = self.client.send(request).await.map_err(|error| error.to_string())?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            Ok(Response { code: head.status.as_u16(), body })
        };
        let result = with_notice(&subject, timeout(CALL_TIMEOUT, exchange)).await.unwrap_or_else(|_| {
            Err(format!("no response within {}", humantime::format_duration(CALL_TIMEOUT)))
        });
        result.map_err(|cause| to_bounded_line(&format!("{path}: {cause}"), MAX_ERROR_CHARS))
    }
}

// === impl Response ===

impl Response {
    /// Returns the message of an error response.
    pub(super) fn message(&self) -> String {
        let message = self.body.get("message").and_then(Value::as_str);
        let message = message.map_or_else(|| format!("HTTP status {}", self.code), str::to_owned);
        to_bounded_line(&message, MAX_ERROR_CHARS)
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

/// Returns the text at this JSON pointer.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str()
}

/// Returns the elements of the array at this JSON pointer.
pub(super) fn elements<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::fake::{api_server, status_failure};

    #[tokio::test]
    async fn missing_permission_names_the_verb_and_the_command() {
        let forbidden = status_failure(403, "pods is forbidden: User \"alice\" cannot list");
        let client = api_server([("/pods", 403, forbidden), ("/web", 200, json!({"items": [1, 2]}))]);
        let reader = Reader::new(client, String::from("kubectl --context 'prod'"));
        let right = Right { verb: "list", resource: "pods", namespace: Some("etcd-guard") };
        let unread = reader.get("/pods", right).await.unwrap_err();
        assert!(unread.cause.contains("User \"alice\" cannot list"), "{unread:?}");
        assert!(
            unread.remedy.ends_with(": kubectl --context 'prod' auth can-i list pods -n etcd-guard"),
            "{unread:?}"
        );
        assert_eq!(reader.get("/absent", right).await.unwrap(), None);
        assert_eq!(reader.list("/web", right).await.unwrap().len(), 2);
    }
}

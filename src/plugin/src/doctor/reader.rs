//! Reads with the permissions of the user. A read that fails is the result of its own check, and ends no other check.

use std::fmt::Display;

use serde_json::Value;

use crate::api_server::{ApiServer, Response};
use etcd_guard_cli::terminal::waiting::with_notice;
use etcd_guard_core::escape::to_shell_word;

/// Calls the API server with the permissions of the user.
pub(super) struct Reader {
    api_server: ApiServer,
}

/// The permission that a call requires, for the remedy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Right<'a> {
    pub(super) verb: &'static str,
    /// For instance `deployments.apps`.
    pub(super) resource: &'static str,
    pub(super) namespace: Option<&'a str>,
}

/// A read without a result.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    pub(super) cause: String,
    pub(super) remedy: String,
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(api_server: ApiServer) -> Self {
        Self { api_server }
    }

    pub(super) fn kubectl(&self) -> &str {
        &self.api_server.kubectl
    }

    /// Returns the object at this path, or `None` if it does not exist.
    pub(super) async fn get(&self, path: &str, right: Right<'_>) -> Result<Option<Value>, Unread> {
        let response = self.noticed(path, self.api_server.get(path)).await.map_err(|cause| Unread {
            cause,
            remedy: format!("{} get --raw {}", self.kubectl(), to_shell_word(path)),
        })?;
        match response.code {
            200..300 => Ok(Some(response.object)),
            404 => Ok(None),
            _ => Err(self.unread(&response, right)),
        }
    }

    /// Returns the version of the API server. The outer error is that it does not respond.
    pub(super) async fn version(&self) -> Result<Result<Value, Unread>, String> {
        let response = self.noticed("/version", self.api_server.get("/version")).await?;
        if response.is_success() {
            return Ok(Ok(response.object));
        }
        let remedy = format!("{} get --raw /version", self.kubectl());
        Ok(Err(Unread { cause: response.cause(), remedy }))
    }

    /// Returns the items of the list at this path.
    pub(super) async fn list(&self, path: &str, right: Right<'_>) -> Result<Vec<Value>, Unread> {
        let list = self.get(path, right).await?.unwrap_or_default();
        Ok(list.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// Creates an object that the API server does not store, such as a review or a dry run. The error is the cause why
    /// there is no response.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Response, String> {
        self.noticed(path, self.api_server.post(path, body)).await
    }

    /// Returns the result for an error response.
    pub(super) fn unread(&self, response: &Response, right: Right<'_>) -> Unread {
        let Right { verb, resource, namespace } = right;
        let kubectl = self.kubectl();
        let place = namespace.map_or_else(String::new, |name| format!(" -n {}", to_shell_word(name)));
        Unread {
            cause: response.cause(),
            remedy: format!(
                "repeat with an account that has this permission: {kubectl} auth can-i {verb} {resource}{place}"
            ),
        }
    }

    /// Awaits a call, with a notice if it takes long. The error is the cause why there is no response.
    async fn noticed<E: Display>(
        &self,
        path: &str,
        call: impl Future<Output = Result<Response, E>>,
    ) -> Result<Response, String> {
        let subject = format!("{}: {path}", self.api_server.describe());
        with_notice(&subject, call).await.map_err(|error| error.to_string())
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
    use etcd_guard_kubernetes::fake::{api_server, status_failure};

    #[tokio::test]
    async fn missing_permission_names_the_verb_and_the_command() {
        let forbidden = status_failure(403, "pods is forbidden: User \"alice\" cannot list");
        let client = api_server([("/pods", 403, forbidden), ("/web", 200, json!({"items": [1, 2]}))]);
        let reader = Reader::new(ApiServer::fake(client, "kubectl --context 'prod'"));
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

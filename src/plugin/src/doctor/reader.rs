//! Reads with the permissions of the user. A read that fails is the result of its own check, and ends no other check.

use std::fmt::Display;

use serde_json::Value;

use super::{permissions::Permission, report::Line};
use crate::api_server::{ApiServer, Response};
use etcd_guard_cli::{printing::causes, terminal::waiting::with_notice};
use etcd_guard_core::escape::to_shell_word;

/// The HTTP status of rejected credentials.
const UNAUTHORIZED: u16 = 401;

/// The HTTP status of a missing permission.
const FORBIDDEN: u16 = 403;

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
    /// Whether the user lacks the permission.
    pub(super) is_forbidden: bool,
}

// === impl Unread ===

impl Unread {
    /// A read that failed for another reason than a missing permission.
    pub(super) fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedy: remedy.into(), is_forbidden: false }
    }
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(api_server: ApiServer) -> Self {
        Self { api_server }
    }

    pub(super) fn kubectl(&self) -> &str {
        &self.api_server.kubectl
    }

    /// Returns a command of this program, with the flags that select the same cluster and the same identity.
    pub(super) fn command(&self, name: &str) -> String {
        self.api_server.command(name)
    }

    /// Whether the user has a permission.
    pub(super) async fn is_permitted(&self, permission: &Permission) -> Result<bool, String> {
        let review = self.api_server.is_permitted(permission.attributes());
        with_notice(&self.api_server.describe(), review).await.map_err(|error| causes(&error))
    }

    /// The line of a check whose call had no response.
    pub(super) fn unanswered(&self, check: &'static str, cause: String) -> Line {
        Line::not_checked(check, &Unread::new(cause, format!("{} get --raw /readyz", self.kubectl())))
    }

    /// Returns the object at this path, or `None` if it does not exist.
    pub(super) async fn get(&self, path: &str, right: Right<'_>) -> Result<Option<Value>, Unread> {
        let response = self.noticed(path, self.api_server.get(path)).await.map_err(|cause| {
            Unread::new(cause, format!("{} get --raw {}", self.kubectl(), to_shell_word(path)))
        })?;
        match response.code {
            200..300 => Ok(Some(response.object)),
            404 => Ok(None),
            _ => Err(self.unread(&response, right)),
        }
    }

    /// Returns the version of the API server. The outer error is that it does not respond, or rejects the credentials.
    pub(super) async fn version(&self) -> Result<Result<Value, Unread>, String> {
        let path = "/version";
        let response = self.noticed(path, self.api_server.get(path)).await.map_err(|cause| {
            format!(
                "the API server does not respond: {cause}; check the address: {} cluster-info",
                self.kubectl()
            )
        })?;
        if response.code == UNAUTHORIZED {
            return Err(response.cause());
        }
        if response.is_success() {
            return Ok(Ok(response.object));
        }
        let remedy = format!("{} get --raw /version", self.kubectl());
        let cause = format!("{} responded: {}", self.api_server.describe(), response.cause());
        Ok(Err(Unread::new(cause, remedy)))
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
            is_forbidden: response.is_forbidden(),
            cause: response.cause(),
            remedy: match response.code {
                UNAUTHORIZED => format!("log in again: {kubectl} auth whoami"),
                FORBIDDEN => format!(
                    "repeat with an account that has this permission: {kubectl} auth can-i {verb} {resource}{place}"
                ),
                _ => format!("{kubectl} get --raw /readyz"),
            },
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

//! Lists of objects, which are read in pages and parsed while a page arrives.
//!
//! Objects that the caller does not keep are dropped one by one. The memory of a list depends on what is kept.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::{
    Client,
    core::{Request, params::ListParams},
};
use tokio::time::timeout;

use super::{
    body::{BuiltRequest, CallFailure, send},
    list_splitter::{ListMetadata, ListSplitter, SplitError},
};
use crate::error::{LookupError, root_cause};
use etcd_guard_core::objects::heap_size::HeapSize;

/// Number of objects in one page. All pages have the same resource version. It bounds the work of the API server and the
/// time of one call, in which objects can have 1.5 MB each.
const PAGE_SIZE: u32 = 100;

/// Maximum memory of the objects of one list that are kept, in bytes: a quarter of the container's limit. A pod takes
/// about two kilobytes.
const MAX_KEPT_BYTES: usize = 32 << 20;

/// A list of objects of one resource.
pub(crate) struct List<'a> {
    pub client: &'a Client,
    /// The objects, for error messages.
    pub subject: &'a str,
    /// Timeout of one page.
    pub timeout: Duration,
    pub selection: ListParams,
}

/// The objects of a list that were kept.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub objects: Vec<T>,
    /// The version at which a watch continues the list; empty if the API server returned none.
    pub(super) version: String,
}

// === impl List ===

impl List<'_> {
    /// Reads all pages. `request` returns the request for a page, and `parse` the object that is kept, if any. If the
    /// continue token of a page has expired, the list starts again, once.
    pub(crate) async fn read<T: HeapSize>(
        &self,
        request: impl Fn(&ListParams) -> BuiltRequest,
        parse: impl Fn(&[u8]) -> Result<Option<T>, serde_json::Error>,
    ) -> Result<Listed<T>, LookupError> {
        match self.read_pages(&request, &parse).await {
            Err(CallFailure::Expired(_)) => Ok(self.read_pages(&request, &parse).await?),
            result => Ok(result?),
        }
    }

    /// Returns the present version of the resource, from which a watch continues. Costs a list of at most one object, whose size
    /// does not matter.
    pub(super) async fn version(
        &self,
        request: impl Fn(&ListParams) -> BuiltRequest,
    ) -> Result<String, LookupError> {
        let first = self.selection.clone().limit(1);
        let splitter = ListSplitter::without_objects();
        let read = self.read_page(request(&first), splitter, |_| Ok(()));
        let metadata = timeout(self.timeout, read).await.map_err(|_| self.timed_out())??;
        let version = metadata.resource_version.filter(|version| !version.is_empty());
        version.ok_or_else(|| self.failed(String::from("the list has no version")))
    }

    async fn read_pages<T: HeapSize>(
        &self,
        request: impl Fn(&ListParams) -> BuiltRequest,
        parse: impl Fn(&[u8]) -> Result<Option<T>, serde_json::Error>,
    ) -> Result<Listed<T>, CallFailure> {
        let (mut objects, mut bytes) = (Vec::new(), 0);
        let mut keep = |json: &[u8]| {
            let object = parse(json).map_err(|error| self.failed(error.to_string()))?;
            let Some(object) = object else { return Ok(()) };
            bytes += size_of::<T>() + object.heap_size();
            if bytes > MAX_KEPT_BYTES {
                let cause = format!("the objects take more than {} MiB of memory", MAX_KEPT_BYTES >> 20);
                return Err(LookupError::TooLarge { subject: self.subject.to_owned(), cause });
            }
            objects.push(object);
            Ok(())
        };
        let mut page = self.selection.clone().limit(PAGE_SIZE);
        loop {
            let read = self.read_page(request(&page), ListSplitter::default(), &mut keep);
            let metadata = timeout(self.timeout, read).await.map_err(|_| self.timed_out())??;
            match metadata.next {
                Some(next) if !next.is_empty() => page = page.continue_token(&next),
                _ => return Ok(Listed { objects, version: metadata.resource_version.unwrap_or_default() }),
            }
        }
    }

    async fn read_page(
        &self,
        request: BuiltRequest,
        mut splitter: ListSplitter,
        mut keep: impl FnMut(&[u8]) -> Result<(), LookupError>,
    ) -> Result<ListMetadata, CallFailure> {
        let mut body = send(self.client, self.subject, request).await?;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.failed(root_cause(&error)))?;
            // A frame without data has trailers.
            let Ok(data) = frame.into_data() else { continue };
            let split = splitter.push(&data, |json| keep(json).map_err(PageError::Lookup));
            split.map_err(|error| self.page_error(error))?;
        }
        Ok(splitter.finish().map_err(|error| self.page_error(PageError::Split(error)))?)
    }

    fn page_error(&self, error: PageError) -> LookupError {
        match error {
            PageError::Lookup(error) => error,
            PageError::Split(error @ SplitError::TooLarge) => {
                LookupError::TooLarge { subject: self.subject.to_owned(), cause: error.to_string() }
            }
            PageError::Split(error) => self.failed(error.to_string()),
        }
    }

    fn failed(&self, cause: String) -> LookupError {
        LookupError::Failed { subject: self.subject.to_owned(), cause }
    }

    fn timed_out(&self) -> LookupError {
        LookupError::TimedOut { subject: self.subject.to_owned(), limit: self.timeout }
    }
}

/// The reason why a page cannot be read to its end.
enum PageError {
    Lookup(LookupError),
    Split(SplitError),
}

impl From<SplitError> for PageError {
    fn from(error: SplitError) -> Self {
        Self::Split(error)
    }
}

/// Returns the requests for a list of the objects of this URL path.
pub(crate) fn objects(path: &str) -> impl Fn(&ListParams) -> BuiltRequest {
    let requests = Request::new(path);
    move |page| requests.list(page)
}

/// Returns the requests for a list of the metadata of the objects of this URL path.
pub(super) fn metadata(path: &str) -> impl Fn(&ListParams) -> BuiltRequest {
    let requests = Request::new(path);
    move |page| requests.list_metadata(page)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use serde_json::{Value, json};

    use super::*;
    use crate::fake;
    use etcd_guard_core::objects::pod::Pod;

    const PATH: &str = "/api/v1/namespaces/prod/pods";

    /// Lists the pods of an API server with this handler, from the number of the call and its query to its response.
    async fn list(
        handler: impl Fn(usize, &str) -> (u16, Value) + Clone + Send + Sync + 'static,
    ) -> Result<Listed<Pod>, LookupError> {
        let calls = Arc::new(AtomicUsize::new(0));
        let client = fake::api_server_with(move |call, _| {
            handler(calls.fetch_add(1, Ordering::SeqCst), call.uri.query().unwrap_or_default())
        });
        let (subject, timeout) = ("the pods of namespace prod", Duration::from_secs(3));
        let list = List { client: &client, subject, timeout, selection: ListParams::default() };
        list.read(objects(PATH), |json| serde_json::from_slice(json).map(Some)).await
    }

    fn page(names: &[&str], next: &str) -> (u16, Value) {
        let pods: Vec<_> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
        (200, json!({"metadata": {"continue": next, "resourceVersion": "7"}, "items": pods}))
    }

    fn names(listed: &Listed<Pod>) -> Vec<&str> {
        listed.objects.iter().map(|pod| pod.metadata.name.as_str()).collect()
    }

    #[tokio::test]
    async fn reads_all_pages() {
        let listed = list(|call, query| {
            assert!(query.contains("limit=100"), "{query}");
            assert_eq!(query.contains("continue=there"), call == 1, "{query}");
            if call == 0 { page(&["etcd-0"], "there") } else { page(&["etcd-1"], "") }
        });
        let listed = listed.await.unwrap();
        assert_eq!((names(&listed), listed.version.as_str()), (vec!["etcd-0", "etcd-1"], "7"));
    }

    #[tokio::test]
    async fn expired_continue_token_restarts_the_list_once() {
        let expired = || (410, fake::status_failure(410, "the token has expired"));
        let listed = list(move |call, _| match call {
            0 | 2 => page(&["etcd-0"], "there"),
            1 => expired(),
            _ => page(&["etcd-1"], ""),
        });
        assert_eq!(names(&listed.await.unwrap()), ["etcd-0", "etcd-1"], "no object twice");
        let error = list(move |call, _| if call % 2 == 0 { page(&["etcd-0"], "there") } else { expired() });
        let error = error.await.unwrap_err();
        assert_eq!(error.to_string(), "reading the pods of namespace prod failed: the token has expired");
    }

    #[tokio::test]
    async fn limits_the_memory_of_kept_objects() {
        // 300,000 empty arguments have less than a megabyte of JSON.
        let pod = json!({"spec": {"containers": [{"name": "a", "args": vec![""; 300_000]}]}});
        let handler = move |count: usize| {
            let pod = pod.clone();
            move |call: usize, _: &str| {
                let next = if call + 1 < count { "there" } else { "" };
                (200, json!({"metadata": {"continue": next}, "items": [pod]}))
            }
        };
        assert_eq!(list(handler(2)).await.unwrap().objects.len(), 2);
        let error = list(handler(6)).await.unwrap_err();
        assert!(matches!(error, LookupError::TooLarge { .. }), "{error}");
    }

    #[tokio::test]
    async fn responses_map_to_errors() {
        let error = |code| async move {
            list(move |_, _| (code, fake::status_failure(code, "the cause"))).await.unwrap_err()
        };
        assert!(matches!(error(404).await, LookupError::NotFound { .. }));
        assert!(matches!(error(403).await, LookupError::Forbidden { cause, .. } if cause == "the cause"));
        assert!(matches!(error(500).await, LookupError::Failed { cause, .. } if cause == "the cause"));
    }
}

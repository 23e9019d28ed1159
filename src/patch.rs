//! Changes of an object that another client owns, as RFC 6902 operations on untyped JSON.
//!
//! Objects from the API server may contain fields that no library knows yet, so that no object is ever parsed into
//! types and serialized again. A [`PatchBuilder`] only adds and never changes existing values, except by two methods
//! for values of this program itself: [`PatchBuilder::set`] and [`PatchBuilder::remove`].
//!
//! A patch that does not apply fails the request even if the webhook's `failurePolicy` is `Ignore` (API server,
//! `pkg/admission/plugin/webhook/mutating/dispatcher.go`). The builder therefore applies each operation to its object,
//! from the root along the path that the API server follows, when the operation is added, and then records the value
//! that it finds at that path. The final object is by construction the result of the operations; otherwise there is an
//! error and no patch.
//!
//! This module applies operations itself, because `json_patch` copies each value and allocates twice per token of a
//! path: decision 0022 has the figures. A property test asserts that both produce the same result for any pod.

mod builder;
mod operations;
#[cfg(test)]
mod tests;

pub use builder::{ListPosition, PatchBuilder, PatchError, PatchedObject, pointer};
pub use operations::Patch;

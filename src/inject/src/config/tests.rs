//! Tests of validation and hot reload.

mod diagnostics;
mod parts;
mod schema;
mod template;
mod templates;

//! JSON that is read from a request, inspected and changed without copies.
//!
//! A `serde_json::Value` owns each key and each text. Values of this module borrow them from the request, and parts of
//! the configuration that many pods receive are shared together with their serialized form. Decision 0023 lists the
//! savings.

mod convert;
mod read;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use self::{read::CowStr, value::write_text};
pub use self::{
    read::{ObjectReader, read_object},
    value::{Json, Members, SharedJson},
};

//! What is told of bad files, and what becomes of a file that changes.

mod mistakes;
mod parts;
mod reload;
mod schema;
mod template;

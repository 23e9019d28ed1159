//! From annotations and the configuration to the effective policy.

pub(crate) mod owner_chain;
pub(crate) mod resolver;

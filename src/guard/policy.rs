//! From annotations and the configuration to the effective policy.

pub(in crate::guard) mod effective;
pub(in crate::guard) mod owner_chain;
pub(in crate::guard) mod resolver;

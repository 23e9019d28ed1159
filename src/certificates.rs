//! Certificates that the guard makes itself, and the webhook configurations that trust them.
//!
//! A *generation* is a CA, the one leaf that it signed, and the leaf's key; the CA's own key is forgotten as soon as it
//! has signed. All replicas share the generations in one Secret: `current`, and for a while before a change `next`.
//! [`plan`] says what to do, and is pure; the [`Keeper`] looks and does it. The law: no replica serves a leaf whose CA is not in
//! the `caBundle` of every entry of the guard's own configuration. It holds without any agreement on who has switched already, because a CA leaves a bundle only
//! when it has expired, and its leaf with it.
//!
//! This room knows TLS and webhook configurations, and never what the webhooks judge.

mod bundle;
mod generation;
mod keeper;
pub mod plan;
mod registration;
mod stored;
mod validity;

pub use self::{
    generation::{Generation, GenerationError},
    keeper::{Keeper, Settings},
    registration::{Part, Registration, own_configurations},
    validity::watch_validity,
};

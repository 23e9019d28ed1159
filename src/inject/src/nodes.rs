//! Over-commit: nodes that offer more CPU or memory than they have, by changes of updates of their status.
//!
//! Several clients write a node's status, and most of them send back the raised values that they read. An annotation of
//! the node therefore records the original and the raised values: a value that equals a recorded raised value is not
//! raised again.
//!
//! A value that is neither recorded nor new may be the machine's value, or a raised value without its record, which was
//! removed from the node. The two cases are indistinguishable. The value is then written one unit smaller: the kubelet
//! sends values that differ from the stored node, so that it reports the machine's value, which can then be raised.
//!
//! Sources: kubernetes `pkg/kubelet/kubelet_node_status.go`, `pkg/util/node/node.go`. The rules are pure and do not
//! know admission reviews. `reconciler` applies them to stored nodes.

mod amounts;
mod error;
pub mod evaluation;
mod factors;
mod origin;
mod reason;
pub mod record;
#[cfg(test)]
mod tests;
pub mod tracking;

pub use self::{
    evaluation::{Outcome, over_commit},
    reason::Reason,
    record::RECORD,
};

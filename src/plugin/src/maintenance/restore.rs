//! Restores all members of a StatefulSet from one backup, when the quorum is lost for good.
//!
//! The members stop. In each of their volumes, a pod then receives the backup from this program, restores it beside the old data with
//! `etcdutl` of the members' image, and exchanges the two. The members start with an unchanged template. The state is in the annotation
//! [`record::RESTORE`], so that the command continues after any interruption; restored data is never restored a second time once the
//! members may have started.

pub(crate) mod layout;
pub(crate) mod pod;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod source;

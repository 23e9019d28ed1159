//! From a pod to its etcd member: recognition, endpoint, credentials, and storage.

pub mod advertised_hosts;
pub mod credential_selection;
pub mod credential_sources;
pub mod endpoint;
pub mod etcd_pod;
mod etcdctl;
pub mod fail_closed;
pub mod member_settings;
pub mod recognition;
pub mod stopped_pod;
mod storage;

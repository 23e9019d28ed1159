//! The command that inspects a voter, at the end of denials because of this voter.

use super::*;

#[test]
fn names_inspection_of_voter_that_may_only_be_unreachable() {
    let rejected = MemberError::CredentialsRejected(String::from("found no CA"));
    let unreachable = MemberError::Unreachable(String::from("the settings of etcd are unknown"));
    let failed = |cause: MemberError| {
        cluster(3).change(2, |pod| pod.reply = ProbeResult::NoStatus { cause: cause.clone() })
    };
    for denied in [failed(rejected), failed(unreachable), cluster(3).refuse(2)] {
        assert_eq!(denied.reason(1), Reason::QuorumAtRisk);
        let text = denied.text(1);
        assert!(text.ends_with("kubectl etcd-guard inspect -n prod etcd-2"), "{text}");
    }
}
